"""What any engine must answer: one request alone, every token from the whole context anew. No batch, no cache, no pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from inference.contracts import SamplingParams
from inference.engine.models.base import LanguageModel
from inference.engine.sampler import sample


def reference(
    model: LanguageModel, prompt_ids: Sequence[int], params: SamplingParams, *, eos_ids: frozenset[int] = frozenset()
) -> list[int]:
    """The output ids, the end-of-text token included. Stop strings are not looked at: they would only shorten the list."""
    tokens = list(prompt_ids)
    with one_thread():
        for position in range(1, min(params.max_tokens, model.context_length - len(prompt_ids)) + 1):
            row = model.dense_logits(tokens, len(prompt_ids))
            tokens.append(sample(row, params, choice=0, position=position))
            if tokens[-1] in eos_ids and not params.ignore_eos:
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
