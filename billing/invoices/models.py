"""Invoices of a calendar month in the tenant's time zone. A draft is rebuilt from the rated lines as often as wanted."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class InvoiceSchedule(models.Model):
    """How a tenant is invoiced. Its lock orders builds of the tenant's invoices; the time zone is fixed by the first of them."""

    tenant_id = models.UUIDField(primary_key=True)
    time_zone = models.CharField(max_length=64)  # IANA name
    lines_up_to = models.BigIntegerField(default=0)  # last rated line that a refresh has looked at

    class Meta:
        db_table = "invoices_schedule"


class InvoiceState(models.TextChoices):
    DRAFT = "draft", "follows the usage of its period"


class Invoice(models.Model):
    """Covers the rated lines with period_start <= occurred_at < period_end and number <= `lines_up_to`."""

    tenant_id = models.UUIDField()
    number = models.CharField(max_length=40, null=True, unique=True)  # null while a draft
    period_start = models.DateTimeField()
    period_end = models.DateTimeField()  # exclusive
    time_zone = models.CharField(max_length=64)
    state = models.CharField(max_length=8, choices=InvoiceState.choices, default=InvoiceState.DRAFT)
    currency = models.CharField(max_length=3, default="USD")
    total_nano_usd = models.BigIntegerField(default=0)  # exact
    total_cents = models.BigIntegerField(default=0)  # sum of the lines' cents
    residual_nano_usd = models.BigIntegerField(default=0)  # exact total less the total in cents; may be negative
    lines_up_to = models.BigIntegerField(default=0)
    built_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "invoices_invoice"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant_id", "period_start"], name="invoice_draft_once", condition=models.Q(state="draft")
            ),
            models.CheckConstraint(condition=models.Q(period_end__gt=models.F("period_start")), name="invoice_period_forward"),
            models.CheckConstraint(
                condition=models.Q(residual_nano_usd=models.F("total_nano_usd") - models.F("total_cents") * 10_000_000),
                name="invoice_residual_exact",
            ),
        ]


class InvoiceLine(models.Model):
    """All use of one price by one project in the period."""

    invoice = models.ForeignKey(Invoice, on_delete=models.CASCADE, related_name="lines")
    tenant_id = models.UUIDField()
    project_id = models.UUIDField()
    model = models.CharField(max_length=200)
    service_tier = models.CharField(max_length=40)
    meter = models.CharField(max_length=32)
    cache_tier = models.CharField(max_length=8)
    unit = models.CharField(max_length=20)
    price_book = models.IntegerField()
    unit_price_nano_usd = models.BigIntegerField()
    unit_quantity = models.BigIntegerField()
    quantity = models.DecimalField(max_digits=38, decimal_places=0)
    requests = models.BigIntegerField()
    amount_nano_usd = models.BigIntegerField()
    amount_cents = models.BigIntegerField()

    class Meta:
        db_table = "invoices_line"
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "invoice",
                    "project_id",
                    "model",
                    "service_tier",
                    "meter",
                    "cache_tier",
                    "unit",
                    "price_book",
                    "unit_price_nano_usd",
                    "unit_quantity",
                ],
                name="invoice_line_once",
            )
        ]
