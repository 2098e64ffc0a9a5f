"""Checks what must always hold; exit code 1 with the offending rows where it does not."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

import billing.invariants
import inference.invariants


class Command(BaseCommand):
    help = "Checks requests, pools, usage, ledger and invoices against each other."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        violations = [*inference.invariants.check(), *billing.invariants.check()]
        if options["json"]:
            self.stdout.write(json.dumps({"violations": [dataclasses.asdict(found) for found in violations]}, default=str))
        else:
            for found in violations:
                self.stdout.write(f"{found.invariant}: {found.message}")
                for row in found.rows:
                    self.stdout.write(f"    {row}")
            self.stdout.write("all invariants hold" if not violations else f"{len(violations)} invariants do not hold")
        if violations:
            sys.exit(1)
