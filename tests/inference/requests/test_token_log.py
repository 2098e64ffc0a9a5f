"""The token log: whole at every epoch, closed to those who own a request no more, and gone soon after the end."""

from __future__ import annotations

import threading
import uuid

import pytest
from django.db import connection, transaction

from inference.contracts import RequestOutcome
from inference.database import execute, tenant_scope
from inference.requests.claims import Claim
from inference.requests.models import State, TokenLog
from inference.requests.sweeper import bodies_sweep
from inference.requests.token_log import TokenRun, token_log_append, token_log_read
from inference.requests.transitions import request_finish, request_requeue
from tests.conftest import AsRole
from tests.inference.conftest import TENANT, ClaimRequest, MakeRequest

pytestmark = pytest.mark.django_db


def run(claim: Claim, position: int, *ids: int, choice: int = 0) -> TokenRun:
    return TokenRun(claim.request.request_id, claim.owner.epoch, choice, position, ids)


def append(claim: Claim, *runs: TokenRun) -> list[TokenRun]:
    return token_log_append(slot=claim.owner.slot, worker_epoch=claim.owner.worker_epoch, runs=runs)


def read(claim: Claim) -> tuple[tuple[int, ...], ...]:
    return token_log_read(tenant_id=claim.tenant_id, request_id=uuid.UUID(claim.request.request_id)).ids


def requeue(claim: Claim) -> None:
    owner = claim.owner
    request_id = uuid.UUID(claim.request.request_id)
    assert request_requeue(request_id=request_id, owner=owner.slot, owner_epoch=owner.worker_epoch, detail="died")


def test_runs_of_one_epoch_are_one_answer_by_choice(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    claim = claim_request(make_request(), "p")
    other = claim_request(make_request(), "p")
    assert read(claim) == ()
    runs = [run(claim, 1, 7, 8), run(other, 1, 5), run(claim, 1, 70, choice=1)]
    assert append(claim, *runs) == runs
    append(claim, run(claim, 3, 9), run(claim, 2, 71, choice=1))
    assert read(claim) == ((7, 8, 9), (70, 71))
    assert read(other) == ((5,),)


def test_a_run_that_comes_twice_counts_once_and_the_longer_one_counts(
    make_request: MakeRequest, claim_request: ClaimRequest
) -> None:
    claim = claim_request(make_request(), "p")
    for ids in ((7, 8), (7, 8, 9), (7,)):
        append(claim, run(claim, 1, *ids))
    assert read(claim) == ((7, 8, 9),)


def test_who_owns_a_request_no_more_writes_nothing(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    former = claim_request(request, "p")
    append(former, run(former, 1, 7, 8))
    requeue(former)
    assert append(former, run(former, 3, 9)) == []
    present = claim_request(request, "q")
    assert append(former, run(former, 3, 9)) == []
    assert append(former, TokenRun(former.request.request_id, present.owner.epoch, 0, 3, (9,))) == []
    assert read(present) == ((7, 8),)
    append(present, run(present, 1, 7, 8, 10))
    assert read(present) == ((7, 8, 10),)


def test_the_end_writes_the_rest_in_its_own_transaction(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    claim = claim_request(make_request(), "p")
    append(claim, run(claim, 1, 7, 8))
    outcome = RequestOutcome(reasons=("length",), computed=20, completion=4)
    request_id = uuid.UUID(claim.request.request_id)
    assert request_finish(claim.owner, request_id=request_id, state=State.DONE, outcome=outcome, rest=[run(claim, 3, 9, 10)])
    assert read(claim) == ((7, 8, 9, 10),)
    assert append(claim, run(claim, 5, 11)) == []


def test_a_tenant_reads_its_own_log_and_nobody_elses(
    make_request: MakeRequest, claim_request: ClaimRequest, as_role: AsRole
) -> None:
    claim = claim_request(make_request(), "p")
    append(claim, run(claim, 1, 7))
    with as_role("app"):
        with tenant_scope(TENANT):
            assert read(claim) == ((7,),)
        with tenant_scope(uuid.uuid4()):
            assert read(claim) == ()
        assert TokenLog.objects.count() == 0


def test_the_log_goes_with_the_prompt(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    ended, running = claim_request(make_request(), "p"), claim_request(make_request(), "p")
    append(ended, run(ended, 1, 7), run(running, 1, 8))
    outcome = RequestOutcome(reasons=("length",), computed=20, completion=1)
    request_finish(ended.owner, request_id=uuid.UUID(ended.request.request_id), state=State.DONE, outcome=outcome)
    execute("UPDATE inference_request SET finished_at = finished_at - interval '1 hour' WHERE finished_at IS NOT NULL")
    bodies_sweep(keep_s=600)
    assert (read(ended), read(running)) == ((), ((8,),))


@pytest.mark.django_db(transaction=True)
def test_a_write_waits_for_nobody_and_what_it_leaves_out_comes_later(
    make_request: MakeRequest, claim_request: ClaimRequest
) -> None:
    """The thread that writes also renews the worker's lease."""
    held, free = claim_request(make_request(), "p"), claim_request(make_request(), "p")
    runs = [run(held, 1, 7), run(free, 1, 8)]
    written: list[list[TokenRun]] = []

    def write() -> None:
        written.append(append(held, *runs))
        connection.close()

    with transaction.atomic():
        execute("SELECT 1 FROM inference_request WHERE id = %s FOR UPDATE", [held.request.request_id])
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(10)
        assert written == [runs[1:]]
    assert append(held, *runs) == runs[:1]
    assert (read(held), read(free)) == (((7,),), ((8,),))


@pytest.mark.django_db(transaction=True)
def test_a_take_back_waits_for_a_write_that_has_begun_so_the_next_owner_reads_it(
    make_request: MakeRequest, claim_request: ClaimRequest
) -> None:
    claim = claim_request(make_request(), "p")
    taken = threading.Event()

    def take_back() -> None:
        requeue(claim)
        taken.set()
        connection.close()

    with transaction.atomic():
        append(claim, run(claim, 1, 7, 8))
        thread = threading.Thread(target=take_back)
        thread.start()
        assert not taken.wait(0.3)
    thread.join(10)
    assert taken.is_set()
    assert read(claim) == ((7, 8),)
