"""The Celery task: a doorway. It claims, hands to the engine loop, and returns; a lost, doubled or late message changes nothing."""

from __future__ import annotations

import dataclasses
import logging
import uuid

from celery import shared_task
from redis.exceptions import RedisError

from inference import failpoints
from inference.requests.claims import Claim, request_claim
from inference.requests.models import State
from inference.requests.token_log import token_log_read
from inference.streams import StreamWriter
from inference.telemetry.context import work_about
from inference.workers import spans
from inference.workers.metrics import CLAIMS
from inference.workers.runtime import WorkerRuntime

log = logging.getLogger(__name__)

_PHASES = {State.QUEUED.value: "prefill", State.READY.value: "decode"}


@shared_task(name="inference.claim", acks_late=True, ignore_result=True)
def claim(request_id: str, state: str, epoch: int) -> None:
    runtime = WorkerRuntime.current()
    if not runtime.accepts:
        CLAIMS.labels("refused").inc()
        return  # the row stays where it is and is offered again
    phase = _PHASES[state]
    failpoints.reach(f"{phase}.claim")
    claimed = request_claim(
        request_id=uuid.UUID(request_id), state=State(state), epoch=epoch, slot=runtime.slot, worker_epoch=runtime.worker_epoch
    )
    failpoints.reach(f"{phase}.claimed")
    if claimed is None:
        CLAIMS.labels("late").inc()
        return
    runtime.loop.metrics.claimed(claimed)
    spans.claimed(claimed)
    with work_about(request_id=request_id, tenant_id=str(claimed.tenant_id), trace_context=claimed.trace_context):
        runtime.loop.start_job(with_forced(claimed))


def with_forced(claimed: Claim) -> Claim:
    """After a death the client may have tokens already: they become the forced prefix of this attempt."""
    if claimed.attempt == 1 or claimed.handoff is not None:
        return claimed
    request = claimed.request
    failpoints.reach("takeover.read")
    known = token_log_read(tenant_id=claimed.tenant_id, request_id=uuid.UUID(request.request_id))
    try:
        known = StreamWriter.shared().take_over(request.request_id, claimed.owner.epoch, known)
    except RedisError as error:
        log.warning("request %s goes on from its token log: %s", request.request_id, error)
    if request.sampling.tells_logprobs:
        known = known.told()
    return dataclasses.replace(claimed, request=dataclasses.replace(request, forced=known.ids), logprobs=known.logprobs)
