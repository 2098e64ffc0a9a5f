"""The ledger: balanced, append-only, once per source key."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from django.db import DatabaseError, IntegrityError, ProgrammingError, connection, transaction

from billing.errors import LedgerConflict, LedgerRefused
from billing.ledger.models import AccountKind, LedgerAccount, LedgerEntry, LedgerTransaction
from billing.ledger.selectors import accrued_usage_between, platform_balance, tenant_balances
from billing.ledger.services import Posting, ledger_post, ledger_reverse
from inference.database import tenant_scope
from tests.billing.cast import ACME, JUNE, RIVAL, at_once

pytestmark = pytest.mark.django_db


def pair(amount_nano_usd: int = 5) -> list[Posting]:
    return [Posting(AccountKind.ACCRUED, amount_nano_usd, JUNE), Posting(AccountKind.REVENUE, -amount_nano_usd, JUNE)]


def post(key: str = "usage:1", entries: list[Posting] | None = None) -> LedgerTransaction:
    return ledger_post(source_key=key, tenant_id=ACME, entries=entries or pair(), description="test")


def commit() -> None:
    """What the deferred triggers would say at a commit."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


@transaction.atomic
def raw_transaction(amounts: tuple[int, ...], *, tenant_id: uuid.UUID = ACME, into: LedgerTransaction | None = None) -> None:
    """Past the service, on ACME's account."""
    account, _ = LedgerAccount.objects.get_or_create(tenant_id=ACME, kind=AccountKind.ACCRUED)
    row = into or LedgerTransaction.objects.create(source_key="raw", tenant_id=tenant_id, entry_count=2, content="", description="")
    LedgerEntry.objects.bulk_create(
        LedgerEntry(transaction=row, account=account, tenant_id=tenant_id, amount_nano_usd=amount, effective_at=JUNE)
        for amount in amounts
    )
    commit()


@transaction.atomic
def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_balances_are_sums_of_signed_entries() -> None:
    post("usage:1", pair(5))
    post("usage:2", pair(7))
    commit()
    assert tenant_balances(tenant_id=ACME) == {AccountKind.ACCRUED: 12}
    assert platform_balance(kind=AccountKind.REVENUE) == -12
    assert tenant_balances(tenant_id=RIVAL) == {}


def test_the_same_key_and_content_is_one_transaction_and_other_content_is_refused() -> None:
    first = post()
    assert post() == first
    with pytest.raises(LedgerConflict):
        post(entries=pair(6))
    with pytest.raises(LedgerConflict):
        ledger_post(source_key="usage:1", tenant_id=RIVAL, entries=pair(), description="test")
    assert LedgerEntry.objects.count() == 2


@pytest.mark.parametrize(
    "entries",
    [
        [Posting(AccountKind.ACCRUED, 5, JUNE), Posting(AccountKind.REVENUE, -4, JUNE)],
        [Posting(AccountKind.ACCRUED, 5, JUNE)],
        [Posting(AccountKind.ACCRUED, 0, JUNE), Posting(AccountKind.REVENUE, 0, JUNE)],
    ],
)
def test_what_is_no_transaction_is_refused_before_it_is_written(entries: list[Posting]) -> None:
    with pytest.raises(LedgerRefused):
        post(entries=entries)
    assert not LedgerTransaction.objects.exists()


@pytest.mark.parametrize("amounts", [(5, -4), (5,), (), (5, -3, -2), (5, -3, -3)])
def test_the_database_itself_refuses_unbalanced_or_miscounted_entries_at_the_commit(amounts: tuple[int, ...]) -> None:
    with pytest.raises(IntegrityError, match=f"{len(amounts)} of 2 entries"):
        raw_transaction(amounts)
    raw_transaction((5, -5))


def test_a_balanced_pair_cannot_be_added_to_a_transaction_that_stands() -> None:
    row = post()
    commit()
    with pytest.raises(IntegrityError, match="4 of 2 entries"):
        raw_transaction((9, -9), into=row)


def test_entries_cannot_touch_another_tenants_account() -> None:
    with pytest.raises(IntegrityError, match="2 of another tenant"):
        raw_transaction((9, -9), tenant_id=RIVAL)


@pytest.mark.parametrize("table", ["ledger_account", "ledger_transaction", "ledger_entry"])
@pytest.mark.parametrize("statement", ["UPDATE {} SET id = id", "DELETE FROM {}", "TRUNCATE {} CASCADE"])
def test_nothing_in_the_ledger_can_be_changed_or_removed(table: str, statement: str) -> None:
    post()
    commit()
    enable = f"ALTER TABLE {table} ENABLE TRIGGER {table}_no_truncate"  # off in test databases, for the flush
    with pytest.raises(IntegrityError, match="append-only"):
        run(enable, statement.format(table))
    assert LedgerEntry.objects.count() == 2


@pytest.mark.parametrize("role", ["app", "system"])
def test_the_working_roles_cannot_change_the_ledger_either(
    role: str, as_role: Callable[[str], AbstractContextManager[None]]
) -> None:
    post()
    with as_role(role), pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(ACME):
        LedgerEntry.objects.update(amount_nano_usd=1)


def test_the_gateway_role_reads_its_tenants_entries_and_writes_none(as_role: Callable[[str], AbstractContextManager[None]]) -> None:
    post()
    with connection.cursor() as cursor:
        cursor.execute("GRANT INSERT ON ledger_transaction TO brigade_app")  # as a careless GRANT ON ALL TABLES would
    with as_role("app"):
        assert LedgerTransaction.objects.count() == 0
        with tenant_scope(RIVAL):
            assert LedgerEntry.objects.count() == 0
        with tenant_scope(ACME):
            assert LedgerEntry.objects.count() == 2
        with pytest.raises(DatabaseError, match="row-level security"), tenant_scope(ACME):
            LedgerTransaction.objects.create(source_key="forged", tenant_id=ACME, entry_count=2, content="", description="")


def test_the_system_role_posts(as_role: Callable[[str], AbstractContextManager[None]]) -> None:
    with as_role("system"):
        post()
        commit()
    assert tenant_balances(tenant_id=ACME) == {AccountKind.ACCRUED: 5}


def test_a_reversal_mirrors_once_and_cannot_be_reversed() -> None:
    original = post()
    later = JUNE + timedelta(days=40)
    reversal = ledger_reverse(transaction_id=original.pk, effective_at=later, description="wrong")
    assert ledger_reverse(transaction_id=original.pk, effective_at=later, description="wrong") == reversal
    commit()
    assert tenant_balances(tenant_id=ACME) == {AccountKind.ACCRUED: 0}
    with pytest.raises(LedgerConflict):
        ledger_reverse(transaction_id=original.pk, effective_at=JUNE, description="again, elsewhere")
    with pytest.raises(LedgerRefused):
        ledger_reverse(transaction_id=reversal.pk, effective_at=later, description="back")


def test_a_period_is_half_open_and_counts_usage_only() -> None:
    post("usage:1", pair(5))
    post("payment:1", pair(100))
    hour = timedelta(hours=1)
    assert accrued_usage_between(tenant_id=ACME, start=JUNE, end=JUNE + hour) == 5
    assert accrued_usage_between(tenant_id=ACME, start=JUNE - hour, end=JUNE) == 0


@pytest.mark.parametrize(("tenant_id", "kind"), [(ACME, AccountKind.REVENUE), (None, AccountKind.ACCRUED)])
def test_an_account_of_the_wrong_owner_is_refused(tenant_id: uuid.UUID | None, kind: AccountKind) -> None:
    with pytest.raises(IntegrityError, match="ledger_account_kind_of_owner"), transaction.atomic():
        LedgerAccount.objects.create(tenant_id=tenant_id, kind=kind)


@pytest.mark.django_db(transaction=True)
def test_the_same_key_posted_at_once_is_one_transaction() -> None:
    assert len({row.pk for row in at_once(4, lambda _: post())}) == 1
    assert LedgerEntry.objects.count() == 2
    assert LedgerAccount.objects.count() == 2
