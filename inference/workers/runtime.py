"""A worker process: model, arena, engine loop, courier, lease. One a process."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from django.conf import settings
from django.db import Error, connections
from redis.exceptions import RedisError

from inference.contracts import KVLayout, PoolCounters
from inference.coordination.metrics import RENEWALS, REQUEUES
from inference.coordination.registry import LEASE_S, SlotTaken, worker_drain, worker_leave, worker_register, worker_renew
from inference.database import execute
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.loading import load_model
from inference.kvdirectory.selectors import handoffs_to_free
from inference.kvdirectory.services import extents_write
from inference.kvtransport.arena import Arena, ArenaError, arena_bytes, arena_folder
from inference.kvtransport.shm import ShmTransport
from inference.requests.selectors import cancelled_of, owned_by
from inference.requests.transitions import request_requeue
from inference.streams import Signals, StreamWriter
from inference.text import open_text
from inference.workers.consumer import DEAF
from inference.workers.courier import Courier
from inference.workers.loop import EngineLoop
from inference.workers.transfers import Transfers

log = logging.getLogger(__name__)

PULSE_S = 1.0
LEASE_MARGIN_S = 0.5
STALLED_S = 3.0  # a loop without progress for so long gets no new lease
QUEUE_AHEAD = 4  # claimed beyond what runs, so that the batch never starves between two offers


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    slot: str
    roles: tuple[str, ...]
    model: str
    blocks: int
    max_running: int
    threads: int


class WorkerRuntime:
    _current: ClassVar[WorkerRuntime | None] = None

    def __init__(self, options: WorkerOptions) -> None:
        self.slot = options.slot
        self._options = options
        self._stopping = threading.Event()
        self._draining = False
        self._spoken_until = 0.0
        self._strays: set[uuid.UUID] = set()

    @classmethod
    def current(cls) -> WorkerRuntime:
        if cls._current is None:
            raise RuntimeError("this process is no inference worker: start it with `manage.py worker`")
        return cls._current

    def start(self) -> None:
        """Loads the model, takes the slot, starts the threads. Raises SlotTaken, ArenaError."""
        options = self._options
        torch.set_num_threads(options.threads)
        folder: Path = settings.DATA.models / options.model
        model, text = load_model(folder), open_text(folder)
        arenas = arena_folder(arena_bytes(model.layout, options.blocks), settings.DATA.root, settings.DATA.arena_name)
        config = EngineConfig(blocks=options.blocks, max_running=options.max_running)
        self.worker_epoch = self._register(model.layout)
        _sweep(arenas, self.slot)
        self.arena = self._make_arena(arenas, model.layout)
        engine = Engine(model, text, self.arena.tensor(), config, raise_generation=self.arena.raise_generation)
        self._courier = Courier(StreamWriter.shared(), self._may_speak)
        self._transfers = Transfers(ShmTransport(arenas, self.arena))
        self.loop = EngineLoop(engine, self.arena, self._courier, self._transfers, self.slot, self.worker_epoch)
        self._courier.start(self._run_thread)
        self._run_thread("engine", self.loop.run)
        self._run_thread("pulse", self._pulse_all)
        self._run_thread("signals", self._listen)
        WorkerRuntime._current = self
        log.info("worker %s epoch %d serves %s as %s", self.slot, self.worker_epoch, options.model, ", ".join(options.roles))

    @property
    def accepts(self) -> bool:
        return not self._draining and self.loop.jobs < self._options.max_running + QUEUE_AHEAD

    def stop(self, grace_s: float) -> None:
        """Takes nothing new, ends what it can within the grace, and leaves; the reaper gives the rest to others."""
        self._draining = True
        worker_drain(slot=self.slot, epoch=self.worker_epoch)
        until = time.monotonic() + grace_s
        while time.monotonic() < until and (self.loop.jobs or self.loop.held()):
            time.sleep(0.05)
        self.loop.stop()
        self._transfers.stop()
        self._courier.stop(timeout_s=2.0)
        self._stopping.set()
        worker_leave(slot=self.slot, epoch=self.worker_epoch)
        self.arena.remove()

    def end(self, grace_s: float) -> None:
        """For one that receives nothing any more: what it has goes on for the grace, then another process takes the slot."""
        try:
            self.stop(grace_s)
        finally:
            os._exit(DEAF)

    def _make_arena(self, folder: Path, layout: KVLayout) -> Arena:
        """The slot must be taken: the name has its epoch. Without room it is given back."""
        try:
            return Arena.create(folder / self._arena_name(self.worker_epoch), layout, self._options.blocks, self.worker_epoch)
        except ArenaError:
            worker_leave(slot=self.slot, epoch=self.worker_epoch)
            raise

    def _arena_name(self, epoch: int | str) -> str:
        return f"{self.slot}-{epoch}.kv"

    def _register(self, layout: KVLayout) -> int:
        """Waits out the lease of a predecessor that died a moment ago."""
        options = self._options
        until = time.monotonic() + LEASE_S + 2
        while True:
            try:
                epoch = worker_register(
                    slot=self.slot,
                    roles=options.roles,
                    model=options.model,
                    layout=layout,
                    device="cpu",
                    arena=self._arena_name("{epoch}"),
                    pool=self._idle_pool(),
                    load={"running": 0, "in_transfer": 0, "max_running": options.max_running},
                )
                self._spoken_until = time.monotonic() + LEASE_S - LEASE_MARGIN_S
                return epoch
            except SlotTaken:
                if time.monotonic() > until:
                    raise
                time.sleep(0.3)

    def _run_thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(name, target), name=name, daemon=True)
        thread.start()
        return thread

    def _guarded(self, name: str, target: Callable[[], None]) -> None:
        """A thread of ours that ends by an error ends the process: a worker that only half lives is worse than none."""
        try:
            target()
        except BaseException:
            log.critical("thread %s of worker %s broke; the process ends", name, self.slot, exc_info=True)
            os._exit(70)

    # Lease and the second's chores.

    def _may_speak(self) -> bool:
        return time.monotonic() < self._spoken_until

    def _pulse_all(self) -> None:
        execute("SET synchronous_commit = off")  # a renewal that a crash forgets comes again in a second
        while not self._stopping.wait(PULSE_S):
            try:
                self._pulse()
            except Error as error:
                log.warning("worker %s: the database is away: %s", self.slot, error)
                connections.close_all()
        connections.close_all()

    def _pulse(self) -> None:
        started = time.monotonic()
        idle_s = started - self.loop.progress_at
        if idle_s > STALLED_S:
            log.error("worker %s: the engine loop made no progress for %.1f s", self.slot, idle_s)
            return
        if not worker_renew(slot=self.slot, epoch=self.worker_epoch, pool=self.loop.pool, load=self._load(), idle_s=idle_s):
            log.critical("worker %s lost its lease; the process ends", self.slot)
            os._exit(75)
        self._spoken_until = started + LEASE_S - LEASE_MARGIN_S
        RENEWALS.labels("worker").inc()
        self.loop.log_tokens()
        for request_id in cancelled_of(self.slot, self.worker_epoch):
            self.loop.cancel(str(request_id))
        self._give_back_strays()
        for request_id in handoffs_to_free(self.slot, self.loop.held()):
            self.loop.release(str(request_id))
        self._publish_extents()

    def _give_back_strays(self) -> None:
        """Requests that are ours by their rows but never came to the loop: the doorway broke behind its claim."""
        strays = {request_id for request_id in owned_by(self.slot, self.worker_epoch) if not self.loop.knows(request_id)}
        for request_id in strays & self._strays:  # seen a second ago as well: not just on its way in
            log.warning("request %s was claimed and never started; it goes back to the queue", request_id)
            epoch = request_requeue(request_id=request_id, owner=self.slot, owner_epoch=self.worker_epoch, detail="never started")
            REQUEUES.labels("worker").inc(epoch is not None)
        self._strays = strays

    def _publish_extents(self) -> None:
        changes = list(self.loop.extent_changes)
        if changes:
            extents_write(worker=self.slot, worker_epoch=self.worker_epoch, encoding=self.arena.layout.dtype, changes=changes)
        for _ in changes:  # only what is written leaves the list
            self.loop.extent_changes.popleft()

    def _load(self) -> dict[str, int]:
        loop = self.loop
        return {"running": loop.jobs, "in_transfer": loop.in_transfer, "max_running": self._options.max_running}

    def _idle_pool(self) -> PoolCounters:
        return PoolCounters(free=self._options.blocks, cached=0, held=0, quarantined=0, total=self._options.blocks)

    def _listen(self) -> None:
        """Signals make a second's poll quicker; without Valkey the poll does it."""
        while not self._stopping.is_set():
            try:
                for verb, request_id in Signals.shared().receive(self.slot):
                    {"cancel": self.loop.cancel, "release": self.loop.release}[verb](request_id)
            except RedisError as error:
                log.warning("worker %s hears no signals: %s", self.slot, error)
                self._stopping.wait(1.0)


def _sweep(arenas: Path, slot: str) -> None:
    """Customers' KV that dead processes of this slot left behind."""
    for path in arenas.glob(f"{slot}-*.kv"):
        path.unlink(missing_ok=True)
