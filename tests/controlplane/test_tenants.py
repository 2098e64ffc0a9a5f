from __future__ import annotations

import json
import stat
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from controlplane.catalog.models import ServedModel, ServiceTier
from controlplane.keys.models import ApiKey
from controlplane.keys.verification import key_verify
from controlplane.tenants.demo import DEMO_TENANT_ID, demo_create
from controlplane.tenants.models import Organisation, User
from controlplane.tenants.services import organisation_create, scope_epoch_bump, scope_salt, user_create
from inference.text.model_files import ensure_oracle


@pytest.fixture
def demo_file(monkeypatch: pytest.MonkeyPatch) -> Path:
    ensure_oracle("tiny", settings.DATA.models)
    monkeypatch.setattr(settings, "MODELS", ("tiny",))
    path: Path = settings.DATA.root / "demo.json"
    path.unlink(missing_ok=True)
    return path


def test_the_demo_can_be_made_twice_and_stays_the_same(db: None, demo_file: Path) -> None:
    first = demo_create()
    assert demo_create() == first
    assert (Organisation.objects.count(), ApiKey.objects.count(), User.objects.count()) == (1, 1, 1)
    assert (ServedModel.objects.count(), ServiceTier.objects.count()) == (1, 3)
    record = key_verify(first.api_key)
    assert record
    assert record.tenant_id == DEMO_TENANT_ID
    user = User.objects.get(email=first.console_user)
    assert user.check_password(first.console_password)
    assert user.is_staff


def test_its_secrets_are_for_the_owner_alone(db: None, demo_file: Path) -> None:
    demo_create()
    assert stat.S_IMODE(demo_file.stat().st_mode) == 0o600


def test_scripts_get_the_credentials_as_json(db: None, demo_file: Path) -> None:
    made = demo_create()
    out = StringIO()
    call_command("demo_credentials", json=True, stdout=out)
    printed = json.loads(out.getvalue())
    assert set(printed) == {"base_url", "api_key", "console_url", "console_user", "console_password"}
    assert printed["base_url"].endswith("/v1")
    assert printed["api_key"] == made.api_key


def test_before_the_demo_there_is_nothing_to_print(demo_file: Path) -> None:
    with pytest.raises(CommandError, match="no demo tenant"):
        call_command("demo_credentials")


def test_a_lost_file_is_made_again_and_the_old_key_ends(db: None, demo_file: Path) -> None:
    old = demo_create()
    demo_file.unlink()
    new = demo_create()
    assert key_verify(old.api_key) is None
    assert key_verify(new.api_key)
    assert User.objects.get().check_password(new.console_password)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"api_key": "bk-x", "console_password": "y"}'])
def test_a_damaged_file_is_replaced(db: None, demo_file: Path, content: str) -> None:
    demo_file.write_text(content)
    assert key_verify(demo_create().api_key)


def test_a_scope_salt_differs_by_tenant_and_by_epoch(db: None) -> None:
    acme, rival = organisation_create(name="Acme"), organisation_create(name="Rival")
    before = scope_salt(acme)
    assert len(before) == 32
    assert scope_salt(acme) == before != scope_salt(rival)
    scope_epoch_bump(tenant_id=acme.id)
    acme.refresh_from_db()
    assert scope_salt(acme) != before


def test_addresses_are_stored_in_lower_case(db: None) -> None:
    user_create(email="Ann@Example.COM", password="x")
    assert User.objects.get_by_natural_key("ANN@example.com").check_password("x")
