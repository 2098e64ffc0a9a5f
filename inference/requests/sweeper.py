"""Prompts and answers do not stay: what customers wrote and were told goes soon after their request's end."""

from __future__ import annotations

from inference.database import execute


def bodies_sweep(*, keep_s: int) -> int:
    """Deletes bodies, token logs and hand-offs of requests that ended `keep_s` seconds ago or earlier. Answers how many bodies."""
    return execute(
        """
        WITH ended AS (SELECT id FROM inference_request WHERE finished_at < clock_timestamp() - make_interval(secs => %s)),
             tokens AS (DELETE FROM inference_token_log WHERE request_id IN (SELECT id FROM ended)),
             handoffs AS (DELETE FROM kv_handoff WHERE request_id IN (SELECT id FROM ended))
        DELETE FROM inference_request_body WHERE request_id IN (SELECT id FROM ended)
        """,
        [keep_s],
    )
