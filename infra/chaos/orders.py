"""What clients ask and what they must get. The same seed asks the same again.

The orders of a crowd differ in all that has an edge: prompts that end before, at and behind the borders of blocks and chunks,
answers of one token (which run fused) and of many, greedy and sampled, with stop strings, penalties, several choices, streamed and
not.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.contracts import FinishReason, SamplingParams
from inference.engine.history import History
from inference.engine.loading import load_model
from inference.engine.models.llama import LlamaModel
from inference.engine.reference import one_thread, reference
from inference.engine.sampler import sample
from inference.text import ChatMessage, answer_text, end_ids, open_text
from inference.text.model_files import ensure_oracle

Ids = Sequence[Sequence[int]]  # by choice

MODEL = "tiny"
LABEL = "run"  # of the metadata by which a scenario's rows are found again
PROMPT_TOKENS = (47, 48, 49, 64, 65, 127, 128, 129, 160, 192, 193, 255, 256, 257, 300)  # blocks of 16, chunks of 128, pieces of 256
ANSWER_TOKENS = (2, 17, 32, 48, 64)
LONGEST = max(ANSWER_TOKENS)
_STOPS = string.ascii_letters + string.digits  # about every second answer of 48 tokens has one of four of them
_TEMPLATE_TOKENS = 19  # of the chat template around the content, a token a byte


@dataclass(frozen=True, slots=True)
class Order:
    content: str
    sampling: SamplingParams
    stream: bool

    def body(self, label: str) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": self.content}],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop),
            "ignore_eos": sampling.ignore_eos,
            "n": sampling.n,
            "min_p": sampling.min_p,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "logit_bias": {str(token_id): bias for token_id, bias in sampling.logit_bias},
            "min_tokens": sampling.min_tokens,
            "metadata": {LABEL: label},
        }


@dataclass(frozen=True, slots=True)
class Right:
    """The only right answer to an order: ids, text and end of each choice."""

    ids: Ids
    texts: tuple[str, ...]
    reasons: tuple[FinishReason, ...]
    prompt_tokens: int

    @property
    def completion_tokens(self) -> int:
        return sum(map(len, self.ids))


class Oracle:
    """Each order alone, with the whole context: no batch, no cache, no pages."""

    def __init__(self, models: Path) -> None:
        folder = ensure_oracle(MODEL, models)
        model = load_model(folder)
        assert isinstance(model, LlamaModel)
        self._model, self._text = model, open_text(folder)

    def right(self, order: Order, heard: Ids = ()) -> Right:
        """`heard` spares the time of a pass for each token: where one pass over all of a choice agrees, it is right."""
        prompt_ids, sampling = self._text.render_chat([ChatMessage("user", order.content)]), order.sampling
        ids, texts, reasons = [], [], []
        for choice in range(sampling.n):
            known = heard[choice] if choice < len(heard) else ()
            if not self._agrees(prompt_ids, known, sampling, choice):
                known = reference(self._model, prompt_ids, sampling, eos_ids=self._text.eos_ids, choice=choice)
            answer = answer_text(self._text, sampling, sampling.max_tokens)
            said = "".join(answer.accept(token_id) for token_id in known if answer.finish_reason is None)
            assert answer.finish_reason is not None, "the reference stops at an end or at the limit"
            ids.append(tuple(known[: answer.count]))
            texts.append(said)
            reasons.append(answer.finish_reason)
        return Right(tuple(ids), tuple(texts), tuple(reasons), len(prompt_ids))

    def _agrees(self, prompt_ids: Sequence[int], heard: Sequence[int], sampling: SamplingParams, choice: int) -> bool:
        if not heard:
            return False
        history, ends = History.of(sampling, prompt_ids), end_ids(self._text, sampling)
        answer = answer_text(self._text, sampling, sampling.max_tokens)
        with one_thread():
            rows = self._model.dense_rows([*prompt_ids, *heard[:-1]], len(prompt_ids) - 1)
        for position, (row, token_id) in enumerate(zip(rows, heard, strict=True), 1):
            wanted = sample(row, sampling, choice=choice, position=position, history=history, ends=ends)
            if answer.finish_reason is not None or wanted != token_id:
                return False
            history.add(token_id)
            answer.accept(token_id)
        return answer.finish_reason is not None


def crowd(label: str, count: int, seed: int) -> list[Order]:
    """The first order has one token, the second surely has the most; the rest is drawn."""
    chance = random.Random(f"{seed} {label}")
    return [_order(label, index, chance) for index in range(count)]


def _order(label: str, index: int, chance: random.Random) -> Order:
    sampled = index % 2 == 1
    penalised = index % 5 == 2 or index == 1
    sampling = SamplingParams(
        max_tokens=1 if index == 0 else LONGEST if index == 1 else chance.choice(ANSWER_TOKENS),
        temperature=1.0 if sampled else 0.0,
        top_p=chance.choice((1.0, 0.9)) if sampled else 1.0,
        seed=chance.getrandbits(48),
        stop=tuple(chance.sample(_STOPS, 4)) if index % 4 == 3 else (),
        ignore_eos=index == 1,
        n=chance.choice((2, 3)) if index % 5 in (1, 4) else 1,
        min_p=0.01 if sampled and penalised else 0.0,
        frequency_penalty=0.6 if penalised else 0.0,
        presence_penalty=0.3 if penalised else 0.0,
        repetition_penalty=1.2 if penalised else 1.0,
        logit_bias=((ord("e"), 3.0), (ord(" "), -2.0)) if penalised else (),
        min_tokens=1 if index % 7 == 3 else 0,
    )
    return Order(_content(label, index, chance), sampling, index % 3 != 2)


def _content(label: str, index: int, chance: random.Random) -> str:
    """Some begin with what is theirs alone, so that nothing is cached; some end with it, so that the beginning is."""
    own = f"{label} {index}"
    filler = "spoon " * 60
    size = max(len(own), chance.choice(PROMPT_TOKENS) - _TEMPLATE_TOKENS) - len(own)
    return own + filler[:size] if index % 3 else filler[:size] + own
