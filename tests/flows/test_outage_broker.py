"""The broker is cut off, purged, restarted, blocked: requests wait in PostgreSQL, and workers take messages again afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import kombu
import pytest

from tests.flows.cast import until
from tests.flows.conftest import Stack, own_place_on_servers, serving
from tests.flows.faults import PROGRAMS, diners, process_of

pytestmark = pytest.mark.timeout(300)

QUEUES = ("prefill-0", "decode-0", "control")


@pytest.fixture(scope="module")
def over_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A copy with a virtual host of its own; everything else is embedded."""
    with own_place_on_servers() as urls:
        if urlsplit(urls["BROKER_URL"]).path == "//":
            pytest.skip("rabbitmqctl is not there, or not for us: no virtual host of our own")
        with serving(tmp_path_factory.mktemp("rabbitmq") / "data", {"BROKER_URL": urls["BROKER_URL"]}) as running:
            yield running


@contextmanager
def nobody_dies(stack: Stack) -> Iterator[None]:
    """Without its broker every process lives on, and diners wait a little at most."""
    before = [process_of(stack, name) for name in PROGRAMS]
    with diners(stack) as answers:
        yield
        served = len(answers)
        until(lambda: len(answers), lambda count: count > served + 4, 60)
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


def test_a_restarted_rabbitmq_is_waited_for(over_rabbitmq: Stack) -> None:
    with nobody_dies(over_rabbitmq):
        before = connections(over_rabbitmq).keys()
        rabbitmqctl("stop_app")
        rabbitmqctl("start_app")
        until(lambda: connections(over_rabbitmq).keys(), lambda now: len(now) >= 4 and not now & before, 60)


def test_a_blocked_rabbitmq_is_waited_for(over_rabbitmq: Stack) -> None:
    with nobody_dies(over_rabbitmq):
        rabbitmqctl("set_vm_memory_high_watermark", "0.000001")
        try:
            until(lambda: connections(over_rabbitmq).values(), lambda states: "blocked" in states, 60)
        finally:
            rabbitmqctl("set_vm_memory_high_watermark", "0.4")
