"""What is for sale: models, and the service tiers in which they are served. Prices are in the billing room."""

from __future__ import annotations

from django.db import models


class ServedModel(models.Model):
    """A model by the name that clients send. Workers find its files under the same name."""

    name = models.CharField(max_length=200, primary_key=True)
    display_name = models.CharField(max_length=200)
    context_length = models.PositiveIntegerField()  # tokens, prompt and completion together
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "catalog_model"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.display_name


class PathPolicy(models.TextChoices):
    AUTO = "auto", "the dispatcher decides"
    SPLIT = "split", "prefill and decode on two workers"
    FUSED = "fused", "one worker does both"


class ServiceTier(models.Model):
    """A promise with a price: how soon a request is served. Frozen into a ClassPolicy when a request is admitted."""

    name = models.CharField(max_length=40, primary_key=True)
    priority = models.IntegerField()  # lower is served first
    deadline_s = models.FloatField()
    path = models.CharField(max_length=5, choices=PathPolicy.choices, default=PathPolicy.AUTO)
    enabled = models.BooleanField(default=True)

    class Meta:
        db_table = "catalog_tier"
        ordering = ["priority"]
        constraints = [models.CheckConstraint(condition=models.Q(deadline_s__gt=0), name="tier_deadline_above_zero")]

    def __str__(self) -> str:
        return self.name
