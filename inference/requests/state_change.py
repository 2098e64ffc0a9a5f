"""The conditional UPDATE behind every change of a request's state, with its event row in the same statement.

The condition names the state and whatever else the caller believes in. Where another process was quicker no row is changed.
There is no other place that writes `inference_request.state`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from inference.database import query_one
from inference.requests.models import OPEN, State


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a request: a worker process and the request's epoch at its claim. Every later write carries both."""

    slot: str
    worker_epoch: int
    epoch: int


def state_change(
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
         RETURNING id, tenant_id, state, epoch, cancel_reason
        ), noted AS (
            INSERT INTO inference_request_event (request_id, tenant_id, state, at, epoch, worker, detail)
            SELECT id, tenant_id, state, clock_timestamp(), epoch, %s,
                   CASE WHEN state = 'cancelled' AND cancel_reason <> '' THEN cancel_reason ELSE %s END
              FROM changed
        )
        SELECT epoch FROM changed
        """,
        [to, int(new_owner), int(new_attempt), *sets.values(), request_id, list(expected), *values, worker, detail[:120]],
    )
    return None if row is None else row[0]


def json_value(value: Any) -> Any:
    """Django's connection hands json columns of raw queries over as text."""
    return json.loads(value) if isinstance(value, str) else value
