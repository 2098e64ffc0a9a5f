"""The first tenant, so that a new installation answers at once. Its secrets lie in the data folder, for the owner's eyes only."""

from __future__ import annotations

import json
import os
import secrets
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction

from billing.holds.services import hold_account_open
from controlplane.catalog.services import catalog_seed
from controlplane.keys.services import api_key_create, api_keys_revoke_all
from controlplane.keys.verification import key_verify
from controlplane.tenants.models import Organisation, Project, Role, User
from controlplane.tenants.services import member_set, organisation_create, project_create

DEMO_TENANT_ID = uuid.UUID("de300000-0000-4000-8000-000000000001")
DEMO_EMAIL = "demo@brigade.localhost"
DEMO_LIMIT_NANO_USD = 100_000_000_000  # a hundred dollars


@dataclass(frozen=True, slots=True)
class DemoCredentials:
    base_url: str
    api_key: str
    console_url: str
    console_user: str
    console_password: str


@dataclass(frozen=True, slots=True)
class _Secrets:
    api_key: str
    console_password: str


def demo_create() -> DemoCredentials:
    """Makes what is missing, the catalogue included. What works stays; a secret that the database does not know is replaced."""
    with transaction.atomic():
        _one_at_a_time()
        for model in settings.MODELS:
            catalog_seed(model=model)
        organisation, project = _organisation_and_project()
        hold_account_open(tenant_id=organisation.id, limit_nano_usd=DEMO_LIMIT_NANO_USD)
        kept = _read()
        user = _user(kept)
        member_set(tenant_id=organisation.id, user_id=user.id, role=Role.OWNER)
        known = _Secrets(api_key=_api_key(kept, project, user), console_password=_password(kept, user))
    _write(known)
    return _credentials(known)


def demo_credentials() -> DemoCredentials | None:
    """None before `demo_create`."""
    kept = _read()
    return _credentials(kept) if kept else None


def _one_at_a_time() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('brigade demo tenant'))")


def _organisation_and_project() -> tuple[Organisation, Project]:
    organisation = Organisation.objects.filter(id=DEMO_TENANT_ID).first()
    organisation = organisation or organisation_create(name="Demo kitchen", tenant_id=DEMO_TENANT_ID)
    project = Project.objects.filter(organisation=organisation).order_by("created_at").first()
    return organisation, project or project_create(tenant_id=organisation.id, name="First project")


def _user(kept: _Secrets | None) -> User:
    user = User.objects.filter(email=DEMO_EMAIL).first()
    return user or User.objects.create_superuser(DEMO_EMAIL, kept.console_password if kept else None, name="Demo operator")


def _password(kept: _Secrets | None, user: User) -> str:
    if kept and user.check_password(kept.console_password):
        return kept.console_password
    password = secrets.token_urlsafe(15)
    user.set_password(password)
    user.save(update_fields=["password"])
    return password


def _api_key(kept: _Secrets | None, project: Project, user: User) -> str:
    if kept and key_verify(kept.api_key):
        return kept.api_key
    api_keys_revoke_all(tenant_id=project.organisation_id, name="demo")
    _, secret = api_key_create(tenant_id=project.organisation_id, project_id=project.id, name="demo", created_by_id=user.id)
    return secret


def _path() -> Path:
    return Path(settings.DATA.root) / "demo.json"


def _read() -> _Secrets | None:
    try:
        data = json.loads(_path().read_text())
        return _Secrets(api_key=str(data["api_key"]), console_password=str(data["console_password"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _write(known: _Secrets) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".demo.{secrets.token_hex(8)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(known), file)
    temporary.replace(path)


def _credentials(known: _Secrets) -> DemoCredentials:
    root = f"http://127.0.0.1:{settings.PORT}"
    return DemoCredentials(
        base_url=f"{root}/v1",
        api_key=known.api_key,
        console_url=f"{root}/console/",
        console_user=DEMO_EMAIL,
        console_password=known.console_password,
    )
