from __future__ import annotations

from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.embedded.roles import database_setup


class Command(BaseCommand):
    help = "Makes the database of DATABASE_URL, its three roles and their rights. May be run again at any time."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--tests", action="store_true", help="let the owner make test databases and take the other roles")

    def handle(self, *_: Any, **options: Any) -> None:
        server = settings.DATABASE_SERVER
        try:
            database_setup(server, secret_key=settings.SECRET_KEY, tests=options["tests"])
        except psycopg.Error as error:
            raise CommandError(
                f"database_setup as {server.user} on {server.host}: {error}\nDATABASE_URL must name a running server and "
                "credentials that may make roles and databases."
            ) from error
        self.stdout.write(f"database {server.name}: roles and rights are set")
