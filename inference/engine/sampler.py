"""From a row of logits to a token id: a pure function of the row, the parameters, the choice's tokens and the token's place.

The random number of a token comes from a hash of (seed, choice, position, purpose): no generator state, so a token that is computed
again, on another worker or among other requests, is the same token.

A row goes through bias, repetition, frequency and presence penalties, and the ban of ends before `min_tokens`; then temperature,
min_p, top_k, top_p. Penalties follow Keskar et al. 2019 (repetition) and the OpenAI API (frequency, presence).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Set
from enum import IntEnum

import torch

from inference.contracts import SamplingParams, TokenLogprob
from inference.engine.history import History

_KEY = struct.Struct("<QIIB")
_NUCLEUS_GUESS = 1024  # candidates that are sorted before all of the vocabulary is
_LEAST_LOGPROB = -9999.0  # for what a float can no longer tell from impossible


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


def sample(
    row: torch.Tensor, params: SamplingParams, *, choice: int, position: int, history: History, ends: Set[int] = frozenset()
) -> int:
    """The token after a context. `row`: [vocabulary], finite. `ends`: ids that are not taken before `min_tokens`."""
    row = _adjusted(row, params, history, ends if position <= params.min_tokens else frozenset())
    if params.greedy or params.top_k == 1:
        return int(row.argmax())
    scaled = (row.double() - row.max()) / params.temperature  # at most 0: the smallest temperature makes no infinity of the best
    probabilities, ids = _candidates(_likely(torch.softmax(scaled, dim=-1), params.min_p), params)
    edges = probabilities.cumsum(0)
    point = uniform(seed=params.seed, choice=choice, position=position) * float(edges[-1])
    last = int(torch.searchsorted(edges, edges[-1]))  # the last that has a probability at all
    index = min(int(torch.searchsorted(edges, point, right=True)), last)
    return index if ids is None else int(ids[index])


def token_logprob(row: torch.Tensor, token_id: int, top: int) -> TokenLogprob:
    """Of `token_id`, and of the `top` likeliest. `row`: [vocabulary], finite, as the model gave it."""
    logprobs = torch.log_softmax(row.float(), dim=-1)
    values, ids = torch.topk(logprobs, min(top, logprobs.numel()))
    likeliest = tuple(zip(ids.tolist(), map(_finite, values.tolist()), strict=True))
    return TokenLogprob(_finite(float(logprobs[token_id])), likeliest)


def _finite(logprob: float) -> float:
    return round(max(logprob, _LEAST_LOGPROB), 6)


def _adjusted(row: torch.Tensor, params: SamplingParams, history: History, banned: Set[int]) -> torch.Tensor:
    """The row itself where nothing is asked for."""
    if not (banned or params.adjusts):
        return row
    row = row.float().clone()
    if params.logit_bias:
        ids, bias = zip(*params.logit_bias, strict=True)
        row.index_add_(0, torch.tensor(ids), torch.tensor(bias, dtype=row.dtype))
    _repetition(row, params.repetition_penalty, history)
    if params.frequency_penalty or params.presence_penalty:
        seen, counts = torch.tensor(list(history.outputs), dtype=torch.int64), torch.tensor(list(history.outputs.values()))
        row[seen] -= params.frequency_penalty * counts + params.presence_penalty
    if banned:
        row[torch.tensor(sorted(banned))] = float("-inf")
    return row


def _repetition(row: torch.Tensor, penalty: float, history: History) -> None:
    if penalty == 1.0:
        return
    seen = torch.tensor(sorted(history.prompt | history.outputs.keys()), dtype=torch.int64)
    logits = row[seen]
    row[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)


def _likely(probabilities: torch.Tensor, min_p: float) -> torch.Tensor:
    """Without those that have less than the share `min_p` of the likeliest one's probability."""
    if min_p <= 0.0:
        return probabilities
    kept = torch.where(probabilities >= min_p * probabilities.max(), probabilities, 0.0)
    return kept / kept.sum()


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
