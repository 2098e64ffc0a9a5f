"""The first page: its numbers are those of the rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection
from django.test import Client
from django.utils import timezone

from billing.metering.models import RatedRequest
from controlplane.console.dashboard import invariants, pulse
from controlplane.console.display import usd_short
from inference.coordination.models import Heartbeat, Worker, WorkerState
from inference.database import execute
from inference.requests.models import State
from tests.controlplane.console.rows import Tenant, rated, request_make
from tests.controlplane.console.test_entry import address


def facts() -> dict[str, tuple[str, str]]:
    return {fact.name: (fact.value.text, fact.note) for fact in pulse()["facts"]}


def counts() -> dict[str, str]:
    return {entry.state.text: entry.count.text for entry in pulse()["states"]}


def test_requests_of_the_last_hour_are_counted_by_state(acme: Tenant) -> None:
    for state in (State.DONE, State.DONE, State.QUEUED, State.FAILED):
        request_make(acme, state=state)
    old = request_make(acme, at=timezone.now() - timedelta(minutes=61))
    assert (counts()["done"], counts()["queued"], counts()["failed"], counts()["ready"]) == ("2", "1", "1", "0")
    assert old.state == State.DONE


def test_the_queue_says_how_long_the_oldest_waits(acme: Tenant) -> None:
    assert facts()["In the queue"] == ("0", "nobody waits")
    request_make(acme, state=State.QUEUED, at=timezone.now() - timedelta(seconds=30))
    request_make(acme, state=State.READY, at=timezone.now() - timedelta(minutes=5))
    assert facts()["In the queue"] == ("2", "oldest 5 min")


def test_ttft_is_that_of_the_last_hours_answers(acme: Tenant) -> None:
    assert facts()["TTFT p50"] == ("—", "0 answers, last hour")
    for milliseconds in (10, 20, 30, 40, 50):
        request_make(acme, ttft_ms=milliseconds)
    request_make(acme, ttft_ms=9_000, at=timezone.now() - timedelta(hours=2))
    assert facts()["TTFT p50"] == ("30.0 ms", "5 answers, last hour")
    assert facts()["TTFT p95"][0] == "48.0 ms"


def test_todays_usage_and_revenue_come_from_rated_lines(acme: Tenant) -> None:
    request_make(acme, prompt=1_000, cached=200, completion=50, recomputed=7)
    assert facts()["Waits for rating"] == ("1", "0 with a fault")
    rated()
    usage = {row[0].text: row[1].text for row in pulse()["tokens"].rows}
    assert usage["prompt tokens, computed"] == "800 tokens"
    assert usage["prompt tokens, from cache"] == "200 tokens"
    assert usage["completion tokens"] == "50 tokens"
    assert "recomputed tokens" not in usage
    assert facts()["Revenue today"][0] == usd_short(RatedRequest.objects.get().total_nano_usd)
    assert facts()["Waits for rating"] == ("0", "0 with a fault")


def test_workers_show_lease_load_and_pool(staff: Client) -> None:
    row = _worker("decode-0")
    assert [row[index].text for index in (1, 2, 3, 5)] == ["decode", "ready", "3 / 32", "3"]
    bar = next(pool for pool in pulse()["pools"] if pool.slot == "decode-0")
    assert [(part.name, part.text) for part in bar.parts] == [
        ("held", "96"),
        ("cached", "150"),
        ("quarantined", "4"),
        ("free", "774"),
    ]
    assert round(sum(float(part.width) for part in bar.parts)) == 100


def _worker(slot: str) -> Any:
    return next(row for row in pulse()["workers"].rows if row[0].text == slot)


def test_a_worker_whose_lease_ended_is_told_from_one_that_is_dead(kitchen: None) -> None:
    Worker.objects.filter(slot="decode-0").update(lease_until=timezone.now() - timedelta(seconds=3))
    Worker.objects.filter(slot="prefill-0").update(state=WorkerState.DEAD)
    assert _worker("decode-0")[2].text == "lease ended"
    assert _worker("prefill-0")[2].text == "dead"
    assert [pool.slot for pool in pulse()["pools"]] == ["decode-0"]


def test_a_process_that_stopped_or_never_started_stands_out(kitchen: None) -> None:
    Heartbeat.objects.filter(name="reaper").update(at=timezone.now() - timedelta(minutes=3))
    Heartbeat.objects.filter(name="ingest").delete()
    beats = {row[0].text: row[2].text for row in pulse()["heartbeats"].rows}
    assert (beats["dispatcher"], beats["reaper"], beats["ingest"]) == ("alive", "late", "never")


def test_malformed_load_and_pool_do_not_break_the_page(staff: Client) -> None:
    Worker.objects.filter(slot="decode-0").update(load=[], pool={"total": "many", "free": None})
    assert staff.get(address("pulse")).status_code == 200


def test_the_moving_part_is_a_part_and_no_whole_page(staff: Client) -> None:
    content = staff.get(address("pulse")).content
    assert b"Heartbeats" in content
    assert b"<html" not in content


def test_invariants_hold_and_a_violation_is_shown_with_its_rows(staff: Client, acme: Tenant) -> None:
    row = request_make(acme)
    rated()
    Worker.objects.update(pool={"free": 4, "cached": 0, "held": 0, "quarantined": 0, "total": 4})
    assert invariants()["verdict"].text == "all hold"
    execute("UPDATE inference_request SET completion_tokens = 19 WHERE id = %s", [row.id])
    content = staff.get(address("invariants")).content.decode()
    assert "1 violated" in content
    assert "usage_completion" in content
    assert str(row.id) in content


def test_a_check_that_takes_too_long_is_given_up_and_says_so(kitchen: None, monkeypatch: Any) -> None:
    def slow() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(5)")
        return []

    monkeypatch.setattr("controlplane.console.dashboard.INVARIANTS_TIMEOUT_MS", 50)
    monkeypatch.setattr("inference.invariants.check", slow)
    answer = invariants()
    assert (answer["verdict"].text, answer["violations"]) == ("not checked", [])
    assert "timeout" in answer["note"]
