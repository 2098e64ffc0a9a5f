"""Where every published piece of KV lies. A row names a place; what is there is proved by generation and digest after the copy."""

from __future__ import annotations

from django.db import models


class Extent(models.Model):
    """One copy of an extent: the KV of the last EXTENT_TOKENS of a hashed chain, on one worker."""

    digest = models.BinaryField(max_length=32)  # chain hash of its last block
    worker = models.CharField(max_length=64)
    worker_epoch = models.BigIntegerField()
    tier = models.CharField(max_length=8, default="device")
    encoding = models.CharField(max_length=16)  # dtype or quantisation of this copy; not a part of the identity
    tokens = models.IntegerField()  # length of the chain up to and with this extent
    block = models.IntegerField()  # place of its last block; those before it are named by the chain
    pinned_until = models.DateTimeField(null=True)
    used_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "kv_extent"
        constraints = [models.UniqueConstraint(fields=["digest", "worker", "tier"], name="extent_once")]
        indexes = [models.Index(fields=["worker", "worker_epoch"], name="extent_of_worker")]


class HandOff(models.Model):
    """What prefill leaves for decode: the pages of one request, its first tokens, and prefill's own usage.

    Open from READY until the reader has verified its copy (`released_at`); the source holds the pages until then.
    """

    request_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    epoch = models.IntegerField()  # the request's, when prefill ended
    worker = models.CharField(max_length=64)
    worker_epoch = models.BigIntegerField()
    layout = models.JSONField()  # KVLayout
    tokens = models.IntegerField()  # KV entries valid in the pages
    pages = models.JSONField()  # [[index, generation, digest], ...]
    result = models.JSONField()  # PrefillResult
    published_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "kv_handoff"
        indexes = [models.Index(fields=["worker"], name="handoff_open", condition=models.Q(released_at__isnull=True))]
