from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class EmbeddedConfig(AppConfig):
    name = "controlplane.embedded"
    label = "embedded"

    def ready(self) -> None:
        import_module("controlplane.embedded.checks")
