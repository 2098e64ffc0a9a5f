"""Valkey, which holds the live streams, the windows of the limiter and (embedded) the broker, is lost, frozen, or full."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.flows.cast import ask, database, until
from tests.flows.conftest import Stack
from tests.flows.faults import FULL, crowd, frozen, process_of, serves_again, valkey_process

pytestmark = pytest.mark.timeout(300)


@contextmanager
def valkey(stack: Stack) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(stack.data.valkey_socket)) as server:
        yield server


def test_a_killed_valkey_costs_time_only(fragile: Stack) -> None:
    killed = valkey_process(fragile)
    with crowd(fragile):
        os.kill(killed, signal.SIGKILL)
    assert valkey_process(fragile) != killed


def test_what_was_flushed_before_anybody_read_it_comes_from_the_token_log(fragile: Stack) -> None:
    with crowd(fragile), valkey(fragile) as server, frozen(process_of(fragile, "gateway")):
        read = entries(server)
        until(lambda: entries(server), lambda now: now > read + 100)
        server.flushall()
        until(lambda: running(fragile), lambda requests: requests == 0)
        assert entries(server) > 0
        server.flushall()


def entries(server: redis.Redis) -> int:
    return sum(server.xlen(key) for key in server.scan_iter("brigade:stream:*"))


def running(stack: Stack) -> int:
    with database(stack) as connection:
        return connection.execute("SELECT FROM inference_request WHERE finished_at IS NULL").rowcount


def test_a_frozen_valkey_is_waited_for(fragile: Stack) -> None:
    """Over a minute streams come whole from the token log alone, and end while Valkey is still away."""
    with crowd(fragile, outlast=not FULL), frozen(valkey_process(fragile)):
        time.sleep(60 if FULL else 5)  # longer than a command waits, and than tokens are kept


def test_places_of_clients_that_went_in_an_outage_are_free_again(fragile: Stack) -> None:
    streams = [ask(fragile, "soup", 400, stream=True, extra_body={"ignore_eos": True}) for _ in range(4)]
    for going in streams:
        next(iter(going))
    with valkey(fragile) as server:
        [running] = server.scan_iter("rate:*:running")
        assert server.zcard(running) == 4
        with frozen(valkey_process(fragile)):
            for going in streams:
                going.close()
            time.sleep(6)  # longer than a command waits for its answer
        until(lambda: server.zcard(running), lambda places: places == 0)
    serves_again(fragile)


def test_a_full_valkey_is_waited_for(fragile: Stack) -> None:
    with crowd(fragile), valkey(fragile) as server:
        roomy = str(server.config_get("maxmemory")["maxmemory"])
        server.config_set("maxmemory", 1)
        try:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                server.set("no room", "for this")
            time.sleep(3)
        finally:
            server.config_set("maxmemory", roomy)
