"""What an engine does not take: what can never run here, or would harm others. The gateway has refused nearly all of it before."""

from __future__ import annotations

import math

from inference.contracts import EngineRequest, SamplingParams
from inference.engine.errors import EngineRefusal

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_STOP_IDS = 64


def refuse_unfit(request: EngineRequest, *, context_length: int, vocabulary_size: int) -> None:
    """Raises `EngineRefusal`."""
    if not request.prompt_ids:
        raise EngineRefusal("prompt_empty", "The prompt has no tokens.")
    if len(request.prompt_ids) >= context_length:
        raise EngineRefusal("context_length_exceeded", "The prompt leaves no room for an answer.")
    fault = sampling_fault(request.sampling)
    if fault:
        raise EngineRefusal("sampling_invalid", f"The sampling parameter {fault} is out of range.")
    if len(request.forced) > request.sampling.n:
        raise EngineRefusal("hand_off_invalid", "There are tokens of choices that are not asked for.")
    forced = (token_id for ids in request.forced for token_id in ids)
    biased = (token_id for token_id, _ in request.sampling.logit_bias)
    if not all(0 <= token_id < vocabulary_size for token_id in (*request.prompt_ids, *forced, *biased, *request.sampling.stop_ids)):
        raise EngineRefusal("token_id_invalid", "A token id is outside the vocabulary.")


def sampling_fault(sampling: SamplingParams) -> str | None:
    """The name of the first parameter that is out of range."""
    fits = {
        "n": 1 <= sampling.n <= MAX_CHOICES,
        "max_tokens": sampling.max_tokens >= 1,
        "min_tokens": 0 <= sampling.min_tokens <= sampling.max_tokens,
        "temperature": _within(sampling.temperature, 0.0, math.inf),
        "top_p": _within(sampling.top_p, 0.0, 1.0) and sampling.top_p > 0,
        "top_k": sampling.top_k >= 0,
        "min_p": _within(sampling.min_p, 0.0, 1.0),
        "frequency_penalty": _within(sampling.frequency_penalty, -2.0, 2.0),
        "presence_penalty": _within(sampling.presence_penalty, -2.0, 2.0),
        "repetition_penalty": _within(sampling.repetition_penalty, 0.01, 100.0),
        "logit_bias": len(sampling.logit_bias) <= MAX_BIASES
        and all(_within(bias, -100.0, 100.0) for _, bias in sampling.logit_bias),
        "stop_ids": len(sampling.stop_ids) <= MAX_STOP_IDS,
        "logprobs": sampling.logprobs is None or 0 <= sampling.logprobs <= MAX_LOGPROBS,
        "prompt_logprobs": sampling.prompt_logprobs is None or 0 <= sampling.prompt_logprobs <= MAX_LOGPROBS,
    }
    return next((name for name, fit in fits.items() if not fit), None)


def _within(value: float, least: float, most: float) -> bool:
    return math.isfinite(value) and least <= value <= most
