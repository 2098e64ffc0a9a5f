"""A seeded third of the chaos matrix on both sets of servers; the whole is `infra/chaos/matrix.py`."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.failpoints import POINTS
from infra.chaos.matrix import run
from infra.chaos.orders import Oracle
from infra.chaos.scenarios import matrix
from tests.flows.conftest import own_place_on_servers

SEED = int(os.environ.get("BRIGADE_CHAOS_SEED", "1"))
PART = 3

pytestmark = pytest.mark.timeout(1800)


def test_the_matrix_has_every_failpoint() -> None:
    assert {scenario.point for scenario in matrix(SEED)} == set(POINTS)


def test_nothing_is_lost_wrong_or_billed_twice(tmp_path: Path) -> None:
    """Both kitchens at once, each with the same third, so that the right answers are computed once."""
    scenarios = matrix(SEED)[::PART]
    oracle = Oracle(tmp_path / "models")
    with own_place_on_servers() as urls, ThreadPoolExecutor(2) as kitchens:
        runs = [kitchens.submit(run, scenarios, tmp_path, servers, oracle, seed=SEED, streams=6) for servers in ({}, urls)]
        outcomes = [outcome for one in runs for outcome in one.result()]
    assert len(outcomes) == 2 * len(scenarios)
    assert [outcome for outcome in outcomes if not outcome.good] == []
