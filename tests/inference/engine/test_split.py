"""Two engines and a copy between their pools: the same tokens as one."""

from __future__ import annotations

import dataclasses

import pytest

from inference.contracts import EngineRequest, SamplingParams
from inference.engine.engine import Engine
from inference.engine.errors import EngineRefusal
from inference.engine.events import EngineEvent, Prefilled
from tests.inference.engine import support
from tests.inference.engine.support import (
    GREEDY,
    assert_idle,
    copy_pages,
    drain,
    engine,
    expected,
    ids_of,
    prefilled,
    prompt,
    request,
)

LENGTHS = (1, 5, 15, 16, 17, 32, 50)


def prefill(one: Engine, ids: tuple[int, ...], sampling: SamplingParams = GREEDY) -> tuple[list[EngineEvent], Prefilled]:
    one.add(request("a", ids, sampling, phase="prefill"))
    events = drain(one)
    return events, prefilled(events, "a")


def decode_request(done: Prefilled, ids: tuple[int, ...], sampling: SamplingParams = GREEDY) -> EngineRequest:
    return request("a", ids, sampling, phase="decode", forced=done.outputs[0])


@pytest.mark.parametrize("length", LENGTHS)
def test_a_hand_off_gives_the_reference_answer_and_reuses_on_the_second_time(length: int) -> None:
    left, right, ids = engine(), engine(), prompt(length)
    for turn in range(2):
        events, done = prefill(left, ids)
        assert done.kv_tokens == length
        assert (len(done.blocks), done.usage.computed + done.usage.cached) == (-(-length // 16), length)
        place = right.reserve(decode_request(done, ids))
        assert place is not None
        assert place.cached_blocks == (length // 16 if turn else 0)
        copy_pages(left, right, done, place)
        assert right.admit("a")
        assert left.release("a") is not None
        events += drain(right)
        assert ids_of(events, "a") == expected(ids)
        assert [token.position for token in support.tokens_of(events, "a")] == list(range(1, 9))
        usage = support.usage_of(events, "a")
        assert (usage.computed, usage.cached, usage.recomputed, usage.completion) == (0, 0, 0, 7)
        assert_idle(left)
        assert_idle(right)


def test_the_copied_pages_are_found_by_later_requests() -> None:
    left, right, ids = engine(), engine(), prompt(40)
    _, done = prefill(left, ids)
    place = right.reserve(decode_request(done, ids))
    assert place is not None
    copy_pages(left, right, done, place)
    right.admit("a")
    drain(right)
    right.add(request("b", ids))
    assert support.usage_of(drain(right), "b").cached == 32


def test_pages_under_transfer_are_not_found_before_they_are_verified() -> None:
    left, right, ids = engine(), engine(), prompt(40)
    _, done = prefill(left, ids)
    right.reserve(decode_request(done, ids))
    right.add(request("b", ids))
    events = drain(right)
    assert support.usage_of(events, "b").cached == 0
    assert ids_of(events, "b") == expected(ids)


def test_sampling_and_text_do_not_see_the_seam() -> None:
    sampling = SamplingParams(max_tokens=12, temperature=0.0, stop=("yz",))
    ids = support.script(text="ü🙂xyz")
    alone = engine(support.scripted())
    alone.add(request("a", ids, sampling))
    whole = support.tokens_of(drain(alone), "a")
    left, right = engine(support.scripted()), engine(support.scripted())
    events, done = prefill(left, ids, sampling)
    place = right.reserve(decode_request(done, ids, sampling))
    assert place is not None
    copy_pages(left, right, done, place)
    right.admit("a")
    assert support.tokens_of(events + drain(right), "a") == whole
    assert "".join(token.text for token in whole) == "ü🙂x"


def test_a_prompt_whose_first_token_is_the_last_needs_no_hand_off() -> None:
    one = engine()
    one.add(request("a", prompt(20), dataclasses.replace(GREEDY, max_tokens=1), phase="prefill"))
    events = drain(one)
    assert support.finished(events, "a").reasons == ("length",)
    assert not [event for event in events if isinstance(event, Prefilled)]
    assert_idle(one)


def test_held_blocks_stay_until_release_and_release_twice_is_nothing() -> None:
    one = engine(blocks=4)
    _, done = prefill(one, prompt(40))
    assert one.counters().held == 3
    assert not one.has_work
    before = support.pool_of(one)[list(done.blocks)].clone()
    support.run(one, request("b", prompt(5)))
    assert bool((support.pool_of(one)[list(done.blocks)] == before).all())
    assert one.release("a") is not None
    assert one.release("a") is None
    assert_idle(one)


def test_a_held_request_can_go_on_where_it_is() -> None:
    one, ids = engine(), prompt(33)
    events, _ = prefill(one, ids)
    assert one.resume("a")
    events += drain(one)
    assert ids_of(events, "a") == expected(ids)
    usage = support.usage_of(events, "a")
    assert (usage.computed, usage.cached, usage.completion) == (33, 0, 8)
    assert not one.resume("a")
    assert_idle(one)


def test_a_held_request_that_never_fits_is_not_resumed() -> None:
    one = engine(blocks=3)
    prefill(one, prompt(40), dataclasses.replace(GREEDY, max_tokens=40))
    with pytest.raises(EngineRefusal, match="kv_pool_too_small"):
        one.resume("a")
    assert one.abort("a") is not None
    assert_idle(one)


def test_abort_of_a_held_request_gives_its_blocks_back() -> None:
    one = engine()
    prefill(one, prompt(40))
    assert one.abort("a") is not None
    assert one.abort("a") is None
    assert one.release("a") is None
    assert_idle(one)


def test_an_abort_during_a_transfer_keeps_the_blocks_from_others_until_it_ends() -> None:
    left, right, ids = engine(), engine(blocks=4), prompt(40)
    _, done = prefill(left, ids)
    place = right.reserve(decode_request(done, ids))
    assert place is not None
    assert right.abort("a") is not None
    assert right.abort("a") is None
    assert right.counters().quarantined == 3
    assert right.reserve(decode_request(done, ids)) is None
    right.add(request("b", prompt(20)))
    assert not ids_of([event for _ in range(3) for event in right.step()], "b")
    copy_pages(left, right, done, place)
    right.transfer_ended("a")
    right.transfer_ended("a")
    assert ids_of(drain(right), "b") == expected(prompt(20))
    assert not right.admit("a")
    assert_idle(right)


def test_after_a_transfer_has_ended_an_abort_frees_at_once() -> None:
    left, right, ids = engine(), engine(), prompt(40)
    _, done = prefill(left, ids)
    right.reserve(decode_request(done, ids))
    right.transfer_ended("a")
    right.abort("a")
    assert_idle(right)


def test_pages_that_do_not_come_are_computed_again_and_charged_to_nobody() -> None:
    left, right, ids = engine(), engine(), prompt(40)
    events, done = prefill(left, ids)
    place = right.reserve(decode_request(done, ids))
    assert place is not None
    assert right.recompute("a")
    assert right.counters().quarantined == 3
    support.pool_of(right)[list(place.blocks)] = float("nan")  # the lost transfer still writes
    events += drain(right)
    right.transfer_ended("a")
    assert ids_of(events, "a") == expected(ids)
    usage = support.usage_of(events, "a")
    assert (usage.computed, usage.cached, usage.recomputed) == (0, 0, 40)
    assert_idle(right)


def test_no_room_keeps_nothing_and_can_be_asked_again() -> None:
    left, right, ids = engine(), engine(blocks=3), prompt(40)
    _, done = prefill(left, ids)
    right.add(request("b", prompt(20, seed=5), dataclasses.replace(GREEDY, max_tokens=20)))
    right.step()
    assert right.reserve(decode_request(done, ids)) is None
    assert right.check() == []
    drain(right)
    assert right.reserve(decode_request(done, ids)) is not None


def test_reservations_take_slots() -> None:
    left, right, ids = engine(), engine(max_running=1), prompt(40)
    _, done = prefill(left, ids)
    assert right.reserve(decode_request(done, ids)) is not None
    assert not right.room_for(1)
    assert right.reserve(dataclasses.replace(decode_request(done, ids), request_id="b")) is None


def test_nothing_to_decode_is_refused() -> None:
    with pytest.raises(EngineRefusal, match="hand_off_invalid"):
        engine().reserve(request("a", prompt(5), phase="decode"))


def test_an_admitted_request_can_be_preempted_and_still_answers_the_same() -> None:
    left, right, ids = engine(), engine(blocks=8), prompt(40)
    sampling = dataclasses.replace(GREEDY, max_tokens=60)
    events, done = prefill(left, ids, sampling)
    place = right.reserve(decode_request(done, ids, sampling))
    assert place is not None
    copy_pages(left, right, done, place)
    right.admit("a")
    events += right.step()
    right.add(request("vip", prompt(60, seed=4), sampling, priority=1))
    events += drain(right)
    assert support.usage_of(events, "a").recomputed > 0
    assert ids_of(events, "vip") == expected(prompt(60, seed=4), sampling)
    assert ids_of(events, "a") == expected(ids, sampling)
    assert_idle(right)
