"""The only writer of the ledger."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from billing.database import insert_rows
from billing.errors import LedgerConflict, LedgerRefused
from billing.ledger.models import TENANT_KINDS, AccountKind, LedgerAccount, LedgerTransaction
from inference import failpoints
from inference.database import query

REVERSAL_PREFIX = "reverse:"
OwnerKey = tuple[uuid.UUID | None, str]  # (tenant or the platform, kind)


@dataclass(frozen=True, slots=True)
class Posting:
    """An entry to be: debit positive, credit negative. A tenant's kind means the transaction's tenant."""

    kind: AccountKind
    amount_nano_usd: int
    effective_at: datetime


@dataclass(frozen=True, slots=True)
class Draft:
    """A transaction to be."""

    source_key: str
    tenant_id: uuid.UUID
    entries: Sequence[Posting]
    description: str
    reverses: int | None = None

    def check(self) -> None:
        if len(self.entries) < 2 or any(entry.amount_nano_usd == 0 for entry in self.entries):
            raise LedgerRefused("a transaction has at least two entries, none of them zero")
        if total := sum(entry.amount_nano_usd for entry in self.entries):
            raise LedgerRefused(f"the entries sum to {total} nano-USD instead of zero")

    def content(self) -> str:
        rows = sorted([entry.kind.value, entry.amount_nano_usd, entry.effective_at.isoformat()] for entry in self.entries)
        return hashlib.sha256(json.dumps([str(self.tenant_id), self.description, rows]).encode()).hexdigest()


def ledger_post(*, source_key: str, tenant_id: uuid.UUID, entries: Sequence[Posting], description: str) -> LedgerTransaction:
    """Posts once per source key. The same key with the same content returns what stands; other content raises LedgerConflict."""
    posted = ledger_post_all([Draft(source_key, tenant_id, entries, description)])
    return LedgerTransaction.objects.get(pk=posted[source_key])


@transaction.atomic
def ledger_post_all(drafts: Sequence[Draft]) -> dict[str, int]:
    """`ledger_post` for many, all or none: transaction ids by source key."""
    for draft in drafts:
        draft.check()
    failpoints.reach("ledger.post")
    inserted = _transactions_insert(drafts)
    posted = {
        row.source_key: row for row in LedgerTransaction.objects.filter(source_key__in=[draft.source_key for draft in drafts])
    }
    for draft in drafts:
        if draft.source_key not in inserted and posted[draft.source_key].content != draft.content():
            raise LedgerConflict(f"source key {draft.source_key!r} stands for other content")
    _entries_insert([(posted[draft.source_key].pk, draft) for draft in drafts if draft.source_key in inserted])
    failpoints.reach("ledger.posted")
    return {key: row.pk for key, row in posted.items()}


def ledger_reverse(*, transaction_id: int, effective_at: datetime, description: str) -> LedgerTransaction:
    """The mirrored transaction, at most one for each. `effective_at` decides which period it belongs to."""
    original = LedgerTransaction.objects.get(pk=transaction_id)
    if original.reverses_id is not None:
        raise LedgerRefused(f"transaction {transaction_id} is itself a reversal")
    mirrored = [
        Posting(AccountKind(entry.account.kind), -entry.amount_nano_usd, effective_at)
        for entry in original.entries.select_related("account").order_by("id")
    ]
    draft = Draft(f"{REVERSAL_PREFIX}{original.pk}", original.tenant_id, mirrored, description, reverses=original.pk)
    return LedgerTransaction.objects.get(pk=ledger_post_all([draft])[draft.source_key])


def _transactions_insert(drafts: Sequence[Draft]) -> set[str]:
    """The source keys whose rows are ours. Waits for other transactions that are inserting the same keys."""
    rows = sorted(
        (draft.source_key, draft.tenant_id, draft.description, len(draft.entries), draft.content(), draft.reverses)
        for draft in drafts
    )
    columns = [list(column) for column in zip(*rows, strict=True)]
    inserted = query(
        "INSERT INTO ledger_transaction (source_key, tenant_id, description, entry_count, content, reverses_id) "
        "SELECT * FROM unnest(%s::text[], %s::uuid[], %s::text[], %s::smallint[], %s::text[], %s::bigint[]) "
        "ON CONFLICT (source_key) DO NOTHING RETURNING source_key",
        columns or [[]] * 6,
    )
    return {source_key for (source_key,) in inserted}


def _entries_insert(drafts: Sequence[tuple[int, Draft]]) -> None:
    accounts = _accounts({_owner_key(draft, entry) for _, draft in drafts for entry in draft.entries})
    columns = {"transaction_id": "bigint", "account_id": "bigint", "tenant_id": "uuid", "amount_nano_usd": "bigint"}
    rows = [
        (pk, accounts[_owner_key(draft, entry)], draft.tenant_id, entry.amount_nano_usd, entry.effective_at)
        for pk, draft in drafts
        for entry in draft.entries
    ]
    insert_rows("ledger_entry", {**columns, "effective_at": "timestamptz"}, rows)


def _owner_key(draft: Draft, entry: Posting) -> OwnerKey:
    return (draft.tenant_id if entry.kind in TENANT_KINDS else None, entry.kind.value)


def _accounts(keys: set[OwnerKey]) -> dict[OwnerKey, int]:
    found = _accounts_find(keys)
    if missing := keys - found.keys():
        rows = sorted(missing, key=str)
        LedgerAccount.objects.bulk_create(
            [LedgerAccount(tenant_id=owner, kind=kind) for owner, kind in rows], ignore_conflicts=True
        )
        found = _accounts_find(keys)
    return found


def _accounts_find(keys: set[OwnerKey]) -> dict[OwnerKey, int]:
    owners = {owner for owner, _ in keys}
    rows = LedgerAccount.objects.filter(Q(tenant_id__in=owners - {None}) | Q(tenant_id__isnull=True)).values_list(
        "tenant_id", "kind", "pk"
    )
    return {(owner, kind): pk for owner, kind, pk in rows}
