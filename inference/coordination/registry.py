"""Service discovery: worker slots, their leases, and who holds them.

A lease lives four seconds by the database's clock and is renewed each second, but only while the engine loop makes progress. Only
`worker_expire` (the reaper) and `worker_died` (a supervisor that saw the process end) take a slot away.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from django.db import transaction
from psycopg.types.json import Jsonb

from inference.contracts import KVLayout, PoolCounters
from inference.coordination.models import Worker, WorkerState
from inference.database import QUEUE_CHANNEL, execute, notify, query, query_one

LEASE_S = 4


class SlotTaken(RuntimeError):
    """Another live process holds this slot."""

    code = "slot_taken"


def worker_register(
    *,
    slot: str,
    roles: tuple[str, ...],
    model: str,
    layout: KVLayout,
    device: str,
    arena: str,
    pool: PoolCounters,
    load: dict[str, Any],
) -> int:
    """Takes the slot and answers the new worker epoch. `arena` may hold `{epoch}`. Raises SlotTaken while a lease is alive."""
    row = query_one(
        """
        INSERT INTO coordination_worker AS w
               (slot, epoch, state, roles, model, layout, host, pid, device, arena, started_at, lease_until, pool, load)
        VALUES (%s, 1, 'ready', %s, %s, %s, %s, %s, %s, replace(%s, '{epoch}', '1'), clock_timestamp(),
                clock_timestamp() + make_interval(secs => %s), %s, %s)
        ON CONFLICT (slot) DO UPDATE
           SET epoch = w.epoch + 1, state = 'ready', roles = excluded.roles, model = excluded.model, layout = excluded.layout,
               host = excluded.host, pid = excluded.pid, device = excluded.device,
               arena = replace(%s, '{epoch}', (w.epoch + 1)::text),
               started_at = excluded.started_at, progress_at = excluded.started_at, lease_until = excluded.lease_until,
               pool = excluded.pool, load = excluded.load
         WHERE w.state = 'dead' OR w.lease_until < clock_timestamp()
     RETURNING epoch
        """,
        [
            slot,
            list(roles),
            model,
            Jsonb(layout.to_json()),
            socket.gethostname(),
            os.getpid(),
            device,
            arena,
            LEASE_S,
            Jsonb(pool.to_json()),
            Jsonb(load),
            arena,
        ],
    )
    if row is None:
        raise SlotTaken(f"worker slot {slot} is held by a live process; its lease ends {LEASE_S} s after that process stops")
    return int(row[0])


def worker_renew(*, slot: str, epoch: int, pool: PoolCounters, load: dict[str, Any], idle_s: float = 0.0) -> bool:
    """False: the lease was lost, and this process must stop emitting. `idle_s`: since the engine loop last came round."""
    changed = execute(
        """
        UPDATE coordination_worker
           SET lease_until = clock_timestamp() + make_interval(secs => %s), pool = %s, load = %s,
               progress_at = clock_timestamp() - make_interval(secs => %s)
         WHERE slot = %s AND epoch = %s AND state <> 'dead'
        """,
        [LEASE_S, Jsonb(pool.to_json()), Jsonb(load), idle_s, slot, epoch],
    )
    return changed == 1


def worker_drain(*, slot: str, epoch: int) -> None:
    """No new work; what runs goes on."""
    Worker.objects.filter(slot=slot, epoch=epoch, state=WorkerState.READY).update(state=WorkerState.DRAINING)


def model_drain(model: str) -> None:
    """Nobody serves the model any more: its workers take no new work until they are started again."""
    Worker.objects.filter(model=model, state=WorkerState.READY).update(state=WorkerState.DRAINING)


def worker_leave(*, slot: str, epoch: int) -> None:
    """A clean stop: the slot is free at once."""
    with transaction.atomic():
        Worker.objects.filter(slot=slot, epoch=epoch).update(state=WorkerState.DEAD)
        notify(QUEUE_CHANNEL)


def worker_died(*, slot: str, pid: int) -> bool:
    """A supervisor saw the process end: no need to wait for the lease. The reaper takes its requests back."""
    with transaction.atomic():
        changed = Worker.objects.filter(slot=slot, pid=pid, host=socket.gethostname()).update(state=WorkerState.DEAD)
        notify(QUEUE_CHANNEL)
    return changed == 1


def worker_expire() -> list[str]:
    """Marks the workers dead whose lease has ended, by the database's clock."""
    rows = query(
        "UPDATE coordination_worker SET state = 'dead' WHERE state <> 'dead' AND lease_until < clock_timestamp() RETURNING slot"
    )
    return [row[0] for row in rows]
