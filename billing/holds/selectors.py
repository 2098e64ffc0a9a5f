"""What a tenant may still spend."""

from __future__ import annotations

import uuid

from billing.holds.models import HoldAccount
from inference.database import tenant_scope


def hold_account(*, tenant_id: uuid.UUID) -> HoldAccount | None:
    with tenant_scope(tenant_id):
        return HoldAccount.objects.filter(tenant_id=tenant_id).first()
