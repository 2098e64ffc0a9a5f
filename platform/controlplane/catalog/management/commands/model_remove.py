"""Takes a model off sale and deletes its files."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.catalog.shelf import ShelfError, model_remove
from inference.text import TextError


class Command(BaseCommand):
    help = "Takes a model off sale and deletes its files; refused while requests of it are open. Its prices stay in the books."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")

    def handle(self, *_: Any, name: str, **__: Any) -> None:
        try:
            model_remove(name, self.stdout.write)
        except (ShelfError, TextError) as error:
            raise CommandError(f"{error} [{error.code}]") from error
        self.stdout.write(f"{name} is removed.")
