"""Reads of requests. Tenants' reads take the tenant first; those without one serve workers and operators."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from inference.requests.models import OWNED, InferenceRequest, RequestEvent


def request_of(*, tenant_id: uuid.UUID, request_id: uuid.UUID) -> InferenceRequest | None:
    return InferenceRequest.objects.filter(tenant_id=tenant_id, id=request_id).first()


def events_of(*, tenant_id: uuid.UUID, request_id: uuid.UUID) -> Sequence[RequestEvent]:
    return list(RequestEvent.objects.filter(tenant_id=tenant_id, request_id=request_id).order_by("id"))


def cancelled_of(slot: str, worker_epoch: int) -> list[uuid.UUID]:
    """Requests that a worker still runs although their clients have gone."""
    owned = InferenceRequest.objects.filter(owner=slot, owner_epoch=worker_epoch, state__in=OWNED)
    return list(owned.filter(cancel_requested_at__isnull=False).values_list("id", flat=True))
