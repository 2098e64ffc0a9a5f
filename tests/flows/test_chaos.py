"""A seeded part of the chaos matrix; the whole is `infra/chaos/matrix.py`."""

from __future__ import annotations

import os

import pytest

from infra.chaos.matrix import run
from infra.chaos.scenarios import matrix
from tests.flows.conftest import OF_THE_TEST_RUN

pytestmark = pytest.mark.timeout(1200)


def test_nothing_is_lost_wrong_or_billed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OF_THE_TEST_RUN:
        monkeypatch.delenv(name, raising=False)
    outcomes = run(matrix(seed=int(os.environ.get("BRIGADE_CHAOS_SEED", "1")))[::4], streams=6)
    assert [outcome for outcome in outcomes if not outcome.good] == []
