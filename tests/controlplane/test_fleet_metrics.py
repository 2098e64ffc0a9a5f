"""What operators see of a whole copy: the processes' pages on one, and what the database knows."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.fleet.facts import Facts
from controlplane.fleet.processes_page import registry
from inference.coordination.models import Worker
from inference.database import execute
from inference.telemetry.address import Address
from inference.telemetry.page import page_serve
from tests.controlplane.conftest import MODEL, Stage

Values = dict[tuple[str, ...], float]


def values(found: CollectorRegistry) -> Values:
    """By name and label values, in the order of the labels' names."""
    families = text_string_to_metric_families(generate_latest(found).decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def facts_values(facts: Facts) -> Values:
    return values(registry(dict, facts))


def process_page(path: Path, eggs: int) -> Path:
    own = CollectorRegistry()
    Counter("eggs", "Broken.", ["pan"], registry=own).labels("left").inc(eggs)
    page_serve(Address(path=str(path)), lambda: generate_latest(own))
    return path


def test_pages_stand_together_under_their_processes_names(tmp_path: Path) -> None:
    sockets = {"a": process_page(tmp_path / "a.sock", 3), "b": process_page(tmp_path / "b.sock", 4), "c": tmp_path / "none.sock"}
    found = values(registry(lambda: sockets, Facts()))
    assert (found["eggs_total", "left", "a"], found["eggs_total", "left", "b"]) == (3, 4)
    assert [found["brigade_up", name] for name in "abc"] == [1, 1, 0]


def request_row(state: str, age_s: int) -> None:
    execute(
        """INSERT INTO inference_request (id, tenant_id, project_id, key_id, model, service_tier, policy, priority, labels, stream,
                                          state, epoch, attempt, path_reason, prompt_tokens, max_tokens, completion_tokens,
                                          finish_reasons, error_code, error_message, created_at, deadline_at, timing, owner,
                                          owner_epoch)
           SELECT gen_random_uuid(), t, t, t, %s, 'flex', '{}', 1, '{}', false, %s, 0, 1, '', 1, 1, 0, '{}', '', '',
                  now() - make_interval(secs => %s), now() + interval '1 hour', '{}', 'w0', 1
             FROM (SELECT gen_random_uuid() AS t) AS made""",
        [MODEL, state, age_s],
    )


def test_the_database_tells_queue_usage_and_who_lives(cast: Stage) -> None:
    for state, age_s in (("queued", 90), ("queued", 30), ("decoding", 200)):
        request_row(state, age_s)
    tenant = cast.acme.organisation.id
    execute(
        "INSERT INTO inference_usage_pending (request_id, tenant_id, at) VALUES (%s, %s, clock_timestamp() - interval '77 s')",
        [uuid.uuid4(), tenant],
    )
    execute(
        """INSERT INTO metering_fault (request_id, tenant_id, reason, detail, tries, retry_at)
           VALUES (%s, %s, 'price_missing', '', 1, %s)""",
        [uuid.uuid4(), tenant, timezone.now()],
    )
    facts = Facts()
    facts.read()
    found = facts_values(facts)
    assert found["brigade_database_up",] == 1
    assert (found["brigade_requests", MODEL, "queued", "flex"], found["brigade_requests", MODEL, "decoding", "flex"]) == (2, 1)
    assert 90 <= found["brigade_queue_age_seconds", MODEL, "flex"] < 150
    assert (found["brigade_usage_pending",], found["brigade_unrated_requests", "price_missing"]) == (1, 1)
    assert 77 <= found["brigade_usage_lag_seconds",] < 140
    assert (found["brigade_workers", MODEL, "prefill"], found["brigade_workers", MODEL, "decode"]) == (1, 1)
    assert {name for name, *_ in found} >= {"brigade_heartbeat_age_seconds", "brigade_disk_free_bytes"}


def test_a_model_on_sale_without_workers_shows_a_zero(cast: Stage) -> None:
    Worker.objects.all().delete()
    facts = Facts()
    facts.read()
    found = facts_values(facts)
    assert (found["brigade_workers", MODEL, "prefill"], found["brigade_workers", MODEL, "decode"]) == (0, 0)


def test_a_database_that_is_away_is_said_and_the_last_figures_stay(cast: Stage) -> None:
    request_row("queued", 5)
    facts = Facts()
    facts.read()
    with connection.execute_wrapper(_refuse):
        facts.read()
    found = facts_values(facts)
    assert found["brigade_database_up",] == 0
    assert found["brigade_requests", MODEL, "queued", "flex"] == 1


def _refuse(*_: object) -> object:
    from django.db import OperationalError

    raise OperationalError("the database system is shutting down")


@pytest.mark.usefixtures("cast")
def test_facts_read_indexes_however_long_the_history_is() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT model, service_tier, state, count(*), min(created_at) FROM inference_request"
            " WHERE finished_at IS NULL GROUP BY model, service_tier, state"
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "request_deadline" in plan
