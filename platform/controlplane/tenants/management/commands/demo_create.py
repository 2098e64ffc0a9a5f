"""Makes the demo tenant and puts the installation's model on sale. Safe to repeat."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.tenants.demo import demo_create


class Command(BaseCommand):
    help = "Create the demo tenant, its key and the catalogue."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"The demo tenant is ready: {demo_create().base_url}")
