"""The start of every lasting process: its page."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from prometheus_client import generate_latest

from inference.telemetry.page import PageUnavailable, Render, page_serve


def telemetry_start(page: Render = generate_latest) -> None:
    """Raises ImproperlyConfigured where BRIGADE_METRICS names an address that cannot be listened at."""
    if settings.METRICS is None:
        return
    try:
        page_serve(settings.METRICS, page)
    except PageUnavailable as error:
        raise ImproperlyConfigured(f"BRIGADE_METRICS: {error}") from error
