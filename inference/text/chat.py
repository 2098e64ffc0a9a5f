"""A conversation to text, through the model's own template, with what the users wrote kept apart from what the template wrote.

The template never sees a content, only a placeholder that it cannot guess, with the content's own blanks around it, so that `trim`
and tests for emptiness work. Where the placeholder comes out, the content goes in, marked as a user's text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inference.text.errors import ChatTemplateError
from inference.text.sandbox import BoundedTemplate

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_MARK = "\ue000"  # a private code point that no filter changes


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


class ChatTemplate:
    """`source` is Jinja from the model's file: hostile. It is compiled at its first use."""

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        self._template = BoundedTemplate(source) if source else None
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @property
    def exists(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[ChatMessage]) -> Iterator[tuple[str, bool]]:
        """Pairs (text, written by the template), in order, with the generation prompt. Raises `ChatTemplateError`."""
        if self._template is None:
            raise ChatTemplateError(
                "This model has no chat template: it answers /v1/completions only.", code="chat_template_missing"
            )
        _check_roles(messages)
        nonce = f"{_MARK}{secrets.randbits(64)}."
        rows = [{"role": message.role, "content": _placeholder(nonce, i, message.content)} for i, message in enumerate(messages)]
        rendered = self._template.render(messages=rows, add_generation_prompt=True, **self._tokens)
        return _pieces(rendered, nonce, messages)


def _check_roles(messages: Sequence[ChatMessage]) -> None:
    for message in messages:
        if message.role not in ROLES:
            raise ChatTemplateError(f"A message's role must be one of {', '.join(sorted(ROLES))}.", code="chat_role_unknown")


def _placeholder(nonce: str, index: int, content: str) -> str:
    inner = content.strip()
    if not inner:
        return content
    start = content.index(inner)
    return f"{content[:start]}{nonce}{index}{_MARK}{content[start + len(inner) :]}"


def _pieces(rendered: str, nonce: str, messages: Sequence[ChatMessage]) -> Iterator[tuple[str, bool]]:
    for place, text in enumerate(re.split(f"{re.escape(nonce)}([0-9]+){_MARK}", rendered)):
        if place % 2:
            yield messages[int(text)].content.strip(), False
        elif _MARK in text:
            raise ChatTemplateError("The model's chat template cuts a message's content.")
        else:
            yield text, True
