"""Price books: dated, numbered, and immutable once published (triggers, see migration 0002)."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class PriceBook(models.Model):
    """All prices from `effective_from` on, until the next published book. Without `published_at` a draft that prices nothing."""

    version = models.IntegerField(unique=True)
    name = models.CharField(max_length=120)
    currency = models.CharField(max_length=3, default="USD")
    effective_from = models.DateTimeField()
    published_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "pricing_book"
        constraints = [
            models.UniqueConstraint(
                fields=["effective_from"], name="book_in_force_once", condition=models.Q(published_at__isnull=False)
            ),
            models.CheckConstraint(condition=models.Q(version__gt=0), name="book_version_positive"),
        ]

    def __str__(self) -> str:
        return f"v{self.version} {self.name}"


class Price(models.Model):
    """amount = quantity * unit_price_nano_usd / unit_quantity. An empty `cache_tier` prices the tiers without one of their own."""

    book = models.ForeignKey(PriceBook, on_delete=models.CASCADE, related_name="prices")
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=40)
    meter = models.CharField(max_length=32)  # inference.usage.models.Meter
    cache_tier = models.CharField(max_length=8, default="")
    unit = models.CharField(max_length=20)  # of the quantity: token | token_microsecond
    unit_price_nano_usd = models.BigIntegerField()  # for unit_quantity units
    unit_quantity = models.BigIntegerField()

    class Meta:
        db_table = "pricing_price"
        constraints = [
            models.UniqueConstraint(fields=["book", "model", "service_tier", "meter", "cache_tier"], name="price_once"),
            models.CheckConstraint(condition=models.Q(unit_price_nano_usd__gte=0), name="price_not_negative"),
            models.CheckConstraint(condition=models.Q(unit_quantity__gt=0), name="price_unit_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.service_tier} {self.meter} {self.cache_tier}".rstrip()
