"""Reads of requests. Tenants' reads take the tenant first; those without one serve workers and operators."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db.models import QuerySet

from inference.requests.models import OPEN, OWNED, InferenceRequest, RequestEvent


def events_of(*, tenant_id: uuid.UUID, request_id: uuid.UUID) -> Sequence[RequestEvent]:
    return list(RequestEvent.objects.filter(tenant_id=tenant_id, request_id=request_id).order_by("id"))


def owned_by(slot: str, worker_epoch: int) -> list[uuid.UUID]:
    return list(_owned(slot, worker_epoch).values_list("id", flat=True))


def cancelled_of(slot: str, worker_epoch: int) -> list[uuid.UUID]:
    """Requests that a worker still runs although their clients have gone."""
    return list(_owned(slot, worker_epoch).filter(cancel_requested_at__isnull=False).values_list("id", flat=True))


def open_of_model(model: str) -> int:
    """How many requests of all tenants still wait for this model, or run."""
    return InferenceRequest.objects.filter(model=model, state__in=OPEN).count()


def _owned(slot: str, worker_epoch: int) -> QuerySet[InferenceRequest]:
    return InferenceRequest.objects.filter(owner=slot, owner_epoch=worker_epoch, state__in=OWNED)
