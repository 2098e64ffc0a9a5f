"""Organisations: seen whole, suspended and resumed, opened."""

from __future__ import annotations

import html

from django.test import Client

from billing.holds.models import HoldAccount
from controlplane.keys.verification import key_verify
from controlplane.tenants.models import Organisation, OrganisationState, Project, Role, User
from controlplane.tenants.services import member_set
from tests.controlplane.console.rows import Tenant, rated, request_make, tenant_make
from tests.controlplane.console.test_entry import address

EVIL = "<script>alert(1)</script>"


def page(client: Client, tenant: Tenant) -> str:
    return client.get(address("tenants_organisation_change", tenant.id)).content.decode()


def test_an_organisation_shows_projects_members_keys_and_credit(staff: Client, acme: Tenant, rival: Tenant, operator: User) -> None:
    member_set(tenant_id=acme.id, user_id=operator.id, role=Role.OWNER)
    shown = page(staff, acme)
    for text in (acme.project.name, operator.email, acme.key.prefix, "$50.00", str(acme.id)):
        assert text in shown
    assert rival.key.prefix not in shown
    assert acme.secret not in shown


def test_the_list_counts_live_keys_and_shows_use(staff: Client, acme: Tenant) -> None:
    request_make(acme, prompt=100_000, cached=0)
    rated()
    used = HoldAccount.objects.get(tenant_id=acme.id).used_nano_usd
    content = staff.get(address("tenants_organisation_changelist")).content.decode()
    assert f"${used / 1e9:.4f}" in content


def test_suspending_asks_first_and_then_refuses_the_keys(staff: Client, acme: Tenant, rival: Tenant) -> None:
    where = address("organisation_suspend", acme.id)
    assert "within a second" in staff.get(where).content.decode()
    assert Organisation.objects.get(id=acme.id).state == OrganisationState.ACTIVE
    assert staff.post(where).status_code == 302
    assert Organisation.objects.get(id=acme.id).state == OrganisationState.SUSPENDED
    assert (key_verify(acme.secret), key_verify(rival.secret) is not None) == (None, True)
    assert "Suspended." in page(staff, acme)


def test_suspending_twice_is_told_and_resuming_undoes_it(staff: Client, acme: Tenant) -> None:
    staff.post(address("organisation_suspend", acme.id))
    again = staff.post(address("organisation_suspend", acme.id), follow=True).content.decode()
    assert "It was suspended already." in again
    staff.post(address("organisation_resume", acme.id))
    assert Organisation.objects.get(id=acme.id).state == OrganisationState.ACTIVE


def test_a_stranger_can_suspend_nobody(stranger: Client, acme: Tenant) -> None:
    assert stranger.post(address("organisation_suspend", acme.id)).status_code == 302
    assert Organisation.objects.get(id=acme.id).state == OrganisationState.ACTIVE


def test_an_unknown_organisation_is_not_found(staff: Client, acme: Tenant) -> None:
    unknown = "00000000-0000-4000-8000-000000000000"
    assert staff.post(address("organisation_suspend", unknown)).status_code == 404
    assert staff.get(address("tenants_organisation_change", unknown)).status_code == 302


def test_a_new_organisation_gets_a_project_and_credit_and_nothing_else_that_the_form_names(staff: Client) -> None:
    form = {"name": "Newcomer", "project": "Main", "limit_usd": "12.34", "state": "suspended", "scope_epoch": "99"}
    assert staff.post(address("tenants_organisation_add"), form).status_code == 302
    row = Organisation.objects.get(name="Newcomer")
    assert (row.state, row.scope_epoch) == (OrganisationState.ACTIVE, 1)
    assert Project.objects.get(organisation=row).name == "Main"
    assert HoldAccount.objects.get(tenant_id=row.id).limit_nano_usd == 12_340_000_000


def test_a_new_organisation_needs_a_sane_credit_limit(staff: Client) -> None:
    for limit in ("-1", "NaN", "1e9", "many"):
        answer = staff.post(address("tenants_organisation_add"), {"name": "Newcomer", "project": "Main", "limit_usd": limit})
        assert answer.status_code == 200
    assert not Organisation.objects.filter(name="Newcomer").exists()


def test_rows_cannot_be_edited_or_deleted_past_the_services(staff: Client, acme: Tenant) -> None:
    staff.post(address("tenants_organisation_change", acme.id), {"name": "Owned", "state": "suspended"})
    assert staff.post(address("tenants_organisation_delete", acme.id), {"post": "yes"}).status_code == 403
    row = Organisation.objects.get(id=acme.id)
    assert (row.name, row.state) == ("Acme", OrganisationState.ACTIVE)


def test_a_project_of_the_same_name_is_refused_with_a_sentence(staff: Client, acme: Tenant) -> None:
    answer = staff.post(address("project_new", acme.id), {"name": acme.project.name})
    assert "a project of this name already" in answer.content.decode()
    assert staff.post(address("project_new", acme.id), {"name": "second"}).status_code == 302
    assert Project.objects.filter(organisation_id=acme.id).count() == 2


def test_what_tenants_call_themselves_is_text_everywhere(staff: Client, kitchen: None) -> None:
    evil = tenant_make(EVIL, project=EVIL, key=EVIL)
    request_make(evil, labels={"team": EVIL}, model=EVIL[:20], error_message=EVIL)
    places = [
        address("tenants_organisation_changelist"),
        address("tenants_organisation_change", evil.id),
        address("organisation_suspend", evil.id),
        address("keys_apikey_changelist"),
        address("keys_apikey_change", evil.key.id),
        address("keys_apikey_add"),
        address("key_revoke", evil.key.id),
        address("requests_inferencerequest_changelist"),
        address("usage"),
    ]
    for place in places:
        content = staff.get(place).content.decode()
        assert EVIL not in content, place
        assert html.escape(EVIL) in content, place
