"""Invoices, ledger and price books, read-only, with the numbers of a real month."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing.invoices.models import Invoice
from billing.invoices.services import invoice_draft_build
from billing.ledger.models import LedgerTransaction
from billing.pricing.models import PriceBook
from controlplane.console.display import usd, usd_cents
from controlplane.console.invoices import month
from tests.controlplane.console.rows import Tenant, rated, request_make
from tests.controlplane.console.test_entry import address


@pytest.fixture
def invoice(acme: Tenant) -> Invoice:
    for _ in range(3):
        request_make(acme, prompt=1_000_000, cached=0, completion=123_457)
    rated()
    return invoice_draft_build(tenant_id=acme.id, period_start=timezone.now().astimezone(UTC).date().replace(day=1))


def page(client: Client, name: str, key: Any) -> str:
    answer = client.get(address(name, key))
    assert answer.status_code == 200
    return answer.content.decode()


def test_an_invoice_shows_lines_totals_and_what_was_rounded(staff: Client, acme: Tenant, invoice: Invoice) -> None:
    shown = page(staff, "invoices_invoice_change", invoice.pk)
    assert invoice.total_cents > 0
    assert invoice.residual_nano_usd != 0
    for text in (
        usd_cents(invoice.total_cents),
        usd(invoice.total_nano_usd),
        usd(invoice.residual_nano_usd),
        "3,000,000 tokens",
        "$0.40 / 1M tokens",
    ):
        assert text in shown
    assert acme.project.name in shown


def test_the_list_shows_month_and_total(staff: Client, invoice: Invoice) -> None:
    shown = staff.get(address("invoices_invoice_changelist")).content.decode()
    assert month(invoice) in shown
    assert usd_cents(invoice.total_cents) in shown


def test_a_month_is_named_after_its_middle_in_every_time_zone(invoice: Invoice) -> None:
    invoice.period_start, invoice.period_end = datetime(2026, 1, 31, 11, tzinfo=UTC), datetime(2026, 2, 28, 11, tzinfo=UTC)
    assert month(invoice) == "2026-02"


def test_a_ledger_transaction_shows_entries_that_balance(staff: Client, invoice: Invoice) -> None:
    row = LedgerTransaction.objects.get()
    shown = page(staff, "ledger_ledgertransaction_change", row.pk)
    amount = sum(entry.amount_nano_usd for entry in row.entries.all() if entry.amount_nano_usd > 0)
    assert amount == invoice.total_nano_usd
    assert shown.count(usd(amount)) == 4  # debit and credit, in the entries and in their sums
    assert row.source_key in shown


def test_the_ledger_list_is_found_by_source_key_and_sums_the_debits(staff: Client, invoice: Invoice) -> None:
    row = LedgerTransaction.objects.get()
    found = staff.get(address("ledger_ledgertransaction_changelist"), {"q": row.source_key[:12]}).content.decode()
    assert usd(invoice.total_nano_usd) in found
    assert usd(invoice.total_nano_usd) not in staff.get(address("ledger_ledgertransaction_changelist"), {"q": "x"}).content.decode()


def test_a_price_book_shows_its_prices(staff: Client, kitchen: None) -> None:
    book = PriceBook.objects.get()
    shown = page(staff, "pricing_pricebook_change", book.pk)
    for text in ("$0.10 / 1M tokens", "$0.50 / 1M token-hours", "published"):
        assert text in shown


@pytest.mark.parametrize("name", ["invoices_invoice", "ledger_ledgertransaction", "pricing_pricebook"])
def test_nothing_of_it_can_be_changed(staff: Client, invoice: Invoice, name: str) -> None:
    model = {"invoices_invoice": Invoice, "ledger_ledgertransaction": LedgerTransaction, "pricing_pricebook": PriceBook}[name]
    row = model._default_manager.values().first()
    assert row
    staff.post(address(f"{name}_change", row["id"]), {"name": "x", "description": "x", "total_cents": "0", "version": "9"})
    assert staff.post(address(f"{name}_delete", row["id"]), {"post": "yes"}).status_code == 403
    assert staff.post(address(f"{name}_add"), {"name": "x"}).status_code == 403
    assert list(model._default_manager.values()) == [row]


@pytest.mark.parametrize("name", ["invoices_invoice", "ledger_ledgertransaction", "pricing_pricebook"])
def test_a_stranger_sees_none_of_it(stranger: Client, invoice: Invoice, name: str) -> None:
    assert stranger.get(address(f"{name}_change", 1)).status_code == 302
