from __future__ import annotations

from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError

from controlplane.embedded.errors import EmbeddedError
from controlplane.embedded.start import Serve
from inference.text import TextError


class Command(BaseCommand):
    help = "Runs everything on this machine until Ctrl-C: database, broker, gateway, dispatcher and workers."
    requires_system_checks = []

    def handle(self, *_: Any, **__: Any) -> None:
        try:
            Serve().run()
        except (EmbeddedError, TextError, psycopg.Error) as error:
            raise CommandError(f"Brigade could not start: {error}") from error
