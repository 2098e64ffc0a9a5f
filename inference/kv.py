"""KV operations that the control plane may call. First form: what the pools hold."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from inference.contracts import KVLayout, PoolCounters
from inference.coordination.models import Worker


@dataclass(frozen=True, slots=True)
class PoolReport:
    """One worker's pool, as of its last pulse (a second ago at most while it lives)."""

    slot: str
    worker_epoch: int
    state: str
    block_bytes: int
    pool: PoolCounters
    lease_until: datetime


def pool_reports() -> list[PoolReport]:
    return [
        PoolReport(
            slot=worker.slot,
            worker_epoch=worker.epoch,
            state=worker.state,
            block_bytes=KVLayout.from_json(worker.layout).block_bytes,
            pool=PoolCounters.from_json(worker.pool),
            lease_until=worker.lease_until,
        )
        for worker in Worker.objects.order_by("slot")
    ]
