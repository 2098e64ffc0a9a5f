"""The metrics of a whole copy, on one page."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from prometheus_client import generate_latest

from controlplane.embedded.children import metrics_sockets
from controlplane.fleet.facts import Facts
from controlplane.fleet.processes_page import page_of, registry
from inference.telemetry.process import telemetry_start


class Command(BaseCommand):
    help = "Prints the metrics of all processes that `manage.py serve` runs on this data folder, and what the database knows."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--serve", action="store_true", help="at BRIGADE_METRICS, until it is stopped, instead of printing once"
        )

    def handle(self, *args: Any, serve: bool, **options: Any) -> None:
        facts = Facts()
        sockets = partial(metrics_sockets, settings.DATA)
        page = partial(generate_latest, registry(sockets, facts))
        if not serve:
            if all(page_of(path) is None for path in sockets().values()):
                connection.ensure_connection()  # a page of a copy that is not there would say nothing
            facts.read()
            self.stdout.write(page().decode(), ending="")
            return
        if settings.METRICS is None:
            raise CommandError("--serve needs an address: set BRIGADE_METRICS, for instance to 127.0.0.1:9464")
        facts.read_always()
        telemetry_start("metrics", page=page)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
