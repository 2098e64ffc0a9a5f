"""What a model must offer, and what it is given for a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from inference.contracts import KVLayout


@dataclass(frozen=True, slots=True)
class Segment:
    """One sequence's rows of a step: tokens [start, start + count), whose KV goes to `blocks`. Of its last `logits` rows the logits
    are wanted. `tokens` is the whole context, of which the first `prompt_tokens` are the prompt."""

    tokens: Sequence[int]
    prompt_tokens: int
    start: int
    count: int
    blocks: Sequence[int]
    logits: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A step. Row tensors are int64: `ids`, `positions`, and where each row's KV goes: `blocks`, `offsets`.

    `logit_rows` are the rows whose logits are wanted, in order.
    """

    segments: tuple[Segment, ...]
    ids: torch.Tensor
    positions: torch.Tensor
    blocks: torch.Tensor
    offsets: torch.Tensor
    logit_rows: torch.Tensor


class LanguageModel(Protocol):
    layout: KVLayout
    vocabulary_size: int
    context_length: int

    def forward(self, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        """Writes the rows' KV into `pool` [blocks, layers, 2, kv_heads, block_tokens, dim]; logits [wanted rows, vocabulary]."""
        ...

    def dense_logits(self, tokens: Sequence[int], prompt_tokens: int) -> torch.Tensor:
        """Logits [vocabulary] after `tokens`, without pool, batch or cache."""
        ...
