"""The text side of a Hugging Face folder: `tokenizer.json`, what its configurations say of special tokens, its chat template.

The tokenizer is built without its added tokens, and without their entries in the vocabulary, so that no text can become one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from inference.text.byte_level import encode_plain, token_piece
from inference.text.checkpoint import MAX_CONTEXT, MAX_VOCABULARY, read_object, read_text, whole_number
from inference.text.errors import ModelFolderError
from inference.text.model_text import ModelText, SpecialTokens, special_tokens
from inference.text.revision import model_revision

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NFC_SHRINKS = 3  # bytes of a text over bytes of its NFC, at most: a Hangul syllable of three letters


@dataclass(frozen=True, slots=True)
class _AddedToken:
    content: str
    id: int
    hidden: bool


def open_checkpoint_text(folder: Path) -> ModelText:
    """Raises `ModelFolderError`."""
    config, settings = read_object(folder, "config.json", needed=True), read_object(folder, "tokenizer_config.json")
    description = read_object(folder, "tokenizer.json", needed=True)
    try:
        return _opened(folder, config, settings, description)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:  # whatever has another form than it should
        raise _damaged(f"{type(error).__name__}: {error}") from error


def _opened(folder: Path, config: dict[str, Any], settings: dict[str, Any], description: dict[str, Any]) -> ModelText:
    added, vocabulary = list(_added_tokens(description)), _vocabulary(description)
    rows = whole_number(config, "vocab_size", MAX_VOCABULARY)
    _check_ids("tokenizer.json", [*vocabulary.values(), *(token.id for token in added)], rows)
    ids = {token.content: token.id for token in added}
    return ModelText(
        name=folder.name,
        revision=model_revision(folder),
        pieces=_pieces(description, vocabulary, added, rows),
        special=_special(folder, config, settings, ids, description),
        encode_plain=partial(encode_plain, _plain_tokenizer(description, ids)),
        encode_inner=_inner_encoder(description, ids),
        context_length=whole_number(config, "max_position_embeddings", MAX_CONTEXT),
        chat_template=_chat_template(folder, settings),
        least_share=_least_share(description),
    )


def _added_tokens(description: Mapping[str, Any]) -> Iterator[_AddedToken]:
    for token in description.get("added_tokens") or ():
        content, index = token["content"], token["id"]
        if not isinstance(content, str) or not content:
            raise ValueError(f"an added token is {content!r}")
        yield _AddedToken(content, index, hidden=token.get("special") is True)


def _vocabulary(description: Mapping[str, Any]) -> dict[str, int]:
    model = description["model"]
    if model.get("type", "BPE") != "BPE":
        raise ModelFolderError(f"tokenizer.json: a {model['type']} vocabulary is not supported.", code="checkpoint_tokenizer")
    return dict(model["vocab"])


def _check_ids(source: str, ids: list[Any], rows: int) -> None:
    if wrong := [index for index in ids if type(index) is not int or index < 0]:
        raise ModelFolderError(f"{source}: {wrong[0]!r} is no token's id.", code="checkpoint_tokenizer")
    if max(ids, default=0) >= rows:
        raise ModelFolderError(
            f"{source} has ids up to {max(ids)}, config.json's vocab_size is {rows}: the embedding has too few rows.",
            code="checkpoint_tokenizer",
        )


def _is_byte_level(description: Mapping[str, Any]) -> bool:
    """Or else in the manner of SentencePiece. Raises `ModelFolderError` where it is neither."""
    decoder = description.get("decoder") or {}
    kinds = {decoder.get("type"), *(step.get("type") for step in decoder.get("decoders", ()))}
    if not kinds & {"ByteLevel", "ByteFallback"}:
        raise ModelFolderError("tokenizer.json: neither byte-level nor with byte fallback.", code="checkpoint_tokenizer")
    return "ByteLevel" in kinds


def _pieces(description: Mapping[str, Any], vocabulary: Mapping[str, int], added: list[_AddedToken], rows: int) -> list[bytes]:
    """One for each row of the embedding; rows that are no token show nothing."""
    pieces = [b""] * rows
    piece = _byte_level_piece if _is_byte_level(description) else _sentence_piece
    for token, index in vocabulary.items():
        pieces[index] = piece(token)
    for special in added:
        pieces[special.id] = b"" if special.hidden else special.content.encode()
    return pieces


def _byte_level_piece(token: str) -> bytes:
    try:
        return token_piece(token)
    except ValueError:  # such a token is written as it is
        return token.encode(errors="replace")


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode(errors="replace")


def _plain_tokenizer(description: Mapping[str, Any], special: Mapping[str, int]) -> Tokenizer:
    model = dict(description["model"])
    model["vocab"] = {token: index for token, index in model["vocab"].items() if token not in special}
    if model.get("unk_token") in special:
        model["unk_token"] = None
    plain = {**description, "model": model, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return _built(plain)


def _inner_encoder(description: Mapping[str, Any], special: Mapping[str, int]) -> Callable[[str], list[int]] | None:
    """Where only what begins a text gets a blank before it; else None."""
    splitting = description.get("pre_tokenizer") or {}
    if (splitting.get("type"), splitting.get("prepend_scheme")) != ("Metaspace", "first"):
        return None
    unprefixed = {**description, "pre_tokenizer": {**splitting, "prepend_scheme": "never"}}
    return partial(encode_plain, _plain_tokenizer(unprefixed, special))


def _built(description: Mapping[str, Any]) -> Tokenizer:
    with tokenizer_faults():
        return Tokenizer.from_str(json.dumps(description))


@contextmanager
def tokenizer_faults() -> Iterator[None]:
    """The library raises bare Exception, and where it panics not even that: both become `ModelFolderError`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _damaged(str(error)) from error


def _special(
    folder: Path, config: dict[str, Any], settings: dict[str, Any], ids: dict[str, int], description: Mapping[str, Any]
) -> SpecialTokens:
    named = {role: _token_id(settings.get(f"{role}_token"), ids) for role in ("bos", "eos")}
    generation = read_object(folder, "generation_config.json")
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    bos = named["bos"] if "bos_token" in settings else config.get("bos_token_id")
    rows = whole_number(config, "vocab_size", MAX_VOCABULARY)
    _check_ids("generation_config.json or config.json", [*ends, *([] if bos is None else [bos])], rows)
    return special_tokens(
        ids,
        bos,
        frozenset(end for end in (*ends, named["eos"]) if end is not None),
        add_bos=_adds_bos(settings, description, bos),
        chat_eos_id=named["eos"],
    )


def _token_id(token: object, ids: Mapping[str, int]) -> int | None:
    content = token.get("content") if isinstance(token, dict) else token
    return ids.get(content) if isinstance(content, str) else None


def _adds_bos(settings: Mapping[str, Any], description: Mapping[str, Any], bos: int | None) -> bool:
    """What the settings say, else what the tokenizer's post-processor does."""
    stated = settings.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    with tokenizer_faults():
        return bos is not None and _built(description).encode("a").ids[:1] == [bos]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The file before the settings, the one called default where there are several."""
    template = read_text(folder, "chat_template.jinja") or settings.get("chat_template")
    if isinstance(template, list):
        template = next(
            (each.get("template") for each in template if isinstance(each, dict) and each.get("name") == "default"), None
        )
    if template is not None and not isinstance(template, str):
        raise ModelFolderError("tokenizer_config.json: chat_template is no text.", code="checkpoint_tokenizer")
    return template


def _least_share(description: Mapping[str, Any]) -> float:
    """How much of a text's bytes surely reach the vocabulary; 0 where a normalizer that we do not know may drop any."""
    normalizer = description.get("normalizer")
    steps = normalizer.get("normalizers", []) if normalizer and normalizer.get("type") == "Sequence" else [normalizer]
    shares = {None: 1.0, "Prepend": 1.0, "NFC": 1 / _NFC_SHRINKS}
    return min((shares.get(step and step.get("type"), 0.0) if step != _BLANKS else 1.0 for step in steps), default=1.0)


_BLANKS = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}


def _damaged(fault: str) -> ModelFolderError:
    return ModelFolderError(f"tokenizer.json is damaged: {fault}.", code="checkpoint_tokenizer")
