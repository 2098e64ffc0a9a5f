"""A token is a pure function of its row, the parameters and its place."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.contracts import SamplingParams
from inference.engine import sampler
from inference.engine.history import History
from inference.engine.sampler import _adjusted, rows_valid, sample, token_logprob, uniform

WARM = SamplingParams(max_tokens=1, temperature=1.0, seed=7)


def row(size: int = 300, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3


def draws(logits: torch.Tensor, count: int = 400, **changes: float) -> list[int]:
    params = dataclasses.replace(WARM, **changes)  # type: ignore[arg-type]
    return [sample(logits, params, choice=0, position=position, history=History()) for position in range(1, count + 1)]


def test_greedy_takes_the_largest() -> None:
    assert draws(row(), count=3, temperature=0.0) == [int(row().argmax())] * 3


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-300])
def test_a_temperature_just_above_nothing_takes_the_largest_too(temperature: float) -> None:
    assert draws(row(), count=3, temperature=temperature) == [int(row().argmax())] * 3


def test_the_same_place_gives_the_same_token_and_another_place_another_number() -> None:
    assert draws(row()) == draws(row())
    places = {uniform(seed=seed, choice=choice, position=position) for seed in (0, 1) for choice in (0, 1) for position in (1, 2)}
    assert len(places) == 8


def test_every_bit_of_the_seed_counts() -> None:
    assert uniform(seed=2**63 + 1, choice=0, position=1) != uniform(seed=1, choice=0, position=1)


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    wanted = torch.softmax(logits / 0.5, 0)
    counts = torch.bincount(torch.tensor(draws(logits, count=6000, temperature=0.5)), minlength=3) / 6000
    assert (counts - wanted).abs().max() < 0.02


def test_top_k_leaves_only_the_best() -> None:
    best = set(row().topk(5).indices.tolist())
    assert set(draws(row(), top_k=5, temperature=3.0)) == best


def test_top_p_leaves_the_fewest_that_reach_the_mass() -> None:
    order = row().sort(descending=True).indices.tolist()
    mass = torch.softmax(row().double(), 0)[order].cumsum(0)
    size = int((mass < 0.6).sum()) + 1
    assert set(draws(row(), count=2000, top_p=0.6)) == set(order[:size])


def test_top_p_is_taken_of_what_top_k_left() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert set(draws(logits, top_k=2, top_p=0.5)) == {0}
    assert set(draws(logits, top_k=2, top_p=0.6)) == {0, 1}


@pytest.mark.parametrize("changes", [{"top_p": 0.999}, {"top_k": 2000, "top_p": 0.999}])
def test_a_flat_row_needs_more_candidates_than_are_guessed_first(changes: dict[str, float]) -> None:
    chosen = draws(torch.zeros(3000), count=3000, **changes)
    assert len(set(chosen)) > 1100


def test_a_tiny_top_p_still_leaves_one() -> None:
    assert set(draws(row(), top_p=1e-9)) == {int(row().argmax())}


def test_rows_with_nan_or_infinity_are_told_apart() -> None:
    logits = torch.zeros(4, 5)
    logits[1, 2], logits[3, 0] = float("nan"), float("inf")
    assert rows_valid(logits) == [True, False, True, False]


def adjusted(logits: torch.Tensor, history: History, **changes: Any) -> int:
    params = dataclasses.replace(WARM, temperature=0.0, **changes)
    return sample(logits, params, choice=0, position=1, history=history)


def test_penalties_are_those_of_the_formula() -> None:
    """Against plain arithmetic, token by token."""
    logits, history = row(40), History(frozenset({1, 2, 3}), Counter({3: 2, 5: 1, 7: 40}))
    params = dataclasses.replace(
        WARM, frequency_penalty=0.7, presence_penalty=-0.3, repetition_penalty=1.4, logit_bias=((5, 1.5), (9, -2.0))
    )
    wanted = []
    for token_id, logit in enumerate(logits.tolist()):
        value = logit + dict(params.logit_bias).get(token_id, 0.0)
        if token_id in history.prompt or token_id in history.outputs:
            value = value / 1.4 if value > 0 else value * 1.4
        count = history.outputs[token_id]
        wanted.append(value - 0.7 * count - (-0.3 if count else 0.0))
    assert _adjusted(logits, params, history, frozenset()).tolist() == pytest.approx(wanted, abs=1e-5)


def test_repetition_is_as_transformers_has_it() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, seen = row(40), [3, 5, 5, 11]
    wanted = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([seen]), logits[None].clone())[0]
    params = dataclasses.replace(WARM, repetition_penalty=1.7)
    assert torch.equal(_adjusted(logits, params, History(frozenset(seen[:2]), Counter(seen[2:])), frozenset()), wanted)


def test_a_bias_can_force_and_forbid() -> None:
    best = int(row().argmax())
    assert adjusted(row(), History(), logit_bias=((17, 100.0),)) == 17
    assert adjusted(row(), History(), logit_bias=((best, -100.0),)) == int(row().topk(2).indices[1])


def test_a_bias_that_is_named_twice_counts_twice() -> None:
    assert adjusted(torch.tensor([1.0, 0.0]), History(), logit_bias=((1, 0.6), (1, 0.6))) == 1


def test_the_row_itself_is_never_changed() -> None:
    logits = row()
    adjusted(logits, History(outputs=Counter({3: 1})), logit_bias=((17, 5.0),), frequency_penalty=1.0, repetition_penalty=2.0)
    assert torch.equal(logits, row())


def test_ends_wait_for_the_least_number_of_tokens() -> None:
    logits, ends = torch.tensor([5.0, 0.0, 1.0]), frozenset({0})
    params = dataclasses.replace(WARM, max_tokens=9, temperature=0.0, min_tokens=3)
    taken = [sample(logits, params, choice=0, position=at, history=History(), ends=ends) for at in (1, 3, 4)]
    assert taken == [2, 2, 0]


def test_min_p_leaves_those_near_the_best() -> None:
    logits = torch.log(torch.tensor([0.5, 0.26, 0.14, 0.1]))
    assert set(draws(logits, count=2000, min_p=0.25)) == {0, 1, 2}
    assert set(draws(logits, count=2000, min_p=0.5, top_k=3)) == {0, 1}
    assert set(draws(logits, count=2000, min_p=0.5, top_p=0.6)) == {0}


@given(zeros=st.integers(1, 50), seed=st.integers(0, 2**64 - 1))
def test_what_has_no_probability_is_never_taken(zeros: int, seed: int) -> None:
    logits = torch.cat([torch.zeros(3), torch.full((zeros,), float("-inf"))])
    assert sample(logits, dataclasses.replace(WARM, seed=seed), choice=0, position=1, history=History()) < 3


def test_a_point_on_the_last_edge_takes_the_last_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "uniform", lambda **place: 1.0)
    logits = torch.cat([torch.zeros(3), torch.full((5,), float("-inf"))])
    assert sample(logits, WARM, choice=0, position=1, history=History()) == 2


def test_logprobs_are_finite_ordered_and_of_the_models_own_distribution() -> None:
    logits = torch.tensor([3.0, 0.0, 2.0, -3e38])
    found = token_logprob(logits, 3, 4)
    assert found.value == token_logprob(torch.tensor([3e38, -3e38]), 1, 0).value == -9999.0
    assert [token_id for token_id, _ in found.top] == [0, 2, 1, 3]
    assert all(math.isfinite(value) for _, value in found.top)
    assert token_logprob(row(), 17, 0).value == pytest.approx(float(torch.log_softmax(row(), 0)[17]), abs=1e-5)


def test_more_alternatives_than_there_are_tokens_are_all_of_them() -> None:
    assert len(token_logprob(row(5), 0, 20).top) == 5
