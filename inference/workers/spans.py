"""What a worker did for a traced request, as spans under its gateway's. No text of a customer is in them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from inference.engine.events import PhaseUsage
from inference.requests.claims import Claim
from inference.telemetry.context import work_about
from inference.telemetry.tracing import Value, span, traced
from inference.workers.jobs import Job


def claimed(claim: Claim) -> None:
    """How long the request waited for this claim: since its creation, or since its hand-off was published."""
    wait_s = claim.handoff.waited_us / 1e6 if claim.handoff else claim.elapsed_ms / 1e3
    span("queue", claim.trace_context, lasted_s=wait_s, attributes=_about(claim))


def left(job: Job, usage: PhaseUsage) -> None:
    """The request leaves the engine: its phases here."""
    claim = job.claim
    if not traced(claim.trace_context):
        return
    here_s = time.monotonic() - job.claimed_at
    about = _about(claim)
    if claim.handoff and job.transfer_ms:
        copy_s = job.transfer_ms / 1e3
        copied = {**about, "brigade.kv.tokens": claim.handoff.tokens, "brigade.kv.source": claim.handoff.worker}
        ago_s = here_s - copy_s
        span("transfer", claim.trace_context, ended_s_ago=ago_s, lasted_s=copy_s, attributes=copied, error=job.transfer_note)
    if usage.prefill_ms and not claim.handoff:
        computed = {**about, "brigade.tokens.computed": usage.computed, "brigade.tokens.cached": usage.cached}
        ago_s = here_s - (usage.queue_ms + usage.prefill_ms) / 1e3
        span("prefill", claim.trace_context, ended_s_ago=ago_s, lasted_s=usage.prefill_ms / 1e3, attributes=computed)
    if usage.decode_ms:
        made = {**about, "gen_ai.usage.output_tokens": usage.completion}
        span("decode", claim.trace_context, lasted_s=usage.decode_ms / 1e3, attributes=made)


@contextmanager
def transition(job: Job, name: str) -> Iterator[None]:
    """While a change of the request is written. One that was not written has no span: it comes again."""
    claim, began = job.claim, time.monotonic()
    with work_about(request_id=job.id, tenant_id=str(claim.tenant_id), trace_context=claim.trace_context):
        yield
        span(name, claim.trace_context, lasted_s=time.monotonic() - began, attributes=_about(claim))


def _about(claim: Claim) -> dict[str, Value]:
    return {
        "brigade.request.id": claim.request.request_id,
        "brigade.worker.slot": claim.owner.slot,
        "brigade.phase": claim.request.phase,
        "brigade.attempt": claim.attempt,
    }
