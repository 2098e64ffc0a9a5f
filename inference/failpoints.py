"""Failpoints: places where a test lets a process die, stall or lie. Off unless test hooks are on; then armed by BRIGADE_FAILPOINTS.

The variable names a JSON file: {"run": NAME, "points": [{"point", "action", "nth", "seconds", "times"}, ...]}. It may change while
processes run; a new run begins to count anew. `nth` counts a process's own passes, from 1. Each entry acts `times` times (1 unless
given) over all processes; every act leaves a mark beside the file, so that a test can tell that it fired, and a process that was
started again does not die again.

    kill        SIGKILL to this process
    stop        SIGSTOP to this process; the test continues it
    raise       FailpointError
    delay       sleeps `seconds`
    drop        `reach` answers "drop": the caller leaves the act out
    duplicate   `reach` answers "duplicate": the caller does it twice
    corrupt     `reach` answers "corrupt": the caller damages what it has
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Action = Literal["kill", "stop", "raise", "delay", "drop", "duplicate", "corrupt"]
Answer = Literal["", "drop", "duplicate", "corrupt"]

VARIABLE = "BRIGADE_FAILPOINTS"
POINTS = (
    # gateway: inside the transaction that holds the cost and queues the request, and after it
    "gateway.admit",
    "gateway.admitted",
    # dispatcher: before the offer, and with the offer written
    "dispatcher.offer",
    "dispatcher.send",
    # prefill worker
    "prefill.claim",
    "prefill.claimed",
    "prefill.chunk",
    "handoff.commit",
    "handoff.committed",
    # decode worker
    "decode.claim",
    "decode.claimed",
    "transfer.read",
    "transfer.page",
    "transfer.verify",
    "decode.step",
    # whoever has tokens, or takes them over; then the end: usage.* lie inside the transaction, finish.* around it
    "takeover.read",
    "token.first",
    "token.send",
    "token.log",
    "finish.commit",
    "usage.write",
    "usage.written",
    "finish.committed",
    "finish.send",
    # control worker: ledger.* lie inside the transaction that ingest.commit ends
    "ledger.post",
    "ledger.posted",
    "ingest.commit",
    "ingest.committed",
    "invoice.draft",
    "invoice.drafted",
)


class FailpointError(RuntimeError):
    """What the action `raise` raises."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    point: str
    action: Action
    nth: int = 1
    seconds: float = 0.0
    times: int = 1

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ValueError(f"no failpoint {self.point!r}; there are: {', '.join(POINTS)}")


class Failpoints:
    """The armed ones, as this process sees them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._run = ""
        self._armed: list[Failpoint] = []
        self._passes: Counter[str] = Counter()
        self._seen: tuple[int, int] = (0, 0)
        self._lock = threading.Lock()

    def reach(self, point: str) -> Answer:
        with self._lock:
            self._read_changes()
            self._passes[point] += 1
            due = [
                armed
                for index, armed in enumerate(self._armed)
                if armed.point == point and self._passes[point] >= armed.nth and self._mark(index, armed)
            ]
        return next(filter(None, map(_act, due)), "")

    def _read_changes(self) -> None:
        state = self._file.stat()
        seen = (state.st_mtime_ns, state.st_ino)
        if seen == self._seen:
            return
        plan = json.loads(self._file.read_text())
        self._seen, self._run = seen, str(plan["run"])
        self._armed = [Failpoint(**entry) for entry in plan["points"]]
        self._passes.clear()

    def _mark(self, index: int, armed: Failpoint) -> bool:
        """Takes one of the entry's times, whichever process is first."""
        for count in range(armed.times):
            try:
                os.close(os.open(mark(self._file, self._run, index, count), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            return True
        return False


def mark(file: Path, run: str, index: int, count: int = 0) -> Path:
    """Exists once the entry at `index` of this run has acted for the time `count` (from 0)."""
    return file.with_name(f"{file.name}.{run}.{index}.{count}.fired")


def _act(armed: Failpoint) -> Answer:
    match armed.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(armed.seconds)
        case "raise":
            raise FailpointError(armed.point)
        case _:
            return armed.action
    return ""


_active: Failpoints | None = None


def arm(*, allowed: bool) -> None:
    """At the start of a process. Raises RuntimeError where failpoints are asked for and not allowed."""
    global _active
    file = os.environ.get(VARIABLE)
    if file and not allowed:
        raise RuntimeError(f"{VARIABLE} is set, but test hooks are off")
    _active = Failpoints(Path(file)) if file else None


def reach(point: str) -> Answer:
    """Costs one comparison where nothing is armed."""
    return "" if _active is None else _active.reach(point)
