"""What a client may ask for."""

from __future__ import annotations

from controlplane.catalog.models import ServedModel, ServiceTier
from controlplane.catalog.services import class_policy
from inference.contracts import ClassPolicy


def served_models() -> list[ServedModel]:
    return list(ServedModel.objects.filter(enabled=True))


def service_tiers() -> dict[str, ClassPolicy]:
    return {tier.name: class_policy(tier) for tier in ServiceTier.objects.filter(enabled=True)}
