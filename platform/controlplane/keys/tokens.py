"""The form of an API key: `bk-` + 22 characters (its id) + `-` + 43 (256 random bits) + 6 (checksum), all base 62.

The fixed prefix and the checksum let secret scanners find leaked keys, and let us refuse a mistyped one without a look-up.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import uuid
import zlib
from dataclasses import dataclass

from controlplane.tenants.secrets import derived_key

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PATTERN = re.compile(r"bk-([0-9A-Za-z]{22})-[0-9A-Za-z]{43}([0-9A-Za-z]{6})", re.ASCII)
PREFIX_LENGTH = 11  # what people may see: "bk-" and 8 characters


@dataclass(frozen=True, slots=True)
class ParsedKey:
    key_id: uuid.UUID
    digest: bytes

    def matches(self, digest: bytes) -> bool:
        return hmac.compare_digest(self.digest, digest)


def _base62(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        value, digit = divmod(value, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def _number(text: str) -> int:
    value = 0
    for character in text:
        value = value * 62 + ALPHABET.index(character)
    return value


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), 6)


def key_new(key_id: uuid.UUID) -> str:
    body = f"bk-{_base62(key_id.int, 22)}-{_base62(secrets.randbits(256), 43)}"
    return body + _checksum(body)


def key_digest(key: str) -> bytes:
    """Keyed, so that a copy of the table alone is of no use."""
    return hmac.digest(derived_key("api-key-pepper"), key.encode(), hashlib.sha256)


def key_parse(key: str) -> ParsedKey | None:
    """None unless the key is well-formed, its checksum included."""
    match = PATTERN.fullmatch(key)
    if not match or _checksum(key[:-6]) != match[2]:
        return None
    number = _number(match[1])
    return ParsedKey(uuid.UUID(int=number), key_digest(key)) if number < 1 << 128 else None
