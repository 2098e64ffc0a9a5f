"""A gateway's identity: requests carry it, a late renewal makes a new one, a clean end gives it back."""

from __future__ import annotations

import pytest

from controlplane.gateway import runtime
from controlplane.gateway.lease import Lease
from inference.coordination.models import Gateway
from inference.database import execute
from inference.requests.models import State
from tests.controlplane.conftest import Stage, request_rows, wait_for
from tests.controlplane.gateway.test_cancel import cancel, waiting_request


def test_a_request_carries_its_gateway_and_the_lease_is_renewed(gateway: str, stage: Stage) -> None:
    call, _, public_id = waiting_request(gateway, stage.acme)
    gateway_id = request_rows()[-1].gateway_id
    assert gateway_id is not None
    row = Gateway.objects.get(id=gateway_id)
    wait_for(lambda: Gateway.objects.get(id=row.id).lease_until > row.lease_until)
    cancel(gateway, stage.acme, public_id)
    call.join()


def test_a_gateway_whose_row_is_gone_takes_a_new_identity_and_goes_on(gateway: str, stage: Stage) -> None:
    first, _, _ = waiting_request(gateway, stage.acme)
    lost = request_rows()[-1].gateway_id
    execute("DELETE FROM coordination_gateway", [])
    wait_for(lambda: Gateway.objects.exists())
    second, _, _ = waiting_request(gateway, stage.acme)
    wait_for(lambda: len(request_rows()) == 2)
    assert request_rows()[-1].gateway_id not in (None, lost)
    for row in request_rows():
        cancel(gateway, stage.acme, f"chatcmpl-{row.id.hex}")
    first.join()
    second.join()
    assert {row.state for row in request_rows()} == {State.CANCELLED}


async def test_an_identity_that_may_be_too_old_is_asked_about_before_it_is_used(
    gateway: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(seconds=60)
    first = await lease.holder()
    assert await lease.holder() == first
    await lease.drop()  # the row goes, this process does not know
    assert await lease.holder() == first
    monkeypatch.setattr(lease, "_sure_until", float("-inf"))
    assert await lease.holder() != first
    await lease.drop()


def test_a_clean_end_leaves_no_row(gateway: str, stage: Stage) -> None:
    wait_for(lambda: Gateway.objects.exists())
    process = runtime._runtime
    assert process is not None
    process.loop.call_soon_threadsafe(lambda: process.background(process.lease.drop()))
    wait_for(lambda: not Gateway.objects.exists())
