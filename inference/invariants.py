"""What must hold of requests, pools and KV at any time; see the invariants in the docs. Cheap SQL, answered as violations."""

from __future__ import annotations

from typing import Any

from django.db import connection

from inference.violations import Violation

CHECKS: tuple[tuple[str, str, str], ...] = (
    (
        "requests_end",
        "a request is older than its deadline and has no final state",
        """SELECT id, state, owner, deadline_at FROM inference_request
            WHERE finished_at IS NULL AND deadline_at < clock_timestamp() - interval '10 seconds'""",
    ),
    (
        "requests_end_once",
        "a request has another number of final events than one",
        """SELECT r.id, r.state, count(e.id) AS final_events FROM inference_request r
             LEFT JOIN inference_request_event e ON e.request_id = r.id AND e.state IN ('done', 'failed', 'cancelled', 'expired')
            WHERE r.finished_at IS NOT NULL GROUP BY r.id, r.state HAVING count(e.id) <> 1""",
    ),
    (
        "owners_live",
        "a request is owned by a process that is gone for longer than the reaper takes",
        """SELECT r.id, r.state, r.owner, r.owner_epoch FROM inference_request r
             JOIN coordination_worker w ON w.slot = r.owner
            WHERE r.state IN ('prefilling', 'decoding') AND (w.epoch <> r.owner_epoch OR w.state = 'dead')
              AND w.lease_until < clock_timestamp() - interval '10 seconds'""",
    ),
    (
        "pools_add_up",
        "free + cached + held + quarantined is not the pool",
        """SELECT slot, pool FROM coordination_worker
            WHERE state <> 'dead' AND (pool->>'free')::int + (pool->>'cached')::int + (pool->>'held')::int
                  + (pool->>'quarantined')::int <> (pool->>'total')::int""",
    ),
    (
        "pools_idle",
        "a worker holds blocks although nothing runs anywhere",
        """SELECT slot, pool, load FROM coordination_worker
            WHERE state = 'ready' AND (pool->>'held')::int + (pool->>'quarantined')::int > 0
              AND NOT EXISTS (SELECT 1 FROM inference_request WHERE finished_at IS NULL
                                 OR finished_at > clock_timestamp() - interval '5 seconds')""",
    ),
    (
        "handoffs_close",
        "a hand-off is open although its request has ended",
        """SELECT h.request_id, h.worker FROM kv_handoff h JOIN inference_request r ON r.id = h.request_id
            WHERE h.released_at IS NULL AND r.finished_at IS NOT NULL""",
    ),
    (
        "usage_prompt",
        "computed + cached is not the prompt",
        """SELECT r.id, r.prompt_tokens, coalesce(sum(u.quantity), 0) AS metered FROM inference_request r
             LEFT JOIN inference_usage u ON u.request_id = r.id AND u.meter IN ('prefill_computed', 'prefill_cached')
            WHERE r.state = 'done' GROUP BY r.id, r.prompt_tokens HAVING coalesce(sum(u.quantity), 0) <> r.prompt_tokens""",
    ),
    (
        "usage_completion",
        "the decode meter is not the number of tokens delivered",
        """SELECT r.id, r.completion_tokens, coalesce(sum(u.quantity), 0) AS metered FROM inference_request r
             LEFT JOIN inference_usage u ON u.request_id = r.id AND u.meter = 'decode'
            WHERE r.state IN ('done', 'cancelled') GROUP BY r.id, r.completion_tokens
           HAVING coalesce(sum(u.quantity), 0) <> r.completion_tokens""",
    ),
    (
        "usage_one_attempt",
        "a request is metered for more than one attempt",
        """SELECT request_id, count(DISTINCT attempt) AS attempts FROM inference_usage
            GROUP BY request_id HAVING count(DISTINCT attempt) > 1""",
    ),
    (
        "usage_of_done",
        "a finished request has no usage",
        """SELECT r.id FROM inference_request r WHERE r.state = 'done'
              AND NOT EXISTS (SELECT 1 FROM inference_usage u WHERE u.request_id = r.id)""",
    ),
    (
        "extents_have_owners",
        "the directory names a process that is gone for longer than the reaper takes",
        """SELECT e.worker, e.worker_epoch, count(*) AS extents FROM kv_extent e
             LEFT JOIN coordination_worker w ON w.slot = e.worker AND w.epoch = e.worker_epoch
            WHERE w.slot IS NULL OR (w.state = 'dead' AND w.lease_until < clock_timestamp() - interval '10 seconds')
            GROUP BY e.worker, e.worker_epoch""",
    ),
)


def check() -> list[Violation]:
    found = ((name, message, _rows(sql)) for name, message, sql in CHECKS)
    return [Violation(name, message, rows) for name, message, rows in found if rows]


def _rows(sql: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} LIMIT 20")
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor.fetchall()]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | bool | dict | list | None) else str(value)
