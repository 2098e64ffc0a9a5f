"""Runs an inference worker: a Celery worker on its own queue, with the engine loop beside it."""

from __future__ import annotations

import logging
from typing import Any

from celery.signals import worker_shutdown
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from inference.coordination.registry import SlotTaken
from inference.kvtransport.arena import ArenaError
from inference.telemetry.process import telemetry_start
from inference.workers import tasks  # noqa: F401  (makes the doorway known to Celery)
from inference.workers.consumer import consume
from inference.workers.runtime import WorkerOptions, WorkerRuntime

ROLES = ("prefill", "decode")
DEAF_AFTER = 9  # seconds: on a busy machine a message may take some


class Command(BaseCommand):
    help = "Serves a model as a prefill worker, a decode worker, or both."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--slot", required=True, help="stable name of this worker and its queue, such as prefill-0")
        parser.add_argument("--roles", required=True, help="prefill, decode, or prefill,decode")
        parser.add_argument("--model", default=settings.MODEL)

    def handle(self, *args: Any, slot: str, roles: str, model: str, **options: Any) -> None:
        wanted = tuple(roles.split(","))
        if not wanted or any(role not in ROLES for role in wanted):
            raise CommandError(f"--roles {roles}: give prefill, decode, or prefill,decode")
        telemetry_start("worker", slot=slot)
        runtime = WorkerRuntime(
            WorkerOptions(
                slot=slot,
                roles=wanted,
                model=model,
                blocks=settings.WORKER_BLOCKS,
                max_running=settings.WORKER_MAX_RUNNING,
                threads=settings.WORKER_THREADS,
            )
        )
        try:
            runtime.start()
        except (SlotTaken, ArenaError) as error:
            raise CommandError(str(error)) from error
        worker_shutdown.connect(lambda **_: runtime.stop(settings.WORKER_GRACE_S), weak=False)
        logging.getLogger(__name__).info("worker %s takes work", slot)
        consume(
            queue=slot,
            node=f"{slot}.{runtime.worker_epoch}@%h",
            threads=2,
            patience=DEAF_AFTER,
            on_deaf=lambda: runtime.end(settings.WORKER_GRACE_S),
        )
