"""The files of a folder in the form of Hugging Face: which there are, and that they lie where they say.

Nothing here is trusted: a file is named by the folder's own index, read only up to a size, and must lie in the folder itself, or in
the `blobs` of the hub cache of which the folder is a snapshot.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.text.errors import ModelFolderError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_CONTEXT = MAX_VOCABULARY = 1_048_576
_MAX_JSON_BYTES = 67_108_864
TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").exists()


def checkpoint_file(folder: Path, name: str) -> Path | None:
    """Where the file lies; None where there is none. Raises `ModelFolderError` for a name or link that leads out of the folder."""
    if name != Path(name).name or name in ("", ".", ".."):
        raise ModelFolderError(f"{name!r} is no name of a file in the folder.", code="checkpoint_path_outside")
    path = folder / name
    if not path.exists():
        return None
    home = folder.resolve()
    allowed = (home, home.parent.parent / "blobs") if home.parent.name == "snapshots" else (home,)
    if not any(path.resolve().is_relative_to(place) for place in allowed):
        raise ModelFolderError(
            f"{name} is a link that leaves the folder.", code="checkpoint_path_outside", detail=str(path.resolve())
        )
    if not path.is_file():
        raise ModelFolderError(f"{name} is no regular file.", code="checkpoint_damaged")
    return path


def read_text(folder: Path, name: str) -> str | None:
    """The file's text; None where there is none. Raises `ModelFolderError`."""
    path = checkpoint_file(folder, name)
    if path is None:
        return None
    try:
        if (size := path.stat().st_size) > _MAX_JSON_BYTES:
            raise ModelFolderError(f"{name} is too large: {size} bytes of at most {_MAX_JSON_BYTES}.", code="checkpoint_damaged")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"{name} cannot be read: {error}.", code="checkpoint_damaged") from error


def read_object(folder: Path, name: str, *, needed: bool = False) -> dict[str, Any]:
    """The JSON object in the file; empty where there is none and none is `needed`. Raises `ModelFolderError`."""
    text = read_text(folder, name)
    if text is None:
        if needed:
            raise ModelFolderError(f"{name} is missing.", code="checkpoint_file_missing", detail=str(folder))
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"{name} is no JSON: {error}.", code="checkpoint_damaged") from error
    if not isinstance(value, dict):
        raise ModelFolderError(f"{name} holds no JSON object.", code="checkpoint_damaged")
    return value


def tensor_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> file by the index, or {"": file} where one file holds them all. Raises `ModelFolderError`."""
    if single := checkpoint_file(folder, SINGLE):
        return {"": single}
    places = read_object(folder, INDEX).get("weight_map", {})
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ModelFolderError(f"{INDEX} holds no weight_map of tensors and files.", code="checkpoint_damaged")
    if not places:
        raise _without_weights(folder)
    found = {file: _shard(folder, file) for file in sorted(set(places.values()))}
    return {tensor: found[file] for tensor, file in places.items()}


def _shard(folder: Path, name: str) -> Path:
    path = checkpoint_file(folder, name)
    if path is None or path.suffix != ".safetensors":
        raise ModelFolderError(f"{INDEX} names {name!r}, which is missing or no safetensors file.", code="checkpoint_file_missing")
    return path


def _without_weights(folder: Path) -> ModelFolderError:
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED)
    if pickled:
        return ModelFolderError(
            f"The weights are pickled ({pickled[0]}), which may run any code and is never read; convert them to safetensors.",
            code="checkpoint_pickled",
        )
    return ModelFolderError(f"Neither {SINGLE} nor {INDEX} is there.", code="checkpoint_file_missing", detail=str(folder))


def checkpoint_files(folder: Path) -> list[Path]:
    """Every file that makes the model what it is, in one order. Raises `ModelFolderError`."""
    texts = (checkpoint_file(folder, name) for name in (*TEXT_FILES, INDEX))
    return [path for path in texts if path] + sorted(set(tensor_files(folder).values()))


def whole_number(config: dict[str, Any], key: str, most: int, default: int | None = None) -> int:
    """A number of `config.json` in [1, most]. Raises `ModelFolderError`."""
    value = default if config.get(key) is None else config[key]
    if type(value) is not int or not 1 <= value <= most:
        raise ModelFolderError(
            f"config.json: {key} must be a whole number from 1 to {most}, not {value!r}.", code="checkpoint_config"
        )
    return value
