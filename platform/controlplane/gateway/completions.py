"""The prompts of POST /v1/completions: texts as they stand, or the client's own token ids."""

from __future__ import annotations

from controlplane.errors import ContextLengthExceeded, InvalidValue
from controlplane.gateway import limits, threads
from controlplane.gateway.fields import check_ids
from controlplane.gateway.generate import Rendered, may_fit
from controlplane.gateway.prompts import Prompt, prompt_place
from controlplane.gateway.schema import CompletionRequest
from inference.text import ModelText


async def completion_prompts(asked: CompletionRequest, text: ModelText, context_length: int) -> list[Rendered]:
    """Raises InvalidValue, ContextLengthExceeded."""
    places = [prompt_place(asked.prompts, index) for index in range(len(asked.prompts))]
    prompts = list(zip(places, asked.prompts, strict=True))
    for place, prompt in prompts:  # all of them, before the first is tokenised
        _check(prompt, place, text, context_length)
    return [Rendered(place, tuple(await _ids(prompt, place, text))) for place, prompt in prompts]


def _check(prompt: Prompt, place: str, text: ModelText, context_length: int) -> None:
    if isinstance(prompt, str):
        may_fit(text, [prompt], context_length, place)
        return
    check_ids(prompt, text.vocabulary_size, place + "[{0}]")
    if len(prompt) >= context_length:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens. However, your {place} has {len(prompt)} tokens.",
            param=place,
        )


async def _ids(prompt: Prompt, place: str, text: ModelText) -> tuple[int, ...]:
    """A text begins as the model's texts do; an empty one is the beginning of a new document. No text is a control token."""
    if not isinstance(prompt, str):
        return prompt
    ids = await encode(text, prompt)
    if not ids and text.bos_id is not None:
        return (text.bos_id,)
    if not ids:
        raise InvalidValue(f"Invalid value for '{place}': the prompt is empty.", param=place)
    return tuple(ids)


async def encode(text: ModelText, prompt: str, *, add_special_tokens: bool = True) -> list[int]:
    encoder = text.encode_prompt if add_special_tokens else text.encode
    if len(prompt) <= limits.TEXT_INLINE_BYTES:
        return encoder(prompt)
    return await threads.text.run(encoder, prompt)
