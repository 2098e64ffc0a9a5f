"""The engine loop: the one thread that touches the engine. Everybody else posts commands to it.

commands -> engine.step() -> events -> one parcel for the courier
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from inference import failpoints
from inference.contracts import EXTENT_TOKENS, EngineRequest, ErrorEntry, FinishEntry, FinishReason, TokenEntry
from inference.engine.block_manager import CacheChanges
from inference.engine.engine import Engine
from inference.engine.errors import EngineRefusal
from inference.engine.events import Failed, Finished, PhaseUsage, Prefilled, Token
from inference.kvdirectory.services import ExtentChange, handoff_release
from inference.kvtransport.arena import Arena
from inference.kvtransport.shm import PageNote, pages_describe, pages_note
from inference.requests.claims import Claim
from inference.requests.models import State
from inference.requests.token_log import token_log_append
from inference.requests.transitions import request_finish, request_ready
from inference.streams import signal_release
from inference.submit import CANCELLED, CANCELLED_MESSAGE
from inference.workers import spans
from inference.workers.courier import Courier, Entries, Parcel, Transition
from inference.workers.jobs import Job, Verdict
from inference.workers.metrics import WorkerMetrics
from inference.workers.transfers import Transfers

log = logging.getLogger(__name__)

IDLE_S = 0.2
LOOK_S = 0.5

CANCEL = Verdict(State.CANCELLED, CANCELLED, CANCELLED_MESSAGE)
OVERDUE = Verdict(State.EXPIRED, "deadline_exceeded", "The request did not finish before its deadline.")


class EngineLoop:
    """Owns the engine. `start_job`, `cancel`, `release` may be called from any thread."""

    def __init__(self, engine: Engine, arena: Arena, courier: Courier, transfers: Transfers, slot: str, worker_epoch: int) -> None:
        self.engine = engine
        self.progress_at = time.monotonic()
        self._arena = arena
        self._courier = courier
        self._transfers = transfers
        self._me = (slot, worker_epoch)
        self.metrics = WorkerMetrics(slot, arena.layout.model)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}  # owned, in the engine or on the way into it
        self._held: dict[str, Job] = {}  # prefilled: pages wait for a decode worker
        self._unplaced: dict[str, Job] = {}  # of _jobs: wait for blocks to copy into
        self.in_transfer = 0  # copies under way
        self._settling: set[str] = set()  # left the engine; their transitions are on the way to the database
        self._stopping = threading.Event()
        self._looked_at = 0.0
        self.pool = engine.counters()  # both: written here, read by the pulse
        self.extent_changes: deque[ExtentChange] = deque()

    # Called by other threads.

    def start_job(self, claim: Claim) -> None:
        job = Job.of(claim)
        self._jobs[job.id] = job  # counted at once: the next offer must see it
        self._commands.put(lambda: self._start(job))

    def cancel(self, request_id: str) -> None:
        self._commands.put(lambda: self._end(request_id, CANCEL))

    def release(self, request_id: str) -> None:
        self._commands.put(lambda: self._release(request_id))

    @property
    def jobs(self) -> int:
        """Choices that are computed here or will be: each takes a place in the batch."""
        return sum(job.choices for job in list(self._jobs.values()))

    def held(self) -> list[uuid.UUID]:
        """Whose hand-offs are published: what the directory does not know yet, nobody may take for over."""
        return [uuid.UUID(request_id) for request_id in list(self._held) if request_id not in self._settling]

    def knows(self, request_id: uuid.UUID) -> bool:
        """Whether a request that the database says is ours is really here, or just leaving."""
        return str(request_id) in self._jobs or str(request_id) in self._settling

    def log_tokens(self) -> None:
        """What was made since the last time goes into the token log, in one statement."""
        runs = {run: job for job in list(self._jobs.values()) for run in job.unlogged()}
        if not runs:
            return
        failpoints.reach("token.log")
        for run in token_log_append(slot=self._me[0], worker_epoch=self._me[1], runs=list(runs)):
            runs[run].logged[run.choice] = run.position + len(run.ids) - 1

    def stop(self) -> None:
        self._stopping.set()

    # The loop's own thread.

    def run(self) -> None:
        while not self._stopping.is_set():
            self._obey()
            if self.engine.has_work:
                failpoints.reach("prefill.chunk" if self.engine.prefilling else "decode.step")
                began = time.monotonic()
                self.metrics.stepped(began, self._deliver(self.engine.step()))
            self._place_waiting()
            self._look_around()
            self.progress_at = time.monotonic()

    def _obey(self) -> None:
        """All commands that are there; where the engine has nothing to do, waits for the first."""
        try:
            command = self._commands.get_nowait() if self.engine.has_work else self._commands.get(timeout=IDLE_S)
            while True:
                command()
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _start(self, job: Job) -> None:
        if self._jobs.get(job.id) is not job:
            return  # it was cancelled between the doorway and here
        handoff = job.claim.handoff
        if handoff is not None and (handoff.worker, handoff.worker_epoch) == self._me and job.id in self._held:
            self._resume(job)
            return
        self._supersede(job.id)
        if handoff is None:
            self._add(job.claim.request)
        else:
            self._unplaced[job.id] = job

    def _supersede(self, request_id: str) -> None:
        """An earlier attempt's pages may still be held here: their decode worker died, and the news has not come yet."""
        self._held.pop(request_id, None)
        self.engine.abort(request_id)

    def _resume(self, job: Job) -> None:
        """Prefilled here, and nobody else can decode it: it goes on where its pages are."""
        del self._held[job.id]
        try:
            self.engine.resume(job.id)
        except EngineRefusal as refusal:
            self.engine.release(job.id)
            self._fail_unstarted(job.id, refusal)
        self._send(_transition("release", job, lambda: self._write_release(job)))

    def _add(self, request: EngineRequest) -> None:
        try:
            self.engine.add(request)
        except EngineRefusal as refusal:
            self._fail_unstarted(request.request_id, refusal)

    def _fail_unstarted(self, request_id: str, refusal: EngineRefusal) -> None:
        job = self._jobs.pop(request_id)
        self._unplaced.pop(request_id, None)
        self._finish(job, PhaseUsage(), verdict=Verdict(State.FAILED, refusal.code, refusal.message))

    def _place_waiting(self) -> None:
        """Takes blocks for hand-offs that wait for room, oldest first, and starts their copies."""
        for request_id, job in list(self._unplaced.items()):
            try:
                reservation = self.engine.reserve(job.claim.request)
            except EngineRefusal as refusal:
                self._fail_unstarted(request_id, refusal)
                continue
            if reservation is None:
                return
            del self._unplaced[request_id]
            self.in_transfer += 1
            handoff = job.claim.handoff
            assert handoff is not None
            self._transfers.start(
                handoff,
                targets=reservation.blocks,
                skip=reservation.cached_blocks,
                done=lambda note, job=job: self._commands.put(lambda: self._arrived(job, note)),  # type: ignore[misc]
            )

    def _arrived(self, job: Job, note: str) -> None:
        """A copy ended. `note` is empty, or says why the pages could not be used."""
        self.in_transfer -= 1
        self.engine.transfer_ended(job.id)
        handoff = job.claim.handoff
        assert handoff is not None
        elapsed_ms = 1000 * (time.monotonic() - job.claimed_at)
        job.waited_us, job.transfer_ms, job.transfer_note = handoff.waited_us + int(1000 * elapsed_ms), elapsed_ms, note
        if job.id not in self._jobs:
            return
        if note:
            log.warning("request %s is computed again here: %s", job.id, note)
            self.engine.recompute(job.id)
        else:
            self.engine.admit(job.id)
        self._send(_transition("release", job, lambda: self._write_release(job)))

    def _end(self, request_id: str, verdict: Verdict) -> None:
        job = self._jobs.pop(request_id, None)
        if job is None:
            return
        self._unplaced.pop(request_id, None)
        self._finish(job, self.engine.abort(request_id) or PhaseUsage(), verdict=verdict)

    def _release(self, request_id: str) -> None:
        if self._held.pop(request_id, None) is not None:
            self.engine.release(request_id)

    def _look_around(self) -> None:
        """Twice a second: deadlines, and what the pulse reports of the pool."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        self.pool = self.engine.counters()
        self.metrics.looked(self.pool, running=len(self._jobs), held=len(self._held))
        self._note_extents(self.engine.drain_cache_changes())
        for job in [job for job in self._jobs.values() if job.overdue]:
            self._end(job.id, OVERDUE)

    def _note_extents(self, changes: CacheChanges) -> None:
        """Removals first: a digest in both came back in another block."""
        gone = [ExtentChange(entry.digest, entry.depth, None) for entry in changes.removed]
        came = [ExtentChange(entry.digest, entry.depth, entry.block) for entry in changes.added]
        self.extent_changes.extend(change for change in (*gone, *came) if change.tokens % EXTENT_TOKENS == 0)

    # Events of a step.

    def _deliver(self, events: Iterable[Any]) -> list[Job]:
        """Answers the job of each token."""
        spoke: list[Job] = []
        entries: Entries = []
        transitions: list[Transition] = []
        for event in events:
            job = self._jobs.get(event.request_id)
            if job is None:
                continue
            if isinstance(event, Token):
                job.token(event.choice, event.token_id, event.logprob)
                spoke.append(job)
                entries.append((job.id, _token_entry(job.epoch, event)))
            else:
                transitions.append(self._closing(job, event))
        if entries or transitions:
            self._courier.send(Parcel(entries, transitions))
        return spoke

    def _closing(self, job: Job, event: Prefilled | Finished | Failed) -> Transition:
        self._settling.add(job.id)
        del self._jobs[job.id]
        if isinstance(event, Prefilled):
            self._held[job.id] = job
            self._left(job, event.usage)
            pages = pages_note(self._arena, event.blocks)
            return _transition("ready", job, lambda: self._write_ready(job, event, pages))
        if isinstance(event, Finished):
            return self._finishing(job, event.usage, reasons=event.reasons)
        return self._finishing(job, event.usage, verdict=Verdict(State.FAILED, event.code, event.message))

    def _finishing(
        self, job: Job, usage: PhaseUsage, *, reasons: tuple[FinishReason, ...] = (), verdict: Verdict | None = None
    ) -> Transition:
        outcome = job.outcome(usage, reasons, verdict)
        self._left(job, usage)
        self._settling.add(job.id)

        def write() -> Entries:
            entries = finish()
            self._settling.discard(job.id)
            return entries

        def finish() -> Entries:
            state = verdict.state if verdict else State.DONE
            failpoints.reach("finish.commit")
            rest = () if verdict else job.unlogged()
            if not request_finish(job.claim.owner, request_id=job.uuid, state=state, outcome=outcome, rest=rest):
                log.warning("request %s ended elsewhere", job.id)
                return []
            failpoints.reach("finish.committed")
            if verdict:
                return [(job.id, ErrorEntry(job.epoch, verdict.code, verdict.message))]
            prompt_tokens = outcome.computed + outcome.cached
            return [(job.id, FinishEntry(job.epoch, reasons, prompt_tokens, outcome.cached, outcome.completion))]

        return _transition("finish", job, write)

    def _left(self, job: Job, usage: PhaseUsage) -> None:
        self.metrics.left(usage)
        spans.left(job, usage)

    def _finish(self, job: Job, usage: PhaseUsage, *, verdict: Verdict) -> None:
        self._send(self._finishing(job, usage, verdict=verdict))

    def _write_ready(self, job: Job, event: Prefilled, pages: Sequence[PageNote]) -> Entries:
        failpoints.reach("handoff.commit")
        published = request_ready(
            job.claim.owner,
            request_id=job.uuid,
            tenant_id=job.claim.tenant_id,
            layout=self._arena.layout,
            tokens=event.kv_tokens,
            pages=pages_describe(self._arena, pages),
            result=job.prefill_result(event.usage),
        )
        if failpoints.reach("handoff.committed") == "corrupt":
            self._arena.pages[event.blocks[0]][0] ^= 0xFF
        self._settling.discard(job.id)
        if not published:
            self.release(job.id)
        return []

    def _write_release(self, job: Job) -> Entries:
        holder = handoff_release(request_id=job.uuid)
        if holder is not None and holder != self._me[0]:
            signal_release(slot=holder, request_id=job.id)
        return []

    def _send(self, *transitions: Transition) -> None:
        self._courier.send(Parcel(transitions=transitions))


def _transition(name: str, job: Job, write: Callable[[], Entries]) -> Transition:
    """What is logged meanwhile is about the request, and a traced one has a span for it."""

    def about_it() -> Entries:
        with spans.transition(job, name):
            return write()

    return Transition(name, about_it)


def _token_entry(epoch: int, token: Token) -> TokenEntry:
    return TokenEntry(
        epoch,
        token.choice,
        token.position,
        (token.token_id,),
        token.text,
        finish_reason=token.finish_reason,
        logprobs=(token.logprob,) if token.logprob else (),
    )
