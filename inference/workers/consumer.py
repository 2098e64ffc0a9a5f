"""How this project runs a Celery worker: one queue, few threads, and none of the chatter between workers."""

from __future__ import annotations

import warnings

from celery import current_app
from celery.platforms import SecurityWarning
from celery.signals import task_prerun
from django.db import close_old_connections


def consume(*, queue: str, node: str, threads: int) -> None:
    """Returns after a warm shutdown. `node` must be unique per start: `%h` stands for the host."""
    warnings.filterwarnings("ignore", category=SecurityWarning)  # root is dangerous with pickle; we take JSON only
    task_prerun.connect(_drop_broken_connections)
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
