"""Leader election by a lease row with a fence.

An advisory lock would stay with a frozen leader, and breaks behind a transaction pooler. Here a leader that froze finds its fence
outdated, and every statement of its office carries the fence.
"""

from __future__ import annotations

from inference.database import execute, query_one


def lease_take(*, name: str, holder: str, seconds: float) -> int | None:
    """Takes or renews the lease. Answers its fence, None while somebody else holds it."""
    row = query_one(
        """
        INSERT INTO coordination_lease AS l (name, holder, fence, expires_at)
        VALUES (%s, %s, 1, clock_timestamp() + make_interval(secs => %s))
        ON CONFLICT (name) DO UPDATE
           SET fence = l.fence + (l.holder <> excluded.holder OR l.expires_at < clock_timestamp())::int,
               holder = excluded.holder, expires_at = excluded.expires_at
         WHERE l.holder = excluded.holder OR l.expires_at < clock_timestamp()
     RETURNING fence
        """,
        [name, holder, seconds],
    )
    return None if row is None else int(row[0])


def lease_drop(*, name: str, holder: str) -> None:
    """A clean stop: the next one need not wait."""
    execute("UPDATE coordination_lease SET expires_at = clock_timestamp() WHERE name = %s AND holder = %s", [name, holder])
