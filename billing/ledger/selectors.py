"""Balances are sums."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.db.models import Q, Sum

from billing.ledger.models import AccountKind, LedgerEntry

USAGE_PREFIX = "usage:"  # source keys of what metering posts


def tenant_balances(*, tenant_id: uuid.UUID) -> dict[AccountKind, int]:
    """Nano-USD by kind, of the tenant's own accounts that have entries. Debit is positive."""
    rows = LedgerEntry.objects.filter(account__tenant_id=tenant_id).values_list("account__kind").annotate(Sum("amount_nano_usd"))
    return {AccountKind(kind): int(amount) for kind, amount in rows}


def platform_balance(*, kind: AccountKind) -> int:
    return _total(Q(account__tenant_id__isnull=True, account__kind=kind))


def accrued_usage_between(*, tenant_id: uuid.UUID, start: datetime, end: datetime) -> int:
    """What metering accrued for start <= time of use < end. Exact for borders on a quarter of an hour."""
    return _total(
        Q(account__tenant_id=tenant_id, account__kind=AccountKind.ACCRUED)
        & Q(effective_at__gte=start, effective_at__lt=end, transaction__source_key__startswith=USAGE_PREFIX)
    )


def _total(condition: Q) -> int:
    return int(LedgerEntry.objects.filter(condition).aggregate(total=Sum("amount_nano_usd"))["total"] or 0)
