"""Every change of a request's state: one conditional UPDATE and one event row, in one statement.

The condition names the state and the epoch that the caller believes in. Where another process was quicker the statement changes no
row, and the function answers None: the caller drops what it holds. There is no other place that writes `inference_request.state`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db import transaction
from psycopg.types.json import Jsonb

from inference.contracts import (
    ClassPolicy,
    EngineRequest,
    KVLayout,
    Page,
    PrefillResult,
    RequestOutcome,
    SamplingParams,
    Submission,
)
from inference.database import QUEUE_CHANNEL, execute, notify, query, query_one
from inference.kvdirectory.services import handoff_publish, handoff_release
from inference.requests.models import OPEN, State
from inference.usage.services import usage_write


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a request: a worker process and the request's epoch at its claim. Every later write carries both."""

    slot: str
    worker_epoch: int
    epoch: int


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
    remaining_s: float  # to the deadline
    handoff: HandOffTicket | None


def request_create(submission: Submission) -> None:
    """Writes the queued row, its body and its first event; the caller's commit makes them visible and wakes the dispatcher."""
    query(
        """
        WITH fresh AS (
            INSERT INTO inference_request
                   (id, tenant_id, project_id, key_id, model, service_tier, policy, priority, labels, stream,
                    prompt_tokens, max_tokens, created_at, deadline_at, state, epoch, attempt, path_reason,
                    completion_tokens, finish_reasons, error_code, error_message, timing)
            SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
                   now.at, now.at + make_interval(secs => %s), 'queued', 0, 1, '', 0, '{}', '', '', '{}'
              FROM (SELECT clock_timestamp() AS at) AS now
         RETURNING id, tenant_id, state, epoch, created_at
        ), body AS (
            INSERT INTO inference_request_body (request_id, tenant_id, prompt_ids, sampling, scope_salt, written_at)
            SELECT id, tenant_id, %s, %s, %s, created_at FROM fresh
        ), noted AS (
            INSERT INTO inference_request_event (request_id, tenant_id, state, at, epoch, worker, detail)
            SELECT id, tenant_id, state, created_at, epoch, '', '' FROM fresh
        )
        SELECT pg_notify(%s, '') FROM fresh
        """,
        [
            submission.request_id,
            submission.tenant_id,
            submission.project_id,
            submission.key_id,
            submission.model,
            submission.policy.tier,
            Jsonb(submission.policy.to_json()),
            submission.policy.priority,
            Jsonb(submission.labels),
            submission.stream,
            len(submission.prompt_ids),
            submission.sampling.max_tokens,
            submission.policy.deadline_s,
            list(submission.prompt_ids),
            Jsonb(submission.sampling.to_json()),
            submission.scope_salt,
            QUEUE_CHANNEL,
        ],
    )


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
        changed = _change(
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
        SELECT r.tenant_id, r.epoch, r.policy, r.attempt, r.path, r.state, b.prompt_ids, b.sampling, b.scope_salt,
               1000 * extract(epoch FROM clock_timestamp() - r.created_at)::float8,
               extract(epoch FROM r.deadline_at - clock_timestamp())::float8,
               h.worker, h.worker_epoch, w.arena, h.layout, h.tokens, h.pages, h.result,
               (1000000 * extract(epoch FROM clock_timestamp() - h.published_at))::bigint,
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
    (tenant_id, epoch, policy, attempt, path, state, prompt, sampling, salt, elapsed_ms, remaining_s, *handoff, queue_ms) = row
    ticket = _ticket(*handoff) if handoff[0] else None
    outputs = ticket.result.outputs if ticket else ((),)
    phase: Literal["prefill", "decode", "fused"] = (
        "decode" if state == State.DECODING else "prefill" if path == "split" else "fused"
    )
    class_policy = ClassPolicy.from_json(_loaded(policy))
    return Claim(
        owner=Owner(slot, worker_epoch, epoch),
        tenant_id=tenant_id,
        request=EngineRequest(
            request_id=str(request_id),
            tenant_id=str(tenant_id),
            prompt_ids=tuple(prompt),
            sampling=SamplingParams.from_json(_loaded(sampling)),
            scope_salt=bytes(salt),
            phase=phase,
            forced=outputs,
            priority=class_policy.priority,
        ),
        policy=class_policy,
        attempt=attempt,
        path=path,
        elapsed_ms=elapsed_ms,
        queue_ms=queue_ms,
        remaining_s=remaining_s,
        handoff=ticket,
    )


def _ticket(
    worker: str, worker_epoch: int, arena: str | None, layout: Any, tokens: int, pages: Any, result: Any, waited_us: int
) -> HandOffTicket:
    return HandOffTicket(
        worker=worker,
        worker_epoch=worker_epoch,
        arena=arena or "",  # empty: that process is gone
        layout=KVLayout.from_json(_loaded(layout)),
        tokens=tokens,
        pages=tuple(Page(*page) for page in _loaded(pages)),
        result=PrefillResult.from_json(_loaded(result)),
        waited_us=waited_us,
    )


def request_ready(
    owner: Owner,
    *,
    request_id: uuid.UUID,
    tenant_id: uuid.UUID,
    layout: KVLayout,
    tokens: int,
    pages: Sequence[Page],
    result: PrefillResult,
) -> bool:
    """Prefill's end: publishes the hand-off and lets go of the request, in one transaction."""
    with transaction.atomic():
        changed = _change(
            request_id=request_id,
            expected=(State.PREFILLING,),
            to=State.READY,
            worker=owner.slot,
            sets={"owner": None, "owner_epoch": None, "offered_to": None, "offered_until": None},
            **_held_by(owner),
        )
        if changed is None:
            return False
        handoff_publish(
            request_id=request_id,
            tenant_id=tenant_id,
            epoch=owner.epoch,
            worker=owner.slot,
            worker_epoch=owner.worker_epoch,
            layout=layout,
            tokens=tokens,
            pages=pages,
            result=result,
        )
        notify(QUEUE_CHANNEL)
        return True


def request_finish(owner: Owner, *, request_id: uuid.UUID, state: State, outcome: RequestOutcome) -> bool:
    """A request's end by its owner: final state, usage rows, hand-off released, all or nothing."""
    with transaction.atomic():
        changed = _change(
            request_id=request_id,
            expected=(State.PREFILLING, State.DECODING),
            to=state,
            worker=owner.slot,
            detail=outcome.error_code or ",".join(outcome.reasons),
            sets={
                "owner": None,
                "owner_epoch": None,
                "offered_to": None,
                "offered_until": None,
                "completion_tokens": outcome.completion,
                "finish_reasons": list(outcome.reasons),
                "error_code": outcome.error_code,
                "error_message": outcome.error_message,
                "timing": Jsonb(outcome.timing_ms),
            },
            **_held_by(owner),
        )
        if changed is None:
            return False
        usage_write(request_id=request_id, outcome=outcome)
        handoff_release(request_id=request_id)
        notify(QUEUE_CHANNEL)
        return True


def request_end_unowned(*, request_id: uuid.UUID, state: State, code: str, message: str) -> int | None:
    """Ends a request that waits (queued or ready): nothing runs for it. What prefill computed before is metered from its hand-off.

    Answers the request's epoch, None where it does not wait.
    """
    with transaction.atomic():
        epoch = _change(
            request_id=request_id,
            expected=(State.QUEUED, State.READY),
            to=state,
            sets={"offered_to": None, "offered_until": None, "error_code": code, "error_message": message},
            detail=code,
        )
        if epoch is not None:
            usage_write(request_id=request_id, outcome=_outcome_of_handoff(request_id, code, message))
            handoff_release(request_id=request_id)
        return epoch


def _outcome_of_handoff(request_id: uuid.UUID, code: str, message: str) -> RequestOutcome:
    row = query_one(
        """SELECT result, tokens * (1000000 * extract(epoch FROM clock_timestamp() - published_at))::bigint
             FROM kv_handoff WHERE request_id = %s AND released_at IS NULL""",
        [request_id],
    )
    if row is None:
        return RequestOutcome(error_code=code, error_message=message)
    result = PrefillResult.from_json(_loaded(row[0]))
    return RequestOutcome(
        computed=result.computed,
        cached=result.cached,
        recomputed=result.recomputed,
        completion=sum(len(ids) for ids in result.outputs),
        kv_token_us=result.kv_token_us + row[1],
        error_code=code,
        error_message=message,
    )


def request_requeue(*, request_id: uuid.UUID, owner: str | None, owner_epoch: int | None, detail: str) -> int | None:
    """After a fault: back to the queue with a new epoch and attempt. Answers the new epoch, None where nothing was to do."""
    states, condition, values = (State.READY,), "", []
    if owner is not None:
        states, condition, values = (State.PREFILLING, State.DECODING), "AND owner = %s AND owner_epoch = %s", [owner, owner_epoch]  # type: ignore[assignment]
    with transaction.atomic():
        epoch = _change(
            request_id=request_id,
            expected=states,
            to=State.QUEUED,
            sets={"owner": None, "owner_epoch": None, "offered_to": None, "offered_until": None, "decode_worker": None},
            where=condition,
            values=values,
            new_owner=True,
            new_attempt=True,
            detail=detail,
        )
        if epoch is not None:
            handoff_release(request_id=request_id)
            notify(QUEUE_CHANNEL)
        return epoch


def request_cancel_flag(*, request_id: uuid.UUID) -> str | None:
    """Asks the owner to stop. Answers the owner's slot, "" where nobody owns it, None where it is unknown or ended."""
    row = query_one(
        """UPDATE inference_request SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
            WHERE id = %s AND state = ANY(%s) RETURNING coalesce(owner, '')""",
        [request_id, list(OPEN)],
    )
    return None if row is None else row[0]


def _held_by(owner: Owner) -> dict[str, Any]:
    return {
        "where": "AND owner = %s AND owner_epoch = %s AND epoch = %s",
        "values": [owner.slot, owner.worker_epoch, owner.epoch],
    }


def _change(
    *,
    request_id: uuid.UUID,
    expected: Iterable[State],
    to: State,
    sets: dict[str, Any],
    where: str = "",
    values: Sequence[Any] = (),
    worker: str = "",
    detail: str = "",
    new_owner: bool = False,
    new_attempt: bool = False,
) -> int | None:
    """The conditional UPDATE with its event. Answers the epoch after it, None where no row fulfilled the condition."""
    columns = "".join(f", {name} = %s" for name in sets)
    ended = "" if to in OPEN else ", finished_at = clock_timestamp()"
    row = query_one(
        f"""
        WITH changed AS (
            UPDATE inference_request
               SET state = %s, epoch = epoch + %s, attempt = attempt + %s{ended}{columns}
             WHERE id = %s AND state = ANY(%s) {where}
         RETURNING id, tenant_id, state, epoch
        ), noted AS (
            INSERT INTO inference_request_event (request_id, tenant_id, state, at, epoch, worker, detail)
            SELECT id, tenant_id, state, clock_timestamp(), epoch, %s, %s FROM changed
        )
        SELECT epoch FROM changed
        """,
        [to, int(new_owner), int(new_attempt), *sets.values(), request_id, list(expected), *values, worker, detail[:120]],
    )
    return None if row is None else row[0]


def _loaded(value: Any) -> Any:
    """Django's connection hands json columns of raw queries over as text."""
    import json

    return json.loads(value) if isinstance(value, str) else value
