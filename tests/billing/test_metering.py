"""Usage is rated once and exactly, whatever dies, comes twice, comes late or has no price."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import pytest
from django.db import IntegrityError, transaction
from django.db.models import Sum

from billing.errors import HoldConflict
from billing.holds.models import HoldAccount
from billing.holds.services import hold_account_open, hold_place
from billing.invariants import check
from billing.ledger.models import AccountKind, LedgerTransaction
from billing.ledger.selectors import tenant_balances
from billing.metering import services
from billing.metering.models import FaultReason, RatedLine, RatingFault, Remainder, UsageDay
from billing.metering.selectors import NotCharged, receipt_lines, usage_by_day
from billing.metering.services import ingest_usage, rating_faults_retry
from billing.metering.tasks import ingest_usage_task
from billing.pricing.models import Price
from billing.pricing.services import MILLION, MILLION_TOKEN_HOURS, PriceSpec, price_book_create, price_book_publish, price_book_seed
from inference.coordination.models import Heartbeat
from inference.database import tenant_scope
from inference.usage.models import Meter, UsagePending, UsageRow
from tests.billing.cast import ACME, JUNE, MODEL, PROJECT, RIVAL, TOKENS, at_once, finished, usage_row

pytestmark = pytest.mark.django_db

STORAGE = Meter.KV_TOKEN_SECONDS


@pytest.fixture(autouse=True)
def prices(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("transactional_db" if request.node.get_closest_marker("django_db").kwargs.get("transaction") else "db")
    price_book_seed(model=MODEL)
    hold_account_open(tenant_id=ACME, limit_nano_usd=10**12)


def charged(tenant_id: uuid.UUID = ACME) -> int:
    return RatedLine.objects.filter(tenant_id=tenant_id).aggregate(total=Sum("amount_nano_usd"))["total"] or 0


def test_a_finished_request_becomes_lines_a_posting_a_settled_hold_and_a_receipt() -> None:
    request_id = uuid.uuid4()
    hold_place(tenant_id=ACME, request_id=request_id, amount_nano_usd=50_000)
    assert receipt_lines(tenant_id=ACME, request_id=request_id) is None
    finished(request_id=request_id)
    usage_row(request_id, Meter.RECOMPUTED, 48, billable=False).save()
    assert ingest_usage(limit=10) == 1
    receipt = receipt_lines(tenant_id=ACME, request_id=request_id)
    assert receipt is not None
    amounts = {line.meter: line.amount_nano_usd for line in receipt.lines}
    assert amounts == {"prefill_computed": 10_000, "prefill_cached": 320, "decode": 2_800, "kv_token_seconds": 0}
    assert receipt.total_nano_usd == 13_120
    assert receipt.not_charged == (NotCharged("recomputed", 48),)
    assert tenant_balances(tenant_id=ACME) == {AccountKind.ACCRUED: 13_120}
    account = HoldAccount.objects.get(pk=ACME)
    assert (account.used_nano_usd, account.held_nano_usd) == (13_120, 0)
    assert not UsagePending.objects.exists()
    assert check() == []


def test_a_receipt_is_not_shown_to_another_tenant() -> None:
    request_id = finished()
    ingest_usage(limit=10)
    assert receipt_lines(tenant_id=RIVAL, request_id=request_id) is None


def test_the_gateway_role_reads_receipts_and_days_of_its_tenant_only(
    as_role: Callable[[str], AbstractContextManager[None]],
) -> None:
    request_id = finished()
    ingest_usage(limit=10)
    day = JUNE.date()
    with as_role("app"):
        assert receipt_lines(tenant_id=ACME, request_id=request_id) is not None
        assert receipt_lines(tenant_id=RIVAL, request_id=request_id) is None
        assert len(usage_by_day(tenant_id=ACME, first=day, last=day)) == 4
    with as_role("app"), tenant_scope(RIVAL):
        assert not RatedLine.objects.exists()


def test_the_system_role_rates(as_role: Callable[[str], AbstractContextManager[None]]) -> None:
    finished()
    with as_role("system"):
        assert ingest_usage(limit=10) == 1
        assert check() == []


def test_use_that_nobody_pays_gives_an_empty_receipt_and_frees_the_hold() -> None:
    request_id = uuid.uuid4()
    hold_place(tenant_id=ACME, request_id=request_id, amount_nano_usd=50_000)
    finished({Meter.PREFILL_COMPUTED: 100}, request_id=request_id, billable=False)
    assert ingest_usage(limit=10) == 1
    receipt = receipt_lines(tenant_id=ACME, request_id=request_id)
    assert receipt is not None
    assert (receipt.lines, receipt.total_nano_usd) == ((), 0)
    assert receipt.not_charged == (NotCharged("prefill_computed", 100),)
    assert HoldAccount.objects.get(pk=ACME).held_nano_usd == 0
    assert not LedgerTransaction.objects.exists()
    assert check() == []


def test_one_batch_posts_one_transaction_per_tenant() -> None:
    for tenant_id in (ACME, ACME, ACME, RIVAL):
        finished(tenant_id=tenant_id)
    assert ingest_usage(limit=10) == 4
    assert sorted(LedgerTransaction.objects.values_list("tenant_id", flat=True)) == sorted([ACME, RIVAL])
    assert check() == []


def test_the_limit_bounds_a_batch_and_the_oldest_go_first() -> None:
    newer, older = finished(at=JUNE), finished(at=JUNE - timedelta(hours=1))
    assert ingest_usage(limit=1) == 1
    assert receipt_lines(tenant_id=ACME, request_id=older) is not None
    assert receipt_lines(tenant_id=ACME, request_id=newer) is None


def test_the_task_empties_the_queue_and_leaves_a_heartbeat() -> None:
    finished()
    ingest_usage_task()
    assert not UsagePending.objects.exists()
    assert Heartbeat.objects.get(name="ingest").detail == {"rated": 1}


def test_the_same_request_pending_again_is_not_rated_again() -> None:
    request_id = finished()
    ingest_usage(limit=10)
    before = charged()
    UsagePending.objects.create(request_id=request_id, tenant_id=ACME, at=JUNE)
    assert ingest_usage(limit=10) == 1
    assert charged() == before
    assert check() == []


def test_rows_that_come_late_are_added_to_receipt_hold_and_ledger() -> None:
    request_id = finished({Meter.DECODE: 7})
    ingest_usage(limit=10)
    usage_row(request_id, Meter.DECODE, 3, sequence=1, at=JUNE - timedelta(days=40)).save()
    UsagePending.objects.create(request_id=request_id, tenant_id=ACME, at=JUNE)
    ingest_usage(limit=10)
    receipt = receipt_lines(tenant_id=ACME, request_id=request_id)
    assert receipt is not None
    assert receipt.total_nano_usd == 4_000
    assert HoldAccount.objects.get(pk=ACME).used_nano_usd == 4_000
    assert check() == []


def test_a_line_is_unique_by_usage_row() -> None:
    finished({Meter.DECODE: 7})
    ingest_usage(limit=10)
    line = RatedLine.objects.get()
    line.pk, line.number = None, 2
    with pytest.raises(IntegrityError, match="usage_id"), transaction.atomic():
        line.save()


@pytest.mark.parametrize("field", ["amount_nano_usd", "carry_in", "quantity"])
def test_the_database_refuses_a_line_whose_amount_is_not_its_quantity_times_its_price(field: str) -> None:
    finished({Meter.DECODE: 7})
    ingest_usage(limit=10)
    line = RatedLine.objects.get()
    line.pk, line.number, line.usage_id = None, 2, 10**9
    setattr(line, field, getattr(line, field) + 10**6)
    with pytest.raises(IntegrityError, match="line_amount_exact"), transaction.atomic():
        line.save()


@pytest.mark.parametrize("change", [lambda: RatedLine.objects.update(amount_nano_usd=0), lambda: RatedLine.objects.all().delete()])
def test_rated_lines_stay_as_they_are(change: Callable[[], object]) -> None:
    finished()
    ingest_usage(limit=10)
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        change()


def test_negative_usage_is_refused_before_it_could_refill_anything() -> None:
    with pytest.raises(IntegrityError, match="usage_not_negative"), transaction.atomic():
        finished({Meter.DECODE: -7})


def test_ten_thousand_tiny_requests_cost_exactly_the_floor_of_their_exact_sum() -> None:
    quantities = [1_000 + 7 * number for number in range(10_000)]  # about 0.005 nano-dollars each
    rows = [usage_row(uuid.uuid4(), STORAGE, quantity) for quantity in quantities]
    UsageRow.objects.bulk_create(rows)
    UsagePending.objects.bulk_create(UsagePending(request_id=row.request_id, tenant_id=ACME, at=JUNE) for row in rows)
    while ingest_usage(limit=2_500):
        pass
    exact = Fraction(sum(quantities) * 500_000_000, MILLION_TOKEN_HOURS)
    assert exact > 49
    assert charged() == exact.numerator // exact.denominator
    remainder = Remainder.objects.get()
    assert charged() + Fraction(remainder.remainder, MILLION_TOKEN_HOURS) == exact
    assert tenant_balances(tenant_id=ACME) == {AccountKind.ACCRUED: charged()}
    assert check() == []


def test_a_customer_can_follow_the_remainder_from_line_to_line() -> None:
    for _ in range(5):
        finished({STORAGE: 5_000_000_000_000})
    for _ in range(3):
        ingest_usage(limit=2)
    carry = 0
    for line in RatedLine.objects.order_by("number"):
        assert line.carry_in == carry
        amount, carry = divmod(line.quantity * line.unit_price_nano_usd + line.carry_in, line.unit_quantity)
        assert line.amount_nano_usd == amount


def test_tenants_do_not_share_a_remainder() -> None:
    half = MILLION_TOKEN_HOURS // 500_000_000 // 2
    for tenant_id in (ACME, RIVAL, ACME):
        finished({STORAGE: half}, tenant_id=tenant_id)
    ingest_usage(limit=10)
    assert (charged(ACME), charged(RIVAL)) == (1, 0)


def test_use_is_priced_at_its_own_time() -> None:
    soon = datetime(2999, 1, 1, tzinfo=UTC)
    doubled = [
        PriceSpec(MODEL, "default", Meter(price.meter), 2 * price.unit_price_nano_usd, price.unit_quantity)
        for price in Price.objects.all()
    ]
    book = price_book_create(name="dearer", effective_from=soon, prices=doubled)
    price_book_publish(version=book.version)
    finished({Meter.DECODE: 10}, at=soon)
    finished({Meter.DECODE: 10}, at=soon - timedelta(microseconds=1))
    ingest_usage(limit=10)
    lines = RatedLine.objects.order_by("occurred_at").values_list("price_book", "amount_nano_usd")
    assert list(lines) == [(1, 4_000), (2, 8_000)]
    assert check() == []


def test_a_missing_price_is_a_fault_that_is_kept_and_stops_nobody_else() -> None:
    broken = finished(model="unpriced", at=JUNE - timedelta(days=1))
    good = finished()
    assert ingest_usage(limit=10) == 1
    assert receipt_lines(tenant_id=ACME, request_id=good) is not None
    assert receipt_lines(tenant_id=ACME, request_id=broken) is None
    fault = RatingFault.objects.get()
    assert (fault.request_id, fault.reason) == (broken, FaultReason.PRICE_MISSING)
    assert "unpriced" in fault.detail
    finished()
    assert ingest_usage(limit=1) == 1  # the faulty one, though older, does not take the place
    assert UsagePending.objects.get().request_id == broken
    assert check() == []


def test_a_request_is_rated_whole_or_not_at_all() -> None:
    request_id = finished({Meter.DECODE: 10})
    usage_row(request_id, Meter.DECODE, 1, model="unpriced", sequence=1).save()
    assert ingest_usage(limit=10) == 0
    assert not RatedLine.objects.exists()


def test_a_fault_is_rated_after_its_price_was_added() -> None:
    request_id = finished({Meter.DECODE: 10}, model="unpriced")
    ingest_usage(limit=10)
    ingest_usage(limit=10)
    assert RatingFault.objects.get().tries == 1
    specs = [
        PriceSpec(model, "default", meter, 1_000_000, MILLION_TOKEN_HOURS if meter == STORAGE else MILLION)
        for model in ("unpriced",)
        for meter in TOKENS
    ]
    kept = [
        PriceSpec(price.model, price.service_tier, Meter(price.meter), price.unit_price_nano_usd, price.unit_quantity)
        for price in Price.objects.all()
    ]
    book = price_book_create(name="late", effective_from=JUNE - timedelta(days=1), prices=[*kept, *specs])
    price_book_publish(version=book.version)
    assert rating_faults_retry() == 1
    assert ingest_usage(limit=10) == 1
    receipt = receipt_lines(tenant_id=ACME, request_id=request_id)
    assert receipt is not None
    assert receipt.total_nano_usd == 10
    assert RatingFault.objects.get().resolved_at is not None
    assert check() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unit": "token_microsecond"}, FaultReason.UNIT_MISMATCH),
        ({"tenant_id": RIVAL}, FaultReason.TENANT_MISMATCH),
        ({"quantity": 2**63 - 1}, FaultReason.AMOUNT_OUT_OF_RANGE),
    ],
)
def test_usage_that_cannot_be_true_is_a_fault(change: dict[str, object], reason: FaultReason) -> None:
    request_id = finished({Meter.DECODE: 10})
    UsageRow.objects.filter(request_id=request_id).update(**change)
    finished()
    assert ingest_usage(limit=10) == 1
    assert RatingFault.objects.get(request_id=request_id).reason == reason


def test_a_request_that_the_database_refuses_stops_nobody_else() -> None:
    hold_account_open(tenant_id=RIVAL, limit_nano_usd=None)
    poison = uuid.uuid4()
    hold_place(tenant_id=RIVAL, request_id=poison, amount_nano_usd=1)
    finished(request_id=poison)  # its hold is another tenant's
    good = finished()
    assert ingest_usage(limit=10) == 1
    assert receipt_lines(tenant_id=ACME, request_id=good) is not None
    fault = RatingFault.objects.get()
    assert (fault.request_id, fault.reason) == (poison, FaultReason.REFUSED)
    assert HoldConflict.__name__ in fault.detail
    assert ingest_usage(limit=10) == 0


def test_days_are_sums_over_utc_days_with_late_rows_on_their_own_day() -> None:
    midnight = datetime(2026, 6, 16, tzinfo=UTC)
    for at in (midnight, midnight - timedelta(microseconds=1), midnight + timedelta(hours=5)):
        finished({Meter.DECODE: 10}, at=at)
        ingest_usage(limit=10)
    days = usage_by_day(tenant_id=ACME, first=date(2026, 6, 15), last=date(2026, 6, 16))
    assert [(row.day.day, row.project_id, row.quantity, row.amount_nano_usd) for row in days] == [
        (15, PROJECT, 10, 4_000),
        (16, PROJECT, 20, 8_000),
    ]
    assert usage_by_day(tenant_id=RIVAL, first=date(2026, 6, 1), last=date(2026, 6, 30)) == []
    assert len(usage_by_day(tenant_id=ACME, first=date(2026, 6, 16), last=date(2026, 6, 30))) == 1


@pytest.mark.parametrize(
    "step",
    ["_ledger_write", "_tenants_write", "_days_write", "_requests_write", "_faults_write", "_pending_delete", "holds_settle"],
)
def test_a_crash_at_any_step_leaves_all_or_nothing(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request_id = uuid.uuid4()
    hold_place(tenant_id=ACME, request_id=request_id, amount_nano_usd=50_000)
    finished(request_id=request_id)
    real, fired = getattr(services, step), []

    def crash(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)
        fired.append(step)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(services, step, crash)
        with pytest.raises(KeyboardInterrupt):
            ingest_usage(limit=10)
    assert fired == [step]
    assert not RatedLine.objects.exists()
    assert not LedgerTransaction.objects.exists()
    assert not UsageDay.objects.exists()
    assert HoldAccount.objects.get(pk=ACME).held_nano_usd == 50_000
    assert UsagePending.objects.count() == 1
    assert ingest_usage(limit=10) == 1
    assert charged() == 13_120
    assert check() == []


@pytest.mark.django_db(transaction=True)
def test_ingesters_at_once_rate_every_request_once(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(60):
        finished(tenant_id=(ACME, RIVAL)[number % 2])

    def drain(_: int) -> int:
        rated = 0
        while batch := ingest_usage(limit=7):
            rated += batch
        return rated

    assert sum(at_once(4, drain)) == 60
    assert ingest_usage(limit=100) == 0
    assert caplog.records == []  # they took different requests: none ran into the other's lines
    assert RatedLine.objects.count() == 60 * len(TOKENS)
    exact = Fraction(30 * 1_234_567 * 500_000_000, MILLION_TOKEN_HOURS)
    assert charged(ACME) == charged(RIVAL) == 30 * 13_120 + exact.numerator // exact.denominator
    assert check() == []


@pytest.mark.django_db(transaction=True)
def test_holds_are_placed_while_usage_is_rated() -> None:
    for _ in range(40):
        finished()

    def work(number: int) -> int:
        if number % 2:
            return ingest_usage(limit=10)
        for _ in range(10):
            hold_place(tenant_id=ACME, request_id=uuid.uuid4(), amount_nano_usd=11)
        return 0

    rated = sum(at_once(4, work))
    assert HoldAccount.objects.get(pk=ACME).held_nano_usd == 220
    assert rated + ingest_usage(limit=100) == 40
    assert check() == []
