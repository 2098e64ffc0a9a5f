"""Folders that would be read wrongly, or differently by two readers, are refused with a code and the name of what is wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from inference.engine.loading import load_model
from inference.text import ModelFolderError
from tests.checkpoints import write_checkpoint

NORM = "model.norm.weight"
HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
CONFIGS: dict[str, dict[str, Any]] = {
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "partial_rotary_factor": {"partial_rotary_factor": 0.5},
    "partial_rotary_factor = 0.5": {"rope_parameters": HALF},
    "tie_word_embeddings": {"tie_word_embeddings": "yes"},
    "num_hidden_layers": {"num_hidden_layers": True},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sound: what a test does to it is why it is refused."""
    folder = write_checkpoint(tmp_path / "model")
    load_model(folder)
    return folder


def refusal(folder: Path) -> tuple[str, str]:
    with pytest.raises(ModelFolderError) as raised:
        load_model(folder)
    return raised.value.code, raised.value.public


def edit_json(path: Path, changes: dict[str, Any]) -> None:
    """A value of None removes the key."""
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def header_of(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    header: dict[str, Any] = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    return header


def rewrite_header(path: Path, header: bytes | dict[str, Any], length: int | None = None) -> None:
    raw = path.read_bytes()
    (old,) = struct.unpack("<Q", raw[:8])
    new = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(new) if length is None else length) + new + raw[8 + old :])


@pytest.mark.parametrize("told", CONFIGS)
def test_what_would_change_the_answer_is_refused_by_name(told: str, folder: Path) -> None:
    edit_json(folder / "config.json", CONFIGS[told])
    code, message = refusal(folder)
    assert (code, told in message) == ("checkpoint_config", True), message


def test_a_file_that_was_cut_off_is_refused_wherever_it_ends(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 100, 4, 0):
        path.write_bytes(whole[:size])
        code, message = refusal(folder)
        assert (code, "model.safetensors" in message) == ("checkpoint_damaged", True)


def test_a_file_that_goes_on_behind_its_tensors_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"more")
    assert refusal(folder)[0] == "checkpoint_damaged"


ENTRIES: dict[str, dict[str, Any]] = {
    "over another tensor": {"data_offsets": [0, 192]},
    "negative": {"data_offsets": [-192, 0]},
    "backwards": {"data_offsets": [384, 192]},
    "size and shape differ": {"shape": [47]},
    "an absurd shape": {"shape": [1 << 62, 1 << 62]},
    "an unknown type": {"dtype": "F31"},
    "a negative shape": {"shape": [-48]},
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_tensor_whose_entry_is_wrong_is_refused(name: str, folder: Path) -> None:
    path = folder / "model.safetensors"
    header = header_of(path)
    rewrite_header(path, header | {NORM: header[NORM] | ENTRIES[name]})
    code, message = refusal(folder)
    assert (code, "model.safetensors" in message) == ("checkpoint_damaged", True)


@pytest.mark.parametrize("header", [b"{", b"[]", b"\xff\xfe", b"[" * 200_000, b'{"a": null}'])
def test_a_header_that_is_no_table_is_refused(header: bytes, folder: Path) -> None:
    rewrite_header(folder / "model.safetensors", header)
    code, message = refusal(folder)
    assert (code, "model.safetensors" in message) == ("checkpoint_damaged", True)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    """Which of the two is read would depend on the order of the files."""
    folder = write_checkpoint(tmp_path / "model", shard="50KB")
    first, other = sorted(folder.glob("*.safetensors"))[:2]
    tensors, doubled = header_of(first), header_of(other)
    name = next(iter(tensors.keys() - {"__metadata__"}))
    renamed = next(one for one in doubled if one != "__metadata__")
    rewrite_header(other, {(name if one == renamed else one): entry for one, entry in doubled.items()})
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"][renamed]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    code, message = refusal(folder)
    assert (code, name in message, first.name in message, other.name in message) == ("checkpoint_tensor", True, True, True)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/hosts.safetensors", "sub/model.safetensors", "..", "", "."])
def test_an_index_cannot_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", shard="50KB")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NORM: name}}))
    assert refusal(folder)[0] == "checkpoint_path_outside"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_link_out_of_the_folder_is_refused(name: str, folder: Path) -> None:
    outside = folder.parent / name
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    code, message = refusal(folder)
    assert (code, name in message) == ("checkpoint_path_outside", True)


def test_the_links_of_the_hubs_cache_are_followed_and_no_others(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    wanted = load_model(folder).layout
    for path in list(folder.iterdir()):
        path.rename(cache / "blobs" / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    assert load_model(snapshot).layout.revision == wanted.revision
    (snapshot / "model.safetensors").unlink()
    (cache / "blobs" / "model.safetensors").rename(tmp_path / "elsewhere")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert refusal(snapshot)[0] == "checkpoint_path_outside"


def test_weights_configuration_and_tokenizer_each_make_another_revision(tmp_path: Path) -> None:
    folders = [write_checkpoint(tmp_path / "one"), write_checkpoint(tmp_path / "other", seed=1)]
    for name, changes in (("config.json", {"rms_norm_eps": 1e-4}), ("tokenizer.json", {"truncation": None})):
        edited = write_checkpoint(tmp_path / name)
        edit_json(edited / name, changes)
        folders.append(edited)
    assert len({load_model(folder).layout.revision for folder in folders}) == 4
    assert load_model(write_checkpoint(tmp_path / "again")).layout.revision == load_model(folders[0]).layout.revision
