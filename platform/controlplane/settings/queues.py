"""Celery's settings. Star-imported by nothing: `main` takes `celery_settings`, so that the names stay visible there."""

from __future__ import annotations

import sys
from typing import Any

CONTROL_QUEUE = "control"

# What the control worker does again and again. Every job is safe to run twice, late, or not at all for a while.
BEAT: dict[str, tuple[str, float]] = {
    "reap": ("inference.reap", 0.5),
    "ingest usage": ("billing.ingest_usage", 0.5),
    "sweep requests": ("inference.sweep_requests", 60.0),
    "sweep holds": ("billing.sweep_holds", 60.0),
    "sweep idempotency keys": ("controlplane.sweep_idempotency_keys", 600.0),
    "refresh invoice drafts": ("billing.refresh_invoice_drafts", 60.0),
}


def celery_settings(broker_url: str) -> dict[str, Any]:
    amqp = broker_url.startswith(("amqp", "pyamqp"))
    return {
        "CELERY_BROKER_URL": broker_url,
        "CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP": True,
        "CELERY_BROKER_CONNECTION_MAX_RETRIES": None,
        "CELERY_BROKER_TRANSPORT_OPTIONS": {"confirm_publish": True}
        if amqp
        else {"visibility_timeout": 60, "unacked_restore_throttle": 1},
        "CELERY_TASK_DEFAULT_QUEUE_TYPE": "quorum" if amqp else "classic",
        "CELERY_WORKER_DETECT_QUORUM_QUEUES": amqp,
        "CELERY_DB_REUSE_MAX": sys.maxsize,  # else a task begins by opening a connection: see inference/workers/consumer.py
        "CELERY_TASK_DEFAULT_QUEUE": CONTROL_QUEUE,
        "CELERY_TASK_IGNORE_RESULT": True,
        "CELERY_TASK_ACKS_LATE": True,
        "CELERY_TASK_SERIALIZER": "json",
        "CELERY_ACCEPT_CONTENT": ["json"],
        "CELERY_WORKER_PREFETCH_MULTIPLIER": 4,
        "CELERY_WORKER_HIJACK_ROOT_LOGGER": False,
        "CELERY_WORKER_REDIRECT_STDOUTS": False,
        "CELERY_WORKER_SEND_TASK_EVENTS": False,
        "CELERY_TIMEZONE": "UTC",
        "CELERY_BEAT_SCHEDULE": {
            name: {"task": task, "schedule": every_s, "options": {"expires": max(5.0, 2 * every_s), "ignore_result": True}}
            for name, (task, every_s) in BEAT.items()
        },
    }
