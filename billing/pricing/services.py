"""Price books are written here: a draft, then its publication, which nothing undoes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now

from billing.errors import BookRefused
from billing.pricing.models import Price, PriceBook
from billing.pricing.selectors import Tariff
from inference.database import execute, query
from inference.usage.models import UNITS, Meter

MILLION = 1_000_000
MILLION_TOKEN_HOURS = 3_600_000_000 * MILLION  # in token-microseconds
FIRST_BOOK_FROM = datetime(2000, 1, 1, tzinfo=UTC)
ALWAYS_TIERS = frozenset({"device"})  # every model has a cache on its device


@dataclass(frozen=True, slots=True)
class PriceSpec:
    """A price to be. An empty `cache_tier` prices every tier that has no price of its own."""

    model: str
    service_tier: str
    meter: Meter
    unit_price_nano_usd: int
    unit_quantity: int
    cache_tier: str = ""


@transaction.atomic
def price_book_create(*, name: str, effective_from: datetime, prices: Iterable[PriceSpec]) -> PriceBook:
    """A draft with the next version number."""
    _lock_books()
    version = (PriceBook.objects.aggregate(last=Max("version"))["last"] or 0) + 1
    book = PriceBook.objects.create(version=version, name=name, effective_from=effective_from)
    Price.objects.bulk_create(_price(book, spec) for spec in prices)
    return book


@transaction.atomic
def price_book_publish(*, version: int) -> PriceBook:
    """From here on the book prices what happens from `effective_from` on. Twice is once.

    Raises BookRefused where customers could use a meter that has no price, and where prices of the past would change: a book
    that begins before now must keep every price of the book in force then (it may add prices, for other models).
    """
    _lock_books()
    book = PriceBook.objects.select_for_update().get(version=version)
    if book.published_at is not None:
        return book
    prices = list(book.prices.all())
    if problems := [*_gaps(prices), *_changes_of_the_past(book, prices)]:
        raise BookRefused("; ".join(problems))
    PriceBook.objects.filter(pk=book.pk).update(published_at=Now())
    book.refresh_from_db()
    return book


@transaction.atomic
def price_book_seed(
    *,
    model: str,
    tier_percent: Mapping[str, int] = MappingProxyType({"default": 100}),
    input_nano_usd: int = 100_000_000,
    cached_nano_usd: int = 10_000_000,
    output_nano_usd: int = 400_000_000,
    storage_nano_usd: int = 500_000_000,
) -> PriceBook:
    """Publishes demo prices (per million tokens, storage per million token-hours) for the tiers that the newest book lacks.

    `tier_percent` gives each service tier's share of the prices. The first book holds since 2000; a later one repeats the newest
    book's prices, adds these, and holds from now on. Where nothing is lacking the newest book is the answer.
    """
    _lock_books()
    newest = PriceBook.objects.filter(published_at__isnull=False).order_by("-effective_from").first()
    known = set(newest.prices.filter(model=model).values_list("service_tier", flat=True)) if newest else set()
    missing = {tier: percent for tier, percent in tier_percent.items() if tier not in known}
    if newest and not missing:
        return newest
    prices = {
        Meter.PREFILL_COMPUTED: (input_nano_usd, MILLION),
        Meter.PREFILL_CACHED: (cached_nano_usd, MILLION),
        Meter.DECODE: (output_nano_usd, MILLION),
        Meter.KV_TOKEN_SECONDS: (storage_nano_usd, MILLION_TOKEN_HOURS),
    }
    specs = [*_specs_of(newest)] if newest else []
    for tier, percent in missing.items():
        specs += [PriceSpec(model, tier, meter, amount * percent // 100, quantity) for meter, (amount, quantity) in prices.items()]
    begins = max(_now(), newest.effective_from + timedelta(microseconds=1)) if newest else FIRST_BOOK_FROM
    book = price_book_create(name="Demo prices", effective_from=begins, prices=specs)
    return price_book_publish(version=book.version)


def _price(book: PriceBook, spec: PriceSpec) -> Price:
    return Price(
        book=book,
        model=spec.model,
        service_tier=spec.service_tier,
        meter=spec.meter,
        cache_tier=spec.cache_tier,
        unit=UNITS[spec.meter],
        unit_price_nano_usd=spec.unit_price_nano_usd,
        unit_quantity=spec.unit_quantity,
    )


def _specs_of(book: PriceBook) -> Iterable[PriceSpec]:
    for price in book.prices.all():
        yield PriceSpec(
            price.model, price.service_tier, Meter(price.meter), price.unit_price_nano_usd, price.unit_quantity, price.cache_tier
        )


def _gaps(prices: Sequence[Price]) -> list[str]:
    if not prices:
        return ["the book has no prices"]
    tariffs: dict[tuple[str, str], Tariff] = {}
    for price in prices:
        tariffs.setdefault((price.model, price.service_tier), Tariff(0, {})).prices[price.meter, price.cache_tier] = price
    return [
        f"{model}, {service_tier}: no price for {meter} {cache_tier}".rstrip()
        for (model, service_tier), tariff in sorted(tariffs.items())
        for meter, cache_tier in _usable(tariff)
        if tariff.find(meter, cache_tier) is None
    ]


def _usable(tariff: Tariff) -> list[tuple[str, str]]:
    """Meters that customers of this tariff can use, by cache tier."""
    tiers = sorted({cache_tier for _, cache_tier in tariff.prices if cache_tier} | ALWAYS_TIERS)
    by_tier = [(meter, tier) for meter in (Meter.PREFILL_CACHED, Meter.KV_TOKEN_SECONDS) for tier in tiers]
    return [(Meter.PREFILL_COMPUTED, ""), (Meter.DECODE, ""), *by_tier]


def _changes_of_the_past(book: PriceBook, prices: Sequence[Price]) -> list[str]:
    if book.effective_from >= _now():
        return []
    earlier = PriceBook.objects.filter(published_at__isnull=False, effective_from__lte=book.effective_from)
    in_force = earlier.order_by("-effective_from").first()
    if in_force is None:
        return []
    kept = {_content(price) for price in prices}
    return [
        f"{price}: a past price of book {in_force} would change" for price in in_force.prices.all() if _content(price) not in kept
    ]


def _content(price: Price) -> tuple[str, str, str, str, str, int, int]:
    return (
        price.model,
        price.service_tier,
        price.meter,
        price.cache_tier,
        price.unit,
        price.unit_price_nano_usd,
        price.unit_quantity,
    )


def _lock_books() -> None:
    """One writer of price books at a time; readers go on."""
    execute("LOCK TABLE pricing_book IN SHARE ROW EXCLUSIVE MODE")


def _now() -> datetime:
    """The start of the transaction by the database's clock, so that a book made in it may begin with it."""
    moment: datetime
    ((moment,),) = query("SELECT now()")
    return moment
