"""The life of one admitted request as the gateway sees it: entries in, one clean end, and never a silent one."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast

from django.db import InterfaceError, OperationalError
from django.db.models.functions import Now

from controlplane.errors import ApiError, Overloaded, RequestFailed
from controlplane.gateway import limits
from controlplane.gateway.runtime import Runtime
from controlplane.gateway.threads import in_database
from controlplane.keys.verification import KeyRecord
from inference.contracts import ErrorEntry, FinishEntry, FinishReason, TokenEntry
from inference.database import tenant_scope
from inference.requests.models import FINAL, InferenceRequest, State
from inference.streams import STREAM_LOST, Subscription
from inference.usage.models import Meter, UsageRow

log = logging.getLogger("brigade.gateway")

# What ends a request, as a status for clients that do not stream. Anything else is a 500.
STATUS_OF_END = {
    **dict.fromkeys(("context_length_exceeded", "kv_pool_too_small", "sampling_invalid", "token_id_invalid"), 400),
    "deadline_exceeded": 504,
    "request_expired": 504,
    "request_cancelled": 499,
    "no_workers": 503,
    "overloaded": 503,
}


@dataclass(frozen=True, slots=True)
class RowState:
    """Of a request's row. `overdue_s` is how long its deadline is past, by the database's clock."""

    state: str
    error_code: str
    error_message: str
    overdue_s: float
    finish: FinishEntry  # what the stream's last entry says, where the request is done


@dataclass(slots=True)
class Completion:
    """Owns an admitted request until its end: iterate `entries()` to FinishEntry, or get an ApiError; `close()` always."""

    runtime: Runtime
    key: KeyRecord
    request_id: uuid.UUID
    subscription: Subscription
    unused_tokens: int  # of max_tokens: what the rate limiter gets back
    heard_tokens: int = 0
    ended: bool = False
    closed: bool = False

    async def entries(self) -> AsyncGenerator[TokenEntry | FinishEntry | Literal["silence"], None]:
        """`silence` comes when nothing else did for KEEP_ALIVE_S. Raises RequestFailed at the request's other ends."""
        spoke = time.monotonic()
        end: ApiError | FinishEntry | None = None  # what the row says, while the stream's own last entry may still be on its way
        while not self.ended:
            try:
                entry = await self.subscription.next(limits.LAST_ENTRY_S if end else min(limits.SILENCE_S, limits.KEEP_ALIVE_S))
            except TimeoutError:
                if isinstance(end, FinishEntry):
                    yield self._heard(end)
                    return
                if end is not None:
                    raise end from None
                end = await self._end_by_row()
                if time.monotonic() - spoke >= limits.KEEP_ALIVE_S:
                    spoke = time.monotonic()
                    yield "silence"
                continue
            spoke, end = time.monotonic(), None
            yield self._heard(entry)

    def _heard(self, entry: TokenEntry | FinishEntry | ErrorEntry) -> TokenEntry | FinishEntry:
        if isinstance(entry, ErrorEntry):
            self.ended = entry.code != STREAM_LOST
            raise _failed(entry.code, entry.message)
        if isinstance(entry, FinishEntry):
            self.ended = True
        else:
            self.unused_tokens -= len(entry.ids)
            self.heard_tokens += len(entry.ids)
        return entry

    async def _end_by_row(self) -> ApiError | FinishEntry | None:
        """The stream may have lost its end: the row knows. A worker that died right after its commit told nobody.

        While the database is away nothing is known: the stream waits on.
        """
        try:
            row = await in_database(request_row_state, self.key.tenant_id, self.request_id)
        except (OperationalError, InterfaceError, Overloaded) as error:
            log.warning("the row of %s cannot be read: %s", self.request_id, error)
            return None
        if row is not None and row.state == State.DONE and row.finish.completion_tokens == self.heard_tokens:
            return row.finish
        if row is None or row.state == State.DONE:
            return _failed(STREAM_LOST, "The end of the stream was lost; repeat the request.")
        if row.state in FINAL:
            return _failed(row.error_code or row.state, row.error_message or "The request did not finish.")
        if row.overdue_s > limits.DEADLINE_GRACE_S:
            return _failed("deadline_exceeded", "The request did not finish before its deadline.")
        return None

    def close(self) -> None:
        """Frees what the request holds here and stops it where it still runs. Does not wait: a cancelled task may call it."""
        if self.closed:
            return
        self.closed = True
        self.subscription.close()
        self.runtime.open_requests -= 1
        if not self.ended:
            self.runtime.cancels.put(self.key.tenant_id, self.request_id)
        self.runtime.background(
            self.runtime.limiter.release(self.key, request_id=self.request_id, unused_tokens=self.unused_tokens)
        )


def _failed(code: str, message: str) -> ApiError:
    return RequestFailed(message, code=code, status=STATUS_OF_END.get(code, 500))


def request_row_state(tenant_id: uuid.UUID, request_id: uuid.UUID) -> RowState | None:
    with tenant_scope(tenant_id):
        row = InferenceRequest.objects.filter(id=request_id, tenant_id=tenant_id).annotate(now=Now()).first()
        if row is None:
            return None
        cached = UsageRow.objects.filter(tenant_id=tenant_id, request_id=request_id, meter=Meter.PREFILL_CACHED)
        cached_tokens = sum(cached.values_list("quantity", flat=True))
    now: datetime = row.now
    reasons = cast(tuple[FinishReason, ...], tuple(row.finish_reasons))
    finish = FinishEntry(row.epoch, reasons, row.prompt_tokens, cached_tokens, row.completion_tokens)
    return RowState(row.state, row.error_code, row.error_message, (now - row.deadline_at).total_seconds(), finish)
