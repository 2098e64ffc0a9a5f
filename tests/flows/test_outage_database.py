"""PostgreSQL is killed, cuts its connections, freezes: streams go on where they were, and everybody connects again."""

from __future__ import annotations

import os
import signal

import pytest

from tests.flows.cast import database
from tests.flows.conftest import Stack
from tests.flows.faults import backends, crowd, freeze_postgres, postgres_processes

pytestmark = pytest.mark.timeout(300)

FULL = os.environ.get("BRIGADE_OUTAGES") == "full"


def test_a_killed_postgresql_costs_time_only(fragile: Stack) -> None:
    with crowd(fragile):
        killed = postgres_processes(fragile)[0]
        os.kill(killed, signal.SIGKILL)
    assert postgres_processes(fragile)[0] != killed


def test_cut_connections_are_made_again(fragile: Stack) -> None:
    with crowd(fragile), database(fragile) as connection:
        cut = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
        assert cut is not None
        assert cut[0] >= 5


@pytest.mark.parametrize("seconds", [2.0, 60.0 if FULL else 6.0])
def test_a_frozen_postgresql_is_waited_for(fragile: Stack, seconds: float) -> None:
    with crowd(fragile):
        freeze_postgres(fragile, seconds)


def test_open_streams_hold_no_connection_of_postgresql(fragile: Stack) -> None:
    before = backends(fragile)
    with crowd(fragile, size=500 if FULL else 100, tokens=60):
        during = backends(fragile)
    assert during < before + 25
