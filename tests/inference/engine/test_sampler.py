"""A token is a pure function of its row, the parameters and its place."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inference.contracts import SamplingParams
from inference.engine.sampler import rows_valid, sample, uniform

WARM = SamplingParams(max_tokens=1, temperature=1.0, seed=7)


def row(size: int = 300, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3


def draws(logits: torch.Tensor, count: int = 400, **changes: float) -> list[int]:
    params = dataclasses.replace(WARM, **changes)  # type: ignore[arg-type]
    return [sample(logits, params, choice=0, position=position) for position in range(1, count + 1)]


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
