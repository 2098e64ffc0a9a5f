"""Changes a run-time setting; without arguments shows them all."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from inference.coordination.configuration import SETTINGS, Configuration, UnknownSetting, config_set


class Command(BaseCommand):
    help = "Changes a run-time setting, or shows it; processes see a change within a second."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="?")
        parser.add_argument("value", nargs="?", help="JSON, such as '\"fused\"' or true; a plain word is taken as a string")

    def handle(self, *args: Any, name: str | None, value: str | None, **options: Any) -> None:
        if name is None:
            configuration = Configuration()
            for setting in SETTINGS.values():
                self.stdout.write(f"{setting.name} = {json.dumps(configuration[setting.name])}  ({setting.meaning})")
            return
        if name not in SETTINGS:
            raise CommandError(f"no setting {name!r}; there are: {', '.join(SETTINGS)}")
        if value is None:
            self.stdout.write(json.dumps(Configuration()[name]))
            return
        try:
            config_set(name=name, value=_value(value))
        except UnknownSetting as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{name} = {json.dumps(_value(value))}")


def _value(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw
