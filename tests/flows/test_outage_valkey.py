"""Valkey, which holds the live streams, the windows of the limiter and (embedded) the broker, is lost, frozen, or full."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.flows.cast import ask, database, receipt, until
from tests.flows.conftest import Stack
from tests.flows.faults import FULL, LONG_S, assert_served, crowd, frozen, hear, process_of, serves_again, slowly, valkey_process

pytestmark = pytest.mark.timeout(300)


@contextmanager
def valkey(stack: Stack) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(stack.data.valkey_socket), socket_timeout=1, retry=Retry(NoBackoff(), 0)) as server:
        yield server


@contextmanager
def away(stack: Stack) -> Iterator[None]:
    """It lives, but all connections to it are cut, and nobody finds it."""
    socket = stack.data.valkey_socket
    with valkey(stack) as server, valkey(stack) as other:
        server.ping()  # connected, while it can be
        socket.rename(socket.with_suffix(".away"))
        try:
            assert sum(server.client_kill_filter(_type=kind, skipme=True) for kind in ("normal", "pubsub")) > 5
            with pytest.raises(redis.ConnectionError):
                other.ping()
            yield
        finally:
            socket.with_suffix(".away").rename(socket)


def test_a_killed_valkey_costs_time_only(fragile: Stack) -> None:
    killed = valkey_process(fragile)
    with crowd(fragile):
        os.kill(killed, signal.SIGKILL)
    assert valkey_process(fragile) != killed


def test_what_was_flushed_before_anybody_read_it_comes_from_the_token_log(fragile: Stack) -> None:
    with crowd(fragile) as hurry, valkey(fragile) as server, frozen(process_of(fragile, "gateway")):
        read = entries(server)
        hurry()
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
        time.sleep(LONG_S)


def test_a_valkey_that_carries_out_no_command_is_waited_for(fragile: Stack) -> None:
    with crowd(fragile, outlast=not FULL), valkey(fragile) as server:
        server.client_pause(1_000 * LONG_S, all=True)
        with pytest.raises(redis.TimeoutError):
            server.ping()
        time.sleep(LONG_S)
        until(lambda: answers(server), bool)


def answers(server: redis.Redis) -> bool:
    try:
        return bool(server.ping())
    except redis.TimeoutError:
        return False


def test_what_waits_while_valkey_is_away_is_served_once_when_it_is_back(fragile: Stack) -> None:
    """As the broker it takes no message, and requests wait in PostgreSQL."""
    alone = threading.Barrier(1)
    with ThreadPoolExecutor(4) as guests, ExitStack() as outage:
        with frozen(process_of(fragile, "dispatcher")):
            hearing = [guests.submit(hear, fragile, "soup", 100, alone) for _ in range(4)]
            until(lambda: running(fragile), lambda requests: requests == 4)
            outage.enter_context(away(fragile))
        time.sleep(LONG_S)
        assert running(fragile) == 4
        outage.close()
        served = [guest.result() for guest in hearing]
    assert_served(fragile, served)
    assert {receipt(fragile, answer.request_id)["attempt"] for answer in served} == {1}


def test_places_of_clients_that_went_in_an_outage_are_free_again(fragile: Stack) -> None:
    with slowly(fragile), valkey(fragile) as server:
        streams = [ask(fragile, "soup", 400, stream=True, extra_body={"ignore_eos": True}) for _ in range(4)]
        for going in streams:
            next(iter(going))
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
