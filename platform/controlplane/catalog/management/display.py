"""A model of the catalogue as the commands show it."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from billing.pricing.models import Price
from controlplane.catalog.shelf import Listed


def price_lines(model: Listed) -> Iterator[str]:
    for tier, tariff in model.tariffs.items():
        prices = [] if tariff is None else sorted(tariff.prices.values(), key=lambda price: (price.meter, price.cache_tier))
        yield f"  {tier}: {', '.join(map(_shown, prices)) if prices else 'NO PRICE: requests are refused'}"


def listed_json(model: Listed) -> dict[str, Any]:
    return {
        "name": model.name,
        "context_length": model.context_length,
        "enabled": model.enabled,
        "revision": model.revision,
        "workers": model.workers,
        "prices": {tier: [] if tariff is None else [*map(_json, tariff.prices.values())] for tier, tariff in model.tariffs.items()},
    }


def _shown(price: Price) -> str:
    per = f"{price.unit_quantity:,} {price.unit}"
    return f"{price.meter} {Decimal(price.unit_price_nano_usd).scaleb(-9).normalize():f} USD for {per}"


def _json(price: Price) -> dict[str, Any]:
    names = ("meter", "cache_tier", "unit", "unit_price_nano_usd", "unit_quantity")
    return {name: getattr(price, name) for name in names}
