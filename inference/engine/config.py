"""What an operator may set about an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`step_tokens` bounds the rows of a step, `chunk_tokens` one prompt's share of it, so that decoding requests are not held up.

    `sub_chunk_tokens` is the longest step of a prompt that has the engine for itself: aborts are looked at in between, so it is cut
    down where it takes more than half a second.
    """

    blocks: int
    block_tokens: int = 16
    max_running: int = 32
    step_tokens: int = 192
    chunk_tokens: int = 128
    sub_chunk_tokens: int = 256

    def __post_init__(self) -> None:
        for name in ("blocks", "block_tokens", "max_running", "step_tokens", "chunk_tokens", "sub_chunk_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"EngineConfig.{name} must be at least 1")
        if self.step_tokens <= self.max_running:
            raise ValueError("EngineConfig.step_tokens must exceed max_running, or prompts would never get a share of a step")
