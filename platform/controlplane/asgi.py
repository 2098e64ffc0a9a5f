"""What `python -m controlplane.gateway` serves. It talks to the database as `brigade_app`, through a pool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from controlplane.gateway.application import Application

DEFAULTS = {
    "DJANGO_SETTINGS_MODULE": "controlplane.settings.main",
    "BRIGADE_DATABASE_ROLE": "app",
    "BRIGADE_DATABASE_POOL": "12",
    "BRIGADE_PROCESS": "gateway",
}


def _application() -> Application:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    django.setup(set_prefix=False)
    from controlplane.gateway.application import Application

    return Application()


application = _application()
