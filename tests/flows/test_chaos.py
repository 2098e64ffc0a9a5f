"""A seeded quarter of the chaos matrix on embedded servers, another one on the machine's, and a small crowd in which a worker dies.

The whole is `infra/chaos/matrix.py` and `infra/chaos/deaths.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.failpoints import POINTS
from infra.chaos import deaths
from infra.chaos.matrix import Outcome, run
from infra.chaos.orders import Oracle
from infra.chaos.scenarios import Scenario, matrix, part
from tests.flows.conftest import own_place_on_servers

SEED = int(os.environ.get("BRIGADE_CHAOS_SEED", "1"))

pytestmark = pytest.mark.timeout(1800)


def quarters() -> list[list[Scenario]]:
    """What happens on embedded servers, and on this machine's."""
    return [part(matrix(seed), 4) for seed in (SEED, SEED + 1)]


def test_the_matrix_and_its_quarters_have_every_failpoint() -> None:
    whole, (one, other) = matrix(SEED), quarters()
    for scenarios in (whole, one, other):
        assert {scenario.point for scenario in scenarios} == set(POINTS)
    assert len(one) == len(other) == len(whole) // 4
    assert one != other


def test_nothing_is_lost_wrong_or_billed_twice(tmp_path: Path) -> None:
    """Both kitchens at the same time: most of a scenario is waiting for processes to come back."""
    oracle = Oracle(tmp_path / "models")

    def cook(scenarios: list[Scenario], servers: Mapping[str, str]) -> list[Outcome]:
        return run(scenarios, tmp_path, servers, oracle, seed=SEED, streams=6)

    with own_place_on_servers() as urls, ThreadPoolExecutor(2) as kitchens:
        outcomes = [outcome for one in kitchens.map(cook, quarters(), ({}, urls)) for outcome in one]
    assert len(outcomes) == sum(map(len, quarters()))
    assert [outcome for outcome in outcomes if not outcome.good] == []


def test_a_crowd_loses_nothing_where_its_decode_worker_dies(tmp_path: Path) -> None:
    [toll] = deaths.run(["decode"], tmp_path, {}, seed=SEED, requests=60)
    assert (toll.killed, toll.lost, toll.faults) == (1, 0, [])
