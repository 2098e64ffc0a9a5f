"""Takes back what the dead held. Only this, and a supervisor that saw a process end, ends a lease; time is the database's.

Any number of reapers may run: every step is a conditional update, so two of them share the work and never do it twice.
"""

from __future__ import annotations

import logging
import uuid

from django.conf import settings

from inference.coordination.gateways import gateways_expire, gateways_spare, requests_without_gateway
from inference.coordination.heartbeat import beat, beat_age_s
from inference.coordination.metrics import reaped
from inference.coordination.registry import worker_expire
from inference.database import query
from inference.kvdirectory.services import extents_forget
from inference.requests.models import State
from inference.requests.transitions import request_requeue
from inference.submit import CANCELLED, CANCELLED_MESSAGE, GATEWAY_GONE, News, cancel_write, end_waiting, tell

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
BATCH = 200
WATCH_GAP_S = 3.0  # no round for so long: nobody watched

EXPIRED, EXPIRED_MESSAGE = "deadline_exceeded", "The request did not finish before its deadline."
EXHAUSTED, EXHAUSTED_MESSAGE = "server_error", "The request failed repeatedly on our side. It was not charged; please try again."


def reap() -> dict[str, int]:
    """One round. Answers what was done, by kind."""
    news: News = []
    done = {
        "workers_dead": len(worker_expire()),
        "gateways_gone": _expire_gateways(),
        "requeued": _requeue_orphans(news),
        "cancelled": _cancel_abandoned(news),
        "ended": _end_waiting(news),
        "extents_forgotten": _forget_extents(),
    }
    tell(news)
    beat("reaper", **done)
    reaped(done)
    return done


def _expire_gateways() -> int:
    """A request that is cancelled cannot be called back, so a lease counts only where somebody watched it run out."""
    age_s = beat_age_s("reaper")
    if age_s is None or age_s > WATCH_GAP_S:
        gateways_spare(lease_s=settings.GATEWAY_LEASE_S)
        return 0
    return gateways_expire()


def _cancel_abandoned(news: News) -> int:
    """Nobody waits for these any more: they stop, and what was generated until now is billed."""
    abandoned = requests_without_gateway(BATCH)
    for tenant_id, request_id in abandoned:
        log.warning("request %s: the gateway that waited for it is gone; it is cancelled", request_id)
        news += cancel_write(tenant_id=tenant_id, request_id=request_id, reason=GATEWAY_GONE) or []
    return len(abandoned)


def _requeue_orphans(news: News) -> int:
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
    return sum(_take_back(news, *orphan) for orphan in orphans)


def _take_back(news: News, request_id: uuid.UUID, owner: str | None, owner_epoch: int | None, attempt: int, epoch: int) -> bool:
    requeued = request_requeue(request_id=request_id, owner=owner, owner_epoch=owner_epoch, detail=f"lost {owner or 'pages'}")
    if requeued is None:
        return False
    log.warning("request %s: %s is gone; back to the queue", request_id, owner or "its prefill worker")
    if attempt >= MAX_ATTEMPTS:
        _end(news, request_id, State.FAILED, EXHAUSTED, EXHAUSTED_MESSAGE)
    return True


def _end_waiting(news: News) -> int:
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
            ended += _end(news, request_id, State.CANCELLED, CANCELLED, CANCELLED_MESSAGE)
        else:
            ended += _end(news, request_id, State.EXPIRED, EXPIRED, EXPIRED_MESSAGE)
    return ended


def _end(news: News, request_id: uuid.UUID, state: State, code: str, message: str) -> bool:
    ended = end_waiting(request_id=request_id, state=state, code=code, message=message)
    news += ended or []
    return ended is not None


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
