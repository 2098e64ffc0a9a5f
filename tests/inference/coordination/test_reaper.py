"""What the dead held goes to the living, once."""

from __future__ import annotations

import os
import uuid

import pytest

from inference.contracts import ClassPolicy
from inference.coordination.gateways import gateway_died, gateway_register, gateway_renew
from inference.coordination.heartbeat import beat
from inference.coordination.models import Gateway, Worker
from inference.coordination.reaper import MAX_ATTEMPTS, WATCH_GAP_S, reap
from inference.database import execute
from inference.kvdirectory.models import Extent
from inference.kvdirectory.services import ExtentChange, extents_write
from inference.requests.models import InferenceRequest, RequestEvent, State
from inference.streams import StreamWriter
from inference.submit import CLIENT_GONE, cancel
from tests.inference.conftest import TENANT, ClaimRequest, MakeRequest, register
from tests.inference.requests.test_transitions import publish
from tests.samples import Growth

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def streams_in_test_valkey(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StreamWriter(redis_url)
    monkeypatch.setattr(StreamWriter, "shared", staticmethod(lambda: writer))


def kill(slot: str) -> None:
    Worker.objects.filter(slot=slot).update(state="dead")


def state_of(request: InferenceRequest) -> str:
    request.refresh_from_db()
    return request.state


def test_requests_of_a_dead_worker_are_queued_again(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    claim_request(request, "prefill-0")
    assert reap()["requeued"] == 0
    kill("prefill-0")
    assert reap()["requeued"] == 1
    assert state_of(request) == State.QUEUED
    assert (request.attempt, request.epoch, request.owner) == (2, 2, None)
    assert reap()["requeued"] == 0


def test_lost_leases_and_requeues_are_counted(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    lost, requeued = Growth("brigade_leases_lost_total", holder="worker"), Growth("brigade_requeues_total", by="reaper")
    register("prefill-0", "prefill")
    claim_request(make_request(), "prefill-0")
    execute("UPDATE coordination_worker SET lease_until = clock_timestamp() - interval '1 second'")
    reap()
    reap()
    assert (lost.by, requeued.by) == (1, 1)


def test_a_ready_request_whose_pages_died_is_queued_again(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    publish(claim_request(request, "prefill-0"))
    kill("prefill-0")
    reap()
    assert state_of(request) == State.QUEUED


def test_requests_of_a_slots_former_process_are_taken_back_too(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    claim_request(request, "prefill-0", worker_epoch=1)
    kill("prefill-0")
    register("prefill-0", "prefill")
    assert reap()["requeued"] == 1


def test_a_request_that_kills_its_workers_fails_at_last(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    InferenceRequest.objects.filter(id=request.id).update(attempt=MAX_ATTEMPTS)
    claim_request(request, "prefill-0")
    kill("prefill-0")
    reap()
    assert state_of(request) == State.FAILED
    assert request.error_code == "server_error"


def test_waiting_requests_end_at_their_deadline(make_request: MakeRequest) -> None:
    request = make_request(policy=ClassPolicy(deadline_s=0.0))
    reap()
    assert state_of(request) == State.EXPIRED


def test_waiting_requests_with_a_cancel_flag_end(make_request: MakeRequest) -> None:
    request = make_request()
    execute("UPDATE inference_request SET cancel_requested_at = clock_timestamp() WHERE id = %s", [request.id])
    reap()
    assert state_of(request) == State.CANCELLED


def test_the_directory_forgets_dead_processes_and_keeps_live_ones() -> None:
    register("prefill-0", "prefill")
    register("prefill-1", "prefill")
    for slot in ("prefill-0", "prefill-1"):
        extents_write(worker=slot, worker_epoch=1, encoding="float32", changes=[ExtentChange(b"d" * 32, 64, 3)])
    kill("prefill-0")
    assert reap()["extents_forgotten"] == 1
    assert [extent.worker for extent in Extent.objects.all()] == ["prefill-1"]


def orphan(request: InferenceRequest, gateway_id: uuid.UUID | None) -> InferenceRequest:
    InferenceRequest.objects.filter(id=request.id).update(gateway_id=gateway_id)
    return request


def last_detail(request: InferenceRequest) -> str:
    return RequestEvent.objects.filter(request_id=request.id).latest("id").detail


def test_what_a_dead_gateway_left_waiting_is_cancelled_and_the_rest_is_not(make_request: MakeRequest) -> None:
    reap()
    dead, alive = gateway_register(lease_s=-1), gateway_register(lease_s=60)
    left, kept, nobodys = orphan(make_request(), dead), orphan(make_request(), alive), orphan(make_request(), None)
    done = reap()
    assert (done["gateways_gone"], done["cancelled"]) == (1, 1)
    assert [state_of(request) for request in (left, kept, nobodys)] == [State.CANCELLED, State.QUEUED, State.QUEUED]
    assert last_detail(left) == "gateway_gone"
    assert reap()["cancelled"] == 0


def test_what_a_dead_gateway_left_running_is_flagged_for_its_owner(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = orphan(make_request(), uuid.uuid4())  # a row that is gone is a gateway that is gone
    claim_request(request, "prefill-0")
    assert [reap()["cancelled"] for _ in range(2)] == [1, 0]
    assert state_of(request) == State.PREFILLING
    assert (request.cancel_requested_at is not None, request.cancel_reason) == (True, "gateway_gone")


def test_a_cancel_outlives_the_owner_that_did_not_hear_it(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    claim_request(request, "prefill-0")
    cancel(tenant_id=TENANT, request_id=request.id, reason=CLIENT_GONE)
    assert state_of(request) == State.PREFILLING
    kill("prefill-0")
    reap()
    assert (state_of(request), last_detail(request)) == (State.CANCELLED, CLIENT_GONE)


def test_a_gateway_that_comes_back_after_its_lease_is_a_new_one() -> None:
    reap()
    frozen = gateway_register(lease_s=-1)
    assert gateway_renew(gateway_id=frozen, lease_s=-1)  # nobody has noticed yet
    reap()
    assert not gateway_renew(gateway_id=frozen, lease_s=60)
    assert gateway_register(lease_s=60) != frozen


def test_no_gateway_is_gone_where_nobody_watched_its_lease_run_out(make_request: MakeRequest) -> None:
    request = orphan(make_request(), gateway_register(lease_s=-1))
    beat("reaper")
    execute("UPDATE coordination_heartbeat SET at = at - make_interval(secs => %s) WHERE name = 'reaper'", [WATCH_GAP_S + 1])
    done = reap()
    assert (done["gateways_gone"], done["cancelled"], state_of(request)) == (0, 0, State.QUEUED)


def test_a_supervisors_word_ends_a_lease_at_once(make_request: MakeRequest) -> None:
    request = orphan(make_request(), gateway_register(lease_s=60))
    assert not gateway_died(pid=os.getpid() + 1)
    assert gateway_died(pid=os.getpid())
    assert not Gateway.objects.exists()
    assert reap()["cancelled"] == 1
    assert state_of(request) == State.CANCELLED
