"""The dispatcher: one leader offers waiting requests to workers that have room.

The queue is the table of requests; nothing is kept here that a successor would need. Woken by NOTIFY, and every 200 ms in any case.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from celery import current_app
from django.db import connection

from inference import failpoints
from inference.coordination.configuration import Configuration
from inference.coordination.heartbeat import beat
from inference.coordination.leases import lease_drop, lease_take
from inference.coordination.metrics import LOST, RENEWALS
from inference.database import QUEUE_CHANNEL, execute, query
from inference.kvdirectory.extents import extent_digests
from inference.kvdirectory.selectors import overlap_by_worker
from inference.requests.claims import request_offer
from inference.requests.models import State
from inference.scheduling.metrics import LEADS, OFFERS, PASS
from inference.scheduling.placement import Placement, Waiting, WorkerView, place_decode, place_prefill

log = logging.getLogger(__name__)

LEASE_S = 3.0
RENEW_S = 0.5
POLL_S = 0.2
BATCH = 64  # requests of a model looked at in a pass
CLAIM_TASK = "inference.claim"


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A waiting request with what its placement needs."""

    id: uuid.UUID
    state: State
    epoch: int
    decode_worker: str | None
    source: str
    waiting: Waiting


class Dispatcher:
    """`run` until `stop`. Any number may run; one leads."""

    def __init__(self) -> None:
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._stop = threading.Event()
        self._configuration = Configuration()
        self._held_fence: int | None = None
        self._renewed_at = float("-inf")

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        execute("SET synchronous_commit = off")  # an offer that a crash forgets is made again
        with _listener() as listener:
            while not self._stop.is_set():
                fence = self._fence()
                if fence is not None:
                    with PASS.time():
                        self.dispatch(fence)
                _wait(listener, POLL_S)
        lease_drop(name="dispatcher", holder=self.holder)

    def _fence(self) -> int | None:
        """The fence of this process's office, renewed twice a second; None for a standby."""
        if time.monotonic() - self._renewed_at > RENEW_S:
            held, self._held_fence = self._held_fence, lease_take(name="dispatcher", holder=self.holder, seconds=LEASE_S)
            self._renewed_at = time.monotonic()
            self._note_office(held)
            if self._held_fence is not None:
                beat("dispatcher", holder=self.holder, waiting=queue_length())
        return self._held_fence

    def _note_office(self, held: int | None) -> None:
        LEADS.set(self._held_fence is not None)
        RENEWALS.labels("dispatcher").inc(self._held_fence is not None)
        LOST.labels("dispatcher").inc(held is not None and held != self._held_fence)

    def dispatch(self, fence: int) -> int:
        """One pass over the queue. Answers the number of offers made."""
        if self._configuration["scheduling.paused"]:
            return 0
        workers = workers_read()
        rows = queue_read(sorted({worker.model for worker in workers}), BATCH)
        return sum(self._dispatch_one(row, workers, fence) for row in rows)

    def _dispatch_one(self, row: QueueRow, workers: list[WorkerView], fence: int) -> bool:
        placement = self._place(row, workers)
        if placement is None:
            return False
        failpoints.reach("dispatcher.offer")
        offered = request_offer(
            request_id=row.id,
            state=row.state,
            epoch=row.epoch,
            fence=fence,
            slot=placement.slot,
            path=placement.path,
            path_reason=placement.reason,
            decode_worker=placement.decode_worker,
        )
        if offered:
            OFFERS.labels(row.state).inc()
            _charge(row, placement, workers)
            _send(row, placement.slot)
        return offered

    def _place(self, row: QueueRow, workers: list[WorkerView]) -> Placement | None:
        if row.state == State.READY:
            return place_decode(row.waiting, workers, reserved=row.decode_worker, source=row.source)
        overlap = _overlap(row, [worker for worker in workers if worker.model == row.waiting.model and "prefill" in worker.roles])
        policy = row.waiting.path_policy
        if policy == "auto":
            policy = self._configuration["scheduling.path"]
        waiting = Waiting(row.waiting.model, row.waiting.prompt_tokens, row.waiting.max_tokens, policy, row.waiting.choices)
        return place_prefill(waiting, workers, overlap)


def _send(row: QueueRow, slot: str) -> None:
    copies = {"drop": 0, "duplicate": 2}.get(failpoints.reach("dispatcher.send"), 1)
    for _ in range(copies):
        current_app.send_task(CLAIM_TASK, args=[str(row.id), str(row.state), row.epoch], queue=slot, ignore_result=True)


def _overlap(row: QueueRow, candidates: list[WorkerView]) -> dict[str, int]:
    """Cached tokens of the prompt on each candidate; one candidate needs no look-up."""
    if len(candidates) < 2:
        return {}
    [(prompt_ids, salt)] = query("SELECT prompt_ids, scope_salt FROM inference_request_body WHERE request_id = %s", [row.id])
    model, revision = row.waiting.model, candidates[0].revision
    return overlap_by_worker(extent_digests(prompt_ids, scope_salt=bytes(salt), model=model, revision=revision))


def _charge(row: QueueRow, placement: Placement, workers: list[WorkerView]) -> None:
    """Counts an offer against its workers at once: the next request of this pass must see it."""
    by_slot, waiting = {worker.slot: worker for worker in workers}, row.waiting
    if row.state == State.QUEUED:
        split = placement.path == "split"
        by_slot[placement.slot].take(waiting.prompt_blocks if split else waiting.whole_blocks, waiting.choices)
        if split and placement.decode_worker:
            by_slot[placement.decode_worker].take(waiting.whole_blocks, waiting.choices)
    elif placement.slot != row.decode_worker:
        by_slot[placement.slot].take(waiting.whole_blocks, waiting.choices)


def queue_length() -> int:
    [(waiting,)] = query("SELECT count(*) FROM inference_request WHERE state = 'queued'")
    return int(waiting)


def queue_read(models: Sequence[str], limit: int) -> list[QueueRow]:
    """What waits and is not on offer: by class, then by age. `limit` counts for each model: none stands in another's way."""
    rows = query(
        """
        SELECT r.id, r.state, r.epoch, r.decode_worker, coalesce(h.worker, ''), r.model, r.prompt_tokens, r.max_tokens,
               coalesce(r.policy->>'path', 'auto'), r.choices
          FROM unnest(%s::text[]) AS served(model)
          CROSS JOIN LATERAL (
                SELECT * FROM inference_request
                 WHERE model = served.model AND state IN ('queued', 'ready') AND cancel_requested_at IS NULL
                   AND (offered_until IS NULL OR offered_until < clock_timestamp())
                 ORDER BY (state = 'ready') DESC, priority, created_at
                 LIMIT %s
                ) AS r
          LEFT JOIN kv_handoff h ON h.request_id = r.id AND h.released_at IS NULL
         ORDER BY (r.state = 'ready') DESC, r.priority, r.created_at
        """,
        [list(models), limit],
    )
    return [_queue_row(*row) for row in rows]


def _queue_row(
    request_id: uuid.UUID,
    state: str,
    epoch: int,
    decode_worker: str | None,
    source: str,
    model: str,
    prompt_tokens: int,
    max_tokens: int,
    path: Any,
    choices: int,
) -> QueueRow:
    waiting = Waiting(model, prompt_tokens, max_tokens, path, choices)
    return QueueRow(request_id, State(state), epoch, decode_worker, source, waiting)


def workers_read() -> list[WorkerView]:
    """Live workers, with what they own, were promised, or have reserved."""
    rows = query(
        """
        WITH load AS (
            SELECT slot, sum(r.choices)::int AS choices,
                   sum((r.prompt_tokens + r.choices * least(r.max_tokens, 256) + 15) / 16) AS blocks
              FROM inference_request r
             CROSS JOIN LATERAL (
                    SELECT r.owner AS slot WHERE r.owner IS NOT NULL
                     UNION SELECT r.offered_to WHERE r.offered_until > clock_timestamp()
                     UNION SELECT r.decode_worker WHERE r.decode_worker IS NOT NULL
                     UNION SELECT h.worker FROM kv_handoff h WHERE h.request_id = r.id AND h.released_at IS NULL
                   ) AS slots
             WHERE r.finished_at IS NULL
             GROUP BY slot
        )
        SELECT w.slot, w.roles, w.model, w.layout->>'revision', (w.pool->>'total')::int, (w.load->>'max_running')::int,
               coalesce(l.choices, 0), coalesce(l.blocks, 0)::int
          FROM coordination_worker w LEFT JOIN load l ON l.slot = w.slot
         WHERE w.state = 'ready' AND w.lease_until > clock_timestamp()
         ORDER BY w.slot
        """
    )
    return [
        WorkerView(slot, frozenset(roles), model, revision, total, max_running, assigned, blocks)
        for slot, roles, model, revision, total, max_running, assigned, blocks in rows
    ]


def _listener() -> psycopg.Connection[Any]:
    parameters = connection.get_connection_params()
    wanted = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if parameters.get(name)}
    listener = psycopg.connect(**wanted, autocommit=True, application_name="brigade dispatcher listener")
    listener.execute(f"LISTEN {QUEUE_CHANNEL}")
    return listener


def _wait(listener: psycopg.Connection[Any], timeout_s: float) -> None:
    """Until something is queued or the time is over; several notifications wake it once."""
    for _ in listener.notifies(timeout=timeout_s, stop_after=1):
        pass
