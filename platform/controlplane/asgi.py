"""What `python -m controlplane.gateway` serves. It talks to the database as `brigade_app`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from controlplane.gateway.application import Application

DEFAULTS = {
    "DJANGO_SETTINGS_MODULE": "controlplane.settings.main",
    "BRIGADE_DATABASE_ROLE": "app",
    "BRIGADE_PROCESS": "gateway",
}


def _application() -> Application:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    django.setup(set_prefix=False)
    from django.core.signals import request_finished

    from controlplane.gateway.application import Application

    request_finished.connect(_close_connections)
    return Application()


def _close_connections(**_: object) -> None:
    """A page of the console is made in a thread of its own, which ends with it. The API's threads stay, and send no such signal."""
    from django.db import connections

    connections.close_all()


application = _application()
