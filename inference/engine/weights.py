"""Weights of the Llama architecture from a GGUF file, as float32."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from inference.engine.models.llama import LayerWeights, LlamaConfig, LlamaWeights
from inference.text import ModelFolderError
from inference.text.gguf_metadata import read_metadata, read_tensor_table

READABLE = (Kind.F32, Kind.F16, Kind.Q4_1, Kind.Q8_0)


class GGUFWeights:
    """Raises `ModelFolderError` where the file is damaged, of another architecture, or holds what we cannot read."""

    def __init__(self, path: Path) -> None:
        self._metadata = read_metadata(path)
        self._tensors = read_tensor_table(path)
        if self._metadata.get("general.architecture") != "llama":
            raise ModelFolderError(
                "Only the Llama architecture is supported.", detail=str(self._metadata.get("general.architecture"))
            )
        with path.open("rb") as file:
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)

    def config(self) -> LlamaConfig:
        heads, width = int(self._llama("attention.head_count")), int(self._llama("embedding_length"))
        return LlamaConfig(
            vocabulary_size=int(self._shape("token_embd.weight")[0]),
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
        scaling = self._metadata.get("llama.rope.scaling.type", "none")
        if scaling != "none":
            raise ModelFolderError("Scaled rotary positions are not supported.", detail=str(scaling))
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
        place = self._tensors.get(name)
        if place is None or place.shape != shape or place.kind not in READABLE:
            raise ModelFolderError("A tensor is missing or of an unsupported kind.", detail=f"{name}: {place}")
        values_per_unit, unit_bytes = gguf.GGML_QUANT_SIZES[Kind(place.kind)]
        row_bytes = shape[-1] // values_per_unit * unit_bytes
        rows = shape[0] if len(shape) == 2 else 1
        raw = self._bytes[place.offset : place.offset + row_bytes * rows]
        if shape[-1] % values_per_unit or raw.size != row_bytes * rows:
            raise ModelFolderError("The model file is damaged.", detail=f"{name} is cut off")
        values = gguf.dequantize(raw.reshape(-1, row_bytes), Kind(place.kind))
        return torch.from_numpy(np.array(values, dtype=np.float32, order="C").reshape(shape))

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._tensors:
            raise ModelFolderError("The model file lacks a tensor.", detail=name)
        return self._tensors[name].shape

    def _llama(self, key: str, default: object = None) -> Any:
        value = self._metadata.get(f"llama.{key}", default)
        if value is None:
            raise ModelFolderError("The model file lacks a value.", detail=f"llama.{key}")
        return value


def half_split(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF orders each head's rows so that neighbours turn together; here row i turns with row i + dim / 2."""
    outputs, inputs = weight.shape
    return weight.view(heads, outputs // heads // 2, 2, inputs).transpose(1, 2).reshape(outputs, inputs)
