"""A cancel stops what is open, once, for its own tenant only; Valkey makes it quicker and is never needed."""

from __future__ import annotations

import time
import uuid

import pytest

from inference.database import query
from inference.requests.models import InferenceRequest, RequestEvent, State
from inference.streams import Signals, StreamWriter
from inference.submit import CLIENT_ASKED, CLIENT_GONE, cancel, cancel_write, tell
from tests.inference.conftest import TENANT, ClaimRequest, MakeRequest, register
from tests.inference.requests.test_transitions import publish

pytestmark = pytest.mark.django_db

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def signals(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Signals:
    writer, signals = StreamWriter(redis_url), Signals(redis_url)
    monkeypatch.setattr(StreamWriter, "shared", staticmethod(lambda: writer))
    monkeypatch.setattr(Signals, "shared", staticmethod(lambda: signals))
    for slot in ("prefill-0", "decode-0"):
        list(signals.receive(slot, 0.01))
    return signals


def state_of(request: InferenceRequest) -> str:
    request.refresh_from_db()
    return request.state


def test_a_waiting_request_ends_at_once_and_a_second_cancel_changes_nothing(make_request: MakeRequest) -> None:
    request = make_request()
    assert cancel(tenant_id=TENANT, request_id=request.id, reason=CLIENT_ASKED)
    assert state_of(request) == State.CANCELLED
    ended_at = request.finished_at
    assert not cancel(tenant_id=TENANT, request_id=request.id, reason=CLIENT_GONE)
    assert (state_of(request), request.finished_at) == (State.CANCELLED, ended_at)
    assert RequestEvent.objects.filter(request_id=request.id).latest("id").detail == CLIENT_ASKED


def test_an_owner_is_told_and_the_first_reason_stays(
    make_request: MakeRequest, claim_request: ClaimRequest, signals: Signals
) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    claim_request(request, "prefill-0")
    assert cancel(tenant_id=TENANT, request_id=request.id, reason=CLIENT_GONE)
    assert cancel(tenant_id=TENANT, request_id=request.id, reason=CLIENT_ASKED)
    assert list(signals.receive("prefill-0")) == [("cancel", str(request.id))] * 2
    assert (state_of(request), request.cancel_reason) == (State.PREFILLING, CLIENT_GONE)


def test_who_holds_the_pages_of_a_ready_request_is_told_to_let_go(
    make_request: MakeRequest, claim_request: ClaimRequest, signals: Signals
) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    publish(claim_request(request, "prefill-0"))
    assert cancel(tenant_id=TENANT, request_id=request.id, reason=CLIENT_GONE)
    assert list(signals.receive("prefill-0")) == [("release", str(request.id))]
    assert state_of(request) == State.CANCELLED


def test_unknown_and_foreign_requests_stay_as_they_are(make_request: MakeRequest) -> None:
    request = make_request()
    assert not cancel(tenant_id=TENANT, request_id=uuid.uuid4(), reason=CLIENT_ASKED)
    assert not cancel(tenant_id=uuid.uuid4(), request_id=request.id, reason=CLIENT_ASKED)
    assert (state_of(request), request.cancel_requested_at) == (State.QUEUED, None)


def test_without_valkey_rows_say_it_all_and_a_storm_waits_for_it_once(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []
    writer = StreamWriter(NOWHERE)
    write = writer.write
    monkeypatch.setattr(writer, "write", lambda entries: tried.append(time.monotonic()) or write(entries))  # type: ignore[func-returns-value]
    monkeypatch.setattr(StreamWriter, "shared", staticmethod(lambda: writer))
    requests = [make_request() for _ in range(3)]
    news = [cancel_write(tenant_id=TENANT, request_id=request.id, reason=CLIENT_GONE) for request in requests]
    tell(send for part in news for send in part or [])
    assert len(tried) == 1
    assert {state_of(request) for request in requests} == {State.CANCELLED}
    assert query("SELECT count(*) FROM inference_usage_pending") == [(3,)]
