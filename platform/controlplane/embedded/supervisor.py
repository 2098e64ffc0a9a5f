"""Children that run until they are stopped: started in order, started again when they die, stopped in reverse order."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.embedded import guard
from controlplane.embedded.errors import ChildFailed
from controlplane.embedded.logs import LogFile
from controlplane.embedded.processes import kill_group
from controlplane.embedded.screen import say
from controlplane.embedded.signals import Signals

BACK_OFF_S = (0, 1, 2, 5, 10, 30)  # after so many deaths one shortly after the other
HASTY_S = 5  # a child that lived longer did not fail at its start: it starts again at once, however often it was killed
STEADY_S = 60  # one that lived so long begins with a clean record
LOG_CHECK_S = 1.0
TAIL_LINES = 15

Died = Callable[["Child", int], None]


@dataclass(slots=True)
class Child:
    """A process and its record. Children of one `stop_order` are stopped together, lower orders first."""

    name: str
    launch: Callable[[], subprocess.Popen[bytes]]
    log: LogFile
    stop_order: int
    stop_timeout_s: float
    stop_signal: signal.Signals = signal.SIGTERM
    slot: str = ""  # workers only
    shows_errors: bool = True
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    hasty_deaths: int = 0
    started_at: float = field(default=0.0)
    start_at: float = field(default=0.0)

    def start(self) -> int:
        self.process = self.launch()
        self.started_at = time.monotonic()
        return self.process.pid

    def died(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def note_death(self) -> None:
        """When it may start again: at once after a first death or a life, later and later if it goes on dying at its start."""
        now = time.monotonic()
        lived_s = now - self.started_at
        self.deaths = 1 if lived_s > STEADY_S else self.deaths + 1
        self.hasty_deaths = 1 if lived_s > HASTY_S else self.hasty_deaths + 1
        self.start_at = now + BACK_OFF_S[min(self.hasty_deaths, len(BACK_OFF_S)) - 1]
        self.process = None


class Supervisor:
    """`on_death(child, pid)` is told of each death, before the child is started again."""

    def __init__(self, signals: Signals, *, folders: list[Path], on_death: Died | None = None) -> None:
        self.signals = signals
        self.folders = folders
        self.on_death = on_death
        self.children: list[Child] = []
        self.logs_checked_at = 0.0

    def start_guard(self) -> None:
        argv = [sys.executable, "-I", "-S", guard.__file__, *map(str, self.folders)]
        self.guard = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, text=True
        )

    def start(self, child: Child) -> None:
        with self.signals.held():
            if child not in self.children:
                self.children.append(child)
            self._tell_guard("+", child.start())

    def look(self) -> None:
        """One round: bury the dead, start what is due, show new errors, keep logs small. Returns at once."""
        for child in self.children:
            if child.died():
                self._bury(child)
            if child.process is None and time.monotonic() >= child.start_at:
                self.start(child)
        if time.monotonic() - self.logs_checked_at > LOG_CHECK_S:
            self.logs_checked_at = time.monotonic()
            self._look_at_logs()

    def remove(self, children: list[Child]) -> None:
        """Asks them to end, ends them, and reports it; they do not start again."""
        running = [(child, child.process.pid) for child in children if child.process]
        with self.signals.held():
            self._stop_together(children, self.signals.requests)
            self.children = [child for child in self.children if child not in children]
        for child, pid in running:
            if self.on_death:
                self.on_death(child, pid)

    def watch(self, also: Callable[[], None] | None = None) -> None:
        """Until a stop is requested, which comes as StopRequested. `also` is called in each round."""
        while True:
            self.look()
            if also:
                also()
            self.signals.wait(0.5)

    def _bury(self, child: Child) -> None:
        assert child.process
        pid, code = child.process.pid, child.process.returncode
        kill_group(pid)  # what it started itself
        child.note_death()
        self._tell_guard("-", pid)
        say(f"! {child.name} ended ({describe(code)}); {_when(child)}. Its log: {child.log.path}")
        if self.on_death:
            self.on_death(child, pid)

    def _look_at_logs(self) -> None:
        for child in self.children:
            for line in child.log.new_errors() if child.shows_errors else []:
                say(f"! {child.name}: {line[:300]}")
            child.log.rotate()

    def refuse_repeated_deaths(self) -> None:
        """While starting: a child that dies twice will not come up by waiting."""
        for child in self.children:
            if child.deaths >= 2:
                raise ChildFailed(
                    f"{child.name} keeps ending. The last lines of {child.log.path}:\n\n"
                    + "\n".join(f"    {line}" for line in child.log.tail(TAIL_LINES))
                    + "\n\nPut right what they say and start again; nothing is lost."
                )

    def stop(self) -> None:
        """In order, within some ten seconds; a second request of the user kills at once. Afterwards nothing is left."""
        asked_before = self.signals.requests
        for order in sorted({child.stop_order for child in self.children}):
            self._stop_together([child for child in self.children if child.stop_order == order], asked_before)
        self.guard.communicate()  # its input ends: it removes the folders and ends

    def _stop_together(self, children: list[Child], asked_before: int) -> None:
        living = [child for child in children if child.process and child.process.poll() is None]
        for child in living:
            assert child.process
            child.process.send_signal(child.stop_signal)
        deadline = time.monotonic() + max((child.stop_timeout_s for child in living), default=0)
        while any(child.process and child.process.poll() is None for child in living):
            if time.monotonic() > deadline or self.signals.requests > asked_before + 1:
                break
            self.signals.wait(0.1)
        for child in children:
            self._end(child)

    def _end(self, child: Child) -> None:
        if child.process is None:
            return
        kill_group(child.process.pid)
        child.process.wait()
        self._tell_guard("-", child.process.pid)
        child.process = None

    def _tell_guard(self, change: str, group: int) -> None:
        assert self.guard.stdin
        try:
            self.guard.stdin.write(f"{change}{group}\n")
            self.guard.stdin.flush()
        except BrokenPipeError:
            return  # somebody killed the guard; on Linux the kernel still takes the children along


def describe(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _when(child: Child) -> str:
    wait_s = max(0.0, child.start_at - time.monotonic())
    return f"starting it again in {wait_s:.0f} s" if wait_s > 0.5 else "starting it again"
