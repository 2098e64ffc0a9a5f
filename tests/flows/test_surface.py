"""What the official client asks of a running product beside plain chats: choices, figures, completions, keys, tokens."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from inference.contracts import SamplingParams
from inference.engine.reference import one_thread, reference
from inference.text import answer_text
from tests.flows.cast import client, database, rated, receipt, say, tiny, until, wait_until_idle
from tests.flows.conftest import Stack

pytestmark = pytest.mark.timeout(240)

PROMPTS = ["Onions and ", "김치 ", "a"]


@pytest.fixture(autouse=True)
def invariants_hold_afterwards(stack: Stack) -> Iterator[None]:
    yield
    wait_until_idle(stack)
    found = until(lambda: stack.run("check_invariants", "--json"), lambda result: result.returncode == 0)
    assert found.returncode == 0, found.stdout


def continuation(prompt: str, max_tokens: int) -> str:
    """What the tiny model adds to a plain text, greedily."""
    model, text = tiny()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    with one_thread():
        ids = reference(model, text.encode_prompt(prompt), sampling, eos_ids=text.eos_ids)
    answer = answer_text(text, sampling, max_tokens)
    return "".join(answer.accept(token_id) for token_id in ids)


def requests_of(stack: Stack, label: str) -> int:
    with database(stack) as connection:
        row = connection.execute("SELECT count(*) FROM inference_request WHERE labels ->> 'user' = %s", [label]).fetchone()
    assert row is not None
    return int(row[0])


def test_three_choices_with_figures_are_the_same_streamed_or_not(stack: Stack) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": say("three cooks"),
        "n": 3,
        "max_tokens": 20,
        "seed": 11,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client(stack).chat.completions.create(**asked)
    texts: dict[int, str] = dict.fromkeys(range(3), "")
    figures: dict[int, list[Any]] = {index: [] for index in range(3)}
    reasons: dict[int, str | None] = {}
    usage = None
    for chunk in client(stack).chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            figures[choice.index] += choice.logprobs.content if choice.logprobs else []
            reasons[choice.index] = choice.finish_reason
    for choice in whole.choices:
        content = choice.logprobs.content
        assert (choice.message.content, choice.finish_reason) == (texts[choice.index], reasons[choice.index])
        assert content == figures[choice.index]
        assert b"".join(bytes(one.bytes or b"") for one in content).decode(errors="replace") == choice.message.content
        assert all(math.isfinite(one.logprob) and len(one.top_logprobs) == 2 for one in content)
    assert len(set(texts.values())) == 3, "the choices draw apart"
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == sum(map(len, figures.values()))


def test_the_bill_has_every_choice_and_the_prompt_once(stack: Stack) -> None:
    answer = client(stack).chat.completions.create(
        model="tiny", messages=say("a bill for four"), n=4, max_tokens=6, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    told = rated(stack, answer.id)
    billed = {line["meter"]: int(line["quantity"]) for line in told["lines"]}
    assert told["choices"] == 4
    assert billed["decode"] == answer.usage.completion_tokens == 24
    assert billed["prefill_computed"] + billed.get("prefill_cached", 0) == answer.usage.prompt_tokens


@pytest.mark.parametrize("stream", [True, False])
def test_several_prompts_are_continued_each_for_itself(stack: Stack, stream: bool) -> None:
    answer: Any = client(stack).completions.create(
        model="tiny", prompt=PROMPTS, n=2, max_tokens=12, temperature=0, echo=True, stream=stream
    )
    texts = dict.fromkeys(range(6), "")
    named: list[str] = []
    for part in answer if stream else [answer]:
        named = getattr(part, "brigade", {}).get("requests", named)
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == {index: PROMPTS[index // 2] + continuation(PROMPTS[index // 2], 12) for index in range(6)}
    for public_id, prompt in zip(named, PROMPTS, strict=True):
        told = receipt(stack, public_id)
        assert (told["id"], told["state"], told["choices"]) == (public_id, "done", 2)
        assert told["tokens"]["prompt"] == len(tiny()[1].encode_prompt(prompt))


def test_text_and_its_token_ids_are_the_same_prompt(stack: Stack) -> None:
    made = client(stack).post("/tokenize", cast_to=object, body={"model": "tiny", "prompt": PROMPTS[1]})
    ids = made["tokens"]  # type: ignore[index]
    by_text, by_ids = (
        client(stack).completions.create(model="tiny", prompt=prompt, max_tokens=8, temperature=0) for prompt in (PROMPTS[1], ids)
    )
    assert by_text.choices[0].text == by_ids.choices[0].text == continuation(PROMPTS[1], 8)
    back = client(stack).post("/detokenize", cast_to=object, body={"model": "tiny", "tokens": ids})
    assert back == {"prompt": PROMPTS[1]}


def test_an_echo_with_figures_tells_those_of_the_prompt(stack: Stack) -> None:
    answer = client(stack).completions.create(model="tiny", prompt="abcabc", max_tokens=3, temperature=0, echo=True, logprobs=2)
    told: Any = answer.choices[0].logprobs
    first, *figures = told.token_logprobs
    assert told.tokens[:6] == list("abcabc")
    assert first is None
    assert len(figures) == 8
    assert all(math.isfinite(value) and value <= 0 for value in figures)
    assert told.text_offset[:7] == list(range(7))


@pytest.mark.parametrize(
    "body",
    [
        {"messages": say("once"), "n": 2, "logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1},
        {"messages": say("the prompt's figures alone"), "prompt_logprobs": 2, "n": 2},
        {"prompt": ["once", "twice"], "echo": True, "logprobs": 1},
        {"prompt": ["half a character: \uac00", "n"], "n": 3, "temperature": 2, "stop": ["a", "\ufffd"]},
    ],
    ids=["chat", "figures of the prompt", "completions", "completions with stops"],
)
def test_a_retry_under_the_same_key_gets_the_same_bytes_and_one_bill(stack: Stack, body: dict[str, Any]) -> None:
    label = f"retry {time.time_ns()}"
    path = "/chat/completions" if "messages" in body else "/completions"
    asked = {"model": "tiny", "max_tokens": 9, "user": label, **body}

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: raw_post(stack, path, asked, label), range(6)))
    answers.append(raw_post(stack, path, asked, label))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert [answer.headers.get("idempotency-replayed") for answer in answers].count("true") == 6
    assert requests_of(stack, label) == len(body.get("prompt", [1]))
    told = rated(stack, json.loads(answers[0].content)["id"])
    assert int(told["total_nano_usd"]) > 0


def raw_post(stack: Stack, path: str, body: dict[str, Any], key: str) -> Any:
    sender = client(stack)
    return sender._client.post(
        f"{stack.base_url}{path}", json=body, headers={**sender.auth_headers, "Idempotency-Key": key}, timeout=60
    )


def test_a_client_that_lost_its_stream_reads_it_again_from_the_beginning(stack: Stack) -> None:
    label = f"lost {time.time_ns()}"
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": say("a long story"),
        "max_tokens": 400,
        "temperature": 0,
        "user": label,
        "stream": True,
        "extra_body": {"ignore_eos": True},
        "extra_headers": {"Idempotency-Key": label},
    }
    first = client(stack).chat.completions.create(**asked)
    heard = next(chunk.id for chunk in first)
    first.close()
    again = list(client(stack).chat.completions.create(**asked))
    assert {chunk.id for chunk in again} == {heard}
    assert again[-1].choices[0].finish_reason == "length"
    told = rated(stack, heard)
    assert (told["state"], told["tokens"]["completion"], told["cancel_requested_at"]) == ("done", 400, None)
    assert requests_of(stack, label) == 1


def test_another_body_under_the_same_key_is_refused(stack: Stack) -> None:
    headers = {"Idempotency-Key": f"reused {time.time_ns()}"}
    client(stack).completions.create(model="tiny", prompt="a", max_tokens=1, extra_headers=headers)
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client(stack).completions.create(model="tiny", prompt="b", max_tokens=1, extra_headers=headers)
    assert caught.value.code == "idempotency_key_reused"
