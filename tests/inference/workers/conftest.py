"""Two stations of one kitchen in this process. All of it is real but the broker, whose part the tests take."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connections

from inference.contracts import PoolCounters, SamplingParams, stream_entry_from_json
from inference.coordination.leases import lease_take
from inference.coordination.registry import worker_register
from inference.engine.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.events import EngineEvent
from inference.engine.loading import load_model
from inference.engine.models.base import LanguageModel
from inference.engine.reference import reference
from inference.kvtransport.arena import Arena
from inference.kvtransport.shm import ShmTransport
from inference.requests.claims import Claim, request_claim, request_offer
from inference.requests.models import FINAL, InferenceRequest, State
from inference.streams import StreamWriter, stream_key
from inference.text import ModelText, open_text
from inference.text.model_files import ensure_oracle
from inference.transcript import EntryFilter, Transcript
from inference.workers.courier import Courier
from inference.workers.loop import EngineLoop
from inference.workers.transfers import Transfers

BLOCKS = 64
PATIENCE_S = 20.0


class Station:
    """A worker without its process."""

    def __init__(self, slot: str, folder: Path, model: LanguageModel, text: ModelText, redis_url: str) -> None:
        self.slot = slot
        pool = PoolCounters(free=BLOCKS, cached=0, held=0, quarantined=0, total=BLOCKS)
        roles = (slot.partition("-")[0],)
        self.epoch = worker_register(
            slot=slot,
            roles=roles,
            model="tiny",
            layout=model.layout,
            device="cpu",
            arena=slot + "-{epoch}.kv",
            pool=pool,
            load={"max_running": 8},
        )
        self.arena = Arena.create(folder / f"{slot}-{self.epoch}.kv", model.layout, BLOCKS, self.epoch)
        self.engine = Engine(
            model, text, self.arena.tensor(), EngineConfig(blocks=BLOCKS), raise_generation=self.arena.raise_generation
        )
        self.courier = Courier(StreamWriter(redis_url), may_speak=lambda: True)
        self.transfers = Transfers(ShmTransport(folder, self.arena))
        self.loop = EngineLoop(self.engine, self.arena, self.courier, self.transfers, slot, self.epoch)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self.courier.start(_run_thread)
        self._thread.start()

    def slow_down(self) -> None:
        """So that a request does not end before something happens to it."""
        step = self.engine.step

        def slow() -> list[EngineEvent]:
            time.sleep(0.03)
            return step()

        self.engine.step = slow  # type: ignore[method-assign]

    def _run(self) -> None:
        self.loop.run()
        connections.close_all()

    def stop(self) -> None:
        self.loop.stop()
        self._thread.join(10)
        self.transfers.stop()
        self.courier.stop(10)
        assert self.engine.check() == []


def _run_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


class Kitchen:
    """Offers requests to stations as the dispatcher would, and reads what clients would."""

    def __init__(self, stations: dict[str, Station], model: LanguageModel, text: ModelText, redis_url: str) -> None:
        self.stations = stations
        self.model, self.text = model, text
        self._redis = redis.Redis.from_url(redis_url)
        fence = lease_take(name="dispatcher", holder="test", seconds=600)
        assert fence is not None
        self._fence = fence

    def give(self, request: InferenceRequest, slot: str, *, path: str = "split", start: bool = True) -> Claim:
        station = self.stations[slot]
        request.refresh_from_db()
        state, epoch = State(request.state), request.epoch
        assert request_offer(
            request_id=request.id,
            state=state,
            epoch=epoch,
            fence=self._fence,
            slot=slot,
            path=path,
            path_reason=path,
            decode_worker="decode-0",
        )
        claim = request_claim(request_id=request.id, state=state, epoch=epoch, slot=slot, worker_epoch=station.epoch)
        assert claim is not None
        if start:
            station.loop.start_job(claim)
        return claim

    def wait(self, request: InferenceRequest, *states: State) -> InferenceRequest:
        self.until(lambda: _fresh(request).state in (*states, *FINAL))
        assert request.state in states, f"{request.state}: {request.error_code}"
        return request

    def until(self, good: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not good():
            assert time.monotonic() < deadline, "this did not come about"
            time.sleep(0.01)

    def wait_idle(self) -> None:
        """Every block free or cached, as each loop last saw it."""
        for station in self.stations.values():
            self.until(lambda station=station: station.loop.pool.held == station.loop.pool.quarantined == 0)  # type: ignore[misc]

    def ids(self, request: InferenceRequest) -> list[int]:
        """Of the first choice."""
        return list(next(iter(self.heard(request).ids), ()))

    def heard(self, request: InferenceRequest) -> Transcript:
        sieve = EntryFilter()
        raw: Any = self._redis.xrange(stream_key(str(request.id)))
        for _, fields in raw:
            sieve.clean(stream_entry_from_json(json.loads(fields[b"e"])))
        return sieve.transcript

    def expected_choices(self, prompt: tuple[int, ...], params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        eos_ids = self.text.eos_ids
        return tuple(tuple(reference(self.model, prompt, params, eos_ids=eos_ids, choice=index)) for index in range(params.n))

    def expected(self, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        return reference(self.model, prompt, params, eos_ids=self.text.eos_ids)


def _fresh(request: InferenceRequest) -> InferenceRequest:
    request.refresh_from_db()
    return request


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, ModelText]:
    folder = ensure_oracle("tiny", tmp_path_factory.mktemp("models"))
    return load_model(folder), open_text(folder)


@pytest.fixture
def kitchen(transactional_db: None, oracle: tuple[LanguageModel, ModelText], tmp_path: Path, redis_url: str) -> Iterator[Kitchen]:
    stations = {slot: Station(slot, tmp_path, *oracle, redis_url) for slot in ("prefill-0", "decode-0")}
    for station in stations.values():
        station.start()
    yield Kitchen(stations, *oracle, redis_url)
    for station in stations.values():
        station.stop()
