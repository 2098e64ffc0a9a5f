from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx2 as httpx
import openai
import pytest
from django.db import OperationalError, transaction
from openai import OpenAI

from billing.holds.models import HoldAccount
from billing.pricing.selectors import Tariff
from controlplane.admission.services import requests_admit
from controlplane.gateway import limits
from controlplane.idempotency.services import Claim
from inference.contracts import Submission
from inference.coordination.models import Worker
from inference.database import execute, query
from inference.requests.models import RequestBody, State
from inference.text import AnswerText
from tests.controlplane.conftest import Job, ScriptedWorker, Stage, chat, open_requests, request_rows, wait_for


def test_the_official_client_gets_an_answer(client: OpenAI, worker: ScriptedWorker, stage: Stage) -> None:
    answer = client.chat.completions.create(model="tiny", messages=chat(), max_tokens=5)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id == f"chatcmpl-{request_rows()[0].id.hex}"
    assert answer.service_tier == "default"
    assert answer.system_fingerprint
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 2


def test_a_stream_begins_with_the_role_and_ends_with_finish_usage_and_done(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("Hel").say("lo").done("length", cached=3)
    chunks = list(
        client.chat.completions.create(model="tiny", messages=chat(), stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "length"]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * 4
    usage = chunks[-1].usage
    assert chunks[-1].choices == []
    assert usage
    assert usage.prompt_tokens_details
    assert (usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (2, 3)
    assert len({chunk.id for chunk in chunks}) == 1


def test_without_include_usage_no_chunk_speaks_of_usage(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    lines = _stream(gateway, stage, {"model": "tiny", "messages": chat(), "stream": True})
    assert lines[-1] == "data: [DONE]"
    assert all("usage" not in line for line in lines)


def test_done_comes_after_the_usage_is_committed(client: OpenAI, worker: ScriptedWorker) -> None:
    list(client.chat.completions.create(model="tiny", messages=chat(), stream=True))
    assert request_rows()[0].state == State.DONE


def test_tokens_without_visible_text_make_no_chunk(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("", (0xE2,)).say("€", (0x82, 0xAC)).done()
    chunks = list(client.chat.completions.create(model="tiny", messages=chat(), stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "€", None]


def test_a_repeated_token_reaches_the_client_once(client: OpenAI, worker: ScriptedWorker) -> None:
    def script(job: Job) -> None:
        job.say("one")
        job.ids.pop()
        job.say("one")
        job.done()

    worker.script = script
    answer = client.chat.completions.create(model="tiny", messages=chat())
    assert answer.choices[0].message.content == "one"


def test_an_error_before_the_first_token_has_a_status(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.fail("engine_error", "The engine failed.")
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny", messages=chat())
    assert (caught.value.status_code, caught.value.code) == (500, "engine_error")
    wait_for(lambda: open_requests() == 0)


def test_an_error_in_a_stream_is_an_event_and_the_stream_ends(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("Hel").fail("engine_error", "The engine failed.")
    lines = _stream(gateway, stage, {"model": "tiny", "messages": chat(), "stream": True})
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error == {"message": "The engine failed.", "type": "server_error", "param": None, "code": "engine_error"}
    assert "data: [DONE]" not in lines


def test_the_official_client_raises_on_an_error_event(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("Hel").fail("engine_error", "The engine failed.")
    with pytest.raises(openai.APIError, match="The engine failed"):
        list(client.chat.completions.create(model="tiny", messages=chat(), stream=True))


def test_a_long_silence_is_filled_with_comments(
    gateway: str, stage: Stage, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(limits, "SILENCE_S", 0.05)

    def script(job: Job) -> None:
        time.sleep(0.4)
        job.say("late")
        job.done()

    worker.script = script
    lines = _stream(gateway, stage, {"model": "tiny", "messages": chat(), "stream": True})
    assert lines.count(": keep-alive") >= 2
    assert lines[-1] == "data: [DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_a_lost_end_is_found_in_the_row(
    client: OpenAI, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Valkey may lose the last entry; the client must not wait for it for ever."""
    monkeypatch.setattr(limits, "SILENCE_S", 0.1)
    worker.script = lambda job: job.say("Hel").fail("worker_lost", "The worker died.", announce=False)
    with pytest.raises(openai.APIError, match="The worker died"):
        list(client.chat.completions.create(model="tiny", messages=chat(), stream=stream))


def test_a_database_that_is_away_for_a_while_does_not_end_a_stream(
    client: OpenAI, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SILENCE_S", 0.05)
    asked = []

    def away(*_: object) -> None:
        asked.append(1)
        raise OperationalError("server closed the connection")

    def script(job: Job) -> None:
        job.say("Hel")
        wait_for(lambda: len(asked) > 1)
        job.say("lo").done()

    monkeypatch.setattr("controlplane.gateway.completion.request_row_state", away)
    worker.script = script
    assert client.chat.completions.create(model="tiny", messages=chat()).choices[0].message.content == "Hello"


def test_a_database_that_hangs_holds_up_no_token(client: OpenAI, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SILENCE_S", 0.05)
    monkeypatch.setattr(limits, "DATABASE_LOOK_S", 0.05)
    heard = threading.Event()

    def script(job: Job) -> None:
        job.say("Hel")
        with transaction.atomic():
            execute("LOCK TABLE inference_request")
            wait_for(lambda: query("SELECT FROM pg_locks WHERE NOT granted AND relation = 'inference_request'::regclass") != [])
            job.say("lo")
            assert heard.wait(20)
        job.done()

    worker.script = script
    text = ""
    for chunk in client.chat.completions.create(model="tiny", messages=chat(), stream=True):
        text += chunk.choices[0].delta.content or ""
        if text == "Hello":
            heard.set()
    assert heard.is_set()


def test_a_database_that_is_away_at_admission_is_503_and_frees_all(client: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr("controlplane.gateway.generate.requests_admit", away)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny", messages=chat())
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")
    assert "connection" not in str(caught.value)
    assert open_requests() == 0


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SILENCE_S", 0.1)


@pytest.mark.usefixtures("short_silence")
def test_the_row_ends_a_stream_whose_worker_died_right_after_its_commit(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("Hel").done(cached=1, announce=False)
    answer = client.chat.completions.create(model="tiny", messages=chat())
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hel", "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


@pytest.mark.usefixtures("short_silence")
def test_a_finished_request_whose_tokens_are_lost_is_an_error_and_no_clean_end(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("Hel").lose("lo").done(announce=False, logged=False)
    with pytest.raises(openai.APIError, match="lost"):
        client.chat.completions.create(model="tiny", messages=chat())


HUNGRY = "I would like 김치 and 🍜, please"


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("announce", [True, False])
@pytest.mark.parametrize("heard", ["", HUNGRY[:9], HUNGRY])
def test_what_the_stream_lost_at_its_end_comes_from_the_token_log(
    client: OpenAI, worker: ScriptedWorker, heard: str, announce: bool
) -> None:
    worker.script = lambda job: job.speak(heard).lose(HUNGRY.removeprefix(heard)).done("length", announce=announce)
    answer = client.chat.completions.create(model="tiny", messages=chat())
    assert answer.choices[0].message.content == HUNGRY
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_a_hole_in_the_stream_is_filled_from_the_token_log(client: OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    worker.script = lambda job: job.speak(HUNGRY[:5]).lose(HUNGRY[5:16]).log().speak(HUNGRY[16:]).done()
    answer = client.chat.completions.create(model="tiny", messages=chat(), stream=stream)
    assert text_of(answer) == HUNGRY


def test_a_hole_that_the_log_fills_later_is_waited_for(client: OpenAI, worker: ScriptedWorker) -> None:
    def script(job: Job) -> None:
        job.lose(HUNGRY[:4]).speak(HUNGRY[4:])
        time.sleep(1)
        job.log().done()

    worker.script = script
    assert text_of(client.chat.completions.create(model="tiny", messages=chat())) == HUNGRY


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("stream", [True, False])
def test_much_that_comes_from_the_token_log_is_made_text_beside_the_loop(
    client: OpenAI, worker: ScriptedWorker, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    accept = AnswerText.accept

    def spy(self: AnswerText, token_id: int) -> str:
        seen.append(threading.current_thread().name)
        return accept(self, token_id)

    monkeypatch.setattr(AnswerText, "accept", spy)
    text = "a long story " * 40
    worker.script = lambda job: job.speak(text[:3]).lose(text[3:]).done(announce=False)
    assert text_of(client.chat.completions.create(model="tiny", messages=chat(), stream=stream)) == text
    assert len(seen) >= len(text)
    assert {name.partition("_")[0] for name in seen} == {"answers"}


@pytest.mark.usefixtures("short_silence")
def test_a_stop_string_is_cut_from_logged_text_as_from_any(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.speak("one ").lose("two S").done(announce=False)
    assert text_of(client.chat.completions.create(model="tiny", messages=chat(), stop=["two S"])) == "one "


@pytest.mark.usefixtures("short_silence")
def test_text_of_two_computations_is_never_joined(client: OpenAI, worker: ScriptedWorker) -> None:
    def script(job: Job) -> None:
        job.speak("Hello")
        job.ids.clear()
        job.lose("Help me").done(announce=False)

    worker.script = script
    with pytest.raises(openai.APIError, match="could not be continued"):
        client.chat.completions.create(model="tiny", messages=chat())


def text_of(answer: Any) -> str:
    if isinstance(answer, openai.Stream):
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    return str(answer.choices[0].message.content)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_cancels_its_request(gateway: str, stage: Stage, worker: ScriptedWorker, stream: bool) -> None:
    worker.script = lambda job: job.say("Hel").wait_cancel()
    body = {"model": "tiny", "messages": chat(), "stream": stream}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{gateway}/v1/chat/completions", json=body, headers=_auth(stage), timeout=2)
    wait_for(lambda: [row.state for row in request_rows()] == [State.CANCELLED])
    wait_for(lambda: open_requests() == 0)


def test_a_client_that_goes_away_while_its_request_waits_cancels_it(gateway: str, stage: Stage) -> None:
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{gateway}/v1/chat/completions", json={"model": "tiny", "messages": chat()}, headers=_auth(stage), timeout=2)
    wait_for(lambda: [row.state for row in request_rows()] == [State.CANCELLED])


def test_a_client_that_goes_away_during_admission_leaves_no_request_running(
    gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = threading.Event()

    def slow(submissions: Sequence[Submission], *, tariff: Tariff, claim: Claim | None) -> None:
        assert gone.wait(30)
        requests_admit(submissions, tariff=tariff, claim=claim)

    monkeypatch.setattr("controlplane.gateway.generate.requests_admit", slow)
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{gateway}/v1/chat/completions", json={"model": "tiny", "messages": chat()}, headers=_auth(stage), timeout=2)
    assert request_rows() == []
    gone.set()
    wait_for(lambda: request_rows() and request_rows()[0].state == State.CANCELLED)
    wait_for(lambda: open_requests() == 0)


def test_sampling_parameters_arrive_as_they_were_sent(client: OpenAI, worker: ScriptedWorker) -> None:
    client.chat.completions.create(
        model="tiny",
        messages=chat(),
        temperature=0.5,
        top_p=0.25,
        seed=-1,
        stop=["a", "b"],
        max_completion_tokens=7,
        metadata={"run": "1"},
        user="u1",
    )
    sampling = RequestBody.objects.get().sampling
    assert sampling["seed"] == (1 << 64) - 1
    assert (sampling["temperature"], sampling["top_p"], sampling["max_tokens"]) == (0.5, 0.25, 7)
    assert sampling["stop"] == ["a", "b"]
    assert request_rows()[0].labels == {"metadata.run": "1", "user": "u1"}


def test_without_a_seed_two_requests_have_two(client: OpenAI, worker: ScriptedWorker) -> None:
    for _ in range(2):
        client.chat.completions.create(model="tiny", messages=chat())
    assert len({body.sampling["seed"] for body in RequestBody.objects.all()}) == 2


def test_the_tier_that_was_asked_for_is_served_and_named(client: OpenAI, worker: ScriptedWorker) -> None:
    answer = client.chat.completions.create(model="tiny", messages=chat(), service_tier="flex")
    assert answer.service_tier == "flex"
    assert (request_rows()[0].service_tier, request_rows()[0].priority) == ("flex", 1_000)


def test_a_prompt_that_is_too_long_is_refused_with_the_figures(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens") as caught:
        client.chat.completions.create(model="tiny", messages=chat("x" * 5_000))
    assert caught.value.code == "context_length_exceeded"
    assert request_rows() == []


def test_a_tenant_without_money_is_refused_and_told_not_to_retry(client: OpenAI, stage: Stage) -> None:
    HoldAccount.objects.filter(tenant_id=stage.acme.organisation.id).update(limit_nano_usd=1)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="tiny", messages=chat())
    assert caught.value.code == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert request_rows() == []
    assert HoldAccount.objects.get(tenant_id=stage.acme.organisation.id).held_nano_usd == 0


def test_without_a_worker_the_client_is_told_to_come_back(client: OpenAI) -> None:
    Worker.objects.all().delete()
    time.sleep(limits.FLEET_CACHE_S + 0.05)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny", messages=chat())
    assert (caught.value.status_code, caught.value.code) == (503, "no_workers")
    assert caught.value.response.headers["Retry-After"] == "2"


def test_every_answer_carries_its_id_its_time_and_the_rates(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    body = {"model": "tiny", "messages": chat(), "max_tokens": 4}
    response = httpx.post(f"{gateway}/v1/chat/completions", json=body, headers=_auth(stage))
    assert response.headers["x-request-id"].startswith("req_")
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert response.headers["x-ratelimit-limit-requests"] == "6000"
    assert response.headers["x-ratelimit-remaining-requests"] == "5999"
    assert response.headers["x-ratelimit-reset-requests"] == "10ms"
    taken = 10_000_000 - int(response.headers["x-ratelimit-remaining-tokens"])
    assert taken == request_rows()[0].prompt_tokens + 4


def _auth(stage: Stage) -> dict[str, str]:
    return {"Authorization": f"Bearer {stage.acme.secret}"}


def _stream(gateway: str, stage: Stage, body: dict[str, object]) -> list[str]:
    with httpx.stream("POST", f"{gateway}/v1/chat/completions", json=body, headers=_auth(stage), timeout=10) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line for line in response.iter_lines() if line]
