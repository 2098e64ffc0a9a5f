"""The published document of /v1, as the gateway serves it at /v1/openapi.json."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.gateway.openapi import document


class Command(BaseCommand):
    help = "Prints the OpenAPI document."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps(document(), indent=2))
