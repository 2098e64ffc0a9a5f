"""What a key stands for."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from controlplane.idempotency.services import BEGUN_ANEW, KEEP_S
from inference.database import query, tenant_scope
from inference.requests.models import FINAL, State


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """`prompt_ids` is None where prompt and answer are deleted already."""

    id: uuid.UUID
    state: str
    service_tier: str
    max_tokens: int
    prompt_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Known:
    body_hash: bytes
    requests: tuple[KnownRequest, ...]

    @property
    def begun_anew(self) -> bool:
        """Nothing of the call was billed or will be: the next one is a call of its own."""
        return all(request.state in BEGUN_ANEW for request in self.requests)

    @property
    def ended_without_answer(self) -> bool:
        """One request that fails fails the call, whatever becomes of the others."""
        return any(request.state in FINAL and request.state != State.DONE for request in self.requests)


def key_find(*, tenant_id: uuid.UUID, project_id: uuid.UUID, key: str) -> Known | None:
    """None where the key is new, or a day old."""
    with tenant_scope(tenant_id):
        rows = query(
            """
            SELECT k.body_hash, r.id, r.state, r.service_tier, r.max_tokens, b.prompt_ids
              FROM idempotency_key k
              CROSS JOIN LATERAL unnest(k.request_ids) WITH ORDINALITY AS wanted (id, place)
              JOIN inference_request r ON r.id = wanted.id
              LEFT JOIN inference_request_body b ON b.request_id = r.id
             WHERE k.tenant_id = %s AND k.project_id = %s AND k.key = %s
               AND k.created_at >= clock_timestamp() - make_interval(secs => %s)
             ORDER BY wanted.place
            """,
            [tenant_id, project_id, key, KEEP_S],
        )
    if not rows:
        return None
    requests = tuple(
        KnownRequest(request_id, state, tier, max_tokens, None if ids is None else tuple(ids))
        for _, request_id, state, tier, max_tokens, ids in rows
    )
    return Known(bytes(rows[0][0]), requests)
