#!/usr/bin/env python
"""Django's command line. Commands that make tables run as the database's owner; all others as `brigade_system`.

Exit code 2, with one line: a setting is wrong, or the database cannot be reached.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

OWNER_COMMANDS = {"migrate", "makemigrations", "sqlmigrate", "test"}
LASTING_COMMANDS = {
    "serve",
    "database_setup",
    "migrate",
    "demo_create",
    "worker",
    "dispatcher",
    "control",
}  # need a key that stays


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.main")
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in OWNER_COMMANDS:
        os.environ.setdefault("BRIGADE_DATABASE_ROLE", "owner")
    from django.core.exceptions import ImproperlyConfigured
    from django.db import OperationalError

    try:
        run(command)
    except ImproperlyConfigured as error:
        fail(str(error))
    except OperationalError as error:
        if (advice := unreachable(error)) is None:
            raise
        fail(advice)


def run(command: str) -> None:
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    from controlplane.embedded.paths import data_folder

    if command in LASTING_COMMANDS and "--help" not in sys.argv:
        try:
            data_folder().make()
        except OSError as error:
            raise ImproperlyConfigured(f"BRIGADE_DATA: {error}") from error
    getattr(settings, "DATA")  # noqa: B009 - reads the settings now: Django's command line would hide what is wrong with them
    execute_from_command_line(sys.argv)


def unreachable(error: Exception) -> str | None:
    from django.conf import settings

    from controlplane.settings.database import connection_failure

    reason = connection_failure(error.__cause__)
    return reason and (
        f"The {settings.DATABASE_SERVER.place} cannot be reached ({reason}). "
        "Start `make serve`, or set BRIGADE_DATA or DATABASE_URL as for the server."
    )


def fail(text: str) -> None:
    sys.stderr.write(" ".join(text.split()) + "\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
