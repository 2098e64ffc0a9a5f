"""Holds and their counters. Lock order everywhere: accounts by tenant id, then holds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import IntegrityError, transaction

from billing.errors import HoldConflict, InsufficientFunds, ReliefRefused
from billing.holds.models import Hold, HoldAccount, HoldRelief, HoldState
from inference.database import execute, query, tenant_scope
from inference.requests.models import FINAL

ORPHAN_AFTER_S = 3600  # a hold whose request was never written

# One statement: the counter moves only while the limit allows it, and the hold exists only when the counter moved.
_PLACE = """
WITH account AS (
    UPDATE holds_account SET held_nano_usd = held_nano_usd + %s
    WHERE tenant_id = %s
      AND (limit_nano_usd IS NULL OR used_nano_usd + held_nano_usd + %s <= limit_nano_usd)
    RETURNING tenant_id
)
INSERT INTO holds_hold (request_id, tenant_id, amount_nano_usd, settled_nano_usd, state)
SELECT %s, tenant_id, %s, 0, 'open' FROM account
RETURNING request_id
"""

_SWEEPABLE = """
SELECT h.tenant_id, array_agg(h.request_id) FROM holds_hold h
LEFT JOIN inference_request r ON r.id = h.request_id
WHERE h.state = 'open'
  AND (r.state = ANY(%s) OR (r.id IS NULL AND h.placed_at < now() - make_interval(secs => %s)))
  AND NOT EXISTS (SELECT FROM inference_usage_pending p WHERE p.request_id = h.request_id)
GROUP BY h.tenant_id ORDER BY h.tenant_id
"""


@dataclass(frozen=True, slots=True)
class Settlement:
    tenant_id: uuid.UUID
    total_nano_usd: int  # of all that the request cost so far


def hold_account_open(*, tenant_id: uuid.UUID, limit_nano_usd: int | None) -> HoldAccount:
    """Without an account a tenant can place no hold. An account that exists keeps its limit."""
    account, _ = HoldAccount.objects.get_or_create(tenant_id=tenant_id, defaults={"limit_nano_usd": limit_nano_usd})
    return account


def hold_limit_set(*, tenant_id: uuid.UUID, limit_nano_usd: int | None) -> None:
    """Opens the account where there is none. A limit below what is used and held stops new holds, nothing else."""
    HoldAccount.objects.update_or_create(tenant_id=tenant_id, defaults={"limit_nano_usd": limit_nano_usd})


def hold_place(*, tenant_id: uuid.UUID, request_id: uuid.UUID, amount_nano_usd: int) -> None:
    """Takes the amount out of what the tenant may still spend. The same hold twice is one; raises InsufficientFunds."""
    if amount_nano_usd < 0:
        raise ValueError(f"a hold of {amount_nano_usd} nano-USD")
    with tenant_scope(tenant_id):
        placed, taken = _place(tenant_id, request_id, amount_nano_usd)
        if placed:
            return
        known = Hold.objects.filter(request_id=request_id).values_list("tenant_id", "amount_nano_usd").first()
        if known == (tenant_id, amount_nano_usd):
            return
        if known or taken:
            raise HoldConflict(f"request {request_id} has another hold")
        raise InsufficientFunds(_refusal(tenant_id))


def hold_release(*, request_id: uuid.UUID) -> None:
    """The request ended without use. Does nothing to a hold that is settled or released, or that does not exist."""
    with transaction.atomic():
        hold = Hold.objects.filter(request_id=request_id).first()
        if hold:
            _release(hold.tenant_id, [request_id])


def hold_settle(*, request_id: uuid.UUID, amount_nano_usd: int) -> None:
    """The request cost this much in total. Again with the same total: nothing; with another: the use follows it."""
    hold = Hold.objects.filter(request_id=request_id).first()
    if hold is None:
        raise HoldConflict(f"request {request_id} has no hold")
    holds_settle(settlements={request_id: Settlement(hold.tenant_id, amount_nano_usd)})


@transaction.atomic
def holds_settle(*, settlements: Mapping[uuid.UUID, Settlement]) -> None:
    """Settles by request id. A request without a hold gets a settled one; a tenant without an account gets one with limit 0."""
    tenants = sorted({entry.tenant_id for entry in settlements.values()})
    _accounts_lock(tenants)
    before = {hold.request_id: hold for hold in Hold.objects.filter(request_id__in=settlements)}
    used, held = dict.fromkeys(tenants, 0), dict.fromkeys(tenants, 0)
    for request_id, entry in settlements.items():
        hold = before.get(request_id)
        if hold and hold.tenant_id != entry.tenant_id:
            raise HoldConflict(f"the hold of request {request_id} is another tenant's")
        used[entry.tenant_id] += entry.total_nano_usd - (hold.settled_nano_usd if hold else 0)
        held[entry.tenant_id] -= hold.amount_nano_usd if hold and hold.state == HoldState.OPEN else 0
    _holds_write(settlements)
    _accounts_move(tenants, used, held)


@transaction.atomic
def hold_account_relieve(*, tenant_id: uuid.UUID, amount_nano_usd: int, source_key: str) -> None:
    """Paid or written off: the use sinks, once per source key. Raises ReliefRefused for more than is owed."""
    _accounts_lock([tenant_id])
    known = HoldRelief.objects.filter(source_key=source_key).first()
    if known:
        if (known.tenant_id, known.amount_nano_usd) != (tenant_id, amount_nano_usd):
            raise ReliefRefused(f"source key {source_key!r} stands for another relief")
        return
    if not 0 < amount_nano_usd <= HoldAccount.objects.get(tenant_id=tenant_id).used_nano_usd:
        raise ReliefRefused(f"{amount_nano_usd} nano-USD is not between 1 and what is owed")
    HoldRelief.objects.create(source_key=source_key, tenant_id=tenant_id, amount_nano_usd=amount_nano_usd)
    _accounts_move([tenant_id], {tenant_id: -amount_nano_usd}, {tenant_id: 0})


def holds_sweep() -> int:
    """Releases the holds of requests that ended without usage, and of requests that never came to be. Returns how many."""
    found = query(_SWEEPABLE, [[state.value for state in FINAL], ORPHAN_AFTER_S])
    return sum(_release(tenant_id, request_ids) for tenant_id, request_ids in found)


def _place(tenant_id: uuid.UUID, request_id: uuid.UUID, amount_nano_usd: int) -> tuple[bool, bool]:
    """(placed, the request has a hold already)"""
    try:
        with transaction.atomic():
            return bool(query(_PLACE, [amount_nano_usd, tenant_id, amount_nano_usd, request_id, amount_nano_usd])), False
    except IntegrityError:
        return False, True


@transaction.atomic
def _release(tenant_id: uuid.UUID, request_ids: list[uuid.UUID]) -> int:
    HoldAccount.objects.select_for_update().filter(tenant_id=tenant_id).first()
    ((count, amount_nano_usd),) = query(
        "WITH done AS (UPDATE holds_hold SET state = 'released', ended_at = now() "
        "WHERE request_id = ANY(%s) AND state = 'open' RETURNING amount_nano_usd) "
        "SELECT count(*), coalesce(sum(amount_nano_usd), 0)::bigint FROM done",
        [request_ids],
    )
    execute("UPDATE holds_account SET held_nano_usd = held_nano_usd - %s WHERE tenant_id = %s", [amount_nano_usd, tenant_id])
    return int(count)


def _accounts_lock(tenants: list[uuid.UUID]) -> None:
    execute(
        "INSERT INTO holds_account (tenant_id, limit_nano_usd, used_nano_usd, held_nano_usd) "
        "SELECT unnest(%s::uuid[]), 0, 0, 0 ON CONFLICT DO NOTHING",
        [tenants],
    )
    execute("SELECT FROM holds_account WHERE tenant_id = ANY(%s) ORDER BY tenant_id FOR UPDATE", [tenants])


def _holds_write(settlements: Mapping[uuid.UUID, Settlement]) -> None:
    execute(
        "INSERT INTO holds_hold AS h (request_id, tenant_id, amount_nano_usd, settled_nano_usd, state, ended_at) "
        "SELECT request_id, tenant_id, 0, total, 'settled', now() FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[]) "
        "AS t (request_id, tenant_id, total) ORDER BY request_id ON CONFLICT (request_id) DO UPDATE "
        "SET state = 'settled', settled_nano_usd = EXCLUDED.settled_nano_usd, ended_at = EXCLUDED.ended_at",
        [
            list(settlements),
            [entry.tenant_id for entry in settlements.values()],
            [entry.total_nano_usd for entry in settlements.values()],
        ],
    )


def _accounts_move(tenants: list[uuid.UUID], used: Mapping[uuid.UUID, int], held: Mapping[uuid.UUID, int]) -> None:
    execute(
        "UPDATE holds_account AS a SET used_nano_usd = a.used_nano_usd + t.used, held_nano_usd = a.held_nano_usd + t.held "
        "FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[]) AS t (tenant_id, used, held) WHERE a.tenant_id = t.tenant_id",
        [tenants, [used[tenant] for tenant in tenants], [held[tenant] for tenant in tenants]],
    )


def _refusal(tenant_id: uuid.UUID) -> str:
    if not HoldAccount.objects.filter(tenant_id=tenant_id).exists():
        return "This organisation has no billing account yet."
    return "This organisation has reached its credit limit. Pay open use or ask for a higher limit."
