"""Which weights a folder holds: a hash that is part of every KV identity.

Hashing 100 MB at every start would cost more than opening the model, so the hash is recorded beside the file with the size and time
of change under which it was taken; a file that differs in either is hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from inference.text.errors import ModelFolderError

REVISION_CHARACTERS = 16
_RECORD = "sha256.json"
_WEIGHTS = ("model.gguf", "model.json")


def model_revision(folder: Path) -> str:
    """16 hex digits of the SHA-256 of the model's file. Raises `ModelFolderError`."""
    return model_digest(folder)[:REVISION_CHARACTERS]


def model_digest(folder: Path, *, verify: bool = False) -> str:
    """SHA-256 (hex) of the model's file. The record counts while it fits the file; `verify=True` always reads the file.

    Raises `ModelFolderError`.
    """
    path = next((folder / name for name in _WEIGHTS if (folder / name).exists()), None)
    if path is None:
        raise ModelFolderError(f"{folder.name!r} holds no model.", detail=str(folder))
    try:
        state = file_state(path)
        recorded = None if verify else _recorded(folder, state)
        return recorded or _record(folder, path, state)
    except OSError as error:
        raise ModelFolderError("The model file cannot be read.", detail=str(error)) from error


def file_state(path: Path) -> dict[str, object]:
    status = path.stat()
    return {"file": path.name, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def write_atomically(path: Path, text: str) -> None:
    """All of `text` or nothing, for readers and after a crash."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _recorded(folder: Path, state: dict[str, object]) -> str | None:
    try:
        record = json.loads((folder / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or any(record.get(key) != value for key, value in state.items()):
        return None
    digest = record.get("sha256")
    return digest if isinstance(digest, str) and len(digest) == 64 else None


def _record(folder: Path, path: Path, state: dict[str, object]) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with contextlib.suppress(OSError):  # a read-only model folder only costs the next start its hash
        write_atomically(folder / _RECORD, json.dumps(state | {"sha256": digest}))
    return digest
