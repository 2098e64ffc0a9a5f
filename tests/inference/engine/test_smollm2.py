"""The default model against transformers, in float32, on the same weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM
from transformers import LlamaConfig as TransformersConfig

from inference.contracts import SamplingParams
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.loading import load_model
from inference.engine.models.base import LanguageModel
from inference.engine.models.llama import LlamaConfig, LlamaWeights
from inference.engine.runner import pool_shape
from inference.engine.weights import GGUFWeights
from inference.text import ChatMessage, ModelFolderError, ModelText, open_text
from tests.inference.engine.support import drain, ids_of, request, run, text_of, usage_of

TOKENS = 24
SAMPLING = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Hi",
    "Liste drei Primzahlen auf und erkläre, warum sie prim sind. " * 5,
    "def fibonacci(n):",
    "Explain the difference between prefill and decode. " * 12,
)


@dataclass(frozen=True)
class Setup:
    model: LanguageModel
    text: ModelText
    prompts: dict[str, tuple[int, ...]]
    expected: dict[str, list[int]]

    def engine(self, **settings: int) -> Engine:
        pool = torch.full(pool_shape(self.model.layout, 128), float("nan"))
        return Engine(self.model, self.text, pool, EngineConfig(blocks=128, **settings))


@pytest.fixture(scope="module")
def setup(smollm2_folder: Path) -> Setup:
    torch.set_num_threads(1)
    text = open_text(smollm2_folder)
    prompts = {f"q{index}": tuple(text.render_chat([ChatMessage("user", one)])) for index, one in enumerate(QUESTIONS)}
    source = GGUFWeights(smollm2_folder / "model.gguf")
    judge = transformers_model(source.config(), source.weights(source.config()))
    expected = {name: judge_answer(judge, ids) for name, ids in prompts.items()}
    del judge
    return Setup(load_model(smollm2_folder), text, prompts, expected)


def transformers_model(config: LlamaConfig, weights: LlamaWeights) -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        TransformersConfig(
            vocab_size=config.vocabulary_size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            intermediate_size=config.inner_width,
            max_position_embeddings=config.context_length,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            rms_norm_eps=config.norm_epsilon,
            tie_word_embeddings=True,
        )
    )
    state = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    names = {
        "attention_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "out": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    for index, layer in enumerate(weights.layers):
        state |= {f"model.layers.{index}.{theirs}.weight": getattr(layer, ours) for ours, theirs in names.items()}
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


def judge_answer(judge: LlamaForCausalLM, ids: tuple[int, ...]) -> list[int]:
    with torch.inference_mode():
        answer: list[int] = []
        cache, step = DynamicCache(config=judge.config), torch.tensor([ids])
        for _ in range(TOKENS):
            logits = judge(step, cache=cache).logits
            answer.append(int(logits[0, -1].argmax()))
            step = torch.tensor([answer[-1:]])
        return answer


def test_alone_and_again_on_a_prefix_hit(setup: Setup) -> None:
    one = setup.engine()
    for name, ids in setup.prompts.items():
        assert run(one, request(name, ids, SAMPLING))[name] == setup.expected[name]
    for name, ids in list(setup.prompts.items())[:3]:
        one.add(request(name, ids, SAMPLING))
        events = drain(one)
        assert ids_of(events, name) == setup.expected[name]
        assert usage_of(events, name).cached >= 16


def test_in_a_batch_of_eight_in_small_chunks(setup: Setup) -> None:
    one = setup.engine(chunk_tokens=48, step_tokens=64)
    names = [*setup.prompts, "q0", "q1"]
    answers = run(one, *(request(f"{name}-{at}", setup.prompts[name], SAMPLING) for at, name in enumerate(names)))
    assert answers == {f"{name}-{at}": setup.expected[name] for at, name in enumerate(names)}


def test_it_answers_sensibly(setup: Setup) -> None:
    one = setup.engine()
    one.add(request("a", setup.prompts["q0"], SamplingParams(max_tokens=TOKENS, temperature=0.0)))
    events = drain(one)
    assert "Paris" in text_of(events, "a")


def test_a_damaged_file_is_an_error_of_its_own(tmp_path: Path, smollm2_folder: Path) -> None:
    whole = (smollm2_folder / "model.gguf").read_bytes()
    for name, content in {"empty": b"", "short": whole[:100_000], "noise": os.urandom(4096)}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.gguf").write_bytes(content)
        with pytest.raises(ModelFolderError):
            load_model(folder)
