"""Credit holds: what a tenant may still spend, as counters that one conditional UPDATE moves."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class HoldAccount(models.Model):
    """One per tenant: used + held may not pass the limit (null: no limit) when a hold is placed.

    `used` is settled use that nobody has paid off yet; `held` is the sum of the open holds.
    """

    tenant_id = models.UUIDField(primary_key=True)
    limit_nano_usd = models.BigIntegerField(null=True)
    used_nano_usd = models.BigIntegerField(default=0)
    held_nano_usd = models.BigIntegerField(default=0)

    class Meta:
        db_table = "holds_account"
        constraints = [
            models.CheckConstraint(condition=models.Q(limit_nano_usd__gte=0), name="hold_account_limit_not_negative"),
            models.CheckConstraint(condition=models.Q(used_nano_usd__gte=0), name="hold_account_used_not_negative"),
            models.CheckConstraint(condition=models.Q(held_nano_usd__gte=0), name="hold_account_held_not_negative"),
        ]


class HoldState(models.TextChoices):
    OPEN = "open", "the request may still cost this much"
    SETTLED = "settled", "rated: `settled_nano_usd` is in the account's use"
    RELEASED = "released", "the request ended without use"


class Hold(models.Model):
    """One per request."""

    request_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    amount_nano_usd = models.BigIntegerField()
    settled_nano_usd = models.BigIntegerField(default=0)
    state = models.CharField(max_length=8, choices=HoldState.choices, default=HoldState.OPEN)
    placed_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "holds_hold"
        constraints = [
            models.CheckConstraint(condition=models.Q(amount_nano_usd__gte=0), name="hold_not_negative"),
            models.CheckConstraint(condition=models.Q(settled_nano_usd__gte=0), name="hold_settled_not_negative"),
            models.CheckConstraint(
                condition=models.Q(state="settled") | models.Q(settled_nano_usd=0), name="hold_use_only_when_settled"
            ),
        ]
        indexes = [models.Index(fields=["tenant_id"], name="hold_open", condition=models.Q(state="open"))]


class HoldRelief(models.Model):
    """Use that was paid off (or written off): lowers the account's use once per source key."""

    source_key = models.CharField(max_length=200, primary_key=True)
    tenant_id = models.UUIDField()
    amount_nano_usd = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "holds_relief"
        constraints = [models.CheckConstraint(condition=models.Q(amount_nano_usd__gt=0), name="hold_relief_positive")]
