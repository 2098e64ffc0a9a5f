"""Puts a model on sale: a folder in Hugging Face's form (or with a model.gguf), or a hub's name of one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.catalog.management.display import price_lines
from controlplane.catalog.shelf import ShelfError, model_add, models_listed
from inference.text import TextError


class Command(BaseCommand):
    help = "Checks a model, stores its files and puts it on sale. Repeating it changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", metavar="FOLDER_OR_HUB_NAME", help="a folder, or OWNER/NAME[@REVISION] of a hub")
        parser.add_argument("--name", help="what clients send as `model`; the folder's or the hub's name without it")

    def handle(self, *_: Any, source: str, name: str | None, **__: Any) -> None:
        try:
            model = model_add(source, name, self.stdout.write)
        except (ShelfError, TextError) as error:
            raise CommandError(f"{error} [{error.code}]") from error
        (listed,) = [each for each in models_listed() if each.name == model.name]
        for line in price_lines(listed):
            self.stdout.write(line)
        self.stdout.write(f"{model.name} is on sale. A running `manage.py serve` starts its workers in a moment.")
