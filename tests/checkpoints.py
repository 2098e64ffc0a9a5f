"""Small checkpoints with random weights, written by transformers itself, and what transformers answers with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SHAPE = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
BOS, EOS, START, END, THINK = "<|bos|>", "<|eos|>", "<|start|>", "<|end|>", "<think>"
_TEXT = ["the quick brown fox jumps over the lazy dog", "def fibonacci(n): return n", "Äpfel und Öl, 1234567890"] * 3


def write_checkpoint(
    folder: Path, family: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32, shard: str = "1GB", **config: Any
) -> Path:
    """A model of the family with a tokenizer; every weight is random, those too that transformers would begin with 0 or 1."""
    tokenizer = byte_level_tokenizer(add_bos=family in ("llama", "mistral"))
    tokenizer.save_pretrained(folder)
    model = _random_model(family, seed, {**SHAPE, "eos_token_id": tokenizer.convert_tokens_to_ids(END), **config})
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


def _random_model(family: str, seed: int, config: dict[str, Any]) -> Any:
    config_class, model_class = CLASSES[family]
    model = model_class(config_class(**config)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale, centre = (0.2, 1.0) if weight.dim() == 1 and "norm" in name else (0.3, 0.0)
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale + centre)
    return model


def byte_level_tokenizer(*, add_bos: bool = False, template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """256 bytes, a few merges, four special tokens and one added token that is shown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(_TEXT, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([BOS, EOS, START, END])
    tokenizer.add_tokens([AddedToken(THINK, normalized=False)])
    if add_bos:
        bos = tokenizer.token_to_id(BOS)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, chat_template=template)


def sentencepiece_tokenizer(scheme: str) -> PreTrainedTokenizerFast:
    """A blank is U+2581 and begins each text: by a normalizer ("prepend"), or by the pre-tokenizer ("always", "first")."""
    words = ["\u2581", *"thefoxa", "th", "the", "\u2581the", "fo", "fox", "\u2581fox"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("f", "o"), ("fo", "x"), ("\u2581", "fox")]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *bytes_, *words])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if scheme == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    template = "{{ bos_token }}{% for message in messages %}a {{ message.content }}</s>{% endfor %}"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template)


def judge_tokens(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """What transformers' `model` answers greedily, the whole context anew for each token."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
