"""Celery doorways."""

from __future__ import annotations

from celery import shared_task

from billing.metering.services import ingest_usage

BATCH = 500
BATCHES = 20  # then the worker takes other tasks, and beat calls again


@shared_task(name="billing.ingest_usage", ignore_result=True)
def ingest_usage_task() -> None:
    """Until a batch is not full. Lost, doubled or late calls change nothing."""
    for _ in range(BATCHES):
        if ingest_usage(limit=BATCH) < BATCH:
            return
