"""The token channel: one Valkey stream a request, one list a worker for signals. Losing all of it loses neither money nor text.

Writers may repeat themselves, zombies may write late, Valkey may forget: `transcript.EntryFilter` makes one clean sequence of it,
and says where the token log in PostgreSQL must fill a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
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
from inference.transcript import STREAM_LOST, EntryFilter, Gap, Transcript

log = logging.getLogger(__name__)

LIVE_S = 3600  # a stream's life while its request runs
LIVE_AGAIN = 64  # it begins anew with every so many tokens
AFTER_S = 600  # and after its last entry
SIGNAL_S = 60
WRITE_S = 2.0  # a Valkey that takes longer counts as away
READER_BLOCK_MS = 2000
DEAF_S = 3.0  # more than an idle read takes
READER_BACKLOG = 256  # entries a slow subscriber may have waiting here; the rest waits in Valkey


def stream_key(request_id: str) -> str:
    return f"brigade:stream:{request_id}"


def signals_key(slot: str) -> str:
    return f"brigade:signals:{slot}"


class StreamWriter:
    """The writing side, synchronous: one pipeline a call, visible to readers at once."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.Redis.from_url(redis_url, socket_timeout=WRITE_S, socket_connect_timeout=WRITE_S)

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
                elif isinstance(entry, TakeoverEntry) or entry.position % LIVE_AGAIN == 1:
                    pipe.expire(key, LIVE_S)
            pipe.execute()

    def take_over(self, request_id: str, epoch: int, logged: Transcript | None = None) -> Transcript:
        """Voids older epochs from here on, then answers the tokens written before: `logged`, and what the stream has beyond it.

        Raises RedisError.
        """
        key = stream_key(request_id)
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.xadd(key, {"e": json.dumps(TakeoverEntry(epoch).to_json())})
            pipe.expire(key, LIVE_S)
            mark: Any = pipe.execute()[0]
        before: Any = self._redis.xrange(key, max=f"({mark.decode()}")
        sieve = EntryFilter(logged)
        for _, fields in before:
            sieve.clean(_decode(fields))
        return sieve.transcript


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
        self._queue: asyncio.Queue[StreamEntry] = asyncio.Queue()
        self._behind_gap: StreamEntry | None = None

    @property
    def transcript(self) -> Transcript:
        """What was answered so far. The consumer appends what it has from the token log."""
        return self._filter.transcript

    async def next(self, timeout_s: float) -> TokenEntry | FinishEntry | ErrorEntry | Gap:
        """Raises TimeoutError where nothing came. A gap is answered until the transcript has what is missing."""
        while True:
            entry = self._behind_gap or await self._take(timeout_s)
            clean = self._filter.clean(entry)
            self._behind_gap = entry if isinstance(clean, Gap) else None
            if clean is not None:
                return clean

    async def _take(self, timeout_s: float) -> StreamEntry:
        if self._queue.empty():
            async with asyncio.timeout(timeout_s):  # wait_for may swallow a cancel that comes together with an entry
                entry = await self._queue.get()
        else:
            entry = self._queue.get_nowait()
        if self._queue.qsize() == READER_BACKLOG - 1:
            self._reader.wake()
        return entry

    @property
    def deaf(self) -> bool:
        """Valkey answers nothing: entries may be written, or not, and nobody hears them."""
        return self._reader.silent_s > DEAF_S

    @property
    def full(self) -> bool:
        return self._queue.qsize() >= READER_BACKLOG

    def feed(self, entry_id: str, entry: StreamEntry) -> None:
        self.last_id = entry_id
        self._queue.put_nowait(entry)

    def interrupt(self, message: str) -> None:
        """Its last entry, behind what has come already; no take-over makes it void."""
        self._queue.put_nowait(ErrorEntry(sys.maxsize, STREAM_LOST, message))

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

    def interrupt(self, message: str) -> None:
        """Every open subscription ends here, whatever its request does."""
        for subscription in self._subscriptions.values():
            subscription.interrupt(message)

    def wake(self) -> None:
        """A burst of subscriptions needs one or two wakes, not one each."""
        self._wake_again = True
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake())

    async def _wake(self) -> None:
        with contextlib.suppress(RedisError, OSError):  # the reader's own loop reports and repeats
            while self._wake_again:  # no await after this is asked: a wake that came meanwhile would be lost
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
