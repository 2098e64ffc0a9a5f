"""The broker is cut off, purged, restarted, blocked: requests wait in PostgreSQL, and workers take messages again afterwards."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import kombu
import pytest

from tests.flows.cast import receipt, until
from tests.flows.conftest import Stack
from tests.flows.faults import LONG_S, PROGRAMS, Answer, diners, process_of

pytestmark = pytest.mark.timeout(300)

QUEUES = ("prefill-0", "decode-0", "control")


@pytest.fixture
def over_rabbitmq(servers_stack: Stack) -> Stack:
    """A copy with a virtual host of its own."""
    if not vhost(servers_stack):
        pytest.skip("rabbitmqctl is not there, or not for us: no virtual host of our own")
    return servers_stack


@contextmanager
def nobody_dies(stack: Stack) -> Iterator[list[Answer]]:
    """Without its broker every process lives on, diners wait a little at most, and what was offered again was executed once."""
    before = [process_of(stack, name) for name in PROGRAMS]
    with diners(stack) as answers:
        yield answers
        served = len(answers)
        until(lambda: len(answers), lambda count: count > served + 4, 60)
    assert {receipt(stack, answer.request_id)["attempt"] for answer in answers} == {1}
    assert [process_of(stack, name) for name in PROGRAMS] == before


def rabbitmqctl(*arguments: str) -> str:
    done = subprocess.run(["rabbitmqctl", "-q", *arguments], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def vhost(stack: Stack) -> str:
    return urlsplit(stack.env["BROKER_URL"]).path.lstrip("/")


def connections(stack: Stack) -> dict[str, str]:
    """Of this copy: name and state."""
    rows = [line.split("\t") for line in rabbitmqctl("list_connections", "vhost", "name", "state").splitlines()]
    return {name: state for place, name, state in rows if place == vhost(stack)}


@contextmanager
def stopped_rabbitmq(stack: Stack) -> Iterator[None]:
    broker = urlsplit(stack.env["BROKER_URL"])
    rabbitmqctl("stop_app")
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.hostname or "", broker.port or 0))
        yield
    finally:
        rabbitmqctl("start_app")


def test_cut_connections_to_rabbitmq_are_made_again(over_rabbitmq: Stack) -> None:
    with nobody_dies(over_rabbitmq):
        before = connections(over_rabbitmq).keys()
        assert len(before) >= 4
        rabbitmqctl("close_all_connections", "-p", vhost(over_rabbitmq), "a test")
        until(lambda: connections(over_rabbitmq).keys(), lambda now: len(now) >= 4 and not now & before, 60)


def test_purged_and_deleted_queues_lose_nothing(over_rabbitmq: Stack) -> None:
    with nobody_dies(over_rabbitmq), kombu.Connection(over_rabbitmq.env["BROKER_URL"]) as connection:
        channel = connection.default_channel
        for _ in range(100):
            for queue in QUEUES:
                channel.queue_purge(queue)
        for queue in QUEUES:
            kombu.Queue(queue, channel=channel).queue_declare(passive=True)  # it is there, and then it is not
            channel.queue_delete(queue)


def test_a_rabbitmq_that_is_away_for_long_is_waited_for(over_rabbitmq: Stack) -> None:
    with nobody_dies(over_rabbitmq) as answers:
        before = connections(over_rabbitmq).keys()
        with stopped_rabbitmq(over_rabbitmq):
            time.sleep(LONG_S)
            served = len(answers)
            time.sleep(2)
            assert len(answers) == served  # everybody waits
        until(lambda: connections(over_rabbitmq).keys(), lambda now: len(now) >= 4 and not now & before, 60)


def test_a_blocked_rabbitmq_is_waited_for(over_rabbitmq: Stack) -> None:
    with nobody_dies(over_rabbitmq):
        rabbitmqctl("set_vm_memory_high_watermark", "0.000001")
        try:
            until(lambda: connections(over_rabbitmq).values(), lambda states: "blocked" in states, 60)
        finally:
            rabbitmqctl("set_vm_memory_high_watermark", "0.4")
