"""The request's row, its body, and its transition events: the queue, the outbox and the audit of every request in one place."""

from __future__ import annotations

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models


class State(models.TextChoices):
    QUEUED = "queued", "waits for a prefill worker"
    PREFILLING = "prefilling", "a worker computes the prompt"
    READY = "ready", "prompt computed and published, waits for a decode worker"
    DECODING = "decoding", "a worker generates"
    DONE = "done", "finished"
    FAILED = "failed", "ended by a fault"
    CANCELLED = "cancelled", "ended by the client"
    EXPIRED = "expired", "ended by its deadline"


FINAL = (State.DONE, State.FAILED, State.CANCELLED, State.EXPIRED)
OWNED = (State.PREFILLING, State.DECODING)
OPEN = (State.QUEUED, State.PREFILLING, State.READY, State.DECODING)


class InferenceRequest(models.Model):
    """One API call. Changed only by the conditional updates in `transitions.py`; `epoch` rises with every change of owner."""

    id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    key_id = models.UUIDField()
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=40)
    policy = models.JSONField()  # ClassPolicy
    priority = models.IntegerField()
    labels = models.JSONField(default=dict)
    stream = models.BooleanField()

    state = models.CharField(max_length=12, choices=State.choices, default=State.QUEUED)
    epoch = models.IntegerField(default=0)
    attempt = models.IntegerField(default=1)
    owner = models.CharField(max_length=64, null=True)  # worker slot
    owner_epoch = models.BigIntegerField(null=True)
    offered_to = models.CharField(max_length=64, null=True)
    offered_until = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_reason = models.CharField(max_length=20, db_default="")  # who asked first; see submit.py
    gateway_id = models.UUIDField(null=True)  # the gateway process whose client waits; null: nobody's end ends this request

    trace_context = models.CharField(max_length=64, db_default="")  # W3C traceparent; empty: not traced

    path = models.CharField(max_length=5, null=True)  # split | fused
    path_reason = models.CharField(max_length=80, default="")
    prefill_worker = models.CharField(max_length=64, null=True)
    decode_worker = models.CharField(max_length=64, null=True)

    prompt_tokens = models.IntegerField()
    max_tokens = models.IntegerField()  # of each choice
    choices = models.SmallIntegerField(db_default=1)
    completion_tokens = models.IntegerField(default=0)
    finish_reasons = ArrayField(models.CharField(max_length=16), default=list)
    error_code = models.CharField(max_length=60, default="")
    error_message = models.TextField(default="")  # public text

    created_at = models.DateTimeField()
    deadline_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    timing = models.JSONField(default=dict)  # milliseconds, see receipts in the docs

    class Meta:
        db_table = "inference_request"
        constraints = [
            models.CheckConstraint(condition=models.Q(prompt_tokens__gt=0, max_tokens__gt=0), name="request_has_tokens"),
            models.CheckConstraint(
                condition=~models.Q(state__in=OWNED) | models.Q(owner__isnull=False, owner_epoch__isnull=False),
                name="request_running_has_owner",
            ),
            models.CheckConstraint(
                condition=~models.Q(state__in=FINAL) | models.Q(finished_at__isnull=False), name="request_final_has_end"
            ),
        ]
        indexes = [
            models.Index(
                fields=["model", "priority", "created_at"],
                name="request_waiting",
                condition=models.Q(state__in=["queued", "ready"]),
            ),
            models.Index(fields=["owner"], name="request_owned", condition=models.Q(state__in=["prefilling", "decoding"])),
            models.Index(fields=["deadline_at"], name="request_deadline", condition=models.Q(finished_at__isnull=True)),
            models.Index(fields=["tenant_id", "-created_at"], name="request_by_tenant"),
        ]


class RequestBody(models.Model):
    """What the customer wrote, apart from everything else so that it can go soon after the end."""

    request_id = models.UUIDField(primary_key=True)
    tenant_id = models.UUIDField()
    prompt_ids = ArrayField(models.IntegerField())
    sampling = models.JSONField()  # SamplingParams
    scope_salt = models.BinaryField()
    written_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "inference_request_body"
        indexes = [models.Index(fields=["written_at"], name="request_body_age")]


class RequestEvent(models.Model):
    """One change of state, written in the statement that makes the change."""

    request_id = models.UUIDField()
    tenant_id = models.UUIDField()
    state = models.CharField(max_length=12, choices=State.choices)
    at = models.DateTimeField()
    epoch = models.IntegerField()
    worker = models.CharField(max_length=64, default="")
    detail = models.CharField(max_length=120, default="")

    class Meta:
        db_table = "inference_request_event"
        indexes = [models.Index(fields=["request_id", "id"], name="request_event_of")]


class TokenLog(models.Model):
    """Consecutive generated tokens of one choice, as one epoch's owner wrote them; see `token_log.py`."""

    pk = models.CompositePrimaryKey("request_id", "epoch", "choice", "position")
    request_id = models.UUIDField()
    tenant_id = models.UUIDField()
    epoch = models.IntegerField()
    choice = models.IntegerField()
    position = models.IntegerField()  # of the first, from 1
    ids = ArrayField(models.IntegerField())
    logprobs = models.JSONField(null=True)  # one per id, where the request asked for them

    class Meta:
        db_table = "inference_token_log"


def new_request_id() -> uuid.UUID:
    """A UUID of version 7: rows of one time lie together in the index."""
    import secrets
    import time

    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)
