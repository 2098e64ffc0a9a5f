"""The official client against the whole product: split and fused, streamed and not, hit and miss, alone and in a crowd."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.flows.cast import ask, client, expected, rated, receipt, say, stream, text_of, until, wait_until_idle
from tests.flows.conftest import Stack
from tests.flows.faults import slowly

pytestmark = pytest.mark.timeout(240)

PROMPTS = [
    f"{word} {'salt and pepper ' * repeats}" for repeats, word in enumerate(["Hi", "Onions?", "한국어 김치", "👩‍🍳 cooks", "a"])
]


@pytest.fixture(autouse=True)
def invariants_hold_afterwards(stack: Stack) -> Iterator[None]:
    yield
    wait_until_idle(stack)
    found = until(lambda: stack.run("check_invariants", "--json"), lambda result: result.returncode == 0)
    assert found.returncode == 0, found.stdout


@pytest.fixture
def fused(stack: Stack) -> Iterator[None]:
    stack.run("config_set", "scheduling.path", "fused")
    until(lambda: receipt(stack, ask(stack, "which path?", 2).id)["path"], lambda path: path == "fused")
    yield
    stack.run("config_set", "scheduling.path", "auto")
    until(lambda: receipt(stack, ask(stack, "which path?", 2).id)["path"], lambda path: path == "split")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_split_answer_is_the_references_streamed_or_not_hit_or_miss(stack: Stack, prompt: str) -> None:
    whole = ask(stack, prompt)
    assert whole.choices[0].message.content == expected(prompt, 24)
    chunks = list(stream(stack, prompt))
    assert text_of(iter(chunks)) == expected(prompt, 24)
    told = receipt(stack, whole.id)
    assert (told["path"], told["workers"]) == ("split", {"prefill": "prefill-0", "decode": "decode-0"})
    assert [event["state"] for event in told["events"]] == ["queued", "prefilling", "ready", "decoding", "done"]
    usage = chunks[-1].usage
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_a_fused_answer_is_the_references_too(stack: Stack, fused: None) -> None:
    for prompt in PROMPTS:
        answer = ask(stack, prompt)
        assert answer.choices[0].message.content == expected(prompt, 24)
        assert receipt(stack, answer.id)["path_reason"] == "asked"


def test_a_crowd_changes_nobodys_answer(stack: Stack) -> None:
    prompts = [f"order {number}: {'plate ' * (number % 7)}" for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda prompt: text_of(stream(stack, prompt, 40)), prompts))
    assert answers == [expected(prompt, 40) for prompt in prompts]


def test_one_token_needs_no_second_worker(stack: Stack) -> None:
    answer = ask(stack, "one token", 1)
    assert answer.usage.completion_tokens == 1
    assert receipt(stack, answer.id)["path_reason"] == "one_token"


def test_the_stream_ends_as_the_client_expects(stack: Stack) -> None:
    chunks = list(stream(stack, "ends"))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_seed_repeats_its_text_and_another_seed_does_not(stack: Stack) -> None:
    def drawn(seed: int) -> str:
        return str(ask(stack, "dice", 40, temperature=1.0, seed=seed).choices[0].message.content)

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_a_stop_string_ends_the_answer_before_it(stack: Stack) -> None:
    plain = expected("stop here", 60)
    stop = plain[20:23]
    answer = ask(stack, "stop here", 60, stop=[stop])
    assert answer.choices[0].message.content == plain[: plain.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert text_of(stream(stack, "stop here", 60, stop=[stop])) == plain[: plain.index(stop)]


def test_a_wrong_key_is_refused_and_not_repeated(stack: Stack) -> None:
    wrong = "bk-" + "a" * 40
    with pytest.raises(openai.AuthenticationError) as refusal:
        client(stack, api_key=wrong).chat.completions.create(model="tiny", messages=say("hi"))
    assert refusal.value.code == "invalid_api_key"
    assert wrong not in str(refusal.value)


def test_a_prompt_that_is_too_long_is_refused_with_numbers_and_costs_nothing(stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(stack, "word " * 2000)
    assert refusal.value.code == "context_length_exceeded"
    assert "2048" in str(refusal.value)


def test_an_unknown_model_is_not_found(stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        client(stack).chat.completions.create(model="gpt-4", messages=say("hi"))
    assert refusal.value.code == "model_not_found"


def test_a_client_that_hangs_up_stops_the_engine_and_pays_for_what_it_got(stack: Stack) -> None:
    with slowly(stack):
        chunks = stream(stack, "a very long story", 1500, extra_body={"ignore_eos": True})
        first = next(chunks)
        for _ in range(20):
            next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        told = until(lambda: rated(stack, first.id), lambda found: found["state"] == "cancelled")
    assert 20 <= told["tokens"]["completion"] < 1500
    billed = {line["meter"]: int(line["quantity"]) for line in told["lines"]}
    assert billed["decode"] == told["tokens"]["completion"]


def test_a_receipt_can_be_checked_line_by_line(stack: Stack) -> None:
    told = rated(stack, ask(stack, "what does it cost? " * 20).id)
    for line in told["lines"]:
        owed = int(line["quantity"]) * int(line["unit_price_nano_usd"]) + int(line["carry_in"])
        assert int(line["amount_nano_usd"]) == owed // int(line["unit_quantity"])
    assert sum(int(line["amount_nano_usd"]) for line in told["lines"]) == int(told["total_nano_usd"])
    tokens = told["tokens"]
    assert tokens["computed"] + sum(tokens["cached"].values()) == tokens["prompt"]


def test_a_receipt_of_another_tenant_does_not_exist(stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError):
        receipt(stack, "chatcmpl-" + "0" * 32)
