"""What is on sale, with what it costs now and how many workers serve it."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.catalog.management.display import listed_json, price_lines
from controlplane.catalog.shelf import models_listed


class Command(BaseCommand):
    help = "Shows the models of the catalogue, their workers and their prices."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true")

    def handle(self, *_: Any, **options: Any) -> None:
        models = models_listed()
        if options["json"]:
            self.stdout.write(json.dumps([listed_json(model) for model in models]))
            return
        for model in models:
            state = "on sale" if model.enabled else "off sale"
            facts = f"{model.context_length} tokens, revision {model.revision or 'without files'}, {model.workers} workers"
            self.stdout.write(f"{model.name}: {state}, {facts}")
            for line in price_lines(model):
                self.stdout.write(line)
