"""The ledger: transactions and their entries. Rows are only ever added, and not from here."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet, Subquery, Sum
from django.db.models.expressions import OuterRef
from django.http import HttpRequest
from unfold.decorators import display

from billing.ledger.models import LedgerEntry, LedgerTransaction
from controlplane.console.display import NONE, Fact, Table, code, moment, money, number, table, text, usd
from controlplane.console.filters import TenantFilter
from controlplane.console.site import RoomAdmin, site, tenant_link, url, with_tenant

ENTRIES = 500


@admin.register(LedgerTransaction, site=site)
class LedgerTransactionAdmin(RoomAdmin):
    title = "Ledger"
    template = "ledger"
    list_display = ("number", "posted", "tenant_name", "description", "entry_count", "debit")
    list_filter = (TenantFilter,)
    search_fields = ("source_key",)
    search_help_text = "The beginning of a source key"
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> Any:
        entries = LedgerEntry.objects.filter(transaction_id=OuterRef("id"), amount_nano_usd__gt=0).order_by()
        debit = entries.values("transaction_id").annotate(total=Sum("amount_nano_usd")).values("total")
        return with_tenant(super().get_queryset(request)).annotate(debit_nano_usd=Subquery(debit))

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        return (queryset.filter(source_key__startswith=search_term.strip()) if search_term else queryset), False

    @display(description="number")  # type: ignore[untyped-decorator]
    def number(self, row: Any) -> int:
        return int(row.pk)

    @display(description="posted (UTC)")  # type: ignore[untyped-decorator]
    def posted(self, row: Any) -> str:
        return moment(row.posted_at).text

    @display(description="tenant")  # type: ignore[untyped-decorator]
    def tenant_name(self, row: Any) -> str:
        return tenant_link(row.tenant_id, row.tenant)

    @display(description="moved")  # type: ignore[untyped-decorator]
    def debit(self, row: Any) -> str:
        return NONE if row.debit_nano_usd is None else usd(int(row.debit_nano_usd), decimals=9)

    def detail(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        return {"title": f"Ledger transaction {row.pk}", "facts": _facts(row), "entries": _entries(row)}


def _facts(row: Any) -> list[Fact]:
    linked = LedgerTransaction.objects.filter(Q(pk=row.reverses_id) | Q(reverses_id=row.pk)).values_list("pk", flat=True)
    return [
        Fact("Tenant", text(row.tenant or row.tenant_id, url("tenants_organisation_change", row.tenant_id))),
        Fact("Posted (UTC)", moment(row.posted_at)),
        Fact("About", text(row.description)),
        Fact("Source key", code(row.source_key)),
        Fact("Content", code(row.content[:16] + "…"), "SHA-256"),
        Fact("Mirrors", text(", ".join(map(str, linked))), "reversal and reversed transaction"),
    ]


def _entries(row: LedgerTransaction) -> Table:
    entries = list(LedgerEntry.objects.filter(transaction=row).select_related("account").order_by("id")[:ENTRIES])
    cells = [
        (
            text(entry.account.get_kind_display()),
            text("tenant" if entry.account.tenant_id else "platform"),
            money(entry.amount_nano_usd if entry.amount_nano_usd > 0 else None),
            money(-entry.amount_nano_usd if entry.amount_nano_usd < 0 else None),
            moment(entry.effective_at),
        )
        for entry in entries
    ]
    debit = sum(entry.amount_nano_usd for entry in entries if entry.amount_nano_usd > 0)
    credit = -sum(entry.amount_nano_usd for entry in entries if entry.amount_nano_usd < 0)
    foot = (text("Sum"), number(None), money(debit), money(credit), text(None))
    return table(("account", "owner", "debit#", "credit#", "effective (UTC)"), cells, title="Entries", foot=foot)
