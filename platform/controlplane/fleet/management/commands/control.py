"""Runs the control worker: the Celery worker of the jobs in `settings/queues.py`, with beat beside it."""

from __future__ import annotations

import os
from typing import Any

from celery import current_app
from celery.beat import EmbeddedService
from celery.signals import worker_ready, worker_shutdown
from django.core.management.base import BaseCommand

from controlplane.settings.queues import CONTROL_QUEUE
from inference.telemetry.process import telemetry_start
from inference.workers.consumer import DEAF, consume

DEAF_AFTER = 20  # its jobs may be long, and while they fill all threads nothing more is received


class Command(BaseCommand):
    help = "Reaper, usage ingest, invoice drafts and sweepers. Any number may run."

    def handle(self, *args: Any, **options: Any) -> None:
        telemetry_start("control")
        # A thread, in memory: a process of its own could outlive this one, and a schedule file would have to be put somewhere.
        beat = EmbeddedService(current_app, thread=True, scheduler_cls="celery.beat.Scheduler")
        worker_ready.connect(lambda **_: beat.start(), weak=False)
        worker_shutdown.connect(lambda **_: beat.stop(), weak=False)
        consume(
            queue=CONTROL_QUEUE,
            node=f"control.{os.getpid()}@%h",
            threads=3,
            patience=DEAF_AFTER,
            on_deaf=lambda: os._exit(DEAF),
        )
