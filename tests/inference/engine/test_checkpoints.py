"""Models from Hugging Face folders through the paged engine, against transformers in float32, token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inference.contracts import SamplingParams
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.loading import load_model
from inference.engine.runner import pool_shape
from inference.text import open_text
from tests.checkpoints import judge_tokens, write_checkpoint
from tests.inference.engine.support import drain, request, run, tokens_of

TOKENS = 20
LENGTHS = (1, 15, 16, 17, 33)
GREEDY = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama, tied": {"family": "llama", "tie_word_embeddings": True},
    "llama, sharded": {"family": "llama", "shard": "50KB"},
    "llama, bfloat16": {"family": "llama", "dtype": torch.bfloat16},
    "llama, head_dim from the width": {"family": "llama", "head_dim": None},
    "llama, as many heads for keys as for queries": {"family": "llama", "num_key_value_heads": 6},
    "llama, linear": {"family": "llama", "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    "llama, llama3": {"family": "llama", "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64}},
    "mistral": {"family": "mistral", "sliding_window": None},
    "mistral, a window as long as the context": {"family": "mistral", "sliding_window": 256},
    "qwen2": {"family": "qwen2"},
    "qwen2, tied": {"family": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"family": "qwen3", "head_dim": 16},
}


def prompt(length: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, 300, (length,), generator=torch.Generator().manual_seed(length)).tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = write_checkpoint(tmp_path / "model", **KINDS[kind])
    judge = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model, text = load_model(folder), open_text(folder)
    pool = torch.full(pool_shape(model.layout, 64), float("nan"))
    engine = Engine(model, text, pool, EngineConfig(blocks=64), raise_generation=lambda block: None)
    answers = run(engine, *(request(str(length), prompt(length), GREEDY) for length in LENGTHS))
    for length in LENGTHS:
        assert answers[str(length)] == judge_tokens(judge, prompt(length), TOKENS), length


def test_sharding_makes_several_files_and_another_revision_than_one_file(tmp_path: Path) -> None:
    sharded = load_model(write_checkpoint(tmp_path / "sharded", shard="50KB"))
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    assert sharded.layout != load_model(write_checkpoint(tmp_path / "single")).layout


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_tokens_and_their_log_probabilities_do_not_depend_on_the_chunks_of_a_prompt(family: str, tmp_path: Path) -> None:
    """Biases and head norms keep a row independent of the rows beside it, to the last bit."""
    torch.set_num_threads(1)
    folder = write_checkpoint(tmp_path / "model", family)
    model, text = load_model(folder), open_text(folder)
    sampling = replace(GREEDY, logprobs=5)
    found = set()
    for chunk in (1, 2, 3, 7, 16, 17, 64):
        pool = torch.full(pool_shape(model.layout, 64), float("nan"))
        config = EngineConfig(blocks=64, chunk_tokens=chunk, sub_chunk_tokens=chunk)
        engine = Engine(model, text, pool, config, raise_generation=lambda block: None)
        engine.add(request("a", prompt(61), sampling))
        found.add(tuple((token.token_id, repr(token.logprob)) for token in tokens_of(drain(engine), "a")))
    assert len(found) == 1
    assert len(next(iter(found))) == TOKENS
