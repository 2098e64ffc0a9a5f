"""Celery doorways."""

from __future__ import annotations

from celery import shared_task

from billing.holds.services import holds_sweep


@shared_task(name="billing.sweep_holds", ignore_result=True)
def holds_sweep_task() -> None:
    holds_sweep()
