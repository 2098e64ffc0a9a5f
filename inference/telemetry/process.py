"""The start of every lasting process: its page, and its spans where they are wanted."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from prometheus_client import generate_latest

from inference.telemetry.context import set_process
from inference.telemetry.page import PageUnavailable, Render, page_serve
from inference.telemetry.tracing import TracingMisconfigured, tracing_start


def telemetry_start(role: str, *, slot: str = "", page: Render = generate_latest) -> None:
    """`role`: gateway, worker, dispatcher, control, metrics; `slot` is a worker's.

    Raises ImproperlyConfigured where a setting cannot be followed.
    """
    set_process(role, slot)
    try:
        tracing_start(f"brigade-{role}")
        if settings.METRICS is not None:
            page_serve(settings.METRICS, page)
    except TracingMisconfigured as error:
        raise ImproperlyConfigured(str(error)) from error
    except PageUnavailable as error:
        raise ImproperlyConfigured(f"BRIGADE_METRICS: {error}") from error
