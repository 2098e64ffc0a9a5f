"""An engine around a tiny model, and how to run it to the end."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from inference.contracts import EngineRequest, Phase, SamplingParams
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.events import EngineEvent, Failed, Finished, PhaseUsage, Prefilled, Reservation, Token
from inference.engine.models.base import LanguageModel
from inference.engine.models.llama import LlamaModel
from inference.engine.models.scripted import ScriptedModel
from inference.engine.models.tiny import tiny_model
from inference.engine.reference import reference
from inference.engine.runner import pool_shape
from inference.text import oracles

EOS = frozenset({oracles.EOS_ID})
SALT = b"s" * 32
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


class ByteText:
    eos_ids = EOS

    def token_bytes(self, token_id: int) -> bytes:
        return oracles.PIECES[token_id]


@functools.cache
def tiny() -> LlamaModel:
    return tiny_model("tiny", "1")


def scripted() -> ScriptedModel:
    return ScriptedModel("scripted", "1")


def script(**keys: Any) -> tuple[int, ...]:
    return tuple(oracles.encode("user: " + json.dumps({"script": keys}) + "\nassistant: "))


def engine(
    model: LanguageModel | None = None,
    *,
    blocks: int = 64,
    raise_generation: Callable[[int], None] = lambda block: None,
    clock_us: Callable[[], int] | None = None,
    **settings: int,
) -> Engine:
    model = model or tiny()
    pool = torch.full(pool_shape(model.layout, blocks), float("nan"))  # what nobody wrote must never be read
    config = EngineConfig(blocks=blocks, **settings)
    clock = {} if clock_us is None else {"clock_us": clock_us}
    return Engine(model, ByteText(), pool, config, raise_generation=raise_generation, **clock)


def pool_of(one: Engine) -> torch.Tensor:
    return one._runner.pool


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


def request(
    name: str,
    prompt_ids: Sequence[int],
    sampling: SamplingParams = GREEDY,
    *,
    phase: Phase = "fused",
    forced: Sequence[int] = (),
    priority: int = 100,
    salt: bytes = SALT,
) -> EngineRequest:
    return EngineRequest(name, tuple(prompt_ids), sampling, salt, phase, forced=(tuple(forced),), priority=priority)


def copy_pages(source: Engine, target: Engine, done: Prefilled, place: Reservation) -> None:
    """The transfer of a hand-off."""
    assert len(place.blocks) == len(done.blocks)
    for index in range(place.cached_blocks, len(done.blocks)):
        pool_of(target)[place.blocks[index]] = pool_of(source)[done.blocks[index]]


def drain(one: Engine, limit: int = 10_000) -> list[EngineEvent]:
    """Runs until nothing is left to do; after each step the engine must be in order."""
    events: list[EngineEvent] = []
    for _ in range(limit):
        if not one.has_work:
            return events
        events += one.step()
        assert one.check() == []
    raise AssertionError("the engine does not come to an end")


def run(one: Engine, *requests: EngineRequest) -> dict[str, list[int]]:
    for each in requests:
        one.add(each)
    events = drain(one)
    return {each.request_id: ids_of(events, each.request_id) for each in requests}


def tokens_of(events: Iterable[EngineEvent], name: str) -> list[Token]:
    return [event for event in events if isinstance(event, Token) and event.request_id == name]


def ids_of(events: Iterable[EngineEvent], name: str) -> list[int]:
    return [token.token_id for token in tokens_of(events, name)]


def choices_of(events: Iterable[EngineEvent], name: str, count: int) -> list[list[int]]:
    tokens = tokens_of(events, name)
    return [[token.token_id for token in tokens if token.choice == choice] for choice in range(count)]


def text_of(events: Iterable[EngineEvent], name: str) -> str:
    return "".join(token.text for token in tokens_of(events, name))


def finished(events: Iterable[EngineEvent], name: str) -> Finished:
    (found,) = [event for event in events if isinstance(event, Finished) and event.request_id == name]
    return found


def failed(events: Iterable[EngineEvent], name: str) -> Failed:
    (found,) = [event for event in events if isinstance(event, Failed) and event.request_id == name]
    return found


def prefilled(events: Iterable[EngineEvent], name: str) -> Prefilled:
    (found,) = [event for event in events if isinstance(event, Prefilled) and event.request_id == name]
    return found


def usage_of(events: Iterable[EngineEvent], name: str) -> PhaseUsage:
    return finished(events, name).usage


@functools.lru_cache(maxsize=1024)
def expected(prompt_ids: tuple[int, ...], sampling: SamplingParams = GREEDY, choice: int = 0) -> list[int]:
    return reference(tiny(), prompt_ids, sampling, eos_ids=EOS, choice=choice)


def expected_choices(prompt_ids: tuple[int, ...], sampling: SamplingParams) -> list[list[int]]:
    return [expected(prompt_ids, sampling, choice) for choice in range(sampling.n)]


def model_folder(root: Path, kind: str) -> Path:
    folder = root / kind
    folder.mkdir()
    (folder / "model.json").write_text(json.dumps({"kind": kind}))
    return folder


def assert_idle(one: Engine) -> None:
    counters = one.counters()
    assert (counters.held, counters.quarantined) == (0, 0)
    assert counters.free + counters.cached == counters.total
    assert one.check() == []
