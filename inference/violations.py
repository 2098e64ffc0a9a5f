"""The answer of a check: an invariant that does not hold, and the rows that show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    message: str
    rows: list[dict[str, Any]] = field(default_factory=list)
