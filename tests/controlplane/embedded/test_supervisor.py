from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.embedded.errors import ChildFailed
from controlplane.embedded.guard import living_groups
from controlplane.embedded.logs import LogFile
from controlplane.embedded.processes import spawn
from controlplane.embedded.signals import Signals
from controlplane.embedded.supervisor import BACK_OFF_S, HASTY_S, Child, Supervisor

STUBBORN = "trap '' TERM INT; sleep 600 & echo up; while :; do sleep 1; done"  # with a child of its own
SUPERVISE = """
import sys
from pathlib import Path
from controlplane.embedded.logs import LogFile
from controlplane.embedded.processes import spawn
from controlplane.embedded.signals import Signals
from controlplane.embedded.supervisor import Child, Supervisor

work = Path(sys.argv[1])
signals = Signals()
signals.install()
supervisor = Supervisor(signals, folders=[work / "sockets"])
supervisor.start_guard()
log = work / "child.log"
supervisor.start(Child("child", lambda: spawn(["/bin/sh", "-c", sys.argv[2]], log=log), LogFile(log), 0, 1.0))
print(supervisor.children[0].process.pid, supervisor.guard.pid, flush=True)
supervisor.watch()
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    signals = Signals()
    before = signal.getsignal(signal.SIGCHLD)
    signals._read, signals._write = os.pipe()
    made = Supervisor(signals, folders=[tmp_path / "sockets"])
    made.start_guard()
    yield made
    made.stop()
    signal.signal(signal.SIGCHLD, before)
    os.close(signals._read)
    os.close(signals._write)


def shell(name: str, script: str, folder: Path, *, order: int = 0, slot: str = "") -> Child:
    log = folder / f"{name}.log"
    return Child(name, lambda: spawn(["/bin/sh", "-c", script], log=log), LogFile(log), order, 1.0, slot=slot)


def kill(supervisor: Supervisor, child: Child) -> int:
    assert child.process
    pid = child.process.pid
    os.kill(pid, signal.SIGKILL)
    until("the death was not seen", child.died)
    supervisor.look()
    return pid


def until(what: str, condition: object, timeout_s: float = 30) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_dead_child_is_reported_and_started_again_at_once_then_later_and_later(supervisor: Supervisor, tmp_path: Path) -> None:
    reported: list[tuple[str, int]] = []
    supervisor.on_death = lambda child, pid: reported.append((child.slot, pid))
    child = shell("worker", "sleep 600", tmp_path, slot="prefill-0")
    supervisor.start(child)
    first = kill(supervisor, child)
    assert reported == [("prefill-0", first)]
    before = time.monotonic()
    second = kill(supervisor, child)
    assert reported[1:] == [("prefill-0", second)]
    assert second != first
    assert child.died() is False
    assert before + BACK_OFF_S[1] <= child.start_at <= time.monotonic() + BACK_OFF_S[1]


def test_a_child_that_is_killed_again_and_again_but_lives_in_between_starts_at_once(supervisor: Supervisor, tmp_path: Path) -> None:
    child = shell("worker", "sleep 600", tmp_path)
    supervisor.start(child)
    for _ in range(4):
        child.started_at -= HASTY_S
        kill(supervisor, child)
        assert child.start_at <= time.monotonic()
        assert child.died() is False


def test_a_child_that_dies_twice_while_starting_ends_the_start_with_its_last_lines(supervisor: Supervisor, tmp_path: Path) -> None:
    child = shell("broken", "echo the disk is full; exit 3", tmp_path)
    supervisor.start(child)
    supervisor.refuse_repeated_deaths()
    for _ in range(2):
        until("it did not end", child.died)
        supervisor.look()
    with pytest.raises(ChildFailed, match=r"(?s)broken keeps ending.*the disk is full"):
        supervisor.refuse_repeated_deaths()


def test_children_stop_in_order_and_those_who_refuse_are_killed_with_all_they_started(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    ends = tmp_path / "ends"
    for order, name in enumerate(("gateway", "worker", "server")):
        supervisor.start(
            shell(name, f"trap 'echo {name} >> {ends}; exit' TERM; echo up; while :; do sleep 0.05; done", tmp_path, order=order)
        )
    stubborn = shell("stubborn", STUBBORN, tmp_path, order=1)
    supervisor.start(stubborn)
    for child in supervisor.children:
        until("a child did not start", lambda child=child: "up\n" in child.log.path.read_text())
    groups = [child.process.pid for child in supervisor.children if child.process]
    supervisor.stop()
    assert ends.read_text().split() == ["gateway", "worker", "server"]
    assert not set(groups) & set(living_groups())


def test_kill_9_of_the_supervisor_takes_along_a_child_that_ignores_signals(tmp_path: Path) -> None:
    (tmp_path / "sockets").mkdir()
    argv = [sys.executable, "-c", SUPERVISE, str(tmp_path), STUBBORN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        child, guard = map(int, process.stdout.readline().split())
        until("the child did not start", lambda: (tmp_path / "child.log").read_text() == "up\n")
        process.kill()
    until("something was left behind", lambda: not {child, guard} & set(living_groups()))
    assert not (tmp_path / "sockets").exists()


def test_a_log_shows_new_errors_once_and_keeps_its_size(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", cap_bytes=100)
    with log.path.open("a") as file:
        file.write("2026-01-01 INFO fine\n2026-01-01 ERROR no route\n")
        file.flush()
        assert log.new_errors() == ["2026-01-01 ERROR no route"]
        assert log.new_errors() == []
        file.write("x" * 200 + "\n")
        file.flush()
        assert log.rotate() is True
        file.write("2026-01-01 CRITICAL gone\n")
    assert log.new_errors() == ["2026-01-01 CRITICAL gone"]
    assert log.tail(5) == ["2026-01-01 CRITICAL gone"]
    assert "no route" in (tmp_path / "x.log.1").read_text()


def test_removed_children_end_together_are_reported_and_stay_away(supervisor: Supervisor, tmp_path: Path) -> None:
    reported: list[int] = []
    supervisor.on_death = lambda child, pid: reported.append(pid)
    polite, stubborn = shell("polite", "exec sleep 600", tmp_path), shell("stubborn", STUBBORN, tmp_path)
    staying = shell("staying", "exec sleep 600", tmp_path)
    for child in (polite, stubborn, staying):
        supervisor.start(child)
    groups = [child.process.pid for child in (polite, stubborn) if child.process]
    supervisor.remove([polite, stubborn])
    supervisor.look()
    assert reported == groups
    assert not set(groups) & set(living_groups())
    assert supervisor.children == [staying]
    assert staying.process
    assert staying.process.poll() is None
