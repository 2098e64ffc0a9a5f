"""The Celery application. Messages are wake-up calls: no results, no priorities, no times of day, JSON only."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.main")

app = Celery("brigade")
app.config_from_object("django.conf:settings", namespace="CELERY")
# Not inference.workers: its task loads torch, and `manage.py worker` imports it where it is served.
app.autodiscover_tasks(
    [
        *("inference.coordination", "inference.requests"),
        *("billing.holds", "billing.metering", "billing.invoices"),
        "controlplane.idempotency",
    ],
    related_name="tasks",
)
