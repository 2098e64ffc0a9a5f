"""Who gets in, what every answer carries, and through which database role it was made."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.staticfiles import finders
from django.db import connection, connections
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from billing.invoices.services import invoice_drafts_refresh
from billing.pricing.services import price_book_create
from controlplane.console import kv
from controlplane.console.middleware import system_role
from controlplane.console.site import site
from controlplane.tenants.models import Organisation, User
from controlplane.tenants.services import user_create
from inference.database import query
from tests.controlplane.console.rows import Tenant, rated, request_make, tenant_make

LISTS = [
    "requests_inferencerequest_changelist",
    "tenants_organisation_changelist",
    "keys_apikey_changelist",
    "invoices_invoice_changelist",
    "ledger_ledgertransaction_changelist",
    "pricing_pricebook_changelist",
]
PAGES = ["index", "pulse", "invariants", "kv", "configuration", "usage", "keys_apikey_add", "tenants_organisation_add", *LISTS]


def address(name: str, *arguments: Any) -> str:
    return reverse(f"console:{name}", args=arguments)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_for_staff(staff: Client, acme: Tenant, name: str) -> None:
    request_make(acme)
    assert staff.get(address(name)).status_code == 200


@pytest.mark.parametrize("name", PAGES)
def test_every_page_sends_others_to_the_login(stranger: Client, name: str) -> None:
    for client in (stranger, Client()):
        answer = client.get(address(name))
        assert (answer.status_code, answer.headers["Location"].split("?")[0]) == (302, address("login"))


def test_every_page_that_is_made_is_in_these_tests_or_needs_an_id() -> None:
    own = {name for path, name, _ in site._pages if "<" not in path}
    assert own <= set(PAGES)


def test_the_login_lets_staff_in(kitchen: None, operator: User) -> None:
    operator.set_password("correct horse")
    operator.save()
    client = Client(enforce_csrf_checks=True)
    token = client.get(address("login")).cookies["brigade_console_csrf"].value
    form = {"username": operator.email.upper(), "password": "correct horse", "next": address("index"), "csrfmiddlewaretoken": token}
    answer = client.post(address("login"), form)
    assert (answer.status_code, answer.headers["Location"]) == (302, address("index"))
    cookie = client.cookies["brigade_console"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Lax", "/console/")


def test_the_login_refuses_a_tenants_person_with_the_right_password(kitchen: None) -> None:
    user_create(email="owner@acme.test", password="correct horse")
    answer = Client().post(address("login"), {"username": "owner@acme.test", "password": "correct horse"})
    assert answer.status_code == 200
    assert b"staff account" in answer.content


def test_the_login_offers_no_way_to_a_site_that_is_not_there(kitchen: None) -> None:
    assert "Return to site" not in Client().get(address("login")).content.decode()


def test_a_post_without_the_csrf_token_is_refused(operator: User, acme: Tenant) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(operator)
    assert client.post(address("organisation_suspend", acme.id)).status_code == 403
    assert Organisation.objects.get(id=acme.id).state == "active"


def test_pages_run_no_inline_script_and_are_not_kept(staff: Client) -> None:
    answer = staff.get(address("index"))
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["script-src"] == "'self' 'unsafe-eval'"
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert "no-store" in answer.headers["Cache-Control"]
    assert b"<script>" not in answer.content


def test_lists_ask_no_more_for_fifty_rows_than_for_one(staff: Client, acme: Tenant) -> None:
    _row_in_every_list(acme)
    one = {name: _queries(staff, name) for name in LISTS}
    for index in range(49):
        _row_in_every_list(tenant_make(f"Tenant {index}"))
    fifty = {name: _queries(staff, name) for name in LISTS}
    assert [found for found, _ in one.values()] == [1] * len(LISTS)
    assert [found for found, _ in fifty.values()] == [50] * len(LISTS)
    assert {name: asked for name, (_, asked) in fifty.items()} == {name: asked for name, (_, asked) in one.items()}


def _row_in_every_list(tenant: Tenant) -> None:
    request_make(tenant)
    rated()
    invoice_drafts_refresh()
    if tenant.organisation.name != "Acme":  # there is a book already
        price_book_create(name=tenant.organisation.name, effective_from=timezone.now(), prices=[])


def _queries(client: Client, name: str) -> tuple[int, int]:
    """Rows that the list shows, and statements that it took."""
    client.get(address(name))  # what is read once a process
    with CaptureQueriesContext(connection) as captured:
        answer = client.get(address(name))
    return len(answer.context["cl"].result_list), len(captured)


@pytest.mark.parametrize(
    "path", ["unfold/css/styles.css", "unfold/js/alpine/alpine.js", "console/console.css", "console/refresh.js"]
)
def test_files_come_without_collectstatic_and_without_a_login(kitchen: None, path: str) -> None:
    answer = Client().get(f"/static/{path}")
    found = finders.find(path)
    assert isinstance(found, str)
    assert answer.content == Path(found).read_bytes()
    assert Client().get(f"/static/{path}", headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304


def test_nothing_outside_the_packages_files_is_served(kitchen: None) -> None:
    for path in ("/static/../settings/main.py", "/static/%2e%2e/settings/main.py", "/static/console/"):
        assert Client().get(path).status_code == 404


def test_the_system_role_is_the_default_connection_of_this_thread_only_and_ends_with_the_block(db: None) -> None:
    ordinary = connections["default"]
    seen: list[str] = []
    with system_role():
        assert connections["default"] is connections["system"]
        other = threading.Thread(target=lambda: seen.append(connections["default"].alias))
        other.start()
        other.join()
    assert connections["default"] is ordinary
    assert seen == ["default"]


def test_the_ordinary_connection_is_back_after_a_page_that_failed(db: None) -> None:
    ordinary = connections["default"]
    with pytest.raises(RuntimeError), system_role():
        raise RuntimeError
    assert connections["default"] is ordinary


@pytest.mark.django_db(transaction=True, databases=["default", "system"])
async def test_under_asgi_a_page_is_made_by_the_system_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever logged in was found by it: the process's own role cannot read people."""
    roles: list[Any] = []

    def spy() -> dict[str, Any]:
        roles.extend(query("SELECT current_user"))
        return {}

    monkeypatch.setattr(kv, "kv_page", spy)
    try:
        operator = await sync_to_async(user_create)(email="operator@brigade.test", password=None, is_staff=True)
        client = AsyncClient()
        await client.aforce_login(operator)
        assert (await client.get(address("kv"))).status_code == 200
    finally:
        await sync_to_async(connections.close_all)()  # of the other thread
    assert roles == [("brigade_system",)]
