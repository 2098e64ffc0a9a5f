"""What penalties look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from inference.contracts import SamplingParams


@dataclass(slots=True)
class History:
    """The prompt's ids, and how often a choice has each of its own. Empty where no penalty asks for it."""

    prompt: frozenset[int] = frozenset()
    outputs: Counter[int] = field(default_factory=Counter)
    _kept: bool = False

    @classmethod
    def of(cls, sampling: SamplingParams, prompt: Iterable[int]) -> History:
        return cls(frozenset(prompt if sampling.repetition_penalty != 1.0 else ()), _kept=sampling.penalised)

    def add(self, token_id: int) -> None:
        if self._kept:
            self.outputs[token_id] += 1
