"""Billing's errors: a class with a `code`. The message may be shown to the customer."""

from __future__ import annotations


class BillingError(Exception):
    code = "billing_error"


class InsufficientFunds(BillingError):
    """The hold would pass the tenant's credit limit."""

    code = "insufficient_quota"


class HoldConflict(BillingError):
    """The request has a hold already, of another tenant or another amount."""

    code = "hold_conflict"


class ReliefRefused(BillingError):
    """More would be paid off than is owed, or the key was used for something else."""

    code = "relief_refused"


class PriceMissing(BillingError):
    """No price book in force at that time prices this."""

    code = "price_missing"


class BookRefused(BillingError):
    """The price book may not be published: a price is missing, or it would change the past."""

    code = "price_book_refused"


class LedgerConflict(BillingError):
    """The source key stands for a transaction with other content."""

    code = "ledger_conflict"


class LedgerRefused(BillingError):
    """The entries are no transaction: fewer than two, a zero, a sum that is not zero, or a reversal of a reversal."""

    code = "ledger_refused"


class PeriodRefused(BillingError):
    """Not the first day of a month, an unknown time zone, or another one than this tenant's invoices have."""

    code = "period_refused"
