"""How this project runs a Celery worker: one queue, few threads, and none of the chatter between workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from celery import current_app
from celery.platforms import SecurityWarning
from celery.signals import task_postrun, task_prerun, worker_ready
from django.db import close_old_connections
from prometheus_client import Counter

from inference.workers.watchdog import Watchdog

TASKS = Counter("brigade_tasks", "Celery tasks that ended, by task and outcome.", ["task", "outcome"])
DEAF = 76  # exit status of a process that received nothing; whoever supervises it starts another


def consume(*, queue: str, node: str, threads: int, patience: int, on_deaf: Callable[[], None]) -> None:
    """Returns after a warm shutdown. `node` must be unique per start: `%h` stands for the host.

    `on_deaf` is called, once, where more than `patience` messages a second apart did not come from the queue.
    """
    warnings.filterwarnings("ignore", category=SecurityWarning)  # root is dangerous with pickle; we take JSON only
    task_prerun.connect(_drop_broken_connections)
    task_postrun.connect(_count)
    watchdog = Watchdog(queue, patience=patience, on_deaf=on_deaf)
    worker_ready.connect(lambda **_: watchdog.start(), weak=False)
    current_app.worker_main(
        [
            "--quiet",
            "worker",
            f"--queues={queue}",
            f"--hostname={node}",
            "--pool=threads",
            f"--concurrency={threads}",
            "--without-gossip",
            "--without-mingle",
            "--loglevel=WARNING",
        ]
    )


def _drop_broken_connections(**_: object) -> None:
    """Connections outlive tasks; one that broke in between (the database restarted) is opened anew."""
    close_old_connections()


def _count(*, task: Any, state: str | None = None, **_: object) -> None:
    TASKS.labels(task.name, (state or "unknown").lower()).inc()
