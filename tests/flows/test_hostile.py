"""A part of what `infra/chaos/hostile.py` does in full: hostile calls and ordinary ones, many at a time, on the real product."""

from __future__ import annotations

import pytest

from infra.chaos.hostile import HUNDRED, run

pytestmark = pytest.mark.timeout(600)
CALLS = 600


def test_hostile_calls_leave_nothing_behind_and_disturb_nobody() -> None:
    report = run(CALLS, seed=2)
    assert report.faults == [], "\n".join(report.faults)
    assert report.canaries == CALLS // HUNDRED
    assert report.statuses[400] > CALLS // 4  # it was hostile
    assert report.statuses[200] > CALLS // 20  # and not only
