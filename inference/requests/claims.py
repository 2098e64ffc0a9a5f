"""How a worker takes a request that was offered to it, and what it reads with it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Literal

from django.db import transaction

from inference.contracts import ClassPolicy, EngineRequest, KVLayout, Logprobs, Page, PrefillResult, SamplingParams
from inference.database import execute, query_one
from inference.requests.models import State
from inference.requests.state_change import Owner, json_value, state_change


@dataclass(frozen=True, slots=True)
class HandOffTicket:
    """What a decode worker reads at its claim: where the pages lie and what prefill reported."""

    worker: str
    worker_epoch: int
    arena: str
    layout: KVLayout
    tokens: int
    pages: tuple[Page, ...]
    result: PrefillResult
    waited_us: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that this worker owns now."""

    owner: Owner
    tenant_id: uuid.UUID
    request: EngineRequest
    policy: ClassPolicy
    attempt: int
    path: str
    elapsed_ms: float  # from creation to the claim, by the database's clock
    queue_ms: float
    offer_ms: float  # from creation to the offer, by the database's clock
    remaining_s: float  # to the deadline
    handoff: HandOffTicket | None
    trace_context: str = ""  # W3C traceparent that spans of this claim go under; empty: not traced
    logprobs: Logprobs = ()  # of the request's forced tokens, where it asks for them


def request_offer(
    *,
    request_id: uuid.UUID,
    state: State,
    epoch: int,
    fence: int,
    slot: str,
    path: str,
    path_reason: str,
    decode_worker: str | None,
) -> bool:
    """Offers a waiting request to one worker for a second. `fence` is the dispatcher's: a frozen leader offers nothing."""
    changed = execute(
        """
        UPDATE inference_request
           SET offered_to = %s, offered_until = clock_timestamp() + interval '1 second',
               path = %s, path_reason = %s, decode_worker = %s
         WHERE id = %s AND state = %s AND epoch = %s
           AND (offered_until IS NULL OR offered_until < clock_timestamp())
           AND EXISTS (SELECT 1 FROM coordination_lease
                        WHERE name = 'dispatcher' AND fence = %s AND expires_at > clock_timestamp())
        """,
        [slot, path, path_reason, decode_worker, request_id, state, epoch, fence],
    )
    return changed == 1


_CLAIM_TO: dict[State, State] = {State.QUEUED: State.PREFILLING, State.READY: State.DECODING}


def request_claim(*, request_id: uuid.UUID, state: State, epoch: int, slot: str, worker_epoch: int) -> Claim | None:
    """Takes an offered request. None: somebody else has it, it ended, or the offer was not ours."""
    side = "prefill_worker" if state == State.QUEUED else "decode_worker"
    with transaction.atomic():
        changed = state_change(
            request_id=request_id,
            expected=(state,),
            to=_CLAIM_TO[state],
            worker=slot,
            sets={"owner": slot, "owner_epoch": worker_epoch, side: slot},
            where="AND epoch = %s AND offered_to = %s AND cancel_requested_at IS NULL AND deadline_at > clock_timestamp()",
            values=[epoch, slot],
            new_owner=True,
        )
        return _claim_read(request_id, slot, worker_epoch) if changed else None


def _claim_read(request_id: uuid.UUID, slot: str, worker_epoch: int) -> Claim:
    row = query_one(
        """
        SELECT r.tenant_id, r.epoch, r.policy, r.attempt, r.path, r.state, r.trace_context, b.prompt_ids, b.sampling, b.scope_salt,
               1000 * extract(epoch FROM clock_timestamp() - r.created_at)::float8,
               extract(epoch FROM r.deadline_at - clock_timestamp())::float8,
               h.worker, h.worker_epoch, w.arena, h.layout, h.tokens, h.pages, h.result,
               (1000000 * extract(epoch FROM clock_timestamp() - h.published_at))::bigint,
               1000 * extract(epoch FROM r.offered_until - interval '1 second' - r.created_at)::float8,
               1000 * extract(epoch FROM (SELECT min(e.at) FROM inference_request_event e
                                           WHERE e.request_id = r.id AND e.state = 'prefilling') - r.created_at)::float8
          FROM inference_request r
          JOIN inference_request_body b ON b.request_id = r.id
          LEFT JOIN kv_handoff h ON h.request_id = r.id AND h.released_at IS NULL AND r.state = 'decoding'
          LEFT JOIN coordination_worker w ON w.slot = h.worker AND w.epoch = h.worker_epoch
         WHERE r.id = %s
        """,
        [request_id],
    )
    assert row is not None, "the row was changed in this transaction"
    tenant_id, epoch, policy, attempt, path, state, trace, prompt, sampling, salt, elapsed_ms, remaining_s, *rest = row
    *handoff, offer_ms, queue_ms = rest
    ticket = _ticket(*handoff) if handoff[0] else None
    result = ticket.result if ticket else None
    phase: Literal["prefill", "decode", "fused"] = (
        "decode" if state == State.DECODING else "prefill" if path == "split" else "fused"
    )
    class_policy = ClassPolicy.from_json(json_value(policy))
    return Claim(
        owner=Owner(slot, worker_epoch, epoch),
        tenant_id=tenant_id,
        request=EngineRequest(
            request_id=str(request_id),
            tenant_id=str(tenant_id),
            prompt_ids=tuple(prompt),
            sampling=SamplingParams.from_json(json_value(sampling)),
            scope_salt=bytes(salt),
            phase=phase,
            forced=result.outputs if result else (),
            priority=class_policy.priority,
        ),
        policy=class_policy,
        attempt=attempt,
        path=path,
        elapsed_ms=elapsed_ms,
        queue_ms=queue_ms,
        offer_ms=offer_ms,
        remaining_s=remaining_s,
        handoff=ticket,
        trace_context=trace,
        logprobs=result.logprobs if result else (),
    )


def _ticket(
    worker: str, worker_epoch: int, arena: str | None, layout: Any, tokens: int, pages: Any, result: Any, waited_us: int
) -> HandOffTicket:
    return HandOffTicket(
        worker=worker,
        worker_epoch=worker_epoch,
        arena=arena or "",  # empty: that process is gone
        layout=KVLayout.from_json(json_value(layout)),
        tokens=tokens,
        pages=tuple(Page(*page) for page in json_value(pages)),
        result=PrefillResult.from_json(json_value(result)),
        waited_us=waited_us,
    )
