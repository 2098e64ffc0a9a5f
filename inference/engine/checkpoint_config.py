"""`config.json` of a Hugging Face folder to the decoder's configuration; what the decoder cannot do is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.engine.models.llama import LlamaConfig, RopeScaling
from inference.text import ModelFolderError
from inference.text.checkpoint import MAX_CONTEXT, MAX_VOCABULARY, read_object, whole_number


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What the class in transformers does without being told by the file."""

    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    window: int | None = None
    window_is_optional: bool = False  # only where `use_sliding_window` says so


ARCHITECTURES: Mapping[str, _Architecture] = {
    "LlamaForCausalLM": _Architecture(),
    "MistralForCausalLM": _Architecture(window=4096),
    "Qwen2ForCausalLM": _Architecture(qkv_bias=True, window_is_optional=True),
    "Qwen3ForCausalLM": _Architecture(qk_norm=True, head_dim=128, window_is_optional=True),
}
_MAX_WIDTH, _MAX_LAYERS, _MAX_HEADS, _MAX_HEAD_DIM, _MAX_INNER = 65_536, 1_024, 1_024, 1_024, 1_048_576


def read_config(folder: Path) -> LlamaConfig:
    """Raises `ModelFolderError`."""
    config = read_object(folder, "config.json", needed=True)
    architecture = _architecture(config)
    _refuse_what_changes_the_computation(config)
    width, heads = whole_number(config, "hidden_size", _MAX_WIDTH), whole_number(config, "num_attention_heads", _MAX_HEADS)
    context_length = whole_number(config, "max_position_embeddings", MAX_CONTEXT)
    _refuse_window(config, architecture, context_length)
    return LlamaConfig(
        vocabulary_size=whole_number(config, "vocab_size", MAX_VOCABULARY),
        width=width,
        layers=whole_number(config, "num_hidden_layers", _MAX_LAYERS),
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_dim=_head_dim(config, architecture, width, heads),
        inner_width=whole_number(config, "intermediate_size", _MAX_INNER),
        context_length=context_length,
        rope_theta=_positive(_rope(config), "rope_theta", _positive(config, "rope_theta", 10_000.0)),
        norm_epsilon=_positive(config, "rms_norm_eps", 1e-6),
        rope_scaling=_rope_scaling(_rope(config)),
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
        tied=config.get("tie_word_embeddings") is True,
    )


def _architecture(config: dict[str, Any]) -> _Architecture:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ModelFolderError(
            f"config.json: the architecture {name!r} is not supported. Supported: {', '.join(ARCHITECTURES)}.",
            code="checkpoint_architecture",
        )
    return ARCHITECTURES[name]


def _refuse_what_changes_the_computation(config: dict[str, Any]) -> None:
    plain = {
        "hidden_act": (None, "silu"),
        "attention_bias": (None, False),
        "mlp_bias": (None, False),
        "quantization_config": (None,),
        "partial_rotary_factor": (None, 1, 1.0),
        "tie_word_embeddings": (None, False, True),
    }
    stated = _rope(config) | config  # newer files say a part of it among the rotations
    for key, known in plain.items():
        if stated.get(key) not in known:
            raise _refused(f"{key} = {stated[key]!r} is not supported")


def _refuse_window(config: dict[str, Any], architecture: _Architecture, context_length: int) -> None:
    if architecture.window_is_optional and config.get("use_sliding_window") is not True:
        return
    window = config.get("sliding_window", architecture.window)
    if window is not None and (type(window) is not int or window < context_length):
        raise _refused(f"sliding_window = {window!r} is below the context of {context_length} tokens, which is not supported")


def _kv_heads(config: dict[str, Any], heads: int) -> int:
    kv_heads = whole_number(config, "num_key_value_heads", _MAX_HEADS, heads)
    if heads % kv_heads:
        raise _refused(f"num_attention_heads = {heads} is no multiple of num_key_value_heads = {kv_heads}")
    return kv_heads


def _head_dim(config: dict[str, Any], architecture: _Architecture, width: int, heads: int) -> int:
    default = architecture.head_dim or width // heads
    if config.get("head_dim") is None and not architecture.head_dim and width % heads:
        raise _refused(f"hidden_size = {width} is no multiple of num_attention_heads = {heads}, and there is no head_dim")
    dim = whole_number(config, "head_dim", _MAX_HEAD_DIM, default)
    if dim % 2:
        raise _refused(f"head_dim = {dim} is odd")
    return dim


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Newer files say `rope_parameters`, older ones `rope_scaling`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise _refused(f"rope_scaling = {rope!r} is no object")
    return rope


def _rope_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(_positive(rope, "factor"))
    if kind != "llama3":
        raise _refused(f"rope_scaling of the type {kind!r} is not supported")
    low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
    if low >= high:
        raise _refused(f"low_freq_factor = {low} is not below high_freq_factor = {high}")
    original = whole_number(rope, "original_max_position_embeddings", MAX_CONTEXT)
    return RopeScaling(_positive(rope, "factor"), low, high, original)


def _positive(values: dict[str, Any], key: str, default: float | None = None) -> float:
    value = default if values.get(key) is None else values[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12 or not math.isfinite(value):
        raise _refused(f"{key} must be a number above 0, not {value!r}")
    return float(value)


def _refused(fault: str) -> ModelFolderError:
    return ModelFolderError(f"config.json: {fault}.", code="checkpoint_config")
