"""A fixed cast for the tests of inference: one tenant, two workers, requests on demand."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from inference.contracts import ClassPolicy, KVLayout, PoolCounters, SamplingParams, Submission
from inference.coordination.leases import lease_take
from inference.coordination.registry import worker_register
from inference.requests.claims import Claim, request_claim, request_offer
from inference.requests.models import InferenceRequest, State, new_request_id
from inference.submit import submit

TENANT = uuid.UUID("0197a000-0000-7000-8000-00000000ac3e")
LAYOUT = KVLayout(model="tiny", revision="r1", layers=2, kv_heads=1, head_dim=4, block_tokens=16, dtype="float32")

MakeRequest = Callable[..., InferenceRequest]
ClaimRequest = Callable[..., Claim]


@pytest.fixture
def make_request(db: None) -> MakeRequest:
    def make(
        *,
        prompt: tuple[int, ...] = tuple(range(1, 21)),
        max_tokens: int = 8,
        policy: ClassPolicy | None = None,
        sampling: SamplingParams | None = None,
    ) -> InferenceRequest:
        request_id = new_request_id()
        submit(
            Submission(
                request_id=str(request_id),
                tenant_id=str(TENANT),
                project_id=str(uuid.uuid4()),
                key_id=str(uuid.uuid4()),
                model="tiny",
                prompt_ids=prompt,
                sampling=sampling or SamplingParams(max_tokens=max_tokens, temperature=0.0),
                policy=policy or ClassPolicy(),
                scope_salt=b"s" * 32,
                stream=True,
            )
        )
        return InferenceRequest.objects.get(id=request_id)

    return make


def register(slot: str, *roles: str) -> int:
    pool = PoolCounters(free=64, cached=0, held=0, quarantined=0, total=64)
    return worker_register(
        slot=slot,
        roles=roles,
        model="tiny",
        layout=LAYOUT,
        device="cpu",
        arena=slot + "-{epoch}.kv",
        pool=pool,
        load={"max_running": 8},
    )


@pytest.fixture
def claim_request(db: None) -> ClaimRequest:
    """Offers a waiting request to a worker and claims it there."""
    fence = lease_take(name="dispatcher", holder="test", seconds=60)
    assert fence is not None

    def claim(request: InferenceRequest, slot: str, worker_epoch: int = 1, path: str = "split") -> Claim:
        request.refresh_from_db()
        state = State(request.state)
        assert request_offer(
            request_id=request.id,
            state=state,
            epoch=request.epoch,
            fence=fence,
            slot=slot,
            path=path,
            path_reason=path,
            decode_worker="decode-0",
        )
        claimed = request_claim(request_id=request.id, state=state, epoch=request.epoch, slot=slot, worker_epoch=worker_epoch)
        assert claimed is not None
        return claimed

    return claim
