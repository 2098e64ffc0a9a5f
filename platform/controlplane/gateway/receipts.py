"""GET /v1/requests/{id}: what happened to one request, and what it cost. Money and big integers travel as strings."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from billing.metering.selectors import ReceiptLine, ReceiptLines, receipt_lines
from inference.contracts import CACHE_TIERS
from inference.database import tenant_scope
from inference.requests.models import FINAL, InferenceRequest, RequestEvent
from inference.usage.models import Meter, UsageRow

TIMINGS_MS = ("offer", "queue", "prefill", "transfer", "ttft", "decode", "total")
NOT_RATED = "not_rated_yet"


def receipt(*, tenant_id: uuid.UUID, request_id: uuid.UUID) -> dict[str, Any] | None:
    """All but the id. None for a request that is unknown, or another tenant's."""
    with tenant_scope(tenant_id):
        row = InferenceRequest.objects.filter(tenant_id=tenant_id, id=request_id).first()
        if row is None:
            return None
        events = list(RequestEvent.objects.filter(tenant_id=tenant_id, request_id=request_id).order_by("id"))
        usage = list(UsageRow.objects.filter(tenant_id=tenant_id, request_id=request_id, billable=True))
        rated = receipt_lines(tenant_id=tenant_id, request_id=request_id)
    return {**_request(row), "tokens": _tokens(row, usage), "events": [_event(event) for event in events], **_cost(row, rated)}


def _request(row: InferenceRequest) -> dict[str, Any]:
    return {
        "object": "request.receipt",
        "state": row.state,
        "path": row.path,
        "path_reason": row.path_reason,
        "attempt": row.attempt,
        "model": row.model,
        "service_tier": row.service_tier,
        "created_at": row.created_at.isoformat(),
        "finished_at": row.finished_at.isoformat() if row.finished_at else None,
        "cancel_requested_at": row.cancel_requested_at.isoformat() if row.cancel_requested_at else None,
        "choices": row.choices,
        "finish_reasons": row.finish_reasons,
        "error": {"code": row.error_code, "message": row.error_message} if row.error_code else None,
        "labels": row.labels,
        "timing_ms": _timing(row.timing),
        "workers": {"prefill": row.prefill_worker, "decode": row.decode_worker},
    }


def _timing(timing: dict[str, Any]) -> dict[str, Any]:
    itl = timing.get("itl") or {}
    return {**{name: timing.get(name) for name in TIMINGS_MS}, "itl": {name: itl.get(name) for name in ("p50", "p95", "p99")}}


def _tokens(row: InferenceRequest, usage: Iterable[UsageRow]) -> dict[str, Any]:
    sums: dict[tuple[str, str], int] = {}
    for entry in usage:
        key = (entry.meter, entry.cache_tier if entry.meter == Meter.PREFILL_CACHED else "")
        sums[key] = sums.get(key, 0) + entry.quantity
    return {
        "prompt": row.prompt_tokens,
        "computed": sums.get((Meter.PREFILL_COMPUTED, ""), 0),
        "cached": {tier: sums.get((Meter.PREFILL_CACHED, tier), 0) for tier in CACHE_TIERS},
        "completion": row.completion_tokens,
    }


def _event(event: RequestEvent) -> dict[str, Any]:
    shown = {"state": event.state, "at": event.at.isoformat(), "epoch": event.epoch, "worker": event.worker or None}
    return {**shown, "detail": event.detail} if event.detail else shown


def _cost(row: InferenceRequest, rated: ReceiptLines | None) -> dict[str, Any]:
    """Until billing has rated the request `lines` is null, and `billing_state` says why."""
    if rated is None:
        state = NOT_RATED if row.state in FINAL else "running"
        return {"billing_state": state, "lines": None, "total_nano_usd": None, "not_charged": []}
    return {
        "billing_state": "rated",
        "lines": [_line(line) for line in rated.lines],
        "total_nano_usd": str(rated.total_nano_usd),
        "not_charged": [{"what": what, "quantity": str(quantity)} for what, quantity in rated.not_charged],
    }


def _line(line: ReceiptLine) -> dict[str, Any]:
    """amount = (quantity * unit price + carried in) // unit quantity."""
    return {
        "meter": line.meter,
        "cache_tier": line.cache_tier or None,
        "quantity": str(line.quantity),
        "unit": line.unit,
        "price_book": line.price_book,
        "unit_price_nano_usd": str(line.unit_price_nano_usd),
        "unit_quantity": str(line.unit_quantity),
        "carry_in": str(line.carry_in),
        "amount_nano_usd": str(line.amount_nano_usd),
    }
