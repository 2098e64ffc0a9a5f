"""An oracle: a real Llama of two layers with random weights and a vocabulary of bytes. The same weights everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from inference.engine.models.llama import LayerWeights, LlamaConfig, LlamaModel, LlamaWeights
from inference.text import oracles

SEED = 20_240_229
CONFIG = LlamaConfig(
    vocabulary_size=oracles.VOCABULARY_SIZE,
    width=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    inner_width=128,
    context_length=oracles.CONTEXT_LENGTH,
    rope_theta=10_000.0,
    norm_epsilon=1e-5,
)


def tiny_model(name: str, revision: str) -> LlamaModel:
    return LlamaModel(name, revision, CONFIG, tiny_weights())


def tiny_weights(config: LlamaConfig = CONFIG, seed: int = SEED) -> LlamaWeights:
    generator = torch.Generator().manual_seed(seed)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, generator=generator).mul_(2.0 / math.sqrt(inputs))

    layers = tuple(_layer(config, matrix) for _ in range(config.layers))
    embedding = torch.randn(config.vocabulary_size, config.width, generator=generator)
    return LlamaWeights(embedding, layers, torch.ones(config.width), matrix(config.vocabulary_size, config.width))


def _layer(config: LlamaConfig, matrix: Callable[[int, int], torch.Tensor]) -> LayerWeights:
    attention, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return LayerWeights(
        attention_norm=torch.ones(config.width),
        q=matrix(attention, config.width),
        k=matrix(kv, config.width),
        v=matrix(kv, config.width),
        out=matrix(config.width, attention),
        mlp_norm=torch.ones(config.width),
        gate=matrix(config.inner_width, config.width),
        up=matrix(config.inner_width, config.width),
        down=matrix(config.width, config.inner_width),
    )
