"""Every change of state is conditional: who believes in an old epoch changes nothing."""

from __future__ import annotations

import uuid

import pytest
from django.db import IntegrityError, transaction

from inference.contracts import Page, PrefillResult, RequestOutcome
from inference.kvdirectory.models import HandOff
from inference.requests.claims import Claim, request_claim, request_offer
from inference.requests.models import RequestEvent, State
from inference.requests.state_change import Owner
from inference.requests.token_log import TokenRun, token_log_append
from inference.requests.transitions import (
    EndedWaiting,
    request_cancel_flag,
    request_end_unowned,
    request_finish,
    request_ready,
    request_requeue,
)
from inference.usage.models import Meter, UsagePending, UsageRow
from tests.inference.conftest import LAYOUT, TENANT, ClaimRequest, MakeRequest, register

pytestmark = pytest.mark.django_db

RESULT = PrefillResult(outputs=((7,),), computed=4, cached=16, recomputed=0, kv_token_us=1000, prefill_ms=3.0, ttft_ms=9.0)
OUTCOME = RequestOutcome(reasons=("stop",), computed=4, cached=16, completion=5, kv_token_us=9000, recomputed=2)


def publish(claim: Claim) -> bool:
    return request_ready(
        claim.owner,
        request_id=_id(claim),
        tenant_id=claim.tenant_id,
        layout=LAYOUT,
        tokens=20,
        pages=(Page(3, 1, "ab"), Page(5, 2, "cd")),
        result=RESULT,
    )


def _id(claim: Claim) -> uuid.UUID:
    return uuid.UUID(claim.request.request_id)


def test_an_offer_needs_the_leaders_present_fence(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    offered = request_offer(
        request_id=request.id, state=State.QUEUED, epoch=0, fence=99, slot="p", path="split", path_reason="", decode_worker=None
    )
    assert not offered


def test_a_request_is_claimed_once_and_by_whom_it_was_offered_to(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    claim = claim_request(request, "prefill-0")
    assert claim.owner.epoch == 1
    assert claim.request.prompt_ids == tuple(range(1, 21))
    assert claim.request.phase == "prefill"
    for slot in ("prefill-0", "prefill-1"):
        assert request_claim(request_id=request.id, state=State.QUEUED, epoch=0, slot=slot, worker_epoch=1) is None


def test_prefill_hands_over_and_decode_reads_what_it_left(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    assert publish(claim_request(request, "prefill-0"))
    claim = claim_request(request, "decode-0")
    assert claim.request.phase == "decode"
    assert claim.request.forced == ((7,),)
    assert claim.handoff is not None
    assert claim.handoff.pages == (Page(3, 1, "ab"), Page(5, 2, "cd"))
    assert claim.handoff.arena == "prefill-0-1.kv"
    assert claim.handoff.layout == LAYOUT


def test_the_end_writes_state_usage_and_outbox_and_closes_all(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    publish(claim_request(request, "prefill-0"))
    claim = claim_request(request, "decode-0")
    assert request_finish(claim.owner, request_id=request.id, state=State.DONE, outcome=OUTCOME)
    quantities = {row.meter: (row.quantity, row.billable) for row in UsageRow.objects.filter(request_id=request.id)}
    assert quantities == {
        Meter.PREFILL_COMPUTED: (4, True),
        Meter.PREFILL_CACHED: (16, True),
        Meter.DECODE: (5, True),
        Meter.KV_TOKEN_SECONDS: (9000, True),
        Meter.RECOMPUTED: (2, False),
    }
    assert UsagePending.objects.filter(request_id=request.id).count() == 1
    assert HandOff.objects.get(request_id=request.id).released_at is not None
    states = list(RequestEvent.objects.filter(request_id=request.id).order_by("id").values_list("state", flat=True))
    assert states == ["queued", "prefilling", "ready", "decoding", "done"]


def test_a_failed_request_is_metered_but_not_billed(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    claim = claim_request(request, "prefill-0")
    assert request_finish(claim.owner, request_id=request.id, state=State.FAILED, outcome=OUTCOME)
    assert not UsageRow.objects.filter(request_id=request.id, billable=True).exists()
    assert UsageRow.objects.filter(request_id=request.id).exists()


def test_a_second_end_changes_nothing(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    claim = claim_request(request, "prefill-0")
    assert request_finish(claim.owner, request_id=request.id, state=State.DONE, outcome=OUTCOME)
    assert not request_finish(claim.owner, request_id=request.id, state=State.FAILED, outcome=OUTCOME)
    request.refresh_from_db()
    assert request.state == State.DONE


def test_a_zombie_can_neither_publish_nor_finish(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    zombie = claim_request(request, "prefill-0", worker_epoch=1)
    assert request_requeue(request_id=request.id, owner="prefill-0", owner_epoch=1, detail="lost") == 2
    successor = claim_request(request, "prefill-0", worker_epoch=2)
    assert successor.attempt == 2
    assert not publish(zombie)
    assert not request_finish(zombie.owner, request_id=request.id, state=State.DONE, outcome=OUTCOME)
    assert publish(successor)


def test_a_requeue_of_a_request_that_ended_does_nothing(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    claim = claim_request(request, "prefill-0")
    request_finish(claim.owner, request_id=request.id, state=State.DONE, outcome=OUTCOME)
    assert request_requeue(request_id=request.id, owner="prefill-0", owner_epoch=1, detail="lost") is None


def test_a_usage_row_that_is_refused_leaves_the_request_running(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    claim = claim_request(request, "prefill-0")
    with pytest.raises(IntegrityError), transaction.atomic():
        request_finish(claim.owner, request_id=request.id, state=State.DONE, outcome=RequestOutcome(computed=-1))
    request.refresh_from_db()
    assert request.state == State.PREFILLING


def test_a_cancelled_ready_request_is_billed_what_prefill_did(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    publish(claim_request(request, "prefill-0"))
    assert request_cancel_flag(tenant_id=TENANT, request_id=request.id, reason="client_gone") == ""
    ended = request_end_unowned(request_id=request.id, state=State.CANCELLED, code="request_cancelled", message="")
    assert ended == EndedWaiting(epoch=1, holder="prefill-0")
    billed = dict(UsageRow.objects.filter(request_id=request.id, billable=True).values_list("meter", "quantity"))
    assert (billed[Meter.PREFILL_COMPUTED], billed[Meter.PREFILL_CACHED], billed[Meter.DECODE]) == (4, 16, 1)
    assert request_cancel_flag(tenant_id=TENANT, request_id=request.id, reason="client_gone") is None
    request.refresh_from_db()
    assert request.completion_tokens == 1  # the receipt says what the bill says


def test_a_cancel_after_a_fault_is_billed_what_the_client_may_have_read(
    make_request: MakeRequest, claim_request: ClaimRequest
) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    claim = claim_request(request, "prefill-0", path="fused")
    run = TokenRun(str(request.id), claim.owner.epoch, 0, 1, (7, 8, 9))
    assert token_log_append(slot="prefill-0", worker_epoch=1, runs=[run])
    request_requeue(request_id=request.id, owner="prefill-0", owner_epoch=1, detail="lost prefill-0")
    assert request_end_unowned(request_id=request.id, state=State.CANCELLED, code="request_cancelled", message="")
    assert dict(UsageRow.objects.filter(request_id=request.id).values_list("meter", "quantity")) == {Meter.DECODE: 3}
    request.refresh_from_db()
    assert request.completion_tokens == 3


def test_a_flagged_request_is_not_claimed_any_more(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    assert request_cancel_flag(tenant_id=TENANT, request_id=request.id, reason="client_gone") == ""
    with pytest.raises(AssertionError):
        claim_request(request, "prefill-0")


def test_an_owner_of_another_process_epoch_is_another_owner(make_request: MakeRequest, claim_request: ClaimRequest) -> None:
    request = make_request()
    claim = claim_request(request, "prefill-0", worker_epoch=4)
    impostor = Owner("prefill-0", 3, claim.owner.epoch)
    assert not request_finish(impostor, request_id=request.id, state=State.DONE, outcome=OUTCOME)
