"""The Llama architecture and its kin in float32: RMS norm, rotary positions, grouped heads, gated SiLU.

Qwen2 adds a bias to q, k and v; Qwen3 norms each head's q and k before they turn; Mistral adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from inference.contracts import KVLayout
from inference.engine.models.base import Batch
from inference.kernels.linear import RowStableLinear
from inference.kernels.paged_attention import Span, paged_attention, plan_attention

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Angles are divided by `factor`: all of them, or (Llama 3, with an `original_context`) those of waves longer than
    original_context / low_frequency; waves shorter than original_context / high_frequency stay, and between the two it blends."""

    factor: float
    low_frequency: float = 0.0
    high_frequency: float = 0.0
    original_context: int | None = None


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    vocabulary_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner_width: int
    context_length: int
    rope_theta: float
    norm_epsilon: float
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False  # the embedding is used for the output too


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are [outputs, inputs]. Rows of q and k are ordered for the half-split form of the rotation.

    `qkv_bias` is that of q, k and v one after another; `q_norm` and `k_norm` are [head_dim].
    """

    attention_norm: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """`head` is None where the embedding is used for the output too."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor | None = None


class _Layer:
    """Fused: q, k and v in one product, gate and up in another."""

    def __init__(self, weights: LayerWeights) -> None:
        self.attention_norm, self.mlp_norm = weights.attention_norm, weights.mlp_norm
        self.qkv = RowStableLinear(torch.cat([weights.q, weights.k, weights.v]))
        self.out = RowStableLinear(weights.out)
        self.gate_up = RowStableLinear(torch.cat([weights.gate, weights.up]))
        self.down = RowStableLinear(weights.down)
        self.qkv_bias, self.q_norm, self.k_norm = weights.qkv_bias, weights.q_norm, weights.k_norm


class LlamaModel:
    def __init__(self, name: str, revision: str, config: LlamaConfig, weights: LlamaWeights, *, block_tokens: int = 16) -> None:
        self.config = config
        self.vocabulary_size = config.vocabulary_size
        self.context_length = config.context_length
        self.layout = KVLayout(name, revision, config.layers, config.kv_heads, config.head_dim, block_tokens, "float32")
        self._embedding = weights.embedding
        self._layers = [_Layer(layer) for layer in weights.layers]
        self._final_norm = weights.final_norm
        self._head = RowStableLinear(weights.embedding if weights.head is None else weights.head)
        self._cos, self._sin = _rotation(config)

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        plan = plan_attention(_spans(batch), self.layout.block_tokens)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            pages = pool[:, layer]
            pages[batch.blocks, :, :, batch.offsets] = torch.stack((k, v), dim=1)
            return paged_attention(q, pages, plan)

        return self._logits(self._hidden(batch.ids, batch.positions, attend)[batch.logit_rows])

    def dense_logits(self, tokens: Sequence[int], prompt_tokens: int) -> torch.Tensor:
        return self.dense_rows(tokens, len(tokens) - 1)[0]

    @torch.inference_mode()
    def dense_rows(self, tokens: Sequence[int], first: int) -> torch.Tensor:
        """The logits after each of the tokens from `first` on, in one pass."""
        ids = torch.tensor(tokens)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return dense_attention(q, k, v)

        return self._logits(self._hidden(ids, torch.arange(len(tokens)), attend)[first:])

    def _hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        hidden = functional.embedding(ids, self._embedding)
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        for index, layer in enumerate(self._layers):
            hidden = hidden + layer.out(self._attention(index, layer, hidden, cos, sin, attend))
            gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        return hidden

    def _attention(
        self, index: int, layer: _Layer, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        config = self.config
        qkv = layer.qkv(self._norm(hidden, layer.attention_norm))
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        parts = qkv.view(len(hidden), -1, config.head_dim)
        q, k, v = parts[:, : config.heads], parts[:, config.heads : -config.kv_heads], parts[:, -config.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        return attend(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if not len(hidden):
            return hidden.new_zeros(0, self.vocabulary_size)
        return self._head(self._norm(hidden, self._final_norm))

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.config.norm_epsilon)


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one sequence by the book: q [tokens, heads, dim], k and v [tokens, kv_heads, dim]."""
    tokens, heads, dim = q.shape
    keys, values = (side.repeat_interleave(heads // k.shape[1], dim=1).transpose(0, 1) for side in (k, v))
    scores = q.transpose(0, 1) @ keys.transpose(1, 2) / math.sqrt(dim)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return (torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ values).transpose(0, 1).flatten(1)


def _spans(batch: Batch) -> list[Span]:
    spans, first = [], 0
    for segment in batch.segments:
        spans.append(Span(first, segment.count, segment.start, segment.blocks))
        first += segment.count
    return spans


def _rotation(config: LlamaConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [positions, dim]; the second half repeats the first."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    speeds = _scaled(1.0 / config.rope_theta**steps, config.rope_scaling)
    angles = torch.outer(torch.arange(config.context_length, dtype=torch.float32), speeds)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def _scaled(speeds: torch.Tensor, scaling: RopeScaling | None) -> torch.Tensor:
    """`speeds`: radians per position [dim / 2]."""
    if scaling is None:
        return speeds
    if scaling.original_context is None:
        return speeds / scaling.factor
    waves = scaling.original_context * speeds / (2 * math.pi)  # how many fit into the original context
    kept = ((waves - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency)).clamp(0, 1)
    return (1 - kept) * speeds / scaling.factor + kept * speeds


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x: [rows, heads, dim]; turns the pair (i, i + dim / 2)."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
