"""Doorways of the control worker."""

from __future__ import annotations

from celery import shared_task

from controlplane.idempotency.services import keys_sweep


@shared_task(name="controlplane.sweep_idempotency_keys", ignore_result=True)
def sweep_idempotency_keys() -> None:
    keys_sweep()
