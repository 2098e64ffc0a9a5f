from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.text import ModelFolderError, open_text
from inference.text.gguf_metadata import read_metadata
from tests.conftest import Seconds


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def strings(items: list[str]) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(string, items))


def gguf(pairs: dict[str, bytes], version: int = 3) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", version, 0, len(pairs))
    return head + b"".join(string(key) + value for key, value in pairs.items())


def small_model(**changes: Any) -> bytes:
    tokens = ["<|end|>", "a", "b", "ab", *changes.get("more_tokens", [])]
    kinds = [3, 1, 1, 1] + [1] * len(changes.get("more_tokens", []))
    return gguf(
        {
            "general.architecture": struct.pack("<I", 8) + string("llama"),
            "llama.context_length": struct.pack("<II", 4, 64),
            "tokenizer.ggml.model": struct.pack("<I", 8) + string(changes.get("model", "gpt2")),
            "tokenizer.ggml.pre": struct.pack("<I", 8) + string(changes.get("pre", "smollm")),
            "tokenizer.ggml.tokens": strings(tokens),
            "tokenizer.ggml.token_type": struct.pack("<IIQ", 9, 5, len(kinds)) + struct.pack(f"<{len(kinds)}i", *kinds),
            "tokenizer.ggml.merges": strings(changes.get("merges", ["a b"])),
            "tokenizer.ggml.eos_token_id": struct.pack("<II", 4, 0),
        }
    )


def opened(tmp_path: Path, content: bytes) -> Any:
    (tmp_path / "model.gguf").write_bytes(content)
    return open_text(tmp_path)


def test_all_values_are_those_of_the_gguf_package(smollm2_folder: Path) -> None:
    from gguf import GGUFReader

    ours = read_metadata(smollm2_folder / "model.gguf")
    theirs = GGUFReader(smollm2_folder / "model.gguf").fields
    assert ours.keys() == {key for key in theirs if not key.startswith("GGUF.")}
    for key, value in ours.items():
        expected = theirs[key].contents()
        assert value == (expected.tolist() if isinstance(expected, numpy.ndarray) else expected), key


def test_reading_takes_a_tenth_of_what_the_gguf_package_takes(smollm2_folder: Path, seconds: Seconds) -> None:
    from gguf import GGUFReader

    path = smollm2_folder / "model.gguf"
    assert seconds(lambda: read_metadata(path)) < seconds(lambda: GGUFReader(path)) / 10


def test_a_small_model_opens(tmp_path: Path) -> None:
    text = opened(tmp_path, small_model())
    assert text.encode("ab") == [3]
    assert text.eos_ids == {0}
    assert text.bos_id is None


@pytest.mark.parametrize("size", [0, 3, 10, 23, 24, 30, 100, 300])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(ModelFolderError):
        opened(tmp_path, small_model()[:size])


@given(place=st.integers(0, 500), bits=st.integers(1, 255))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_byte_is_refused_or_harmless(tmp_path: Path, place: int, bits: int) -> None:
    content = bytearray(small_model())
    content[place % len(content)] ^= bits
    with contextlib.suppress(ModelFolderError):  # any other error fails the test
        opened(tmp_path, bytes(content))


@pytest.mark.parametrize(
    "content",
    [
        gguf({}, version=1),
        gguf({"a": struct.pack("<II", 4, 1)})[:8] + struct.pack("<QQ", 0, 2**60),
        gguf({"a": struct.pack("<IIQ", 9, 8, 2**60)}),
        gguf({"a": struct.pack("<IIQ", 9, 4, 2**22)}),
        gguf({"a": struct.pack("<IIQ", 9, 9, 1)}),
        gguf({"a": struct.pack("<IQ", 8, 2**63)}),
        gguf({"a": struct.pack("<I", 99)}),
        small_model(model="llama"),
        small_model(pre="unheard-of"),
        small_model(merges=["a"]),
        small_model(merges=["a c"]),
        small_model(more_tokens=["日"]),
    ],
)
def test_a_hostile_or_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelFolderError):
        opened(tmp_path, content)


def test_a_vocabulary_whose_merges_reach_a_special_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="special token"):
        opened(tmp_path, small_model(merges=["<|end |>"]))
