"""Price books: complete when published, then immutable, and looked up by the time of use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from billing.errors import BookRefused, PriceMissing
from billing.pricing.models import Price, PriceBook
from billing.pricing.selectors import price_book_at, prices_for, quote_nano_usd
from billing.pricing.services import MILLION, MILLION_TOKEN_HOURS, PriceSpec, price_book_create, price_book_publish, price_book_seed
from inference.usage.models import Meter
from tests.billing.cast import JUNE, MODEL, at_once

pytestmark = pytest.mark.django_db

START = datetime(2026, 1, 1, tzinfo=UTC)


def specs(decode: int = 400_000_000, model: str = MODEL) -> list[PriceSpec]:
    return [
        PriceSpec(model, "default", Meter.PREFILL_COMPUTED, 100_000_000, MILLION),
        PriceSpec(model, "default", Meter.PREFILL_CACHED, 10_000_000, MILLION),
        PriceSpec(model, "default", Meter.DECODE, decode, MILLION),
        PriceSpec(model, "default", Meter.KV_TOKEN_SECONDS, 500_000_000, MILLION_TOKEN_HOURS),
    ]


def publish(prices: list[PriceSpec], effective_from: datetime = START) -> PriceBook:
    book = price_book_create(name="test", effective_from=effective_from, prices=prices)
    return price_book_publish(version=book.version)


def test_a_book_is_published_once_and_twice_is_the_same() -> None:
    book = publish(specs())
    assert price_book_publish(version=book.version).published_at == book.published_at


@pytest.mark.parametrize("meter", [Meter.PREFILL_COMPUTED, Meter.PREFILL_CACHED, Meter.DECODE, Meter.KV_TOKEN_SECONDS])
def test_a_book_without_a_price_for_a_usable_meter_is_refused(meter: Meter) -> None:
    with pytest.raises(BookRefused, match=meter):
        publish([spec for spec in specs() if spec.meter != meter])


def test_a_book_that_lists_a_cache_tier_for_storage_must_price_reads_from_it() -> None:
    prices = [spec for spec in specs() if spec.meter != Meter.PREFILL_CACHED]
    prices.append(PriceSpec(MODEL, "default", Meter.PREFILL_CACHED, 1, MILLION, "device"))
    with pytest.raises(BookRefused, match="prefill_cached disk"):
        publish([*prices, PriceSpec(MODEL, "default", Meter.KV_TOKEN_SECONDS, 1, MILLION_TOKEN_HOURS, "disk")])


def test_an_empty_book_is_refused() -> None:
    with pytest.raises(BookRefused):
        publish([])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE pricing_book SET name = 'other'",
        "UPDATE pricing_book SET published_at = NULL",
        "DELETE FROM pricing_book",
        "UPDATE pricing_price SET unit_price_nano_usd = 1",
        "DELETE FROM pricing_price",
        "INSERT INTO pricing_price (book_id, model, service_tier, meter, cache_tier, unit, unit_price_nano_usd, unit_quantity) "
        "SELECT id, 'new', 'default', 'decode', '', 'token', 1, 1 FROM pricing_book",
    ],
)
def test_a_published_book_refuses_every_change(statement: str) -> None:
    publish(specs())
    with pytest.raises(IntegrityError, match="is published"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_draft_can_be_changed_and_deleted() -> None:
    book = price_book_create(name="draft", effective_from=START, prices=specs())
    Price.objects.filter(book=book, meter=Meter.DECODE).update(unit_price_nano_usd=7)
    assert book.prices.get(meter=Meter.DECODE).unit_price_nano_usd == 7
    book.delete()
    assert not PriceBook.objects.exists()


def test_a_draft_prices_nothing() -> None:
    price_book_create(name="draft", effective_from=START, prices=specs())
    with pytest.raises(PriceMissing):
        price_book_at(JUNE)


@pytest.mark.parametrize(("unit_price", "unit_quantity"), [(-1, MILLION), (1, 0), (1, -5)])
def test_negative_prices_and_empty_units_are_refused(unit_price: int, unit_quantity: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        price_book_create(
            name="bad", effective_from=START, prices=[PriceSpec(MODEL, "default", Meter.DECODE, unit_price, unit_quantity)]
        )


def test_the_book_of_the_moment_holds_to_the_microsecond() -> None:
    soon = datetime(2999, 1, 1, tzinfo=UTC)
    old, new = publish(specs()), publish(specs(decode=900), soon)
    assert price_book_at(soon - timedelta(microseconds=1)) == old
    assert price_book_at(soon) == new
    with pytest.raises(PriceMissing):
        price_book_at(START - timedelta(microseconds=1))


def test_a_book_that_reaches_into_the_past_may_add_prices_but_change_none() -> None:
    publish(specs())
    with pytest.raises(BookRefused, match="past price"):
        publish(specs(decode=1), JUNE)
    book = publish([*specs(), *specs(model="another")], JUNE)
    assert price_book_at(JUNE) == book


def test_two_published_books_cannot_begin_at_the_same_moment() -> None:
    later = datetime(2999, 1, 1, tzinfo=UTC)
    publish(specs(), later)
    with pytest.raises(IntegrityError), transaction.atomic():
        publish(specs(decode=5), later)


def test_a_tier_without_its_own_price_takes_the_price_for_all_tiers() -> None:
    publish([*specs(), PriceSpec(MODEL, "default", Meter.PREFILL_CACHED, 3, MILLION, "disk")])
    tariff = prices_for(model=MODEL, service_tier="default", at=JUNE)
    disk, host = tariff.find(Meter.PREFILL_CACHED, "disk"), tariff.find(Meter.PREFILL_CACHED, "host")
    assert disk is not None
    assert host is not None
    assert (disk.unit_price_nano_usd, host.unit_price_nano_usd) == (3, 10_000_000)


def test_a_quote_is_the_dearest_case_in_whole_nano_dollars() -> None:
    publish(specs())
    quote = quote_nano_usd(model=MODEL, service_tier="default", prompt_tokens=100, max_tokens=64, at=JUNE, deadline_s=600)
    storage = -(-176 * 2 * 600 * 1_000_000 * 500_000_000 // MILLION_TOKEN_HOURS)  # 164 tokens are 11 blocks of 16, on both sides
    assert quote == 100 * 100 + 64 * 400 + storage


def test_a_quote_without_prices_is_refused_rather_than_zero() -> None:
    publish(specs())
    for model, tier in (("unknown", "default"), (MODEL, "priority")):
        with pytest.raises(PriceMissing):
            quote_nano_usd(model=model, service_tier=tier, prompt_tokens=1, max_tokens=1, at=JUNE)


def test_seeding_twice_makes_one_book_and_a_second_model_keeps_the_first() -> None:
    first = price_book_seed(model=MODEL)
    assert price_book_seed(model=MODEL) == first
    second = price_book_seed(model="another")
    assert {price.model for price in second.prices.all()} == {MODEL, "another"}
    assert price_book_seed(model=MODEL) == second


@pytest.mark.django_db(transaction=True)
def test_seeds_at_once_make_one_book() -> None:
    versions = at_once(4, lambda _: price_book_seed(model=MODEL).version)
    assert set(versions) == {1}
    assert PriceBook.objects.count() == 1
