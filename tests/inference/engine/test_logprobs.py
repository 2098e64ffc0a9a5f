"""Log-probabilities: one per token, of output and prompt, the same on a hit, in chunks, in a crowd, and by two engines."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from inference.contracts import SamplingParams, TokenLogprob
from inference.engine.engine import Engine
from inference.engine.events import EngineEvent
from inference.engine.reference import reference_logprobs
from tests.inference.engine import support
from tests.inference.engine.support import assert_idle, copy_pages, drain, engine, expected, prefilled, prompt

TOLD = SamplingParams(max_tokens=8, temperature=1.0, seed=3, ignore_eos=True, logprobs=3, prompt_logprobs=2)
LENGTHS = pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 33, 50])


def told(one: Engine, ids: tuple[int, ...], sampling: SamplingParams = TOLD, **changes: Any) -> list[EngineEvent]:
    one.add(dataclasses.replace(support.request("a", ids, sampling), **changes))
    return drain(one)


def outputs_of(events: list[EngineEvent], choice: int = 0) -> list[TokenLogprob]:
    tokens = [token for token in support.tokens_of(events, "a") if token.choice == choice]
    assert all(token.logprob for token in tokens)
    return [token.logprob._replace(prompt=()) for token in tokens if token.logprob]


def prompt_of(events: list[EngineEvent]) -> list[TokenLogprob | None]:
    (first,) = [token for token in support.tokens_of(events, "a") if (token.choice, token.position) == (0, 1)]
    others = [token for token in support.tokens_of(events, "a") if token is not first]
    assert not any(token.logprob.prompt for token in others if token.logprob)
    assert first.logprob
    return list(first.logprob.prompt)


def wanted(ids: tuple[int, ...], sampling: SamplingParams = TOLD, choice: int = 0) -> tuple[list[Any], list[Any]]:
    """Of prompt and output, bit by bit what an engine tells that has nothing else to do."""
    events = told(engine(), ids, sampling)
    return prompt_of(events), outputs_of(events, choice)


@LENGTHS
def test_they_are_those_of_the_reference(length: int) -> None:
    """Which computes without cache and batch, and so rounds otherwise."""
    ids = prompt(length)
    output = expected(ids, TOLD)
    reference = reference_logprobs(support.tiny(), ids, output, 3)
    prompts, outputs = wanted(ids)
    assert prompts[0] is None
    assert len(prompts) == length
    for found, other in zip([*prompts[1:], *outputs], reference, strict=True):
        assert found.value == pytest.approx(other.value, abs=1e-4)
        assert [value for _, value in found.top] == pytest.approx([value for _, value in other.top[: len(found.top)]], abs=1e-4)


@LENGTHS
def test_a_hit_and_a_cut_change_nothing(length: int) -> None:
    ids = prompt(length)
    one, chunked = engine(), engine(chunk_tokens=8, step_tokens=33)
    chunked.add(support.request("b", prompt(60, seed=9)))
    told(one, ids, dataclasses.replace(TOLD, prompt_logprobs=None))
    for events in (told(one, ids), told(chunked, ids)):
        assert (prompt_of(events), outputs_of(events)) == wanted(ids)


@LENGTHS
def test_they_cross_a_hand_off(length: int) -> None:
    left, right, ids = engine(), engine(), prompt(length)
    events = told(left, ids, phase="prefill")
    done = prefilled(events, "a")
    place = right.reserve(dataclasses.replace(support.request("a", ids, TOLD), phase="decode", forced=done.outputs))
    assert place is not None
    copy_pages(left, right, done, place)
    right.admit("a")
    events += drain(right)
    assert (prompt_of(events), outputs_of(events)) == wanted(ids)


def test_each_choice_has_its_own_and_the_prompts_come_once() -> None:
    sampling = dataclasses.replace(TOLD, n=3)
    events = told(engine(), prompt(20), sampling)
    for choice in range(3):
        assert outputs_of(events, choice) == wanted(prompt(20), sampling, choice)[1]
    assert prompt_of(events) == wanted(prompt(20), sampling)[0]


def test_a_preempted_prompt_is_told_whole_and_once() -> None:
    one = engine(blocks=8, chunk_tokens=16, step_tokens=33)
    one.add(support.request("a", prompt(90), TOLD))
    events = one.step()
    one.add(support.request("vip", prompt(60, seed=4), priority=1))
    events += drain(one)
    assert support.usage_of(events, "a").recomputed > 0
    assert (prompt_of(events), outputs_of(events)) == wanted(prompt(90))
    assert_idle(one)


def test_a_take_over_tells_what_comes_and_not_what_was_told() -> None:
    ids, output = prompt(21), expected(prompt(21), TOLD)
    events = told(engine(), ids, forced=(tuple(output[:3]),))
    assert outputs_of(events) == wanted(ids)[1][3:]
    assert not any(token.logprob.prompt for token in support.tokens_of(events, "a") if token.logprob)


def test_a_prompt_that_must_be_told_is_not_looked_up_but_found_by_others() -> None:
    one, ids = engine(), prompt(40)
    for _ in range(2):
        assert support.usage_of(told(one, ids), "a").cached == 0
    assert support.usage_of(told(one, ids, dataclasses.replace(TOLD, prompt_logprobs=None)), "a").cached == 32


def test_the_end_token_has_one_too() -> None:
    sampling = SamplingParams(max_tokens=9, temperature=0.0, logprobs=0)
    one = engine(support.scripted())
    one.add(support.request("a", support.script(text="hi"), sampling))
    events = drain(one)
    assert [token.logprob is not None for token in support.tokens_of(events, "a")] == [True] * 3
    assert all(math.isfinite(one.value) and one.value <= 0 for one in outputs_of(events))


def test_without_asking_nothing_is_told() -> None:
    events = told(engine(), prompt(9), dataclasses.replace(TOLD, logprobs=None, prompt_logprobs=None))
    assert [token.logprob for token in support.tokens_of(events, "a")] == [None] * 8
