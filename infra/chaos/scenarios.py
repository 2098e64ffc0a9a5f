"""What may happen where: the matrix of failpoints and actions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from inference.failpoints import Action

_WHERE: dict[str, tuple[Action, ...]] = {
    "gateway.admit": ("kill", "delay", "raise"),
    "gateway.admitted": ("kill", "delay"),
    "dispatcher.offer": ("kill", "stop", "delay"),
    "dispatcher.send": ("kill", "stop", "drop", "duplicate"),
    "prefill.claim": ("kill", "stop", "delay", "raise"),
    "prefill.claimed": ("kill", "stop", "delay", "raise"),
    "decode.claim": ("kill", "stop", "delay", "raise"),
    "decode.claimed": ("kill", "stop", "delay", "raise"),
    "prefill.chunk": ("kill", "stop", "raise"),
    "decode.step": ("kill", "stop", "raise"),
    "token.first": ("kill", "stop", "delay", "duplicate"),
    "token.send": ("kill", "stop", "delay", "duplicate"),
    "handoff.commit": ("kill", "stop", "delay"),
    "handoff.committed": ("kill", "stop", "corrupt"),
    "transfer.read": ("kill", "stop", "raise"),
    "transfer.verify": ("kill", "corrupt"),
    "finish.commit": ("kill", "stop", "delay"),
    "finish.committed": ("kill", "stop"),
    "ingest.commit": ("kill", "stop", "raise"),
    "ingest.committed": ("kill", "stop"),
}
_LATEST = {"decode.step": 40, "token.send": 40, "ingest.commit": 1, "ingest.committed": 1}  # passes that a scenario surely has
CLIENTS_OF_THE_GATEWAY_SEE_IT = ("gateway.admit", "gateway.admitted")  # its death cuts their connections: they may repeat


@dataclass(frozen=True, slots=True)
class Scenario:
    point: str
    action: Action
    nth: int

    @property
    def name(self) -> str:
        return f"{self.point}-{self.action}-{self.nth}"

    @property
    def spares_clients(self) -> bool:
        return self.point not in CLIENTS_OF_THE_GATEWAY_SEE_IT


def matrix(seed: int) -> list[Scenario]:
    """Every point with every action that makes sense there; the seed chooses the pass and the order."""
    chance = random.Random(seed)
    scenarios = [
        Scenario(point, action, chance.randint(1, _LATEST.get(point, 4))) for point, actions in _WHERE.items() for action in actions
    ]
    chance.shuffle(scenarios)
    return scenarios
