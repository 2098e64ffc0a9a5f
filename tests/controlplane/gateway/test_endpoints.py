"""What is the same at every address: who may ask, what is there, what an error looks like, how large a request may be."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

import httpx2 as httpx
import pytest
from django.utils import timezone

from billing.metering.services import ingest_usage
from controlplane.catalog.models import ServedModel
from controlplane.gateway import limits
from inference.coordination.models import Heartbeat, Worker
from inference.requests.models import State
from inference.streams import StreamReader
from tests.controlplane.conftest import Job, ScriptedWorker, Stage, Tenant, chat, open_requests, request_rows, wait_for


def auth(tenant: Tenant) -> dict[str, str]:
    return {"Authorization": f"Bearer {tenant.secret}"}


def test_models_are_listed_and_one_can_be_asked_for(gateway: str, stage: Stage) -> None:
    listed = httpx.get(f"{gateway}/v1/models", headers=auth(stage.acme)).json()
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    one = httpx.get(f"{gateway}/v1/models/tiny", headers=auth(stage.acme)).json()
    assert one == listed["data"][0]
    assert one["context_length"] == 2048


def test_a_model_that_was_not_for_sale_a_while_ago_is_not_refused_for_it(gateway: str, stage: Stage) -> None:
    """Copies of the catalogue may be old. They serve what they have; what they lack is looked for in a new one."""

    def ask(path: str) -> httpx.Response:
        return httpx.get(f"{gateway}/v1/models{path}", headers=auth(stage.acme))

    assert ask("/late").status_code == 404
    time.sleep(limits.CATALOGUE_CACHE_S + 0.1)
    ServedModel.objects.create(name="late", context_length=100)
    assert ask("/late").json()["id"] == "late"
    time.sleep(limits.CATALOGUE_CACHE_S + 0.1)
    ServedModel.objects.filter(name="late").delete()
    assert [model["id"] for model in ask("").json()["data"]] == ["tiny"]


def test_an_unknown_model_is_404(gateway: str, stage: Stage) -> None:
    for name in ("nope", "..%2f..%2fetc/passwd", "%00", "%ff", "a/b", "x" * 3_000):
        answer = httpx.get(f"{gateway}/v1/models/{name}", headers=auth(stage.acme))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), name
    for name in ("nope", "../../etc/passwd", "tiny/", " "):
        body = {"model": name, "messages": chat()}
        answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, headers=auth(stage.acme))
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), name


def test_an_unknown_model_is_named_short_and_printable_with_where_to_find_the_others(gateway: str, stage: Stage) -> None:
    def ask(name: str) -> httpx.Response:
        return httpx.post(f"{gateway}/v1/chat/completions", json={"model": name, "messages": chat()}, headers=auth(stage.acme))

    def look(name: str) -> httpx.Response:
        return httpx.get(f"{gateway}/v1/models/{name}", headers=auth(stage.acme))

    answers = {
        "gpt-9": ask("gpt-9"),
        "x" * 64: ask("x" * 90),
        "\\u202e": ask("\u202e"),
        "\\x1b[2J": look("%1b[2J"),
    }
    for named, answer in answers.items():
        said = f"There is no model '{named}'. GET /v1/models lists what there is."
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, said)


def test_a_mistyped_key_is_told_apart_from_a_wrong_one_and_not_repeated(gateway: str, stage: Stage) -> None:
    secret = stage.acme.secret
    for presented in (secret[:-1], secret[:-8] + ("a" if secret[-8] != "a" else "b") + secret[-7:]):
        answer = httpx.get(f"{gateway}/v1/models", headers={"Authorization": f"Bearer {presented}"})
        said = "The API key is malformed: mistyped or cut off? Keys look like bk-****."
        assert (answer.status_code, answer.json()["error"]["message"]) == (401, said)


WRONG = [
    ("GET", "/v1/", 404, "not_found"),
    ("GET", "/v1", 404, "not_found"),
    ("GET", "/v1/nope", 404, "not_found"),
    ("POST", "/v1/nope", 404, "not_found"),
    ("POST", "/v1/models", 405, "method_not_allowed"),
    ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ("DELETE", "/v1/models/tiny", 405, "method_not_allowed"),
]


def test_wrong_addresses_and_methods_have_the_same_body(gateway: str, stage: Stage) -> None:
    for method, path, status, code in WRONG:
        answer = httpx.request(method, f"{gateway}{path}", headers=auth(stage.acme))
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), path
        assert answer.headers["content-length"] == str(len(answer.content))


def test_no_address_of_the_api_sets_a_cookie(gateway: str, stage: Stage) -> None:
    for path in ("/v1/models", "/healthz", "/readyz"):
        assert "set-cookie" not in httpx.get(f"{gateway}{path}", headers=auth(stage.acme)).headers


def test_a_receipt_is_for_its_tenant_alone(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    body = {"model": "tiny", "messages": chat(), "metadata": {"run": "7"}}
    made = httpx.post(f"{gateway}/v1/chat/completions", json=body, headers=auth(stage.acme)).json()
    address = f"{gateway}/v1/requests/{made['id']}"
    foreign = httpx.get(address, headers=auth(stage.rival))
    unknown = httpx.get(f"{gateway}/v1/requests/chatcmpl-{uuid.uuid4().hex}", headers=auth(stage.acme))
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json() == unknown.json()
    receipt = httpx.get(address, headers=auth(stage.acme)).json()
    assert (receipt["id"], receipt["state"], receipt["labels"]) == (made["id"], "done", {"metadata.run": "7"})
    assert receipt["tokens"]["prompt"] == receipt["tokens"]["computed"] + sum(receipt["tokens"]["cached"].values())
    assert receipt["tokens"]["completion"] == made["usage"]["completion_tokens"] == 2
    assert [event["state"] for event in receipt["events"]] == ["queued", "done"]
    assert (receipt["billing_state"], receipt["lines"]) == ("not_rated_yet", None)


def test_a_rated_receipt_sums_up_to_its_total(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    made = httpx.post(f"{gateway}/v1/chat/completions", json={"model": "tiny", "messages": chat()}, headers=auth(stage.acme)).json()
    ingest_usage(limit=10)
    receipt = httpx.get(f"{gateway}/v1/requests/{made['id']}", headers=auth(stage.acme)).json()
    assert receipt["billing_state"] == "rated"
    assert {line["meter"] for line in receipt["lines"]} >= {"prefill_computed", "decode"}
    assert int(receipt["total_nano_usd"]) == sum(int(line["amount_nano_usd"]) for line in receipt["lines"]) > 0


def test_an_id_that_is_none_is_404(gateway: str, stage: Stage) -> None:
    for public_id in ("x", "chatcmpl-", "chatcmpl-" + "g" * 32, "%00", "chatcmpl-" + "A" * 32, str(uuid.uuid4())):
        assert httpx.get(f"{gateway}/v1/requests/{public_id}", headers=auth(stage.acme)).status_code == 404, public_id


def test_healthz_asks_nobody_and_readyz_names_its_parts(gateway: str, stage: Stage) -> None:
    assert httpx.get(f"{gateway}/healthz").json() == {"status": "ok"}
    wait_for(lambda: httpx.get(f"{gateway}/readyz").status_code == 200)
    ready = httpx.get(f"{gateway}/readyz")
    assert set(ready.json()["parts"]) == {"dispatcher", "reaper", "ingest", "prefill", "decode", "streams"}


def test_readyz_is_503_when_valkey_does_not_answer(gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(lambda: httpx.get(f"{gateway}/readyz").status_code == 200)
    monkeypatch.setattr(StreamReader, "silent_s", 60.0)
    ready = httpx.get(f"{gateway}/readyz")
    assert ready.status_code == 503
    assert [name for name, state in ready.json()["parts"].items() if not state["ready"]] == ["streams"]


def test_readyz_is_503_when_a_part_makes_no_progress(gateway: str, stage: Stage) -> None:
    wait_for(lambda: httpx.get(f"{gateway}/readyz").status_code == 200)
    past = timezone.now() - timedelta(minutes=1)
    missing = []
    for part in ("dispatcher", "reaper", "ingest", "prefill", "decode"):
        missing.append(part)
        Heartbeat.objects.filter(name=part).update(at=past)
        Worker.objects.filter(roles=[part]).update(lease_until=past)
        time.sleep(limits.FLEET_CACHE_S)
        ready = httpx.get(f"{gateway}/readyz")
        assert ready.status_code == 503
        assert [name for name, state in ready.json()["parts"].items() if not state["ready"]] == missing


def test_readyz_is_503_when_an_engine_loop_hangs_though_its_lease_lives(gateway: str, stage: Stage) -> None:
    wait_for(lambda: httpx.get(f"{gateway}/readyz").status_code == 200)
    Worker.objects.filter(roles=["decode"]).update(progress_at=timezone.now() - timedelta(seconds=limits.HEARTBEAT_S + 1))
    wait_for(lambda: httpx.get(f"{gateway}/readyz").status_code == 503)
    parts = httpx.get(f"{gateway}/readyz").json()["parts"]
    assert {name for name, part in parts.items() if not part["ready"]} == {"decode"}
    assert httpx.get(f"{gateway}/healthz").status_code == 200


def test_one_worker_may_hold_both_roles(gateway: str, stage: Stage) -> None:
    Worker.objects.filter(slot="w0").delete()
    Worker.objects.filter(slot="w1").update(roles=["prefill", "decode"])
    wait_for(lambda: httpx.get(f"{gateway}/readyz").status_code == 200)


HOSTILE = [
    (b"{", 400),
    (b"\xff", 400),
    (b"[" * 50_000, 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}', 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"temperature":1e999}', 400),
    (b'{"model":"\\u0000","messages":[{"role":"user","content":"Hi"}]}', 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"metadata":{"a":"\\u0000"}}', 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"service_tier":"gold"}', 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"' + b"x" * (5 << 20) + b'"}]}', 413),
]


def test_hostile_bodies_are_refused_and_leave_nothing_behind(gateway: str, stage: Stage) -> None:
    for body, status in HOSTILE:
        answer = httpx.post(f"{gateway}/v1/chat/completions", content=body, headers=auth(stage.acme))
        assert (answer.status_code, set(answer.json()["error"])) == (status, {"message", "type", "param", "code"}), body[:80]
    assert request_rows() == []
    assert open_requests() == 0


def test_a_body_without_a_length_is_cut_at_the_limit(gateway: str, stage: Stage) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b" " * 65_536

    answer = httpx.post(f"{gateway}/v1/chat/completions", content=endless(), headers=auth(stage.acme))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_a_body_that_does_not_come_is_not_waited_for(gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_READ_S", 0.2)
    with _socket(gateway) as client:
        client.sendall(_head(stage, length=100) + b'{"model":')
        assert client.recv(4096).startswith(b"HTTP/1.1 408")


def test_the_body_of_a_stranger_is_not_read(gateway: str) -> None:
    with _socket(gateway) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 401")


def test_a_reader_who_takes_nothing_is_cut_and_its_request_cancelled(
    gateway: str, stage: Stage, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEND_S", 0.3)

    def flood(job: Job) -> None:
        for _ in range(60):
            job.say("x" * 100_000)
        job.wait_cancel()

    worker.script = flood
    body = json.dumps({"model": "tiny", "messages": chat(), "stream": True}).encode()
    with _socket(gateway, receive_bytes=4_096) as client:
        client.sendall(_head(stage, length=len(body)) + body)
        wait_for(lambda: request_rows() and request_rows()[0].state == State.CANCELLED)
    wait_for(lambda: open_requests() == 0)


def test_a_full_process_refuses_and_says_when_to_come_back(gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OPEN_REQUESTS", 0)
    answer = httpx.post(f"{gateway}/v1/chat/completions", json={"model": "tiny", "messages": chat()}, headers=auth(stage.acme))
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) == (503, "overloaded", "1")


def test_an_unexpected_error_tells_nothing(gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(body: bytes) -> object:
        raise RuntimeError("secret detail /etc/shadow")

    monkeypatch.setattr("controlplane.gateway.views.chat_request", broken)
    answer = httpx.post(f"{gateway}/v1/chat/completions", json={}, headers=auth(stage.acme))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text


def _socket(gateway: str, receive_bytes: int | None = None) -> socket.socket:
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(10)
    host, _, port = gateway.removeprefix("http://").partition(":")
    client.connect((host, int(port)))
    return client


def _head(stage: Stage, *, length: int) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {stage.acme.secret}",
        f"Content-Length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()
