"""Which weights a folder holds: a hash that is part of every KV identity.

Hashing 100 MB at every start would cost more than opening the model, so the hash is recorded beside the files with the sizes and
times of change under which it was taken; where a file differs in either, all are hashed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from inference.text.checkpoint import checkpoint_files, is_checkpoint
from inference.text.errors import ModelFolderError

REVISION_CHARACTERS = 16
_RECORD = "sha256.json"
_ALONE = ("model.gguf", "model.json")


def model_revision(folder: Path) -> str:
    """16 hex digits of the SHA-256 of the model's files. Raises `ModelFolderError`."""
    return model_digest(folder)[:REVISION_CHARACTERS]


def model_digest(folder: Path, *, verify: bool = False) -> str:
    """SHA-256 (hex) of the model's file, or, of several, of the list of their names and SHA-256s.

    The record counts while it fits the files; `verify=True` always reads them. Raises `ModelFolderError`.
    """
    files = model_paths(folder)
    try:
        state = [_file_state(path) for path in files]
        recorded = None if verify else _recorded(folder, state)
        return recorded or _record(folder, files, state)
    except OSError as error:
        raise ModelFolderError("The model file cannot be read.", detail=str(error)) from error


def model_paths(folder: Path) -> list[Path]:
    """Every file that makes the model what it is. Raises `ModelFolderError`."""
    alone = next((folder / name for name in _ALONE if (folder / name).exists()), None)
    if alone is not None:
        return [alone]
    if is_checkpoint(folder):
        return checkpoint_files(folder)
    raise ModelFolderError(f"{folder.name!r} holds no model.", detail=str(folder))


def _file_state(path: Path) -> dict[str, object]:
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


def _recorded(folder: Path, state: list[dict[str, object]]) -> str | None:
    try:
        record = json.loads((folder / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("files") != state:
        return None
    digest = record.get("sha256")
    return digest if isinstance(digest, str) and len(digest) == 64 else None


def _record(folder: Path, files: list[Path], state: list[dict[str, object]]) -> str:
    digest = _digest(files)
    with contextlib.suppress(OSError):  # a read-only model folder only costs the next start its hash
        write_atomically(folder / _RECORD, json.dumps({"files": state, "sha256": digest}))
    return digest


def _digest(files: list[Path]) -> str:
    digests = {path.name: _file_digest(path) for path in files}
    if len(digests) == 1:
        return next(iter(digests.values()))
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
