"""Identity of KV: a SHA-256 chain over a canonical encoding. Loads no torch.

    root   = SHA-256(tag, 0, salt, model, revision)      each field with its length before it
    block  = SHA-256(tag, 1, parent's digest, count, token ids)

A block's digest names everything that its KV depends on: the tokens before it and its own, the weights, the tenant's scope.
An extent of 64 tokens is identified by the digest of its last block.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

_TAG = b"brigade.kv.1"
_LENGTH = struct.Struct("<I")


def chain_root(*, scope_salt: bytes, model: str, revision: str) -> bytes:
    """What stands before a chain's first block: two scopes never share a digest."""
    fields = (scope_salt, model.encode(), revision.encode())
    return hashlib.sha256(_TAG + b"\0" + b"".join(_LENGTH.pack(len(field)) + field for field in fields)).digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Digest (32 bytes) of a block with these token ids whose predecessor, or root, has the digest `parent`."""
    if len(parent) != 32:
        raise ValueError("a parent is a digest of 32 bytes")
    return hashlib.sha256(_TAG + b"\1" + parent + struct.pack(f"<{len(token_ids) + 1}I", len(token_ids), *token_ids)).digest()


def chain_hashes(root: bytes, token_ids: Sequence[int], block_tokens: int) -> list[bytes]:
    """Digests of all full blocks of `token_ids`."""
    digests: list[bytes] = []
    for start in range(0, len(token_ids) - block_tokens + 1, block_tokens):
        digests.append(chain_hash(digests[-1] if digests else root, token_ids[start : start + block_tokens]))
    return digests
