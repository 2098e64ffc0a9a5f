"""What a client called a request, so that it is made once however often it is sent."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class IdempotencyKey(models.Model):
    """One per project and key, written in the transaction that writes the requests. No text of the body: only its hash."""

    pk = models.CompositePrimaryKey("tenant_id", "project_id", "key")
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    key = models.CharField(max_length=255)
    body_hash = models.BinaryField()  # 32 bytes
    request_ids = ArrayField(models.UUIDField())  # one for each prompt, in order
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "idempotency_key"
        indexes = [models.Index(fields=["created_at"], name="idempotency_key_age")]
