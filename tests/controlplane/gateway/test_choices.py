"""n answers and their log probabilities: each choice has its index, its end, and figures that add up to its text."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import OpenAI

from billing.holds.models import Hold
from controlplane.gateway.logprobs import CompletionLogprobs
from inference.contracts import TokenLogprob
from inference.requests.models import RequestBody
from tests.controlplane.conftest import Job, ScriptedWorker, Stage, chat, open_requests, request_rows, tiny_text, wait_for

EOS = 257


def lp(value: float, *top: tuple[int, float], prompt: tuple[TokenLogprob | None, ...] = ()) -> tuple[TokenLogprob, ...]:
    return (TokenLogprob(value, top, prompt),)


def two(job: Job) -> None:
    """Two choices that take turns; the second ends first."""
    job.say("a", (97,)).say("x", (120,), choice=1).say("", (EOS,), choice=1, finish="stop").say("b", (98,), finish="length").done()


def test_each_choice_has_its_index_its_text_and_its_end(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = two
    answer = client.chat.completions.create(model="tiny", messages=chat(), n=2, max_tokens=2)
    found = [(choice.index, choice.message.content, choice.finish_reason) for choice in answer.choices]
    assert found == [(0, "ab", "length"), (1, "x", "stop")]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens == request_rows()[0].prompt_tokens


def test_a_stream_of_two_tells_role_text_and_end_of_each(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = two
    stream = client.chat.completions.create(
        model="tiny", messages=chat(), n=2, max_tokens=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, usage = list(stream)
    told = [(chunk.choices[0].index, chunk.choices[0].delta, chunk.choices[0].finish_reason) for chunk in chunks]
    assert [index for index, delta, _ in told if delta.role == "assistant"] == [0, 1]
    assert [(index, delta.content) for index, delta, _ in told if delta.content] == [(0, "a"), (1, "x"), (0, "b")]
    assert [(index, reason) for index, _, reason in told if reason] == [(1, "stop"), (0, "length")]
    last = {index: position for position, (index, _, _) in enumerate(told)}
    assert all(told[position][2] for position in last.values()), "a choice's last chunk has its reason"
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 4


@pytest.mark.parametrize("stream", [True, False])
def test_a_choice_that_told_no_end_ends_with_the_request(client: OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    worker.script = lambda job: job.say("a").say("b", choice=1).done("length")
    answer: Any = client.chat.completions.create(model="tiny", messages=chat(), n=2, stream=stream)
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    assert [(choice.index, choice.finish_reason) for choice in choices if choice.finish_reason] == [(0, "length"), (1, "length")]


def test_limits_and_money_count_every_choice_and_get_back_what_none_used(
    gateway: str, stage: Stage, worker: ScriptedWorker
) -> None:
    worker.script = two
    key = {"Authorization": f"Bearer {stage.acme.secret}"}

    def post(n: int) -> tuple[int, int]:
        answer = httpx.post(
            f"{gateway}/v1/chat/completions", json={"model": "tiny", "messages": chat(), "max_tokens": 100, "n": n}, headers=key
        )
        assert answer.status_code == 200
        wait_for(lambda: open_requests() == 0)
        row = request_rows()[-1]
        hold = Hold.objects.get(request_id=row.id).amount_nano_usd
        return 10_000_000 - int(answer.headers["x-ratelimit-remaining-tokens"]) - row.prompt_tokens, hold

    (taken, hold), prompt = post(2), request_rows()[-1].prompt_tokens
    assert taken == 200
    left = httpx.get(f"{gateway}/v1/models", headers=key).headers["x-ratelimit-remaining-tokens"]
    assert 10_000_000 - int(left) <= prompt + 4
    assert hold > 200 * 400, "the dearest price of 200 tokens, and their storage"
    told = httpx.get(f"{gateway}/v1/requests/chatcmpl-{request_rows()[-1].id.hex}", headers=key).json()
    assert (told["choices"], told["finish_reasons"], told["tokens"]["completion"]) == (2, ["length", "stop"], 4)


def test_sampling_parameters_arrive_as_they_were_sent(client: OpenAI, worker: ScriptedWorker) -> None:
    client.chat.completions.create(
        model="tiny",
        messages=chat(),
        max_tokens=9,
        frequency_penalty=0.5,
        presence_penalty=-1,
        logit_bias={"65": 5, "289": -100},
        extra_body={"min_p": 0.1, "repetition_penalty": 1.5, "stop_token_ids": [5, 6], "min_tokens": 2, "ignore_eos": True},
    )
    sampling = RequestBody.objects.get().sampling
    assert sampling["logit_bias"] == [[65, 5.0], [289, -100.0]]
    assert (sampling["frequency_penalty"], sampling["presence_penalty"]) == (0.5, -1.0)
    assert (sampling["min_p"], sampling["repetition_penalty"]) == (0.1, 1.5)
    assert (sampling["stop_ids"], sampling["min_tokens"], sampling["ignore_eos"]) == ([5, 6], 2, True)
    assert (sampling["logprobs"], sampling["prompt_logprobs"], sampling["n"]) == (None, None, 1)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logit_bias": {"290": 1}}, "logit_bias.290"),
        ({"extra_body": {"stop_token_ids": [1, 290]}}, "stop_token_ids[1]"),
        ({"max_tokens": 3, "extra_body": {"min_tokens": 4}}, "min_tokens"),
    ],
)
def test_what_the_model_does_not_have_is_refused_by_name(client: OpenAI, body: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=chat(), **body)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
    assert request_rows() == []


EURO = (0xE2, 0x82, 0xAC)


def spoken(job: Job) -> None:
    """Half a character, the rest of it, the end."""
    job.say("", EURO[:1], logprobs=lp(-0.5, (0xE2, -0.5), (97, -1.5)))
    job.say("€", EURO[1:], logprobs=lp(-0.25, (0x82, -0.25), (98, -2.0)) + lp(-3.0, (99, -0.1), (EOS, -0.2)))
    job.say("", (EOS,), finish="stop", logprobs=lp(-0.125, (EOS, -0.125), (97, -4.0))).done()


@pytest.mark.parametrize("stream", [True, False])
def test_every_token_has_its_logprob_and_its_bytes_are_the_text(client: OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    worker.script = spoken
    answer: Any = client.chat.completions.create(
        model="tiny", messages=chat(), logprobs=True, top_logprobs=2, max_tokens=4, stream=stream
    )
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    content = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.logprob for entry in content] == [-0.5, -0.25, -3.0, -0.125]
    assert bytes(byte for entry in content for byte in entry.bytes or ()).decode() == "€"
    assert [entry.token for entry in content] == ["\ufffd", "\ufffd", "\ufffd", "<|eos|>"]
    assert content[-1].bytes is None
    assert [[top.token for top in entry.top_logprobs] for entry in content] == [
        ["\ufffd", "a"],
        ["\ufffd", "b"],
        ["c", "<|eos|>"],
        ["<|eos|>", "a"],
    ]
    if stream:
        told = [choice for choice in choices if choice.logprobs]
        assert [choice.delta.content for choice in told] == ["", "€", ""], "a token without text has its chunk"
    sampling = RequestBody.objects.get().sampling
    assert sampling["logprobs"] == 2


def test_without_top_logprobs_there_are_no_alternatives(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("a", (97,), logprobs=lp(-1.0), finish="length").done()
    answer = client.chat.completions.create(model="tiny", messages=chat(), logprobs=True, max_tokens=1)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert [(one.token, one.top_logprobs) for one in answer.choices[0].logprobs.content] == [("a", [])]
    assert RequestBody.objects.get().sampling["logprobs"] == 0


def test_logprobs_of_the_prompt_come_by_token_id(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    def script(job: Job) -> None:
        known = TokenLogprob(-0.5, ((97, -0.25), (job.prompt[1], -0.5)))
        rest = tuple(TokenLogprob(-9.0, ((97, -0.25), (98, -0.5))) for _ in job.prompt[2:])
        job.say("b", choice=1, logprobs=lp(-1.0)).say("a", logprobs=lp(-1.0, prompt=(None, known, *rest))).done()

    worker.script = script
    body = {"model": "tiny", "messages": chat(), "prompt_logprobs": 1, "n": 2}
    answer = httpx.post(
        f"{gateway}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {stage.acme.secret}"}
    ).json()
    prompt = RequestBody.objects.get().prompt_ids
    first, second, third, *_ = answer["prompt_logprobs"]
    assert len(answer["prompt_logprobs"]) == len(prompt)
    assert first is None
    assert second == {
        str(prompt[1]): {"logprob": -0.5, "rank": 2, "decoded_token": chr(prompt[1])},
        "97": {"logprob": -0.25, "rank": 1, "decoded_token": "a"},
    }
    assert third[str(prompt[2])] == {"logprob": -9.0, "rank": None, "decoded_token": chr(prompt[2])}
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "b"]


def test_a_figure_that_is_missing_is_an_error_and_no_answer_without_it(client: OpenAI, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("a").done()
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="tiny", messages=chat(), logprobs=True)
    wait_for(lambda: open_requests() == 0)


def test_offsets_count_characters_and_names_of_tokens_differ() -> None:
    writer = CompletionLogprobs(tiny_text(), 1)
    euro = [TokenLogprob(-1.0, ((token, -1.0),)) for token in EURO]
    first = writer.add([97, *EURO[:2]], [TokenLogprob(-2.0, ((98, -0.5),)), *euro[:2]])
    assert first["tokens"] == ["a", "bytes:\\xe2", "bytes:\\x82"]
    assert first["text_offset"] == [0, 1, 1]
    assert first["top_logprobs"][0] == {"b": -0.5, "a": -2.0}
    rest = writer.add([EURO[2], 98, EOS], [euro[2], TokenLogprob(-1.0), TokenLogprob(-1.0)])
    assert rest["text_offset"] == [1, 2, 3]
    assert rest["tokens"][-1] == "<|eos|>"
    json.dumps(rest, allow_nan=False)


def test_offsets_of_broken_characters_are_those_of_the_text() -> None:
    """A byte that breaks a character stands behind it."""
    ids = [0x8A, 0xDA, 0xE8, 0x80, 97, 0xE0, 0x80]
    assert tiny_text().decode(ids) == "\ufffd\ufffd\ufffda\ufffd\ufffd"
    told = CompletionLogprobs(tiny_text(), 0).add(ids, [TokenLogprob(-1.0)] * len(ids))
    assert told["text_offset"] == [0, 1, 2, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "asked",
    [
        {"n": 16, "max_tokens": 600, "logprobs": True, "top_logprobs": 20},
        {"max_tokens": 1, "prompt_logprobs": 20, "messages": chat("word " * 300)},
    ],
)
def test_an_answer_that_would_tell_too_many_figures_is_refused_before_it_is_made(
    gateway: str, stage: Stage, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.gateway.limits.LOGPROB_VALUES", 64_000 if "n" in asked else 10_000)
    body = {"model": "tiny", "messages": chat(), **asked}
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {stage.acme.secret}"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")
    assert "log probabilities" in answer.json()["error"]["message"]
    assert request_rows() == []
