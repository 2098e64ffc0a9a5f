"""Extents, the unit in which KV is published. Each is named by the chain hash of its last block: there is one chain, not two."""

from __future__ import annotations

from collections.abc import Sequence

from inference.contracts import BLOCK_TOKENS, EXTENT_TOKENS
from inference.engine.prefix import chain_hashes, chain_root


def extent_digests(prompt_ids: Sequence[int], *, scope_salt: bytes, model: str, revision: str) -> list[bytes]:
    """The names of a prompt's whole extents, in order."""
    root = chain_root(scope_salt=scope_salt, model=model, revision=revision)
    blocks_per_extent = EXTENT_TOKENS // BLOCK_TOKENS
    return chain_hashes(root, prompt_ids, BLOCK_TOKENS)[blocks_per_extent - 1 :: blocks_per_extent]
