"""A request's beginning, hand-over and ends, a transaction each. Where the condition does not hold nothing is changed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from psycopg.types.json import Jsonb

from inference.contracts import KVLayout, Page, PrefillResult, RequestOutcome, Submission
from inference.database import QUEUE_CHANNEL, notify, query, query_one
from inference.kvdirectory.services import handoff_publish, handoff_release
from inference.requests.models import OPEN, State
from inference.requests.state_change import Owner, json_value, state_change
from inference.requests.token_log import TokenRun, token_log_close, token_log_read
from inference.usage.services import usage_write


def request_create(submission: Submission) -> None:
    """Writes the queued row, its body and its first event; the caller's commit makes them visible and wakes the dispatcher."""
    query(
        """
        WITH fresh AS (
            INSERT INTO inference_request
                   (id, tenant_id, project_id, key_id, model, service_tier, policy, priority, labels, stream,
                    prompt_tokens, max_tokens, choices, gateway_id, trace_context, created_at, deadline_at, state, epoch, attempt,
                    path_reason, completion_tokens, finish_reasons, error_code, error_message, timing)
            SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
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
            submission.sampling.n,
            submission.gateway_id,
            submission.trace_context,
            submission.policy.deadline_s,
            list(submission.prompt_ids),
            Jsonb(submission.sampling.to_json()),
            submission.scope_salt,
            QUEUE_CHANNEL,
        ],
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
        changed = state_change(
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


def request_finish(
    owner: Owner, *, request_id: uuid.UUID, state: State, outcome: RequestOutcome, rest: Sequence[TokenRun] = ()
) -> bool:
    """A request's end by its owner: final state, usage rows, the rest of its tokens, hand-off released, all or nothing."""
    with transaction.atomic():
        changed = state_change(
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
        token_log_close(request_id=request_id, runs=rest)
        handoff_release(request_id=request_id)
        notify(QUEUE_CHANNEL)
        return True


@dataclass(frozen=True, slots=True)
class EndedWaiting:
    """`holder` is the worker slot whose pages nobody will read any more; empty where there are none."""

    epoch: int
    holder: str


def request_end_unowned(*, request_id: uuid.UUID, state: State, code: str, message: str) -> EndedWaiting | None:
    """Ends a request that waits (queued or ready): nothing runs for it. What prefill computed before is metered from its hand-off.

    None where it does not wait.
    """
    with transaction.atomic():
        outcome = _outcome_of_handoff(request_id, code, message)
        epoch = state_change(
            request_id=request_id,
            expected=(State.QUEUED, State.READY),
            to=state,
            sets={
                "offered_to": None,
                "offered_until": None,
                "completion_tokens": outcome.completion,
                "error_code": code,
                "error_message": message,
            },
            detail=code,
        )
        if epoch is None:
            return None
        usage_write(request_id=request_id, outcome=outcome)
        return EndedWaiting(epoch, handoff_release(request_id=request_id) or "")


def _outcome_of_handoff(request_id: uuid.UUID, code: str, message: str) -> RequestOutcome:
    """The row is locked first: between reading the hand-off and ending the request nobody may publish or claim."""
    row = query_one(
        """WITH mine AS (SELECT id FROM inference_request WHERE id = %s FOR UPDATE)
           SELECT h.result, h.tokens * (1000000 * extract(epoch FROM clock_timestamp() - h.published_at))::bigint
             FROM mine JOIN kv_handoff h ON h.request_id = mine.id WHERE h.released_at IS NULL""",
        [request_id],
    )
    if row is None:
        return RequestOutcome(completion=_made_before_a_fault(request_id), error_code=code, error_message=message)
    result = PrefillResult.from_json(json_value(row[0]))
    return RequestOutcome(
        computed=result.computed,
        cached=result.cached,
        recomputed=result.recomputed,
        completion=sum(len(ids) for ids in result.outputs),
        kv_token_us=result.kv_token_us + row[1],
        error_code=code,
        error_message=message,
    )


def _made_before_a_fault(request_id: uuid.UUID) -> int:
    """Tokens of an owner that died: the client may have read them. Their prompt's work was lost with it, and is not metered."""
    [(tenant_id, attempt)] = query("SELECT tenant_id, attempt FROM inference_request WHERE id = %s", [request_id])
    return token_log_read(tenant_id=tenant_id, request_id=request_id).count if attempt > 1 else 0


def request_requeue(*, request_id: uuid.UUID, owner: str | None, owner_epoch: int | None, detail: str) -> int | None:
    """After a fault: back to the queue with a new epoch and attempt. Answers the new epoch, None where nothing was to do.

    `owner` and `owner_epoch` name the process that lost it; both are None for a ready request, whose pages were lost.
    """
    with transaction.atomic():
        epoch = state_change(
            request_id=request_id,
            expected=(State.READY,) if owner is None else (State.PREFILLING, State.DECODING),
            to=State.QUEUED,
            sets={"owner": None, "owner_epoch": None, "offered_to": None, "offered_until": None, "decode_worker": None},
            where="AND owner IS NOT DISTINCT FROM %s AND owner_epoch IS NOT DISTINCT FROM %s",
            values=[owner, owner_epoch],
            new_owner=True,
            new_attempt=True,
            detail=detail,
        )
        if epoch is not None:
            handoff_release(request_id=request_id)
            notify(QUEUE_CHANNEL)
        return epoch


def request_cancel_flag(*, tenant_id: uuid.UUID, request_id: uuid.UUID, reason: str) -> str | None:
    """Asks the owner to stop; the first reason counts. Answers its slot, "" where there is no owner, None where nothing is open."""
    row = query_one(
        """UPDATE inference_request
              SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
                  cancel_reason = CASE WHEN cancel_requested_at IS NULL THEN %s ELSE cancel_reason END
            WHERE id = %s AND tenant_id = %s AND state = ANY(%s) RETURNING coalesce(owner, '')""",
        [reason, request_id, tenant_id, list(OPEN)],
    )
    return None if row is None else row[0]


def _held_by(owner: Owner) -> dict[str, Any]:
    return {
        "where": "AND owner = %s AND owner_epoch = %s AND epoch = %s",
        "values": [owner.slot, owner.worker_epoch, owner.epoch],
    }
