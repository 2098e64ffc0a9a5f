"""System checks: contradictions and dangers stop the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections


@register(Tags.database)
def role_is_harmless(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    return [message for alias in databases or () for message in _role_check(alias)]


def _role_check(alias: str) -> list[CheckMessage]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT current_user, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
        name, is_superuser, bypasses = cursor.fetchone()
    if not (is_superuser or bypasses):
        return []
    return [
        Error(
            f"Database role {name} ({alias}) is a superuser or has BYPASSRLS: row-level security would not separate tenants.",
            hint="Run `manage.py database_setup`, and let processes connect as the roles that it makes.",
            id="brigade.E001",
        )
    ]


@register(Tags.security)
def production_is_closed(**_: Any) -> list[CheckMessage]:
    if settings.ENVIRONMENT != "production":
        return []
    wrong = {
        "BRIGADE_TEST_HOOKS is on in production: failpoints could be triggered.": settings.TEST_HOOKS,
        "BRIGADE_DEBUG is on in production: error pages would show private details.": settings.DEBUG,
        "BRIGADE_SECRET_KEY is not set: production takes no generated key.": not settings.SECRET_KEY_IS_SET,
    }
    return [Error(text, id=f"brigade.E{number:03}") for number, (text, is_wrong) in enumerate(wrong.items(), 2) if is_wrong]
