"""What a request and a day cost."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from django.db.models import QuerySet, Sum

from billing.metering.models import RatedLine, RatedRequest, RatingFault, UsageDay
from inference.database import tenant_scope
from inference.usage.models import UsageRow


@dataclass(frozen=True, slots=True)
class ReceiptLine:
    """amount_nano_usd = (quantity * unit_price_nano_usd + carry_in) // unit_quantity"""

    meter: str
    cache_tier: str
    quantity: int
    unit: str
    price_book: int
    unit_price_nano_usd: int
    unit_quantity: int
    carry_in: int
    amount_nano_usd: int


class NotCharged(NamedTuple):
    what: str  # a meter
    quantity: int


@dataclass(frozen=True, slots=True)
class ReceiptLines:
    lines: tuple[ReceiptLine, ...]
    total_nano_usd: int
    not_charged: tuple[NotCharged, ...]


@dataclass(frozen=True, slots=True)
class DayUsage:
    day: date  # UTC
    project_id: uuid.UUID
    model: str
    service_tier: str
    meter: str
    unit: str
    quantity: int
    amount_nano_usd: int


def receipt_lines(*, tenant_id: uuid.UUID, request_id: uuid.UUID) -> ReceiptLines | None:
    """None until the request is rated, and for a request that is not this tenant's."""
    with tenant_scope(tenant_id):
        rated = RatedRequest.objects.filter(tenant_id=tenant_id, request_id=request_id).first()
        if rated is None:
            return None
        lines = RatedLine.objects.filter(tenant_id=tenant_id, request_id=request_id).order_by("number")
        free = UsageRow.objects.filter(tenant_id=tenant_id, request_id=request_id, billable=False, quantity__gt=0)
        sums = free.values_list("meter").annotate(Sum("quantity")).order_by("meter")
        return ReceiptLines(
            lines=tuple(map(_receipt_line, lines)),
            total_nano_usd=rated.total_nano_usd,
            not_charged=tuple(NotCharged(meter, int(quantity)) for meter, quantity in sums),
        )


def usage_by_day(*, tenant_id: uuid.UUID, first: date, last: date) -> list[DayUsage]:
    """Days in UTC, both included."""
    with tenant_scope(tenant_id):
        rows = UsageDay.objects.filter(tenant_id=tenant_id, day__range=(first, last))
        return [_day(row) for row in rows.order_by("day", "project_id", "model", "service_tier", "meter")]


def rating_faults_open() -> QuerySet[RatingFault]:
    """Of all tenants, the oldest first: for operators."""
    return RatingFault.objects.filter(resolved_at__isnull=True).order_by("first_seen_at")


def _receipt_line(line: RatedLine) -> ReceiptLine:
    return ReceiptLine(
        meter=line.meter,
        cache_tier=line.cache_tier,
        quantity=line.quantity,
        unit=line.unit,
        price_book=line.price_book,
        unit_price_nano_usd=line.unit_price_nano_usd,
        unit_quantity=line.unit_quantity,
        carry_in=line.carry_in,
        amount_nano_usd=line.amount_nano_usd,
    )


def _day(row: UsageDay) -> DayUsage:
    return DayUsage(
        day=row.day,
        project_id=row.project_id,
        model=row.model,
        service_tier=row.service_tier,
        meter=row.meter,
        unit=row.unit,
        quantity=int(row.quantity),
        amount_nano_usd=row.amount_nano_usd,
    )
