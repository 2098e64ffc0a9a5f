"""A new user's first minute: three real calls over HTTP, what each cost and why, and the invoice draft that they make."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from billing.invoices.models import Invoice
from billing.invoices.services import invoice_draft_build
from controlplane.tenants.demo import DEMO_TENANT_ID, DemoCredentials, demo_credentials

NANO_USD_PER_USD = 1_000_000_000
RATING_PATIENCE_S = 10
UNITS_SOLD = {"token": "tokens", "token_microsecond": "token-hours"}  # what prices are given for
CHAT = "In three sentences: why do kitchens split the work between prep cooks and line cooks?"
HANDBOOK = " ".join(
    f"Rule {number}: station {number % 7 + 1} keeps {('knives', 'pans', 'stock', 'salt', 'oil')[number % 5]} "
    f"{('clean', 'close', 'hot', 'dry')[number % 4]} and hands over after {number % 9 + 2} plates."
    for number in range(1, 41)
)
QUESTION = f"This is our kitchen handbook. {HANDBOOK}\n\nIn one sentence: what is the handbook about?"


@dataclass(slots=True)
class Call:
    """One streamed call as the client sees it."""

    request_id: str = ""
    text: list[str] = field(default_factory=list)
    ttft_ms: float = 0.0
    total_ms: float = 0.0


class Command(BaseCommand):
    help = "Makes three calls against the running server and shows their text, TTFT, receipts and the invoice draft."

    def handle(self, *args: Any, **options: Any) -> None:
        credentials = demo_credentials()
        if credentials is None:
            raise CommandError("there is no demo tenant yet: start the server with `make serve` first")
        _check_reachable(credentials)
        self._call(credentials, "1. A chat, streamed", CHAT, max_tokens=80)
        self._call(credentials, "2. The same prompt again: its KV is cached", CHAT, max_tokens=80)
        self._call(credentials, "3. A question about a long document", QUESTION, max_tokens=40)
        self._call(credentials, "   and once more: almost all of its prompt is cached", QUESTION, max_tokens=40)
        self._invoice(invoice_draft_build(tenant_id=DEMO_TENANT_ID, period_start=datetime.now(UTC).date().replace(day=1)))

    def _call(self, credentials: DemoCredentials, title: str, prompt: str, *, max_tokens: int) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(f"\n{title}"))
        body = {
            "model": settings.MODEL,
            "stream": True,
            "temperature": 0,
            "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": prompt}],
        }
        call = Call()
        for piece in _stream(credentials, body, call):
            self.stdout.write(piece, ending="")
            self.stdout.flush()
        self.stdout.write(f"\n\n   TTFT {call.ttft_ms:.0f} ms, in all {call.total_ms:.0f} ms")
        self._receipt(_rated_receipt(credentials, call.request_id))

    def _receipt(self, receipt: dict[str, Any]) -> None:
        workers = " and ".join(name for name in receipt["workers"].values() if name)
        tokens = receipt["tokens"]
        cached = sum(tokens["cached"].values())
        self.stdout.write(f"   {receipt['id']}: {receipt['path']} on {workers}")
        prompt = f"prompt {tokens['prompt']} tokens = {tokens['computed']} computed + {cached} cached"
        self.stdout.write(f"   {prompt}; answer {tokens['completion']} tokens")
        for line in receipt["lines"]:
            used = _quantity(int(line["quantity"]), line["unit"])
            price = f"{_price(int(line['unit_price_nano_usd']))} per million {UNITS_SOLD[line['unit']]}"
            self.stdout.write(f"   {line['meter']:<18} {used:>24}   at {price:<32} {_usd(int(line['amount_nano_usd']))}")
        self.stdout.write(f"   {'total':<18} {'':>24}      {'':<32} {_usd(int(receipt['total_nano_usd']))}")

    def _invoice(self, invoice: Invoice) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(f"\nInvoice draft, {invoice.period_start:%B %Y}"))
        for line in invoice.lines.order_by("id"):
            used = _quantity(int(line.quantity), line.unit)
            self.stdout.write(
                f"   {line.model:<24} {line.service_tier:<9} {line.meter:<18} {used:>24}   {_usd(line.amount_nano_usd)}"
            )
        self.stdout.write(f"   total {_usd(invoice.total_nano_usd)}, which is ${invoice.total_cents / 100:.2f} when invoiced")


def _check_reachable(credentials: DemoCredentials) -> None:
    connection = _connection(credentials)
    try:
        connection.connect()
    except OSError as error:
        raise CommandError(
            f"The server at {credentials.base_url} cannot be reached ({error.strerror or error}). "
            "Start `make serve`, or set BRIGADE_DATA and PORT as for the server.",
            returncode=2,
        ) from error
    finally:
        connection.close()


def _stream(credentials: DemoCredentials, body: dict[str, Any], call: Call) -> Iterator[str]:
    """Pieces of the answer's text; fills `call`."""
    connection = _connection(credentials)
    began = time.monotonic()
    connection.request("POST", _path(credentials, "/chat/completions"), json.dumps(body), _headers(credentials))
    answer = connection.getresponse()
    if answer.status != 200:
        raise CommandError(f"the server refused the call: {answer.read().decode()}")
    for raw in answer:
        if not raw.startswith(b"data: ") or raw.startswith(b"data: [DONE]"):
            continue
        chunk = json.loads(raw[6:])
        if "error" in chunk:
            raise CommandError(chunk["error"]["message"])
        call.request_id = chunk["id"]
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                call.ttft_ms = call.ttft_ms or 1000 * (time.monotonic() - began)
                yield piece
    call.total_ms = 1000 * (time.monotonic() - began)
    connection.close()


def _rated_receipt(credentials: DemoCredentials, request_id: str) -> dict[str, Any]:
    until = time.monotonic() + RATING_PATIENCE_S
    while time.monotonic() < until:
        connection = _connection(credentials)
        connection.request("GET", _path(credentials, f"/requests/{request_id}"), headers=_headers(credentials))
        receipt: dict[str, Any] = json.load(connection.getresponse())
        connection.close()
        if receipt["lines"] is not None:
            return receipt
        time.sleep(0.1)
    raise CommandError(f"{request_id} was not rated within {RATING_PATIENCE_S} s: is the control worker running? See /readyz")


def _connection(credentials: DemoCredentials) -> http.client.HTTPConnection:
    parts = urlsplit(credentials.base_url)
    return http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=120)


def _path(credentials: DemoCredentials, path: str) -> str:
    return urlsplit(credentials.base_url).path + path


def _headers(credentials: DemoCredentials) -> dict[str, str]:
    return {"Authorization": f"Bearer {credentials.api_key}", "Content-Type": "application/json"}


def _quantity(quantity: int, unit: str) -> str:
    return f"{quantity / 1_000_000:,.1f} token-seconds" if unit == "token_microsecond" else f"{quantity:,} {unit}s"


def _price(amount_nano_usd: int) -> str:
    """With two decimals at least, and no more than it has."""
    dollars, _, decimals = _usd(amount_nano_usd).partition(".")
    return f"{dollars}.{decimals.rstrip('0').ljust(2, '0')}"


def _usd(amount_nano_usd: int) -> str:
    dollars, nano = divmod(amount_nano_usd, NANO_USD_PER_USD)
    return f"${dollars}.{nano:09d}"
