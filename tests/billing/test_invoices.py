"""Drafts: exactly the rated lines of a month by the tenant's clocks, rounded once, safe to rebuild at any time."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Sum

from billing.errors import PeriodRefused
from billing.holds.services import hold_account_open
from billing.invariants import check
from billing.invoices import services
from billing.invoices.amounts import cents_from_nano_usd, month_bounds, month_of
from billing.invoices.models import Invoice, InvoiceLine
from billing.invoices.selectors import invoice_lines, invoices_of
from billing.invoices.services import invoice_draft_build, invoice_drafts_refresh
from billing.invoices.tasks import invoice_drafts_refresh_task
from billing.ledger.selectors import accrued_usage_between
from billing.metering.services import ingest_usage
from billing.pricing.services import price_book_seed
from inference.usage.models import Meter
from tests.billing.cast import ACME, JUNE, MODEL, RIVAL, at_once, finished

pytestmark = pytest.mark.django_db

FIRST = date(2026, 6, 1)


@pytest.fixture(autouse=True)
def prices(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("transactional_db" if request.node.get_closest_marker("django_db").kwargs.get("transaction") else "db")
    price_book_seed(model=MODEL)
    hold_account_open(tenant_id=ACME, limit_nano_usd=None)


def use(at: datetime, decode: int = 100_000, tenant_id: uuid.UUID = ACME) -> None:
    """100,000 decoded tokens cost four cents."""
    finished({Meter.DECODE: decode}, at=at, tenant_id=tenant_id)
    ingest_usage(limit=100)


@pytest.mark.parametrize(
    ("amount_nano_usd", "cents"), [(0, 0), (4_999_999, 0), (5_000_000, 1), (14_999_999, 1), (15_000_000, 2), (10**18, 10**11)]
)
def test_cents_are_the_nearest_with_half_a_cent_up(amount_nano_usd: int, cents: int) -> None:
    assert cents_from_nano_usd(amount_nano_usd) == cents


@pytest.mark.parametrize(
    ("first", "zone", "hours"),
    [
        (date(2026, 3, 1), "Europe/Berlin", 31 * 24 - 1),
        (date(2026, 10, 1), "Europe/Berlin", 31 * 24 + 1),
        (date(2026, 11, 1), "America/New_York", 30 * 24 + 1),
        (date(2024, 2, 1), "UTC", 29 * 24),
        (date(2017, 10, 1), "America/Asuncion", 31 * 24 - 1),  # its first midnight does not exist
    ],
)
def test_a_month_is_as_long_as_the_clocks_make_it(first: date, zone: str, hours: int) -> None:
    start, end = month_bounds(first, zone)
    assert end - start == timedelta(hours=hours)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Asuncion", "Pacific/Apia", "Africa/Cairo"])
def test_months_follow_each_other_without_gap_or_overlap(zone: str) -> None:
    firsts = [date(year, month, 1) for year in (2016, 2017, 2018) for month in range(1, 13)]
    bounds = [month_bounds(first, zone) for first in firsts]
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))
    for first, (start, end) in zip(firsts, bounds, strict=True):
        assert month_of(start, zone) == month_of(end - timedelta(microseconds=1), zone) == first
        assert start.timestamp() % 900 == 0  # the ledger tells quarters of an hour apart


@pytest.mark.parametrize(("first", "zone"), [(date(2026, 6, 2), "UTC"), (FIRST, "Mars/Olympus"), (FIRST, "../etc/passwd")])
def test_other_periods_are_refused(first: date, zone: str) -> None:
    with pytest.raises(PeriodRefused):
        invoice_draft_build(tenant_id=ACME, period_start=first, time_zone=zone)


def test_a_draft_is_the_sum_of_the_ledgers_accruals_of_its_month() -> None:
    start, end = month_bounds(FIRST, "Europe/Berlin")
    for at in (start - timedelta(microseconds=1), start, end - timedelta(microseconds=1), end):
        use(at)
    draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST, time_zone="Europe/Berlin")
    assert (draft.period_start, draft.period_end, draft.time_zone) == (start, end, "Europe/Berlin")
    assert (draft.number, draft.total_cents, draft.total_nano_usd) == (None, 8, 80_000_000)
    assert accrued_usage_between(tenant_id=ACME, start=start, end=end) == draft.total_nano_usd
    assert check() == []


def test_a_batch_over_a_month_border_is_split_to_the_right_months() -> None:
    border = month_bounds(FIRST, "Asia/Kathmandu")[0]
    assert border.minute == 15
    finished({Meter.DECODE: 100_000}, at=border)
    finished({Meter.DECODE: 200_000}, at=border - timedelta(microseconds=1))
    ingest_usage(limit=10)
    june = invoice_draft_build(tenant_id=ACME, period_start=FIRST, time_zone="Asia/Kathmandu")
    may = invoice_draft_build(tenant_id=ACME, period_start=date(2026, 5, 1))
    assert (may.total_cents, june.total_cents) == (8, 4)
    for draft in (may, june):
        accrued = accrued_usage_between(tenant_id=ACME, start=draft.period_start, end=draft.period_end)
        assert accrued == draft.total_nano_usd
    assert check() == []


def test_lines_are_rounded_once_and_the_residual_is_shown() -> None:
    finished({Meter.DECODE: 14_000, Meter.PREFILL_COMPUTED: 44_000}, at=JUNE)  # 0.56 and 0.44 cents
    ingest_usage(limit=10)
    draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    lines = {line.meter: (line.amount_nano_usd, line.amount_cents) for line in draft.lines.all()}
    assert lines == {"decode": (5_600_000, 1), "prefill_computed": (4_400_000, 0)}
    assert (draft.total_nano_usd, draft.total_cents, draft.residual_nano_usd) == (10_000_000, 1, 0)
    use(JUNE, decode=1)
    draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    assert (draft.total_nano_usd, draft.total_cents, draft.residual_nano_usd) == (10_000_400, 1, 400)


def test_a_line_counts_quantity_and_requests() -> None:
    for _ in range(3):
        use(JUNE, decode=5)
    draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    line = draft.lines.get()
    assert (int(line.quantity), line.requests, line.amount_nano_usd, line.price_book) == (15, 3, 6_000, 1)


def test_a_rebuilt_draft_is_the_same_invoice_with_the_new_lines() -> None:
    use(JUNE)
    first = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    assert invoice_draft_build(tenant_id=ACME, period_start=FIRST).pk == first.pk
    use(JUNE)
    assert check() == []  # a draft that is behind is no wrong draft
    second = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    assert (second.pk, second.total_cents) == (first.pk, 8)
    assert InvoiceLine.objects.count() == 1
    assert check() == []


def test_a_month_without_use_has_an_empty_draft() -> None:
    draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    assert (draft.total_cents, draft.lines.count()) == (0, 0)


def test_a_tenants_months_cannot_overlap_by_changing_the_time_zone() -> None:
    invoice_draft_build(tenant_id=ACME, period_start=FIRST, time_zone="Europe/Berlin")
    with pytest.raises(PeriodRefused, match="Europe/Berlin"):
        invoice_draft_build(tenant_id=ACME, period_start=FIRST, time_zone="UTC")
    assert invoice_draft_build(tenant_id=ACME, period_start=FIRST).time_zone == "Europe/Berlin"


def test_a_second_draft_of_a_month_is_refused_by_the_database() -> None:
    draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    with pytest.raises(IntegrityError, match="invoice_draft_once"), transaction.atomic():
        Invoice.objects.create(tenant_id=ACME, period_start=draft.period_start, period_end=draft.period_end, time_zone="UTC")


def test_a_refresh_builds_each_month_that_got_lines_and_then_nothing() -> None:
    use(JUNE)
    use(JUNE + timedelta(days=30))
    use(JUNE, tenant_id=RIVAL)
    assert invoice_drafts_refresh() == 3
    assert invoice_drafts_refresh() == 0
    use(JUNE)  # late
    invoice_draft_build(tenant_id=ACME, period_start=date(2026, 7, 1))
    invoice_drafts_refresh_task()
    july, june = invoices_of(tenant_id=ACME)
    assert (june.total_cents, july.total_cents) == (8, 4)
    assert check() == []


def test_invoices_are_shown_to_their_tenant_only() -> None:
    use(JUNE)
    draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    assert len(invoice_lines(tenant_id=ACME, invoice_id=draft.pk)) == 1
    assert invoice_lines(tenant_id=RIVAL, invoice_id=draft.pk) == []
    assert invoices_of(tenant_id=RIVAL) == []


def test_lines_that_are_rated_during_a_build_wait_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    use(JUNE)
    last_line = services._last_line

    def overtaken(tenant_id: uuid.UUID) -> int:
        number = last_line(tenant_id)
        use(JUNE)
        return number

    with monkeypatch.context() as patched:
        patched.setattr(services, "_last_line", overtaken)
        draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
    assert (draft.total_cents, draft.lines_up_to) == (4, 1)
    assert check() == []
    assert invoice_draft_build(tenant_id=ACME, period_start=FIRST).total_cents == 8


@pytest.mark.django_db(transaction=True)
def test_builds_at_once_while_usage_is_rated_make_one_true_draft() -> None:
    for _ in range(20):
        finished({Meter.DECODE: 100_000}, at=JUNE.replace(tzinfo=UTC))

    def work(number: int) -> int:
        if number == 0:
            while ingest_usage(limit=3):
                pass
            return 0
        for _ in range(3):
            draft = invoice_draft_build(tenant_id=ACME, period_start=FIRST)
        return draft.pk

    drafts = set(at_once(4, work)) - {0}
    assert len(drafts) == 1
    assert check() == []
    assert invoice_draft_build(tenant_id=ACME, period_start=FIRST).total_cents == 80
    assert Invoice.objects.count() == 1
    own = InvoiceLine.objects.aggregate(total=Sum("amount_cents"))["total"]
    assert own == 80
