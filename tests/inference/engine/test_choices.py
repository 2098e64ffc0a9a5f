"""Several choices of one prompt: each is what it would be alone, on every way through one engine or two."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.contracts import EngineRequest, SamplingParams
from inference.engine.engine import Engine
from inference.engine.errors import EngineRefusal
from inference.engine.events import EngineEvent, Prefilled, Reservation
from tests.inference.engine import support
from tests.inference.engine.support import assert_idle, choices_of, copy_pages, drain, engine, expected_choices, prefilled, prompt

WARM = SamplingParams(max_tokens=8, temperature=1.2, seed=11, n=3, ignore_eos=True)
ENDING = dataclasses.replace(WARM, max_tokens=24, temperature=1.6, ignore_eos=False)
PENALISED = dataclasses.replace(WARM, frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.3, min_p=0.01, top_p=0.98)
BIASED = dataclasses.replace(ENDING, logit_bias=((7, 4.0), (65, -100.0)), stop_ids=(7, 9), min_tokens=3)
ALL = {"warm": WARM, "ending": ENDING, "penalised": PENALISED, "biased": BIASED}
PARAMETERS = pytest.mark.parametrize("sampling", ALL.values(), ids=ALL)
LENGTHS = pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 50])


def request(ids: tuple[int, ...], sampling: SamplingParams, **changes: object) -> EngineRequest:
    return dataclasses.replace(support.request("a", ids, sampling), **{"forced": (), **changes})  # type: ignore[arg-type]


def hand_off(left: Engine, right: Engine, ids: tuple[int, ...], sampling: SamplingParams) -> tuple[list[EngineEvent], bool]:
    """Prefill's events; whether there was something left to decode, which is reserved and copied then."""
    left.add(request(ids, sampling, phase="prefill"))
    events = drain(left)
    if not any(isinstance(event, Prefilled) for event in events):
        return events, False
    done = prefilled(events, "a")
    assert done.kv_tokens == len(ids)
    copy_pages(left, right, done, reserved(right, request(ids, sampling, phase="decode", forced=done.outputs)))
    left.release("a")
    return events, True


def reserved(one: Engine, each: EngineRequest) -> Reservation:
    place = one.reserve(each)
    assert place is not None
    return place


def assert_answers(events: list[EngineEvent], ids: tuple[int, ...], sampling: SamplingParams) -> None:
    wanted = expected_choices(ids, sampling)
    assert choices_of(events, "a", sampling.n) == wanted
    ended = sorted((token.choice, token.finish_reason) for token in support.tokens_of(events, "a") if token.finish_reason)
    assert ended == list(enumerate(support.finished(events, "a").reasons))
    assert len(ended) == sampling.n


@PARAMETERS
@LENGTHS
def test_one_engine_gives_each_choice_its_own_answer(sampling: SamplingParams, length: int) -> None:
    one, ids = engine(), prompt(length)
    for turn in range(2):
        one.add(request(ids, sampling))
        events = drain(one)
        assert_answers(events, ids, sampling)
        usage, cached = support.usage_of(events, "a"), turn * ((length - 1) // 16 * 16)
        assert (usage.computed, usage.cached) == (length - cached, cached)
        assert usage.completion == sum(map(len, expected_choices(ids, sampling)))
        assert_idle(one)


@PARAMETERS
@LENGTHS
def test_two_engines_give_each_choice_its_own_answer(sampling: SamplingParams, length: int) -> None:
    left, right, ids = engine(), engine(), prompt(length)
    events, more = hand_off(left, right, ids, sampling)
    assert more
    assert right.admit("a")
    events += drain(right)
    assert_answers(events, ids, sampling)
    usage = support.usage_of(events, "a")
    assert (usage.computed, usage.cached) == (0, 0)
    assert_idle(left)
    assert_idle(right)


@PARAMETERS
def test_pages_that_do_not_come_change_no_choice(sampling: SamplingParams) -> None:
    left, right, ids = engine(), engine(), prompt(40)
    events, _ = hand_off(left, right, ids, sampling)
    assert right.recompute("a")
    right.transfer_ended("a")
    events += drain(right)
    assert_answers(events, ids, sampling)
    assert_idle(right)


@PARAMETERS
def test_a_held_request_goes_on_where_it_is(sampling: SamplingParams) -> None:
    one, ids = engine(), prompt(33)
    one.add(request(ids, sampling, phase="prefill"))
    events = drain(one)
    assert one.resume("a")
    events += drain(one)
    assert_answers(events, ids, sampling)
    assert_idle(one)


def test_the_first_tokens_of_all_choices_come_together_and_need_one_prefill() -> None:
    one = engine()
    one.add(request(prompt(20), WARM, phase="prefill"))
    events = one.step()
    assert [(token.choice, token.position) for token in support.tokens_of(events, "a")] == [(0, 1), (1, 1), (2, 1)]
    assert prefilled(events, "a").usage.computed == 20
    assert one.counters().held == 2
    one.release("a")
    assert_idle(one)


def test_choices_that_end_at_their_first_token_need_no_hand_off() -> None:
    one = engine()
    one.add(request(prompt(20), dataclasses.replace(WARM, max_tokens=1), phase="prefill"))
    events = drain(one)
    assert support.finished(events, "a").reasons == ("length",) * 3
    assert_idle(one)


def test_a_leader_that_ends_at_its_first_token_leaves_the_prompt_to_the_others() -> None:
    sampling, ids = dataclasses.replace(ENDING, max_tokens=6), prompt(20)
    first = {answer[0] for answer in expected_choices(ids, sampling)[1:]}
    leader = expected_choices(ids, sampling)[0][0]
    assert leader not in first
    sampling = dataclasses.replace(sampling, stop_ids=(leader,))
    for resume in (True, False):
        left, right = engine(), engine()
        events, _ = hand_off(left, right, ids, sampling) if not resume else ([], False)
        if resume:
            left.add(request(ids, sampling, phase="prefill"))
            events = drain(left)
            left.resume("a")
        else:
            right.admit("a")
        events += drain(left) + drain(right)
        assert_answers(events, ids, sampling)
        assert_idle(left)
        assert_idle(right)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    phase=st.sampled_from(["fused", "prefill", "decode"]),
    sampling=st.sampled_from(list(ALL.values())),
)
def test_a_take_over_goes_on_from_whatever_each_choice_has(data: st.DataObject, phase: str, sampling: SamplingParams) -> None:
    """Choices have come to different places; some may have ended, of some nothing is known."""
    ids = prompt(data.draw(st.sampled_from([1, 16, 21, 32])))
    wanted = expected_choices(ids, sampling)
    known = [data.draw(st.integers(0, len(answer))) for answer in wanted]
    forced = tuple(tuple(answer[:count]) for answer, count in zip(wanted, known, strict=True))
    left, right = engine(), engine()
    left.add(request(ids, sampling, phase=phase, forced=forced))
    events = drain(left)
    done = [event for event in events if isinstance(event, Prefilled)]
    if done and any(done[0].outputs):
        copy_pages(left, right, done[0], reserved(right, request(ids, sampling, phase="decode", forced=done[0].outputs)))
        left.release("a")
        right.admit("a")
        events += drain(right)
    assert choices_of(events, "a", 3) == [answer[count:] for answer, count in zip(wanted, known, strict=True)]
    positions = [(token.choice, token.position) for token in support.tokens_of(events, "a")]
    assert len(set(positions)) == len(positions)
    support.finished(events, "a")
    assert_idle(left)
    assert_idle(right)


def test_a_pool_that_is_too_small_for_all_at_once_preempts_and_answers_the_same() -> None:
    one, sampling = engine(blocks=7), dataclasses.replace(PENALISED, max_tokens=50, n=4)
    one.add(request(prompt(20), sampling))
    events = drain(one)
    assert_answers(events, prompt(20), sampling)
    assert support.usage_of(events, "a").recomputed > 0
    assert_idle(one)


def test_more_choices_than_slots_take_turns() -> None:
    one, sampling = engine(max_running=2), dataclasses.replace(WARM, n=9)
    one.add(request(prompt(20), sampling))
    assert_answers(drain(one), prompt(20), sampling)
    assert_idle(one)


def test_choices_change_nothing_for_their_batch_mates() -> None:
    one = engine(blocks=128)
    one.add(request(prompt(20), dataclasses.replace(PENALISED, n=5)))
    answers = support.run(one, *(support.request(f"r{index}", prompt(9 + index)) for index in range(4)))
    assert answers == {f"r{index}": support.expected(prompt(9 + index)) for index in range(4)}


@pytest.mark.parametrize("steps", range(6))
def test_an_abort_ends_all_choices_whenever_it_comes(steps: int) -> None:
    one = engine()
    one.add(request(prompt(40), WARM))
    for _ in range(steps):
        one.step()
    assert one.abort("a") is not None
    assert not one.has_work
    assert_idle(one)


def test_a_choice_without_numbers_fails_the_request_and_no_other() -> None:
    one = engine(support.scripted())
    one.add(request(support.script(text="hello", nan_at=3), dataclasses.replace(WARM, temperature=0.0)))
    one.add(support.request("good", support.script(text="fine", finish="length")))
    events = drain(one)
    assert support.failed(events, "a").code == "model_output_invalid"
    assert support.text_of(events, "good") == "fineeeee"
    assert_idle(one)


def test_the_prompt_is_held_once_for_all_choices() -> None:
    time_us = 0

    def clock() -> int:
        return time_us

    one = engine(clock_us=clock)
    one.add(request(prompt(32), dataclasses.replace(WARM, max_tokens=2)))
    one.step()
    time_us = 1_000
    events = drain(one)
    assert support.usage_of(events, "a").kv_token_us == 32 * 1_000


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 0},
        {"n": 10**9},
        {"min_p": float("nan")},
        {"min_p": 1.5},
        {"frequency_penalty": 1e9},
        {"presence_penalty": float("inf")},
        {"repetition_penalty": 0.0},
        {"logit_bias": ((1, float("nan")),)},
        {"logit_bias": ((1, 1.0),) * 2000},
        {"stop_ids": (1,) * 100},
        {"min_tokens": 9},
        {"logprobs": 10**9},
        {"prompt_logprobs": -1},
    ],
)
def test_parameters_out_of_range_are_refused(changes: dict[str, object]) -> None:
    one = engine()
    with pytest.raises(EngineRefusal, match="sampling_invalid"):
        one.add(request(prompt(5), dataclasses.replace(WARM, **changes)))  # type: ignore[arg-type]
    assert_idle(one)


@pytest.mark.parametrize("changes", [{"logit_bias": ((290, 1.0),)}, {"stop_ids": (-1,)}])
def test_ids_outside_the_vocabulary_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(EngineRefusal, match="token_id_invalid"):
        engine().add(request(prompt(5), dataclasses.replace(WARM, **changes)))  # type: ignore[arg-type]
