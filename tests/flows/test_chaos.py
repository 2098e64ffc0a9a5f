"""A seeded third of the chaos matrix on both sets of servers, and a small crowd in which a worker dies.

The whole is `infra/chaos/matrix.py` and `infra/chaos/deaths.py`.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.failpoints import POINTS
from infra.chaos import deaths
from infra.chaos.matrix import run
from infra.chaos.orders import Oracle
from infra.chaos.scenarios import matrix, part
from tests.flows.conftest import own_place_on_servers

SEED = int(os.environ.get("BRIGADE_CHAOS_SEED", "1"))

pytestmark = pytest.mark.timeout(1800)


def test_the_matrix_and_its_third_have_every_failpoint() -> None:
    whole = matrix(SEED)
    third = part(whole, 3)
    assert {scenario.point for scenario in third} == {scenario.point for scenario in whole} == set(POINTS)
    assert len(third) == len(whole) // 3


def test_nothing_is_lost_wrong_or_billed_twice(tmp_path: Path) -> None:
    """Both kitchens at the same time: most of a scenario is waiting for processes to come back."""
    third = part(matrix(SEED), 3)
    oracle = Oracle(tmp_path / "models")
    with own_place_on_servers() as urls, ThreadPoolExecutor(2) as kitchens:
        runs = [kitchens.submit(run, third, tmp_path, servers, oracle, seed=SEED, streams=6) for servers in ({}, urls)]
        outcomes = [outcome for one in runs for outcome in one.result()]
    assert len(outcomes) == 2 * len(third)
    assert [outcome for outcome in outcomes if not outcome.good] == []


def test_a_crowd_loses_nothing_where_its_decode_worker_dies(tmp_path: Path) -> None:
    [toll] = deaths.run(["decode"], tmp_path, {}, seed=SEED, requests=60)
    assert (toll.killed, toll.lost, toll.faults) == (1, 0, [])
