"""A request on its way through two workers: the right tokens, the right usage, and no block left behind, whatever happens."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import redis
from django.db import transaction

from inference.contracts import ClassPolicy
from inference.kvdirectory.models import HandOff
from inference.kvdirectory.selectors import handoffs_to_free
from inference.requests.models import InferenceRequest, State
from inference.requests.token_log import token_log_read
from inference.requests.transitions import request_cancel_flag, request_end_unowned, request_requeue
from inference.streams import stream_key
from inference.usage.models import Meter, UsageRow
from inference.workers.tasks import with_forced
from tests.inference.conftest import TENANT, MakeRequest
from tests.inference.workers.conftest import Kitchen

pytestmark = pytest.mark.django_db(transaction=True)

SHORT = (72, 105, 33, 10, 65)
LONG = tuple(range(40, 100)) * 5


def usage(request: InferenceRequest) -> dict[str, int]:
    return dict(UsageRow.objects.filter(request_id=request.id).values_list("meter", "quantity"))


@pytest.mark.parametrize("length", [1, 5, 15, 16, 17, 32, 33, 300])
def test_a_prompt_of_any_length_can_be_split(kitchen: Kitchen, make_request: MakeRequest, length: int) -> None:
    request = make_request(prompt=LONG[:length], max_tokens=20)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    kitchen.give(request, "decode-0")
    kitchen.wait(request, State.DONE)
    assert kitchen.ids(request) == kitchen.expected(LONG[:length], 20)
    metered = usage(request)
    assert metered[Meter.PREFILL_COMPUTED] == length
    assert Meter.RECOMPUTED not in metered
    assert metered[Meter.DECODE] == request.completion_tokens == len(kitchen.ids(request))
    kitchen.stations["prefill-0"].loop.release(str(request.id))  # what the signal would do
    kitchen.wait_idle()


def test_fused_needs_one_worker(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=SHORT, max_tokens=20)
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.wait(request, State.DONE)
    assert kitchen.ids(request) == kitchen.expected(SHORT, 20)
    assert not HandOff.objects.exists()


@pytest.mark.parametrize("damage", ["bytes", "generation", "file"])
def test_pages_that_cannot_be_trusted_are_computed_again_at_our_cost(
    kitchen: Kitchen, make_request: MakeRequest, damage: str
) -> None:
    request = make_request(prompt=LONG, max_tokens=20)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    arena = kitchen.stations["prefill-0"].arena
    page = HandOff.objects.get(request_id=request.id).pages[3][0]
    if damage == "bytes":
        arena.pages[page][100:108] ^= np.uint8(0xFF)
    elif damage == "generation":
        arena.raise_generation(page)
    else:
        arena.remove()
    kitchen.give(request, "decode-0")
    kitchen.wait(request, State.DONE)
    assert kitchen.ids(request) == kitchen.expected(LONG, 20)
    assert request.timing["transfer_note"] in ("digest_differs", "generation_passed", "source_gone")
    metered = usage(request)
    assert metered[Meter.PREFILL_COMPUTED] == len(LONG)
    assert metered[Meter.RECOMPUTED] == len(LONG)
    assert not UsageRow.objects.get(request_id=request.id, meter=Meter.RECOMPUTED).billable


def test_the_source_goes_on_by_itself_when_it_is_offered_its_own_pages(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=LONG, max_tokens=20)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.wait(request, State.DONE)
    assert kitchen.ids(request) == kitchen.expected(LONG, 20)
    assert Meter.RECOMPUTED not in usage(request)
    kitchen.wait_idle()


def test_a_decode_worker_finds_shared_pages_in_its_own_cache_and_the_bill_does_not_call_them_cached(
    kitchen: Kitchen, make_request: MakeRequest
) -> None:
    for expected_cached in (0, (len(LONG) - 1) // 16 * 16):
        request = make_request(prompt=LONG, max_tokens=5)
        kitchen.give(request, "prefill-0")
        kitchen.wait(request, State.READY)
        kitchen.give(request, "decode-0")
        kitchen.wait(request, State.DONE)
        assert kitchen.ids(request) == kitchen.expected(LONG, 5)
        assert usage(request).get(Meter.PREFILL_CACHED, 0) == expected_cached
        kitchen.stations["prefill-0"].loop.release(str(request.id))


def test_a_cancel_while_decoding_stops_within_a_step_and_bills_what_was_made(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=(104, 105), max_tokens=900)
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.until(lambda: len(kitchen.ids(request)) > 5)
    kitchen.stations["prefill-0"].loop.cancel(str(request.id))
    kitchen.stations["prefill-0"].loop.cancel(str(request.id))
    kitchen.wait(request, State.CANCELLED)
    assert 5 < request.completion_tokens < 900
    assert usage(request)[Meter.DECODE] == request.completion_tokens
    kitchen.wait_idle()


def test_a_cancel_that_overtakes_the_start_leaves_nothing_behind(kitchen: Kitchen, make_request: MakeRequest) -> None:
    """The doorway has counted the job already, the loop has not begun it."""
    request, loop, gate = make_request(prompt=LONG), kitchen.stations["prefill-0"].loop, threading.Event()
    claim = kitchen.give(request, "prefill-0", start=False)

    def hold_up() -> None:
        gate.wait(20)

    loop._commands.put(hold_up)
    loop.cancel(str(request.id))
    loop.start_job(claim)
    gate.set()
    kitchen.wait(request, State.CANCELLED)
    kitchen.until(lambda: loop.progress_at > time.monotonic() - 0.2 and loop._commands.empty())
    assert not kitchen.stations["prefill-0"].engine.has_work
    assert loop.held() == []
    kitchen.wait_idle()
    assert kitchen.stations["prefill-0"].engine.counters().held == 0


def test_a_cancel_between_the_workers_frees_the_pages(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=LONG, max_tokens=20)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    request_cancel_flag(tenant_id=TENANT, request_id=request.id, reason="client_gone")
    request_end_unowned(request_id=request.id, state=State.CANCELLED, code="request_cancelled", message="")
    kitchen.stations["prefill-0"].loop.release(str(request.id))
    kitchen.wait_idle()


def test_pages_whose_hand_off_is_not_published_yet_are_not_taken_for_read(kitchen: Kitchen, make_request: MakeRequest) -> None:
    """The pulse frees what the directory calls over. While the database is slow it has not heard of the newest hand-offs."""
    request, loop = make_request(prompt=LONG, max_tokens=20), kitchen.stations["prefill-0"].loop
    claim = kitchen.give(request, "prefill-0", start=False)
    with transaction.atomic():
        InferenceRequest.objects.select_for_update().get(id=request.id)
        loop.start_job(claim)
        kitchen.until(lambda: len(kitchen.ids(request)) == 1)
        for _ in range(20):
            assert handoffs_to_free("prefill-0", loop.held()) == []
            time.sleep(0.02)
        assert loop.engine.counters().held > 0
    kitchen.wait(request, State.READY)
    kitchen.until(lambda: loop.held() == [request.id])
    assert handoffs_to_free("prefill-0", loop.held()) == []
    kitchen.give(request, "decode-0")
    kitchen.wait(request, State.DONE)
    assert kitchen.ids(request) == kitchen.expected(LONG, 20)
    kitchen.until(lambda: handoffs_to_free("prefill-0", loop.held()) == [request.id])
    loop.release(str(request.id))


def test_a_zombie_writes_neither_state_nor_usage(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=SHORT, max_tokens=20)
    claim = kitchen.give(request, "prefill-0", path="fused", start=False)
    request_requeue(request_id=request.id, owner="prefill-0", owner_epoch=claim.owner.worker_epoch, detail="thought dead")
    kitchen.stations["prefill-0"].loop.start_job(claim)
    kitchen.until(lambda: len(kitchen.ids(request)) == len(kitchen.expected(SHORT, 20)))
    successor = kitchen.give(request, "decode-0", path="fused", start=False)
    assert successor.attempt == 2
    kitchen.stations["decode-0"].loop.start_job(successor)
    kitchen.wait(request, State.DONE)
    assert kitchen.ids(request) == kitchen.expected(SHORT, 20)  # told twice, heard once
    assert set(UsageRow.objects.filter(request_id=request.id).values_list("attempt", flat=True)) == {2}


def test_the_token_log_follows_and_is_whole_at_the_end(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request, loop = make_request(prompt=SHORT, max_tokens=60), kitchen.stations["decode-0"].loop
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    kitchen.give(request, "decode-0")
    expected = tuple(kitchen.expected(SHORT, 60))
    while not (logged := logged_ids(request)):  # as often as it pleases
        loop.log_tokens()
    assert logged == expected[: len(logged)]
    kitchen.wait(request, State.DONE)
    assert logged_ids(request) == expected


def test_what_the_log_has_is_not_computed_again_as_new(kitchen: Kitchen, make_request: MakeRequest, redis_url: str) -> None:
    """Valkey forgot the stream and the worker died: the next owner goes on from the log."""
    request, loop = make_request(prompt=SHORT, max_tokens=60), kitchen.stations["prefill-0"].loop
    kitchen.stations["prefill-0"].slow_down()
    claim = kitchen.give(request, "prefill-0", path="fused")
    kitchen.until(lambda: len(kitchen.ids(request)) > 5)
    loop.log_tokens()
    logged = logged_ids(request)
    assert request_requeue(request_id=request.id, owner="prefill-0", owner_epoch=claim.owner.worker_epoch, detail="died")
    loop.cancel(str(request.id))
    with redis.Redis.from_url(redis_url) as client:
        client.delete(stream_key(str(request.id)))
    again = with_forced(kitchen.give(request, "decode-0", path="fused", start=False))
    assert again.request.forced == (logged,)
    kitchen.stations["decode-0"].loop.start_job(again)
    kitchen.wait(request, State.DONE)
    assert logged_ids(request) == tuple(kitchen.expected(SHORT, 60))
    assert request.completion_tokens == usage(request)[Meter.DECODE] == 60


def logged_ids(request: InferenceRequest) -> tuple[int, ...]:
    return next(iter(token_log_read(tenant_id=request.tenant_id, request_id=request.id).ids), ())


def test_a_request_over_its_deadline_expires_and_is_not_billed(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=(104, 105), max_tokens=1000, policy=ClassPolicy(deadline_s=0.3))
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.wait(request, State.EXPIRED)
    assert request.error_code == "deadline_exceeded"
    assert not UsageRow.objects.filter(request_id=request.id, billable=True).exists()
    kitchen.wait_idle()


def test_a_request_that_can_never_fit_fails_and_says_so(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=LONG, max_tokens=1700)
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.wait(request, State.FAILED)
    assert request.error_code == "kv_pool_too_small"


def test_ids_outside_the_vocabulary_fail_that_request_only(kitchen: Kitchen, make_request: MakeRequest) -> None:
    good, bad = make_request(prompt=SHORT, max_tokens=20), make_request(prompt=(1, 10**6), max_tokens=20)
    kitchen.give(good, "prefill-0", path="fused")
    kitchen.give(bad, "prefill-0", path="fused")
    kitchen.wait(bad, State.FAILED)
    assert bad.error_code == "token_id_invalid"
    kitchen.wait(good, State.DONE)
    assert kitchen.ids(good) == kitchen.expected(SHORT, 20)


def test_more_hand_offs_than_fit_wait_for_blocks_and_all_end_well(kitchen: Kitchen, make_request: MakeRequest) -> None:
    prompts = [tuple((base + step) % 250 for step in range(150)) for base in range(6)]
    requests = [make_request(prompt=prompt, max_tokens=300) for prompt in prompts]
    for request in requests:
        kitchen.give(request, "prefill-0")
        kitchen.wait(request, State.READY)
    for request in requests:
        kitchen.give(request, "decode-0")
    for request, prompt in zip(requests, prompts, strict=True):
        kitchen.wait(request, State.DONE)
        assert kitchen.ids(request) == kitchen.expected(prompt, 300)
        kitchen.stations["prefill-0"].loop.release(str(request.id))
    kitchen.wait_idle()


def test_a_request_comes_back_to_the_worker_that_still_holds_its_pages(kitchen: Kitchen, make_request: MakeRequest) -> None:
    """Its decode worker died, and the queue was quicker than the news."""
    request = make_request(prompt=LONG, max_tokens=20)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    dead = kitchen.give(request, "decode-0", start=False)
    request_requeue(request_id=request.id, owner="decode-0", owner_epoch=dead.owner.worker_epoch, detail="died")
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.wait(request, State.DONE)
    assert kitchen.ids(request) == kitchen.expected(LONG, 20)
    kitchen.wait_idle()
