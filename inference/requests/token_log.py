"""The token log: what a request has generated, at most about a second behind, for the day on which Valkey loses its stream.

The rows of an epoch hold all tokens from position 1, those of former epochs included: the highest epoch counts, alone. Prompts and
tokens go together, soon after the end (`sweeper.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from inference.contracts import TokenLogprob
from inference.database import execute, query
from inference.requests.models import OWNED
from inference.requests.state_change import json_value
from inference.transcript import Transcript


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Consecutive tokens of one choice; `position` (from 1) is that of the first."""

    request_id: str
    epoch: int
    choice: int
    position: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per id, where the request asked for them


_LONGER_WINS = """
    ON CONFLICT (request_id, epoch, choice, position) DO UPDATE SET ids = excluded.ids, logprobs = excluded.logprobs
                WHERE cardinality(excluded.ids) > cardinality(inference_token_log.ids)"""


def token_log_append(*, slot: str, worker_epoch: int, runs: Sequence[TokenRun]) -> list[TokenRun]:
    """One statement for all requests of a worker. Answers what was written: of a request that the worker owns no more, nothing.

    The share lock makes a claim wait for the write: what the next owner reads is complete. The writer waits for nobody, for its
    lease is renewed by the same thread: a row that somebody else has locked is left out, and comes with the next call.
    """
    rows = query(
        f"""
        INSERT INTO inference_token_log (request_id, tenant_id, epoch, choice, position, ids, logprobs)
        SELECT r.id, r.tenant_id, r.epoch, run.choice, run.position, run.ids, nullif(run.logprobs, 'null')
          FROM jsonb_to_recordset(%s) AS run(request_id uuid, epoch int, choice int, position int, ids int[], logprobs jsonb)
          JOIN inference_request r ON r.id = run.request_id AND r.epoch = run.epoch
         WHERE r.owner = %s AND r.owner_epoch = %s AND r.state = ANY(%s)
         ORDER BY r.id, run.choice
           FOR SHARE OF r SKIP LOCKED
        {_LONGER_WINS}
        RETURNING request_id, choice
        """,
        [_json(runs), slot, worker_epoch, list(OWNED)],
    )
    written = {(str(request_id), choice) for request_id, choice in rows}
    return [run for run in runs if (run.request_id, run.choice) in written]


def token_log_close(*, request_id: uuid.UUID, runs: Sequence[TokenRun]) -> None:
    """The rest, in the transaction that ends the request: its answer is whole in the database from then on."""
    if not runs:
        return
    execute(
        f"""
        INSERT INTO inference_token_log (request_id, tenant_id, epoch, choice, position, ids, logprobs)
        SELECT r.id, r.tenant_id, run.epoch, run.choice, run.position, run.ids, nullif(run.logprobs, 'null')
          FROM jsonb_to_recordset(%s) AS run(epoch int, choice int, position int, ids int[], logprobs jsonb), inference_request r
         WHERE r.id = %s
        {_LONGER_WINS}
        """,
        [_json(runs), request_id],
    )


def _json(runs: Iterable[TokenRun]) -> Jsonb:
    names = ("request_id", "epoch", "choice", "position", "ids", "logprobs")
    return Jsonb([{name: getattr(run, name) for name in names} for run in runs])


def token_log_read(*, tenant_id: uuid.UUID, request_id: uuid.UUID) -> Transcript:
    """Empty where nothing is logged (yet)."""
    rows = query(
        """
        SELECT choice, position, ids, logprobs FROM inference_token_log
         WHERE tenant_id = %s AND request_id = %s
           AND epoch = (SELECT max(epoch) FROM inference_token_log WHERE tenant_id = %s AND request_id = %s)
         ORDER BY choice, position
        """,
        [tenant_id, request_id, tenant_id, request_id],
    )
    transcript = Transcript()
    for choice, position, ids, logprobs in rows:
        known = max(0, transcript.length(choice) + 1 - position)
        transcript.append(choice, ids[known:], _logprobs(logprobs)[known:])
    return transcript


def _logprobs(stored: Any) -> list[TokenLogprob]:
    return [TokenLogprob.from_json(entry) for entry in json_value(stored) or ()]
