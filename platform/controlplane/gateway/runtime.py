"""What one gateway process holds while it runs: the stream reader, the limiter, and copies of slow things with an age limit."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from django.conf import settings

from billing.pricing.selectors import Tariff
from controlplane.admission.limiter import Limiter, limiter_connections
from controlplane.admission.services import tariff_now
from controlplane.catalog.models import ServedModel
from controlplane.catalog.selectors import served_models, service_tiers
from controlplane.errors import InternalError, ModelNotFound
from controlplane.fleet.selectors import Fleet, fleet
from controlplane.gateway import limits, threads
from controlplane.gateway.cancels import Cancels
from controlplane.gateway.fields import shown
from controlplane.gateway.lease import Lease
from controlplane.gateway.metrics import PENDING
from controlplane.gateway.threads import in_database
from controlplane.keys.verification import KeyRecord, key_record
from inference.contracts import ClassPolicy
from inference.streams import StreamReader
from inference.submit import GATEWAY_GONE
from inference.text import ModelText, TextError, open_text

log = logging.getLogger("brigade.gateway")
T = TypeVar("T")
K = TypeVar("K")

BACKGROUND_S = 5.0  # what works in the background has so long when the process ends


class Fresh(Generic[K, T]):
    """Copies that are younger than `ttl_s`. One load at a time for each key; a load that fails is not kept.

    For `stale_s` longer an old copy is still given, while a new one is on its way: nobody waits for what may be a little old.
    """

    def __init__(self, load: Callable[[K], Awaitable[T]], ttl_s: float, most: int = 1, *, stale_s: float = 0.0) -> None:
        self._load = load
        self._ttl_s = ttl_s
        self._stale_s = stale_s
        self._most = most
        self._kept: dict[K, tuple[float, T]] = {}
        self._loading: dict[K, asyncio.Task[T]] = {}

    async def get(self, key: K, *, stale_allowed: bool = True) -> T:
        kept = self._kept.get(key)
        now = time.monotonic()
        if kept is not None and now < kept[0]:
            return kept[1]
        task = self._loading.get(key)
        if task is None:
            task = self._loading[key] = asyncio.create_task(self._reload(key), context=Context())
            task.add_done_callback(_consume)
        if stale_allowed and kept is not None and now < kept[0] + self._stale_s:
            return kept[1]
        return await asyncio.shield(task)

    async def _reload(self, key: K) -> T:
        asked_at = time.monotonic()  # the copy is as old as the question
        try:
            value = await self._load(key)
        finally:
            del self._loading[key]
        if len(self._kept) >= self._most:
            self._kept.clear()
        self._kept[key] = (asked_at + self._ttl_s, value)
        return value


def _consume(task: asyncio.Task[Any]) -> None:
    """A refresh that nobody waits for may fail: the next caller tries again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a copy could not be refreshed: %s: %s", type(error).__name__, error)


class Catalogue:
    def __init__(self, models: list[ServedModel], tiers: dict[str, ClassPolicy]) -> None:
        self.models = {model.name: model for model in models}
        self.tiers = tiers


def _catalogue() -> Catalogue:
    return Catalogue(served_models(), service_tiers())


class Runtime:
    """Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.redis = limiter_connections(settings.REDIS_URL)
        self.limiter = Limiter(self.redis, lease_s=settings.GATEWAY_LEASE_S)
        self._renewing_places = loop.create_task(self.limiter.renew_always(), name="places")
        self.open_requests = 0
        for pool in (threads.database, threads.lease, threads.text):
            PENDING.labels(pool.name).set_function(partial(getattr, pool, "pending"))
        self.cancels = Cancels()
        self.lease = Lease(settings.GATEWAY_LEASE_S)
        self.catalogue: Fresh[None, Catalogue] = Fresh(
            lambda _: in_database(_catalogue), limits.CATALOGUE_CACHE_S, stale_s=limits.STALE_S
        )
        self.fleet: Fresh[None, Fleet] = Fresh(lambda _: in_database(fleet), limits.FLEET_CACHE_S, stale_s=limits.STALE_S)
        self.keys: Fresh[uuid.UUID, KeyRecord | None] = Fresh(
            lambda key_id: in_database(key_record, key_id), limits.KEY_CACHE_S, limits.KEY_CACHE_ROWS
        )
        self.tariffs: Fresh[tuple[str, str], Tariff] = Fresh(
            lambda sold: in_database(tariff_now, *sold), limits.CATALOGUE_CACHE_S, limits.TARIFF_CACHE_ROWS, stale_s=limits.STALE_S
        )
        self._reader: StreamReader | None = None
        self._starting = asyncio.Lock()
        self._texts: dict[tuple[str, datetime], asyncio.Task[ModelText]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    async def reader(self) -> StreamReader:
        async with self._starting:
            if self._reader is None:
                reader = StreamReader(settings.REDIS_URL)
                await reader.start()
                self._reader = reader
        return self._reader

    async def sold(self, find: Callable[[Catalogue], T | None]) -> T | None:
        """What the catalogue has. That it has not is never said of an old copy."""
        found = find(await self.catalogue.get(None))
        return found if found is not None else find(await self.catalogue.get(None, stale_allowed=False))

    async def model(self, name: str) -> ServedModel:
        """Raises ModelNotFound."""
        found = await self.sold(lambda catalogue: catalogue.models.get(name))
        if found is None:
            raise ModelNotFound(f"There is no model '{shown(name)}'. GET /v1/models lists what there is.", param="model")
        return found

    async def text(self, model: str) -> ModelText:
        """A name that was removed and sold again may mean other files. Raises ModelNotFound."""
        sold = (model, (await self.model(model)).created_at)
        if sold not in self._texts:
            folder = Path(settings.DATA.models) / model
            self._texts[sold] = asyncio.create_task(threads.text.run(open_text, folder))
        task = self._texts[sold]
        try:
            return await asyncio.shield(task)
        except TextError as error:
            self._texts.pop(sold, None)
            raise InternalError(f"model {model}: {error}") from error

    def background(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs on although the request that asked for it is gone. A failure is logged."""
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed: %s: %s", type(error).__name__, error)

    async def warm_up(self) -> None:
        """What the first request would have to wait for. Without its model or database the process still answers /healthz."""
        await self.reader()
        try:
            await self.lease.holder()
            for model in (await self.catalogue.get(None)).models:
                await self.text(model)
        except Exception as error:
            log.warning("not warmed up: %s: %s", type(error).__name__, error)

    def interrupt(self) -> None:
        """What is still open ends with an error entry, and its request is cancelled: by us, not by its client."""
        self.cancels.reason = GATEWAY_GONE
        if self._reader is not None:
            self._reader.interrupt("The server is stopping; repeat the request.")

    async def close(self) -> None:
        self.interrupt()  # no client waits any more: what is only followed runs on without us
        await self.cancels.drained(timeout_s=5)
        await self.lease.drop()
        until = time.monotonic() + BACKGROUND_S
        while self._background and time.monotonic() < until:
            await asyncio.wait(self._background, timeout=until - time.monotonic())
        for late in self._background:
            late.cancel()
        if self._reader is not None:
            await self._reader.close()
        self._renewing_places.cancel()
        await asyncio.wait([self._renewing_places])
        await self.redis.aclose()


_runtime: Runtime | None = None


def runtime() -> Runtime:
    global _runtime
    loop = asyncio.get_running_loop()
    if _runtime is None or _runtime.loop is not loop:
        _runtime = Runtime(loop)
    return _runtime


async def close() -> None:
    global _runtime
    if _runtime is not None and _runtime.loop is asyncio.get_running_loop():
        await _runtime.close()
        _runtime = None
