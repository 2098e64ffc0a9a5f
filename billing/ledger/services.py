"""The only writer of the ledger."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from billing.errors import LedgerConflict, LedgerRefused
from billing.ledger.models import TENANT_KINDS, AccountKind, LedgerAccount, LedgerEntry, LedgerTransaction
from inference.database import query

REVERSAL_PREFIX = "reverse:"


@dataclass(frozen=True, slots=True)
class Posting:
    """An entry to be: debit positive, credit negative. A tenant's kind means the transaction's tenant."""

    kind: AccountKind
    amount_nano_usd: int
    effective_at: datetime


@transaction.atomic
def ledger_post(*, source_key: str, tenant_id: uuid.UUID, entries: Sequence[Posting], description: str) -> LedgerTransaction:
    """Posts once per source key. The same key with the same content returns what stands; other content raises LedgerConflict."""
    return _post(source_key, tenant_id, entries, description, reverses=None)


@transaction.atomic
def ledger_reverse(*, transaction_id: int, effective_at: datetime, description: str) -> LedgerTransaction:
    """The mirrored transaction, at most one for each. `effective_at` decides which period it belongs to."""
    original = LedgerTransaction.objects.get(pk=transaction_id)
    if original.reverses_id is not None:
        raise LedgerRefused(f"transaction {transaction_id} is itself a reversal")
    mirrored = [
        Posting(AccountKind(entry.account.kind), -entry.amount_nano_usd, effective_at)
        for entry in original.entries.select_related("account").order_by("id")
    ]
    return _post(f"{REVERSAL_PREFIX}{original.pk}", original.tenant_id, mirrored, description, reverses=original.pk)


def _post(
    source_key: str, tenant_id: uuid.UUID, entries: Sequence[Posting], description: str, *, reverses: int | None
) -> LedgerTransaction:
    _check(entries)
    content = _digest(tenant_id, entries, description)
    created = _insert(source_key, tenant_id, len(entries), description, content, reverses)
    posted = LedgerTransaction.objects.get(source_key=source_key)
    if not created:
        if posted.content != content:
            raise LedgerConflict(f"source key {source_key!r} stands for other content")
        return posted
    accounts = _accounts(tenant_id, {entry.kind for entry in entries})
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            transaction=posted,
            account_id=accounts[entry.kind],
            tenant_id=tenant_id,
            amount_nano_usd=entry.amount_nano_usd,
            effective_at=entry.effective_at,
        )
        for entry in entries
    )
    return posted


def _check(entries: Sequence[Posting]) -> None:
    if len(entries) < 2 or any(entry.amount_nano_usd == 0 for entry in entries):
        raise LedgerRefused("a transaction has at least two entries, none of them zero")
    if total := sum(entry.amount_nano_usd for entry in entries):
        raise LedgerRefused(f"the entries sum to {total} nano-USD instead of zero")


def _digest(tenant_id: uuid.UUID, entries: Sequence[Posting], description: str) -> str:
    rows = sorted([entry.kind.value, entry.amount_nano_usd, entry.effective_at.timestamp()] for entry in entries)
    return hashlib.sha256(json.dumps([str(tenant_id), description, rows]).encode()).hexdigest()


def _insert(source_key: str, tenant_id: uuid.UUID, entry_count: int, description: str, content: str, reverses: int | None) -> bool:
    """Whether the row is ours. Waits for another transaction that is inserting the same key."""
    inserted = query(
        "INSERT INTO ledger_transaction (source_key, tenant_id, description, entry_count, content, reverses_id) "
        "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (source_key) DO NOTHING RETURNING id",
        [source_key, tenant_id, description, entry_count, content, reverses],
    )
    return bool(inserted)


def _accounts(tenant_id: uuid.UUID, kinds: set[AccountKind]) -> dict[AccountKind, int]:
    return {kind: _account(tenant_id if kind in TENANT_KINDS else None, kind) for kind in sorted(kinds)}


def _account(owner: uuid.UUID | None, kind: AccountKind) -> int:
    found = LedgerAccount.objects.filter(tenant_id=owner, kind=kind).values_list("pk", flat=True).first()
    if found is not None:
        return found
    LedgerAccount.objects.bulk_create([LedgerAccount(tenant_id=owner, kind=kind)], ignore_conflicts=True)
    return LedgerAccount.objects.values_list("pk", flat=True).get(tenant_id=owner, kind=kind)
