"""What every room needs of PostgreSQL beyond the ORM: the tenant of a transaction, row-level security, notifications."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction
from django.db.migrations.operations.special import RunSQL

QUEUE_CHANNEL = "brigade_queue"  # something for the dispatcher to look at
USAGE_CHANNEL = "brigade_usage"  # a request ended: billing may rate it

_scopes = threading.local()  # the tenant of the open scope, by connection alias


@contextmanager
def tenant_scope(tenant_id: uuid.UUID) -> Iterator[None]:
    """A transaction in which row-level security shows this tenant's rows, and no others. A scope inside its equal costs nothing."""
    scopes = _scopes.__dict__  # this thread's
    before = scopes.get(connection.alias)
    tenant = str(tenant_id)
    if before == tenant and connection.in_atomic_block:
        yield
        return
    nested = connection.in_atomic_block
    with transaction.atomic():
        _tenant_set(tenant)
        scopes[connection.alias] = tenant
        try:
            yield
        finally:
            scopes[connection.alias] = before
        if nested:  # the setting would last until the outer transaction ends; after an error the roll-back resets it
            _tenant_set(before or "")


def _tenant_set(tenant: str) -> None:
    query("SELECT set_config('brigade.tenant_id', %s, true)", [tenant])


def query(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return list(cursor.fetchall())


def query_one(sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
    rows = query(sql, values)
    return rows[0] if rows else None


def execute(sql: str, values: Sequence[Any] = ()) -> int:
    """Runs a statement that answers no rows; the number of rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return int(cursor.rowcount)


def notify(channel: str, payload: str = "") -> None:
    """Heard by listeners when the present transaction commits."""
    query("SELECT pg_notify(%s, %s)", [channel, payload])


def row_security(table: str, column: str = "tenant_id") -> RunSQL:
    """Migration step: `brigade_app` sees a row of `table` only inside the tenant's scope; `brigade_system` sees all."""
    tenant = f"{column} = nullif(current_setting('brigade.tenant_id', true), '')::uuid"
    return RunSQL(
        sql=[
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant_rows ON {table} TO brigade_app USING ({tenant}) WITH CHECK ({tenant})",
            f"CREATE POLICY all_rows ON {table} TO brigade_system USING (true) WITH CHECK (true)",
        ],
        reverse_sql=[
            f"DROP POLICY tenant_rows ON {table}",
            f"DROP POLICY all_rows ON {table}",
            f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
        ],
    )


def privileges(table: str, *, app: str = "SELECT", system: str = "SELECT, INSERT, UPDATE, DELETE") -> RunSQL:
    """Exactly these rights, whatever the database's default privileges gave. An empty string gives none."""
    grants = [
        f"GRANT {rights} ON {table} TO {role}" for rights, role in ((app, "brigade_app"), (system, "brigade_system")) if rights
    ]
    return RunSQL(sql=[f"REVOKE ALL ON {table} FROM brigade_app, brigade_system", *grants], reverse_sql=RunSQL.noop)
