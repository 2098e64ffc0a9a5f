"""What the workers' KV pools hold, in blocks."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from inference.kv import pool_reports


class Command(BaseCommand):
    help = "Shows free, cached, held and quarantined blocks of each worker, and copies under way."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        reports = pool_reports()
        if options["json"]:
            self.stdout.write(json.dumps([report.to_json() for report in reports]))
            return
        self.stdout.write(
            f"{'slot':<14} {'state':<9} {'free':>7} {'cached':>7} {'held':>7} {'quarantined':>11} {'total':>7} {'in transfer':>11}"
        )
        for report in reports:
            pool = report.pool
            blocks = f"{pool.free:>7} {pool.cached:>7} {pool.held:>7} {pool.quarantined:>11} {pool.total:>7}"
            self.stdout.write(f"{report.slot:<14} {report.state:<9} {blocks} {report.in_transfer:>11}")
