"""Makes the database and its three roles, with the credentials of DATABASE_URL. May run any number of times, also at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import psycopg
from psycopg import Connection, sql

from controlplane.settings.database import ROLES, DatabaseRole, Server, role_name, role_password

LOCK = 0x42524947  # one set-up at a time on a server: roles belong to the server, not to a database
HARMLESS: LiteralString = "LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEROLE NOREPLICATION"
OWNER = sql.Identifier(role_name("owner"))
APP, SYSTEM = sql.Identifier(role_name("app")), sql.Identifier(role_name("system"))
USERS = sql.SQL(", ").join([APP, SYSTEM])


def database_setup(server: Server, *, secret_key: str, tests: bool = False) -> None:
    """Afterwards `brigade_owner` can migrate; `brigade_system` may use every table it will make.

    `tests` lets the owner make test databases and take the other two roles (SET ROLE); never for a real installation.
    """
    with maintenance(server) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        for role in ROLES:
            _role_ensure(connection, server, role, secret_key)
        if tests:
            connection.execute(sql.SQL("ALTER ROLE {} CREATEDB").format(OWNER))
            connection.execute(sql.SQL("GRANT {} TO {}").format(USERS, OWNER))
        _database_ensure(connection, server.name)
        with _connect(server, server.name) as inside:
            _rights_ensure(inside, server.name)


def default_privileges() -> list[sql.Composed]:
    """Run by the owner or above it, in the database itself and before its tables are made.

    `brigade_app` gets nothing by default: what the gateway may do with a table is said in the table's room.
    """
    prefix = sql.SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA public ").format(OWNER)
    return [
        prefix + sql.SQL("REVOKE ALL ON TABLES FROM {}").format(APP),
        prefix + sql.SQL("REVOKE ALL ON SEQUENCES FROM {}").format(APP),
        prefix + sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {}").format(SYSTEM),
        prefix + sql.SQL("GRANT USAGE ON SEQUENCES TO {}").format(SYSTEM),
    ]


def _connect(server: Server, name: str) -> Connection:
    return psycopg.connect(
        host=server.host,
        port=server.port or None,
        user=server.user,
        password=server.password or None,
        dbname=name,
        connect_timeout=5,
        autocommit=True,
        application_name="brigade database_setup",
    )


@contextmanager
def maintenance(server: Server) -> Iterator[Connection]:
    """The database `postgres`; where a server has none, our own, which must exist then."""
    try:
        connection = _connect(server, "postgres")
    except psycopg.OperationalError:
        connection = _connect(server, server.name)
    with connection:
        yield connection


def _role_ensure(connection: Connection, server: Server, role: DatabaseRole, secret_key: str) -> None:
    name = sql.Identifier(role_name(role))
    row = connection.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = %s", [role_name(role)]).fetchone()
    if row is None:
        connection.execute(sql.SQL("CREATE ROLE {} NOCREATEDB " + HARMLESS).format(name))
    elif row[0]:
        connection.execute(sql.SQL("ALTER ROLE {} " + HARMLESS).format(name))
    if password := role_password(server, role, secret_key):
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(_verifier(connection, role, password))))


def _verifier(connection: Connection, role: DatabaseRole, password: str) -> str:
    """What the server stores: the password itself never travels, nor stands in the server's log."""
    return connection.pgconn.encrypt_password(password.encode(), role_name(role).encode(), b"scram-sha-256").decode()


def _database_ensure(connection: Connection, name: str) -> None:
    if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
        connection.execute(sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(sql.Identifier(name)))


def _rights_ensure(connection: Connection, name: str) -> None:
    database = sql.Identifier(name)
    _membership_ensure(connection)
    statements: list[sql.SQL | sql.Composed] = [
        sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database),
        sql.SQL("GRANT CONNECT, TEMPORARY, CREATE ON DATABASE {} TO {}").format(database, OWNER),
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, USERS),
        sql.SQL("ALTER SCHEMA public OWNER TO {}").format(OWNER),
        sql.SQL("REVOKE CREATE ON SCHEMA public FROM PUBLIC"),
        sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(USERS),
        *default_privileges(),
    ]
    for statement in statements:
        connection.execute(statement)


def _membership_ensure(connection: Connection) -> None:
    """A managed server's administrator is no superuser: only a member may give a schema to the owner."""
    row = connection.execute("SELECT NOT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if row and row[0]:
        connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(OWNER))
