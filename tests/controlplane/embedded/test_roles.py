from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from django.conf import settings
from django.db import connection, transaction
from django.db.utils import ProgrammingError

from controlplane.embedded import checks
from controlplane.embedded.roles import database_setup
from controlplane.settings.database import ROLES, Server, role_name, role_password
from inference.coordination.models import Heartbeat
from tests.conftest import AsRole


@pytest.fixture
def spare_database(postgres_server: None) -> Server:
    server: Server = settings.DATABASE_SERVER
    return Server(server.host, server.port, "brigade_roles_test", server.user, server.password)


def _connect(server: Server, user: str, password: str = "") -> psycopg.Connection:
    return psycopg.connect(
        host=server.host, port=server.port or None, user=user, password=password or None, dbname=server.name, autocommit=True
    )


@pytest.fixture
def admin(spare_database: Server) -> Iterator[psycopg.Connection]:
    server = Server(spare_database.host, spare_database.port, "postgres", spare_database.user, spare_database.password)
    with _connect(server, server.user, server.password) as connection:
        yield connection


@pytest.fixture
def made(spare_database: Server, admin: psycopg.Connection) -> Server:
    """Made by two set-ups at once."""
    admin.execute("DROP DATABASE IF EXISTS brigade_roles_test")
    errors: list[Exception] = []

    def run() -> None:
        try:
            database_setup(spare_database, secret_key=settings.SECRET_KEY)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return spare_database


def test_two_set_ups_at_once_make_one_database_whose_roles_can_harm_nothing(made: Server, admin: psycopg.Connection) -> None:
    rows = admin.execute(
        "SELECT rolname, rolsuper, rolbypassrls, rolcreaterole, rolcanlogin FROM pg_roles WHERE rolname = ANY(%s) ORDER BY 1",
        [[role_name(role) for role in ROLES]],
    ).fetchall()
    assert rows == [(role_name(role), False, False, False, True) for role in ("app", "owner", "system")]


def test_only_the_owner_makes_tables_and_system_uses_them_and_app_where_it_may(made: Server) -> None:
    def open_as(role: str) -> psycopg.Connection:
        return _connect(made, f"brigade_{role}", role_password(made, role, settings.SECRET_KEY))  # type: ignore[arg-type]

    add = "INSERT INTO things (name) VALUES ('a') RETURNING id"
    with open_as("owner") as owner, open_as("app") as app, open_as("system") as system:
        owner.execute("DROP TABLE IF EXISTS things; CREATE TABLE things (id bigserial, name text)")
        assert system.execute(add).fetchone() == (1,)
        everybody = ("CREATE TABLE other (id int)", "TRUNCATE things", "DROP TABLE things", "CREATE ROLE other")
        for user, forbidden in ((system, everybody), (app, (*everybody, add, "SELECT * FROM things"))):
            for statement in forbidden:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    user.execute(statement)
        owner.execute("GRANT SELECT ON things TO brigade_app")
        assert app.execute("SELECT name FROM things").fetchall() == [("a",)]


def test_strangers_on_the_same_server_cannot_enter(made: Server, admin: psycopg.Connection) -> None:
    admin.execute("DROP ROLE IF EXISTS brigade_stranger; CREATE ROLE brigade_stranger LOGIN PASSWORD 'x'")
    try:
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            _connect(made, "brigade_stranger", "x")
    finally:
        admin.execute("DROP ROLE brigade_stranger")


@pytest.mark.django_db
def test_as_role_takes_the_role_and_gives_it_back_also_after_an_error(as_role: AsRole) -> None:
    def current() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_user")
            return str(cursor.fetchone()[0])

    with as_role("app"):
        assert current() == "brigade_app"
        Heartbeat.objects.count()
        with pytest.raises(ProgrammingError, match="must be owner"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("DROP TABLE coordination_heartbeat")
    assert current() == "brigade_owner"


@pytest.mark.django_db
def test_a_harmless_role_passes_the_check(as_role: AsRole) -> None:
    with as_role("system"):
        assert checks.role_is_harmless(["default"]) == []


def test_a_superuser_fails_the_check(made: Server, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "connections", {"default": admin})
    assert [message.id for message in checks.role_is_harmless(["default"])] == ["brigade.E001"]


def test_production_refuses_test_hooks_debug_and_a_generated_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ENVIRONMENT": "production", "TEST_HOOKS": True, "DEBUG": True, "SECRET_KEY_IS_SET": False}.items():
        monkeypatch.setattr(settings, name, value)
    assert [message.id for message in checks.production_is_closed()] == ["brigade.E002", "brigade.E003", "brigade.E004"]
    monkeypatch.setattr(settings, "ENVIRONMENT", "local")
    assert checks.production_is_closed() == []
