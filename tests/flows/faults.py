"""Streams that run through a fault, the faults of processes and servers, and what must hold once they are over."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.flows.cast import (
    database,
    expected,
    expected_ids,
    rated,
    stream,
    text_of,
    tiny,
    until,
    wait_until_idle,
    wait_until_ready,
)
from tests.flows.conftest import Stack
from tests.flows.leaving import armed

FULL = os.environ.get("BRIGADE_OUTAGES") == "full"  # longer outages and larger crowds than CI has time for
LONG_S = 60 if FULL else 5  # an outage: longer than a lease, and than a command waits
PROGRAMS = ("gateway", "dispatcher", "worker-prefill-0", "worker-decode-0", "control")
COURSES = ("soup", "fish", "cheese")  # few, for the reference is slow
TOKENS = 300
SLOW = {"point": "decode.step", "action": "delay", "seconds": 0.05, "times": 1_000}  # TOKENS take 15 s at least
SIZE = 6
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    request_id: str
    prompt: str
    tokens: int
    text: str

    @property
    def right(self) -> bool:
        _, text = tiny()
        ids = expected_ids(self.prompt, TOKENS, ignore_eos=True)[: self.tokens]
        return self.text == text.decode([token_id for token_id in ids if token_id not in text.eos_ids])


@contextmanager
def slowly(stack: Stack) -> Iterator[Callable[[], None]]:
    """Tokens come slowly, on the quickest machine too, until the block ends or what it yields is called."""
    with ExitStack() as undo:
        undo.enter_context(armed(stack, SLOW))
        yield undo.close


@contextmanager
def crowd(stack: Stack, *, size: int = SIZE, tokens: int = TOKENS, outlast: bool = True) -> Iterator[Callable[[], None]]:
    """Slow streams, all of which have begun and, where they must `outlast` it, some of which still run when the block is over.

    What it yields lets them run freely. Afterwards every one of them came whole and is charged once, the product is at rest, and it
    serves again.
    """
    begun = threading.Barrier(size + 1)
    with ThreadPoolExecutor(size) as guests, slowly(stack) as hurry:
        hearing = [guests.submit(hear, stack, COURSES[number % len(COURSES)], tokens, begun) for number in range(size)]
        begun.wait(PATIENCE_S)
        yield hurry
        assert not outlast or not all(guest.done() for guest in hearing), "all streams had ended before the fault was over"
    assert_served(stack, [guest.result() for guest in hearing])


def hear(stack: Stack, prompt: str, tokens: int, begun: threading.Barrier) -> Answer:
    """Answers when the stream has ended; waits for all others of `begun` when it has said something."""
    chunks = stream(stack, prompt, tokens, extra_body={"ignore_eos": True})
    first = next(chunks)
    head = text_of(iter([next(chunks)]))
    begun.wait(PATIENCE_S)
    return Answer(first.id, prompt, tokens, head + text_of(chunks))


@contextmanager
def diners(stack: Stack, *, size: int = 4) -> Iterator[list[Answer]]:
    """Clients that ask again and again until the block ends. Afterwards as with `crowd`: not one may see an error."""
    over = threading.Event()
    answers: list[Answer] = []

    def dine(number: int) -> None:
        turn = number
        while not over.is_set():
            answers.append(hear(stack, COURSES[turn % len(COURSES)], 100, threading.Barrier(1)))
            turn += 1

    with ThreadPoolExecutor(size) as guests:
        dining: list[Future[None]] = [guests.submit(dine, number) for number in range(size)]
        try:
            yield answers
        finally:
            over.set()
    for guest in dining:
        guest.result()
    assert_served(stack, answers)


def assert_served(stack: Stack, answers: list[Answer]) -> None:
    """Text as the reference says, one receipt each; the product is whole again without anybody's help."""
    assert [answer for answer in answers if not answer.right] == []
    serves_again(stack)
    for answer in answers:
        told = rated(stack, answer.request_id)
        finals = [event for event in told["events"] if event["state"] not in ("queued", "prefilling", "ready", "decoding")]
        assert [event["state"] for event in finals] == [told["state"]] == ["done"]
        assert told["tokens"]["completion"] == answer.tokens


def serves_again(stack: Stack) -> None:
    """Ready, answering as ever, with nothing held and nothing that contradicts itself."""
    wait_until_ready(stack, PATIENCE_S)
    until(lambda: text_of(stream(stack, "bread")), lambda said: said == expected("bread", 24), PATIENCE_S)
    wait_until_idle(stack)
    found = until(lambda: stack.run("check_invariants", "--json"), lambda result: result.returncode == 0)
    assert found.returncode == 0, found.stdout


def children(stack: Stack, program: str) -> list[int]:
    """Processes of this copy whose command line has this word."""
    marker = str(stack.data.root).encode()
    sockets = stack.data.sockets.name.encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if program.encode() in command and (marker in environment or sockets in command):
            found.append(int(folder.name))
    return found


def process_of(stack: Stack, name: str) -> int:
    """A program of `manage.py serve` by its name."""
    wanted = {f"BRIGADE_PROCESS={name}".encode(), f"BRIGADE_DATA={stack.data.root}".encode()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = set((folder / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if wanted <= environment:
            return int(folder.name)
    raise LookupError(name)


def replaced(stack: Stack, name: str, pid: int, patience_s: float = PATIENCE_S) -> int:
    """Waits until another process does this work; answers its id."""

    def now() -> int:
        try:
            return process_of(stack, name)
        except LookupError:
            return pid

    return until(now, lambda found: found != pid, patience_s)


def postgres_processes(stack: Stack) -> list[int]:
    """The postmaster first, then its children."""
    postmaster = int((stack.data.postgres / "18" / "postmaster.pid").read_text().split()[0])
    return [postmaster, *(int(pid) for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split())]


def valkey_process(stack: Stack) -> int:
    [pid] = children(stack, "valkey-server")
    return pid


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stopped, and continued at the end of the block: those that are still there."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: [_state(pid) for pid in pids], lambda states: set(states) <= {"T", "Z", ""})
        yield
    finally:
        for pid in pids:
            if _state(pid):
                os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def backends(stack: Stack) -> int:
    with database(stack) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").fetchone()
    assert row is not None
    return int(row[0])
