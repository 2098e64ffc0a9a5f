#!/usr/bin/env python
"""Django's command line. Commands that make tables run as the database's owner; all others as `brigade_system`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

OWNER_COMMANDS = {"migrate", "makemigrations", "sqlmigrate", "test"}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent / "platform"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.main")
    if len(sys.argv) > 1 and sys.argv[1] in OWNER_COMMANDS:
        os.environ.setdefault("BRIGADE_DATABASE_ROLE", "owner")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
