"""Whatever the way, the answer is one: streamed or whole, split or fused, on a hit or a miss, alone or in a crowd.

Orders are drawn from a seed: text of all planes, stop strings, every sampling parameter. `BRIGADE_EQUAL=full` draws more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

from inference.contracts import EngineRequest, SamplingParams
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.events import Token
from inference.engine.reference import one_thread, reference
from inference.engine.runner import pool_shape
from inference.text import ChatMessage, answer_text
from tests.flows.cast import ask, client, receipt, say, tiny, until, wait_until_idle
from tests.flows.conftest import Stack

pytestmark = pytest.mark.timeout(600)

FULL = os.environ.get("BRIGADE_EQUAL") == "full"
SEED = int(os.environ.get("BRIGADE_EQUAL_SEED", "1"))
COUNT = 120 if FULL else 14
CROWD = 12


class Choice(NamedTuple):
    text: str
    reason: str | None
    logprobs: tuple[Any, ...] = ()


class Answer(NamedTuple):
    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int


class Order(NamedTuple):
    content: str
    body: dict[str, Any]  # beyond model and messages


def orders() -> list[Order]:
    chance = random.Random(SEED)
    return [_order(chance, index) for index in range(COUNT)]


def _order(chance: random.Random, index: int) -> Order:
    words = "".join(_character(chance) for _ in range(chance.choice([0, 1, 5, 17, 60])))
    content = f"{index} {words} " + chance.choice(["", "salt and pepper ", "salt and pepper " * 12])
    body: dict[str, Any] = {
        "max_tokens": chance.choice([1, 2, 9, 30, 60]),
        "temperature": chance.choice([0, 0.7, 1.5]),
        "seed": chance.getrandbits(40),
        "n": chance.choice([1, 1, 2, 3]),
    }
    may = {
        "stop": [_character(chance) for _ in range(2)] + [chance.choice("aeiou"), "\ufffd"],
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.02,
        "frequency_penalty": 0.7,
        "presence_penalty": -0.4,
        "repetition_penalty": 1.3,
        "logit_bias": {"101": 5, "32": -100},
        "min_tokens": min(4, body["max_tokens"]),
        "stop_token_ids": [65, 120],
        "ignore_eos": True,
    }
    told: dict[str, Any] = chance.choice([{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3}])
    return Order(content, body | {name: value for name, value in may.items() if chance.random() < 0.3} | told)


def _character(chance: random.Random) -> str:
    """Of ASCII as often as of each plane; no surrogates, no NUL."""
    plane = chance.choice([None, 0, 0, 1, 2, 3, 14, 15, 16])
    low, high = (32, 126) if plane is None else (plane << 16, (plane << 16) + 0xFFFD)
    code = chance.randint(max(low, 1), high)
    return chr(code if not 0xD800 <= code <= 0xDFFF else 0xAC00)


def wanted(order: Order) -> Answer:
    """What the model says when it is alone: no batch, no hit, no hand-off, no stream."""
    _, text = tiny()
    sampling = _sampling(order.body)
    prompt = text.render_chat([ChatMessage("user", order.content)])
    choices: list[Choice] = []
    tokens = 0
    for ids in _ids(tuple(prompt), sampling):
        answer = answer_text(text, sampling, sampling.max_tokens)
        said = "".join(answer.accept(token_id) for token_id in ids if answer.finish_reason is None)
        choices.append(Choice(said, answer.finish_reason))
        tokens += answer.count
    return Answer(tuple(choices), len(prompt), tokens)


def _ids(prompt: tuple[int, ...], sampling: SamplingParams) -> list[list[int]]:
    """Of each choice. A greedy one is the reference's, which sees the whole context at once and rounds otherwise.

    That may move a draw that lies on an edge between two tokens: those are asked of an engine that does nothing else.
    """
    model, text = tiny()
    if sampling.greedy:
        return [reference(model, prompt, sampling, eos_ids=text.eos_ids, choice=choice) for choice in range(sampling.n)]
    one = Engine(model, text, torch.zeros(pool_shape(model.layout, 64)), EngineConfig(blocks=64))
    one.add(EngineRequest("alone", prompt, sampling, bytes(32), "fused"))
    ids: list[list[int]] = [[] for _ in range(sampling.n)]
    with one_thread():
        while one.has_work:
            for event in one.step():
                if isinstance(event, Token):
                    ids[event.choice].append(event.token_id)
    return ids


def _sampling(body: dict[str, Any]) -> SamplingParams:
    same: dict[str, Any] = {
        name: value for name, value in body.items() if name in SamplingParams.__dataclass_fields__ and name != "logprobs"
    }
    return SamplingParams(
        **same
        | {
            "stop": tuple(body.get("stop", ())),
            "logit_bias": tuple((int(token_id), float(bias)) for token_id, bias in body.get("logit_bias", {}).items()),
            "stop_ids": tuple(body.get("stop_token_ids", ())),
        }
    )


def whole(stack: Stack, order: Order) -> Answer:
    body = dict(order.body)
    found = ask(stack, order.content, body.pop("max_tokens"), temperature=body.pop("temperature"), extra_body=body)
    choices = tuple(
        Choice(choice.message.content, choice.finish_reason, _told(choice.logprobs))
        for choice in sorted(found.choices, key=lambda choice: int(choice.index))
    )
    return Answer(choices, found.usage.prompt_tokens, found.usage.completion_tokens)


def streamed(stack: Stack, order: Order) -> Answer:
    count = order.body["n"]
    texts = [""] * count
    told: list[tuple[Any, ...]] = [()] * count
    reasons: list[str | None] = [None] * count
    usage = None
    for chunk in client(stack).chat.completions.create(
        model="tiny", messages=say(order.content), stream=True, stream_options={"include_usage": True}, extra_body=order.body
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert reasons[choice.index] is None, "a choice spoke after its end"
            texts[choice.index] += choice.delta.content or ""
            told[choice.index] += _told(choice.logprobs)
            reasons[choice.index] = choice.finish_reason
    assert usage is not None
    return Answer(tuple(map(Choice, texts, reasons, told)), usage.prompt_tokens, usage.completion_tokens)


def _told(logprobs: Any) -> tuple[Any, ...]:
    if logprobs is None:
        return ()
    return tuple((one.token, one.logprob, bytes(one.bytes or b""), len(one.top_logprobs)) for one in logprobs.content)


@contextmanager
def path(stack: Stack, name: str) -> Iterator[None]:
    def taken() -> str:
        return str(receipt(stack, ask(stack, "which path?", 2).id)["path"])

    stack.run("config_set", "scheduling.path", name)
    until(taken, lambda found: found == name)
    yield
    stack.run("config_set", "scheduling.path", "auto")


def test_every_way_to_an_answer_gives_the_same_one(stack: Stack) -> None:
    drawn = orders()
    found: dict[str, list[Answer]] = {}
    for name in ("split", "fused"):
        with path(stack, name):
            found[f"{name}, whole"] = [whole(stack, order) for order in drawn]  # the first of all is a miss, the others hit
            found[f"{name}, streamed"] = [streamed(stack, order) for order in drawn]
            with ThreadPoolExecutor(CROWD) as crowd:
                found[f"{name}, in a crowd"] = list(crowd.map(lambda order: streamed(stack, order), drawn))
    first = found["split, whole"]
    for way, answers in found.items():
        for order, answer, other in zip(drawn, answers, first, strict=True):
            assert answer == other, f"{way}: {order}"
    for order, answer in zip(drawn, first, strict=True):
        assert_right(order, answer)
    wait_until_idle(stack)


def assert_right(order: Order, answer: Answer) -> None:
    right = wanted(order)
    bare = answer._replace(choices=tuple(choice._replace(logprobs=()) for choice in answer.choices))
    assert bare == right, order
    told = sum(len(choice.logprobs) for choice in answer.choices)
    assert told == (answer.completion_tokens if order.body.get("logprobs") else 0)
    for choice in answer.choices:
        said = b"".join(one[2] for one in choice.logprobs).decode(errors="replace")
        assert not choice.logprobs or said.startswith(choice.text.rstrip("\ufffd"))
