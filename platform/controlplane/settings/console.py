"""Settings of the operator's console: its look, its way in, its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.urls import reverse_lazy

STATIC_MAX_AGE_S = 300
SESSION_S = 12 * 3600


def console_settings(middleware: Sequence[str]) -> dict[str, Any]:
    """`middleware` is Django's ordinary one; before it stand the files, and the console's database role and headers."""
    return {
        "MIDDLEWARE": ["controlplane.console.middleware.static_files", "controlplane.console.middleware.as_operator", *middleware],
        "LOGIN_URL": reverse_lazy("console:login"),
        "LOGIN_REDIRECT_URL": reverse_lazy("console:index"),
        "SESSION_COOKIE_NAME": "brigade_console",
        "SESSION_COOKIE_PATH": "/console/",
        "SESSION_COOKIE_AGE": SESSION_S,
        "CSRF_COOKIE_NAME": "brigade_console_csrf",
        "CSRF_COOKIE_PATH": "/console/",
        "X_FRAME_OPTIONS": "DENY",
        "WHITENOISE_USE_FINDERS": True,  # straight from the packages: no collectstatic
        "WHITENOISE_MAX_AGE": STATIC_MAX_AGE_S,
        "WHITENOISE_ALLOW_ALL_ORIGINS": False,
        "UNFOLD": _unfold(),
    }


def _unfold() -> dict[str, Any]:
    return {
        "SITE_TITLE": "Brigade",
        "SITE_HEADER": "Brigade",
        "SITE_SUBHEADER": "Operator's console",
        "SITE_SYMBOL": "skillet",
        "SITE_URL": reverse_lazy("console:index"),
        "SHOW_HISTORY": False,
        "SHOW_VIEW_ON_SITE": False,
        "BORDER_RADIUS": "6px",
        "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "/static/console/favicon.svg"}],
        "STYLES": ["/static/console/console.css"],
        "COLORS": {"primary": _COPPER},
        "SIDEBAR": {"show_search": False, "show_all_applications": False, "navigation": _navigation()},
    }


_COPPER = {
    "50": "oklch(97.5% .014 60)",
    "100": "oklch(94.5% .033 60)",
    "200": "oklch(89% .065 58)",
    "300": "oklch(82% .105 56)",
    "400": "oklch(74% .145 52)",
    "500": "oklch(66% .160 48)",
    "600": "oklch(58% .155 45)",
    "700": "oklch(50% .135 42)",
    "800": "oklch(43% .110 41)",
    "900": "oklch(37% .088 40)",
    "950": "oklch(26% .062 40)",
}


def _navigation() -> list[dict[str, Any]]:
    return [
        {
            "title": "Kitchen",
            "items": [
                _item("Now", "monitoring", "index"),
                _item("Requests", "receipt_long", "requests_inferencerequest_changelist"),
                _item("KV cache", "memory", "kv"),
                _item("Configuration", "tune", "configuration"),
            ],
        },
        {
            "title": "Tenants",
            "separator": True,
            "items": [
                _item("Organisations", "apartment", "tenants_organisation_changelist"),
                _item("API keys", "key", "keys_apikey_changelist"),
            ],
        },
        {
            "title": "Money",
            "separator": True,
            "items": [
                _item("Usage", "bar_chart", "usage"),
                _item("Invoices", "description", "invoices_invoice_changelist"),
                _item("Ledger", "account_balance", "ledger_ledgertransaction_changelist"),
                _item("Price books", "sell", "pricing_pricebook_changelist"),
            ],
        },
    ]


def _item(title: str, icon: str, name: str) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse_lazy(f"console:{name}")}
