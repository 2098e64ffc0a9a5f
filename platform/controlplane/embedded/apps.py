from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.conf import settings

from inference import failpoints


class EmbeddedConfig(AppConfig):
    name = "controlplane.embedded"
    label = "embedded"

    def ready(self) -> None:
        import_module("controlplane.embedded.checks")
        failpoints.arm(allowed=settings.TEST_HOOKS)
