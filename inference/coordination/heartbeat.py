"""Progress of the processes that have no worker row."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from inference.database import execute


def beat(name: str, **detail: Any) -> None:
    execute(
        """INSERT INTO coordination_heartbeat (name, at, detail) VALUES (%s, clock_timestamp(), %s)
           ON CONFLICT (name) DO UPDATE SET at = excluded.at, detail = excluded.detail""",
        [name, Jsonb(detail)],
    )
