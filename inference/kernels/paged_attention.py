"""Causal attention of new rows over paged KV, with grouped heads, on the CPU.

    q          [rows, heads, dim]                          rows of several sequences one after another
    kv         [blocks, 2, kv_heads, block_tokens, dim]    one layer of the pool; k at 0, v at 1
    result     [rows, heads * dim]

A `Span` is one sequence's rows: `count` of them at `first`, the KV positions `start`... of a sequence whose blocks are `blocks`.
Their own entries must be written before.

A row's result depends on its own sequence alone, bit for bit. Rows come to the products in multiples of `ROW_TILE`, below which the
library sums in another order; values are summed in tiles of `KEY_TILE` keys, because the library halves longer sums, and where it
does depends on their length (only up to `SHORT_KEYS` it sums straight through). A row may see more keys than it has: their scores
are -inf, their weights exactly 0, and adding 0 changes no sum. Blocks must hold finite numbers everywhere (0 x NaN is NaN): the
engine wipes a block before it is used again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

ROW_TILE = 8  # rows of a product
KEY_TILE = 256
SHORT_KEYS = 128
QUERY_TILE = 64  # query tokens at once: bounds the scores' memory, and skips keys after the tile's last token


@dataclass(frozen=True, slots=True)
class Span:
    first: int
    count: int
    start: int
    blocks: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(slots=True)
class _DecodeGroup:
    rows: torch.Tensor  # [sequences]
    table: torch.Tensor  # [sequences * width]
    width: int  # blocks
    mask: torch.Tensor  # [sequences, 1, width * block_tokens], 0 or -inf


@dataclass(slots=True)
class _PromptPart:
    span: Span
    table: torch.Tensor  # [blocks]
    tiles: list[tuple[int, int, int, torch.Tensor]]  # first token, tokens, keys, mask [tokens padded, 1, keys]


@dataclass(slots=True)
class AttentionPlan:
    """What is the same for all layers of a step."""

    block_tokens: int
    rows: int
    groups: list[_DecodeGroup] = field(default_factory=list)
    parts: list[_PromptPart] = field(default_factory=list)


def plan_attention(spans: Sequence[Span], block_tokens: int) -> AttentionPlan:
    """Raises ValueError where a span has no rows or too few blocks for its keys.

    Decoding sequences run together when their numbers of keys round up to the same power of two.
    """
    if SHORT_KEYS % block_tokens:
        raise ValueError(f"{SHORT_KEYS} keys are no whole number of blocks of {block_tokens}")
    for span in spans:
        if span.count < 1 or span.end > len(span.blocks) * block_tokens:
            raise ValueError(f"{span.count} rows up to key {span.end} do not fit {len(span.blocks)} blocks")
    plan = AttentionPlan(block_tokens, rows=sum(span.count for span in spans))
    by_width: dict[int, list[Span]] = {}
    for span in spans:
        if span.count == 1:
            by_width.setdefault((max(span.end, SHORT_KEYS) - 1).bit_length(), []).append(span)
        else:
            plan.parts.append(_prompt_part(span, block_tokens))
    plan.groups = [_decode_group(group, block_tokens) for group in by_width.values()]
    return plan


def _keys(end: int, block_tokens: int) -> int:
    """How many keys to look at for `end` of them."""
    unit = block_tokens if end <= SHORT_KEYS else KEY_TILE
    return -(-end // unit) * unit


def _decode_group(spans: Sequence[Span], block_tokens: int) -> _DecodeGroup:
    width = _keys(max(span.end for span in spans), block_tokens) // block_tokens
    table = [block for span in spans for block in _padded(span.blocks, width)]
    ends = torch.tensor([span.end for span in spans])
    hidden = torch.arange(width * block_tokens)[None, :] >= ends[:, None]
    mask = torch.zeros(len(spans), width * block_tokens).masked_fill_(hidden, -math.inf)
    return _DecodeGroup(torch.tensor([span.first for span in spans]), torch.tensor(table), width, mask[:, None, :])


def _padded(blocks: Sequence[int], width: int) -> list[int]:
    """The sequence's own blocks again, where it has too few: never a stranger's."""
    return [*blocks[:width], *([blocks[0]] * (width - len(blocks)))]


def _prompt_part(span: Span, block_tokens: int) -> _PromptPart:
    tiles = []
    for first in range(0, span.count, QUERY_TILE):
        tokens = min(QUERY_TILE, span.count - first)
        keys = _keys(span.start + first + tokens, block_tokens)
        positions = span.start + first + torch.arange(-(-tokens // ROW_TILE) * ROW_TILE)
        hidden = torch.arange(keys)[None, :] > positions[:, None]
        tiles.append((first, tokens, keys, torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, :]))
    table = _padded(span.blocks, _keys(span.end, block_tokens) // block_tokens)
    return _PromptPart(span, torch.tensor(table), tiles)


def paged_attention(q: torch.Tensor, kv: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """Raises ValueError where shapes or types do not fit each other or the plan."""
    _check(q, kv, plan)
    out = torch.empty_like(q)
    scaled = q * (1.0 / math.sqrt(q.shape[2]))
    for group in plan.groups:
        out[group.rows] = _decode(scaled[group.rows], kv, group)
    for part in plan.parts:
        for first, tokens, result in _prompt(scaled, kv, part):
            out[first : first + tokens] = result
    return out.flatten(1)


def _check(q: torch.Tensor, kv: torch.Tensor, plan: AttentionPlan) -> None:
    if q.dim() != 3 or kv.dim() != 5 or q.dtype != torch.float32 or kv.dtype != torch.float32:
        raise ValueError(f"expected float32 q [rows, heads, dim] and kv of five dimensions, got {q.dtype} and {kv.dtype}")
    if q.shape[0] != plan.rows or kv.shape[3] != plan.block_tokens:
        raise ValueError(f"{q.shape[0]} rows and blocks of {kv.shape[3]} tokens do not fit the plan")
    if kv.shape[1] != 2 or q.shape[2] != kv.shape[4] or q.shape[1] % kv.shape[2]:
        raise ValueError(f"q {tuple(q.shape)} does not fit kv {tuple(kv.shape)}")
    if kv.stride(4) != 1 or kv.stride(3) != kv.shape[4]:
        raise ValueError("the tokens of a head must lie together")


def _gather(kv: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """[2, kv_heads, entries of the table, block_tokens, dim]"""
    return torch.index_select(kv.permute(1, 2, 0, 3, 4), 2, table)


def _decode(q: torch.Tensor, kv: torch.Tensor, group: _DecodeGroup) -> torch.Tensor:
    """q: [sequences, heads, dim], scaled."""
    sequences, heads, dim = q.shape
    kv_heads = kv.shape[2]
    shared = heads // kv_heads
    keys, values = _gather(kv, group.table).view(2, kv_heads, sequences, -1, dim).unbind(0)
    rows = q.new_zeros(kv_heads, sequences, -(-shared // ROW_TILE) * ROW_TILE, dim)
    rows[:, :, :shared] = q.view(sequences, kv_heads, shared, dim).transpose(0, 1)
    weights = torch.softmax((rows @ keys.transpose(2, 3)).add_(group.mask), dim=-1)
    return _weigh(weights, values)[:, :, :shared].transpose(0, 1).reshape(sequences, heads, dim)


def _prompt(q: torch.Tensor, kv: torch.Tensor, part: _PromptPart) -> Iterator[tuple[int, int, torch.Tensor]]:
    """First row, number of rows and result [rows, heads, dim] of each tile."""
    heads, dim = q.shape[1:]
    kv_heads = kv.shape[2]
    keys, values = _gather(kv, part.table).view(2, kv_heads, -1, dim).unbind(0)
    for first, tokens, visible, mask in part.tiles:
        at = part.span.first + first
        rows = q.new_zeros(mask.shape[0], heads, dim)
        rows[:tokens] = q[at : at + tokens]
        rows = rows.view(-1, kv_heads, heads // kv_heads, dim).transpose(0, 1).reshape(kv_heads, -1, dim)
        scores = (rows @ keys[:, :visible].transpose(1, 2)).view(kv_heads, mask.shape[0], -1, visible)
        weights = torch.softmax(scores.add_(mask), dim=-1).view(kv_heads, -1, visible)
        result = _weigh(weights, values).view(kv_heads, mask.shape[0], -1, dim)
        yield at, tokens, result.transpose(0, 1).reshape(-1, heads, dim)[:tokens]


def _weigh(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights [..., rows, keys] @ values [..., at least as many keys, dim], tile by tile in order."""
    keys = weights.shape[-1]
    total = weights[..., :KEY_TILE] @ values[..., : min(KEY_TILE, keys), :]
    for at in range(KEY_TILE, keys, KEY_TILE):
        total += weights[..., at : at + KEY_TILE] @ values[..., at : at + KEY_TILE, :]
    return total


def paged_attention_reference(q: torch.Tensor, kv: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
    """One row and one head at a time, in float64."""
    rows, heads, dim = q.shape
    shared = heads // kv.shape[2]
    out = torch.empty(rows, heads, dim)
    for span in spans:
        k, v = (kv[list(span.blocks), side].double().transpose(0, 1).flatten(1, 2) for side in (0, 1))
        for row in range(span.count):
            visible = span.start + row + 1
            for head in range(heads):
                scores = k[head // shared, :visible] @ q[span.first + row, head].double() / math.sqrt(dim)
                out[span.first + row, head] = (torch.softmax(scores, 0) @ v[head // shared, :visible]).float()
    return out.flatten(1)
