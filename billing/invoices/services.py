"""Drafts are rebuilt from rated lines; what is rounded to cents is a line, once."""

from __future__ import annotations

import uuid
from datetime import date

from django.db import transaction
from django.db.models import Sum
from django.db.models.functions import Now

from billing.errors import PeriodRefused
from billing.invoices.amounts import NANO_USD_PER_CENT, cents_from_nano_usd, month_bounds, month_of
from billing.invoices.models import Invoice, InvoiceLine, InvoiceSchedule, InvoiceState
from billing.metering.models import TenantMeter
from inference import failpoints
from inference.database import query

DEFAULT_TIME_ZONE = "UTC"
GROUPED = (
    "project_id",
    "model",
    "service_tier",
    "meter",
    "cache_tier",
    "unit",
    "price_book",
    "unit_price_nano_usd",
    "unit_quantity",
)
_LINES = f"""
SELECT {", ".join(GROUPED)}, sum(quantity), count(DISTINCT request_id), sum(amount_nano_usd)::bigint
FROM metering_line
WHERE tenant_id = %s AND occurred_at >= %s AND occurred_at < %s AND number <= %s
GROUP BY {", ".join(GROUPED)} ORDER BY {", ".join(GROUPED)}
"""
_BEHIND = """
SELECT m.tenant_id FROM metering_tenant m LEFT JOIN invoices_schedule s ON s.tenant_id = m.tenant_id
WHERE m.last_line > coalesce(s.lines_up_to, 0) ORDER BY m.tenant_id
"""
# Months are told apart in Python, by the same calendar that draws their borders; all borders lie on quarters of an hour.
_MOMENTS = """
SELECT DISTINCT date_bin('15 minutes', occurred_at, '2000-01-01T00:00:00Z') FROM metering_line
WHERE tenant_id = %s AND number > %s AND number <= %s
"""


@transaction.atomic
def invoice_draft_build(*, tenant_id: uuid.UUID, period_start: date, time_zone: str | None = None) -> Invoice:
    """The draft of the month that begins on `period_start`, rebuilt from all lines that are rated now.

    A tenant's first draft fixes its time zone (UTC unless given), so that its months neither overlap nor leave gaps.
    """
    schedule = _schedule_lock(tenant_id, time_zone)
    return _build(schedule, period_start, _last_line(tenant_id))


def invoice_drafts_refresh() -> int:
    """Rebuilds the drafts of every month that got new lines, and returns how many drafts."""
    drafts = sum(_refresh(tenant_id) for (tenant_id,) in query(_BEHIND))
    if drafts:
        failpoints.reach("invoice.drafted")
    return drafts


@transaction.atomic
def _refresh(tenant_id: uuid.UUID) -> int:
    schedule = _schedule_lock(tenant_id, None)
    last_line = _last_line(tenant_id)
    months = sorted(
        {month_of(moment, schedule.time_zone) for (moment,) in query(_MOMENTS, [tenant_id, schedule.lines_up_to, last_line])}
    )
    for month in months:
        _build(schedule, month, last_line)
    failpoints.reach("invoice.draft")
    InvoiceSchedule.objects.filter(pk=tenant_id).update(lines_up_to=last_line)
    return len(months)


def _schedule_lock(tenant_id: uuid.UUID, time_zone: str | None) -> InvoiceSchedule:
    fresh = InvoiceSchedule(tenant_id=tenant_id, time_zone=time_zone or DEFAULT_TIME_ZONE)
    month_bounds(date(2000, 1, 1), fresh.time_zone)  # refuses an unknown zone before it is stored
    InvoiceSchedule.objects.bulk_create([fresh], ignore_conflicts=True)
    schedule = InvoiceSchedule.objects.select_for_update().get(pk=tenant_id)
    if time_zone not in (None, schedule.time_zone):
        raise PeriodRefused(f"this tenant's invoices are in {schedule.time_zone}, not in {time_zone}")
    return schedule


def _last_line(tenant_id: uuid.UUID) -> int:
    """Lines up to this number are committed, every one: it is written under the lock under which they are."""
    return TenantMeter.objects.filter(pk=tenant_id).values_list("last_line", flat=True).first() or 0


def _build(schedule: InvoiceSchedule, period_start: date, last_line: int) -> Invoice:
    start, end = month_bounds(period_start, schedule.time_zone)
    invoice, _ = Invoice.objects.get_or_create(
        tenant_id=schedule.tenant_id,
        period_start=start,
        state=InvoiceState.DRAFT,
        defaults={"period_end": end, "time_zone": schedule.time_zone},
    )
    invoice.lines.all().delete()
    InvoiceLine.objects.bulk_create(_lines(invoice, last_line))
    _totals_write(invoice, last_line)
    invoice.refresh_from_db()
    return invoice


def _lines(invoice: Invoice, last_line: int) -> list[InvoiceLine]:
    rows = query(_LINES, [invoice.tenant_id, invoice.period_start, invoice.period_end, last_line])
    return [
        InvoiceLine(
            invoice=invoice,
            tenant_id=invoice.tenant_id,
            **dict(zip(GROUPED, grouped, strict=True)),
            quantity=quantity,
            requests=requests,
            amount_nano_usd=amount,
            amount_cents=cents_from_nano_usd(amount),
        )
        for *grouped, quantity, requests, amount in rows
    ]


def _totals_write(invoice: Invoice, last_line: int) -> None:
    sums = invoice.lines.aggregate(nano_usd=Sum("amount_nano_usd"), cents=Sum("amount_cents"))
    total_nano_usd, total_cents = int(sums["nano_usd"] or 0), int(sums["cents"] or 0)
    Invoice.objects.filter(pk=invoice.pk).update(
        total_nano_usd=total_nano_usd,
        total_cents=total_cents,
        residual_nano_usd=total_nano_usd - total_cents * NANO_USD_PER_CENT,
        lines_up_to=last_line,
        built_at=Now(),
    )
