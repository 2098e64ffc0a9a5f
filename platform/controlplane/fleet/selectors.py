"""What operators and the gateway ask about the machines: who is alive, who made progress. Ages are by the database's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Now

from inference.coordination.models import Heartbeat, Worker, WorkerState

NEEDED_HEARTBEATS = ("dispatcher", "reaper", "ingest")
NEEDED_ROLES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class LiveWorker:
    slot: str
    model: str
    roles: tuple[str, ...]
    idle_s: float  # since its engine loop last came round


@dataclass(frozen=True, slots=True)
class Fleet:
    workers: tuple[LiveWorker, ...] = ()
    heartbeat_age_s: dict[str, float] = field(default_factory=dict)
    waiting: int = 0  # requests in the queue, as the dispatcher last counted them

    def serves(self, model: str) -> bool:
        return any(worker.model == model for worker in self.workers)

    def slots(self, role: str, *, idle_s: float) -> list[str]:
        """Of workers that made progress within `idle_s`."""
        return [worker.slot for worker in self.workers if role in worker.roles and worker.idle_s <= idle_s]


def fleet() -> Fleet:
    idle = ExpressionWrapper(Now() - F("progress_at"), output_field=DurationField())
    rows = Worker.objects.filter(state=WorkerState.READY, lease_until__gt=Now()).annotate(idle=idle).order_by("slot")
    age = ExpressionWrapper(Now() - F("at"), output_field=DurationField())
    beats = {beat.name: (beat.age.total_seconds(), beat.detail) for beat in Heartbeat.objects.annotate(age=age)}
    return Fleet(
        workers=tuple(LiveWorker(row.slot, row.model, tuple(row.roles), row.idle.total_seconds()) for row in rows),
        heartbeat_age_s={name: age_s for name, (age_s, _) in beats.items()},
        waiting=_waiting(beats.get("dispatcher", (0.0, {}))[1]),
    )


def _waiting(detail: Any) -> int:
    value = detail.get("waiting", 0) if isinstance(detail, dict) else 0
    return value if isinstance(value, int) else 0


def readiness(now: Fleet, *, heartbeat_s: float) -> tuple[bool, dict[str, Any]]:
    """Whether a request would be served now, and the parts of the answer. A part is ready when it made progress lately."""
    parts: dict[str, Any] = {}
    for name in NEEDED_HEARTBEATS:
        age_s = now.heartbeat_age_s.get(name)
        parts[name] = {"ready": age_s is not None and age_s <= heartbeat_s, "age_s": None if age_s is None else round(age_s, 1)}
    for role in NEEDED_ROLES:
        slots = now.slots(role, idle_s=heartbeat_s)
        parts[role] = {"ready": bool(slots), "workers": len(slots)}
    return all(part["ready"] for part in parts.values()), parts
