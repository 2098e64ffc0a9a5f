"""Ready means that every part made progress lately: whatever hangs, is frozen or hears nothing turns /readyz to 503, and back.

/healthz stays 200 all the time. `manage.py serve` restarts what dies.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery

from tests.flows.cast import ask, database, expected, until, wait_until_ready
from tests.flows.conftest import Stack
from tests.flows.leaving import PATIENCE_S, armed

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def alive_before_and_after(impatient: Stack) -> Iterator[None]:
    wait_until_ready(impatient)
    yield
    wait_until_ready(impatient)
    assert ask(impatient, "after all that", 12).choices[0].message.content == expected("after all that", 12)


def pid_of(stack: Stack, name: str) -> int:
    """The process of the stack that is called so in the table of programs."""
    wanted = {f"BRIGADE_DATA={stack.data.root}", f"BRIGADE_PROCESS={name}"}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted <= set((folder / "environ").read_bytes().decode(errors="replace").split("\0")):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no process {name}")


@contextmanager
def frozen(stack: Stack, name: str) -> Iterator[None]:
    pid = pid_of(stack, name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def missing(stack: Stack) -> set[str]:
    status, body = stack.get("/readyz")
    parts: dict[str, Any] = json.loads(body)["parts"]
    names = {name for name, part in parts.items() if not part["ready"]}
    assert (status == 503) == bool(names)
    return names


def wait_missing(stack: Stack, *names: str) -> None:
    until(lambda: missing(stack), lambda found: set(names) <= found, PATIENCE_S)
    assert stack.get("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("process", "parts"),
    [
        ("worker-decode-0", ["decode"]),
        ("dispatcher", ["dispatcher"]),
        ("control", ["reaper", "ingest"]),
    ],
)
def test_a_frozen_process_is_not_ready(impatient: Stack, process: str, parts: list[str]) -> None:
    with frozen(impatient, process):
        wait_missing(impatient, *parts)


def test_a_loop_that_hangs_while_its_process_lives_is_not_ready(impatient: Stack) -> None:
    hang = {"point": "prefill.chunk", "action": "delay", "seconds": 6.0}
    with armed(impatient, hang) as fired:
        answer = ask_in_background(impatient, "who hangs?")
        wait_missing(impatient, "prefill")
        assert fired(0)
        assert answer() == expected("who hangs?", 12)


def ask_in_background(stack: Stack, content: str) -> Callable[[], str]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(lambda: str(ask(stack, content, 12).choices[0].message.content))
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=2 * PATIENCE_S)


def epoch_of(stack: Stack, slot: str) -> int:
    with database(stack) as connection:
        [epoch] = connection.execute("SELECT epoch FROM coordination_worker WHERE slot = %s", [slot]).fetchone() or (0,)
        return int(epoch)


def hears(stack: Stack, slot: str) -> int:
    """Waits until its process has lived for longer than it takes to be found deaf; its epoch."""
    old = "SELECT FROM coordination_worker WHERE slot = %s AND clock_timestamp() - started_at > interval '13 s'"
    with database(stack) as connection:
        until(lambda: connection.execute(old, [slot]).rowcount, lambda found: found == 1, PATIENCE_S)
    return epoch_of(stack, slot)


def stop_consuming(broker_url: str, slot: str) -> None:
    """Worker nodes of the slot stay connected, and take nothing from its queue any more."""
    with kombu.Connection(broker_url) as connection:
        Celery(broker=broker_url, set_as_current=False).control.cancel_consumer(slot, connection=connection)


def queue_delete(broker_url: str, slot: str) -> None:
    with kombu.Connection(broker_url) as connection:
        connection.default_channel.queue_delete(slot)


def test_a_worker_that_hears_nothing_is_replaced(impatient: Stack) -> None:
    """Connected, alive, with a lease, and deaf: its requests would wait for ever."""
    before = hears(impatient, "prefill-0")
    stop_consuming(impatient.env.get("BROKER_URL") or impatient.data.broker_url, "prefill-0")
    until(lambda: epoch_of(impatient, "prefill-0"), lambda epoch: epoch > before, 3 * PATIENCE_S)


@pytest.mark.parametrize("damage", [queue_delete, stop_consuming])  # the latter costs the worker its process
def test_a_worker_that_hears_nothing_over_rabbitmq_is_replaced(servers_stack: Stack, damage: Callable[[str, str], None]) -> None:
    before = hears(servers_stack, "prefill-0")
    damage(servers_stack.env["BROKER_URL"], "prefill-0")
    if damage is stop_consuming:
        until(lambda: epoch_of(servers_stack, "prefill-0"), lambda epoch: epoch > before, 3 * PATIENCE_S)
    answer = ask(servers_stack, f"who hears? {damage.__name__}", 12).choices[0].message.content
    assert answer == expected(f"who hears? {damage.__name__}", 12)
    wait_until_ready(servers_stack)
