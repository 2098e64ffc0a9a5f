"""One request's misfortune is its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from inference.contracts import SamplingParams
from tests.inference.engine import support
from tests.inference.engine.support import GREEDY, assert_idle, drain, engine, expected, failed, ids_of, prompt, request, script

ANSWER = SamplingParams(max_tokens=30, temperature=0.0)


def test_a_nan_row_fails_its_request_and_batch_mates_go_on() -> None:
    one = engine(support.scripted())
    one.add(request("good", script(text="all is well"), ANSWER))
    one.add(request("bad", script(text="abcdef", nan_at=4), ANSWER))
    events = drain(one)
    assert support.text_of(events, "good") == "all is well"
    assert support.text_of(events, "bad") == "abc"
    failure = failed(events, "bad")
    assert failure.code == "model_output_invalid"
    assert failure.usage.completion == 3
    assert_idle(one)


def test_what_a_failed_request_computed_is_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model breaks once, in the middle of a prompt: its NaN entries are full, published blocks by the time it shows."""
    one, model = engine(chunk_tokens=16, sub_chunk_tokens=16), support.tiny()
    forward, broken = model.forward, [2]

    def breaks(batch: Any, pool: torch.Tensor) -> torch.Tensor:
        logits = forward(batch, pool)
        broken[0] -= 1
        if broken[0] == 0:
            pool[batch.blocks] = float("nan")
        return logits

    monkeypatch.setattr(model, "forward", breaks)
    one.add(request("bad", prompt(70)))
    assert failed(drain(one), "bad").usage.completion == 0
    one.add(request("again", prompt(70)))
    events = drain(one)
    assert ids_of(events, "again") == expected(prompt(70))
    assert support.usage_of(events, "again").cached == 0
    assert_idle(one)


def test_nan_in_a_block_does_not_reach_its_next_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(blocks=4)
    support.pool_of(one).fill_(float("nan"))
    one.add(request("a", prompt(20)))
    assert ids_of(drain(one), "a") == expected(prompt(20))


def test_the_scripted_model_notices_a_page_that_was_overwritten() -> None:
    one = engine(support.scripted())
    one.add(request("a", script(text="abcdefgh"), ANSWER))
    one.step()
    support.pool_of(one)[0, 0, 0, 0, 3] += 1
    assert failed(drain(one), "a").code == "model_output_invalid"


@pytest.mark.parametrize("steps", range(7))
def test_abort_in_any_step_gives_everything_back_and_a_second_one_does_nothing(steps: int) -> None:
    one = engine(chunk_tokens=16, step_tokens=33)
    one.add(request("a", prompt(50), dataclasses.replace(GREEDY, max_tokens=20)))
    one.add(request("b", prompt(50, seed=1)))
    events = [event for _ in range(steps) for event in one.step()]
    usage = one.abort("a")
    assert usage is not None
    assert usage.completion == len(ids_of(events, "a"))
    assert one.abort("a") is None
    assert one.check() == []
    events += drain(one)
    assert ids_of(events, "b") == expected(prompt(50, seed=1))
    assert support.finished(events, "b")
    assert_idle(one)


def test_abort_of_an_unknown_or_ended_request_is_nothing() -> None:
    one = engine()
    assert one.abort("nobody") is None
    support.run(one, request("a", prompt(5)))
    assert one.abort("a") is None
    assert_idle(one)


def test_abort_of_one_that_shares_blocks_leaves_the_other_its_own() -> None:
    one = engine()
    support.run(one, request("first", prompt(40)))
    one.add(request("a", prompt(40)))
    one.add(request("b", prompt(40)))
    events = one.step()
    one.abort("a")
    assert ids_of(events + drain(one), "b") == expected(prompt(40))
    assert_idle(one)


def test_an_id_can_be_used_again_after_its_end() -> None:
    one = engine()
    for _ in range(3):
        assert support.run(one, request("a", prompt(17)))["a"] == expected(prompt(17))


def test_a_full_pool_holds_back_only_who_does_not_fit() -> None:
    one = engine(blocks=6)
    one.add(request("held", prompt(33, seed=9), phase="prefill"))
    drain(one)
    one.add(request("big", prompt(60)))
    one.add(request("small", prompt(10)))
    events = [event for _ in range(30) for event in one.step()]
    assert ids_of(events, "small") == expected(prompt(10))
    assert not ids_of(events, "big")
    one.release("held")
    assert ids_of(drain(one), "big") == expected(prompt(60))
    assert_idle(one)
