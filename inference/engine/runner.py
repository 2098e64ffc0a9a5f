"""From a plan of plain numbers to tensors, through the model, to logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.contracts import KVLayout
from inference.engine.models.base import Batch, LanguageModel, Segment
from inference.engine.scheduler import Chunk

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def pool_shape(layout: KVLayout, blocks: int) -> tuple[int, int, int, int, int, int]:
    """[blocks, layers, k|v, kv_heads, block_tokens, head_dim]: a block is one contiguous piece."""
    return (blocks, layout.layers, 2, layout.kv_heads, layout.block_tokens, layout.head_dim)


class Runner:
    def __init__(self, model: LanguageModel, pool: torch.Tensor) -> None:
        if tuple(pool.shape) != pool_shape(model.layout, pool.shape[0]) or _DTYPES.get(pool.dtype) != model.layout.dtype:
            raise ValueError(f"a pool of {pool.dtype} {tuple(pool.shape)} does not fit the model's layout {model.layout}")
        if not pool.is_contiguous():
            raise ValueError("the pool must be contiguous")
        self.model = model
        self.pool = pool

    def wipe(self, block: int) -> None:
        """Nothing of a block's former content is ever read: not by mistake, and not as NaN through a weight of 0."""
        self.pool[block].zero_()

    def run(self, plan: Sequence[Chunk]) -> torch.Tensor:
        """Logits [rows, vocabulary]: `Chunk.logits` of each chunk, in the plan's order."""
        return self.model.forward(self._batch(plan), self.pool)

    def _batch(self, plan: Sequence[Chunk]) -> Batch:
        size = self.model.layout.block_tokens
        segments = tuple(_segment(chunk) for chunk in plan)
        positions = [position for one in segments for position in range(one.start, one.start + one.count)]
        blocks = [one.blocks[at // size] for one in segments for at in range(one.start, one.start + one.count)]
        return Batch(
            segments=segments,
            ids=torch.tensor([token for one in segments for token in one.tokens[one.start : one.start + one.count]]),
            positions=torch.tensor(positions),
            blocks=torch.tensor(blocks),
            offsets=torch.tensor([position % size for position in positions]),
            logit_rows=torch.tensor(_logit_rows(segments), dtype=torch.int64),
        )


def _segment(chunk: Chunk) -> Segment:
    sequence = chunk.sequence
    return Segment(sequence.tokens, sequence.prompt_tokens, chunk.start, chunk.count, sequence.blocks, chunk.logits)


def _logit_rows(segments: Sequence[Segment]) -> list[int]:
    rows: list[int] = []
    end = 0
    for segment in segments:
        end += segment.count
        rows += range(end - segment.logits, end)
    return rows
