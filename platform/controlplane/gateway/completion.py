"""The life of one admitted request as the gateway sees it: entries in, one clean end, and never a silent one."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, cast

from django.db import InterfaceError, OperationalError
from django.db.models.functions import Now

from controlplane.errors import ApiError, Overloaded, RequestFailed
from controlplane.gateway import limits, threads
from controlplane.gateway.runtime import Runtime
from controlplane.gateway.threads import in_database
from controlplane.gateway.watch import Watch
from controlplane.keys.verification import KeyRecord
from inference.contracts import ErrorEntry, FinishEntry, FinishReason, TokenEntry
from inference.database import tenant_scope
from inference.requests.models import FINAL, InferenceRequest, State
from inference.requests.token_log import token_log_read
from inference.streams import Subscription
from inference.text import AnswerText
from inference.transcript import DIFFERS, STREAM_LOST, Gap, Transcript
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


LOST = "Part of the stream was lost; repeat the request."
OVERDUE = "deadline_exceeded"
ENDS_OF_OURS = (STREAM_LOST, OVERDUE)  # the gateway gives up, though the request may run

Heard = TokenEntry | FinishEntry | ErrorEntry
Entry = TokenEntry | FinishEntry | Literal["silence"]


@dataclass(frozen=True, slots=True)
class RowState:
    """Of a request's row, and its token log. `overdue_s` is how long its deadline is past, by the database's clock."""

    state: str
    error_code: str
    error_message: str
    overdue_s: float
    finish: FinishEntry  # what the stream's last entry says, where the request is done
    logged: Transcript


Left = Literal["cancel", "follow", "leave"]


@dataclass(slots=True)
class Completion:
    """Owns an admitted request until its end: iterate `entries()` to FinishEntry, or get an ApiError; `close()` always.

    `left` says what comes of a request whose client goes before its end. It is cancelled; or it runs on and is followed here, so
    that the limits learn of its end (its client may ask again); or it is left alone, because it belongs to another call.

    Entries come from the stream in Valkey. What it does not bring, for it is away, or forgot, or its writer died, comes from the
    request's row and its token log.
    """

    runtime: Runtime
    key: KeyRecord
    request_id: uuid.UUID
    subscription: Subscription
    new_answer: Callable[[], AnswerText]
    watch: Watch
    unused_tokens: int  # of max_tokens, over all choices: what the rate limiter gets back
    left: Left = "cancel"
    failure: type[RequestFailed] = RequestFailed
    place_id: uuid.UUID | None = None  # what the rate limiter calls it, where that is not the request's id
    ended: bool = False
    closed: bool = False
    _look: asyncio.Task[RowState | None] | None = None
    _answers: dict[int, AnswerText] = field(default_factory=dict)  # by choice: what tokens from the log make visible

    async def entries(self) -> AsyncGenerator[Entry, None]:
        """`silence` comes when nothing else did for KEEP_ALIVE_S. Raises RequestFailed at the request's other ends."""
        spoke = time.monotonic()
        look_first = self.left == "leave"  # it may have ended long ago
        while not self.ended:
            entry = None if look_first else await self._from_stream()
            look_first = False
            for number, heard in enumerate([entry] if entry else await self._from_database(), 1):
                spoke = time.monotonic()
                yield self._hear(heard)
                if number % limits.ANSWER_INLINE_TOKENS == 0:
                    await asyncio.sleep(0)  # others have their turn
            if time.monotonic() - spoke >= limits.KEEP_ALIVE_S:
                spoke = time.monotonic()
                yield "silence"

    async def _from_stream(self) -> Heard | None:
        """None where nothing came, or not what comes next."""
        try:
            entry = await self.subscription.next(limits.DEAF_POLL_S if self.subscription.deaf else limits.SILENCE_S)
        except TimeoutError:
            return None
        if not isinstance(entry, Gap):
            return entry
        await asyncio.sleep(limits.TOKEN_LOG_POLL_S)
        return None

    async def _from_database(self) -> list[Heard]:
        """What goes on from what was heard. While the database is away nothing is known: the stream waits on.

        One that hangs is left alone with its question, for tokens may come meanwhile.
        """
        self._look = self._look or asyncio.create_task(in_database(request_row_state, self.key.tenant_id, self.request_id))
        await asyncio.wait([self._look], timeout=limits.DATABASE_LOOK_S)
        if not self._look.done():
            return []
        look, self._look = self._look, None
        try:
            row = look.result()
        except (OperationalError, InterfaceError, Overloaded) as error:
            log.warning("the row of %s cannot be read: %s", self.request_id, error)
            return []
        if row is None:
            return [ErrorEntry(0, STREAM_LOST, LOST)]
        much = row.logged.count - self.subscription.transcript.count > limits.ANSWER_INLINE_TOKENS
        tokens = await threads.answers.run(self._from_log, row) if much else self._from_log(row)
        end = self._end_by_row(row)
        return [*tokens, end] if end else tokens

    def _from_log(self, row: RowState) -> list[Heard]:
        transcript = self.subscription.transcript
        entries: list[Heard] = []
        for choice, (ids, logprobs) in enumerate(zip(row.logged.ids, row.logged.logprobs, strict=True)):
            if not transcript.agrees(choice, 1, ids):
                return [ErrorEntry(row.finish.epoch, STREAM_LOST, DIFFERS)]
            answer = self._answers.setdefault(choice, self.new_answer())
            known = transcript.length(choice)
            for token_id in ids[answer.count : known]:
                answer.accept(token_id)
            for index, token_id in enumerate(ids[known:], known):
                text, told = answer.accept(token_id), logprobs[index : index + 1]
                entries.append(TokenEntry(row.finish.epoch, choice, index + 1, (token_id,), text, answer.finish_reason, told))
                transcript.append(choice, (token_id,), told)
        return entries

    def _end_by_row(self, row: RowState) -> FinishEntry | ErrorEntry | None:
        """A worker that died right after its last commit told nobody."""
        epoch = row.finish.epoch
        if row.state == State.DONE:
            whole = row.finish.completion_tokens == self.subscription.transcript.count
            return row.finish if whole else ErrorEntry(epoch, STREAM_LOST, LOST)
        if row.state in FINAL:
            return ErrorEntry(epoch, row.error_code or row.state, row.error_message or "The request did not finish.")
        if row.overdue_s > limits.DEADLINE_GRACE_S:
            return ErrorEntry(epoch, OVERDUE, "The request did not finish before its deadline.")
        return None

    def _hear(self, entry: Heard) -> TokenEntry | FinishEntry:
        if isinstance(entry, ErrorEntry):
            self.ended = entry.code not in ENDS_OF_OURS
            self.watch.failed(entry.code)
            raise self.failure(entry.message, code=entry.code, status=STATUS_OF_END.get(entry.code, 500))
        if isinstance(entry, FinishEntry):
            self.ended = True
            self.watch.finished(entry)
        else:
            self.unused_tokens -= len(entry.ids)
            self.watch.token()
        return entry

    def close(self) -> None:
        """Frees what the request holds here, as `left` says. Does not wait: a cancelled task may call it."""
        if self.closed:
            return
        self.closed = True
        if self.left == "follow" and not self.ended:
            self.runtime.background(self._follow())
        else:
            self._free()

    async def _follow(self) -> None:
        try:
            async for _ in self.entries():
                pass
        except ApiError as error:
            log.info("%s, which nobody waited for, ended: %s", self.request_id, error.code)
        finally:
            self._free()

    def _free(self) -> None:
        self.watch.gone()
        if self._look is not None:
            self._look.cancel()
        self.subscription.close()
        self.runtime.open_requests -= 1
        if self.left == "cancel" and not self.ended:
            self.runtime.cancels.put(self.key.tenant_id, self.request_id)
        place_id = self.place_id or self.request_id
        self.runtime.background(self.runtime.limiter.release(self.key, request_id=place_id, unused_tokens=self.unused_tokens))


def request_row_state(tenant_id: uuid.UUID, request_id: uuid.UUID) -> RowState | None:
    with tenant_scope(tenant_id):
        row = InferenceRequest.objects.filter(id=request_id, tenant_id=tenant_id).annotate(now=Now()).first()
        if row is None:
            return None
        cached = UsageRow.objects.filter(tenant_id=tenant_id, request_id=request_id, meter=Meter.PREFILL_CACHED)
        cached_tokens = sum(cached.values_list("quantity", flat=True))
        logged = token_log_read(tenant_id=tenant_id, request_id=request_id)
    now: datetime = row.now
    reasons = cast(tuple[FinishReason, ...], tuple(row.finish_reasons))
    finish = FinishEntry(row.epoch, reasons, row.prompt_tokens, cached_tokens, row.completion_tokens)
    return RowState(row.state, row.error_code, row.error_message, (now - row.deadline_at).total_seconds(), finish, logged)
