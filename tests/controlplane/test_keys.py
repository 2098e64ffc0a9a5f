from __future__ import annotations

import logging
import time
import uuid
from datetime import timedelta

import httpx2 as httpx
import pytest
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, transaction
from django.utils import timezone

from controlplane.gateway import limits
from controlplane.keys.models import ApiKey
from controlplane.keys.services import api_key_create, api_key_revoke, api_key_used
from controlplane.keys.tokens import PATTERN, key_new, key_parse
from controlplane.keys.verification import key_record, key_verify
from controlplane.tenants.models import Member, Organisation, Project
from controlplane.tenants.services import organisation_resume, organisation_suspend
from inference.database import query, tenant_scope
from tests.conftest import AsRole
from tests.controlplane.conftest import Stage, wait_for


def test_a_key_has_a_form_that_scanners_find() -> None:
    key = key_new(uuid.uuid4())
    assert PATTERN.fullmatch(key)
    assert len(key) == 75


@pytest.mark.parametrize("key_id", [uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1), uuid.uuid4()])
def test_a_key_names_its_row(key_id: uuid.UUID) -> None:
    parsed = key_parse(key_new(key_id))
    assert parsed
    assert parsed.key_id == key_id


def test_a_mistyped_key_is_known_by_its_checksum() -> None:
    key = key_new(uuid.uuid4())
    other = "A" if key[40] != "A" else "B"
    assert key_parse(key[:40] + other + key[41:]) is None
    assert key_parse("bk-" + "z" * 22 + key[25:]) is None


@pytest.mark.parametrize("text", ["", "bk-", "sk-abc", "bk-é" * 30, "bk-" + "\x00" * 72, "bk-" + "\uff11" * 22 + "-" + "1" * 49])
def test_what_is_no_key_is_no_key(text: str) -> None:
    assert key_parse(text) is None


def test_only_a_keyed_hash_is_stored(cast: Stage) -> None:
    row = ApiKey.objects.get(id=cast.acme.key.id)
    stored = repr({name: bytes(value) if name == "digest" else value for name, value in vars(row).items()})
    assert cast.acme.secret[26:69] not in stored
    assert cast.acme.secret.startswith(row.prefix)
    assert len(row.digest) == 32


def test_a_key_is_verified_and_a_forged_one_with_its_id_is_not(cast: Stage) -> None:
    assert key_verify(cast.acme.secret)
    assert key_verify(key_new(cast.acme.key.id)) is None
    assert key_verify(key_new(uuid.uuid4())) is None


def test_a_key_can_be_revoked_once_and_by_its_tenant_only(cast: Stage) -> None:
    assert not api_key_revoke(tenant_id=cast.rival.organisation.id, key_id=cast.acme.key.id)
    assert key_verify(cast.acme.secret)
    assert api_key_revoke(tenant_id=cast.acme.organisation.id, key_id=cast.acme.key.id)
    assert not api_key_revoke(tenant_id=cast.acme.organisation.id, key_id=cast.acme.key.id)
    assert key_verify(cast.acme.secret) is None


def test_a_key_cannot_be_made_for_a_foreign_project(cast: Stage) -> None:
    with pytest.raises(ObjectDoesNotExist):
        api_key_create(tenant_id=cast.acme.organisation.id, project_id=cast.rival.project.id, name="stolen")


def test_a_use_is_noted_once_a_minute(cast: Stage) -> None:
    key, tenant = cast.acme.key, cast.acme.organisation.id
    api_key_used(tenant_id=tenant, key_id=key.id)
    key.refresh_from_db()
    first = key.last_used_at
    assert first
    api_key_used(tenant_id=tenant, key_id=key.id)
    key.refresh_from_db()
    assert key.last_used_at == first
    ApiKey.objects.filter(id=key.id).update(last_used_at=first - timedelta(minutes=2))
    api_key_used(tenant_id=tenant, key_id=key.id)
    key.refresh_from_db()
    assert key.last_used_at > first - timedelta(minutes=1)


def test_the_gateways_role_sees_nothing_without_a_tenant(stage: Stage, as_role: AsRole) -> None:
    with transaction.atomic(), as_role("app"):
        assert not ApiKey.objects.exists()
        assert not Organisation.objects.exists()
        assert not Project.objects.exists()
        assert not Member.objects.exists()
        assert key_record(stage.acme.key.id)


def test_the_gateways_role_sees_one_tenant_inside_its_scope(stage: Stage, as_role: AsRole) -> None:
    with transaction.atomic(), as_role("app"), tenant_scope(stage.acme.organisation.id):
        assert [key.id for key in ApiKey.objects.all()] == [stage.acme.key.id]
        assert [organisation.name for organisation in Organisation.objects.all()] == ["Acme"]


@pytest.mark.parametrize("table", ["tenants_user", "tenants_user_groups"])
def test_the_gateways_role_cannot_read_people(cast: Stage, as_role: AsRole, table: str) -> None:
    with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic(), as_role("app"):
        query(f"SELECT * FROM {table}")


def test_the_gateways_role_cannot_change_a_tenant(cast: Stage, as_role: AsRole) -> None:
    with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic(), as_role("app"):
        organisation_suspend(tenant_id=cast.acme.organisation.id)


def _models(gateway: str, authorization: str | None) -> httpx.Response:
    return httpx.get(f"{gateway}/v1/models", headers={} if authorization is None else {"Authorization": authorization})


def test_refused_headers_get_401_and_never_come_back(gateway: str, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = stage.acme.secret
    forged = key_new(stage.acme.key.id)
    wrong = [
        None,
        "",
        "Bearer",
        secret,
        f"Basic {secret}",
        f"Bearer {secret}x",
        f"Bearer {secret} {secret}",
        f"Bearer {forged}",
    ]
    wrong += ["Bearer sk-proj-0123456789abcdef", "Bearer ' OR 1=1 --", "Bearer " + "x" * 5_000, f"Bearer {key_new(uuid.uuid4())}"]
    for header in wrong:
        response = _models(gateway, header)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (401, "invalid_api_key", None), header
        assert set(error) == {"message", "type", "param", "code"}
        for text in (secret, forged, "sk-proj-0123456789abcdef", "OR 1=1"):
            assert text not in response.text
            assert text not in caplog.text
    assert _models(gateway, f"bearer  {secret}").status_code == 200


def test_revoked_expired_and_suspended_are_refused_within_a_second(gateway: str, stage: Stage) -> None:
    assert limits.KEY_CACHE_S < 1
    acme, authorization = stage.acme, f"Bearer {stage.acme.secret}"
    assert _models(gateway, authorization).status_code == 200
    organisation_suspend(tenant_id=acme.organisation.id)
    time.sleep(limits.KEY_CACHE_S)
    assert _models(gateway, authorization).status_code == 403
    organisation_resume(tenant_id=acme.organisation.id)
    time.sleep(limits.KEY_CACHE_S)
    assert _models(gateway, authorization).status_code == 200
    ApiKey.objects.filter(id=acme.key.id).update(expires_at=timezone.now() + timedelta(seconds=1.2))
    time.sleep(1.25)
    assert "expired" in _models(gateway, authorization).json()["error"]["message"]
    api_key_revoke(tenant_id=acme.organisation.id, key_id=acme.key.id)
    time.sleep(limits.KEY_CACHE_S)
    assert "revoked" in _models(gateway, authorization).json()["error"]["message"]


def test_using_a_key_over_http_notes_it(gateway: str, stage: Stage) -> None:
    _models(gateway, f"Bearer {stage.acme.secret}")
    wait_for(lambda: ApiKey.objects.get(id=stage.acme.key.id).last_used_at)
