"""Carries what the engine made to the world, so that the engine loop waits for nobody.

Two threads. The **emitter** writes tokens to the streams. The **journal** writes transitions to PostgreSQL, after the tokens before
them are out; a finish goes to the stream after its transaction is committed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.db import Error, connections
from redis.exceptions import RedisError

from inference import failpoints
from inference.contracts import StreamEntry, TokenEntry
from inference.streams import StreamWriter
from inference.workers.metrics import ENTRIES_DROPPED, JOURNAL_RETRIES

log = logging.getLogger(__name__)

Entries = list[tuple[str, StreamEntry]]


RunThread = Callable[[str, Callable[[], None]], threading.Thread]


@dataclass(frozen=True, slots=True)
class Transition:
    """A write to PostgreSQL. `write` answers the entries that may go out once it is committed; it must be safe to repeat."""

    name: str
    write: Callable[[], Entries]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one engine step made: entries first, then transitions."""

    entries: Entries = field(default_factory=list)
    transitions: Sequence[Transition] = ()


RETRY_S = 0.1
VALKEY_PATIENCE_S = 2.0  # then entries are given up at once, but for one attempt in
PROBE_S = 1.0


class Courier:
    """`may_speak` answers whether this process still holds its lease. Without it nothing leaves: it waits, for the lease is renewed
    when the database is back, and a process that lost it ends.
    """

    def __init__(self, writer: StreamWriter, may_speak: Callable[[], bool]) -> None:
        self._writer = writer
        self._may_speak = may_speak
        self._stopping = threading.Event()
        self._probe_at = 0.0  # not 0: Valkey is away, and this is when it is tried again
        self._parcels: queue.SimpleQueue[Parcel | None] = queue.SimpleQueue()
        self._transitions: queue.SimpleQueue[Transition | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, run: RunThread) -> None:
        """`run` starts a thread and sees to it that its failure does not pass unseen."""
        self._threads = [run("emitter", self._emit_all), run("journal", self._journal_all)]

    def send(self, parcel: Parcel) -> None:
        self._parcels.put(parcel)

    def stop(self, timeout_s: float) -> None:
        """Delivers what is in hand, within the time."""
        self._parcels.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        self._stopping.set()

    def _emit_all(self) -> None:
        while (parcel := self._parcels.get()) is not None:
            self._emit(parcel.entries)
            for transition in parcel.transitions:
                self._transitions.put(transition)
        self._transitions.put(None)

    def _emit(self, entries: Entries) -> None:
        """What Valkey does not take is not kept: readers find the tokens in the token log, and the end in the request's row."""
        if not entries or not self._lease_held() or time.monotonic() < self._probe_at:
            return
        until = time.monotonic() + (0.0 if self._probe_at else VALKEY_PATIENCE_S)
        while not self._written(entries):
            if time.monotonic() > until or self._stopping.wait(RETRY_S):
                log.error("%d stream entries given up", len(entries))
                ENTRIES_DROPPED.inc(len(entries))
                self._probe_at = time.monotonic() + PROBE_S
                return
        self._probe_at = 0.0

    def _lease_held(self) -> bool:
        while not self._may_speak():
            if self._stopping.wait(RETRY_S):
                return False
        return True

    def _written(self, entries: Entries) -> bool:
        try:
            for _ in range({"drop": 0, "duplicate": 2}.get(failpoints.reach(_phase(entries)), 1)):
                self._writer.write(entries)
        except RedisError as error:
            log.warning("stream entries not written: %s", error)
            return False
        return True

    def _journal_all(self) -> None:
        while (transition := self._transitions.get()) is not None:
            self._emit(self._write(transition))
        connections.close_all()

    def _write(self, transition: Transition) -> Entries:
        """Until the database has it: it is away or it refuses, it does not forget. A lost lease ends the process anyway."""
        delay_s = 0.05
        while True:
            try:
                return transition.write()
            except Error as error:
                log.warning("%s not written, trying again: %s", transition.name, error)
                JOURNAL_RETRIES.inc()
                connections.close_all()
                time.sleep(delay_s)
                delay_s = min(delay_s * 2, 1.0)


def _phase(entries: Entries) -> str:
    """The failpoint of a write: tokens together may hold somebody's first one."""
    positions = [entry.position for _, entry in entries if isinstance(entry, TokenEntry)]
    return "finish.send" if not positions else "token.first" if 1 in positions else "token.send"
