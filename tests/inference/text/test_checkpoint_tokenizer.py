"""The text side of a Hugging Face folder against transformers on the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import AutoTokenizer

from inference.text import ChatMessage, ChatTemplateError, ModelText, open_text
from tests.checkpoints import BOS, END, EOS, START, THINK, byte_level_tokenizer, sentencepiece_tokenizer, write_checkpoint

WITHOUT_ADDED = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small")


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return open_text(folder)


@pytest.fixture(scope="module")
def judge(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: value for key, value in (old | changes).items() if value is not ...}))


@given(sample=WITHOUT_ADDED)
def test_ids_of_any_text_are_those_of_transformers(text: ModelText, judge: Any, sample: str) -> None:
    assert text.encode(sample) == judge.encode(sample, add_special_tokens=False)
    assert text.encode_prompt(sample) == judge.encode(sample)
    assert text.decode(text.encode(sample)) == sample
    assert text.least_tokens(sample) <= len(text.encode(sample))


@given(contents=st.lists(WITHOUT_ADDED.map(str.strip), min_size=1, max_size=3))
def test_ids_of_any_conversation_are_those_of_transformers(text: ModelText, judge: Any, contents: list[str]) -> None:
    rows = [{"role": "user", "content": content} for content in contents]
    expected = judge.apply_chat_template(rows, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert text.render_chat([ChatMessage(**row) for row in rows]) == expected


@pytest.mark.parametrize("token", [BOS, EOS, START, END, THINK])
def test_no_text_becomes_an_added_token(text: ModelText, judge: Any, token: str) -> None:
    added = judge.convert_tokens_to_ids(token)
    assert added not in text.encode(f"a{token}b")
    with_token, without = (text.render_chat([ChatMessage("user", content)]) for content in (f"x{token}y", "xy"))
    assert with_token.count(added) == without.count(added)
    assert token in text.decode(text.encode(token))


def test_special_tokens_show_nothing_and_other_added_tokens_show_themselves(text: ModelText, judge: Any) -> None:
    end, think = judge.convert_tokens_to_ids([END, THINK])
    assert (text.token_bytes(end), text.literal(end)) == (b"", END)
    assert text.token_bytes(think) == THINK.encode()


def test_rows_of_the_embedding_without_token_show_nothing(text: ModelText, judge: Any) -> None:
    assert len(judge) < text.vocabulary_size == 320
    assert text.decode(range(len(judge), 320)) == ""


def test_ends_come_from_the_generation_configuration_and_the_tokenizer(tmp_path: Path, judge: Any) -> None:
    folder = write_checkpoint(tmp_path / "model")
    end, eos = judge.convert_tokens_to_ids([END, EOS])
    assert open_text(folder).eos_ids == {end, eos}
    edit(folder, "generation_config.json", eos_token_id=[3, 4])
    assert open_text(folder).eos_ids == {3, 4, eos}
    (folder / "generation_config.json").unlink()
    edit(folder, "config.json", eos_token_id=7)
    assert open_text(folder).eos_ids == {7, eos}


def test_templates_get_the_tokenizers_own_end(tmp_path: Path, judge: Any) -> None:
    folder = write_checkpoint(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ eos_token }}")
    edit(folder, "generation_config.json", eos_token_id=[3, 4])
    assert open_text(folder).render_chat([]) == [judge.convert_tokens_to_ids(EOS)]


def test_a_template_is_that_of_the_file_or_the_default_one_of_the_settings(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    edit(folder, "tokenizer_config.json", chat_template=[{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}])
    assert open_text(folder).render_chat([ChatMessage("user", "x")]) != open_text(folder).encode("d")
    (folder / "chat_template.jinja").unlink()
    assert open_text(folder).render_chat([ChatMessage("user", "x")]) == open_text(folder).encode("d")


def test_without_a_template_chats_are_refused_and_texts_are_not(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    text = open_text(folder)
    assert text.encode("fox")
    with pytest.raises(ChatTemplateError) as raised:
        text.render_chat([ChatMessage("user", "x")])
    assert raised.value.code == "chat_template_missing"


def test_whether_a_text_begins_with_the_bos_is_stated_or_else_the_post_processors(tmp_path: Path) -> None:
    llama, qwen = write_checkpoint(tmp_path / "llama"), write_checkpoint(tmp_path / "qwen", "qwen2")
    assert (open_text(llama).special.add_bos, open_text(qwen).special.add_bos) == (True, False)
    edit(llama, "tokenizer_config.json", add_bos_token=False)
    edit(qwen, "tokenizer_config.json", add_bos_token=True)
    assert (open_text(llama).special.add_bos, open_text(qwen).special.add_bos) == (False, True)


@pytest.mark.parametrize("scheme", ["prepend", "always", "first"])
def test_ids_of_a_sentencepiece_vocabulary_are_those_of_transformers(tmp_path: Path, scheme: str) -> None:
    folder = write_checkpoint(tmp_path / "model")
    tokenizer = sentencepiece_tokenizer(scheme)
    tokenizer.save_pretrained(folder)
    text, judge = open_text(folder), AutoTokenizer.from_pretrained(folder)
    for sample in ("the fox", " the  fox\n", "", "Öl 🦊", "a<s"):
        assert text.encode(sample) == judge.encode(sample, add_special_tokens=False)
        assert text.decode(text.encode(sample)).lstrip(" ") == sample.lstrip(" ")
        assert text.least_tokens(sample) <= len(text.encode(sample))
    rows = [{"role": "user", "content": "the fox"}, {"role": "user", "content": "Öl"}]
    expected = judge.apply_chat_template(rows, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert text.render_chat([ChatMessage(**row) for row in rows]) == expected
    assert judge.convert_tokens_to_ids("</s>") not in text.encode("a</s>b")


def test_a_text_that_is_normalized_never_has_less_than_its_least_tokens(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    tokenizer.save_pretrained(folder)
    text, letters = open_text(folder), "\u1112\u1161\u11ab" * 100
    assert len(text.encode(letters)) == len("한".encode()) * 100
    assert 0 < text.least_tokens(letters) <= len(text.encode(letters))
