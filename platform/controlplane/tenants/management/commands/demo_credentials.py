"""Prints what a newcomer needs to call the API and to enter the console."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.tenants.demo import demo_credentials


class Command(BaseCommand):
    help = "Show the demo tenant's API key and the console's login."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        credentials = demo_credentials()
        if credentials is None:
            raise CommandError("There is no demo tenant yet: start the platform once (make serve) or run manage.py demo_create.")
        values = asdict(credentials)
        self.stdout.write(
            json.dumps(values) if options["json"] else "\n".join(f"{name:18}{value}" for name, value in values.items())
        )
