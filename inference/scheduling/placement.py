"""Where a request runs. Pure functions over plain values, so that every decision can be tested and shown in the receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference.contracts import BLOCK_TOKENS, Path, PathPolicy

EXPECTED_OUTPUT_TOKENS = 256  # reserved at placement; longer answers rely on preemption


@dataclass(slots=True)
class WorkerView:
    """A live worker as the dispatcher sees it; `assigned*` count choices and blocks: what it owns and what it was promised."""

    slot: str
    roles: frozenset[str]
    model: str
    revision: str
    total_blocks: int
    max_running: int
    assigned: int = 0
    assigned_blocks: int = 0

    def has_room(self, blocks: int) -> bool:
        """An idle worker always has: what can never fit is refused by the engine, with a reason."""
        fits = self.assigned < self.max_running and self.assigned_blocks + blocks <= self.total_blocks
        return fits or self.assigned == 0

    def take(self, blocks: int, choices: int) -> None:
        self.assigned += choices
        self.assigned_blocks += blocks


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued or ready request, as far as placement needs it."""

    model: str
    prompt_tokens: int
    max_tokens: int  # of each choice
    path_policy: PathPolicy
    choices: int = 1

    @property
    def prompt_blocks(self) -> int:
        return -(-self.prompt_tokens // BLOCK_TOKENS)

    @property
    def whole_blocks(self) -> int:
        return -(-(self.prompt_tokens + self.choices * min(self.max_tokens, EXPECTED_OUTPUT_TOKENS)) // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Placement:
    slot: str
    path: Path
    reason: str
    decode_worker: str | None = None


def place_prefill(request: Waiting, workers: Sequence[WorkerView], overlap: Mapping[str, int]) -> Placement | None:
    """Chooses worker and path of a queued request. None: nobody has room; it waits."""
    serving = [worker for worker in workers if worker.model == request.model]
    prefill = [worker for worker in serving if "prefill" in worker.roles]
    decode = [worker for worker in serving if "decode" in worker.roles]
    source = _best([worker for worker in prefill if worker.has_room(request.prompt_blocks)], overlap)
    target = _best([worker for worker in decode if worker.has_room(request.whole_blocks)], {})
    may_split = request.path_policy != "fused" and request.max_tokens > 1
    if may_split and source is not None and target is not None and source.slot != target.slot:
        return Placement(source.slot, "split", "split", target.slot)
    reason = _fused_reason(request, prefill, decode, target)
    host = source if prefill else target
    if host is None or not host.has_room(request.whole_blocks):
        return None
    return Placement(host.slot, "fused", reason)


def _fused_reason(request: Waiting, prefill: Sequence[WorkerView], decode: Sequence[WorkerView], target: WorkerView | None) -> str:
    if request.path_policy == "fused":
        return "asked"
    if request.max_tokens == 1:
        return "one_token"
    if not decode:
        return "no_decode_worker"
    if not prefill:
        return "no_prefill_worker"
    return "decode_full" if target is None else "one_worker_has_both_roles"


def place_decode(request: Waiting, workers: Sequence[WorkerView], *, reserved: str | None, source: str) -> Placement | None:
    """Chooses who goes on after prefill: the worker reserved at placement, another one, or the source itself."""
    serving = [worker for worker in workers if worker.model == request.model]
    for worker in serving:
        if worker.slot == reserved:  # its room is counted already
            return Placement(worker.slot, "split", "split", worker.slot)
    target = _best([worker for worker in serving if "decode" in worker.roles and worker.has_room(request.whole_blocks)], {})
    if target is not None:
        return Placement(target.slot, "split", "decode_moved", target.slot)
    for worker in serving:
        if worker.slot == source:
            return Placement(worker.slot, "fused", "decode_gone")
    return None


def _best(workers: Sequence[WorkerView], overlap: Mapping[str, int]) -> WorkerView | None:
    """The longest cached prefix first, then the least loaded; names decide ties, so that a placement can be replayed."""
    return min(
        workers,
        key=lambda worker: (
            -overlap.get(worker.slot, 0),
            worker.assigned_blocks / max(worker.total_blocks, 1),
            worker.assigned,
            worker.slot,
        ),
        default=None,
    )
