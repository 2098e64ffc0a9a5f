"""Every kind of fault in a Hugging Face folder is refused with a code and a text that names file and fault."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.engine.loading import load_model
from inference.engine.trial import model_try
from inference.text import ModelFolderError, open_text
from tests.checkpoints import write_checkpoint

WEIGHTS = "model.safetensors"


def edited(name: str, **changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        values = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))

    return edit


def rewritten(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return rewrite


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """The same bytes under another header."""

    def rewrite(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        entries = json.loads(content[8 : 8 + length])
        change(entries)
        written = json.dumps(entries).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(written)) + written + content[8 + length :])

    return rewrite


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def truncated(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-1000])


def overlapping(entries: dict[str, Any]) -> None:
    first, second, *_ = (entry for name, entry in entries.items() if name != "__metadata__")
    second["data_offsets"] = first["data_offsets"]
    second["shape"], second["dtype"] = first["shape"], first["dtype"]


def out_of_range(entries: dict[str, Any]) -> None:
    entries["model.norm.weight"]["data_offsets"] = [1 << 60, (1 << 60) + 192]


def pickled_only(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def linked_out(folder: Path) -> None:
    outside = folder.parent / "outside.json"
    (folder / "config.json").rename(outside)
    (folder / "config.json").symlink_to(outside)


def index_leads_out(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / WEIGHTS)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": f"../{WEIGHTS}"}}))


def shard_missing(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))


def index_lies(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "one.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"other.weight": "one.safetensors"}}))


def deep(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("[" * 1_000_000)


def merges_unknown(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = [["never", "seen"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def token_id(index: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["added_tokens"][0]["id"] = index
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    return change


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}
NORM = "model.layers.1.input_layernorm.weight"
FAULTS: dict[str, tuple[Callable[[Path], object], str, tuple[str, ...]]] = {
    "an unknown architecture": (
        edited("config.json", architectures=["GPT2LMHeadModel"]), "checkpoint_architecture", ("GPT2LMHeadModel", "Qwen3ForCausalLM")
    ),
    "no architecture": (edited("config.json", architectures=...), "checkpoint_architecture", ("config.json",)),
    "an architecture that is no text": (edited("config.json", architectures=[{}]), "checkpoint_architecture", ("config.json",)),
    "a missing tensor": (rewritten(lambda tensors: tensors.pop(NORM)), "checkpoint_tensor", (NORM,)),
    "a tensor of another shape": (
        rewritten(lambda tensors: tensors.update({NORM: torch.ones(47)})), "checkpoint_tensor", (WEIGHTS, NORM, "(47,)", "(48,)")
    ),
    "a tensor of another kind": (
        rewritten(lambda tensors: tensors.update({NORM: torch.ones(48, dtype=torch.int32)})), "checkpoint_tensor", (NORM, "I32")
    ),
    "a tensor too many": (
        rewritten(lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)})),
        "checkpoint_tensor",
        (WEIGHTS, "q_proj.bias"),
    ),
    "fewer layers than the weights have": (edited("config.json", num_hidden_layers=1), "checkpoint_tensor", ("model.layers.1",)),
    "a file that is cut off": (truncated, "checkpoint_damaged", (WEIGHTS,)),
    "an empty file": (written(WEIGHTS, b""), "checkpoint_damaged", (WEIGHTS,)),
    "a header of four exbibytes": (written(WEIGHTS, struct.pack("<Q", 1 << 62) + b"{}"), "checkpoint_damaged", (WEIGHTS, "header")),
    "a header beyond the file": (written(WEIGHTS, struct.pack("<Q", 10_000) + b"{}"), "checkpoint_damaged", (WEIGHTS, "header")),
    "a header that is no JSON": (written(WEIGHTS, struct.pack("<Q", 2) + b"{["), "checkpoint_damaged", (WEIGHTS, "header")),
    "tensors over one another": (header(overlapping), "checkpoint_damaged", (WEIGHTS, "offset")),
    "a tensor beyond the file": (header(out_of_range), "checkpoint_damaged", (WEIGHTS, "offset")),
    "a shape whose size overflows": (
        header(lambda entries: entries["model.norm.weight"].update(shape=[1 << 62, 1 << 62])), "checkpoint_damaged", (WEIGHTS,)
    ),
    "more tokens than rows": (token_id(320), "checkpoint_tokenizer", ("tokenizer.json", "320", "vocab_size")),
    "a token with a negative id": (token_id(-1), "checkpoint_tokenizer", ("tokenizer.json", "-1")),
    "a token with a text as id": (token_id("1"), "checkpoint_tokenizer", ("tokenizer.json",)),
    "a merge of tokens that are not there": (merges_unknown, "checkpoint_tokenizer", ("tokenizer.json",)),
    "a vocabulary of another kind": (
        edited("tokenizer.json", model={"type": "Unigram", "vocab": []}), "checkpoint_tokenizer", ("tokenizer.json", "Unigram")
    ),
    "a tokenizer that is nested for ever": (deep, "checkpoint_damaged", ("tokenizer.json",)),
    "a tokenizer without a model": (edited("tokenizer.json", model=None), "checkpoint_tokenizer", ("tokenizer.json",)),
    "a chat template that is no text": (
        lambda folder: (
            without("chat_template.jinja")(folder), edited("tokenizer_config.json", chat_template=7)(folder)
        ),
        "checkpoint_tokenizer",
        ("tokenizer_config.json", "chat_template"),
    ),
    "an end outside the vocabulary": (edited("generation_config.json", eos_token_id=[320]), "checkpoint_tokenizer", ("320",)),
    "an end that is no number": (
        edited("generation_config.json", eos_token_id={"a": 1}), "checkpoint_tokenizer", ("generation_config.json",)
    ),
    "no tokenizer": (without("tokenizer.json"), "checkpoint_file_missing", ("tokenizer.json",)),
    "no weights": (without(WEIGHTS), "checkpoint_file_missing", (WEIGHTS,)),
    "a shard that is not there": (shard_missing, "checkpoint_file_missing", ("model-00001-of-00002",)),
    "an index that misplaces a tensor": (index_lies, "checkpoint_tensor", ("one.safetensors", "other.weight")),
    "an index without a map": (
        lambda folder: (without(WEIGHTS)(folder), (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": [1]}')),
        "checkpoint_damaged",
        ("weight_map",),
    ),
    "pickled weights": (pickled_only, "checkpoint_pickled", ("pytorch_model.bin", "safetensors")),
    "a link that leaves the folder": (linked_out, "checkpoint_path_outside", ("config.json",)),
    "an index that leads out of the folder": (index_leads_out, "checkpoint_path_outside", (f"../{WEIGHTS}",)),
    "a configuration that is no JSON": (written("config.json", b"{"), "checkpoint_damaged", ("config.json",)),
    "a configuration that is no object": (written("config.json", b"[]"), "checkpoint_damaged", ("config.json",)),
    "a configuration that is no UTF-8": (written("config.json", b"\xff"), "checkpoint_damaged", ("config.json",)),
    "an absurd context": (edited("config.json", max_position_embeddings=10**12), "checkpoint_config", ("max_position_embeddings",)),
    "an absurd vocabulary": (edited("config.json", vocab_size=10**12), "checkpoint_config", ("vocab_size",)),
    "layers below zero": (edited("config.json", num_hidden_layers=-1), "checkpoint_config", ("num_hidden_layers",)),
    "a width that is a text": (edited("config.json", hidden_size="48"), "checkpoint_config", ("hidden_size", "'48'")),
    "heads that cannot be grouped": (edited("config.json", num_key_value_heads=4), "checkpoint_config", ("num_key_value_heads",)),
    "a width that heads do not divide": (
        edited("config.json", num_attention_heads=5, num_key_value_heads=5, head_dim=...), "checkpoint_config", ("head_dim",)
    ),
    "an odd head_dim": (edited("config.json", head_dim=7), "checkpoint_config", ("head_dim",)),
    "an epsilon that is infinite": (edited("config.json", rms_norm_eps=float("inf")), "checkpoint_config", ("rms_norm_eps",)),
    "an epsilon that is true": (edited("config.json", rms_norm_eps=True), "checkpoint_config", ("rms_norm_eps",)),
    "rotary scaling that is unknown": (edited("config.json", rope_parameters=YARN), "checkpoint_config", ("yarn",)),
    "rotary scaling that is no object": (edited("config.json", rope_parameters="linear"), "checkpoint_config", ("rope",)),
    "rotary scaling upside down": (edited("config.json", rope_parameters=LLAMA3), "checkpoint_config", ("low_freq_factor",)),
    "another activation": (edited("config.json", hidden_act="gelu"), "checkpoint_config", ("hidden_act", "gelu")),
    "quantised weights": (
        edited("config.json", quantization_config={"quant_method": "awq"}), "checkpoint_config", ("quantization_config", "awq")
    ),
    "a window below the context": (
        edited("config.json", architectures=["MistralForCausalLM"], sliding_window=255),
        "checkpoint_config",
        ("sliding_window", "255"),
    ),
    "the window that Mistral has unless it says otherwise": (
        edited("config.json", architectures=["MistralForCausalLM"], max_position_embeddings=8_192),
        "checkpoint_config",
        ("sliding_window", "4096"),
    ),
}  # fmt: skip


def opened(folder: Path) -> None:
    open_text(folder)
    load_model(folder)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    break_, code, named = FAULTS[kind]
    folder = write_checkpoint(tmp_path / "model")
    opened(folder)
    break_(folder)
    with pytest.raises(ModelFolderError) as raised:
        opened(folder)
    assert raised.value.code == code
    assert all(part in raised.value.public for part in named), raised.value.public


def test_a_snapshot_of_a_hub_cache_links_to_its_blobs(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for index, path in enumerate(sorted(source.iterdir())):
        path.rename(blobs / f"{index:040x}")
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", f"{index:040x}"))
    opened(snapshot)


def test_a_qwen_with_its_optional_window_in_use_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", "qwen2")
    edited("config.json", sliding_window=128, use_sliding_window=False)(folder)
    opened(folder)
    edited("config.json", use_sliding_window=True)(folder)
    with pytest.raises(ModelFolderError, match="sliding_window = 128"):
        opened(folder)


JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    [1],
    [["a", "b"]],
    {},
    {"type": "x"},
    {"a": 1},
    "ByteLevel",
    "\ud800",
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything inside, the first few of many equals."""
    keys = list(value)[:30] if isinstance(value, dict) else range(min(len(value), 6)) if isinstance(value, list) else ()
    for key in keys:
        yield (*at, key)
        yield from places(value[key], (*at, key))


def changed(value: Any, at: tuple[Any, ...], junk: Any) -> Any:
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    if junk is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = junk
    return copy


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_checkpoint(tmp_path_factory.mktemp("sound") / "model", shard="50KB")
    edited("tokenizer_config.json", chat_template=(folder / "chat_template.jinja").read_text())(folder)
    (folder / "chat_template.jinja").unlink()
    return folder


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", f"{WEIGHTS}.index.json"]
)
def test_no_value_of_any_file_does_worse_than_be_refused(name: str, sound: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    chosen, value = random.Random(name), json.loads((sound / name).read_text())
    folder = Path(shutil.copytree(sound, tmp_path / "model"))
    everywhere, refused = list(places(value)), 0
    for _ in range(120):
        junk = chosen.choice((*JUNK, ...))
        (folder / name).write_text(json.dumps(changed(value, chosen.choice(everywhere), junk)))
        try:
            model_try(folder)
        except ModelFolderError:
            refused += 1
    assert refused > 0
