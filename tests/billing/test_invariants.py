"""Each check finds its own kind of damage, and a healthy database has none."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from django.db import connection

from billing.holds.services import hold_account_open, hold_place
from billing.invariants import CHECKS, check
from billing.invoices.services import invoice_draft_build
from billing.metering.services import ingest_usage
from billing.pricing.services import price_book_seed
from inference.requests.models import State
from tests.billing.cast import ACME, JUNE, MODEL, TOKENS, finished, request_row

pytestmark = pytest.mark.django_db

UNLOCK = "ALTER TABLE metering_line DISABLE TRIGGER metering_line_no_change"
DAMAGE: dict[str, tuple[str, ...]] = {
    "usage_is_rated": ("UPDATE inference_usage SET billable = true",),
    "lines_match_usage": ("UPDATE inference_usage SET quantity = quantity + 1 WHERE meter = 'decode'",),
    "pending_is_taken": (
        "INSERT INTO inference_usage_pending SELECT request_id, tenant_id, now() - interval '2 minutes' FROM metering_request",
    ),
    "lines_are_numbered": (UNLOCK, "UPDATE metering_line SET number = 99 WHERE number = 1"),
    "requests_are_sums": ("UPDATE metering_request SET total_nano_usd = total_nano_usd + 1",),
    "days_are_sums": ("UPDATE metering_day SET quantity = quantity + 1",),
    "lines_are_posted": (UNLOCK, "UPDATE metering_line SET quantity = 0, amount_nano_usd = 0 WHERE meter = 'decode'"),
    "transactions_balance": (
        "ALTER TABLE ledger_entry DISABLE TRIGGER ledger_entry_no_change",
        "UPDATE ledger_entry SET amount_nano_usd = amount_nano_usd + 1 WHERE amount_nano_usd > 0",
    ),
    "invoices_match_lines": ("UPDATE invoices_line SET amount_cents = amount_cents + 1",),
    "holds_are_counted": ("UPDATE holds_account SET held_nano_usd = held_nano_usd + 1",),
    "holds_match_ratings": ("UPDATE holds_hold SET settled_nano_usd = settled_nano_usd + 1",),
    "holds_end": ("UPDATE holds_hold SET state = 'open', settled_nano_usd = 0",),
}


@pytest.fixture(autouse=True)
def one_billed_request(db: None) -> None:
    price_book_seed(model=MODEL)
    hold_account_open(tenant_id=ACME, limit_nano_usd=None)
    request_id = finished()
    finished(dict.fromkeys(TOKENS, 5), billable=False)
    hold_place(tenant_id=ACME, request_id=request_id, amount_nano_usd=50_000)
    request_row(request_id, State.DONE)
    ingest_usage(limit=10)
    invoice_draft_build(tenant_id=ACME, period_start=JUNE.date().replace(day=1))
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_every_check_is_tried_here() -> None:
    assert set(DAMAGE) == {name for name, _, _ in CHECKS}


def test_a_healthy_database_has_no_violation() -> None:
    assert check() == []


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named_with_rows_that_json_can_carry(name: str) -> None:
    with connection.cursor() as cursor:
        for statement in DAMAGE[name]:
            cursor.execute(statement)
    found = {violation.invariant: violation for violation in check()}
    assert found[f"billing.{name}"].rows
    json.dumps([asdict(violation) for violation in found.values()])
