"""Invoices: drafts follow the usage of their month. Read-only: billing builds them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display

from billing.invoices.models import Invoice, InvoiceLine
from controlplane.console.display import (
    Cell,
    Fact,
    Table,
    badge,
    charge,
    meter_name,
    moment,
    money,
    number,
    quantity,
    table,
    text,
    unit_price,
    usd,
    usd_cents,
)
from controlplane.console.filters import TenantFilter
from controlplane.console.site import RoomAdmin, site, tenant_link, url, with_tenant
from controlplane.tenants.models import Project

LINES = 500


@admin.register(Invoice, site=site)
class InvoiceAdmin(RoomAdmin):
    title = "Invoices"
    template = "invoice"
    list_display = ("period", "tenant_name", "state_label", "total", "residual", "built")
    list_filter = ("state", TenantFilter)
    ordering = ("-period_start", "tenant_id")

    def get_queryset(self, request: HttpRequest) -> Any:
        return with_tenant(super().get_queryset(request))

    @display(description="month")  # type: ignore[untyped-decorator]
    def period(self, row: Any) -> str:
        return month(row)

    @display(description="tenant")  # type: ignore[untyped-decorator]
    def tenant_name(self, row: Any) -> str:
        return tenant_link(row.tenant_id, row.tenant)

    @display(description="state", label={"draft": "info"})  # type: ignore[untyped-decorator]
    def state_label(self, row: Any) -> str:
        return str(row.state)

    @display(description="total")  # type: ignore[untyped-decorator]
    def total(self, row: Any) -> str:
        return usd_cents(row.total_cents)

    @display(description="rounded away")  # type: ignore[untyped-decorator]
    def residual(self, row: Any) -> str:
        return usd(row.residual_nano_usd, decimals=9)

    @display(description="built (UTC)")  # type: ignore[untyped-decorator]
    def built(self, row: Any) -> str:
        return moment(row.built_at).text

    def detail(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {"title": f"Invoice {row.number or 'draft'}, {month(row)}", "facts": _facts(row), "lines": _lines(row)}


def month(row: Invoice) -> str:
    """The period's middle lies in its month in every time zone."""
    return f"{row.period_start + (row.period_end - row.period_start) / 2:%Y-%m}"


def _facts(row: Any) -> list[Fact]:
    return [
        Fact("Tenant", text(row.tenant or row.tenant_id, url("tenants_organisation_change", row.tenant_id))),
        Fact("State", badge(row.state)),
        Fact("Total", Cell(usd_cents(row.total_cents), "number"), row.currency),
        Fact("Exact total", money(row.total_nano_usd)),
        Fact("Rounded away", money(row.residual_nano_usd), "exact total less total"),
        Fact("From (UTC)", moment(row.period_start), row.time_zone),
        Fact("To (UTC)", moment(row.period_end), "exclusive"),
        Fact("Rated lines up to", number(row.lines_up_to)),
        Fact("Built (UTC)", moment(row.built_at)),
    ]


def _lines(row: Invoice) -> Table:
    names = dict(Project.objects.filter(organisation_id=row.tenant_id).values_list("id", "name"))
    lines = InvoiceLine.objects.filter(invoice=row).order_by("project_id", "model", "service_tier", "meter", "id")[: LINES + 1]
    cells = [_line(line, str(names.get(line.project_id, line.project_id))) for line in lines[:LINES]]
    foot = (*[text("Total")], *[Cell("")] * 6, money(row.total_nano_usd), Cell(usd_cents(row.total_cents), "number"))
    titles = ("project", "model", "tier", "meter", "requests#", "quantity#", "unit price#", "exact#", "amount#")
    note = f"Only the first {LINES} lines are shown." if len(lines) > LINES else ""
    return table(titles, cells, title="Lines", foot=foot, note=note, empty="Nothing was used.")


def _line(line: InvoiceLine, project: str) -> tuple[Cell, ...]:
    return (
        text(project),
        text(line.model),
        text(line.service_tier),
        text(f"{meter_name(line.meter)} ({line.cache_tier})" if line.cache_tier else meter_name(line.meter)),
        number(line.requests),
        Cell(quantity(line.quantity, line.unit), "number"),
        Cell(unit_price(line.unit_price_nano_usd, line.unit_quantity, line.unit), "number"),
        charge(line.amount_nano_usd, used=line.quantity * line.unit_price_nano_usd > 0),
        Cell(usd_cents(line.amount_cents), "number"),
    )
