"""A model's text side: its tokenizer, its special tokens, its chat template, its limits. Loads no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inference.text.chat import ChatMessage, ChatTemplate
from inference.text.errors import UnknownTokenError


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Control tokens by their text, and which of them play a part."""

    ids: Mapping[str, int] = field(default_factory=dict)
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    pattern: re.Pattern[str] | None = None
    add_bos: bool = False  # the model was trained on texts that begin with the BOS
    chat_eos_id: int | None = None  # the end that chat templates write

    def text_of(self, token_id: int | None) -> str:
        return next((text for text, index in self.ids.items() if index == token_id), "")

    def split(self, text: str) -> list[str]:
        """Plain parts at even places, special tokens at odd ones. The longest token wins where several begin."""
        return self.pattern.split(text) if self.pattern else [text]


def special_tokens(
    ids: Mapping[str, int],
    bos_id: int | None,
    eos_ids: frozenset[int],
    *,
    add_bos: bool = False,
    chat_eos_id: int | None = None,
) -> SpecialTokens:
    """`chat_eos_id`: where nothing says it, the first of the ends."""
    longest_first = sorted((text for text in ids if text), key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
    chat_eos_id = min(eos_ids, default=None) if chat_eos_id is None else chat_eos_id
    return SpecialTokens(ids, bos_id, eos_ids, pattern, add_bos and bos_id is not None, chat_eos_id)


class ModelText:
    """Text to ids and back for one model. Has no mutable state: any number of threads may share one."""

    def __init__(
        self,
        *,
        name: str,
        revision: str,
        pieces: Sequence[bytes],
        special: SpecialTokens,
        encode_plain: Callable[[str], list[int]],
        context_length: int,
        chat_template: str | None,
        encode_inner: Callable[[str], list[int]] | None = None,
        least_share: float = 1.0,
    ) -> None:
        """`encode_inner` encodes what does not begin a text, where that differs. `least_share`: of a text's bytes, how much its
        tokens stand for at least; less than 1 where a text is normalized."""
        self.name = name
        self.revision = revision
        self.context_length = context_length
        self.special = special
        self._pieces = pieces
        self._encode_plain = encode_plain
        self._encode_inner = encode_inner or encode_plain
        self._shares = _shares(pieces) * least_share
        self._literals = {index: text for text, index in special.ids.items()}
        self._chat = ChatTemplate(
            chat_template,
            bos_token=special.text_of(special.bos_id),
            eos_token=special.text_of(special.chat_eos_id),
        )

    @property
    def eos_ids(self) -> frozenset[int]:
        return self.special.eos_ids

    @property
    def bos_id(self) -> int | None:
        return self.special.bos_id

    @property
    def has_chat_template(self) -> bool:
        return self._chat.exists

    @property
    def vocabulary_size(self) -> int:
        return len(self._pieces)

    def least_tokens(self, text: str) -> int:
        """A lower bound of its tokens, without tokenising it: a token with byte b is no longer than the longest piece with b."""
        return int(self._shares[np.frombuffer(text.encode(errors="replace"), np.uint8)].sum())

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a text; a BOS is never added. `special=False`: no text becomes a special token. Lone surrogates become U+FFFD."""
        text = _without_surrogates(text)
        return self._encode_parts(self.special.split(text)) if special else self._encode_plain(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a text that stands alone: it begins with one BOS where the model expects that. No text is a special token."""
        bos = [self.special.bos_id] if self.special.add_bos and self.special.bos_id is not None else []
        return bos + self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of all ids; control tokens show nothing, invalid UTF-8 is U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text: none for a control token. Raises `UnknownTokenError` outside the vocabulary."""
        if not 0 <= token_id < len(self._pieces):
            raise UnknownTokenError("A token id lies outside the model's vocabulary.", detail=str(token_id))
        return self._pieces[token_id]

    def literal(self, token_id: int) -> str | None:
        """How a control token is written; None for a token that is text."""
        return None if self.token_bytes(token_id) else self._literals.get(token_id)

    def render_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of the conversation in the model's own form, with the generation prompt. Raises `ChatTemplateError`.

        Special tokens come from the template alone. What lies between two of them, template and contents together, is encoded as
        one text, so that the ids are those of the whole rendering.
        """
        parts: list[list[str]] = [[]]
        for text, from_template in self._chat.render(messages):
            first, *others = self.special.split(text) if from_template else [_without_surrogates(text)]
            parts[-1].append(first)
            parts += ([other] for other in others)
        return self._encode_parts(["".join(part) for part in parts])

    def _encode_parts(self, parts: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(parts):
            if index % 2:
                ids.append(self.special.ids[part])
            elif part:
                ids += self._encode_inner(part) if index else self._encode_plain(part)
        return ids


def _shares(pieces: Sequence[bytes]) -> NDArray[np.float64]:
    """For each byte the share of a token that it is at least; nothing where no token has it, for such a byte may vanish."""
    longest = [0] * 256
    for piece in pieces:
        for byte in set(piece):
            longest[byte] = max(longest[byte], len(piece))
    return np.array([1 / length if length else 0.0 for length in longest])


def _without_surrogates(text: str) -> str:
    """JSON may hold half a surrogate pair, UTF-8 may not: pairs are joined, halves become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
