"""KV operations that the control plane may call. First form: what the pools hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from inference.contracts import KVLayout, PoolCounters
from inference.coordination.models import Worker


@dataclass(frozen=True, slots=True)
class PoolReport:
    """One worker's pool in blocks, as of its last pulse (a second ago at most while it lives)."""

    slot: str
    worker_epoch: int
    state: str
    block_bytes: int
    running: int
    in_transfer: int
    pool: PoolCounters

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pool_reports() -> list[PoolReport]:
    return [
        PoolReport(
            slot=worker.slot,
            worker_epoch=worker.epoch,
            state=worker.state,
            block_bytes=KVLayout.from_json(worker.layout).block_bytes,
            running=worker.load.get("running", 0),
            in_transfer=worker.load.get("in_transfer", 0),
            pool=PoolCounters.from_json(worker.pool),
        )
        for worker in Worker.objects.order_by("slot")
    ]
