"""Log probabilities as clients know them. Chat and completions write the same figures differently."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from inference.contracts import TokenLogprob
from inference.text import ModelText

Object = dict[str, Any]
Maybe = Sequence[TokenLogprob | None]  # None: nothing predicts the token


def chat_logprobs(text: ModelText, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> Object:
    """`bytes`, concatenated, are the answer's UTF-8; a control token has none, and its `token` is its literal."""
    content = [
        {**_named(text, token_id, found.value), "top_logprobs": [_named(text, *candidate) for candidate in found.top]}
        for token_id, found in zip(ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _named(text: ModelText, token_id: int, value: float) -> Object:
    piece = text.token_bytes(token_id)
    return {"token": token_text(text, token_id), "logprob": value, "bytes": list(piece) if piece else None}


def token_text(text: ModelText, token_id: int) -> str:
    """Part of a character is U+FFFD, a control token its literal."""
    return text.literal(token_id) or text.token_bytes(token_id).decode(errors="replace")


def prompt_logprobs(text: ModelText, ids: Sequence[int], found: Maybe, alternatives: int) -> list[Object | None]:
    """By token id: the token itself and its alternatives. `rank` counts from 1; null where the token is not among them."""
    return [
        None if entry is None else _ranked(text, token_id, entry, alternatives) for token_id, entry in zip(ids, found, strict=True)
    ]


def _ranked(text: ModelText, token_id: int, entry: TokenLogprob, alternatives: int) -> Object:
    ranks = {candidate: rank for rank, (candidate, _) in enumerate(entry.top, 1)}
    values = {token_id: entry.value, **dict(entry.top[:alternatives])}
    return {
        str(candidate): {"logprob": value, "rank": ranks.get(candidate), "decoded_token": token_text(text, candidate)}
        for candidate, value in values.items()
    }


class CompletionLogprobs:
    """The four parallel lists of a completion, as one choice's tokens come. Offsets count the characters of its text."""

    def __init__(self, text: ModelText, alternatives: int) -> None:
        self._text = text
        self._alternatives = alternatives
        self._begin()
        self._offset = 0

    def _begin(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def echo(self, ids: Sequence[int], found: Maybe) -> Object:
        """The prompt's tokens: half a character at its end stands alone, before the answer begins."""
        lists = self.add(ids, found)
        self._offset += len(self._characters.decode(b"", final=True))
        self._begin()
        return lists

    def add(self, ids: Sequence[int], found: Maybe) -> Object:
        pairs = list(zip(ids, found, strict=True))
        return {
            "tokens": [self._name(token_id) for token_id in ids],
            "token_logprobs": [entry and entry.value for entry in found],
            "top_logprobs": [entry and self._top(token_id, entry) for token_id, entry in pairs],
            "text_offset": [self._place(token_id) for token_id in ids],
        }

    def _name(self, token_id: int) -> str:
        """Names of different tokens differ: part of a character is written byte by byte."""
        piece = self._text.token_bytes(token_id)
        try:
            return self._text.literal(token_id) or piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _top(self, token_id: int, entry: TokenLogprob) -> dict[str, float]:
        """The alternatives, and the token itself where it is not among them."""
        values = {**dict(entry.top[: self._alternatives]), token_id: entry.value}
        return {self._name(candidate): value for candidate, value in values.items()}

    def _place(self, token_id: int) -> int:
        """Where the character stands to which the token's first byte belongs."""
        piece = self._text.token_bytes(token_id)
        at = self._offset
        for number in range(len(piece)):
            self._offset += len(self._characters.decode(piece[number : number + 1]))
            if number == 0:
                unfinished = self._characters.getstate()[0] != b""
                at = self._offset if unfinished or self._offset == at else self._offset - 1
        return at


def joined(parts: Sequence[Object]) -> Object:
    """Lists of several parts, one behind the other."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [item for part in parts for item in part[name]] for name in names}
