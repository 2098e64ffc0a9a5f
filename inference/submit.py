"""The control plane's only door to inference: submit a request, cancel a request."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from functools import partial

from redis.exceptions import RedisError

from inference.contracts import ErrorEntry, Submission
from inference.database import tenant_scope
from inference.requests.models import State
from inference.requests.transitions import request_cancel_flag, request_create, request_end_unowned
from inference.streams import Signals, StreamWriter

log = logging.getLogger(__name__)

CANCELLED = "request_cancelled"
CANCELLED_MESSAGE = "The request was cancelled."

# Why: the first that was given stands in the request's last event.
CLIENT_GONE = "client_gone"
CLIENT_ASKED = "client_asked"
GATEWAY_GONE = "gateway_gone"

News = list[Callable[[], None]]  # what Valkey's readers should hear of a change that is committed


def submit(submission: Submission) -> None:
    """Writes the queued row inside the caller's transaction; at its commit the dispatcher is told. The broker is not waited for."""
    request_create(submission)


def cancel(*, tenant_id: uuid.UUID, request_id: uuid.UUID, reason: str) -> bool:
    """Stops a request within an engine step. False: unknown to this tenant, or ended already. May be called any number of times."""
    news = cancel_write(tenant_id=tenant_id, request_id=request_id, reason=reason)
    tell(news or [])
    return news is not None


def cancel_write(*, tenant_id: uuid.UUID, request_id: uuid.UUID, reason: str) -> News | None:
    """Ends what waits, flags for its owner what runs; the caller tells the news after the commit. None: nothing to stop."""
    with tenant_scope(tenant_id):
        owner = request_cancel_flag(tenant_id=tenant_id, request_id=request_id, reason=reason)
        if owner == "":
            return end_waiting(request_id=request_id, state=State.CANCELLED, code=CANCELLED, message=CANCELLED_MESSAGE)
    return None if owner is None else [partial(Signals.shared().send, owner, "cancel", str(request_id))]


def end_waiting(*, request_id: uuid.UUID, state: State, code: str, message: str) -> News | None:
    """Ends a request that nobody owns. None where it does not wait."""
    ended = request_end_unowned(request_id=request_id, state=state, code=code, message=message)
    if ended is None:
        return None
    entry = (str(request_id), ErrorEntry(ended.epoch, code, message))
    news: News = [partial(StreamWriter.shared().write, [entry])]
    if ended.holder:
        news.append(partial(Signals.shared().send, ended.holder, "release", str(request_id)))
    return news


def tell(news: Iterable[Callable[[], None]]) -> None:
    """Best effort: rows are what counts, and workers and gateways look at them. A Valkey that hangs is waited for once."""
    try:
        for send in news:
            send()
    except RedisError as error:
        log.warning("cancels and ends are not announced: %s", error)
