"""The token channel: one Valkey stream a request, one list a worker for signals. Losing all of it loses neither money nor text.

A token is (request, choice, position). Writers may repeat themselves and zombies may write late; `EntryFilter` makes the one clean
sequence out of it: positions 1..n per choice, and nothing of an older epoch behind a take-over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import redis
import redis.asyncio
from django.conf import settings
from redis.exceptions import RedisError

from inference.contracts import ErrorEntry, FinishEntry, StreamEntry, TakeoverEntry, TokenEntry, stream_entry_from_json

log = logging.getLogger(__name__)

LIVE_S = 3600  # a stream's life while its request runs
AFTER_S = 600  # and after its last entry
SIGNAL_S = 60
READER_BLOCK_MS = 2000
READER_BACKLOG = 256  # entries a slow subscriber may have waiting here; the rest waits in Valkey

STREAM_LOST = "stream_interrupted"


def stream_key(request_id: str) -> str:
    return f"brigade:stream:{request_id}"


def signals_key(slot: str) -> str:
    return f"brigade:signals:{slot}"


class EntryFilter:
    """Drops repeats and void entries. A gap in the positions means that Valkey lost entries: it becomes an error entry."""

    def __init__(self) -> None:
        self._epoch = 0
        self._next: dict[int, int] = {}

    def clean(self, entry: StreamEntry) -> TokenEntry | FinishEntry | ErrorEntry | None:
        if entry.epoch < self._epoch:
            return None
        if isinstance(entry, TakeoverEntry):
            self._epoch = entry.epoch
            return None
        if not isinstance(entry, TokenEntry):
            return entry
        expected = self._next.get(entry.choice, 1)
        if entry.position < expected:
            return None
        if entry.position > expected:
            return ErrorEntry(entry.epoch, STREAM_LOST, "Part of the stream was lost; repeat the request.")
        self._next[entry.choice] = expected + len(entry.ids)
        return entry


class StreamWriter:
    """The writing side, synchronous: one pipeline a call, visible to readers at once."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5)

    @staticmethod
    @cache
    def shared() -> StreamWriter:
        return StreamWriter(settings.REDIS_URL)

    def write(self, entries: Iterable[tuple[str, StreamEntry]]) -> None:
        """`entries`: (request id, entry) in order. Raises RedisError."""
        with self._redis.pipeline(transaction=True) as pipe:
            for request_id, entry in entries:
                key = stream_key(request_id)
                pipe.xadd(key, {"e": json.dumps(entry.to_json(), separators=(",", ":"), ensure_ascii=False)})
                if isinstance(entry, FinishEntry | ErrorEntry):
                    pipe.expire(key, AFTER_S)
                elif isinstance(entry, TakeoverEntry) or entry.position == 1:
                    pipe.expire(key, LIVE_S)
            pipe.execute()

    def take_over(self, request_id: str, epoch: int) -> tuple[tuple[int, ...], ...]:
        """Voids older epochs from here on, then answers the tokens written before, per choice: the new owner's forced prefix."""
        mark: Any = self._redis.xadd(stream_key(request_id), {"e": json.dumps(TakeoverEntry(epoch).to_json())})
        before: Any = self._redis.xrange(stream_key(request_id), max=f"({mark.decode()}")
        tokens: dict[int, list[int]] = {}
        sieve = EntryFilter()
        for _, fields in before:
            entry = sieve.clean(_decode(fields))
            if isinstance(entry, TokenEntry):
                tokens.setdefault(entry.choice, []).extend(entry.ids)
        return tuple(tuple(tokens.get(choice, ())) for choice in range(max(tokens, default=0) + 1))


def _decode(fields: dict[bytes, bytes]) -> StreamEntry:
    return stream_entry_from_json(json.loads(fields[b"e"]))


class Signals:
    """What others tell a worker: stop a request, let go of pages. Lost signals are made up for by the worker's poll each second."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5)

    @staticmethod
    @cache
    def shared() -> Signals:
        return Signals(settings.REDIS_URL)

    def send(self, slot: str, verb: str, request_id: str) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.rpush(signals_key(slot), json.dumps([verb, request_id]))
            pipe.expire(signals_key(slot), SIGNAL_S)
            pipe.execute()

    def receive(self, slot: str, timeout_s: float = 1.0) -> Iterator[tuple[str, str]]:
        """Waits for a signal, then answers all that are there: (verb, request id)."""
        first = self._redis.blpop([signals_key(slot)], timeout=timeout_s)
        if first is None:
            return
        rest = self._redis.lpop(signals_key(slot), 1000) or []
        for raw in [first[1], *rest]:
            verb, request_id = json.loads(raw)
            yield verb, request_id


def signal_release(*, slot: str, request_id: str) -> None:
    """Best effort: the hand-off's row is what counts."""
    try:
        Signals.shared().send(slot, "release", request_id)
    except RedisError as error:
        log.warning("the release of %s is not announced to %s: %s", request_id, slot, error)


class Subscription:
    """One request's entries, in order and clean. Not for several consumers."""

    def __init__(self, reader: StreamReader, request_id: str) -> None:
        self.key = stream_key(request_id)
        self.last_id = "0"
        self._reader = reader
        self._filter = EntryFilter()
        self._queue: asyncio.Queue[TokenEntry | FinishEntry | ErrorEntry] = asyncio.Queue()

    async def next(self, timeout_s: float) -> TokenEntry | FinishEntry | ErrorEntry:
        """Raises TimeoutError where nothing came."""
        if self._queue.empty():
            async with asyncio.timeout(timeout_s):  # wait_for may swallow a cancel that comes together with an entry
                return await self._queue.get()
        entry = self._queue.get_nowait()
        if self._queue.qsize() == READER_BACKLOG - 1:
            self._reader.wake()
        return entry

    @property
    def full(self) -> bool:
        return self._queue.qsize() >= READER_BACKLOG

    def feed(self, entry_id: str, entry: StreamEntry) -> None:
        self.last_id = entry_id
        clean = self._filter.clean(entry)
        if clean is not None:
            self._queue.put_nowait(clean)

    def close(self) -> None:
        self._reader.forget(self)


class StreamReader:
    """One connection a process that waits on all of its streams at once.

    A new subscription wakes the waiting read through a stream of the reader's own, which unlike an unblock command cannot come too
    early.
    """

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(redis_url, socket_connect_timeout=5, socket_timeout=10)
        self._wake_key = f"brigade:wake:{uuid.uuid4()}"
        self._wake_id = "0"
        self._subscriptions: dict[str, Subscription] = {}
        self._task: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self._wake_again = False
        self._heard_at = float("-inf")
        self._closed = False

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="stream reader")
        self.wake()  # the first answer, and with it the news that Valkey is there, comes at once

    async def close(self) -> None:
        """A cancel can be lost inside the client's read; the flag ends the loop all the same."""
        self._closed = True
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=0.5)
        await self._redis.aclose()

    @property
    def silent_s(self) -> float:
        """Since Valkey last answered a read; an idle one answers every READER_BLOCK_MS."""
        return time.monotonic() - self._heard_at

    def subscribe(self, request_id: str) -> Subscription:
        subscription = Subscription(self, request_id)
        self._subscriptions[subscription.key] = subscription
        self.wake()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription.key, None)

    def wake(self) -> None:
        """A burst of subscriptions needs one or two wakes, not one each."""
        self._wake_again = True
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake())

    async def _wake(self) -> None:
        with contextlib.suppress(RedisError, OSError):  # the reader's own loop reports and repeats
            while self._wake_again:
                self._wake_again = False
                await self._redis.xadd(self._wake_key, {"w": ""}, maxlen=4)
            await self._redis.expire(self._wake_key, SIGNAL_S)

    async def _run(self) -> None:
        while not self._closed:
            try:
                await self._read_once()
            except (RedisError, OSError) as error:
                log.warning("token streams are unreadable, trying again: %s", error)
                await asyncio.sleep(0.2)

    async def _read_once(self) -> None:
        wanted: dict[Any, Any] = {key: sub.last_id for key, sub in self._subscriptions.items() if not sub.full}
        answer = await self._redis.xread({self._wake_key: self._wake_id, **wanted}, block=READER_BLOCK_MS, count=READER_BACKLOG)
        self._heard_at = time.monotonic()
        for raw_key, entries in _pairs(answer):
            key = raw_key.decode()
            if key == self._wake_key:
                self._wake_id = entries[-1][0].decode()
            elif (subscription := self._subscriptions.get(key)) is not None:
                for entry_id, fields in entries:
                    subscription.feed(entry_id.decode(), _decode(fields))


def _pairs(answer: object) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """RESP2 answers a list of pairs, RESP3 a dictionary of key to list (in another list)."""
    if not answer:
        return []
    if isinstance(answer, dict):
        return [(key, entries[0] if entries and isinstance(entries[0], list) else entries) for key, entries in answer.items()]
    assert isinstance(answer, list)
    return [(key, entries) for key, entries in answer]
