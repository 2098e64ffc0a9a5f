"""Doorways of the control worker to the request room."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings

from inference.requests.sweeper import bodies_sweep


@shared_task(name="inference.sweep_requests", ignore_result=True)
def sweep_requests() -> None:
    bodies_sweep(keep_s=settings.BODY_RETENTION_S)
