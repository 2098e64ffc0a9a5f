"""Which server, which database, which of the three roles.

owner     makes the tables (migrations only)
app       gateway and console: no superuser, no bypass; row-level security decides what it sees
system    workers, dispatcher, billing: policies let it see all tenants
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
from django.core.exceptions import ImproperlyConfigured

from inference.telemetry.redaction import keep_secret

DatabaseRole = Literal["owner", "app", "system"]
ROLES: tuple[DatabaseRole, ...] = ("owner", "app", "system")
EXAMPLE = "postgresql://user:password@host:5432/brigade"


@dataclass(frozen=True, slots=True)
class Server:
    """A PostgreSQL database and the credentials that may create it."""

    host: str  # name, address or socket folder
    port: str
    name: str
    user: str
    password: str

    @classmethod
    def from_url(cls, url: str) -> Server:
        """Errors show nothing of the URL but its scheme: what does not parse may be a password."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ImproperlyConfigured(
                f"DATABASE_URL: host and port do not parse; write it like {EXAMPLE} (a password's special characters as %XX)"
            ) from None
        if not parts.scheme:
            raise ImproperlyConfigured(f"DATABASE_URL: not a URL like {EXAMPLE}")
        if parts.scheme not in ("postgres", "postgresql"):
            raise ImproperlyConfigured(f"DATABASE_URL: {parts.scheme!r} is not postgresql; write it like {EXAMPLE}")
        name = parts.path.lstrip("/")
        if not name:
            raise ImproperlyConfigured(f"DATABASE_URL: names no database; write it like {EXAMPLE}")
        socket = parse_qs(parts.query).get("host", [""])[0]
        return cls(
            host=socket or parts.hostname or "127.0.0.1",
            port=str(port or ""),
            name=unquote(name),
            user=unquote(parts.username or "postgres"),
            password=unquote(parts.password or ""),
        )

    @property
    def place(self) -> str:
        """For people; without credentials."""
        return f"database {self.name} on {self.host}" + (f":{self.port}" if self.port else "")


def connection_failure(error: BaseException | None) -> str | None:
    """Why no connection could be made or kept, in one line; None where a server refused a statement."""
    if not isinstance(error, psycopg.OperationalError) or (error.sqlstate or "08")[:2] != "08":
        return None
    text = str(error).strip()
    reasons = re.findall(r"failed: (?!connection to server)([^\n]+)", text)
    return str(reasons[-1] if reasons else text.partition("\n")[0])


def role_name(role: DatabaseRole) -> str:
    return f"brigade_{role}"


def role_password(server: Server, role: DatabaseRole, secret_key: str) -> str:
    """Derived, so that three more secrets need no store. Empty where the server asks for none (embedded, trust)."""
    if not server.password:
        return ""
    return keep_secret(hmac.new(secret_key.encode(), f"database-role:{role}".encode(), hashlib.sha256).hexdigest())


def django_database(server: Server, role: DatabaseRole, secret_key: str) -> dict[str, Any]:
    """Each thread keeps a connection, tests it before its next use, and makes a new one at once where the server was away."""
    options: dict[str, Any] = {"connect_timeout": 5, "application_name": f"brigade {os.environ.get('BRIGADE_PROCESS', role)}"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": server.name,
        "USER": role_name(role),
        "PASSWORD": role_password(server, role, secret_key),
        "HOST": server.host,
        "PORT": server.port,
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }
