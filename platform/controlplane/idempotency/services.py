"""Claims of a key: the database decides which of two equal calls makes the request."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.errors import IdempotencyInProgress
from inference.database import execute, query
from inference.requests.models import State

KEEP_S = 24 * 3_600
BEGUN_ANEW = (State.FAILED, State.EXPIRED)  # never billed; a call of nothing else is made anew

# A row that is there is taken over where its day is past, or where the same body found no answer and no bill. Requests are
# counted, for those of a claim that committed while this one waited are not in its snapshot: they must not pass for unbilled ones.
_CLAIM = """
INSERT INTO idempotency_key AS known (tenant_id, project_id, key, body_hash, request_ids, created_at)
VALUES (%s, %s, %s, %s, %s::uuid[], clock_timestamp())
ON CONFLICT (tenant_id, project_id, key) DO UPDATE
   SET body_hash = excluded.body_hash, request_ids = excluded.request_ids, created_at = excluded.created_at
 WHERE known.created_at < clock_timestamp() - make_interval(secs => %s)
    OR (known.body_hash = excluded.body_hash
        AND cardinality(known.request_ids) = (
            SELECT count(*) FROM inference_request r WHERE r.id = ANY(known.request_ids) AND r.state = ANY(%s)))
RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a client sent with its call: the key, and a hash of the body that does not see order or blanks."""

    key: str
    body_hash: bytes


def key_claim(*, tenant_id: uuid.UUID, project_id: uuid.UUID, claim: Claim, request_ids: Sequence[uuid.UUID]) -> None:
    """Inside the transaction that writes the requests. Waits for an equal claim that is not committed yet.

    Raises IdempotencyInProgress where the key stands for other requests: the caller's transaction must not commit.
    """
    values = [tenant_id, project_id, claim.key, claim.body_hash, list(request_ids), KEEP_S, list(BEGUN_ANEW)]
    if not query(_CLAIM, values):
        raise IdempotencyInProgress("A request with this Idempotency-Key is being made. Ask again in a moment.")


def keys_sweep() -> int:
    """Deletes what is older than a day; answers how many."""
    return execute("DELETE FROM idempotency_key WHERE created_at < clock_timestamp() - make_interval(secs => %s)", [KEEP_S])
