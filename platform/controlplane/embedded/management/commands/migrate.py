from __future__ import annotations

from typing import Any

from django.core.management.commands.migrate import Command as MigrateCommand
from django.db import connections

LOCK = 0x42726967616465  # "Brigade"; an advisory lock belongs to its database


class Command(MigrateCommand):
    help = "Brings the tables up to date. Copies that start together do it one after the other: the later ones find nothing to do."

    def handle(self, *args: Any, **options: Any) -> str | None:
        connection = connections[options["database"]]
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
            try:
                return super().handle(*args, **options)
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
