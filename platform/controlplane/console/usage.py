"""Usage by UTC day, tenant, model and meter, with what it cost."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from typing import Any

from django.db.models import QuerySet, Sum
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils import timezone

from billing.metering.models import UsageDay
from controlplane.catalog.models import ServedModel
from controlplane.console.display import (
    Cell,
    Chart,
    Fact,
    Table,
    charge,
    chart,
    meter_name,
    money,
    quantity,
    table,
    text,
    usd,
    usd_short,
)
from controlplane.console.site import render, site, tenant_names, url, uuid_or_none

PERIODS = (7, 30, 90)
ROWS = 500


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """What the page was asked for; what makes no sense is as if it were absent."""

    days: int
    tenant: uuid.UUID | None
    model: str

    @classmethod
    def of(cls, values: QueryDict) -> UsageQuery:
        days = values.get("days", "")
        return cls(
            days=int(days) if days in {str(period) for period in PERIODS} else PERIODS[1],
            tenant=uuid_or_none(values.get("tenant", "")),
            model=values.get("model", "")[:200],
        )

    def first(self, today: date) -> date:
        return today - timedelta(days=self.days - 1)

    def rows(self, today: date) -> QuerySet[UsageDay]:
        rows = UsageDay.objects.filter(day__range=(self.first(today), today))
        if self.tenant:
            rows = rows.filter(tenant_id=self.tenant)
        return rows.filter(model=self.model) if self.model else rows


@site.page("usage/", "usage")
def usage(request: HttpRequest) -> HttpResponse:
    asked = UsageQuery.of(request.GET)
    return render(request, "usage", "Usage", **usage_page(asked, timezone.now().astimezone(UTC).date()))


def usage_page(asked: UsageQuery, today: date) -> dict[str, Any]:
    names = tenant_names()
    rows = asked.rows(today)
    return {
        "facts": _facts(rows),
        "chart": _chart(asked, rows, today),
        "days": _days(rows, names),
        "selects": _selects(asked, names),
    }


def _facts(rows: QuerySet[UsageDay]) -> list[Fact]:
    sums = rows.values_list("meter", "unit").annotate(Sum("quantity"), Sum("amount_nano_usd")).order_by("meter")
    total = 0
    facts = []
    for meter, unit, many, amount in sums:
        total += int(amount)
        facts.append(Fact(meter_name(meter), Cell(quantity(many, unit), "number"), charge(int(amount), used=many > 0).text))
    return [Fact("Total", money(total)), *facts]


def _chart(asked: UsageQuery, rows: QuerySet[UsageDay], today: date) -> Chart:
    amounts = {day: int(amount) for day, amount in rows.values_list("day").annotate(Sum("amount_nano_usd")).order_by()}
    first = asked.first(today)
    days = [first + timedelta(days=index) for index in range(asked.days)]
    values = [(day.isoformat(), amounts.get(day, 0), f"{day}: {usd(amounts.get(day, 0))}") for day in days]
    return chart(values, most=usd_short(max(amounts.values(), default=0)))


def _days(rows: QuerySet[UsageDay], names: Mapping[uuid.UUID, str]) -> Table:
    grouped = rows.values_list("day", "tenant_id", "model", "meter", "unit").annotate(Sum("quantity"), Sum("amount_nano_usd"))
    shown = list(grouped.order_by("-day", "tenant_id", "model", "meter", "unit")[: ROWS + 1])
    cells = [
        (
            text(day),
            text(names.get(tenant_id, tenant_id), url("tenants_organisation_change", tenant_id)),
            text(model),
            text(meter_name(meter)),
            Cell(quantity(many, unit), "number"),
            charge(int(amount), used=many > 0),
        )
        for day, tenant_id, model, meter, unit, many, amount in shown[:ROWS]
    ]
    note = f"Only the latest {ROWS} rows are shown." if len(shown) > ROWS else ""
    titles = ("day (UTC)", "tenant", "model", "meter", "quantity#", "amount#")
    return table(titles, cells, title="By day", note=note, empty="No usage was rated in this time.")


@dataclass(frozen=True, slots=True)
class Option:
    value: str
    text: str
    selected: str  # the attribute, or nothing


@dataclass(frozen=True, slots=True)
class Select:
    name: str
    label: str
    options: tuple[Option, ...]


def _selects(asked: UsageQuery, names: Mapping[uuid.UUID, str]) -> list[Select]:
    tenants = [("", "all"), *((str(tenant_id), name) for tenant_id, name in names.items())]
    models = [("", "all"), *((name, name) for name in ServedModel.objects.values_list("name", flat=True))]
    periods = [(str(days), f"{days} days") for days in PERIODS]
    return [
        _select("days", "Period", periods, str(asked.days)),
        _select("tenant", "Tenant", tenants, str(asked.tenant or "")),
        _select("model", "Model", models, asked.model),
    ]


def _select(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str) -> Select:
    return Select(name, label, tuple(Option(value, shown, "selected" if value == chosen else "") for value, shown in options))
