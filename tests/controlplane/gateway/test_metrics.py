"""What the gateway counts of calls that really happen."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from prometheus_client import REGISTRY, generate_latest

from controlplane.keys.models import ApiKey
from tests.controlplane.conftest import MODEL, ScriptedWorker, Stage, chat, wait_for
from tests.samples import Growth, sample

SOLD = {"model": MODEL, "tier": "default"}


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=chat("a secret recipe"), max_tokens=8, **more)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_counted_once_with_its_times(client: OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    finished = Growth("brigade_requests_finished_total", **SOLD, reason="stop")
    timed = [Growth(f"brigade_{name}_count", **SOLD) for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds")]
    answered = Growth("brigade_http_responses_total", route="chat_completions", status="200")
    answer = ask(client, stream=stream)
    if stream:
        list(answer)
    wait_for(lambda: sample("brigade_open_requests", **SOLD) == 0)
    assert [finished.by, *(growth.by for growth in timed), answered.by] == [1, 1, 1, 1]


def test_an_open_stream_is_seen_and_a_client_that_goes_is_an_end(client: OpenAI, worker: ScriptedWorker) -> None:
    gone = Growth("brigade_requests_finished_total", **SOLD, reason="client_gone")
    worker.script = lambda job: job.say("Hello").wait_cancel()
    stream = ask(client, stream=True)
    next(iter(stream))
    assert sample("brigade_open_requests", **SOLD) == 1
    stream.close()
    wait_for(lambda: gone.by == 1)
    assert sample("brigade_open_requests", **SOLD) == 0


def test_an_engines_failure_is_an_end_by_its_code(client: OpenAI, worker: ScriptedWorker) -> None:
    failed = Growth("brigade_requests_finished_total", **SOLD, reason="engine_fault")
    told = Growth("brigade_errors_total", code="engine_fault", status="500")
    worker.script = lambda job: job.fail("engine_fault", "broken")
    with pytest.raises(openai.InternalServerError):
        ask(client)
    assert (failed.by, told.by) == (1, 1)


def test_refusals_are_counted_by_code_and_by_limit(client: OpenAI, stage: Stage) -> None:
    refused = Growth("brigade_rate_limit_refusals_total", limit="requests")
    told = Growth("brigade_errors_total", code="rate_limit_exceeded", status="429")
    ended = Growth("brigade_requests_finished_total", **SOLD, reason="client_gone")
    ApiKey.objects.filter(id=stage.acme.key.id).update(requests_per_minute=1)
    with (
        OpenAI(base_url=client.base_url, api_key=stage.rival.secret, max_retries=0) as unknown,
        pytest.raises(openai.NotFoundError),
    ):
        unknown.chat.completions.create(model="nothing", messages=chat())
    assert sample("brigade_errors_total", code="model_not_found", status="404") >= 1
    worker_less = client.with_options(timeout=1.0)
    with pytest.raises(openai.APITimeoutError):
        ask(worker_less)  # admitted, and nobody serves it
    with pytest.raises(openai.RateLimitError):
        ask(client)
    assert (refused.by, told.by) == (1, 1)
    wait_for(lambda: ended.by == 1)


def test_no_label_names_a_tenant_a_key_or_a_request(client: OpenAI, worker: ScriptedWorker, stage: Stage) -> None:
    answer = ask(client)
    page = generate_latest(REGISTRY).decode()
    ids = (stage.acme.organisation.id, stage.acme.project.id, stage.acme.key.id)
    for secret in (*map(str, ids), *(one.hex for one in ids), stage.acme.secret, answer.id.partition("-")[2], "recipe"):
        assert secret not in page


def test_the_public_port_has_no_metrics(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.with_options(base_url=str(client.base_url).removesuffix("/v1/")).get("/metrics", cast_to=dict)
