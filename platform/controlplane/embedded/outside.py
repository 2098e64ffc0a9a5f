"""The servers that the user's settings name, asked before a start: what does not answer stops it, by the variable's name."""

from __future__ import annotations

from urllib.parse import urlsplit

import kombu
import kombu.exceptions
import psycopg
import redis
from django.conf import settings

from controlplane.embedded.errors import ServerFailed
from controlplane.embedded.roles import maintenance
from controlplane.settings.database import connection_failure

TIMEOUT_S = 3


def outside_servers_check() -> None:
    """Raises ServerFailed, whose text is one line and holds no password."""
    if not settings.DATABASE_IS_EMBEDDED:
        _database_check()
    if not settings.REDIS_IS_EMBEDDED:
        redis_check("REDIS_URL", settings.REDIS_URL)
    if not settings.BROKER_IS_EMBEDDED:
        broker_check(settings.BROKER_URL)


def _database_check() -> None:
    server = settings.DATABASE_SERVER
    try:
        with maintenance(server):
            return
    except psycopg.Error as error:
        raise ServerFailed(f"DATABASE_URL: {server.place} does not answer: {connection_failure(error) or error}") from error


def redis_check(variable: str, url: str) -> None:
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S) as client:
            client.ping()
    except ValueError:
        raise ServerFailed(f"{variable}: not a URL like redis://host:6379/0") from None
    except (redis.RedisError, OSError) as error:
        raise ServerFailed(f"{variable}: {place(url)} does not answer: {one_line(error)}") from error


def broker_check(url: str) -> None:
    if url.startswith("redis+socket://"):  # Celery's name for a socket, and its own options
        url = f"unix://{urlsplit(url).path}"
    if url.startswith(("redis://", "rediss://", "unix://")):
        return redis_check("BROKER_URL", url)
    if not url.startswith(("amqp://", "amqps://", "pyamqp://")):
        raise ServerFailed("BROKER_URL: neither amqp://user:password@host:5672// nor redis://host:6379/0")
    try:
        connection = kombu.Connection(url, connect_timeout=TIMEOUT_S)
        errors = (*connection.connection_errors, *connection.channel_errors, kombu.exceptions.KombuError, OSError)
    except ValueError:
        raise ServerFailed("BROKER_URL: not a URL like amqp://user:password@host:5672//") from None
    try:
        with connection:
            connection.connect()
    except errors as error:
        raise ServerFailed(f"BROKER_URL: {place(url)} does not answer: {one_line(error)}") from error


def place(url: str) -> str:
    """Without credentials and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
