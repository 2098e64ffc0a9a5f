"""What may happen where: the matrix of failpoints and actions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inference.failpoints import Action

DELAY_S = 2.0

_WHERE: dict[str, tuple[Action, ...]] = {
    "gateway.admit": ("kill", "stop", "delay", "raise"),
    "gateway.admitted": ("kill", "stop", "delay", "raise"),
    "dispatcher.offer": ("kill", "stop", "delay", "raise"),
    "dispatcher.send": ("kill", "stop", "raise", "drop", "duplicate"),
    "prefill.claim": ("kill", "stop", "delay", "raise"),
    "prefill.claimed": ("kill", "stop", "delay", "raise"),
    "prefill.chunk": ("kill", "stop", "delay", "raise"),
    "handoff.commit": ("kill", "stop", "delay", "raise"),
    "handoff.committed": ("kill", "stop", "delay", "corrupt"),
    "decode.claim": ("kill", "stop", "delay", "raise"),
    "decode.claimed": ("kill", "stop", "delay", "raise"),
    "transfer.read": ("kill", "stop", "delay", "raise"),
    "transfer.page": ("kill", "stop", "delay", "raise"),
    "transfer.verify": ("kill", "stop", "raise", "corrupt"),
    "decode.step": ("kill", "stop", "delay", "raise"),
    "takeover.read": ("kill", "stop", "delay", "raise"),
    "token.first": ("kill", "stop", "delay", "raise", "drop", "duplicate"),
    "token.send": ("kill", "stop", "delay", "raise", "drop", "duplicate"),
    "token.log": ("kill", "stop", "delay", "raise"),
    "finish.commit": ("kill", "stop", "delay", "raise"),
    "usage.write": ("kill", "stop", "raise"),
    "usage.written": ("kill", "stop", "raise"),
    "finish.committed": ("kill", "stop", "raise"),
    "finish.send": ("kill", "stop", "delay", "drop", "duplicate"),
    "ledger.post": ("kill", "stop", "raise"),
    "ledger.posted": ("kill", "stop", "raise"),
    "ingest.commit": ("kill", "stop", "raise"),
    "ingest.committed": ("kill", "stop", "raise"),
    "invoice.draft": ("kill", "stop", "raise"),
    "invoice.drafted": ("kill", "stop", "raise"),
}
_TWICE = ("prefill.chunk", "decode.step", "token.send", "finish.commit")  # and who takes over dies at the same place
_FUSED_TOO = ("prefill.chunk", "decode.step", "token.first", "token.send", "finish.commit", "finish.committed")

# What leads there: a death to take over from; a pause, so that the second's chores find tokens.
_BEFORE: dict[str, dict[str, Any]] = {
    "takeover.read": {"point": "decode.step", "action": "kill", "nth": 9},
    "token.log": {"point": "decode.step", "action": "delay", "nth": 9, "seconds": DELAY_S},
}

# The passes that each scenario surely has in one process; where nothing is named, one.
_PASSES = {
    "gateway.admit": 4,
    "gateway.admitted": 4,
    "dispatcher.offer": 4,
    "dispatcher.send": 4,
    "prefill.claim": 4,
    "prefill.claimed": 4,
    "prefill.chunk": 3,
    "decode.claim": 3,
    "decode.claimed": 3,
    "handoff.commit": 3,
    "handoff.committed": 3,
    "transfer.read": 3,
    "transfer.page": 9,
    "transfer.verify": 3,
    "decode.step": 40,
    "token.send": 30,
    "finish.commit": 2,
    "finish.committed": 2,
    "usage.write": 2,
    "usage.written": 2,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    point: str
    action: Action
    nth: int
    times: int = 1
    path: Literal["auto", "fused"] = "auto"

    @property
    def name(self) -> str:
        more = ("-twice" if self.times > 1 else "") + ("-fused" if self.path == "fused" else "")
        return f"{self.point}-{self.action}-{self.nth}{more}"

    @property
    def cuts_clients(self) -> bool:
        """The gateway's own death or error ends its clients' calls: they may ask again."""
        return self.point.startswith("gateway.") and self.action in ("kill", "raise")

    @property
    def failpoints(self) -> list[dict[str, Any]]:
        """Its own is the first."""
        own = {"point": self.point, "action": self.action, "nth": self.nth, "times": self.times, "seconds": DELAY_S}
        return [own, _BEFORE[self.point]] if self.point in _BEFORE else [own]


def matrix(seed: int) -> list[Scenario]:
    """Every point with every action that makes sense there; the seed chooses the pass and the order (fused ones come last)."""
    chance = random.Random(seed)

    def passes(point: str) -> int:
        return chance.randint(1, _PASSES.get(point, 1))

    scenarios = [Scenario(point, action, passes(point)) for point, actions in _WHERE.items() for action in actions]
    scenarios += [Scenario(point, "kill", passes(point), times=2) for point in _TWICE]
    scenarios += [Scenario(point, "kill", min(passes(point), 2), path="fused") for point in _FUSED_TOO]
    chance.shuffle(scenarios)
    return sorted(scenarios, key=lambda scenario: scenario.path == "fused")


def part(scenarios: Sequence[Scenario], of: int) -> list[Scenario]:
    """One in `of`, in their order; each point has one at least."""
    chosen = set({scenario.point: scenario for scenario in reversed(scenarios)}.values())
    others = [scenario for scenario in scenarios if scenario not in chosen]
    chosen.update(others[: max(0, len(scenarios) // of - len(chosen))])
    return [scenario for scenario in scenarios if scenario in chosen]
