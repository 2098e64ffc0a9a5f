"""API keys: made once, shown once, revoked for good."""

from __future__ import annotations

import re
from datetime import timedelta

from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from controlplane.keys.models import ApiKey
from controlplane.keys.verification import key_verify
from inference.database import query
from tests.controlplane.console.rows import Tenant
from tests.controlplane.console.test_entry import address

SECRET = re.compile(r"data-secret>(bk-[^<]+)<")


def made(client: Client, tenant: Tenant, **fields: str) -> str:
    answer = client.post(address("keys_apikey_add"), {"project": str(tenant.project.id), "name": "nightly", **fields})
    found = SECRET.search(answer.content.decode())
    assert found, answer.content.decode()
    return found[1]


def test_a_new_key_works_and_is_the_projects(staff: Client, acme: Tenant) -> None:
    record = key_verify(made(staff, acme, days="30"))
    assert record
    assert (record.tenant_id, record.project_id) == (acme.id, acme.project.id)
    row = ApiKey.objects.get(id=record.key_id)
    assert row.expires_at
    assert abs(row.expires_at - timezone.now() - timedelta(days=30)) < timedelta(minutes=1)


def test_the_secret_is_in_that_answer_and_nowhere_else(staff: Client, acme: Tenant) -> None:
    secret = made(staff, acme)
    row = ApiKey.objects.get(name="nightly")
    pages = [
        address("keys_apikey_changelist"),
        address("keys_apikey_change", row.id),
        address("tenants_organisation_change", acme.id),
        address("index"),
    ]
    for page in pages:
        assert secret not in staff.get(page).content.decode()
    assert all(secret not in str(session.get_decoded()) for session in Session.objects.all())
    assert all(secret not in entry.change_message for entry in LogEntry.objects.all())
    assert query("SELECT count(*) FROM keys_apikey k WHERE k::text LIKE %s", [f"%{secret[12:40]}%"]) == [(0,)]


def test_the_answer_with_the_secret_is_not_kept_by_the_browser(staff: Client, acme: Tenant) -> None:
    answer = staff.post(address("keys_apikey_add"), {"project": str(acme.project.id), "name": "nightly"})
    assert "no-store" in answer.headers["Cache-Control"]


def test_a_form_cannot_set_what_it_does_not_ask_for(staff: Client, acme: Tenant, rival: Tenant) -> None:
    secret = made(staff, acme, tenant_id=str(rival.id), requests_per_minute="1", prefix="bk-mine", digest="x")
    row = ApiKey.objects.get(name="nightly")
    assert (row.tenant_id, row.requests_per_minute, row.prefix) == (acme.id, 6_000, secret[:11])


def test_an_unknown_project_or_a_strange_number_of_days_makes_no_key(staff: Client, acme: Tenant, rival: Tenant) -> None:
    of_acme = f"{address('keys_apikey_add')}?tenant={acme.id}"
    assert staff.post(of_acme, {"project": str(rival.project.id), "name": "x"}).status_code == 200
    assert staff.post(of_acme, {"project": str(acme.project.id), "name": "x", "days": "0"}).status_code == 200
    assert not ApiKey.objects.filter(name="x").exists()


def test_a_tenant_that_is_no_id_shows_all_projects(staff: Client, acme: Tenant, rival: Tenant) -> None:
    content = staff.get(f"{address('keys_apikey_add')}?tenant='nobody'").content.decode()
    assert "Acme / first" in content
    assert "Rival / first" in content


def test_revoking_asks_first_and_then_refuses_the_key(staff: Client, acme: Tenant, rival: Tenant) -> None:
    where = address("key_revoke", acme.key.id)
    assert "cannot be undone" in staff.get(where).content.decode()
    assert key_verify(acme.secret)
    assert staff.post(where).status_code == 302
    assert key_verify(acme.secret) is None
    assert key_verify(rival.secret)
    assert "revoked already" in staff.post(where, follow=True).content.decode()


def test_a_stranger_makes_and_revokes_nothing(stranger: Client, acme: Tenant) -> None:
    stranger.post(address("key_revoke", acme.key.id))
    stranger.post(address("keys_apikey_add"), {"project": str(acme.project.id), "name": "nightly"})
    assert key_verify(acme.secret)
    assert not ApiKey.objects.filter(name="nightly").exists()


def test_keys_are_found_by_what_people_see_of_them(staff: Client, acme: Tenant, rival: Tenant) -> None:
    for term in (acme.key.prefix, acme.key.prefix[:7], acme.secret):
        content = staff.get(address("keys_apikey_changelist"), {"q": term}).content.decode()
        assert acme.key.prefix + "…" in content
        assert rival.key.prefix + "…" not in content


def test_the_list_tells_revoked_from_live_keys(staff: Client, acme: Tenant, rival: Tenant) -> None:
    staff.post(address("key_revoke", acme.key.id), follow=True)
    live = staff.get(address("keys_apikey_changelist"), {"live": "yes"}).content.decode()
    assert (acme.key.prefix + "…" in live, rival.key.prefix + "…" in live) == (False, True)
