"""What changes tenants. The caller's database role decides: `brigade_app` may read tenants only."""

from __future__ import annotations

import hashlib
import hmac
import uuid

from django.db import transaction
from django.db.models import F

from controlplane.tenants.models import Member, Organisation, OrganisationState, Project, Role, User
from controlplane.tenants.secrets import derived_key
from inference.database import tenant_scope


def organisation_create(*, name: str, tenant_id: uuid.UUID | None = None) -> Organisation:
    tenant_id = tenant_id or uuid.uuid4()
    with tenant_scope(tenant_id):
        return Organisation.objects.create(id=tenant_id, name=name)


def organisation_suspend(*, tenant_id: uuid.UUID) -> bool:
    """New requests are refused within a second. False when unknown or suspended already."""
    return _state_change(tenant_id, OrganisationState.ACTIVE, OrganisationState.SUSPENDED)


def organisation_resume(*, tenant_id: uuid.UUID) -> bool:
    return _state_change(tenant_id, OrganisationState.SUSPENDED, OrganisationState.ACTIVE)


def _state_change(tenant_id: uuid.UUID, old: OrganisationState, new: OrganisationState) -> bool:
    with tenant_scope(tenant_id):
        return Organisation.objects.filter(id=tenant_id, state=old).update(state=new) == 1


def scope_epoch_bump(*, tenant_id: uuid.UUID) -> None:
    """From the next request on, nothing that this tenant has cached is found."""
    with tenant_scope(tenant_id):
        Organisation.objects.filter(id=tenant_id).update(scope_epoch=F("scope_epoch") + 1)


def project_create(*, tenant_id: uuid.UUID, name: str) -> Project:
    with tenant_scope(tenant_id):
        return Project.objects.create(organisation_id=tenant_id, name=name)


@transaction.atomic
def user_create(*, email: str, password: str | None, name: str = "", is_staff: bool = False) -> User:
    return User.objects.create_user(email, password, name=name, is_staff=is_staff, is_superuser=is_staff)


def member_set(*, tenant_id: uuid.UUID, user_id: uuid.UUID, role: Role) -> Member:
    with tenant_scope(tenant_id):
        member, _ = Member.objects.update_or_create(organisation_id=tenant_id, user_id=user_id, defaults={"role": role})
        return member


def scope_salt(organisation: Organisation) -> bytes:
    return scope_salt_of(organisation.id, organisation.scope_epoch)


def scope_salt_of(tenant_id: uuid.UUID, scope_epoch: int) -> bytes:
    """32 bytes that enter every prefix hash of the tenant: without them two tenants never share a hash."""
    return hmac.digest(derived_key("prefix-scope"), tenant_id.bytes + scope_epoch.to_bytes(8, "big"), hashlib.sha256)
