"""Requests that nobody waits for any more: every one is cancelled, however many at once and however busy the database is."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from contextvars import Context

from django.db import Error

from controlplane.errors import ApiError
from controlplane.gateway import limits
from controlplane.gateway.threads import in_database
from inference.submit import CLIENT_GONE, News, cancel_write, tell

log = logging.getLogger("brigade.gateway")

Wanted = tuple[uuid.UUID, uuid.UUID, str]  # tenant, request, reason


class Cancels:
    """A queue with one worker. It asks for one thread at a time, so a storm of cancels does not crowd out new requests."""

    def __init__(self) -> None:
        self.reason = CLIENT_GONE  # of what is put from now on
        self._wanted: deque[Wanted] = deque()
        self._worker: asyncio.Task[None] | None = None

    def put(self, tenant_id: uuid.UUID, request_id: uuid.UUID) -> None:
        self._wanted.append((tenant_id, request_id, self.reason))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="cancels", context=Context())  # of no one request

    async def drained(self, timeout_s: float) -> None:
        """At the end of the process: what it leaves undone would run on to the request's own end."""
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=timeout_s)

    async def _work(self) -> None:
        while self._wanted:
            batch = [self._wanted.popleft() for _ in range(min(len(self._wanted), limits.CANCELS_AT_ONCE))]
            undone = await self._try(batch)
            self._wanted.extendleft(reversed(undone))
            if undone:
                await asyncio.sleep(limits.CANCEL_RETRY_S)

    async def _try(self, batch: list[Wanted]) -> list[Wanted]:
        try:
            return await in_database(_cancel_all, batch)
        except (ApiError, Error) as error:  # too busy, or away
            log.warning("%d cancels wait: %s", len(batch), error)
            return batch


def _cancel_all(batch: list[Wanted]) -> list[Wanted]:
    """Answers those that could not be cancelled now. All rows first: a Valkey that hangs must not hold up what counts."""
    undone: list[Wanted] = []
    news: News = []
    for tenant_id, request_id, reason in batch:
        try:
            news += cancel_write(tenant_id=tenant_id, request_id=request_id, reason=reason) or []
        except Error as error:
            log.warning("cancel of %s waits: %s", request_id, error)
            undone.append((tenant_id, request_id, reason))
    tell(news)
    return undone
