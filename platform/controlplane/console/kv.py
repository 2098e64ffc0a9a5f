"""The KV cache: pools, what workers have published, and hand-offs that are open."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, F, Func, IntegerField, Max, Q
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from controlplane.console.display import Cell, Table, age, badge, code, moment, number, table, text
from controlplane.console.requests import public_id
from controlplane.console.site import render, site, tenant_names, url
from inference.kv import pool_reports
from inference.kvdirectory.models import Extent, HandOff

HANDOFFS = 100
MEBIBYTE = 1 << 20


@site.page("kv/", "kv")
def kv(request: HttpRequest) -> HttpResponse:
    return render(request, "kv", "KV cache", **kv_page())


def kv_page() -> dict[str, Any]:
    return {"pools": _pools(), "extents": _extents(), "handoffs": _handoffs()}


def _pools() -> Table:
    rows = [
        (
            text(report.slot),
            badge(report.state),
            number(report.worker_epoch),
            *[number(blocks) for blocks in (report.pool.free, report.pool.cached, report.pool.held, report.pool.quarantined)],
            number(report.pool.total),
            Cell(f"{report.pool.total * report.block_bytes / MEBIBYTE:,.0f} MiB", "number"),
        )
        for report in pool_reports()
    ]
    titles = ("worker", "state", "epoch#", "free#", "cached#", "held#", "quarantined#", "blocks#", "memory#")
    return table(titles, rows, title="Pools", empty="No worker has ever registered.")


def _extents() -> Table:
    grouped = Extent.objects.values_list("worker", "worker_epoch", "tier", "encoding").annotate(
        many=Count("id"), longest=Max("tokens"), pinned=Count("id", filter=Q(pinned_until__gt=Now())), used=Max("used_at")
    )
    rows = [
        (text(worker), number(epoch), text(tier), text(encoding), number(many), number(longest), number(pinned), moment(used))
        for worker, epoch, tier, encoding, many, longest, pinned, used in grouped.order_by("worker", "tier", "encoding")
    ]
    titles = ("worker", "epoch#", "tier", "encoding", "extents#", "longest prefix (tokens)#", "pinned#", "last use (UTC)")
    return table(titles, rows, title="Published extents", empty="Nothing is published.")


def _handoffs() -> Table:
    now = timezone.now()
    names = tenant_names()
    opened = HandOff.objects.filter(released_at__isnull=True).order_by("published_at")
    shown = opened.annotate(pages_n=Func(F("pages"), function="jsonb_array_length", output_field=IntegerField())).values_list(
        "request_id", "tenant_id", "worker", "worker_epoch", "tokens", "pages_n", "published_at"
    )[:HANDOFFS]
    rows = [
        (
            code(public_id(request_id), url("requests_inferencerequest_change", request_id)),
            text(names.get(tenant_id, tenant_id)),
            text(worker),
            number(epoch),
            number(tokens),
            number(pages),
            Cell(age((now - at).total_seconds()), "number"),
        )
        for request_id, tenant_id, worker, epoch, tokens, pages, at in shown
    ]
    titles = ("request", "tenant", "held by", "epoch#", "tokens#", "pages#", "open for#")
    note = f"The oldest {HANDOFFS} are shown." if len(rows) == HANDOFFS else ""
    return table(titles, rows, title="Hand-offs that are open", note=note, empty="None is open.")
