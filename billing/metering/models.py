"""What usage cost: a rated line per usage row, the exact remainders between them, and the daily sums."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from billing.ledger.models import LedgerTransaction
from billing.pricing.models import Price


class TenantMeter(models.Model):
    """Locked by whoever rates for the tenant, so `last_line` counts its rated lines in the order of their commits."""

    tenant_id = models.UUIDField(primary_key=True)
    last_line = models.BigIntegerField(default=0)

    class Meta:
        db_table = "metering_tenant"


class Remainder(models.Model):
    """The part of a nano-dollar that is not charged yet: `remainder / price.unit_quantity`. The next line carries it in."""

    tenant_id = models.UUIDField()
    price = models.ForeignKey(Price, on_delete=models.PROTECT)
    remainder = models.BigIntegerField()

    class Meta:
        db_table = "metering_remainder"
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "price"], name="remainder_once"),
            models.CheckConstraint(condition=models.Q(remainder__gte=0), name="remainder_not_negative"),
        ]


class RatedRequest(models.Model):
    """A request whose usage is rated; the total of its lines (zero when nothing was billable)."""

    request_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    total_nano_usd = models.BigIntegerField()
    rated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "metering_request"


class RatedLine(models.Model):
    """amount = (quantity * unit_price + carry_in) // unit_quantity, which a constraint checks. Append-only.

    `number` counts a tenant's lines from 1 without a gap, in the order in which they became visible.
    """

    tenant_id = models.UUIDField()
    number = models.BigIntegerField()
    usage_id = models.BigIntegerField(unique=True)  # inference.usage.models.UsageRow
    request_id = models.UUIDField()
    project_id = models.UUIDField()
    key_id = models.UUIDField()
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=40)
    meter = models.CharField(max_length=32)
    cache_tier = models.CharField(max_length=8)
    quantity = models.BigIntegerField()
    unit = models.CharField(max_length=20)
    price = models.ForeignKey(Price, on_delete=models.PROTECT)
    price_book = models.IntegerField()  # version
    unit_price_nano_usd = models.BigIntegerField()
    unit_quantity = models.BigIntegerField()
    carry_in = models.BigIntegerField()  # in nano-USD / unit_quantity
    amount_nano_usd = models.BigIntegerField()
    occurred_at = models.DateTimeField()
    rated_at = models.DateTimeField(db_default=Now())
    ledger_transaction = models.ForeignKey(LedgerTransaction, on_delete=models.PROTECT, null=True)  # null: nothing to post

    class Meta:
        db_table = "metering_line"
        constraints = [
            models.UniqueConstraint(fields=["tenant_id", "number"], name="line_number_once"),
            models.CheckConstraint(condition=models.Q(quantity__gte=0, carry_in__gte=0), name="line_not_negative"),
            models.CheckConstraint(
                condition=models.Q(amount_nano_usd=0) | models.Q(ledger_transaction__isnull=False), name="line_is_posted"
            ),
        ]
        indexes = [
            models.Index(fields=["tenant_id", "occurred_at"], name="line_by_tenant"),
            models.Index(fields=["request_id"], name="line_by_request"),
        ]


class FaultReason(models.TextChoices):
    PRICE_MISSING = "price_missing", "no price book in force prices this meter"
    UNIT_MISMATCH = "unit_mismatch", "usage and price count in different units"
    TENANT_MISMATCH = "tenant_mismatch", "usage rows name another tenant than the request"
    REFUSED = "refused", "billing's own constraints refused the result"
    AMOUNT_OUT_OF_RANGE = "amount_out_of_range", "the amount is too large to be true"


class RatingFault(models.Model):
    """A request that could not be rated. It stays pending and is tried again from `retry_at` on; others go on without it."""

    request_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    reason = models.CharField(max_length=24, choices=FaultReason.choices)
    detail = models.CharField(max_length=400)
    tries = models.IntegerField(default=1)
    first_seen_at = models.DateTimeField(db_default=Now())
    retry_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "metering_fault"
        indexes = [models.Index(fields=["tenant_id"], name="fault_open", condition=models.Q(resolved_at__isnull=True))]


class UsageDay(models.Model):
    """Sums of the rated lines of a UTC day, kept in the transaction that rates them."""

    tenant_id = models.UUIDField()
    day = models.DateField()
    project_id = models.UUIDField()
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=40)
    meter = models.CharField(max_length=32)
    unit = models.CharField(max_length=20)
    quantity = models.DecimalField(max_digits=38, decimal_places=0)  # token-microseconds of a month may pass 2^63
    amount_nano_usd = models.BigIntegerField()

    class Meta:
        db_table = "metering_day"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "day", "project_id", "model", "service_tier", "meter", "unit"], name="usage_day_once"
            )
        ]
