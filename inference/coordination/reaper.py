"""Takes back what the dead held. Only this, and a supervisor that saw a process end, ends a lease; time is the database's.

Any number of reapers may run: every step is a conditional update, so two of them share the work and never do it twice.
"""

from __future__ import annotations

import logging
import uuid

from redis.exceptions import RedisError

from inference.contracts import ErrorEntry
from inference.coordination.heartbeat import beat
from inference.coordination.registry import worker_expire
from inference.database import query
from inference.kvdirectory.services import extents_forget
from inference.requests.models import State
from inference.requests.transitions import request_end_unowned, request_requeue
from inference.streams import StreamWriter
from inference.submit import CANCELLED, CANCELLED_MESSAGE

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
BATCH = 200

EXPIRED, EXPIRED_MESSAGE = "deadline_exceeded", "The request did not finish before its deadline."
EXHAUSTED, EXHAUSTED_MESSAGE = "server_error", "The request failed repeatedly on our side. It was not charged; please try again."


def reap() -> dict[str, int]:
    """One round. Answers what was done, by kind."""
    done = {
        "workers_dead": len(worker_expire()),
        "requeued": _requeue_orphans(),
        "ended": _end_waiting(),
        "extents_forgotten": _forget_extents(),
    }
    beat("reaper", **done)
    return done


def _requeue_orphans() -> int:
    """Requests whose owner is dead or was replaced, and ready ones whose pages died with their worker."""
    orphans = query(
        """
        SELECT r.id, r.owner, r.owner_epoch, r.attempt, r.epoch
          FROM inference_request r
          LEFT JOIN kv_handoff h ON h.request_id = r.id AND h.released_at IS NULL
          LEFT JOIN coordination_worker w
                 ON w.slot = CASE r.state WHEN 'ready' THEN h.worker ELSE r.owner END
                AND w.epoch = CASE r.state WHEN 'ready' THEN h.worker_epoch ELSE r.owner_epoch END
                AND w.state <> 'dead'
         WHERE r.state IN ('prefilling', 'decoding', 'ready') AND w.slot IS NULL
         LIMIT %s
        """,
        [BATCH],
    )
    return sum(_take_back(*orphan) for orphan in orphans)


def _take_back(request_id: uuid.UUID, owner: str | None, owner_epoch: int | None, attempt: int, epoch: int) -> bool:
    requeued = request_requeue(request_id=request_id, owner=owner, owner_epoch=owner_epoch, detail=f"lost {owner or 'pages'}")
    if requeued is None:
        return False
    log.warning("request %s: %s is gone; back to the queue", request_id, owner or "its prefill worker")
    if attempt >= MAX_ATTEMPTS:
        _end(request_id, State.FAILED, EXHAUSTED, EXHAUSTED_MESSAGE)
    return True


def _end_waiting() -> int:
    """Waiting requests that were cancelled or are over their deadline. Running ones are ended by their owner."""
    overdue = query(
        """
        SELECT id, cancel_requested_at IS NOT NULL FROM inference_request
         WHERE state IN ('queued', 'ready') AND (cancel_requested_at IS NOT NULL OR deadline_at < clock_timestamp())
         LIMIT %s
        """,
        [BATCH],
    )
    ended = 0
    for request_id, cancelled in overdue:
        if cancelled:
            ended += _end(request_id, State.CANCELLED, CANCELLED, CANCELLED_MESSAGE)
        else:
            ended += _end(request_id, State.EXPIRED, EXPIRED, EXPIRED_MESSAGE)
    return ended


def _end(request_id: uuid.UUID, state: State, code: str, message: str) -> bool:
    epoch = request_end_unowned(request_id=request_id, state=state, code=code, message=message)
    if epoch is None:
        return False
    try:
        StreamWriter.shared().write([(str(request_id), ErrorEntry(epoch, code, message))])
    except RedisError as error:
        log.warning("request %s ended as %s, its stream does not say so: %s", request_id, code, error)
    return True


def _forget_extents() -> int:
    """Directory rows of processes that are gone."""
    stale = query(
        """
        SELECT e.worker, max(e.worker_epoch) FROM kv_extent e
          LEFT JOIN coordination_worker w ON w.slot = e.worker AND w.epoch = e.worker_epoch AND w.state <> 'dead'
         WHERE w.slot IS NULL GROUP BY e.worker
        """,
        [],
    )
    return sum(extents_forget(worker=worker, worker_epoch=epoch) for worker, epoch in stale)
