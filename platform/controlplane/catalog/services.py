"""What is on sale, and the promise that travels with a request."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from django.conf import settings
from django.db import transaction

from billing.pricing.services import price_book_seed
from controlplane.catalog.models import ServedModel, ServiceTier
from inference.contracts import ClassPolicy, PathPolicy
from inference.text import open_text

# name, priority (lower is served first), deadline in seconds, price in percent of the default tier's
TIERS = (("default", 100, 600.0, 100), ("priority", 10, 300.0, 200), ("flex", 1_000, 1_800.0, 50))
# of the default tier, for a million tokens, and storage for a million token-hours
PRICES_NANO_USD = {
    "input_nano_usd": 100_000_000,
    "cached_nano_usd": 10_000_000,
    "output_nano_usd": 400_000_000,
    "storage_nano_usd": 500_000_000,
}


def class_policy(tier: ServiceTier) -> ClassPolicy:
    return ClassPolicy(tier=tier.name, priority=tier.priority, deadline_s=tier.deadline_s, path=cast(PathPolicy, tier.path))


@transaction.atomic
def catalog_seed(*, model: str, display_name: str = "") -> ServedModel:
    """The model, the three tiers and a price for each. What is there already stays as it is. The model's files must be there."""
    served = ServedModel.objects.filter(name=model).first() or _model_create(model, display_name or model)
    for name, priority, deadline_s, _ in TIERS:
        ServiceTier.objects.get_or_create(name=name, defaults={"priority": priority, "deadline_s": deadline_s})
    price_book_seed(model=model, tier_percent={name: percent for name, _, _, percent in TIERS}, **PRICES_NANO_USD)
    return served


def _model_create(name: str, display_name: str) -> ServedModel:
    context_length = open_text(Path(settings.DATA.models) / name).context_length
    defaults = {"display_name": display_name, "context_length": context_length}
    return ServedModel.objects.get_or_create(name=name, defaults=defaults)[0]
