"""POST /v1/completions: texts and token ids, one request for each prompt, all of them or none."""

from __future__ import annotations

import uuid
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import OpenAI

from billing.holds.models import HoldAccount
from controlplane.gateway import limits
from controlplane.keys.models import ApiKey
from inference.contracts import TokenLogprob
from inference.requests.models import FINAL, RequestBody, State
from tests.controlplane.conftest import Job, ScriptedWorker, Stage, open_requests, request_rows, tiny_text, wait_for

BOS, EOS = 256, 257


def post(gateway: str, stage: Stage, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {stage.acme.secret}"}
    return httpx.post(f"{gateway}/v1/completions", json={"model": "tiny", **body}, headers=headers, timeout=20)


def prompts() -> list[list[int]]:
    """In the order of the requests' ids: that of the prompts."""
    return [list(body.prompt_ids) for body in RequestBody.objects.order_by("request_id")]


def test_the_official_client_gets_a_completion(client: OpenAI, worker: ScriptedWorker) -> None:
    answer = client.completions.create(model="tiny", prompt="abc", max_tokens=2)
    assert (answer.choices[0].text, answer.choices[0].finish_reason, answer.choices[0].index) == ("Hello world", "stop", 0)
    assert (answer.object, answer.id) == ("text_completion", f"cmpl-{request_rows()[0].id.hex}")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)
    assert prompts() == [[97, 98, 99]]
    assert request_rows()[0].max_tokens == 2


def test_without_max_tokens_there_are_sixteen(client: OpenAI, worker: ScriptedWorker) -> None:
    client.completions.create(model="tiny", prompt="abc")
    assert request_rows()[0].max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        ([97, 98], [[97, 98]]),
        ([97, BOS, EOS], [[97, BOS, EOS]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        (["a", "bc"], [[97], [98, 99]]),
        ("", [[BOS]]),
        ("<|bos|>a", [[*b"<|bos|>a"]]),
    ],
)
def test_a_prompt_is_text_or_ids_and_no_text_is_a_control_token(
    client: OpenAI, worker: ScriptedWorker, prompt: Any, expected: list[list[int]]
) -> None:
    client.completions.create(model="tiny", prompt=prompt, max_tokens=2)
    assert sorted(prompts()) == sorted(expected)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([97, 290], "prompt[1]"), ([[97], [98, 290]], "prompt[1][1]"), ([-1], "prompt[0]"), ([], "prompt"), ([[97], []], "prompt[1]")],
)
def test_every_id_is_checked(client: OpenAI, prompt: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=prompt)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
    assert request_rows() == []


@pytest.mark.parametrize("prompt", ["x" * 5_000, [97] * 2_048, ["a", "x" * 5_000]])
def test_a_prompt_that_is_too_long_is_refused_and_no_other_runs(client: OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=prompt)
    assert caught.value.code == "context_length_exceeded"
    assert request_rows() == []


@pytest.mark.parametrize(
    ("body", "param"), [({"suffix": "x"}, "suffix"), ({"best_of": 2}, "best_of"), ({"messages": []}, "messages")]
)
def test_what_is_not_supported_is_refused_by_name(gateway: str, stage: Stage, body: dict[str, Any], param: str) -> None:
    answer = post(gateway, stage, prompt="a", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_the_neutral_values_of_what_is_not_supported_are_accepted(client: OpenAI, worker: ScriptedWorker) -> None:
    assert client.completions.create(model="tiny", prompt="a", suffix=None, best_of=1).choices[0].text == "Hello world"


@pytest.mark.parametrize("stream", [True, False])
def test_several_prompts_are_several_requests_with_indices_in_order(client: OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    def script(job: Job) -> None:
        for choice in (1, 0):
            job.say(f"{chr(job.prompt[0])}{choice}", (49,), choice=choice, finish="length")
        job.done()

    worker.script = script
    answer: Any = client.completions.create(
        model="tiny",
        prompt=["a", "b", "c"],
        n=2,
        max_tokens=1,
        stream=stream,
        stream_options={"include_usage": True} if stream else openai.omit,
    )
    chunks = list(answer) if stream else [answer]
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: "a0", 1: "a1", 2: "b0", 3: "b1", 4: "c0", 5: "c1"}
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 6, 9)
    ids = [f"cmpl-{row.id.hex}" for row in sorted(request_rows(), key=lambda row: row.id)]
    named = next(chunk.brigade["requests"] for chunk in chunks if getattr(chunk, "brigade", None))
    assert sorted(named) == sorted(ids)
    assert {chunk.id for chunk in chunks} == {named[0]}


def test_every_prompt_has_its_receipt_under_both_prefixes(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    made = post(gateway, stage, prompt=["a", "bb"]).json()
    key = {"Authorization": f"Bearer {stage.acme.secret}"}
    for public_id, tokens in zip(made["brigade"]["requests"], (1, 2), strict=True):
        told = httpx.get(f"{gateway}/v1/requests/{public_id}", headers=key).json()
        assert (told["id"], told["tokens"]["prompt"], told["state"]) == (public_id, tokens, "done")
        other = public_id.replace("cmpl-", "chatcmpl-")
        assert httpx.get(f"{gateway}/v1/requests/{other}", headers=key).json() == {**told, "id": other}
        assert httpx.post(f"{gateway}/v1/requests/{public_id}/cancel", headers=key).json() == told
        foreign = httpx.get(f"{gateway}/v1/requests/{public_id}", headers={"Authorization": f"Bearer {stage.rival.secret}"})
        assert foreign.status_code == 404


def test_a_tenant_who_can_pay_for_one_of_two_gets_neither(client: OpenAI, stage: Stage, worker: ScriptedWorker) -> None:
    client.completions.create(model="tiny", prompt="a", max_tokens=100)
    account = HoldAccount.objects.get(tenant_id=stage.acme.organisation.id)
    HoldAccount.objects.filter(pk=account.pk).update(limit_nano_usd=account.used_nano_usd + account.held_nano_usd * 5 // 2)
    client.completions.create(model="tiny", prompt="a", max_tokens=100)
    before = HoldAccount.objects.get(pk=account.pk).held_nano_usd
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=100)
    assert caught.value.code == "insufficient_quota"
    assert len(request_rows()) == 2
    assert HoldAccount.objects.get(pk=account.pk).held_nano_usd == before
    wait_for(lambda: open_requests() == 0)


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ({"tokens_per_minute": 100}, "rate_limit_exceeded"),
        ({"requests_per_minute": 2}, "rate_limit_exceeded"),
        ({"concurrent_requests": 2}, "rate_limit_exceeded"),
    ],
)
def test_three_prompts_pass_every_limit_together_or_none_does(
    client: OpenAI, stage: Stage, worker: ScriptedWorker, limit: dict[str, int], code: str
) -> None:
    ApiKey.objects.filter(id=stage.acme.key.id).update(**limit)
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="tiny", prompt=["a", "b", "c"], max_tokens=40)
    assert caught.value.code == code
    assert caught.value.response.headers["x-should-retry"] == "false", "it can never pass"
    assert request_rows() == []
    assert client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=40).usage


def test_one_that_fails_fails_the_call_and_cancels_the_rest(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.fail("engine_error", "The engine failed.") if job.prompt == [98] else None
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model="tiny", prompt=["a", "b", "c"])
    assert caught.value.code == "engine_error"
    wait_for(lambda: all(row.state == State.FAILED or row.cancel_requested_at for row in request_rows()))
    assert len(request_rows()) == 3
    wait_for(lambda: open_requests() == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_cancels_all(gateway: str, stage: Stage, stream: bool) -> None:
    body = {"model": "tiny", "prompt": ["a", "b", "c"], "stream": stream}
    headers = {"Authorization": f"Bearer {stage.acme.secret}"}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{gateway}/v1/completions", json=body, headers=headers, timeout=1)
    wait_for(lambda: len(request_rows()) == 3 and all(row.state in FINAL for row in request_rows()), 15)
    wait_for(lambda: open_requests() == 0)


def test_a_full_process_takes_none_of_several(gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_REQUESTS", 2)
    answer = post(gateway, stage, prompt=["a", "b", "c"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
    assert request_rows() == []


@pytest.mark.parametrize("stream", [True, False])
def test_echo_puts_the_prompt_before_each_answer(client: OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    worker.script = lambda job: job.say("!", (33,), choice=1).say("?", (63,)).done()
    answer: Any = client.completions.create(model="tiny", prompt="pé", n=2, echo=True, stream=stream)
    texts = {0: "", 1: ""}
    for choice in (choice for chunk in (answer if stream else [answer]) for choice in chunk.choices):
        texts[choice.index] += choice.text
    assert texts == {0: "pé?", 1: "pé!"}


@pytest.mark.parametrize("stream", [True, False])
def test_echo_with_logprobs_tells_the_prompts_too(client: OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    def script(job: Job) -> None:
        prompt = (None, *(TokenLogprob(-0.5, ((token, -0.5), (97, -1.0), (98, -2.0))) for token in job.prompt[1:]))
        job.say("!", (33,), choice=1, logprobs=(TokenLogprob(-4.0, ((97, -0.1),)),))
        job.say("?", (63,), logprobs=(TokenLogprob(-3.0, ((63, -3.0),), prompt),)).done("length")

    worker.script = script
    answer: Any = client.completions.create(model="tiny", prompt="pé", n=2, echo=True, logprobs=1, max_tokens=1, stream=stream)
    assert RequestBody.objects.get().sampling["prompt_logprobs"] == 1
    found: dict[int, dict[str, list[Any]]] = {}
    for choice in (choice for chunk in (answer if stream else [answer]) for choice in chunk.choices if choice.logprobs):
        for name, values in choice.logprobs.to_dict().items():
            found.setdefault(choice.index, {}).setdefault(name, []).extend(values)
    assert found[0] == {
        "tokens": ["p", "bytes:\\xc3", "bytes:\\xa9", "?"],
        "token_logprobs": [None, -0.5, -0.5, -3.0],
        "top_logprobs": [None, {"bytes:\\xc3": -0.5}, {"bytes:\\xa9": -0.5}, {"?": -3.0}],
        "text_offset": [0, 1, 1, 2],
    }
    assert found[1]["top_logprobs"][-1] == {"a": -0.1, "!": -4.0}
    assert found[1]["tokens"][:3] == found[0]["tokens"][:3]


def test_the_tier_that_was_asked_for_is_served_and_named(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    made = post(gateway, stage, prompt="a", service_tier="flex", metadata={"run": "1"}, user="u1").json()
    assert made["service_tier"] == "flex"
    assert (request_rows()[0].service_tier, request_rows()[0].labels) == ("flex", {"metadata.run": "1", "user": "u1"})


def test_a_stop_string_and_penalties_arrive(client: OpenAI, worker: ScriptedWorker) -> None:
    client.completions.create(model="tiny", prompt="a", stop=["x"], frequency_penalty=1, seed=3, logit_bias={"5": 1}, temperature=0)
    sampling = RequestBody.objects.get().sampling
    assert (sampling["stop"], sampling["frequency_penalty"], sampling["seed"]) == (["x"], 1.0, 3)


def test_prompts_without_a_seed_draw_apart_and_with_one_alike(client: OpenAI, worker: ScriptedWorker) -> None:
    client.completions.create(model="tiny", prompt=["a", "a"])
    assert len({body.sampling["seed"] for body in RequestBody.objects.all()}) == 2
    client.completions.create(model="tiny", prompt=["b", "b"], seed=5)
    assert [body.sampling["seed"] for body in RequestBody.objects.all()].count(5) == 2


def test_an_unknown_request_is_404_under_any_prefix(gateway: str, stage: Stage) -> None:
    key = {"Authorization": f"Bearer {stage.acme.secret}"}
    for prefix in ("cmpl-", "chatcmpl-", "compl-", ""):
        assert httpx.get(f"{gateway}/v1/requests/{prefix}{uuid.uuid4().hex}", headers=key).status_code == 404


def test_no_prompt_begins_with_two_bos() -> None:
    text = tiny_text()
    assert text.encode_prompt("<|bos|>a").count(BOS) == 0
    assert text.encode("<|bos|>a", special=True) == [BOS, 97]
