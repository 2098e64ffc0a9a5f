"""Weights of a Hugging Face folder's safetensors files, as float32. The library checks header and offsets as it opens a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference.engine.models.llama import LayerWeights, LlamaConfig, LlamaWeights
from inference.text import ModelFolderError
from inference.text.checkpoint import tensor_files

READABLE = ("F32", "F16", "BF16")
Shape = tuple[int, ...]


class CheckpointWeights:
    """Raises `ModelFolderError` for a damaged file, and for tensors that are missing, too many, or of another shape or kind."""

    def __init__(self, folder: Path) -> None:
        places = tensor_files(folder)
        self._files = {path: _opened(path) for path in sorted(set(places.values()))}
        self._places = _places(self._files)
        for name, path in places.items():
            if name and self._places.get(name) != path:
                raise ModelFolderError(
                    f"{path.name} lacks the tensor {name}, which the index places there.", code="checkpoint_tensor"
                )

    def weights(self, config: LlamaConfig) -> LlamaWeights:
        self._check(expected_shapes(config))
        layers = tuple(self._layer(config, f"model.layers.{index}") for index in range(config.layers))
        head = None if config.tied else self._read("lm_head.weight")
        return LlamaWeights(self._read("model.embed_tokens.weight"), layers, self._read("model.norm.weight"), head)

    def _layer(self, config: LlamaConfig, at: str) -> LayerWeights:
        def matrix(name: str) -> torch.Tensor:
            return self._read(f"{at}.{name}.weight")

        biases = [self._read(f"{at}.self_attn.{side}_proj.bias") for side in "qkv"] if config.qkv_bias else []
        return LayerWeights(
            attention_norm=matrix("input_layernorm"),
            q=matrix("self_attn.q_proj"),
            k=matrix("self_attn.k_proj"),
            v=matrix("self_attn.v_proj"),
            out=matrix("self_attn.o_proj"),
            mlp_norm=matrix("post_attention_layernorm"),
            gate=matrix("mlp.gate_proj"),
            up=matrix("mlp.up_proj"),
            down=matrix("mlp.down_proj"),
            qkv_bias=torch.cat(biases) if biases else None,
            q_norm=matrix("self_attn.q_norm") if config.qk_norm else None,
            k_norm=matrix("self_attn.k_norm") if config.qk_norm else None,
        )

    def _check(self, expected: dict[str, Shape]) -> None:
        """Before a byte of a tensor is read."""
        for name, shape in expected.items():
            if name not in self._places:
                raise ModelFolderError(f"The weights lack the tensor {name}.", code="checkpoint_tensor")
            self._check_tensor(name, shape)
        for name in self._places.keys() - expected.keys():
            if not name.endswith("rotary_emb.inv_freq") and name != "lm_head.weight":
                raise ModelFolderError(
                    f"{self._places[name].name} holds {name}, which config.json does not foresee.", code="checkpoint_tensor"
                )

    def _check_tensor(self, name: str, shape: Shape) -> None:
        path = self._places[name]
        entry = self._files[path].get_slice(name)
        if tuple(entry.get_shape()) != shape:
            found = tuple(entry.get_shape())
            raise ModelFolderError(f"{path.name}: {name} is {found} where config.json says {shape}.", code="checkpoint_tensor")
        if entry.get_dtype() not in READABLE:
            raise ModelFolderError(f"{path.name}: {name} is {entry.get_dtype()}, not one of {READABLE}.", code="checkpoint_tensor")

    def _read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[self._places[name]].get_tensor(name)
        return tensor.to(torch.float32)


def expected_shapes(config: LlamaConfig) -> dict[str, Shape]:
    """Every tensor of the architecture."""
    table = (config.vocabulary_size, config.width)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": table, "model.norm.weight": (config.width,)}
    shapes |= {} if config.tied else {"lm_head.weight": table}
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(config)}
    return shapes


def _layer_shapes(config: LlamaConfig) -> Iterator[tuple[str, Shape]]:
    width, inner, dim = config.width, config.inner_width, config.head_dim
    rows = {"q": config.heads * dim, "k": config.kv_heads * dim, "v": config.kv_heads * dim}
    yield from ((f"self_attn.{side}_proj.weight", (count, width)) for side, count in rows.items())
    if config.qkv_bias:
        yield from ((f"self_attn.{side}_proj.bias", (count,)) for side, count in rows.items())
    if config.qk_norm:
        yield from ((f"self_attn.{side}_norm.weight", (dim,)) for side in "qk")
    yield "self_attn.o_proj.weight", (width, config.heads * dim)
    yield from ((f"mlp.{name}_proj.weight", (inner, width)) for name in ("gate", "up"))
    yield "mlp.down_proj.weight", (width, inner)
    yield from ((f"{name}_layernorm.weight", (width,)) for name in ("input", "post_attention"))


def _places(files: dict[Path, Any]) -> dict[str, Path]:
    places: dict[str, Path] = {}
    for path, file in files.items():
        for name in file.keys():  # noqa: SIM118 (the library's own class has no iterator)
            if name in places:
                raise ModelFolderError(f"{places[name].name} and {path.name} both hold {name}.", code="checkpoint_tensor")
            places[name] = path
    return places


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFolderError(f"{path.name} is damaged: {error}.", code="checkpoint_damaged") from error
