"""Byte-level BPE: text to ids, with no way for text to become a special token.

The tokenizer is built without any added token, so `<|im_end|>` in a user's text is ten characters and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from inference.text.errors import ModelFolderError


def _printable_bytes() -> dict[int, int]:
    """Code point -> byte of the alphabet in which byte-level vocabularies are written (GPT-2's)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {0x100 + index: byte for index, byte in enumerate(hidden)}


BYTE_OF = _printable_bytes()

_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    splitting = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([splitting, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _gpt2_after_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


# By the name that a GGUF file gives.
PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "smollm": _gpt2_after_digits,  # what the model was trained with; transformers leaves the digits out when it reads a GGUF
    "gpt-2": _gpt2,
    "default": _gpt2,
    "llama-bpe": lambda: _split(_LLAMA3),
}


def token_piece(token: str) -> bytes:
    """Bytes of a token as the vocabulary writes it. Raises ValueError for a character outside the alphabet."""
    return token.translate(BYTE_OF).encode("latin-1")


def plain_tokenizer(kind: str, tokens: Sequence[str], merges: Iterable[str], special: Mapping[str, int]) -> Tokenizer:
    """`tokens[i]` is token i; a merge is two tokens with a space between; `special` are the tokens that text must not reach."""
    if kind not in PRE_TOKENIZERS:
        raise ModelFolderError(f"The pre-tokenizer {kind!r} is not supported.", detail=f"known: {', '.join(PRE_TOKENIZERS)}")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    reachable = {left + right for left, right in pairs if left + right in special} | {name for name in special if len(name) == 1}
    if reachable:
        raise ModelFolderError("The vocabulary lets text become a special token.", detail=", ".join(sorted(reachable)))
    try:
        tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs))
    except Exception as error:  # the binding raises bare Exception
        raise ModelFolderError("The vocabulary is damaged.", detail=str(error)) from error
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[kind]()
    return tokenizer


def encode_plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Lets other threads run meanwhile: of the library's calls only the batch ones give up the interpreter lock."""
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
