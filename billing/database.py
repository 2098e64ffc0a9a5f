"""What billing's tables share: append-only tables, tenants that only read, who may do what, and inserts of many rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.migrations.operations.special import RunSQL

from inference.database import execute

_REFUSE = """
CREATE OR REPLACE FUNCTION billing_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'restrict_violation';
END $$
"""


def append_only(table: str) -> RunSQL:
    """Rows can be inserted, and that is all: UPDATE, DELETE and TRUNCATE raise for every role."""
    return RunSQL(
        sql=[
            _REFUSE,
            f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION billing_refuse_change()",
            *no_truncate(table),
        ],
        reverse_sql=[f"DROP TRIGGER {table}_no_change ON {table}", f"DROP TRIGGER {table}_no_truncate ON {table}"],
    )


def no_truncate(table: str) -> list[str]:
    """Statements, after `billing_refuse_change` exists. Row triggers do not see TRUNCATE."""
    return [
        f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change()"
    ]


def tenant_reads(table: str) -> RunSQL:
    """`brigade_app` sees a row only inside its tenant's scope, and no policy lets it write; `brigade_system` sees all."""
    tenant = "tenant_id = nullif(current_setting('brigade.tenant_id', true), '')::uuid"
    return RunSQL(
        sql=[
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant_rows ON {table} FOR SELECT TO brigade_app USING ({tenant})",
            f"CREATE POLICY all_rows ON {table} TO brigade_system USING (true) WITH CHECK (true)",
        ],
        reverse_sql=[
            f"DROP POLICY tenant_rows ON {table}",
            f"DROP POLICY all_rows ON {table}",
            f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
        ],
    )


def insert_rows(table: str, columns: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
    """`columns` maps names to PostgreSQL types, in the order of each row.

    One array a column: several times faster than a placeholder a value. COPY does not work under row-level security.
    """
    if rows:
        arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
        values = [list(column) for column in zip(*rows, strict=True)]
        execute(f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({arrays})", values)
