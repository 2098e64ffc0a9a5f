"""The vocabulary of the oracle models, small enough to reason about and built so that characters span tokens.

id 0..255     the byte of that value
256, 257      BOS, EOS
258..289      two bytes: E0..E7, each with 80, 90, A0 or B0
"""

from __future__ import annotations

import re

BOS_ID, EOS_ID = 256, 257
VOCABULARY_SIZE = 290
CONTEXT_LENGTH = 2048
SPECIAL = {"<|bos|>": BOS_ID, "<|eos|>": EOS_ID}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

PAIRS = {bytes([0xE0 + index // 4, 0x80 + 16 * (index % 4)]): 258 + index for index in range(32)}
PIECES = [bytes([byte]) for byte in range(256)] + [b"", b""] + list(PAIRS)

_PIECE = re.compile(rb"[\xe0-\xe7][\x80\x90\xa0\xb0]|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """The fewest tokens: a pair's first byte begins no other pair, so taking pairs from the left is exact."""
    return [piece[0] if len(piece) == 1 else PAIRS[piece] for piece in _PIECE.findall(text.encode())]
