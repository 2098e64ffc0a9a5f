"""A place of one's own on servers that others use too: a database, a virtual host, a Redis number."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis

SERVERS = {
    "DATABASE_URL": os.environ.get("TEST_DATABASE_URL", "postgresql://postgres@127.0.0.1:5432/postgres"),
    "BROKER_URL": os.environ.get("TEST_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672//"),
    "REDIS_URL": os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:6379/0"),
}
_CLAIMED = "brigade:place"


class NoServers(RuntimeError):
    """What does not answer."""


@contextmanager
def own_place() -> Iterator[dict[str, str]]:
    """DATABASE_URL, BROKER_URL and REDIS_URL that are nobody else's; all gone at the end. Raises NoServers."""
    missing = [f"{name} {url}" for name, url in SERVERS.items() if not _listens(url)]
    if missing:
        raise NoServers(f"no server answers: {', '.join(missing)}")
    name = f"brigade_{uuid.uuid4().hex[:12]}"
    number = _redis_claim(name)
    vhost = _vhost_make(name)
    try:
        yield {
            "DATABASE_URL": _with_path("DATABASE_URL", name),
            "BROKER_URL": _with_path("BROKER_URL", vhost),
            "REDIS_URL": _with_path("REDIS_URL", str(number)),
        }
    finally:
        with psycopg.connect(SERVERS["DATABASE_URL"], autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        with redis.Redis.from_url(_with_path("REDIS_URL", str(number))) as client:
            client.flushdb()
        if vhost == name:
            _rabbitmqctl("delete_vhost", name)


def _with_path(server: str, path: str) -> str:
    return urlunsplit(urlsplit(SERVERS[server])._replace(path=f"/{path}"))


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 0), timeout=2).close()
    except OSError:
        return False
    return True


def _redis_claim(name: str) -> int:
    """An empty one. Who looks at the same time finds it claimed."""
    for number in range(15, 0, -1):
        with redis.Redis.from_url(_with_path("REDIS_URL", str(number))) as client:  # a number in the address beats `db=`
            if client.set(_CLAIMED, name, nx=True):
                if client.dbsize() == 1:
                    return number
                client.delete(_CLAIMED)
    raise NoServers("all databases of the Redis server are in use")


def _vhost_make(name: str) -> str:
    """A virtual host needs the broker's own tool; without it the default one is used."""
    if not _rabbitmqctl("add_vhost", name):
        return "/"
    user = urlsplit(SERVERS["BROKER_URL"]).username or "guest"
    if not _rabbitmqctl("set_permissions", "-p", name, user, ".*", ".*", ".*"):
        raise NoServers(f"{user} gets no rights on the virtual host {name}")
    return name


def _rabbitmqctl(*arguments: str) -> bool:
    try:
        return subprocess.run(["rabbitmqctl", "-q", *arguments], capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False
