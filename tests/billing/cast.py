"""What billing's tests share: finished requests as workers leave them, and threads with connections of their own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

from django.db import connection

from inference.requests.models import InferenceRequest, State
from inference.usage.models import UNITS, Meter, UsagePending, UsageRow

T = TypeVar("T")

ACME = uuid.UUID(int=0xAC3E)
RIVAL = uuid.UUID(int=0x81A1)
PROJECT = uuid.UUID(int=0x9)
KEY = uuid.UUID(int=0xE)
MODEL = "m"
JUNE = datetime(2026, 6, 15, 12, tzinfo=UTC)
TOKENS = {Meter.PREFILL_COMPUTED: 100, Meter.PREFILL_CACHED: 32, Meter.DECODE: 7, Meter.KV_TOKEN_SECONDS: 1_234_567}


def usage_row(
    request_id: uuid.UUID,
    meter: Meter,
    quantity: int,
    *,
    tenant_id: uuid.UUID = ACME,
    at: datetime = JUNE,
    model: str = MODEL,
    billable: bool = True,
    sequence: int = 0,
) -> UsageRow:
    return UsageRow(
        request_id=request_id,
        attempt=1,
        meter=meter,
        cache_tier="device" if meter in (Meter.PREFILL_CACHED, Meter.KV_TOKEN_SECONDS) else "",
        sequence=sequence,
        tenant_id=tenant_id,
        project_id=PROJECT,
        key_id=KEY,
        model=model,
        service_tier="default",
        quantity=quantity,
        unit=UNITS[meter],
        billable=billable,
        occurred_at=at,
    )


def finished(
    used: dict[Meter, int] | None = None,
    *,
    tenant_id: uuid.UUID = ACME,
    at: datetime = JUNE,
    model: str = MODEL,
    billable: bool = True,
    request_id: uuid.UUID | None = None,
) -> uuid.UUID:
    """A finished request: its usage rows and the pending row."""
    request_id = request_id or uuid.uuid4()
    UsageRow.objects.bulk_create(
        usage_row(request_id, meter, quantity, tenant_id=tenant_id, at=at, model=model, billable=billable)
        for meter, quantity in (TOKENS if used is None else used).items()
    )
    UsagePending.objects.create(request_id=request_id, tenant_id=tenant_id, at=at)
    return request_id


def request_row(request_id: uuid.UUID, state: State, *, tenant_id: uuid.UUID = ACME) -> InferenceRequest:
    return InferenceRequest.objects.create(
        id=request_id,
        tenant_id=tenant_id,
        project_id=PROJECT,
        key_id=KEY,
        model=MODEL,
        service_tier="default",
        policy={},
        priority=100,
        stream=False,
        state=state,
        prompt_tokens=1,
        max_tokens=1,
        created_at=JUNE,
        deadline_at=JUNE,
        finished_at=JUNE,
    )


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """`work(0)` to `work(count - 1)` in threads that start together, each on its own connection."""
    gate = threading.Barrier(count)

    def run(number: int) -> T:
        try:
            gate.wait(timeout=20)
            return work(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))
