"""Doorways of the control worker to the reaper."""

from __future__ import annotations

from celery import shared_task

from inference.coordination.reaper import reap


@shared_task(name="inference.reap", ignore_result=True)
def reap_task() -> None:
    reap()
