"""Where a request goes, and what the receipt says of it."""

from __future__ import annotations

import pytest

from inference.contracts import PathPolicy
from inference.scheduling.placement import Waiting, WorkerView, place_decode, place_prefill


def worker(slot: str, *roles: str, assigned: int = 0, blocks: int = 0, total: int = 100, model: str = "m") -> WorkerView:
    return WorkerView(slot, frozenset(roles), model, "r", total, 4, assigned, blocks)


def waiting(prompt: int = 32, output: int = 16, policy: PathPolicy = "auto") -> Waiting:
    return Waiting("m", prompt, output, policy)


PREFILL, DECODE = worker("p", "prefill"), worker("d", "decode")


@pytest.mark.parametrize(
    ("request_", "workers", "expected"),
    [
        (waiting(), [PREFILL, DECODE], ("p", "split", "split", "d")),
        (waiting(prompt=5), [PREFILL, DECODE], ("p", "split", "split", "d")),
        (waiting(policy="fused"), [PREFILL, DECODE], ("p", "fused", "asked", None)),
        (waiting(output=1), [PREFILL, DECODE], ("p", "fused", "one_token", None)),
        (waiting(), [PREFILL], ("p", "fused", "no_decode_worker", None)),
        (waiting(), [DECODE], ("d", "fused", "no_prefill_worker", None)),
        (waiting(), [worker("b", "prefill", "decode")], ("b", "fused", "one_worker_has_both_roles", None)),
        (waiting(), [PREFILL, worker("d", "decode", assigned=4)], ("p", "fused", "decode_full", None)),
        (waiting(), [PREFILL, worker("d", "decode", assigned=1, blocks=99)], ("p", "fused", "decode_full", None)),
    ],
)
def test_path_and_reason(request_: Waiting, workers: list[WorkerView], expected: tuple[str, str, str, str | None]) -> None:
    placement = place_prefill(request_, workers, {})
    assert placement is not None
    assert (placement.slot, placement.path, placement.reason, placement.decode_worker) == expected


def test_a_request_waits_where_nobody_has_room() -> None:
    assert place_prefill(waiting(), [worker("p", "prefill", assigned=4), worker("d", "decode")], {}) is None


def test_a_worker_of_another_model_is_no_candidate() -> None:
    assert place_prefill(waiting(), [worker("p", "prefill", model="other")], {}) is None


def test_an_idle_worker_takes_even_what_seems_too_large_so_that_the_engine_can_refuse_it() -> None:
    assert place_prefill(waiting(prompt=16 * 1000), [PREFILL, DECODE], {}) is not None


def test_the_longest_cached_prefix_wins_over_load() -> None:
    workers = [worker("p0", "prefill"), worker("p1", "prefill", assigned=2, blocks=50), DECODE]
    placement = place_prefill(waiting(), workers, {"p1": 64})
    assert placement is not None
    assert placement.slot == "p1"


def test_the_least_loaded_worker_wins_where_nothing_is_cached() -> None:
    workers = [worker("p0", "prefill", assigned=1, blocks=10), worker("p1", "prefill"), DECODE]
    placement = place_prefill(waiting(), workers, {})
    assert placement is not None
    assert placement.slot == "p1"


def test_decode_goes_to_the_reserved_worker_even_when_it_looks_full() -> None:
    placement = place_decode(waiting(), [PREFILL, worker("d", "decode", assigned=4)], reserved="d", source="p")
    assert placement is not None
    assert (placement.slot, placement.path) == ("d", "split")


def test_decode_moves_where_the_reserved_worker_is_gone() -> None:
    placement = place_decode(waiting(), [PREFILL, worker("d1", "decode")], reserved="d0", source="p")
    assert placement is not None
    assert (placement.slot, placement.reason) == ("d1", "decode_moved")


def test_the_source_goes_on_by_itself_where_no_decode_worker_is_left() -> None:
    placement = place_decode(waiting(), [PREFILL], reserved="d0", source="p")
    assert placement is not None
    assert (placement.slot, placement.path, placement.reason) == ("p", "fused", "decode_gone")
