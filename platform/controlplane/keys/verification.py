"""From a key as presented to who is calling. The one question to the database that is asked before the tenant is known."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django.db import connection
from django.utils import timezone

from controlplane.keys.tokens import ParsedKey, key_parse

Refusal = Literal["revoked", "expired", "suspended"]


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key's row with what of its tenant a request needs."""

    key_id: uuid.UUID
    tenant_id: uuid.UUID
    project_id: uuid.UUID
    digest: bytes
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    requests_per_minute: int
    tokens_per_minute: int
    concurrent_requests: int
    tenant_state: str
    scope_epoch: int

    def refusal(self, now: datetime) -> Refusal | None:
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return None if self.tenant_state == "active" else "suspended"


def key_record(key_id: uuid.UUID) -> KeyRecord | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM keys_lookup(%s)", [key_id])
        row = cursor.fetchone()
    return KeyRecord(*row) if row else None


def record_matches(record: KeyRecord | None, parsed: ParsedKey) -> bool:
    """Takes the same time for an unknown key as for a wrong one."""
    return parsed.matches(record.digest if record else bytes(32)) and record is not None


def key_verify(key: str) -> KeyRecord | None:
    """None when the key may not be used now, for whatever reason."""
    parsed = key_parse(key)
    record = key_record(parsed.key_id) if parsed else None
    if parsed is None or record is None or not record_matches(record, parsed):
        return None
    return None if record.refusal(timezone.now()) else record
