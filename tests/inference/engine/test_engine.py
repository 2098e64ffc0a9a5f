"""The engine on the tiny model: whatever the company, the cut or the cache, its tokens are the reference's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from inference.contracts import EngineRequest, SamplingParams
from inference.engine.errors import EngineRefusal
from inference.engine.events import Token
from tests.inference.engine import support
from tests.inference.engine.support import GREEDY, assert_idle, drain, engine, expected, prompt, request, run, usage_of

BORDERS = (1, 2, 5, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)


@pytest.mark.parametrize("length", BORDERS)
def test_a_miss_and_a_hit_give_the_reference_answer(length: int) -> None:
    one, ids = engine(), prompt(length)
    one.add(request("miss", ids))
    events = drain(one)
    one.add(request("hit", ids))
    events += drain(one)
    assert support.ids_of(events, "miss") == support.ids_of(events, "hit") == expected(ids)
    miss, hit = usage_of(events, "miss"), usage_of(events, "hit")
    assert (miss.computed, miss.cached) == (length, 0)
    assert (hit.computed, hit.cached) == (length - (length - 1) // 16 * 16, (length - 1) // 16 * 16)
    assert_idle(one)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 63, 64, 65])
def test_chunk_borders_do_not_show(length: int) -> None:
    """Chunks of 8: a second request in the queue keeps the first from running whole."""
    one = engine(chunk_tokens=8, step_tokens=33, max_running=32)
    answers = run(one, request("a", prompt(length)), request("b", prompt(40, seed=1)))
    assert answers == {"a": expected(prompt(length)), "b": expected(prompt(40, seed=1))}


@pytest.mark.parametrize("size", [2, 8, 31, 44, 45])
def test_batch_mates_change_nothing(size: int) -> None:
    one = engine(blocks=256, max_running=64)
    prompts = {f"r{index}": prompt(1 + 7 * index % 60, seed=index) for index in range(size)}
    warm = SamplingParams(max_tokens=8, temperature=1.3, top_p=0.95, seed=5, ignore_eos=True)
    answers = run(one, *(request(name, ids, warm) for name, ids in prompts.items()))
    assert answers == {name: expected(ids, warm) for name, ids in prompts.items()}


def test_logits_are_the_same_bits_alone_in_a_batch_and_on_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[torch.Tensor] = []
    forward = support.tiny().forward

    def spy(batch: Any, pool: torch.Tensor) -> torch.Tensor:
        logits = forward(batch, pool)
        sampled = [one for one in batch.segments if one.logits]
        rows.extend(logit for logit, one in zip(logits, sampled, strict=True) if one.tokens[:70] == list(prompt(70)))
        return logits

    monkeypatch.setattr(support.tiny(), "forward", spy)
    single = dataclasses.replace(GREEDY, max_tokens=1)
    one = engine(blocks=128)
    run(one, request("alone", prompt(70), single))
    run(one, request("hit", prompt(70), single))
    run(engine(blocks=128), *(request(f"r{index}", prompt(70 if index == 3 else 20 + index), single) for index in range(9)))
    assert len(rows) == 3
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def test_requests_may_join_at_any_step() -> None:
    one, events = engine(blocks=128), []
    for index in range(6):
        one.add(request(f"r{index}", prompt(10 + 9 * index)))
        events += one.step() + one.step()
    events += drain(one)
    assert all(support.ids_of(events, f"r{index}") == expected(prompt(10 + 9 * index)) for index in range(6))


def test_outputs_are_found_again_by_the_next_turn() -> None:
    one, ids = engine(), prompt(30)
    answer = run(one, request("first", ids, dataclasses.replace(GREEDY, max_tokens=40)))["first"]
    longer = (*ids, *answer, 65, 66)
    one.add(request("second", longer))
    events = drain(one)
    assert usage_of(events, "second").cached == 64
    assert support.ids_of(events, "second") == expected(longer)


def test_another_scope_finds_nothing() -> None:
    one = engine()
    run(one, request("a", prompt(40)))
    one.add(request("b", prompt(40), salt=b"t" * 32))
    assert usage_of(drain(one), "b").cached == 0


def test_the_end_of_text_token_ends_and_is_counted() -> None:
    ids = next(ids for ids in (prompt(6, seed=seed) for seed in range(400)) if _ends_early(ids))
    sampling = SamplingParams(max_tokens=30, temperature=1.5, seed=1)
    one = engine()
    one.add(request("a", ids, sampling))
    events = drain(one)
    wanted = expected(ids, sampling)
    assert support.ids_of(events, "a") == wanted
    assert wanted[-1] in support.EOS
    assert (support.finished(events, "a").reasons, usage_of(events, "a").completion) == (("stop",), len(wanted))


def _ends_early(ids: tuple[int, ...]) -> bool:
    return len(expected(ids, SamplingParams(max_tokens=30, temperature=1.5, seed=1))) < 30


def test_max_tokens_is_exact_and_the_context_bounds_it() -> None:
    one = engine(blocks=160)
    one.add(request("a", prompt(2040), dataclasses.replace(GREEDY, max_tokens=100)))
    events = drain(one)
    assert (len(support.ids_of(events, "a")), support.finished(events, "a").reasons) == (8, ("length",))


def test_token_numbers_have_no_gap() -> None:
    one = engine()
    for index in range(4):
        one.add(request(f"r{index}", prompt(10 + index)))
    events = drain(one)
    for index in range(4):
        assert [token.position for token in support.tokens_of(events, f"r{index}")] == list(range(1, 9))


def test_forced_tokens_are_context_and_not_emitted_again() -> None:
    ids, wanted = prompt(21), expected(prompt(21))
    for known in range(1, 8):
        one = engine()
        one.add(request("a", ids, forced=wanted[:known]))
        events = drain(one)
        assert [token.position for token in support.tokens_of(events, "a")] == list(range(known + 1, 9))
        assert support.ids_of(events, "a") == wanted[known:]
        usage = usage_of(events, "a")
        assert (usage.computed, usage.cached, usage.recomputed, usage.completion) == (21, 0, known - 1, 8 - known)


def test_a_take_over_of_what_was_complete_only_finishes() -> None:
    one, wanted = engine(), expected(prompt(9))
    one.add(request("a", prompt(9), forced=wanted))
    assert one.has_work
    (end,) = drain(one)
    assert end == support.finished([end], "a")
    assert end.reasons == ("length",)
    assert_idle(one)


@pytest.mark.parametrize(("before", "cached"), [([], 0), ([prompt(40)], 32)])
def test_a_take_over_of_what_was_complete_pays_for_its_prompt(before: list[list[int]], cached: int) -> None:
    """Who computed it died with the count: it is metered as if it ran here, once, and its tokens by whoever adds both phases."""
    one, wanted = engine(), expected(prompt(40))
    for number, ids in enumerate(before):
        one.add(request(f"before {number}", ids))
        drain(one)
    one.add(request("a", prompt(40), forced=wanted))
    usage = usage_of(drain(one), "a")
    assert (usage.computed, usage.cached, usage.recomputed, usage.completion) == (40 - cached, cached, 0, 0)
    assert_idle(one)


def test_decode_without_pages_charges_nobody() -> None:
    wanted = expected(prompt(33))
    one = engine()
    one.add(request("a", prompt(33), phase="decode", forced=wanted[:1]))
    events = drain(one)
    assert support.ids_of(events, "a") == wanted[1:]
    usage = usage_of(events, "a")
    assert (usage.computed, usage.cached, usage.recomputed) == (0, 0, 33)


def test_an_old_block_is_announced_before_its_content_changes() -> None:
    seen: list[tuple[int, float]] = []
    one = engine(blocks=4, raise_generation=lambda block: seen.append((block, float(support.pool_of(one)[block].abs().nansum()))))
    run(one, request("a", prompt(40)))
    before = {block: float(support.pool_of(one)[block].abs().nansum()) for block in range(4)}
    seen.clear()
    run(one, request("b", prompt(40, seed=2), dataclasses.replace(GREEDY, max_tokens=20)))
    assert all(content == pytest.approx(before[block]) for block, content in seen[:4])
    assert {block for block, _ in seen} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("prompt_empty", {"prompt_ids": ()}),
        ("token_id_invalid", {"prompt_ids": (1, 290)}),
        ("token_id_invalid", {"prompt_ids": (-1,)}),
        ("token_id_invalid", {"forced": ((10**9,),)}),
        ("context_length_exceeded", {"prompt_ids": (1,) * 2048}),
        ("hand_off_invalid", {"forced": ((), ())}),
        ("kv_pool_too_small", {"prompt_ids": (1,) * 1100}),
        ("kv_pool_too_small", {"sampling": SamplingParams(max_tokens=1100)}),
        ("sampling_invalid", {"sampling": SamplingParams(max_tokens=0)}),
        ("sampling_invalid", {"sampling": SamplingParams(max_tokens=1, temperature=float("nan"))}),
        ("sampling_invalid", {"sampling": SamplingParams(max_tokens=1, top_p=0.0)}),
        ("sampling_invalid", {"sampling": SamplingParams(max_tokens=1, top_k=-1)}),
    ],
)
def test_what_can_never_run_is_refused_and_others_go_on(code: str, changes: dict[str, Any]) -> None:
    one, good = engine(), request("good", prompt(20))
    one.add(good)
    one.step()
    bad: EngineRequest = dataclasses.replace(request("bad", prompt(5)), **changes)
    with pytest.raises(EngineRefusal) as refusal:
        one.add(bad)
    assert refusal.value.code == code
    with pytest.raises(EngineRefusal, match="duplicate_request"):
        one.add(good)
    drain(one)
    assert_idle(one)


def test_a_top_k_of_a_billion_is_only_all_of_the_vocabulary() -> None:
    sampling = dataclasses.replace(GREEDY, temperature=1.0, top_k=10**9, top_p=0.9, seed=3)
    assert run(engine(), request("a", prompt(9), sampling))["a"] == expected(prompt(9), sampling)


def test_held_kv_is_integrated_and_time_is_split_by_phase() -> None:
    time_us = 0

    def clock() -> int:
        return time_us

    one = engine(clock_us=clock)
    one.add(request("a", prompt(20), dataclasses.replace(GREEDY, max_tokens=3)))
    time_us = 5_000
    one.step()
    time_us = 15_000
    events = one.step()
    time_us = 40_000
    usage = usage_of(events + drain(one), "a")
    assert usage.queue_ms == 5.0
    assert (usage.decode_ms, usage.itl_ms) == (35.0, (10.0, 25.0, 25.0))
    assert usage.kv_token_us == 20 * 10_000 + 21 * 25_000


def test_room_is_what_a_request_could_have_now() -> None:
    one = engine(blocks=4)
    assert (one.room_for(64), one.room_for(65)) == (True, False)
    one.add(request("a", prompt(20), dataclasses.replace(GREEDY, max_tokens=20)))
    assert (one.room_for(32), one.room_for(33)) == (True, False)
    one.step()
    assert (one.running, one.waiting) == (1, 0)
    assert (one.room_for(16), one.room_for(17)) == (True, False)
    drain(one)
    assert one.room_for(64)


def test_no_slot_means_no_room() -> None:
    one = engine(max_running=1)
    one.add(request("a", prompt(5)))
    assert not one.room_for(1)


def test_a_step_without_work_returns_at_once() -> None:
    one = engine()
    assert not one.has_work
    assert one.step() == []


def test_text_is_whole_characters_and_without_the_stop_string() -> None:
    one = engine(support.scripted())
    ids = support.script(text="für 🙂 STOPP and more", finish="length")
    one.add(request("a", ids, SamplingParams(max_tokens=60, temperature=0.0, stop=("STOP",))))
    events = drain(one)
    tokens = support.tokens_of(events, "a")
    assert support.text_of(events, "a") == "für 🙂 "
    assert tokens[-1].finish_reason == "stop"
    assert [token.finish_reason for token in tokens[:-1]] == [None] * (len(tokens) - 1)
    assert all("�" not in token.text for token in tokens)


def test_the_last_token_brings_what_was_held_back() -> None:
    one = engine(support.scripted())
    one.add(request("a", support.script(text="abcST"), SamplingParams(max_tokens=5, temperature=0.0, stop=("STOP",))))
    events = drain(one)
    assert [token.text for token in support.tokens_of(events, "a")] == ["a", "b", "c", "", "ST"]
    assert support.finished(events, "a").reasons == ("length",)


def test_text_at_a_position_does_not_depend_on_who_made_the_tokens_before() -> None:
    ids, sampling = support.script(text="x🙂y STOP z"), SamplingParams(max_tokens=30, temperature=0.0, stop=("STOP",))
    whole = _tokens(request("a", ids, sampling))
    for known in range(1, len(whole)):
        rest = _tokens(request("a", ids, sampling, forced=[token.token_id for token in whole[:known]]))
        assert rest == whole[known:]


def _tokens(one_request: EngineRequest) -> list[Token]:
    one = engine(support.scripted())
    one.add(one_request)
    return support.tokens_of(drain(one), "a")
