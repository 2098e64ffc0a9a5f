"""Every hostile request of the corpus, on a running gateway: refused in the form of the API, and for nothing."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from redis import Redis

from billing.holds.models import HoldAccount
from controlplane.gateway import limits
from controlplane.gateway.openapi import document
from inference.requests.models import RequestBody, State
from inference.text import ChatMessage, open_text
from inference.usage.models import UsagePending
from infra.chaos import corpus
from infra.chaos.corpus import Case, armed
from infra.chaos.wire import Reply, fault, send
from tests.controlplane.conftest import ScriptedWorker, Stage, open_requests, request_rows, wait_for

PATIENCE_S = 60.0
AT_ONCE = 8
CASES = corpus.corpus()


def speak(gateway: str, stage: Stage, cases: list[Case]) -> list[Reply]:
    port = urlsplit(gateway).port or 0

    async def one(case: Case, gate: asyncio.Semaphore) -> Reply:
        async with gate:
            return await send(port, armed(case, stage.acme.secret), patience_s=PATIENCE_S)

    async def all_of_them() -> list[Reply]:
        gate = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(one(case, gate) for case in cases))

    return asyncio.run(all_of_them())


def faults(stage: Stage, cases: list[Case], replies: list[Reply]) -> dict[str, str]:
    found = {case.name: fault(reply, case.statuses, secret=stage.acme.secret) for case, reply in zip(cases, replies, strict=True)}
    return {name: text for name, text in found.items() if text}


def documented() -> set[tuple[int, str]]:
    answers = [
        answer for path in document()["paths"].values() for method in path.values() for answer in method["responses"].items()
    ]
    return {(int(status), code) for status, answer in answers for code in re.findall("`([a-z_]+)`", answer["description"])}


@pytest.mark.parametrize("kind", sorted({case.kind for case in CASES if case.free}))
def test_what_is_hostile_is_refused_and_costs_nothing(gateway: str, stage: Stage, redis_url: str, kind: str) -> None:
    cases = [case for case in CASES if case.free and case.kind == kind]
    replies = speak(gateway, stage, cases)
    assert faults(stage, cases, replies) == {}
    codes = {(reply.status, str(reply.error()["code"])) for reply in replies}
    assert codes - documented() - {(405, "method_not_allowed")} == set()
    assert request_rows() == []
    assert not UsagePending.objects.exists()
    assert HoldAccount.objects.get(tenant_id=stage.acme.organisation.id).held_nano_usd == 0
    assert open_requests() == 0
    with Redis.from_url(redis_url) as client:
        assert client.keys(f"rate:{{{stage.acme.key.id}}}:*") == []


def test_harmless_extremes_are_served(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    cases = [case for case in CASES if not case.free]
    assert len(cases) > 40
    assert faults(stage, cases, speak(gateway, stage, cases)) == {}
    assert {row.state for row in request_rows()} == {State.DONE}
    wait_for(lambda: open_requests() == 0)


def test_control_tokens_in_a_text_are_text(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    text = open_text(settings.DATA.models / "tiny")
    controls = set(text.special.ids.values())
    assert controls
    smuggled = "".join(text.special.ids)
    body = corpus.chat(messages=[{"role": "user", "content": f"a{smuggled}b"}])
    assert speak(gateway, stage, [Case("", "", body, (200,))])[0].status == 200
    prompt = RequestBody.objects.get().prompt_ids
    plain = text.render_chat([ChatMessage("user", "ab")])
    assert [token for token in prompt if token in controls] == [token for token in plain if token in controls]
    assert smuggled in text.decode(prompt)


# What does not come


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer $KEY\r\n"
STALLS = {
    "nothing": b"",
    "half a line": b"POST /v1/chat",
    "half a head": HEAD,
    "no byte of a body": HEAD + b"Content-Length: 10\r\n\r\n",
    "half a body": HEAD + b'Content-Length: 10\r\n\r\n{"a"',
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
    "no last chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "no trailer's end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: y",
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_READ_S", 0.3)
    monkeypatch.setattr(limits, "BODY_READ_S", 0.3)


@pytest.mark.usefixtures("impatient")
def test_what_stalls_is_told_so_and_cut(gateway: str, stage: Stage) -> None:
    cases = [Case("stalls", name, wire, (408,)) for name, wire in STALLS.items()]
    assert faults(stage, cases, speak(gateway, stage, cases)) == {}
    assert request_rows() == []
    assert open_requests() == 0


@pytest.mark.usefixtures("impatient")
def test_a_body_that_trickles_behind_its_answer_does_not_keep_the_connection(gateway: str) -> None:
    async def trickle() -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(gateway).port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        began = time.monotonic()
        closed = asyncio.create_task(reader.read())
        while not closed.done() and time.monotonic() - began < PATIENCE_S:
            writer.write(b"x")
            await asyncio.sleep(0.05)
        writer.transport.abort()
        assert b"200 OK" in closed.result()
        return time.monotonic() - began

    assert asyncio.run(trickle()) < PATIENCE_S


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("behind", [b"GET /v1/mod", b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/mod"])
def test_half_a_request_behind_a_running_one_does_not_disturb_it(
    gateway: str, stage: Stage, worker: ScriptedWorker, behind: bytes
) -> None:
    def slow(job: Any) -> None:
        job.say("Hel")
        time.sleep(1.0)
        job.say("lo").done()

    worker.script = slow
    wire = corpus.chat(stream=True).replace(b"Connection: close\r\n", b"") + behind
    [reply] = speak(gateway, stage, [Case("", "", wire, (200,))])
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")


def test_what_is_no_http_behind_a_running_stream_is_never_mixed_into_it(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("Hel").wait_cancel()

    async def interrupt() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(gateway).port)
        wire = corpus.chat(stream=True).replace(b"Connection: close\r\n", b"").replace(b"$KEY", stage.acme.secret.encode())
        writer.write(wire)
        got = await reader.readuntil(b'"Hel"')
        writer.write(b"\x00\x01\x02\r\n\r\n")
        got += await reader.read()
        writer.transport.abort()
        return got

    assert asyncio.run(interrupt()).count(b"HTTP/1.1") == 1
    wait_for(lambda: [row.state for row in request_rows()] == [State.CANCELLED])
    wait_for(lambda: open_requests() == 0)


def test_a_prompt_that_cannot_fit_is_not_tokenised(gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.text.ModelText.render_chat", lambda *_: pytest.fail("it was tokenised"))
    case = Case("", "", corpus.chat(messages=[{"role": "user", "content": "1" * 1_000_000}]), (400,))
    [reply] = speak(gateway, stage, [case])
    assert (reply.status, reply.error()["code"]) == (400, "context_length_exceeded")
