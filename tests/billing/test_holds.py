"""Credit holds: the limit is never passed, nothing leaks, and every call may come twice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from django.db import IntegrityError, ProgrammingError, connection, transaction

from billing.errors import HoldConflict, InsufficientFunds, ReliefRefused
from billing.holds.models import Hold, HoldAccount, HoldState
from billing.holds.selectors import hold_account
from billing.holds.services import (
    hold_account_open,
    hold_account_relieve,
    hold_limit_set,
    hold_place,
    hold_release,
    hold_settle,
    holds_sweep,
)
from billing.invariants import check
from inference.database import tenant_scope
from inference.requests.models import State
from tests.billing.cast import ACME, RIVAL, at_once, finished, request_row

pytestmark = pytest.mark.django_db


def counters(tenant_id: uuid.UUID = ACME) -> tuple[int, int]:
    """(used, held)"""
    account = HoldAccount.objects.get(pk=tenant_id)
    return account.used_nano_usd, account.held_nano_usd


def place(amount_nano_usd: int, tenant_id: uuid.UUID = ACME) -> uuid.UUID:
    request_id = uuid.uuid4()
    hold_place(tenant_id=tenant_id, request_id=request_id, amount_nano_usd=amount_nano_usd)
    return request_id


@pytest.fixture
def acme_account() -> None:
    hold_account_open(tenant_id=ACME, limit_nano_usd=100)


def test_a_hold_is_placed_up_to_the_limit_and_no_further(acme_account: None) -> None:
    place(60)
    place(40)
    with pytest.raises(InsufficientFunds) as refused:
        place(1)
    assert refused.value.code == "insufficient_quota"
    assert counters() == (0, 100)


def test_an_account_without_limit_takes_every_hold() -> None:
    hold_account_open(tenant_id=ACME, limit_nano_usd=None)
    place(10**17)
    assert counters() == (0, 10**17)


def test_a_tenant_without_an_account_gets_no_free_burst() -> None:
    with pytest.raises(InsufficientFunds):
        place(1)


def test_opening_an_account_again_keeps_its_limit_and_setting_changes_it(acme_account: None) -> None:
    hold_account_open(tenant_id=ACME, limit_nano_usd=5)
    place(100)
    assert counters() == (0, 100)
    hold_limit_set(tenant_id=ACME, limit_nano_usd=101)
    place(1)
    with pytest.raises(InsufficientFunds):
        place(1)
    assert counters() == (0, 101)


def test_the_same_hold_twice_is_one_and_another_amount_is_refused(acme_account: None) -> None:
    request_id = place(60)
    hold_place(tenant_id=ACME, request_id=request_id, amount_nano_usd=60)
    assert counters() == (0, 60)
    with pytest.raises(HoldConflict):
        hold_place(tenant_id=ACME, request_id=request_id, amount_nano_usd=5)
    assert counters() == (0, 60)


def test_a_negative_hold_does_not_refill_the_limit(acme_account: None) -> None:
    with pytest.raises(ValueError, match="-1"):
        place(-1)
    with pytest.raises(IntegrityError, match="hold_not_negative"), transaction.atomic():
        Hold.objects.create(request_id=uuid.uuid4(), tenant_id=ACME, amount_nano_usd=-1)


@pytest.mark.parametrize("column", ["used_nano_usd", "held_nano_usd", "limit_nano_usd"])
def test_counters_cannot_go_below_zero(acme_account: None, column: str) -> None:
    with pytest.raises(IntegrityError, match="not_negative"), transaction.atomic():
        HoldAccount.objects.update(**{column: -1})


def test_a_release_gives_the_amount_back_once(acme_account: None) -> None:
    request_id = place(60)
    hold_release(request_id=request_id)
    hold_release(request_id=request_id)
    hold_release(request_id=uuid.uuid4())
    assert counters() == (0, 0)


def test_a_settlement_moves_the_true_cost_to_the_use_once(acme_account: None) -> None:
    request_id = place(60)
    hold_settle(request_id=request_id, amount_nano_usd=25)
    hold_settle(request_id=request_id, amount_nano_usd=25)
    hold_release(request_id=request_id)
    assert counters() == (25, 0)
    assert Hold.objects.get(pk=request_id).state == HoldState.SETTLED


def test_a_settlement_with_a_later_total_corrects_the_use(acme_account: None) -> None:
    request_id = place(60)
    hold_settle(request_id=request_id, amount_nano_usd=25)
    hold_settle(request_id=request_id, amount_nano_usd=30)
    assert counters() == (30, 0)


def test_use_that_is_found_after_a_release_still_counts(acme_account: None) -> None:
    request_id = place(60)
    hold_release(request_id=request_id)
    hold_settle(request_id=request_id, amount_nano_usd=25)
    assert counters() == (25, 0)


def test_settling_an_unknown_hold_is_refused() -> None:
    with pytest.raises(HoldConflict):
        hold_settle(request_id=uuid.uuid4(), amount_nano_usd=1)


def test_settled_use_counts_against_the_limit_until_it_is_paid(acme_account: None) -> None:
    hold_settle(request_id=place(100), amount_nano_usd=100)
    with pytest.raises(InsufficientFunds):
        place(1)
    hold_account_relieve(tenant_id=ACME, amount_nano_usd=40, source_key="payment:1")
    hold_account_relieve(tenant_id=ACME, amount_nano_usd=40, source_key="payment:1")
    assert counters() == (60, 0)
    place(40)
    assert check() == []


def test_a_relief_above_the_use_or_with_a_reused_key_is_refused(acme_account: None) -> None:
    hold_settle(request_id=place(100), amount_nano_usd=50)
    for amount in (51, 0, -5):
        with pytest.raises(ReliefRefused):
            hold_account_relieve(tenant_id=ACME, amount_nano_usd=amount, source_key="payment:2")
    hold_account_relieve(tenant_id=ACME, amount_nano_usd=50, source_key="payment:2")
    with pytest.raises(ReliefRefused):
        hold_account_relieve(tenant_id=ACME, amount_nano_usd=49, source_key="payment:2")


def test_the_sweep_releases_holds_of_requests_that_ended_without_usage_and_no_others(acme_account: None) -> None:
    ended, waiting, orphan, fresh = (place(10) for _ in range(4))
    request_row(ended, State.FAILED)
    request_row(waiting, State.DONE)
    finished(request_id=waiting)
    running = place(10)
    request_row(running, State.QUEUED)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE holds_hold SET placed_at = now() - interval '2 hours' WHERE request_id = %s", [orphan])
    assert [violation.invariant for violation in check()] == ["billing.pending_is_taken", "billing.holds_end"]
    assert holds_sweep() == 2
    assert holds_sweep() == 0
    assert set(Hold.objects.filter(state="open").values_list("pk", flat=True)) == {waiting, fresh, running}
    assert counters() == (0, 30)


def test_the_gateway_role_places_holds_but_cannot_touch_the_limit(
    acme_account: None, as_role: Callable[[str], AbstractContextManager[None]]
) -> None:
    hold_account_open(tenant_id=RIVAL, limit_nano_usd=100)
    with as_role("app"):
        request_id = place(60)
        account = hold_account(tenant_id=ACME)
        assert account is not None
        assert account.held_nano_usd == 60
        with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(ACME):
            HoldAccount.objects.update(limit_nano_usd=None)
    with as_role("app"), tenant_scope(RIVAL):
        assert not Hold.objects.filter(pk=request_id).exists()
        assert HoldAccount.objects.get().pk == RIVAL
    assert counters() == (0, 60)


@pytest.mark.django_db(transaction=True)
def test_parallel_holds_never_pass_the_limit(acme_account: None) -> None:
    def try_eight(_: int) -> int:
        placed = 0
        for _ in range(8):
            try:
                place(7)
                placed += 1
            except InsufficientFunds:
                pass
        return placed

    assert sum(at_once(4, try_eight)) == 14  # 14 * 7 = 98
    assert counters() == (0, 98)
    assert check() == []


@pytest.mark.django_db(transaction=True)
def test_parallel_settlements_and_releases_of_one_hold_count_once(acme_account: None) -> None:
    request_id = place(60)

    def end(number: int) -> None:
        if number % 2:
            hold_settle(request_id=request_id, amount_nano_usd=25)
        else:
            hold_release(request_id=request_id)

    at_once(4, end)
    assert counters() == (25, 0)
    assert check() == []
