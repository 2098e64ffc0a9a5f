"""What changes API keys."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.keys.models import ApiKey
from controlplane.keys.tokens import PREFIX_LENGTH, key_digest, key_new
from controlplane.tenants.models import Project
from inference.database import tenant_scope

USE_RESOLUTION = timedelta(minutes=1)


class UnknownProject(ObjectDoesNotExist):
    """The tenant has no such project."""


def api_key_create(
    *,
    tenant_id: uuid.UUID,
    project_id: uuid.UUID,
    name: str,
    created_by_id: uuid.UUID | None = None,
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """The row and the key itself, which cannot be shown a second time."""
    key_id = uuid.uuid4()
    secret = key_new(key_id)
    with tenant_scope(tenant_id):
        if not Project.objects.filter(id=project_id, organisation_id=tenant_id).exists():
            raise UnknownProject(f"project {project_id}")
        row = ApiKey.objects.create(
            id=key_id,
            tenant_id=tenant_id,
            project_id=project_id,
            name=name,
            prefix=secret[:PREFIX_LENGTH],
            digest=key_digest(secret),
            created_by_id=created_by_id,
            expires_at=expires_at,
        )
    return row, secret


def api_key_revoke(*, tenant_id: uuid.UUID, key_id: uuid.UUID) -> bool:
    """Refused everywhere within a second. False when unknown or revoked already."""
    with tenant_scope(tenant_id):
        return _revoke(Q(tenant_id=tenant_id, id=key_id)) == 1


def api_keys_revoke_all(*, tenant_id: uuid.UUID, name: str) -> int:
    """All live keys of that name."""
    with tenant_scope(tenant_id):
        return _revoke(Q(tenant_id=tenant_id, name=name))


def _revoke(which: Q) -> int:
    return ApiKey.objects.filter(which, revoked_at__isnull=True).update(revoked_at=Now())


def api_key_used(*, tenant_id: uuid.UUID, key_id: uuid.UUID) -> None:
    """Notes the use, at most once a minute."""
    stale = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - USE_RESOLUTION)
    with tenant_scope(tenant_id):
        ApiKey.objects.filter(stale, tenant_id=tenant_id, id=key_id).update(last_used_at=Now())
