"""The default model through the whole product gives, greedily, the ids that transformers gives in fp32 on the same weights.

Alone, in a crowd of eight, split, fused, and again on a prefix hit. `BRIGADE_ORACLE=full` takes 20 prompts of 64 tokens; the usual
run is a part of it, because two cores need minutes for the whole.
"""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from inference.contracts import TokenEntry, stream_entry_from_json
from inference.streams import stream_key
from inference.text import ChatMessage, open_text
from inference.transcript import EntryFilter
from tests.flows.cast import client, receipt, say, until
from tests.flows.conftest import Stack, serving

FULL = os.environ.get("BRIGADE_ORACLE") == "full"
TOKENS = 64 if FULL else 16
PROMPTS = [
    "Hi",
    "What does a line cook do?",
    "Count from one to twenty.",
    "Write a haiku about onions.",
    "Translate to French: the soup is hot.",
    "def fibonacci(n):",
    "List three uses of salt:\n\n1.",
    "Why is the sky blue? Answer like a pirate.",
    "한국어로 인사해 주세요.",
    "👩‍🍳 🔪 🧅 tell me a story with these",
    "Solve: 12 * 7 + 5 = ?",
    "Summarise: " + "The kitchen opens at noon and closes at nine. " * 20,
    "SELECT name FROM cooks WHERE",
    "Repeat after me: la la la la la",
    "Give me a JSON object with two keys.",
    "Who wrote Hamlet, and when?",
    "Ends in spaces   ",
    "A very long word: " + "a" * 300,
    "Make a shopping list for a stew for four people.",
    "What is the capital of Iceland?",
]
CHOSEN = PROMPTS if FULL else PROMPTS[1:12:2]

pytestmark = pytest.mark.timeout(3600 if FULL else 400)


@dataclass(frozen=True, slots=True)
class Answer:
    ids: tuple[int, ...]
    receipt: dict[str, Any]


@pytest.fixture(scope="module")
def wanted(smollm2_folder: Path) -> dict[str, tuple[int, ...]]:
    """What transformers generates, prompt by prompt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(os.cpu_count() or 1)
        model = AutoModelForCausalLM.from_pretrained(smollm2_folder, gguf_file="model.gguf", dtype=torch.float32)
        text = open_text(smollm2_folder)
        return {prompt: _generate(model, text.render_chat([ChatMessage("user", prompt)]), text.eos_ids) for prompt in CHOSEN}


def _generate(model: Any, prompt_ids: list[int], eos_ids: frozenset[int]) -> tuple[int, ...]:
    import torch

    ids = torch.tensor([prompt_ids])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, eos_token_id=list(eos_ids), pad_token_id=0
    )
    return tuple(out[0, len(prompt_ids) :].tolist())


@pytest.fixture(scope="module")
def kitchen(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    data = tmp_path_factory.mktemp("oracle") / "data"
    data.mkdir()
    (data / "models").symlink_to(smollm2_folder.parent)
    with serving(data, {"BRIGADE_MODEL": smollm2_folder.name}) as running:
        yield running


def answer(kitchen: Stack, prompt: str) -> Answer:
    """The ids are read from the token stream, which outlives its request by some minutes."""
    chat = client(kitchen).chat.completions.create(
        model="smollm2-135m-instruct", messages=say(prompt), max_tokens=TOKENS, temperature=0
    )
    told = receipt(kitchen, chat.id)
    key = stream_key(str(uuid.UUID(chat.id.removeprefix("chatcmpl-"))))
    sieve = EntryFilter()
    ids: list[int] = []
    with redis.Redis(unix_socket_path=str(kitchen.data.valkey_socket)) as valkey:
        for _, fields in valkey.xrange(key):
            entry = sieve.clean(stream_entry_from_json(json.loads(fields[b"e"])))
            ids += entry.ids if isinstance(entry, TokenEntry) else ()
    return Answer(tuple(ids), told)


@pytest.fixture
def path(kitchen: Stack) -> Callable[[str], None]:
    def use(wanted_path: str) -> None:
        kitchen.run("config_set", "scheduling.path", wanted_path)
        until(lambda: answer(kitchen, "Hi").receipt["path"], lambda found: found == wanted_path, 30)

    return use


def test_alone_and_split_and_again_on_a_prefix_hit(
    kitchen: Stack, wanted: dict[str, tuple[int, ...]], path: Callable[[str], None]
) -> None:
    path("split")
    for prompt in CHOSEN:
        missed, hit = answer(kitchen, prompt), answer(kitchen, prompt)
        assert missed.ids == hit.ids == wanted[prompt]
        assert missed.receipt["path"] == hit.receipt["path"] == "split"
        prompt_tokens = hit.receipt["tokens"]["prompt"]
        assert hit.receipt["tokens"]["cached"]["device"] == (prompt_tokens - 1) // 16 * 16


def test_fused(kitchen: Stack, wanted: dict[str, tuple[int, ...]], path: Callable[[str], None]) -> None:
    path("fused")
    for prompt in CHOSEN:
        found = answer(kitchen, prompt)
        assert found.ids == wanted[prompt]
        assert found.receipt["path"] == "fused"


def test_in_a_crowd_of_eight(kitchen: Stack, wanted: dict[str, tuple[int, ...]], path: Callable[[str], None]) -> None:
    path("split")
    with ThreadPoolExecutor(8) as crowd:
        answers = list(crowd.map(lambda prompt: answer(kitchen, prompt), CHOSEN))
    assert {prompt: found.ids for prompt, found in zip(CHOSEN, answers, strict=True)} == wanted
