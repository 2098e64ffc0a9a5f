"""A worker dies in the middle: the stream goes on, without a gap and without a repeat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flows.cast import expected, kill_worker, receipt, stream, text_of, until, wait_until_idle, wait_until_ready
from tests.flows.conftest import Stack, serving

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A copy of its own: its workers die."""
    with serving(tmp_path_factory.mktemp("mortal") / "data") as running:
        yield running


@pytest.mark.parametrize("slot", ["decode-0", "prefill-0"])
def test_a_killed_worker_costs_time_and_no_token(mortal: Stack, slot: str) -> None:
    wait_until_ready(mortal)
    chunks = stream(mortal, f"long before {slot} dies", 400)
    first = next(chunks)
    head = text_of(next(chunks) for _ in range(15))
    kill_worker(mortal, slot)
    rest = list(chunks)
    assert head + text_of(iter(rest)) == expected(f"long before {slot} dies", 400)
    told = receipt(mortal, first.id)
    assert told["state"] == "done"
    assert told["attempt"] == (2 if slot == "decode-0" else 1)
    wait_until_ready(mortal)
    wait_until_idle(mortal)
    found = until(lambda: mortal.run("check_invariants", "--json"), lambda result: result.returncode == 0)
    assert found.returncode == 0
