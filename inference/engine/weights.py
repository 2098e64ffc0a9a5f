"""Weights of the Llama architecture from a GGUF file, as float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from inference.engine.models.llama import LayerWeights, LlamaConfig, LlamaWeights
from inference.text import ModelFolderError

READABLE = (Kind.F32, Kind.F16, Kind.Q4_1, Kind.Q8_0)


class GGUFWeights:
    """Raises `ModelFolderError` where the file is damaged, of another architecture, or holds what we cannot read."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader: Any = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelFolderError("The model file cannot be read.", detail=f"{path.name}: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if self._field("general.architecture") != "llama":
            raise ModelFolderError("Only the Llama architecture is supported.", detail=str(self._field("general.architecture")))

    def config(self) -> LlamaConfig:
        heads, width = int(self._llama("attention.head_count")), int(self._llama("embedding_length"))
        return LlamaConfig(
            vocabulary_size=int(self._tensor("token_embd.weight").shape[1]),
            width=width,
            layers=int(self._llama("block_count")),
            heads=heads,
            kv_heads=int(self._llama("attention.head_count_kv", heads)),
            head_dim=int(self._llama("rope.dimension_count", width // heads)),
            inner_width=int(self._llama("feed_forward_length")),
            context_length=int(self._llama("context_length")),
            rope_theta=float(self._llama("rope.freq_base", 10_000.0)),
            norm_epsilon=float(self._llama("attention.layer_norm_rms_epsilon")),
        )

    def weights(self, config: LlamaConfig) -> LlamaWeights:
        if self._field("llama.rope.scaling.type") not in (None, "none"):
            raise ModelFolderError("Scaled rotary positions are not supported.", detail=str(self._field("llama.rope.scaling.type")))
        return LlamaWeights(
            embedding=self._matrix("token_embd.weight", config.vocabulary_size, config.width),
            layers=tuple(self._layer(config, index) for index in range(config.layers)),
            final_norm=self._read("output_norm.weight", (config.width,)),
            head=self._matrix("output.weight", config.vocabulary_size, config.width) if "output.weight" in self._tensors else None,
        )

    def _layer(self, config: LlamaConfig, index: int) -> LayerWeights:
        width, inner = config.width, config.inner_width
        attention, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim

        def matrix(name: str, outputs: int, inputs: int) -> torch.Tensor:
            return self._matrix(f"blk.{index}.{name}.weight", outputs, inputs)

        return LayerWeights(
            attention_norm=self._read(f"blk.{index}.attn_norm.weight", (width,)),
            q=half_split(matrix("attn_q", attention, width), config.heads),
            k=half_split(matrix("attn_k", kv, width), config.kv_heads),
            v=matrix("attn_v", kv, width),
            out=matrix("attn_output", width, attention),
            mlp_norm=self._read(f"blk.{index}.ffn_norm.weight", (width,)),
            gate=matrix("ffn_gate", inner, width),
            up=matrix("ffn_up", inner, width),
            down=matrix("ffn_down", width, inner),
        )

    def _matrix(self, name: str, outputs: int, inputs: int) -> torch.Tensor:
        return self._read(name, (outputs, inputs))

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._tensor(name)
        if tensor.tensor_type not in READABLE or tuple(reversed(tensor.shape.tolist())) != shape:
            raise ModelFolderError("A tensor is of an unsupported kind.", detail=f"{name}: {tensor.tensor_type!r} {tensor.shape}")
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        return torch.from_numpy(np.array(values, dtype=np.float32, order="C").reshape(shape))

    def _tensor(self, name: str) -> Any:
        if name not in self._tensors:
            raise ModelFolderError("The model file lacks a tensor.", detail=name)
        return self._tensors[name]

    def _llama(self, key: str, default: object = None) -> Any:
        value = self._field(f"llama.{key}")
        if value is None and default is None:
            raise ModelFolderError("The model file lacks a value.", detail=f"llama.{key}")
        return default if value is None else value

    def _field(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()


def half_split(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF orders each head's rows so that neighbours turn together; here row i turns with row i + dim / 2."""
    outputs, inputs = weight.shape
    return weight.view(heads, outputs // heads // 2, 2, inputs).transpose(1, 2).reshape(outputs, inputs)
