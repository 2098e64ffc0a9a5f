"""Opens the text side of a model folder, whatever kind it is."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from inference.text import oracles
from inference.text.byte_level import encode_plain, plain_tokenizer, token_piece
from inference.text.checkpoint import is_checkpoint
from inference.text.checkpoint_tokenizer import open_checkpoint_text
from inference.text.errors import ModelFolderError
from inference.text.gguf_metadata import read_metadata
from inference.text.model_text import ModelText, special_tokens
from inference.text.revision import model_revision

ORACLE_KINDS = ("tiny", "scripted")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5  # GGUF's token types
_HIDDEN = (_UNKNOWN, _CONTROL, _UNUSED)


def open_text(folder: Path) -> ModelText:
    """The tokenizer, chat template and limits of the model in `folder`. Raises `ModelFolderError`."""
    if (folder / "model.gguf").exists():
        return _open_gguf(folder)
    if (folder / "model.json").exists():
        return _open_oracle(folder)
    if is_checkpoint(folder):
        return open_checkpoint_text(folder)
    raise ModelFolderError(f"{folder.name!r} holds no model.", detail=f"no model.gguf, model.json or config.json in {folder}")


def oracle_kind(folder: Path) -> str:
    """Which oracle `folder` holds. Raises `ModelFolderError`."""
    try:
        kind = json.loads((folder / "model.json").read_text())["kind"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFolderError("model.json cannot be read.", detail=str(error)) from error
    if kind not in ORACLE_KINDS:
        raise ModelFolderError(f"model.json: unknown kind {kind!r}.", detail=f"known: {', '.join(ORACLE_KINDS)}")
    return str(kind)


def _open_oracle(folder: Path) -> ModelText:
    oracle_kind(folder)
    return ModelText(
        name=folder.name,
        revision=model_revision(folder),
        pieces=oracles.PIECES,
        special=special_tokens(oracles.SPECIAL, oracles.BOS_ID, frozenset({oracles.EOS_ID})),
        encode_plain=oracles.encode,
        context_length=oracles.CONTEXT_LENGTH,
        chat_template=oracles.CHAT_TEMPLATE,
    )


def _open_gguf(folder: Path) -> ModelText:
    metadata = read_metadata(folder / "model.gguf")
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        raise ModelFolderError("Only byte-level BPE vocabularies are supported.", detail=str(metadata.get("tokenizer.ggml.model")))
    try:
        return _gguf_text(folder, metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFolderError("The model file's tokenizer is damaged.", detail=f"{type(error).__name__}: {error}") from error


def _gguf_text(folder: Path, metadata: dict[str, Any]) -> ModelText:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    special = {
        token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind not in (_NORMAL, _UNUSED)
    }
    kind = metadata.get("tokenizer.ggml.pre", "default")
    tokenizer = plain_tokenizer(kind, tokens, metadata["tokenizer.ggml.merges"], special)
    ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    return ModelText(
        name=folder.name,
        revision=model_revision(folder),
        pieces=[_piece(token, kind) for token, kind in zip(tokens, types, strict=True)],
        special=special_tokens(
            special,
            metadata.get("tokenizer.ggml.bos_token_id"),
            frozenset(end for end in ends if end is not None),
            add_bos=metadata.get("tokenizer.ggml.add_bos_token") is True,
        ),
        encode_plain=partial(encode_plain, tokenizer),
        context_length=int(metadata[f"{metadata['general.architecture']}.context_length"]),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _piece(token: str, kind: int) -> bytes:
    if kind == _USER_DEFINED:
        return token.encode()
    return b"" if kind in _HIDDEN else token_piece(token)
