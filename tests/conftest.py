"""What every test may use: PostgreSQL and Valkey (embedded, unless DATABASE_URL and REDIS_URL name others), and the roles.

`as_role("app")` makes the test's connection act as `brigade_app` until the end of the `with` block.
"""

from __future__ import annotations

import os
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_django
from django.conf import settings
from django.db import connection
from django.db.models.signals import pre_migrate
from psycopg.pq import TransactionStatus

from controlplane.embedded.postgres import Postgres
from controlplane.embedded.roles import database_setup, default_privileges
from controlplane.embedded.testing import DATA, OWN_DATABASE, OWN_REDIS
from controlplane.embedded.valkey import Valkey
from controlplane.settings.database import role_name
from inference.text.model_files import DEFAULT_MODEL, fetch

AsRole = Callable[[str], AbstractContextManager[None]]
Seconds = Callable[[Callable[[], object]], float]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[None]:
    """A running PostgreSQL with the three roles."""
    server = Postgres(DATA)
    try:
        if OWN_DATABASE:
            server.start()
        database_setup(settings.DATABASE_SERVER, secret_key=settings.SECRET_KEY, tests=True)
        yield
    finally:
        server.stop()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[None]:
    server = Valkey(DATA)
    try:
        if OWN_REDIS:
            server.start()
        yield
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_url(valkey_server: None) -> str:
    """A real server. Keys of a test must be its own: the server may be shared."""
    url: str = settings.REDIS_URL
    return url


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None, postgres_server: None) -> None:
    """Before the test database is made: the server must run, and new tables must be open to the roles."""
    pre_migrate.connect(_grant_before_first_table, dispatch_uid="grants")


def _grant_before_first_table(**_: Any) -> None:
    pre_migrate.disconnect(dispatch_uid="grants")
    with connection.cursor() as cursor:
        for statement in default_privileges():
            cursor.execute(statement)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> None:
    """Transactional tests end with a TRUNCATE of all tables, which append-only tables refuse: in the test database they may not."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE tgname LIKE '%\\_no\\_truncate'")
        for table, trigger in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")


@pytest.fixture
def as_role(db: None) -> AsRole:
    return _as_role


@contextmanager
def _as_role(role: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {connection.ops.quote_name(role_name(role))}")  # type: ignore[arg-type]
        try:
            yield
        finally:
            if connection.connection.info.transaction_status != TransactionStatus.INERROR:  # else the roll-back resets it
                cursor.execute("RESET ROLE")


@pytest.fixture
def seconds() -> Seconds:
    """Processor seconds, the best of three runs, without garbage collection, whose cost depends on all that the process holds.

    Machines differ: compare two costs, never one with a number of seconds.
    """
    return lambda action: min(timeit.repeat(action, timer=time.process_time, number=1, repeat=3))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The default model, fetched at the first use on this machine into BRIGADE_TEST_MODELS (else `.data/models`)."""
    return _fetch_model()


def pytest_collection_finish(session: pytest.Session) -> None:
    """A slow network must not count against the time limit of the first test that needs the model."""
    wanted = any("smollm2_folder" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        _fetch_model()


def _fetch_model() -> Path:
    models = os.environ.get("BRIGADE_TEST_MODELS") or Path(__file__).parents[1] / ".data" / "models"
    return fetch(DEFAULT_MODEL, Path(models))
