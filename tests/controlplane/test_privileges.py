"""What `brigade_app` may do to each table, and to no other: the gateway's process, and whoever breaks into it."""

from __future__ import annotations

import pytest

from inference.database import query

pytestmark = pytest.mark.django_db

WRITES = {
    "coordination_gateway": {"INSERT", "DELETE", "UPDATE(lease_until)"},
    "holds_account": {"UPDATE(held_nano_usd)"},
    "holds_hold": {"INSERT", "UPDATE(ended_at)", "UPDATE(state)"},
    "idempotency_key": {"INSERT", "UPDATE(body_hash)", "UPDATE(created_at)", "UPDATE(request_ids)"},
    "inference_request": {"INSERT", "UPDATE"},
    "inference_request_body": {"INSERT"},
    "inference_request_event": {"INSERT"},
    "inference_usage": {"INSERT"},
    "inference_usage_pending": {"INSERT"},
    "keys_apikey": {"UPDATE(last_used_at)"},
    "kv_handoff": {"UPDATE"},
}
SECRET = ("auth_%", "django_%", "tenants_user%", "coordination_lease", "kv_extent")


def test_the_gateway_writes_what_a_request_needs_and_nothing_else() -> None:
    whole = query(
        """SELECT table_name, privilege_type FROM information_schema.role_table_grants
            WHERE grantee = 'brigade_app' AND privilege_type <> 'SELECT'"""
    )
    columns = query(
        """SELECT table_name, privilege_type || '(' || column_name || ')' FROM information_schema.column_privileges
            WHERE grantee = 'brigade_app' AND privilege_type NOT IN ('SELECT', 'REFERENCES')"""
    )
    found: dict[str, set[str]] = {}
    for table, right in whole:
        found.setdefault(table, set()).add(right)
    for table, right in columns:
        if right.partition("(")[0] not in found.get(table, set()):
            found.setdefault(table, set()).add(right)
    assert found == WRITES


@pytest.mark.parametrize("tables", SECRET)
def test_the_gateway_reads_no_sessions_people_or_histories(tables: str) -> None:
    rows = query(
        """SELECT table_name FROM information_schema.role_table_grants
            WHERE grantee = 'brigade_app' AND privilege_type = 'SELECT' AND table_name LIKE %s""",
        [tables],
    )
    assert rows == []


def test_every_table_with_a_tenant_that_the_gateway_reads_has_row_level_security() -> None:
    rows = query(
        """SELECT c.relname FROM pg_class c
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
            WHERE c.relkind = 'r' AND NOT c.relrowsecurity AND has_table_privilege('brigade_app', c.oid, 'SELECT')"""
    )
    assert rows == []
