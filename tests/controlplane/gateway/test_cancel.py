"""POST /v1/requests/{id}/cancel: for the own tenant, any number of times, and of no effect on what has ended."""

from __future__ import annotations

import threading
import uuid

import httpx2 as httpx

from inference.requests.models import State
from tests.controlplane.conftest import ScriptedWorker, Stage, Tenant, chat, open_requests, request_rows, wait_for


def cancel(gateway: str, tenant: Tenant, public_id: str) -> httpx.Response:
    return httpx.post(f"{gateway}/v1/requests/{public_id}/cancel", headers={"Authorization": f"Bearer {tenant.secret}"})


def waiting_request(gateway: str, tenant: Tenant) -> tuple[threading.Thread, list[httpx.Response], str]:
    """A call that no worker serves, in a thread of its own."""
    answers: list[httpx.Response] = []
    body = {"model": "tiny", "messages": chat()}
    headers = {"Authorization": f"Bearer {tenant.secret}"}
    call = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{gateway}/v1/chat/completions", json=body, headers=headers, timeout=20))
    )
    call.start()
    wait_for(lambda: request_rows() and request_rows()[-1].state == State.QUEUED)
    return call, answers, f"chatcmpl-{request_rows()[-1].id.hex}"


def test_a_caller_who_waits_is_told_that_his_request_was_cancelled(gateway: str, stage: Stage) -> None:
    call, answers, public_id = waiting_request(gateway, stage.acme)
    told = cancel(gateway, stage.acme, public_id)
    assert (told.status_code, told.json()["state"], told.json()["id"]) == (200, "cancelled", public_id)
    assert told.json()["events"][-1]["detail"] == "client_asked"
    call.join()
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (499, "request_cancelled")
    again = cancel(gateway, stage.acme, public_id)
    assert (again.status_code, again.json()) == (200, told.json())
    wait_for(lambda: open_requests() == 0)


def test_what_another_tenant_runs_and_what_nobody_knows_is_404(gateway: str, stage: Stage) -> None:
    call, answers, public_id = waiting_request(gateway, stage.acme)
    foreign = cancel(gateway, stage.rival, public_id)
    unknown = cancel(gateway, stage.acme, f"chatcmpl-{uuid.uuid4().hex}")
    assert (foreign.status_code, foreign.json()) == (404, unknown.json())
    assert cancel(gateway, stage.acme, "chatcmpl-nonsense").status_code == 404
    assert (request_rows()[-1].state, request_rows()[-1].cancel_requested_at) == (State.QUEUED, None)
    assert not answers
    cancel(gateway, stage.acme, public_id)
    call.join()


def test_a_cancel_after_the_end_changes_nothing(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    headers = {"Authorization": f"Bearer {stage.acme.secret}"}
    made = httpx.post(f"{gateway}/v1/chat/completions", json={"model": "tiny", "messages": chat()}, headers=headers).json()
    before = httpx.get(f"{gateway}/v1/requests/{made['id']}", headers=headers).json()
    told = cancel(gateway, stage.acme, made["id"])
    assert (told.status_code, told.json()) == (200, before)
    assert before["state"] == "done"


def test_it_is_a_post_without_a_body_and_the_connection_serves_the_next(gateway: str, stage: Stage) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {stage.acme.secret}"}) as client:
        path = f"{gateway}/v1/requests/chatcmpl-{uuid.uuid4().hex}/cancel"
        assert client.get(path).status_code == 405
        answer = client.post(path)
        assert (answer.status_code, answer.headers.get("connection")) == (404, None)
