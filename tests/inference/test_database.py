"""The tenant of a transaction: set for its block, and for nothing outside it."""

from __future__ import annotations

import uuid

import pytest
from django.db import transaction

from inference.database import query, tenant_scope
from inference.requests.models import InferenceRequest
from tests.conftest import AsRole
from tests.inference.conftest import TENANT, MakeRequest

pytestmark = pytest.mark.django_db

ACME, RIVAL = uuid.uuid4(), uuid.uuid4()


def tenant() -> str | None:
    return query("SELECT current_setting('brigade.tenant_id', true)")[0][0] or None


def test_a_scope_inside_another_gives_the_outer_tenant_back() -> None:
    with tenant_scope(ACME):
        with tenant_scope(RIVAL):
            assert tenant() == str(RIVAL)
        assert tenant() == str(ACME)


def test_a_scope_that_fails_gives_the_outer_tenant_back() -> None:
    with tenant_scope(ACME):
        with pytest.raises(ValueError, match="broken"), tenant_scope(RIVAL):
            raise ValueError("broken")
        assert tenant() == str(ACME)


def test_no_tenant_is_left_in_a_transaction_that_goes_on() -> None:
    with transaction.atomic():
        with tenant_scope(ACME):
            pass
        assert tenant() is None


def test_the_app_role_sees_its_tenants_requests_and_nothing_without_a_tenant(make_request: MakeRequest, as_role: AsRole) -> None:
    make_request()
    with as_role("app"):
        assert not InferenceRequest.objects.exists()
        with tenant_scope(RIVAL):
            assert not InferenceRequest.objects.exists()
        with tenant_scope(TENANT):
            assert InferenceRequest.objects.count() == 1
    with as_role("system"):
        assert InferenceRequest.objects.count() == 1
