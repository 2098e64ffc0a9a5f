"""Requests and their receipts: what happened to one, who did it, what it used and what that cost. Nothing can be changed here."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from unfold.decorators import display

from billing.metering.selectors import ReceiptLine, ReceiptLines, receipt_lines
from controlplane.console.display import (
    NONE,
    Cell,
    Fact,
    Table,
    badge,
    charge,
    code,
    instant,
    meter_name,
    milliseconds,
    moment,
    money,
    number,
    quantity,
    table,
    text,
    unit_price,
)
from controlplane.console.filters import DayFilter, ModelFilter, TenantFilter
from controlplane.console.site import RoomAdmin, nowrap, site, tenant_link, url, uuid_or_none, with_tenant
from controlplane.keys.models import ApiKey
from controlplane.tenants.models import Organisation, Project
from inference.requests.models import FINAL, InferenceRequest, RequestEvent, State
from inference.requests.selectors import events_of
from inference.usage.models import UNITS, Meter, UsageRow

PUBLIC_PREFIX = "chatcmpl-"
TIMINGS = ("queue", "prefill", "transfer", "ttft", "decode", "total")
PHASES = ("prefill", "transfer", "decode")  # zero: it never began
REASONS = {
    "asked": "asked for by the policy or by the setting scheduling.path",
    "one_token": "one token needs no decode worker",
    "no_decode_worker": "no decode worker was alive",
    "no_prefill_worker": "no prefill worker was alive",
    "decode_full": "the decode workers had no room",
    "one_worker_has_both_roles": "there was no second worker to hand over to",
    "decode_moved": "the reserved decode worker was gone; another one went on",
    "decode_gone": "no decode worker was left; the prefill worker went on",
}
CARRY_NOTE = (
    "Amount in nano-dollars = quantity * price + carried in, without the fraction, which is carried into the tenant's next line "
    "of the same price. A token-hour is 3,600 token-seconds."
)
LABELS = {
    State.DONE.value: "success",
    State.FAILED.value: "danger",
    State.EXPIRED.value: "danger",
    State.CANCELLED.value: "warning",
    State.QUEUED.value: "info",
    State.PREFILLING.value: "info",
    State.READY.value: "info",
    State.DECODING.value: "info",
}


def public_id(request_id: uuid.UUID) -> str:
    return f"{PUBLIC_PREFIX}{request_id.hex}"


def request_uuid(term: str) -> uuid.UUID | None:
    """From an id as people have it: `chatcmpl-...` or `cmpl-...`, with or without dashes."""
    return uuid_or_none(term.strip().removeprefix(PUBLIC_PREFIX).removeprefix("cmpl-"))


class PathFilter(admin.SimpleListFilter):
    title = "path"
    parameter_name = "path"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("split", "split"), ("fused", "fused")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(path=self.value()) if self.value() else queryset


@admin.register(InferenceRequest, site=site)
class RequestAdmin(RoomAdmin):
    title = "Requests"
    template = "request"
    list_display = ("public", "state_label", "tenant_name", "model", "path_taken", "tokens", "ttft", "created")
    list_filter = ("state", PathFilter, TenantFilter, ModelFilter, DayFilter)
    search_fields = ("id",)
    search_help_text = "The id of a request: chatcmpl-…, cmpl-… or a UUID"
    ordering = ("-id",)  # version 7: the newest first, by the primary key

    def get_queryset(self, request: HttpRequest) -> Any:
        return with_tenant(super().get_queryset(request)).defer("policy", "labels", "error_message")

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        if not search_term:
            return queryset, False
        wanted = request_uuid(search_term)
        return (queryset.filter(id=wanted) if wanted else queryset.none()), False

    @display(description="id")  # type: ignore[untyped-decorator]
    def public(self, row: Any) -> str:
        return format_html('<span class="bc-id">{}</span>', public_id(row.id))

    @display(description="state", label=LABELS)  # type: ignore[untyped-decorator]
    def state_label(self, row: Any) -> str:
        return str(row.state)

    @display(description="tenant")  # type: ignore[untyped-decorator]
    def tenant_name(self, row: Any) -> str:
        return tenant_link(row.tenant_id, row.tenant)

    @display(description="path")  # type: ignore[untyped-decorator]
    def path_taken(self, row: Any) -> str:
        return row.path or NONE

    @display(description="tokens in / out")  # type: ignore[untyped-decorator]
    def tokens(self, row: Any) -> str:
        return nowrap(f"{row.prompt_tokens:,} / {row.completion_tokens:,}")

    @display(description="TTFT")  # type: ignore[untyped-decorator]
    def ttft(self, row: Any) -> str:
        return nowrap(milliseconds(row.timing.get("ttft")).text)

    @display(description="created (UTC)")  # type: ignore[untyped-decorator]
    def created(self, row: Any) -> str:
        return nowrap(f"{row.created_at:%m-%d %H:%M:%S}")

    def detail(self, request: HttpRequest, row: InferenceRequest) -> dict[str, Any]:
        return {"title": f"Request {public_id(row.id)}", **receipt(row)}


def receipt(row: InferenceRequest) -> dict[str, Any]:
    usage = list(UsageRow.objects.filter(request_id=row.id).order_by("id"))
    rated = receipt_lines(tenant_id=row.tenant_id, request_id=row.id)
    return {
        "summary": _summary(row, rated),
        "who": _who(row),
        "run": _run(row, usage),
        "timings": _timings(row.timing),
        "events": _events(row, events_of(tenant_id=row.tenant_id, request_id=row.id)),
        "usage": _usage(usage),
        "lines": _lines(row, rated),
        "not_charged": _not_charged(rated),
    }


def _summary(row: InferenceRequest, rated: ReceiptLines | None) -> list[Fact]:
    return [
        Fact("State", badge(row.state), row.error_message),
        Fact("Path", text(row.path), path_reason(row)),
        Fact(
            "Tokens", number(row.prompt_tokens + row.completion_tokens), f"{row.prompt_tokens:,} in, {row.completion_tokens:,} out"
        ),
        Fact("TTFT", milliseconds(row.timing.get("ttft"))),
        Fact("Charged", _total(rated) if rated else money(None), "" if rated else _why_not_rated(row)),
    ]


def path_reason(row: InferenceRequest) -> str:
    """In words, and only where it says more than the path does."""
    return "" if row.path_reason == row.path else REASONS.get(row.path_reason, row.path_reason)


def _total(rated: ReceiptLines) -> Cell:
    return charge(rated.total_nano_usd, used=any(_used(line) for line in rated.lines))


def _used(line: ReceiptLine) -> bool:
    return line.quantity * line.unit_price_nano_usd > 0


def _why_not_rated(row: InferenceRequest) -> str:
    return "not rated yet" if row.state in FINAL else "still running"


def _who(row: InferenceRequest) -> list[Fact]:
    tenant = Organisation.objects.filter(id=row.tenant_id).first()
    project = Project.objects.filter(id=row.project_id).first()
    key = ApiKey.objects.filter(id=row.key_id).first()
    return [
        Fact("Tenant", text(tenant or row.tenant_id, url("tenants_organisation_change", row.tenant_id) if tenant else "")),
        Fact("Project", text(project or row.project_id)),
        Fact("Key", code(key.prefix + "…", url("keys_apikey_change", key.id)) if key else code(row.key_id)),
        Fact("Model", text(row.model)),
        Fact("Service tier", text(row.service_tier)),
        Fact("Labels", code(json.dumps(row.labels) if row.labels else None)),
    ]


def _run(row: InferenceRequest, usage: Iterable[UsageRow]) -> list[Fact]:
    sums: dict[str, int] = {}
    for entry in usage:
        sums[entry.meter] = sums.get(entry.meter, 0) + entry.quantity
    return [
        Fact("Prefill worker", text(row.prefill_worker)),
        Fact("Decode worker", text(row.decode_worker)),
        Fact("Attempt", number(row.attempt), f"epoch {row.epoch}"),
        *[Fact(_name(meter), number(sums.get(meter, 0))) for meter in (Meter.PREFILL_COMPUTED, Meter.PREFILL_CACHED)],
        Fact(_name(Meter.DECODE), number(row.completion_tokens), f"of at most {row.max_tokens:,}"),
        Fact("Finish", text(", ".join(row.finish_reasons)), row.error_code),
        Fact("Stream", text("yes" if row.stream else "no")),
        Fact("Deadline", moment(row.deadline_at)),
    ]


def _name(meter: str) -> str:
    name = meter_name(meter)
    return name[:1].upper() + name[1:]


def _timings(timing: dict[str, Any]) -> list[Fact]:
    """A dash where something never happened, for which workers write zero: a phase, or a gap between two tokens."""
    itl = timing.get("itl") or {}
    shown = {name: timing.get(name) or None if name in PHASES else timing.get(name) for name in TIMINGS}
    parts = [Fact(name.upper() if name == "ttft" else name.capitalize(), milliseconds(value)) for name, value in shown.items()]
    return parts + [Fact(f"ITL {name}", milliseconds(itl.get(name) if itl.get("p99") else None)) for name in ("p50", "p95", "p99")]


def _events(row: InferenceRequest, events: Sequence[RequestEvent]) -> Table:
    rows = [
        (
            badge(event.state),
            instant(event.at),
            milliseconds((event.at - row.created_at).total_seconds() * 1000),
            text(event.worker),
            number(event.epoch),
            text(event.detail),
        )
        for event in events
    ]
    return table(("state", "at (UTC)", "after#", "worker", "epoch#", "detail"), rows, title="Timeline")


def _usage(usage: Iterable[UsageRow]) -> Table:
    rows = [
        (
            text(meter_name(entry.meter)),
            text(entry.cache_tier),
            Cell(quantity(entry.quantity, entry.unit), "number"),
            text("tenant" if entry.billable else "us"),
            number(entry.attempt),
            instant(entry.occurred_at),
        )
        for entry in usage
    ]
    return table(("meter", "cache tier", "quantity#", "paid by", "attempt#", "at (UTC)"), rows, title="Usage as metered")


def _lines(row: InferenceRequest, rated: ReceiptLines | None) -> Table:
    titles = ("meter", "cache tier", "quantity#", "price book#", "unit price#", "carried in (nano-dollars)#", "amount#")
    if rated is None:
        return table(titles, (), title="Rated lines", empty=_why_not_rated(row).capitalize() + ".")
    foot = (text("Total"), *[Cell("")] * 5, _total(rated))
    return table(titles, map(_line, rated.lines), title="Rated lines", foot=foot, note=CARRY_NOTE, empty="Nothing billable.")


def _line(line: ReceiptLine) -> tuple[Cell, ...]:
    return (
        text(meter_name(line.meter)),
        text(line.cache_tier),
        Cell(quantity(line.quantity, line.unit), "number"),
        number(line.price_book),
        Cell(unit_price(line.unit_price_nano_usd, line.unit_quantity, line.unit), "number"),
        Cell(f"{line.carry_in:,} / {line.unit_quantity:,}" if line.carry_in else "0", "number"),
        charge(line.amount_nano_usd, used=_used(line)),
    )


def _not_charged(rated: ReceiptLines | None) -> Table:
    rows = [
        (text(meter_name(what)), Cell(quantity(many, UNITS.get(what, "token")), "number"))
        for what, many in (rated.not_charged if rated else ())
    ]
    return table(("what", "quantity#"), rows, title="Not charged", empty="Nothing was done at our own cost.")
