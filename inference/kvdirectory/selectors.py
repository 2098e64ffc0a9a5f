"""Reads of the KV directory."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from inference.database import query
from inference.kvdirectory.models import HandOff


def overlap_by_worker(digests: Sequence[bytes]) -> dict[str, int]:
    """Tokens of a prompt's longest published prefix on each worker; `digests` are the chain hashes of the prompt's extents."""
    if not digests:
        return {}
    rows = query("SELECT worker, max(tokens) FROM kv_extent WHERE digest = ANY(%s) GROUP BY worker", [list(digests)])
    return {str(worker): int(tokens) for worker, tokens in rows}


def handoffs_to_free(worker: str, held: Sequence[UUID]) -> list[UUID]:
    """Of the requests whose pages a worker still holds: those that no decode worker will read any more."""
    open_ones = set(
        HandOff.objects.filter(worker=worker, request_id__in=held, released_at__isnull=True).values_list("request_id", flat=True)
    )
    return [request_id for request_id in held if request_id not in open_ones]
