"""Writes of the KV directory: hand-offs between phases, and the extents that workers have published."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from psycopg.types.json import Jsonb

from inference.contracts import KVLayout, Page, PrefillResult
from inference.database import execute, query_one


def handoff_publish(
    *,
    request_id: uuid.UUID,
    tenant_id: uuid.UUID,
    epoch: int,
    worker: str,
    worker_epoch: int,
    layout: KVLayout,
    tokens: int,
    pages: Sequence[Page],
    result: PrefillResult,
) -> None:
    """One row a request; a later attempt replaces the row of an earlier one."""
    execute(
        """
        INSERT INTO kv_handoff (request_id, tenant_id, epoch, worker, worker_epoch, layout, tokens, pages, result, published_at)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, clock_timestamp())
        ON CONFLICT (request_id) DO UPDATE
           SET epoch = excluded.epoch, worker = excluded.worker, worker_epoch = excluded.worker_epoch, layout = excluded.layout,
               tokens = excluded.tokens, pages = excluded.pages, result = excluded.result,
               published_at = excluded.published_at, released_at = NULL
        """,
        [
            request_id,
            tenant_id,
            epoch,
            worker,
            worker_epoch,
            Jsonb(layout.to_json()),
            tokens,
            Jsonb([[page.index, page.generation, page.digest] for page in pages]),
            Jsonb(result.to_json()),
        ],
    )


def handoff_release(*, request_id: uuid.UUID) -> str | None:
    """The pages are not needed any more. Answers the slot that holds them, None where nothing was open."""
    row = query_one(
        "UPDATE kv_handoff SET released_at = clock_timestamp() WHERE request_id = %s AND released_at IS NULL RETURNING worker",
        [request_id],
    )
    return None if row is None else row[0]


@dataclass(frozen=True, slots=True)
class ExtentChange:
    """An extent that a worker has published, or dropped (`block` is None)."""

    digest: bytes
    tokens: int
    block: int | None


def extents_write(*, worker: str, worker_epoch: int, encoding: str, changes: Sequence[ExtentChange]) -> None:
    """Brings the directory up to a worker's cache: the newest change of a digest counts."""
    latest = {change.digest: change for change in changes}
    gone = [digest for digest, change in latest.items() if change.block is None]
    came = [change for change in latest.values() if change.block is not None]
    with connection.cursor() as cursor:
        if gone:
            execute("DELETE FROM kv_extent WHERE worker = %s AND digest = ANY(%s)", [worker, gone])
        if came:
            cursor.executemany(
                """
                INSERT INTO kv_extent (digest, worker, worker_epoch, tier, encoding, tokens, block, used_at)
                VALUES (%s, %s, %s, 'device', %s, %s, %s, clock_timestamp())
                ON CONFLICT (digest, worker, tier) DO UPDATE
                   SET worker_epoch = excluded.worker_epoch, block = excluded.block, used_at = excluded.used_at
                """,
                [(change.digest, worker, worker_epoch, encoding, change.tokens, change.block) for change in came],
            )


def extents_forget(*, worker: str, worker_epoch: int) -> int:
    """Drops what a process of that slot, of that epoch or an older one, had published."""
    return execute("DELETE FROM kv_extent WHERE worker = %s AND worker_epoch <= %s", [worker, worker_epoch])
