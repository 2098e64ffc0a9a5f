"""What any engine must answer: one request alone, every token from the whole context anew. No batch, no cache, no pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from inference.contracts import SamplingParams, TokenLogprob
from inference.engine.history import History
from inference.engine.models.base import LanguageModel
from inference.engine.sampler import sample, token_logprob


def reference(
    model: LanguageModel,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    eos_ids: frozenset[int] = frozenset(),
    choice: int = 0,
) -> list[int]:
    """The output ids, the end token included. Stop strings are not looked at: they would only shorten the list."""
    tokens, history = list(prompt_ids), History.of(params, prompt_ids)
    ends = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else eos_ids)
    with one_thread():
        for position in range(1, min(params.max_tokens, model.context_length - len(prompt_ids)) + 1):
            row = model.dense_logits(tokens, len(prompt_ids))
            tokens.append(sample(row, params, choice=choice, position=position, history=history, ends=ends))
            history.add(tokens[-1])
            if tokens[-1] in ends:
                break
    return tokens[len(prompt_ids) :]


@contextmanager
def one_thread() -> Iterator[None]:
    """An oracle's products are too small to share: on busy cores the threads' waiting for each other takes ten times the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def reference_logprobs(model: LanguageModel, prompt_ids: Sequence[int], output_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """Of every token but the first, prompt and output, each from the whole context before it."""
    tokens = [*prompt_ids, *output_ids]
    with one_thread():
        rows = [model.dense_logits(tokens[:end], len(prompt_ids)) for end in range(1, len(tokens))]
    return [token_logprob(row, token_id, top) for row, token_id in zip(rows, tokens[1:], strict=True)]
