"""The console under /console/: importing a page puts it on the site."""

from __future__ import annotations

from controlplane.console import configuration, dashboard, invoices, keys, kv, ledger, prices, requests, tenants, usage
from controlplane.console.site import site

PAGES = (dashboard, requests, kv, configuration, tenants, keys, usage, invoices, ledger, prices)

urlpatterns = site.urls
