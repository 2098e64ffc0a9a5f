"""Two of everything, messages that come again and late, clocks that are wrong, and restarts one after the other under load."""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery

from controlplane.embedded.processes import end, spawn
from tests.flows.cast import database, expected, rated, receipt, stream, text_of, until, wait_until_ready
from tests.flows.conftest import BASE, Stack
from tests.flows.faults import PATIENCE_S, TOKENS, diners, frozen, process_of, replaced, serves_again

pytestmark = pytest.mark.timeout(300)

HOUR_AHEAD = """
import time

now, now_ns = time.time, time.time_ns
time.time = lambda: now() + 3600
time.time_ns = lambda: now_ns() + 3600 * 10**9
"""


@contextmanager
def one_more(stack: Stack, name: str, *command: str, **environment: str) -> Iterator[int]:
    """Another process of this copy, as on another machine; stopped at the end of the block."""
    env = stack.env | {"BRIGADE_DATABASE_ROLE": "system", "BRIGADE_PROCESS": name, "WORKER_GRACE_S": "2"} | environment
    log = stack.data.logs / f"{name}.log"
    process = spawn([sys.executable, BASE / "manage.py", *command], log=log, env=env, cwd=BASE)
    try:
        yield process.pid
        assert process.poll() is None, log.read_text()
    finally:
        end(process, signal.SIGTERM, timeout_s=15)


def sessions(stack: Stack, name: str) -> int:
    """Of one process with PostgreSQL: a control worker has them when it has worked."""
    with database(stack) as connection:
        return connection.execute("SELECT FROM pg_stat_activity WHERE application_name = %s", [f"brigade {name}"]).rowcount


def lease(stack: Stack) -> tuple[str, int]:
    """Who leads the dispatchers, and with which fence."""
    with database(stack) as connection:
        row = connection.execute("SELECT holder, fence FROM coordination_lease WHERE name = 'dispatcher'").fetchone()
    assert row is not None
    return str(row[0]), int(row[1])


def leader_pid(stack: Stack) -> int:
    return int(lease(stack)[0].split(":")[-2])


def state_of(stack: Stack, slot: str) -> str:
    with database(stack) as connection:
        row = connection.execute("SELECT state FROM coordination_worker WHERE slot = %s", [slot]).fetchone()
    return row[0] if row else ""


def test_two_of_every_role_work_an_hour_apart_but_never_two_of_a_slot(fragile: Stack, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOUR_AHEAD)
    ahead = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with (
        one_more(fragile, "control-ahead", "control", **ahead),
        one_more(fragile, "decode-ahead", "worker", "--slot", "decode-ahead", "--roles", "decode", **ahead),
        one_more(fragile, "dispatcher-ahead", "dispatcher", **ahead),
    ):
        until(lambda: state_of(fragile, "decode-ahead"), lambda state: state == "ready", PATIENCE_S)
        until(lambda: sessions(fragile, "control-ahead"), lambda found: found > 0, PATIENCE_S)
        _, fence = lease(fragile)
        with diners(fragile) as answers:
            refusal = fragile.run("worker", "--slot", "decode-0", "--roles", "decode")  # tries for longer than a lease lives
        told = [receipt(fragile, answer.request_id) for answer in answers]
        assert {"decode-0", "decode-ahead"} <= {one["workers"]["decode"] for one in told}
        assert {one["attempt"] for one in told} == {1}
        assert all(0 <= one["timing_ms"]["queue"] <= one["timing_ms"]["total"] < 120_000 for one in told)
        assert state_of(fragile, "decode-0") == state_of(fragile, "decode-ahead") == "ready"
        assert lease(fragile)[1] == fence
    assert refusal.returncode == 1
    assert "worker slot decode-0 is held by a live process" in refusal.stderr
    assert "Traceback" not in refusal.stderr
    until(lambda: state_of(fragile, "decode-ahead"), lambda state: state == "dead", PATIENCE_S)


def test_a_frozen_leader_that_comes_back_offers_nothing(fragile: Stack) -> None:
    with one_more(fragile, "standby", "dispatcher") as standby:
        until(lambda: sessions(fragile, "standby"), lambda found: found > 0, PATIENCE_S)
        leader = process_of(fragile, "dispatcher")
        assert leader_pid(fragile) == leader
        _, fence = lease(fragile)
        with diners(fragile) as answers:
            with frozen(leader):
                until(lambda: leader_pid(fragile), lambda pid: pid == standby, PATIENCE_S)
                served = len(answers)
                until(lambda: len(answers), lambda count: count > served + 4, PATIENCE_S)
            time.sleep(1)
            assert lease(fragile)[1] == fence + 1
            assert leader_pid(fragile) == standby
    until(lambda: leader_pid(fragile), lambda pid: pid == leader, PATIENCE_S)
    serves_again(fragile)


def test_claims_that_come_again_and_late_are_executed_once(fragile: Stack) -> None:
    chunks = stream(fragile, "soup", TOKENS, extra_body={"ignore_eos": True})
    first = next(chunks)
    head = text_of(iter([next(chunks)]))
    request_id = str(uuid.UUID(first.id.removeprefix("chatcmpl-")))
    send_claims(fragile, request_id)
    text = head + text_of(chunks)
    send_claims(fragile, request_id)
    told = rated(fragile, first.id)
    assert text == expected("soup", TOKENS, ignore_eos=True)
    assert [event["state"] for event in told["events"]] == ["queued", "prefilling", "ready", "decoding", "done"]
    assert told["attempt"] == 1
    serves_again(fragile)
    assert rated(fragile, first.id) == told


def send_claims(stack: Stack, request_id: str) -> None:
    """Each message that ever was, thrice and to both workers; returns when all are taken."""
    with Celery(broker=stack.data.broker_url, set_as_current=False) as sender:
        for slot in ("prefill-0", "decode-0"):
            for state, epoch in (("queued", 0), ("ready", 1)):
                for _ in range(3):
                    sender.send_task("inference.claim", args=[request_id, state, epoch], queue=slot, ignore_result=True)
    with redis.Redis(unix_socket_path=str(stack.data.valkey_socket), db=1) as broker:
        until(lambda: [broker.llen("prefill-0"), broker.llen("decode-0")], lambda waiting: waiting == [0, 0], PATIENCE_S)


def test_every_role_is_restarted_under_load_and_nobody_notices(fragile: Stack) -> None:
    with diners(fragile) as answers:
        for name in ("worker-decode-0", "worker-prefill-0", "dispatcher", "control"):
            pid = process_of(fragile, name)
            os.kill(pid, signal.SIGTERM)
            replaced(fragile, name, pid)
            wait_until_ready(fragile, PATIENCE_S)
            served = len(answers)
            until(lambda: len(answers), lambda count: count > served, PATIENCE_S)  # noqa: B023


def test_two_migrations_at_once_make_one_set_of_tables(fragile: Stack) -> None:
    url = fragile.data.database_url.replace("/brigade?", "/migrated_twice?")
    env = fragile.env | {"DATABASE_URL": url}
    twice = Stack(fragile.data, fragile.port, env, fragile.output, fragile.process)
    assert twice.run("database_setup").returncode == 0
    env["BRIGADE_DATABASE_ROLE"] = "owner"
    try:
        with ThreadPoolExecutor(2) as both:
            done = list(both.map(lambda _: twice.run("migrate", "--no-input"), range(2)))
        assert [one.returncode for one in done] == [0, 0], [one.stderr for one in done]
        assert sorted("No migrations to apply" in one.stdout for one in done) == [False, True]
    finally:
        with database(fragile) as connection:
            connection.execute("DROP DATABASE migrated_twice WITH (FORCE)")
