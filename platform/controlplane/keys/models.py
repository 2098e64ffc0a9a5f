"""API keys as stored: never the secret, only what is needed to recognise it."""

from __future__ import annotations

import uuid

from django.db import models


class ApiKey(models.Model):
    """A key of a project. `digest` is a keyed hash of the whole key; `prefix` is what people see of it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant_id = models.UUIDField(editable=False)
    project_id = models.UUIDField(editable=False)
    name = models.CharField(max_length=200)
    prefix = models.CharField(max_length=16, editable=False)
    digest = models.BinaryField(max_length=32)  # HMAC-SHA256
    created_by_id = models.UUIDField(null=True, editable=False)  # a user
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, editable=False)  # to the minute
    requests_per_minute = models.PositiveIntegerField(default=6_000)
    tokens_per_minute = models.PositiveIntegerField(default=10_000_000)
    concurrent_requests = models.PositiveIntegerField(default=256)

    class Meta:
        db_table = "keys_apikey"
        ordering = ["-created_at"]
        indexes = [models.Index(fields=["tenant_id", "-created_at"], name="apikey_by_tenant")]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(requests_per_minute__gt=0, tokens_per_minute__gt=0, concurrent_requests__gt=0),
                name="apikey_limits_above_zero",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
