"""A worker dies in the middle: the stream goes on, without a gap and without a repeat."""

from __future__ import annotations

import pytest

from tests.flows.cast import expected, kill_worker, receipt, stream, text_of, until, wait_until_idle, wait_until_ready
from tests.flows.conftest import Stack
from tests.flows.faults import slowly

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("slot", ["decode-0", "prefill-0"])
def test_a_killed_worker_costs_time_and_no_token(fragile: Stack, slot: str) -> None:
    wait_until_ready(fragile)
    with slowly(fragile):
        chunks = stream(fragile, f"long before {slot} dies", 400)
        first = next(chunks)
        head = text_of(next(chunks) for _ in range(15))
        kill_worker(fragile, slot)
    rest = list(chunks)
    assert head + text_of(iter(rest)) == expected(f"long before {slot} dies", 400)
    told = receipt(fragile, first.id)
    assert told["state"] == "done"
    assert told["attempt"] == (2 if slot == "decode-0" else 1)
    wait_until_ready(fragile)
    wait_until_idle(fragile)
    found = until(lambda: fragile.run("check_invariants", "--json"), lambda result: result.returncode == 0)
    assert found.returncode == 0
