"""The gateway as it runs, over real PostgreSQL and Valkey, and a worker that plays a script. The cast: acme, and the rival."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Self

import pytest
import uvicorn
from django.conf import settings
from django.db import connection, connections
from django.db.backends.signals import connection_created
from django.utils import timezone
from openai import OpenAI

from billing.holds.services import hold_account_open
from controlplane.catalog.services import catalog_seed
from controlplane.gateway import runtime
from controlplane.gateway.application import Application
from controlplane.gateway.protocol import GatewayProtocol
from controlplane.keys.models import ApiKey
from controlplane.keys.services import api_key_create
from controlplane.tenants.models import Organisation, Project
from controlplane.tenants.services import organisation_create, project_create
from inference.contracts import ErrorEntry, FinishEntry, FinishReason, RequestOutcome, StreamEntry, TokenEntry, TokenLogprob
from inference.coordination.models import Heartbeat, Worker, WorkerState
from inference.database import execute, query
from inference.requests.models import InferenceRequest, RequestBody, RequestEvent, State
from inference.requests.state_change import Owner
from inference.requests.token_log import TokenRun, token_log_append
from inference.requests.transitions import request_finish
from inference.streams import StreamWriter
from inference.text import ModelText, TextStream, open_text
from inference.text.model_files import ensure_oracle
from inference.usage.models import UsagePending

MODEL = "tiny"
FUNDS_NANO_USD = 10_000_000_000


@dataclass(frozen=True)
class Tenant:
    organisation: Organisation
    project: Project
    key: ApiKey
    secret: str


@dataclass(frozen=True)
class Stage:
    """An installation with a model on sale, and two tenants who have money."""

    acme: Tenant
    rival: Tenant


def tenant_make(name: str) -> Tenant:
    organisation = organisation_create(name=name)
    project = project_create(tenant_id=organisation.id, name="first")
    hold_account_open(tenant_id=organisation.id, limit_nano_usd=FUNDS_NANO_USD)
    key, secret = api_key_create(tenant_id=organisation.id, project_id=project.id, name="test")
    return Tenant(organisation, project, key, secret)


def fleet_alive(*, roles: tuple[tuple[str, str], ...] = (("w0", "prefill"), ("w1", "decode"))) -> None:
    now = timezone.now()
    later = now + timedelta(minutes=10)  # no test is so slow that they look dead
    for name in ("dispatcher", "reaper", "ingest"):
        Heartbeat.objects.update_or_create(name=name, defaults={"at": later})
    for slot, role in roles:
        Worker.objects.create(
            slot=slot,
            state=WorkerState.READY,
            roles=[role],
            model=MODEL,
            layout={},
            host="here",
            pid=1,
            device="cpu",
            arena="none",
            started_at=now,
            lease_until=later,
            progress_at=later,
        )


@pytest.fixture
def stage(transactional_db: None, redis_url: str) -> Stage:
    """Committed: for tests over HTTP. `cast` is the same in a transaction that is rolled back."""
    return stage_make()


@pytest.fixture
def cast(db: None) -> Stage:
    return stage_make()


def stage_make() -> Stage:
    for leftover in (RequestBody, RequestEvent, InferenceRequest, UsagePending, Worker):
        leftover.objects.all().delete()
    ensure_oracle(MODEL, settings.DATA.models)
    catalog_seed(model=MODEL)
    fleet_alive()
    return Stage(acme=tenant_make("Acme"), rival=tenant_make("Rival"))


@pytest.fixture
def gateway(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a running gateway. Its database threads act as brigade_app, so row-level security is on."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    connection_created.connect(_become_app, dispatch_uid="become app")
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Application(), http=GatewayProtocol, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="gateway")
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        connection_created.disconnect(dispatch_uid="become app")


def _become_app(connection: Any, **_: Any) -> None:
    if threading.current_thread().name.startswith("database"):
        with connection.cursor() as cursor:
            cursor.execute("SET ROLE brigade_app")


@pytest.fixture
def client(gateway: str, stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway}/v1", api_key=stage.acme.secret, max_retries=0, timeout=20) as openai:
        yield openai


def wait_for(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.01)


@cache
def tiny_text() -> ModelText:
    return open_text(ensure_oracle(MODEL, settings.DATA.models))


@dataclass
class Job:
    """A request in the hands of the script."""

    id: uuid.UUID
    prompt_tokens: int
    choices: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[int, list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    owner: Owner = field(default_factory=lambda: Owner("w0", 1, 1))
    shown: TextStream = field(default_factory=lambda: TextStream(tiny_text()))

    @property
    def ids(self) -> list[int]:
        return self.choices[0]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.choices.values()))

    @property
    def sampling(self) -> dict[str, Any]:
        return dict(RequestBody.objects.get(request_id=self.id).sampling)

    @property
    def prompt(self) -> list[int]:
        return list(RequestBody.objects.get(request_id=self.id).prompt_ids)

    def write(self, *entries: StreamEntry) -> None:
        StreamWriter.shared().write([(str(self.id), entry) for entry in entries])

    def say(
        self,
        text: str,
        ids: tuple[int, ...] = (65,),
        *,
        choice: int = 0,
        finish: FinishReason | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> Self:
        """`finish` ends the choice with these tokens."""
        mine = self.choices[choice]
        self.write(TokenEntry(self.owner.epoch, choice, len(mine) + 1, ids, text, finish, logprobs))
        mine += ids
        self.figures[choice] += logprobs
        if finish:
            self.reasons[choice] = finish
        return self

    def speak(self, text: str) -> Self:
        """As `say`, with the tokens that the text really has."""
        for token_id in tiny_text().encode(text):
            self.say(self.shown.push(token_id), (token_id,))
        return self

    def lose(self, text: str) -> Self:
        """Generates it, and the stream does not get it."""
        ids = tiny_text().encode(text)
        for token_id in ids:
            self.shown.push(token_id)
        self.ids.extend(ids)
        return self

    def log(self) -> Self:
        """All so far goes into the token log."""
        run = self.run()
        assert token_log_append(slot=self.owner.slot, worker_epoch=self.owner.worker_epoch, runs=[run]) == [run]
        return self

    def run(self, choice: int = 0) -> TokenRun:
        return TokenRun(str(self.id), self.owner.epoch, choice, 1, tuple(self.choices[choice]), tuple(self.figures[choice]) or None)

    def outcome(self, **changes: Any) -> RequestOutcome:
        cached = changes.pop("cached", 0)
        values = {"computed": self.prompt_tokens - cached, "cached": cached, "completion": self.tokens, "kv_token_us": 1_000}
        return RequestOutcome(**{**values, **changes})

    def done(self, reason: FinishReason = "stop", cached: int = 0, *, announce: bool = True, logged: bool = True) -> None:
        """`reason` is of the choices that have none yet."""
        reasons = tuple(self.reasons.get(choice, reason) for choice in range(max(self.choices, default=0) + 1))
        outcome = self.outcome(reasons=reasons, cached=cached, timing_ms={"ttft": 1.5, "itl": {"p50": 1.0}})
        runs = [self.run(choice) for choice in self.choices] * logged
        assert request_finish(self.owner, request_id=self.id, state=State.DONE, outcome=outcome, rest=runs)
        if announce:
            self.write(FinishEntry(self.owner.epoch, reasons, self.prompt_tokens, cached, self.tokens))

    def fail(self, code: str, message: str, *, announce: bool = True) -> None:
        outcome = self.outcome(error_code=code, error_message=message)
        assert request_finish(self.owner, request_id=self.id, state=State.FAILED, outcome=outcome)
        if announce:
            self.write(ErrorEntry(self.owner.epoch, code, message))

    def cancel_wanted(self) -> bool:
        return bool(query("SELECT 1 FROM inference_request WHERE id = %s AND cancel_requested_at IS NOT NULL", [self.id]))

    def wait_cancel(self) -> None:
        wait_for(self.cancel_wanted)
        request_finish(self.owner, request_id=self.id, state=State.CANCELLED, outcome=self.outcome(error_code="request_cancelled"))


Script = Callable[[Job], object]


def greet(job: Job) -> None:
    """Two tokens to each choice, with what was asked for."""
    sampling = job.sampling
    known = TokenLogprob(-0.5, ((65, -0.5), (66, -1.5))[: sampling["logprobs"] or 0])
    prompt = (None, *[known] * (job.prompt_tokens - 1)) if sampling["prompt_logprobs"] is not None else ()
    for choice in range(sampling["n"]):
        first = (known._replace(prompt=prompt if choice == 0 else ()),)
        told = sampling["logprobs"] is not None or sampling["prompt_logprobs"] is not None
        job.say("Hello", choice=choice, logprobs=first * told)
        job.say(" world", choice=choice, finish="stop", logprobs=(known,) * told)
    job.done()


class ScriptedWorker:
    """Claims each queued request and plays the script."""

    def __init__(self) -> None:
        self.script: Script = greet
        self.failures: list[BaseException] = []
        self.played = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted worker")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.003):
                for request_id, prompt_tokens in query("SELECT id, prompt_tokens FROM inference_request WHERE state = 'queued'"):
                    self._play(Job(request_id, prompt_tokens))
        finally:
            connection.close()

    def _play(self, job: Job) -> None:
        claim = "UPDATE inference_request SET state = 'prefilling', epoch = 1, owner = 'w0', owner_epoch = 1 WHERE id = %s"
        if execute(f"{claim} AND state = 'queued'", [job.id]):
            try:
                self.script(job)
            except BaseException as error:
                self.failures.append(error)
            self.played += 1


@pytest.fixture
def worker(stage: Stage) -> Iterator[ScriptedWorker]:
    scripted = ScriptedWorker()
    scripted.start()
    yield scripted
    scripted.stop()
    assert scripted.failures == []


def chat(text: str = "Hi") -> list[Any]:
    return [{"role": "user", "content": text}]


def request_rows() -> list[InferenceRequest]:
    return list(InferenceRequest.objects.order_by("created_at"))


def open_requests() -> int:
    """Of the gateway's process, which is this one."""
    assert runtime._runtime is not None
    return runtime._runtime.open_requests
