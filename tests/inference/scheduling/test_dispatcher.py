"""The dispatcher offers what waits to whom has room, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app

from inference.contracts import ClassPolicy, SamplingParams, Submission
from inference.coordination.configuration import config_set
from inference.coordination.leases import lease_take
from inference.coordination.models import Worker
from inference.engine.prefix import chain_hashes, chain_root
from inference.kvdirectory.services import ExtentChange, extents_write
from inference.requests.models import InferenceRequest, new_request_id
from inference.scheduling.dispatcher import BATCH, CLAIM_TASK, Dispatcher, queue_read
from inference.submit import submit
from tests.inference.conftest import LAYOUT, TENANT, MakeRequest, register

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """What would go to the broker: the flow tests send it through real ones."""
    messages: list[tuple[str, list[Any]]] = []

    def send_task(name: str, args: list[Any], queue: str, **_: Any) -> None:
        assert name == CLAIM_TASK
        messages.append((queue, args))

    monkeypatch.setattr(current_app, "send_task", send_task)
    return messages


def dispatch(holder: str = "test") -> int:
    fence = lease_take(name="dispatcher", holder=holder, seconds=60)
    assert fence is not None
    return Dispatcher().dispatch(fence)


def test_a_queued_request_is_offered_once_while_its_offer_stands(
    make_request: MakeRequest, sent: list[tuple[str, list[Any]]]
) -> None:
    register("prefill-0", "prefill")
    register("decode-0", "decode")
    request = make_request()
    assert dispatch() == 1
    assert dispatch() == 0
    assert sent == [("prefill-0", [str(request.id), "queued", 0])]
    request.refresh_from_db()
    assert (request.path, request.decode_worker) == ("split", "decode-0")


def test_a_frozen_leader_offers_nothing(make_request: MakeRequest, sent: list[tuple[str, list[Any]]]) -> None:
    register("prefill-0", "prefill")
    make_request()
    old = lease_take(name="dispatcher", holder="frozen", seconds=-1)
    assert old is not None
    assert lease_take(name="dispatcher", holder="new", seconds=60) == old + 1
    assert Dispatcher().dispatch(old) == 0
    assert sent == []


def test_a_pause_offers_nothing_and_loses_nothing(make_request: MakeRequest, sent: list[tuple[str, list[Any]]]) -> None:
    register("prefill-0", "prefill")
    make_request()
    config_set(name="scheduling.paused", value=True)
    assert dispatch() == 0
    config_set(name="scheduling.paused", value=False)
    assert dispatch() == 1


def test_urgent_requests_go_first(make_request: MakeRequest, sent: list[tuple[str, list[Any]]]) -> None:
    register("prefill-0", "prefill")
    ordinary, urgent = make_request(), make_request(policy=ClassPolicy(priority=1))
    dispatch()
    assert [message[1][0] for message in sent] == [str(urgent.id), str(ordinary.id)]


def test_no_more_is_offered_than_a_worker_can_run(make_request: MakeRequest, sent: list[tuple[str, list[Any]]]) -> None:
    register("prefill-0", "prefill")
    Worker.objects.update(load={"max_running": 2})
    for _ in range(5):
        make_request()
    assert dispatch() == 2


def test_a_model_without_a_worker_stands_in_nobodys_way(make_request: MakeRequest, sent: list[tuple[str, list[Any]]]) -> None:
    register("prefill-0", "prefill")
    for _ in range(BATCH + 1):
        make_request()
    InferenceRequest.objects.update(model="nobody-serves-this")
    served = make_request()
    assert dispatch() == 1
    assert sent[0][1][0] == str(served.id)
    assert len(queue_read(["nobody-serves-this"], BATCH)) == BATCH


def test_a_prompt_goes_where_most_of_it_is_cached(sent: list[tuple[str, list[Any]]]) -> None:
    for slot in ("prefill-0", "prefill-1"):
        register(slot, "prefill")
    prompt = tuple(range(1, 200))
    digests = chain_hashes(chain_root(scope_salt=b"s" * 32, model="tiny", revision=LAYOUT.revision), prompt, 16)
    changes = [ExtentChange(digests[index], 16 * (index + 1), index) for index in (3, 7)]
    extents_write(worker="prefill-1", worker_epoch=1, encoding="float32", changes=changes)
    submit(
        Submission(
            request_id=str(new_request_id()),
            model="tiny",
            prompt_ids=prompt,
            sampling=SamplingParams(max_tokens=4),
            policy=ClassPolicy(),
            scope_salt=b"s" * 32,
            stream=False,
            tenant_id=str(TENANT),
            project_id=str(TENANT),
            key_id=str(TENANT),
        )
    )
    dispatch()
    assert [queue for queue, _ in sent] == ["prefill-1"]
