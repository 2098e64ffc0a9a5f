"""The console as its process runs it: every page through Django's client, as `brigade_system`. The cast: acme, and the rival."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import Client

from controlplane.tenants.models import User
from controlplane.tenants.services import user_create
from tests.conftest import AsRole
from tests.controlplane.console.rows import Tenant, fleet_make, on_sale, tenant_make


@pytest.fixture
def kitchen(db: None, as_role: AsRole, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both of the console's connections are the test's own, so that a page sees the test's uncommitted rows."""
    before = connections["system"]
    connections["system"] = connections["default"]
    try:
        with as_role("system"):
            on_sale()
            fleet_make()
            yield
    finally:
        connections["system"] = before


@pytest.fixture
def acme(kitchen: None) -> Tenant:
    return tenant_make("Acme")


@pytest.fixture
def rival(kitchen: None) -> Tenant:
    return tenant_make("Rival")


@pytest.fixture
def operator(kitchen: None) -> User:
    return user_create(email="operator@brigade.test", password=None, is_staff=True)


@pytest.fixture
def staff(operator: User) -> Client:
    client = Client(enforce_csrf_checks=False)
    client.force_login(operator)
    return client


@pytest.fixture
def stranger(kitchen: None) -> Client:
    """Logged in, and no operator: a tenant's own person."""
    client = Client()
    client.force_login(user_create(email="owner@acme.test", password=None, is_staff=False))
    return client
