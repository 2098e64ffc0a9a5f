"""Celery doorways."""

from __future__ import annotations

from celery import shared_task

from billing.invoices.services import invoice_drafts_refresh


@shared_task(name="billing.refresh_invoice_drafts", ignore_result=True)
def invoice_drafts_refresh_task() -> None:
    invoice_drafts_refresh()
