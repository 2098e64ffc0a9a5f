"""Which price holds at a moment, and what a request can cost at most."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from billing.errors import PriceMissing
from billing.pricing.models import Price, PriceBook
from inference.usage.models import Meter

BLOCK_TOKENS = 16  # KV is held in whole blocks
STORAGE_COPIES = 2  # during a hand-off both sides hold the KV
DEFAULT_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices of one (model, service tier) in one book."""

    version: int
    prices: dict[tuple[str, str], Price]  # (meter, cache tier)

    def find(self, meter: str, cache_tier: str = "") -> Price | None:
        """The tier's own price, else the meter's price for all tiers."""
        return self.prices.get((meter, cache_tier)) or self.prices.get((meter, ""))

    def dearest(self, *meters: str) -> Price:
        """The highest price per unit among the meters, over all their cache tiers."""
        found = [price for (meter, _), price in self.prices.items() if meter in meters]
        if not found:
            raise PriceMissing(f"price book {self.version} has no price for {' or '.join(meters)}")
        best = found[0]
        for price in found[1:]:
            if price.unit_price_nano_usd * best.unit_quantity > best.unit_price_nano_usd * price.unit_quantity:
                best = price
        return best


class PriceHistory:
    """All published books, for some models: looks a tariff up by time without asking the database again."""

    def __init__(self, books: Iterable[PriceBook], prices: Iterable[Price]) -> None:
        self._books = sorted(books, key=lambda book: book.effective_from, reverse=True)
        self._tariffs: dict[tuple[int, str, str], Tariff] = {}
        versions = {book.pk: book.version for book in self._books}
        for price in prices:
            key = (price.book_id, price.model, price.service_tier)
            tariff = self._tariffs.setdefault(key, Tariff(versions[price.book_id], {}))
            tariff.prices[price.meter, price.cache_tier] = price

    def tariff(self, *, model: str, service_tier: str, at: datetime) -> Tariff | None:
        book = next((book for book in self._books if book.effective_from <= at), None)
        return self._tariffs.get((book.pk, model, service_tier)) if book else None


def price_history(models: Collection[str]) -> PriceHistory:
    books = list(PriceBook.objects.filter(published_at__isnull=False))
    return PriceHistory(books, Price.objects.filter(book__in=books, model__in=models))


def price_book_at(at: datetime) -> PriceBook:
    """The published book in force. Raises PriceMissing before the first."""
    book = PriceBook.objects.filter(_in_force(at)).order_by("-effective_from").first()
    if book is None:
        raise PriceMissing(f"no price book is in force at {at.isoformat()}")
    return book


def prices_for(*, model: str, service_tier: str, at: datetime) -> Tariff:
    book = price_book_at(at)
    prices = {(price.meter, price.cache_tier): price for price in book.prices.filter(model=model, service_tier=service_tier)}
    if not prices:
        raise PriceMissing(f"price book {book.version} has no prices for {model} in the service tier {service_tier}")
    return Tariff(book.version, prices)


def quote_nano_usd(
    *, model: str, service_tier: str, prompt_tokens: int, max_tokens: int, at: datetime, deadline_s: float = DEFAULT_DEADLINE_S
) -> int:
    """The most that a request can cost, at the prices in force. Raises PriceMissing."""
    tariff = prices_for(model=model, service_tier=service_tier, at=at)
    return quote_at(tariff, prompt_tokens=prompt_tokens, max_tokens=max_tokens, deadline_s=deadline_s)


def quote_at(
    tariff: Tariff, *, prompt_tokens: int, max_tokens: int, choices: int = 1, deadline_s: float = DEFAULT_DEADLINE_S
) -> int:
    """In nano-USD: no cache hit, all of max_tokens in every choice, each with KV of its own on both sides until the deadline."""
    blocks = choices * -(-(prompt_tokens + max_tokens) // BLOCK_TOKENS)
    token_microseconds = blocks * BLOCK_TOKENS * STORAGE_COPIES * round(deadline_s * 1_000_000)
    return (
        _ceiling(prompt_tokens, tariff.dearest(Meter.PREFILL_COMPUTED, Meter.PREFILL_CACHED))
        + _ceiling(choices * max_tokens, tariff.dearest(Meter.DECODE))
        + _ceiling(token_microseconds, tariff.dearest(Meter.KV_TOKEN_SECONDS))
    )


def _in_force(at: datetime) -> Q:
    return Q(published_at__isnull=False, effective_from__lte=at)


def _ceiling(quantity: int, price: Price) -> int:
    return -(-quantity * price.unit_price_nano_usd // price.unit_quantity)
