"""Append-only usage rows: what an engine did for a request, written in the transaction that ends the request."""

from __future__ import annotations

from django.db import models


class Meter(models.TextChoices):
    PREFILL_COMPUTED = "prefill_computed", "prompt tokens computed"
    PREFILL_CACHED = "prefill_cached", "prompt tokens read from the prefix cache"
    DECODE = "decode", "tokens generated"
    KV_TOKEN_SECONDS = "kv_token_seconds", "KV cache held while running"
    RECOMPUTED = "recomputed", "tokens computed again for a reason of ours"


UNITS: dict[str, str] = {
    Meter.PREFILL_COMPUTED: "token",
    Meter.PREFILL_CACHED: "token",
    Meter.DECODE: "token",
    Meter.KV_TOKEN_SECONDS: "token_microsecond",
    Meter.RECOMPUTED: "token",
}


class UsageRow(models.Model):
    """A quantity of one meter. `billable` is false for what the operator pays (recompute after a fault, for instance)."""

    request_id = models.UUIDField()
    attempt = models.IntegerField()
    meter = models.CharField(max_length=32, choices=Meter.choices)
    cache_tier = models.CharField(max_length=8, default="")  # of prefill_cached and kv_token_seconds
    sequence = models.IntegerField(default=0)
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    key_id = models.UUIDField()
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=40)  # the tier that was served
    quantity = models.BigIntegerField()
    unit = models.CharField(max_length=20)
    billable = models.BooleanField(default=True)
    occurred_at = models.DateTimeField()

    class Meta:
        db_table = "inference_usage"
        constraints = [
            models.UniqueConstraint(fields=["request_id", "attempt", "meter", "cache_tier", "sequence"], name="usage_once"),
            models.CheckConstraint(condition=models.Q(quantity__gte=0), name="usage_not_negative"),
        ]
        indexes = [models.Index(fields=["tenant_id", "occurred_at"], name="usage_by_tenant")]


class UsagePending(models.Model):
    """A finished request that billing has not taken: written with its usage rows, deleted by the transaction that rates them."""

    request_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    at = models.DateTimeField()

    class Meta:
        db_table = "inference_usage_pending"
        indexes = [models.Index(fields=["at"], name="usage_pending_age")]
