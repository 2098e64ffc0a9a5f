"""Invoices as the tenant sees them."""

from __future__ import annotations

import uuid

from billing.invoices.models import Invoice, InvoiceLine
from inference.database import tenant_scope


def invoices_of(*, tenant_id: uuid.UUID) -> list[Invoice]:
    """The latest period first."""
    with tenant_scope(tenant_id):
        return list(Invoice.objects.filter(tenant_id=tenant_id).order_by("-period_start"))


def invoice_lines(*, tenant_id: uuid.UUID, invoice_id: int) -> list[InvoiceLine]:
    """Empty for an invoice that is not this tenant's."""
    with tenant_scope(tenant_id):
        return list(InvoiceLine.objects.filter(tenant_id=tenant_id, invoice_id=invoice_id).order_by("id"))
