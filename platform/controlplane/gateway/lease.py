"""This process among the gateways: an identity with a lease, which every admitted request carries.

Where the process ends or freezes, its lease runs out and the reaper cancels what it left open. A process that comes back too late
is a new one: its old requests have ended, and their streams say so.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextvars import Context
from typing import ParamSpec, TypeVar

from django.db import Error

from controlplane.errors import ApiError
from controlplane.gateway import limits, threads
from inference.coordination.gateways import gateway_leave, gateway_register, gateway_renew
from inference.coordination.metrics import RENEWALS

log = logging.getLogger("brigade.gateway")
P = ParamSpec("P")
R = TypeVar("R")


class Lease:
    """Belongs to one event loop, and is renewed only while that loop turns."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._id: uuid.UUID | None = None
        self._sure_until = float("-inf")  # by this process's clock, which counts from before the statement
        self._asking = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def holder(self) -> uuid.UUID:
        """The identity that a request may carry. Raises what the database raises: without a lease nothing is admitted."""
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_always(), name="gateway lease", context=Context())
        if (sure := self._sure()) is not None:
            return sure  # no request waits for a renewal
        async with self._asking:
            if self._sure() is None:
                await self._renew()
        assert self._id is not None
        return self._id

    def _sure(self) -> uuid.UUID | None:
        return self._id if time.monotonic() < self._sure_until else None

    async def drop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        if self._id is None:
            return
        try:
            async with asyncio.timeout(limits.LEASE_DROP_S):
                await _in_own_thread(gateway_leave, gateway_id=self._id)
        except (Error, ApiError, TimeoutError) as error:
            log.warning("the lease of this gateway runs out by itself: %s", error)

    async def _renew_always(self) -> None:
        while True:
            await asyncio.sleep(limits.LEASE_RENEW_S)
            try:
                async with self._asking:
                    await self._renew()
            except Exception as error:  # whatever it is: a task that ends here would cost every stream its life
                log.warning("the lease of this gateway is not renewed: %s: %s", type(error).__name__, error)

    async def _renew(self) -> None:
        asked_at = time.monotonic()
        if self._id is not None and not await _in_own_thread(gateway_renew, gateway_id=self._id, lease_s=self._seconds):
            log.error("gateway %s lost its lease; what it had open is cancelled", self._id)
            self._id = None
        if self._id is None:
            self._id = await _in_own_thread(gateway_register, lease_s=self._seconds)
        self._sure_until = asked_at + self._seconds
        RENEWALS.labels("gateway").inc()


async def _in_own_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return await threads.lease.run(threads.with_connection(function), *args, **kwargs)
