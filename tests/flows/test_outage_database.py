"""PostgreSQL is killed, cuts its connections, freezes: streams go on where they were, and everybody connects again."""

from __future__ import annotations

import os
import signal
import time
import urllib.request

import pytest

from infra.pictures.console_picture import SESSION_COOKIE, log_in
from tests.flows.cast import database
from tests.flows.conftest import Stack
from tests.flows.faults import FULL, LONG_S, backends, crowd, frozen, postgres_processes

pytestmark = pytest.mark.timeout(300)


def test_a_killed_postgresql_costs_time_only(fragile: Stack) -> None:
    with crowd(fragile):
        killed = postgres_processes(fragile)[0]
        os.kill(killed, signal.SIGKILL)
    assert postgres_processes(fragile)[0] != killed


def test_cut_connections_are_made_again(fragile: Stack) -> None:
    """All at once: the next question is answered over a new one, before any lease is over."""
    with crowd(fragile, size=12), database(fragile) as connection:
        rows = connection.execute(
            "SELECT application_name, pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
        cut = [name for name, done in rows if done]
        assert cut.count("brigade gateway") >= 4
        assert {"brigade dispatcher", "brigade control", "brigade worker-prefill-0", "brigade worker-decode-0"} <= set(cut)


def test_a_frozen_postgresql_is_waited_for(fragile: Stack) -> None:
    with crowd(fragile), frozen(*postgres_processes(fragile)):
        time.sleep(LONG_S)


def test_open_streams_hold_no_connection_of_postgresql(fragile: Stack) -> None:
    before = backends(fragile)
    with crowd(fragile, size=500 if FULL else 100, tokens=40):
        during = backends(fragile)
    assert during < before + 25


def test_pages_of_the_console_leave_no_connection_behind(fragile: Stack) -> None:
    told = fragile.credentials
    session = log_in(told["console_url"], told["console_user"], told["console_password"])
    page = urllib.request.Request(told["console_url"], headers={"Cookie": f"{SESSION_COOKIE}={session}"})
    before = backends(fragile)
    for _ in range(20):
        with urllib.request.urlopen(page, timeout=30) as answer:
            assert answer.url == told["console_url"]
    assert backends(fragile) < before + 10
