from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text import ModelFolderError, ModelText, UnknownTokenError, open_text
from inference.text.gguf_metadata import read_tensor_table
from inference.text.model_files import ensure_oracle
from tests.conftest import Seconds

SAMPLES = [
    "",
    " ",
    "  leading and trailing  \n\n",
    "The quick brown fox, 1234567 times; it's we'll they've I'd",
    "def f(x):\n\treturn x ** 2  # two\r\n",
    "안녕하세요 세계 각 힣",
    "日本語と中文、\u3000全角",
    "مرحبا بالعالم שלום עולם",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇰🇷",
    "e\u0301 \u0301 zero\u200bwidth \ufeff bom",
    "\x00\x01\x7f\x80\x9f\xa0",
    "\U00010348 \U0001d518\U0001d52b\U0001d526 \U000e0001 \U0010ffff \ue000",
    "²³¹ ½ ٣٤ १२ Ⅷ",
]

MISSING_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}  # of those that UTF-8 uses

every_plane = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def bytes_known_to(text: ModelText) -> set[bytes]:
    return {text.token_bytes(token) for token in range(text.vocabulary_size)}


def reference_ids(reference: Any, text: str) -> list[int]:
    ids: list[int] = reference.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("text", SAMPLES)
def test_ids_of_a_sample_are_those_of_transformers(smollm2: ModelText, reference: Any, text: str) -> None:
    assert smollm2.encode(text) == reference_ids(reference, text)


@given(text=every_plane)
@settings(max_examples=300, deadline=None)
def test_ids_of_any_text_are_those_of_transformers(smollm2: ModelText, reference: Any, text: str) -> None:
    assert smollm2.encode(text) == reference_ids(reference, text)


@given(text=every_plane | st.text("\x04\U00050000 a1\n", max_size=200))
@settings(max_examples=300, deadline=None)
def test_a_text_never_has_less_than_its_least_tokens(smollm2: ModelText, tiny: ModelText, text: str) -> None:
    for model in (smollm2, tiny):
        assert model.least_tokens(text) <= len(model.encode(text))


@pytest.mark.parametrize("text", ["1", "a", " ", "\n", "e\u0301", "\u4e00", "!", "<|im_end|>", "word "])
def test_a_megabyte_of_one_thing_is_known_to_be_long_without_tokenising(smollm2: ModelText, text: str, seconds: Seconds) -> None:
    megabyte = text * (1_000_000 // len(text.encode()))
    assert smollm2.least_tokens(megabyte) > smollm2.context_length
    assert seconds(lambda: smollm2.least_tokens(megabyte)) < seconds(lambda: smollm2.encode(megabyte)) / 5


@given(text=every_plane)
@settings(max_examples=200, deadline=None)
def test_a_text_survives_encoding_and_decoding(smollm2: ModelText, tiny: ModelText, text: str) -> None:
    if MISSING_BYTES.isdisjoint(text.encode()):
        assert smollm2.decode(smollm2.encode(text)) == text
    assert tiny.decode(tiny.encode(text)) == text


def test_only_rare_bytes_are_missing_in_the_vocabulary(smollm2: ModelText) -> None:
    known = bytes_known_to(smollm2)
    missing = {byte for byte in range(256) if bytes([byte]) not in known}
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert missing == never_in_utf8 | MISSING_BYTES
    assert smollm2.encode("a\x04b") == smollm2.encode("a") + smollm2.encode("b")


@given(ids=st.lists(st.integers(0, 49_151), max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_ids_decode_as_transformers_decodes_them(smollm2: ModelText, reference: Any, ids: list[int]) -> None:
    assert smollm2.decode(ids) == reference.backend_tokenizer.decode(ids, skip_special_tokens=True)


def test_facts_of_the_model_come_from_its_file(smollm2: ModelText, reference: Any) -> None:
    assert (smollm2.name, smollm2.vocabulary_size, smollm2.context_length) == ("smollm2-135m-instruct", 49_152, 8192)
    assert smollm2.eos_ids == {reference.eos_token_id}
    assert smollm2.bos_id == reference.bos_token_id


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<empty_output>"])
@pytest.mark.parametrize("around", ["{}", "a{}b", " {} ", "{0}{0}", "<|im_start|{0}", "\n{}\n"])
def test_text_never_becomes_a_special_token_unless_asked(smollm2: ModelText, reference: Any, token: str, around: str) -> None:
    text = around.format(token)
    special = set(reference.all_special_ids) | set(range(17))
    assert special.isdisjoint(smollm2.encode(text))
    assert smollm2.decode(smollm2.encode(text)) == text
    assert smollm2.encode(text, special=True) == reference_ids(reference, text)


def test_no_bos_is_added(smollm2: ModelText, tiny: ModelText) -> None:
    assert smollm2.encode("", special=True) == []
    assert tiny.encode("", special=True) == []


def test_control_tokens_have_no_bytes_and_other_tokens_have_theirs(smollm2: ModelText) -> None:
    assert [smollm2.token_bytes(token) for token in range(17)] == [b""] * 17
    ids = smollm2.encode("각")
    assert b"".join(map(smollm2.token_bytes, ids)) == "각".encode()


@pytest.mark.parametrize("token", [-1, 49_152, 10**20])
def test_an_id_outside_the_vocabulary_is_refused(smollm2: ModelText, token: int) -> None:
    with pytest.raises(UnknownTokenError) as raised:
        smollm2.token_bytes(token)
    assert raised.value.code == "token_id_unknown"


@pytest.mark.parametrize(("text", "clean"), [("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "😀"), ("\udc00\ud800", "\ufffd\ufffd")])
def test_lone_surrogates_become_replacement_characters(smollm2: ModelText, tiny: ModelText, text: str, clean: str) -> None:
    for model in (smollm2, tiny):
        assert model.decode(model.encode(text)) == clean


@pytest.mark.parametrize(
    "text", ["a", " ", "word ", "안", "\u0301", "1"], ids=["a", "blanks", "words", "hangul", "marks", "digits"]
)
def test_a_megabyte_of_one_thing_encodes(smollm2: ModelText, text: str) -> None:
    long = text * (1_000_000 // len(text.encode()))
    assert smollm2.decode(smollm2.encode(long)) == long


def test_a_second_open_reads_no_weights(smollm2: ModelText, smollm2_folder: Path, tmp_path: Path) -> None:
    """It opens where the weights are a hole in the file, as long as size and time are those of the record."""
    original, hollow = smollm2_folder / "model.gguf", tmp_path / smollm2.name / "model.gguf"
    hollow.parent.mkdir()
    weights_at = min(tensor.offset for tensor in read_tensor_table(original).values())
    with original.open("rb") as source, hollow.open("wb") as copy:
        copy.write(source.read(weights_at))
        copy.truncate(original.stat().st_size)
    shutil.copy(smollm2_folder / "sha256.json", hollow.parent)
    os.utime(hollow, ns=(0, original.stat().st_mtime_ns))
    opened = open_text(hollow.parent)
    assert (opened.revision, opened.encode("soup")) == (smollm2.revision, smollm2.encode("soup"))


def test_the_room_loads_neither_torch_nor_a_framework() -> None:
    heavy = "{'torch', 'transformers', 'django', 'celery', 'redis', 'gguf'}"
    code = (
        f"import sys, inference.text, inference.text.model_files; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_tiny_tokens_are_bytes_and_pairs(tiny: ModelText) -> None:
    assert tiny.encode("A") == [65]
    assert tiny.vocabulary_size == 290
    assert tiny.context_length == 2048
    assert tiny.bos_id == 256
    assert tiny.eos_ids == {257}
    for token in range(258, 290):
        index = token - 258
        assert tiny.token_bytes(token) == bytes([0xE0 + index // 4, 0x80 + 16 * (index % 4)])


def test_a_character_spans_tiny_tokens(tiny: ModelText) -> None:
    assert tiny.encode("각") == [0xEA, 0xB0, 0x81]  # EA begins no pair
    assert tiny.encode("䀀") == [258 + 4 * 4, 0x80]  # E4 80 | 80
    assert tiny.encode("惀") == [0xE6, 0x83, 0x80]  # E6 83 is no pair


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError):
        open_text(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "huge"}', '{"kind": []}', "\x00"])
def test_a_damaged_oracle_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(ModelFolderError):
        open_text(tmp_path)


def test_oracles_open_by_their_kind(tmp_path: Path) -> None:
    for kind in ("tiny", "scripted"):
        assert open_text(ensure_oracle(kind, tmp_path)).name == kind


def test_a_digit_is_split_off_before_the_blanks_in_front_of_it_are_cut(smollm2: ModelText) -> None:
    """As the model was trained: a list after an empty line is the common case."""
    assert smollm2.encode("\n\n1.") == smollm2.encode("\n\n") + smollm2.encode("1.")
