"""Continuous batching over a paged KV pool. Knows no framework. See README.md.

Names load on first use, so that `inference.engine.prefix` (hashes of KV) can be used by processes that hold no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inference.engine.block_manager import CacheChanges, CacheEntry
    from inference.engine.config import EngineConfig
    from inference.engine.engine import Engine
    from inference.engine.errors import EngineRefusal
    from inference.engine.events import EngineEvent, Failed, Finished, PhaseUsage, Prefilled, Reservation, Token
    from inference.engine.loading import load_model
    from inference.engine.models.base import LanguageModel
    from inference.engine.prefix import chain_hash, chain_root
    from inference.engine.reference import reference
    from inference.engine.runner import pool_shape

_HOME = {
    "CacheChanges": "block_manager",
    "CacheEntry": "block_manager",
    "EngineConfig": "config",
    "Engine": "engine",
    "EngineRefusal": "errors",
    "EngineEvent": "events",
    "Failed": "events",
    "Finished": "events",
    "PhaseUsage": "events",
    "Prefilled": "events",
    "Reservation": "events",
    "Token": "events",
    "load_model": "loading",
    "LanguageModel": "models.base",
    "chain_hash": "prefix",
    "chain_root": "prefix",
    "reference": "reference",
    "pool_shape": "runner",
}

__all__ = [
    "CacheChanges",
    "CacheEntry",
    "Engine",
    "EngineConfig",
    "EngineEvent",
    "EngineRefusal",
    "Failed",
    "Finished",
    "LanguageModel",
    "PhaseUsage",
    "Prefilled",
    "Reservation",
    "Token",
    "chain_hash",
    "chain_root",
    "load_model",
    "pool_shape",
    "reference",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
