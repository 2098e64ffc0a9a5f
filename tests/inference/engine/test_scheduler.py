"""Who computes what: chunks, the prompt that is alone, priorities, preemption."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.contracts import SamplingParams
from inference.engine.engine import Engine
from inference.engine.scheduler import MAX_PREEMPTIONS, Chunk
from inference.engine.sequence import Sequence
from tests.inference.engine import support
from tests.inference.engine.support import GREEDY, assert_idle, drain, engine, expected, ids_of, prompt, request


def long(count: int) -> SamplingParams:
    return dataclasses.replace(GREEDY, max_tokens=count)


def plans(one: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, int, int]]]:
    """Fills with each step's plan: (request, first token, tokens)."""
    seen: list[list[tuple[str, int, int]]] = []
    schedule = one._scheduler.schedule

    def spy() -> list[Chunk]:
        plan = schedule()
        seen.append([(chunk.sequence.request_id, chunk.start, chunk.count) for chunk in plan])
        return plan

    monkeypatch.setattr(one._scheduler, "schedule", spy)
    return seen


def test_a_prompt_that_is_alone_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(chunk_tokens=16, sub_chunk_tokens=64, step_tokens=64)
    seen = plans(one, monkeypatch)
    one.add(request("a", prompt(150)))
    for _ in range(3):
        one.step()
    assert seen == [[("a", 0, 64)], [("a", 64, 64)], [("a", 128, 22)]]


def test_a_prompt_is_no_longer_alone_when_another_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(chunk_tokens=16, sub_chunk_tokens=64, step_tokens=64)
    seen = plans(one, monkeypatch)
    one.add(request("a", prompt(150)))
    one.step()
    one.add(request("late", prompt(10)))
    one.step()
    assert seen == [[("a", 0, 64)], [("a", 64, 16), ("late", 0, 10)]]


def test_a_short_prompt_waits_for_no_number_of_long_ones_and_the_first_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(chunk_tokens=16, step_tokens=40, max_running=8)
    seen = plans(one, monkeypatch)
    for name in ("a", "b", "c"):
        one.add(request(name, prompt(150)))
    one.step()
    one.add(request("short", prompt(10)))
    one.step()
    assert [(name, count) for name, _, count in seen[1]] == [("a", 16), ("short", 10), ("b", 14)]


def test_somebody_more_important_ends_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(chunk_tokens=16, sub_chunk_tokens=64, step_tokens=64)
    seen = plans(one, monkeypatch)
    one.add(request("a", prompt(150)))
    one.step()
    one.add(request("vip", prompt(20), priority=1))
    one.step()
    assert seen[1] == [("vip", 0, 16), ("a", 64, 16)]


def test_tokens_of_a_decoding_request_do_not_wait_for_a_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    one, ids = engine(chunk_tokens=16, sub_chunk_tokens=64, step_tokens=64), prompt(20, seed=1)
    assert one.reserve(request("d", ids, phase="decode", forced=expected(ids)[:1])) is not None
    seen = plans(one, monkeypatch)
    one.add(request("a", prompt(150)))
    one.step()
    one.admit("d")
    one.step()
    assert seen == [[("a", 0, 64)], [("d", 20, 1), ("a", 64, 16)]]


def test_pieces_of_a_whole_run_are_cut_to_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    time_us, per_token_us = 0, 10_000

    def clock() -> int:
        return time_us

    one = engine(blocks=128, sub_chunk_tokens=256, clock_us=clock)
    seen = plans(one, monkeypatch)
    forward = support.tiny().forward

    def slow(batch: Any, pool: Any) -> Any:
        nonlocal time_us
        time_us += per_token_us * len(batch.ids)
        return forward(batch, pool)

    monkeypatch.setattr(support.tiny(), "forward", slow)
    one.add(request("a", prompt(1500)))
    for _ in range(6):
        one.step()
    per_token_us = 500
    for _ in range(4):
        one.step()
    assert [plan[0][2] for plan in seen] == [256, 128, 64, 32, 32, 32, 32, 64, 128, 256]


def test_an_abort_between_two_pieces_of_a_whole_run_ends_it() -> None:
    one = engine(sub_chunk_tokens=64)
    one.add(request("a", prompt(150)))
    one.step()
    assert one.abort("a") is not None
    assert not one.has_work
    assert_idle(one)


def test_decoding_goes_first_and_prompts_share_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(chunk_tokens=20, step_tokens=33, max_running=8)
    one.add(request("d", prompt(5), long(30)))
    one.step()
    seen = plans(one, monkeypatch)
    one.add(request("low", prompt(50, seed=1)))
    one.add(request("high", prompt(50, seed=2), priority=1))
    one.step()
    one.step()
    assert seen == [[("d", 5, 1), ("high", 0, 20), ("low", 0, 12)], [("d", 6, 1), ("high", 20, 20), ("low", 12, 12)]]


def test_within_a_class_the_first_to_come_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(max_running=1, step_tokens=192)
    seen = plans(one, monkeypatch)
    for name in "abc":
        one.add(request(name, prompt(5), long(1)))
    drain(one)
    assert [plan[0][0] for plan in seen] == ["a", "b", "c"]


def test_an_important_request_takes_the_slot_of_a_less_important_one() -> None:
    one = engine(max_running=2)
    for name in ("low1", "low2"):
        one.add(request(name, prompt(20, seed=len(name)), long(40)))
    one.step()
    one.step()
    one.add(request("vip", prompt(30), priority=1))
    first = one.step()
    assert len(ids_of(first, "vip")) == 1
    assert ids_of(first + drain(one), "vip") == expected(prompt(30))
    assert_idle(one)


def test_the_same_class_takes_nobodys_slot() -> None:
    one = engine(max_running=1)
    one.add(request("a", prompt(20), long(10)))
    one.step()
    one.add(request("b", prompt(20, seed=1)))
    assert not ids_of(one.step(), "b")
    assert one.waiting == 1


def test_preempted_requests_answer_the_same_and_usage_counts_each_token_once() -> None:
    one = engine(blocks=10)
    sampling = dataclasses.replace(GREEDY, max_tokens=60, temperature=1.0, seed=3)
    names = {f"r{index}": prompt(20 + index, seed=index) for index in range(4)}
    for name, ids in names.items():
        one.add(request(name, ids, sampling))
    events = drain(one)
    for name, ids in names.items():
        assert ids_of(events, name) == expected(ids, sampling)
        usage = support.usage_of(events, name)
        assert (usage.computed + usage.cached, usage.completion) == (len(ids), 60)
    assert sum(support.usage_of(events, name).recomputed for name in names) > 0
    assert_idle(one)


def test_nobody_is_preempted_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(blocks=10)
    counts: dict[str, int] = {}
    preempt = one._scheduler._preempt

    def spy(sequence: Sequence) -> None:
        preempt(sequence)
        counts[sequence.request_id] = sequence.preemptions

    monkeypatch.setattr(one._scheduler, "_preempt", spy)
    for index in range(12):
        one.add(request(f"r{index}", prompt(20, seed=index), dataclasses.replace(GREEDY, max_tokens=70), priority=index % 3))
    events = drain(one)
    assert counts
    assert max(counts.values()) <= MAX_PREEMPTIONS
    assert all(ids_of(events, f"r{index}") == expected(prompt(20, seed=index), long(70)) for index in range(12))


def test_a_request_that_does_not_fit_is_overtaken_a_bounded_number_of_times() -> None:
    one = engine(blocks=8, max_running=4, step_tokens=192)
    one.add(request("old", prompt(20, seed=99), long(100)))
    one.step()
    one.add(request("big", prompt(100), long(2)))
    finished: list[str] = []
    for index in range(40):
        one.add(request(f"s{index}", prompt(10, seed=index), long(2)))
    while one.has_work:
        finished += [event.request_id for event in one.step() if type(event).__name__ == "Finished"]
    assert finished.index("big") < finished.index("s20")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_traffic_on_a_small_pool_ends_in_order(data: st.DataObject) -> None:
    one = engine(blocks=data.draw(st.integers(6, 14)), chunk_tokens=16, step_tokens=33, sub_chunk_tokens=32, max_running=5)
    wanted: dict[str, list[int]] = {}
    events = []
    for index in range(data.draw(st.integers(1, 8))):
        ids = prompt(data.draw(st.integers(1, 40)), seed=data.draw(st.integers(0, 2)))
        sampling = dataclasses.replace(GREEDY, max_tokens=data.draw(st.integers(1, 30)))
        one.add(request(f"r{index}", ids, sampling, priority=data.draw(st.sampled_from([1, 100]))))
        wanted[f"r{index}"] = expected(ids, sampling)
        for _ in range(data.draw(st.integers(0, 4))):
            events += one.step()
            assert one.check() == []
        if data.draw(st.booleans()):
            one.abort(victim := data.draw(st.sampled_from(sorted(wanted))))
            wanted[victim] = wanted[victim][: len(ids_of(events, victim))]
    events += drain(one)
    assert {name: ids_of(events, name) for name in wanted} == wanted
    assert_idle(one)
