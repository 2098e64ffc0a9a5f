"""Several choices, penalties and log-probabilities through two workers, the database, and a death."""

from __future__ import annotations

import uuid

import pytest
import redis

from inference.contracts import SamplingParams
from inference.requests.models import InferenceRequest, State
from inference.requests.token_log import token_log_read
from inference.requests.transitions import request_requeue
from inference.streams import stream_key
from inference.transcript import Transcript
from inference.usage.models import Meter, UsageRow
from inference.workers.tasks import with_forced
from tests.inference.conftest import MakeRequest
from tests.inference.workers.conftest import Kitchen

pytestmark = pytest.mark.django_db(transaction=True)

PROMPT = tuple(range(1, 38))
SAMPLING = SamplingParams(
    max_tokens=40,
    temperature=1.1,
    seed=5,
    n=3,
    ignore_eos=True,
    frequency_penalty=0.8,
    presence_penalty=0.2,
    repetition_penalty=1.2,
    logit_bias=((65, 2.0),),
    logprobs=2,
    prompt_logprobs=1,
)


def alone(kitchen: Kitchen, make_request: MakeRequest) -> Transcript:
    """What one worker says that nothing happens to."""
    request = make_request(prompt=PROMPT, sampling=SAMPLING)
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.wait(request, State.DONE)
    assert kitchen.heard(request).ids == kitchen.expected_choices(PROMPT, SAMPLING)
    return kitchen.heard(request)


def logged(request: InferenceRequest) -> Transcript:
    return token_log_read(tenant_id=request.tenant_id, request_id=request.id)


def assert_same(found: Transcript, wanted: Transcript) -> None:
    assert found.ids == wanted.ids
    assert found.logprobs == wanted.logprobs
    assert [len(choice[0].prompt) for choice in found.logprobs] == [len(PROMPT), 0, 0]


def metered(request: InferenceRequest) -> dict[str, int]:
    return dict(UsageRow.objects.filter(request_id=request.id).values_list("meter", "quantity"))


def test_split_and_fused_tell_the_same(kitchen: Kitchen, make_request: MakeRequest) -> None:
    wanted = alone(kitchen, make_request)
    request = make_request(prompt=PROMPT, sampling=SAMPLING)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    kitchen.give(request, "decode-0")
    kitchen.wait(request, State.DONE)
    assert_same(kitchen.heard(request), wanted)
    assert_same(logged(request), wanted)
    assert request.finish_reasons == ["length"] * 3
    assert metered(request)[Meter.PREFILL_COMPUTED] == len(PROMPT)
    assert metered(request)[Meter.DECODE] == request.completion_tokens == 120
    kitchen.stations["prefill-0"].loop.release(str(request.id))
    kitchen.wait_idle()


@pytest.mark.parametrize("stream_lost", [False, True])
def test_a_take_over_goes_on_with_every_choice_and_tells_all_of_it(
    kitchen: Kitchen, make_request: MakeRequest, redis_url: str, stream_lost: bool
) -> None:
    wanted = alone(kitchen, make_request)
    kitchen.stations["prefill-0"].slow_down()
    request, loop = make_request(prompt=PROMPT, sampling=SAMPLING), kitchen.stations["prefill-0"].loop
    claim = kitchen.give(request, "prefill-0", path="fused")
    kitchen.until(lambda: kitchen.heard(request).count > 12)
    loop.log_tokens()
    assert request_requeue(request_id=request.id, owner="prefill-0", owner_epoch=claim.owner.worker_epoch, detail="died")
    loop.cancel(str(request.id))
    if stream_lost:
        with redis.Redis.from_url(redis_url) as client:
            client.delete(stream_key(str(request.id)))
    again = with_forced(kitchen.give(request, "decode-0", path="fused", start=False))
    known = again.request.forced
    assert len(known) == 3
    assert all(0 < len(ids) < 40 for ids in known)
    kitchen.stations["decode-0"].loop.start_job(again)
    kitchen.wait(request, State.DONE)
    assert_same(logged(request), wanted)
    if not stream_lost:
        assert_same(kitchen.heard(request), wanted)
    assert request.completion_tokens == metered(request)[Meter.DECODE] == 120


def test_tokens_whose_log_probabilities_are_lost_are_made_again(kitchen: Kitchen, make_request: MakeRequest) -> None:
    wanted = alone(kitchen, make_request)
    transcript = Transcript()
    transcript.append(0, wanted.ids[0][:5], wanted.logprobs[0][:3])
    transcript.append(1, wanted.ids[1][:4])
    transcript.append(1, wanted.ids[1][4:6], wanted.logprobs[1][4:6])
    told = transcript.told()
    assert (told.ids, told.logprobs) == ((wanted.ids[0][:3], ()), (wanted.logprobs[0][:3], ()))


def test_a_cancel_bills_the_tokens_of_all_choices(kitchen: Kitchen, make_request: MakeRequest) -> None:
    kitchen.stations["prefill-0"].slow_down()
    request, loop = make_request(prompt=PROMPT, sampling=SAMPLING), kitchen.stations["prefill-0"].loop
    kitchen.give(request, "prefill-0", path="fused")
    kitchen.until(lambda: kitchen.heard(request).count > 5)
    loop.cancel(str(request.id))
    kitchen.wait(request, State.CANCELLED)
    assert metered(request)[Meter.DECODE] == request.completion_tokens >= kitchen.heard(request).count > 5
    kitchen.wait_idle()


def test_the_row_knows_how_many_choices_there_are(make_request: MakeRequest) -> None:
    assert InferenceRequest.objects.get(id=make_request(sampling=SAMPLING).id).choices == 3
    assert isinstance(make_request().id, uuid.UUID)
