"""Arithmetic of rating, without a database: which price, and exact integers with a remainder that is carried on."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from billing.metering.models import FaultReason
from billing.pricing.models import Price
from billing.pricing.selectors import PriceHistory

MAX_LINE_NANO_USD = 10**16  # ten million dollars for one line is a broken quantity


class Usage(NamedTuple):
    """Columns of inference.usage.models.UsageRow."""

    id: int
    request_id: uuid.UUID
    tenant_id: uuid.UUID
    project_id: uuid.UUID
    key_id: uuid.UUID
    model: str
    service_tier: str
    meter: str
    cache_tier: str
    quantity: int
    unit: str
    occurred_at: datetime


class Line(NamedTuple):
    """Columns of RatedLine."""

    tenant_id: uuid.UUID
    number: int
    usage_id: int
    request_id: uuid.UUID
    project_id: uuid.UUID
    key_id: uuid.UUID
    model: str
    service_tier: str
    meter: str
    cache_tier: str
    quantity: int
    unit: str
    price_id: int
    price_book: int
    unit_price_nano_usd: int
    unit_quantity: int
    carry_in: int
    amount_nano_usd: int
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class PricedRow:
    usage: Usage
    price: Price
    version: int


@dataclass(frozen=True, slots=True)
class Fault:
    request_id: uuid.UUID
    tenant_id: uuid.UUID
    reason: FaultReason
    detail: str


def price_request(tenant_id: uuid.UUID, rows: Sequence[Usage], history: PriceHistory) -> list[PricedRow] | Fault:
    """All rows of a request, each at the price of its own time; or the first reason why not, and then none of them."""
    priced = []
    for row in rows:
        result = _price_row(tenant_id, row, history)
        if not isinstance(result, PricedRow):
            reason, detail = result
            return Fault(row.request_id, tenant_id, reason, detail[:400])
        priced.append(result)
    return priced


def _price_row(tenant_id: uuid.UUID, row: Usage, history: PriceHistory) -> PricedRow | tuple[FaultReason, str]:
    what = f"{row.model}, {row.service_tier}, {row.meter} {row.cache_tier}".rstrip()
    if row.tenant_id != tenant_id:
        return FaultReason.TENANT_MISMATCH, f"{what}: usage row {row.id}"
    tariff = history.tariff(model=row.model, service_tier=row.service_tier, at=row.occurred_at)
    price = tariff and tariff.find(row.meter, row.cache_tier)
    if not tariff or not price:
        return FaultReason.PRICE_MISSING, f"{what}: no price at {row.occurred_at.isoformat()}"
    if price.unit != row.unit:
        return FaultReason.UNIT_MISMATCH, f"{what}: used in {row.unit}, priced in {price.unit}"
    if row.quantity * price.unit_price_nano_usd > MAX_LINE_NANO_USD * price.unit_quantity:
        return FaultReason.AMOUNT_OUT_OF_RANGE, f"{what}: {row.quantity} {row.unit}"
    return PricedRow(row, price, tariff.version)


def rate(rows: Iterable[PricedRow], last_line: int, remainders: dict[tuple[uuid.UUID, int], int]) -> list[Line]:
    """Lines of one tenant, numbered on from `last_line`. Moves `remainders`, by (tenant, price), on."""
    lines = []
    for number, row in enumerate(sorted(rows, key=lambda row: (row.usage.occurred_at, row.usage.id)), start=last_line + 1):
        key = (row.usage.tenant_id, row.price.pk)
        carry_in = remainders.get(key, 0)
        amount, remainders[key] = divmod(row.usage.quantity * row.price.unit_price_nano_usd + carry_in, row.price.unit_quantity)
        lines.append(_line(row, number, carry_in, amount))
    return lines


def _line(row: PricedRow, number: int, carry_in: int, amount_nano_usd: int) -> Line:
    usage, price = row.usage, row.price
    return Line(
        tenant_id=usage.tenant_id,
        number=number,
        usage_id=usage.id,
        request_id=usage.request_id,
        project_id=usage.project_id,
        key_id=usage.key_id,
        model=usage.model,
        service_tier=usage.service_tier,
        meter=usage.meter,
        cache_tier=usage.cache_tier,
        quantity=usage.quantity,
        unit=usage.unit,
        price_id=price.pk,
        price_book=row.version,
        unit_price_nano_usd=price.unit_price_nano_usd,
        unit_quantity=price.unit_quantity,
        carry_in=carry_in,
        amount_nano_usd=amount_nano_usd,
        occurred_at=usage.occurred_at,
    )
