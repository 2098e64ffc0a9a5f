"""From a row of logits to a token id: a pure function of the row, the parameters and the token's place.

The random number of a token comes from a hash of (seed, choice, position, purpose): no generator state, so a token that is computed
again, on another worker or among other requests, is the same token.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum

import torch

from inference.contracts import SamplingParams

_KEY = struct.Struct("<QIIB")
_NUCLEUS_GUESS = 1024  # candidates that are sorted before all of the vocabulary is


class Purpose(IntEnum):
    SAMPLE = 0


def uniform(*, seed: int, choice: int, position: int, purpose: Purpose = Purpose.SAMPLE) -> float:
    """A number in [0, 1) with 53 random bits."""
    key = _KEY.pack(seed & (2**64 - 1), choice, position, purpose)
    digest = hashlib.blake2b(key, digest_size=8, person=b"brigade.sample").digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def rows_valid(logits: torch.Tensor) -> list[bool]:
    """For each row of [rows, vocabulary]: are all logits finite?"""
    valid: list[bool] = torch.isfinite(logits).all(dim=-1).tolist()
    return valid


def sample(row: torch.Tensor, params: SamplingParams, *, choice: int, position: int) -> int:
    """The token after a context. `row`: [vocabulary], finite."""
    if params.greedy or params.top_k == 1:
        return int(row.argmax())
    scaled = (row.double() - row.max()) / params.temperature  # at most 0: the smallest temperature makes no infinity of the best
    probabilities, ids = _candidates(torch.softmax(scaled, dim=-1), params)
    edges = probabilities.cumsum(0)
    point = uniform(seed=params.seed, choice=choice, position=position) * float(edges[-1])
    index = min(int(torch.searchsorted(edges, point, right=True)), edges.numel() - 1)
    return index if ids is None else int(ids[index])


def _candidates(probabilities: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What top_k, then top_p leave over, and the ids of these where they are not simply 0..n-1."""
    size = probabilities.numel()
    top_k = min(params.top_k, size) if params.top_k > 0 else size
    if params.top_p >= 1.0:
        return (probabilities, None) if top_k == size else _best(probabilities, top_k)
    best, ids = _best(probabilities, min(top_k, _NUCLEUS_GUESS))
    if top_k > best.numel() and (top_k < size or float(best.sum()) < params.top_p):
        best, ids = _best(probabilities, top_k)
    mass = best.cumsum(0)
    total = 1.0 if top_k == size else float(mass[-1])
    kept = int(torch.searchsorted(mass, params.top_p * total)) + 1
    return best[:kept], ids[:kept]


def _best(probabilities: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest, descending."""
    best, ids = torch.topk(probabilities, count)
    return best, ids
