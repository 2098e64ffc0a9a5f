"""The prompt of a completion: a text, a list of texts, token ids, or a list of lists of token ids."""

from __future__ import annotations

from typing import Any

from controlplane.gateway import limits
from controlplane.gateway.fields import Schema, TokenIds, invalid, is_text

Prompt = str | tuple[int, ...]

_IDS = TokenIds(limits.PROMPT_IDS, least=1)


class Prompts:
    """Reads one or several; `prompt_place` says where each stood."""

    def read(self, value: Any, place: str) -> tuple[Prompt, ...]:
        if isinstance(value, str):
            return (bounded_text(value, place, limits.CONTENT_BYTES),)
        if not isinstance(value, list) or not value:
            raise invalid(place, "a string, a list of strings, a list of token ids, or a list of lists of token ids")
        if type(value[0]) is int:
            return (_IDS.read(value, place),)
        if len(value) > limits.PROMPTS:
            raise invalid(place, f"at most {limits.PROMPTS} prompts")
        return self._several(value, place)

    def _several(self, value: list[Any], place: str) -> tuple[Prompt, ...]:
        """All strings, or all lists of ids."""
        if isinstance(value[0], str):
            texts = tuple(bounded_text(text, f"{place}[{index}]", limits.CONTENT_BYTES) for index, text in enumerate(value))
            if sum(len(text.encode()) for text in texts) > limits.CONTENT_BYTES:
                raise invalid(place, f"at most {limits.CONTENT_BYTES} bytes of text")
            return texts
        if sum(len(ids) for ids in value if isinstance(ids, list)) > limits.PROMPT_IDS:
            raise invalid(place, f"at most {limits.PROMPT_IDS} token ids")
        return tuple(_IDS.read(ids, f"{place}[{index}]") for index, ids in enumerate(value))

    def schema(self) -> Schema:
        text: Schema = {"type": "string"}
        several: Schema = {"type": "array", "minItems": 1, "maxItems": limits.PROMPTS}
        return {"anyOf": [text, {**several, "items": text}, _IDS.schema(), {**several, "items": _IDS.schema()}]}


def prompt_place(prompts: tuple[Prompt, ...], index: int) -> str:
    return "prompt" if len(prompts) == 1 else f"prompt[{index}]"


def bounded_text(value: Any, place: str, most_bytes: int) -> str:
    if not is_text(value):
        raise invalid(place, "a string")
    if len(value.encode()) > most_bytes:
        raise invalid(place, f"at most {most_bytes} bytes of text")
    return str(value)
