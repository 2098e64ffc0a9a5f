"""Price books: what counts from when. Published ones never change; drafts are made by billing's services."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import Count
from django.http import HttpRequest
from django.utils import timezone
from unfold.decorators import display

from billing.pricing.models import Price, PriceBook
from controlplane.console.display import Cell, Fact, Table, badge, meter_name, moment, number, table, text, unit_price
from controlplane.console.site import RoomAdmin, site

PRICES = 1000


def book_state(book: PriceBook, now: datetime) -> str:
    """Which of the published books is in force is told by the list's order."""
    if book.published_at is None:
        return "draft"
    return "published" if book.effective_from <= now else "published, from later"


@admin.register(PriceBook, site=site)
class PriceBookAdmin(RoomAdmin):
    title = "Price books"
    template = "price_book"
    list_display = ("version", "name", "state_label", "effective", "published", "prices_count")
    ordering = ("-effective_from",)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).annotate(prices_n=Count("prices"))

    @display(description="state", label={"published": "success", "draft": "warning", "published, from later": "info"})  # type: ignore[untyped-decorator]
    def state_label(self, row: Any) -> str:
        return book_state(row, timezone.now())

    @display(description="from (UTC)")  # type: ignore[untyped-decorator]
    def effective(self, row: Any) -> str:
        return moment(row.effective_from).text

    @display(description="published (UTC)")  # type: ignore[untyped-decorator]
    def published(self, row: Any) -> str:
        return moment(row.published_at).text

    @display(description="prices")  # type: ignore[untyped-decorator]
    def prices_count(self, row: Any) -> int:
        return int(row.prices_n)

    def detail(self, request: HttpRequest, row: PriceBook) -> dict[str, Any]:
        return {"title": f"Price book {row.version}: {row.name}", "facts": _facts(row), "prices": _prices(row)}


def _facts(row: PriceBook) -> list[Fact]:
    state = book_state(row, timezone.now())
    return [
        Fact("State", badge("done" if row.published_at else "cancelled", state)),
        Fact("Version", number(row.version)),
        Fact("From (UTC)", moment(row.effective_from)),
        Fact("Published (UTC)", moment(row.published_at)),
        Fact("Currency", text(row.currency)),
    ]


def _prices(row: PriceBook) -> Table:
    prices = Price.objects.filter(book=row).order_by("model", "service_tier", "meter", "cache_tier")[:PRICES]
    cells = [
        (
            text(price.model),
            text(price.service_tier),
            text(meter_name(price.meter)),
            text(price.cache_tier or "all"),
            Cell(unit_price(price.unit_price_nano_usd, price.unit_quantity, price.unit), "number"),
        )
        for price in prices
    ]
    return table(("model", "tier", "meter", "cache tier", "price#"), cells, title="Prices", empty="This book prices nothing.")
