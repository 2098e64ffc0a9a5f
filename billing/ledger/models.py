"""Double entry in nano-USD. Rows are only ever inserted; a deferred constraint trigger makes every transaction sum to zero."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class AccountKind(models.TextChoices):
    ACCRUED = "accrued", "used, not invoiced yet"  # tenant, debit (+)
    RECEIVABLE = "receivable", "invoiced, not paid yet"  # tenant, debit (+)
    PREPAID = "prepaid", "paid ahead"  # tenant, credit (-)
    PROMOTIONAL = "promotional", "credit given by the platform"  # tenant, credit (-)
    REVENUE = "revenue", "earned"  # platform, credit (-)
    ROUNDING = "rounding", "differences of invoices in whole cents"  # platform
    CASH = "cash", "received"  # platform, debit (+)


TENANT_KINDS = (AccountKind.ACCRUED, AccountKind.RECEIVABLE, AccountKind.PREPAID, AccountKind.PROMOTIONAL)


class LedgerAccount(models.Model):
    tenant_id = models.UUIDField(null=True)  # null: the platform's own
    kind = models.CharField(max_length=12, choices=AccountKind.choices)

    class Meta:
        db_table = "ledger_account"
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "kind"], name="ledger_account_once", nulls_distinct=False),
            models.CheckConstraint(
                condition=models.Q(tenant_id__isnull=False, kind__in=TENANT_KINDS)
                | (models.Q(tenant_id__isnull=True) & ~models.Q(kind__in=TENANT_KINDS)),
                name="ledger_account_kind_of_owner",
            ),
        ]


class LedgerTransaction(models.Model):
    """`content` is the SHA-256 of tenant, description and entries: the same source key with other content is refused."""

    source_key = models.CharField(max_length=200, unique=True)
    tenant_id = models.UUIDField()
    posted_at = models.DateTimeField(db_default=Now())
    description = models.CharField(max_length=200)
    entry_count = models.SmallIntegerField()  # nobody can add entries later
    content = models.CharField(max_length=64)
    reverses = models.OneToOneField("self", on_delete=models.PROTECT, null=True, related_name="reversed_by")

    class Meta:
        db_table = "ledger_transaction"
        constraints = [models.CheckConstraint(condition=models.Q(entry_count__gte=2), name="ledger_transaction_two_entries")]
        indexes = [models.Index(fields=["tenant_id", "posted_at"], name="ledger_transaction_by_tenant")]


class LedgerEntry(models.Model):
    """Positive is debit, negative is credit. `effective_at` is the time that the entry is about: it decides the period."""

    transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, related_name="entries")
    account = models.ForeignKey(LedgerAccount, on_delete=models.PROTECT, related_name="entries")
    tenant_id = models.UUIDField()  # the transaction's
    amount_nano_usd = models.BigIntegerField()
    effective_at = models.DateTimeField()

    class Meta:
        db_table = "ledger_entry"
        constraints = [models.CheckConstraint(condition=~models.Q(amount_nano_usd=0), name="ledger_entry_not_zero")]
        indexes = [models.Index(fields=["account", "effective_at"], name="ledger_entry_by_account")]
