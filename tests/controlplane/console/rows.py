"""Rows as the other rooms leave them: a tenant, a request with its events and usage, workers, heartbeats."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from billing.holds.services import hold_account_open, hold_place
from billing.metering.services import ingest_usage
from billing.pricing.services import price_book_seed
from controlplane.catalog.models import ServedModel
from controlplane.keys.models import ApiKey
from controlplane.keys.services import api_key_create
from controlplane.tenants.models import Organisation, Project
from controlplane.tenants.services import organisation_create, project_create
from inference.contracts import ClassPolicy, KVLayout, RequestOutcome
from inference.coordination.heartbeat import beat
from inference.coordination.models import Worker, WorkerState
from inference.requests.models import FINAL, InferenceRequest, RequestEvent, State, new_request_id
from inference.usage.services import usage_write

MODEL = "smollm2-135m-instruct"
LIMIT_NANO_USD = 50_000_000_000
LAYOUT = KVLayout(model=MODEL, revision="r1", layers=30, kv_heads=3, head_dim=64, block_tokens=16, dtype="float32")


@dataclass(frozen=True)
class Tenant:
    organisation: Organisation
    project: Project
    key: ApiKey
    secret: str

    @property
    def id(self) -> uuid.UUID:
        return self.organisation.id


def tenant_make(name: str, *, project: str = "first", key: str = "server") -> Tenant:
    organisation = organisation_create(name=name)
    made = project_create(tenant_id=organisation.id, name=project)
    hold_account_open(tenant_id=organisation.id, limit_nano_usd=LIMIT_NANO_USD)
    row, secret = api_key_create(tenant_id=organisation.id, project_id=made.id, name=key)
    return Tenant(organisation, made, row, secret)


def on_sale(model: str = MODEL) -> None:
    ServedModel.objects.get_or_create(name=model, defaults={"display_name": model, "context_length": 8192})
    price_book_seed(model=model)


def request_make(
    tenant: Tenant,
    *,
    state: str = State.DONE,
    path: str | None = "split",
    prompt: int = 100,
    cached: int = 64,
    completion: int = 20,
    recomputed: int = 0,
    ttft_ms: float = 40.0,
    at: datetime | None = None,
    model: str = MODEL,
    **fields: Any,
) -> InferenceRequest:
    """A request with its events; a final one with its hold and usage, which `rated` turns into lines."""
    at = at or timezone.now() - timedelta(seconds=5)
    ended = at + timedelta(seconds=1) if state in FINAL else None
    ran = state not in (State.QUEUED, State.EXPIRED)
    row = InferenceRequest.objects.create(
        id=new_request_id(),
        tenant_id=tenant.id,
        project_id=tenant.project.id,
        key_id=tenant.key.id,
        model=model,
        service_tier="default",
        policy=ClassPolicy().to_json(),
        priority=100,
        stream=True,
        state=state,
        epoch=4,
        owner="decode-0" if ran else None,
        owner_epoch=1 if ran else None,
        path=path if ran else None,
        path_reason="decode runs 3 requests" if ran else "",
        prefill_worker="prefill-0" if ran else None,
        decode_worker="decode-0" if ran else None,
        prompt_tokens=prompt,
        max_tokens=256,
        completion_tokens=completion if ran else 0,
        finish_reasons=["stop"] if state == State.DONE else [],
        created_at=at,
        deadline_at=at + timedelta(minutes=10),
        finished_at=ended,
        timing=_timing(ttft_ms, completion) if state == State.DONE else {},
        **fields,
    )
    _events(row, at)
    if ended:
        hold_place(tenant_id=tenant.id, request_id=row.id, amount_nano_usd=1_000_000)
        held_us = (prompt + completion) * 900_000
        outcome = RequestOutcome(
            computed=prompt - cached, cached=cached, completion=completion, recomputed=recomputed, kv_token_us=held_us
        )
        usage_write(request_id=row.id, outcome=outcome if ran else RequestOutcome())
    return row


def _timing(ttft_ms: float, completion: int) -> dict[str, Any]:
    return {
        "queue": 1.5,
        "prefill": ttft_ms - 6,
        "transfer": 2.25,
        "ttft": ttft_ms,
        "decode": completion * 12.5,
        "total": ttft_ms + completion * 12.5,
        "itl": {"p50": 12.1, "p95": 15.9, "p99": 19.4},
    }


WAYS = {
    State.DONE: (State.QUEUED, State.PREFILLING, State.READY, State.DECODING, State.DONE),
    State.DECODING: (State.QUEUED, State.PREFILLING, State.READY, State.DECODING),
    State.QUEUED: (State.QUEUED,),
    State.EXPIRED: (State.QUEUED, State.EXPIRED),
}


def _events(row: InferenceRequest, at: datetime) -> None:
    way = WAYS.get(State(row.state), (State.QUEUED, State.PREFILLING, State(row.state)))
    workers = {State.PREFILLING: "prefill-0", State.READY: "prefill-0", State.DECODING: "decode-0", State.DONE: "decode-0"}
    RequestEvent.objects.bulk_create(
        RequestEvent(
            request_id=row.id,
            tenant_id=row.tenant_id,
            state=state,
            at=at + timedelta(milliseconds=20 * index),
            epoch=index,
            worker=workers.get(state, ""),
        )
        for index, state in enumerate(way)
    )


def rated() -> int:
    return ingest_usage()


def fleet_make() -> None:
    now = timezone.now()
    for slot, role, held, cached in (("prefill-0", "prefill", 12, 300), ("decode-0", "decode", 96, 150)):
        Worker.objects.update_or_create(
            slot=slot,
            defaults={
                "epoch": 3,
                "state": WorkerState.READY,
                "roles": [role],
                "model": MODEL,
                "layout": LAYOUT.to_json(),
                "host": "kitchen",
                "pid": 4242,
                "device": "cpu",
                "arena": f"{slot}.3",
                "started_at": now,
                "lease_until": now + timedelta(seconds=4),
                "pool": {"free": 1020 - held - cached, "cached": cached, "held": held, "quarantined": 4, "total": 1024},
                "load": {"running": 3, "max_running": 32},
            },
        )
    for name in ("dispatcher", "reaper", "ingest"):
        beat(name)
