"""Progress of the processes that have no worker row."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from inference.database import execute, query_one


def beat(name: str, **detail: Any) -> None:
    execute(
        """INSERT INTO coordination_heartbeat (name, at, detail) VALUES (%s, clock_timestamp(), %s)
           ON CONFLICT (name) DO UPDATE SET at = excluded.at, detail = excluded.detail""",
        [name, Jsonb(detail)],
    )


def beat_age_s(name: str) -> float | None:
    """None before the first beat."""
    row = query_one("SELECT extract(epoch FROM clock_timestamp() - at)::float8 FROM coordination_heartbeat WHERE name = %s", [name])
    return None if row is None else float(row[0])
