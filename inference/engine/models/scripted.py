"""An oracle: says what a script in its prompt tells it to. For tests of everything around a model.

The last JSON object of the form {"script": {...}} in the prompt counts; without one the answer is "ok". Its keys, all optional:

    text, ids    the answer: the tokens of the text, then these ids
    nan_at       the logits of this position (from 1) are NaN
    delay_ms     how long each token takes (batch-mates wait too, as in a real step)
    finish       "stop" (default): the end-of-text token follows; "length": the last token again and again

It keeps KV like any model: an entry holds the token and its position. Every step reads back all entries of each sequence whose
logits are wanted, and answers NaN where one is wrong, so that a page that was lost, mixed up or overwritten shows.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inference.contracts import KVLayout
from inference.engine.models.base import Batch, Segment
from inference.text import oracles

DEFAULT_ANSWER = "ok"
_CERTAIN = 10_000.0
_SCRIPT = re.compile(r'\{\s*"script"\s*:')


@dataclass(frozen=True, slots=True)
class Script:
    ids: tuple[int, ...]
    nan_at: int = 0
    delay_ms: float = 0.0
    endless: bool = False

    def token(self, position: int) -> int:
        """The token at a position, from 1."""
        if position <= len(self.ids):
            return self.ids[position - 1]
        return self.ids[-1] if self.endless and self.ids else oracles.EOS_ID


class ScriptedModel:
    def __init__(self, name: str, revision: str, *, block_tokens: int = 16) -> None:
        self.vocabulary_size = oracles.VOCABULARY_SIZE
        self.context_length = oracles.CONTEXT_LENGTH
        self.layout = KVLayout(name, revision, layers=1, kv_heads=1, head_dim=8, block_tokens=block_tokens, dtype="float32")

    def forward(self, batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        pool[batch.blocks, 0, :, 0, batch.offsets] = _entries(batch.ids, batch.positions)[:, None].expand(-1, 2, -1)
        wanted = [segment for segment in batch.segments if segment.logits]
        delay_ms = max((read_script(tuple(one.tokens[: one.prompt_tokens])).delay_ms for one in wanted), default=0.0)
        time.sleep(delay_ms / 1000)
        rows = [row for segment in wanted for row in self._rows(segment, pool)]
        return torch.stack(rows) if rows else torch.zeros(0, self.vocabulary_size)

    def dense_logits(self, tokens: Sequence[int], prompt_tokens: int) -> torch.Tensor:
        script, position = read_script(tuple(tokens[:prompt_tokens])), len(tokens) - prompt_tokens + 1
        row = torch.zeros(self.vocabulary_size)
        if position > 0:  # within the prompt all are equally likely
            row[script.token(position)] = _CERTAIN
        return row * float("nan") if position == script.nan_at else row

    def _rows(self, segment: Segment, pool: torch.Tensor) -> list[torch.Tensor]:
        end = segment.start + segment.count
        expected = _entries(torch.tensor(segment.tokens[:end]), torch.arange(end))
        found = pool[list(segment.blocks), 0].transpose(0, 2).reshape(1, 2, -1, 8)[0, :, :end]
        sound = 1.0 if bool((found == expected).all()) else float("nan")
        ends = range(end - segment.logits + 1, end + 1)
        return [self.dense_logits(segment.tokens[:at], segment.prompt_tokens) * sound for at in ends]


@functools.lru_cache(maxsize=256)
def read_script(prompt_ids: tuple[int, ...]) -> Script:
    prompt = b"".join(oracles.PIECES[token_id] for token_id in prompt_ids).decode(errors="replace")
    for match in reversed(list(_SCRIPT.finditer(prompt))):
        try:
            return _script(json.JSONDecoder().raw_decode(prompt, match.start())[0]["script"])
        except (ValueError, TypeError, AttributeError):
            continue
    return Script(tuple(oracles.encode(DEFAULT_ANSWER)))


def _script(data: dict[str, Any]) -> Script:
    ids = [*oracles.encode(str(data.get("text", ""))), *map(int, data.get("ids", ()))]
    if any(not 0 <= token_id < oracles.VOCABULARY_SIZE for token_id in ids):
        raise ValueError("an id outside the vocabulary")
    return Script(tuple(ids), int(data.get("nan_at", 0)), float(data.get("delay_ms", 0.0)), data.get("finish") == "length")


def _entries(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[rows, 8]: token and position, four times."""
    return torch.stack((ids, positions), dim=-1).float().repeat(1, 4)
