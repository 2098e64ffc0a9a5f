"""Organisations with their projects, members and keys; suspending and resuming one, opening a new one."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import IntegrityError, transaction
from django.db.models import Count, F, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from unfold.decorators import display
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminTextInputWidget

from billing.holds.models import HoldAccount
from billing.holds.selectors import hold_account
from billing.holds.services import hold_account_open
from controlplane.console.display import NANO, Fact, Link, Table, badge, code, moment, money, number, table, text, usd_short
from controlplane.console.keys import key_state
from controlplane.console.site import RoomAdmin, confirm, noted, render, site, url
from controlplane.keys.models import ApiKey
from controlplane.tenants.models import Member, Organisation, OrganisationState, Project
from controlplane.tenants.services import organisation_create, organisation_resume, organisation_suspend, project_create

ROWS = 100


def _count(rows: QuerySet[Any], tenant: str) -> Coalesce:
    counted = rows.filter(**{tenant: OuterRef("id")}).order_by().values(tenant).annotate(n=Count("*")).values("n")
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)


def _account(field: str) -> Subquery:
    return Subquery(HoldAccount.objects.filter(tenant_id=OuterRef("id")).values(field)[:1])


@admin.register(Organisation, site=site)
class OrganisationAdmin(RoomAdmin):
    title = "Organisations"
    template = "organisation"
    list_display = ("name", "state_label", "projects_count", "keys_count", "used", "limit", "created")
    list_filter = ("state",)
    search_fields = ("name",)
    search_help_text = "A part of the name"
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request)
        return rows.annotate(
            projects_n=_count(Project.objects.all(), "organisation_id"),
            keys_n=_count(ApiKey.objects.filter(revoked_at__isnull=True), "tenant_id"),
            used_nano_usd=_account("used_nano_usd"),
            limit_nano_usd=_account("limit_nano_usd"),
        )

    @display(description="state", label={"active": "success", "suspended": "danger"})  # type: ignore[untyped-decorator]
    def state_label(self, row: Any) -> str:
        return str(row.state)

    @display(description="projects")  # type: ignore[untyped-decorator]
    def projects_count(self, row: Any) -> int:
        return int(row.projects_n)

    @display(description="live keys")  # type: ignore[untyped-decorator]
    def keys_count(self, row: Any) -> int:
        return int(row.keys_n)

    @display(description="used, not paid")  # type: ignore[untyped-decorator]
    def used(self, row: Any) -> str:
        return "—" if row.used_nano_usd is None else usd_short(row.used_nano_usd)

    @display(description="credit limit")  # type: ignore[untyped-decorator]
    def limit(self, row: Any) -> str:
        return "—" if row.limit_nano_usd is None else usd_short(row.limit_nano_usd)

    @display(description="since (UTC)")  # type: ignore[untyped-decorator]
    def created(self, row: Any) -> str:
        return moment(row.created_at).text

    def has_add_permission(self, request: HttpRequest) -> bool:
        return site.has_permission(request)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return organisation_new(request)

    def detail(self, request: HttpRequest, row: Organisation) -> dict[str, Any]:
        return {"title": row.name, **organisation(row)}


def organisation(row: Organisation) -> dict[str, Any]:
    projects = dict(Project.objects.filter(organisation=row).values_list("id", "name")[:ROWS])
    return {
        "facts": _facts(row),
        "links": _links(row),
        "projects": _projects(row),
        "members": _members(row),
        "keys": _keys(row, projects),
        "acts": _acts(row),
    }


def _facts(row: Organisation) -> list[Fact]:
    account = hold_account(tenant_id=row.id)
    return [
        Fact("State", badge(row.state)),
        Fact("Tenant id", code(row.id)),
        Fact("Since (UTC)", moment(row.created_at)),
        Fact("Cache epoch", number(row.scope_epoch)),
        Fact("Used, not paid", money(account.used_nano_usd if account else None)),
        Fact("Held for running requests", money(account.held_nano_usd if account else None)),
        Fact(
            "Credit limit",
            money(account.limit_nano_usd if account else None),
            "" if account else "no account: requests are refused",
        ),
    ]


def _links(row: Organisation) -> list[Link]:
    change = (
        Link("Suspend", url("organisation_suspend", row.id), "danger")
        if row.state == OrganisationState.ACTIVE
        else Link("Resume", url("organisation_resume", row.id))
    )
    return [
        Link("Requests", f"{url('requests_inferencerequest_changelist')}?tenant={row.id}"),
        Link("Usage", f"{url('usage')}?tenant={row.id}"),
        Link("Invoices", f"{url('invoices_invoice_changelist')}?tenant={row.id}"),
        Link("New project", url("project_new", row.id)),
        Link("New key", f"{url('keys_apikey_add')}?tenant={row.id}"),
        change,
    ]


def _projects(row: Organisation) -> Table:
    rows = Project.objects.filter(organisation=row)[:ROWS]
    return table(
        ("name", "id", "since (UTC)"),
        [(text(one.name), code(one.id), moment(one.created_at)) for one in rows],
        title="Projects",
        empty="No project yet: keys belong to projects.",
    )


def _members(row: Organisation) -> Table:
    rows = Member.objects.filter(organisation=row).select_related("user").order_by("user__email")[:ROWS]
    cells = [(text(one.user.email), text(one.user.name), text(one.role), moment(one.created_at)) for one in rows]
    return table(("e-mail", "name", "role", "since (UTC)"), cells, title="Members", empty="Nobody yet.")


def _keys(row: Organisation, projects: dict[uuid.UUID, str]) -> Table:
    rows = ApiKey.objects.filter(tenant_id=row.id).order_by(F("revoked_at").desc(nulls_first=True), "-created_at")[:ROWS]
    cells = [
        (
            code(f"{key.prefix}…", url("keys_apikey_change", key.id)),
            text(key.name),
            text(projects.get(key.project_id)),
            badge(key_state(key)),
            moment(key.last_used_at),
        )
        for key in rows
    ]
    return table(("key", "name", "project", "state", "last used (UTC)"), cells, title="API keys", empty="No key yet.")


def _acts(row: Organisation) -> Table:
    kind = ContentType.objects.get_for_model(Organisation)
    entries: Iterable[LogEntry] = LogEntry.objects.filter(content_type=kind, object_id=str(row.id)).select_related("user")[:20]
    cells = [(moment(entry.action_time), text(entry.user), text(entry.change_message)) for entry in entries]
    return table(("at (UTC)", "operator", "what"), cells, title="What operators did", empty="Nothing.")


@site.page("tenants/<uuid:tenant_id>/suspend/", "organisation_suspend")
def organisation_suspend_page(request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
    row = get_object_or_404(Organisation, id=tenant_id)

    def act() -> str:
        return noted(request, row, "Suspended.") if organisation_suspend(tenant_id=tenant_id) else "It was suspended already."

    return confirm(
        request,
        title=f"Suspend {row.name}",
        question="All its keys are refused within a second. Requests that run now end as usual.",
        button="Suspend",
        back=url("tenants_organisation_change", tenant_id),
        act=act,
    )


@site.page("tenants/<uuid:tenant_id>/resume/", "organisation_resume")
def organisation_resume_page(request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
    row = get_object_or_404(Organisation, id=tenant_id)

    def act() -> str:
        return noted(request, row, "Resumed.") if organisation_resume(tenant_id=tenant_id) else "It was active already."

    return confirm(
        request,
        title=f"Resume {row.name}",
        question="Its keys work again.",
        button="Resume",
        back=url("tenants_organisation_change", tenant_id),
        act=act,
    )


class OrganisationForm(forms.Form):
    name = forms.CharField(max_length=200, widget=UnfoldAdminTextInputWidget)
    project = forms.CharField(max_length=200, label="First project", initial="First project", widget=UnfoldAdminTextInputWidget)
    limit_usd = forms.DecimalField(
        min_value=0,
        max_value=1_000_000,
        decimal_places=2,
        label="Credit limit in USD",
        help_text="What it may use before it has paid.",
        widget=UnfoldAdminDecimalFieldWidget,
    )


def organisation_new(request: HttpRequest) -> HttpResponse:
    form = OrganisationForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        row = _organisation_open(**form.cleaned_data)
        messages.success(request, noted(request, row, "Opened."))
        return HttpResponseRedirect(url("tenants_organisation_change", row.id))
    return render(request, "form", "New organisation", form=form, button="Open", back=url("tenants_organisation_changelist"))


@transaction.atomic
def _organisation_open(*, name: str, project: str, limit_usd: Decimal) -> Organisation:
    row = organisation_create(name=name)
    project_create(tenant_id=row.id, name=project)
    hold_account_open(tenant_id=row.id, limit_nano_usd=int(limit_usd * NANO))
    return row


class ProjectForm(forms.Form):
    name = forms.CharField(max_length=200, widget=UnfoldAdminTextInputWidget)


@site.page("tenants/<uuid:tenant_id>/projects/new/", "project_new")
def project_new(request: HttpRequest, tenant_id: uuid.UUID) -> HttpResponse:
    row = get_object_or_404(Organisation, id=tenant_id)
    back = url("tenants_organisation_change", tenant_id)
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid() and _project_made(form, tenant_id):
        messages.success(request, noted(request, row, "Made a project."))
        return HttpResponseRedirect(back)
    return render(request, "form", f"New project of {row.name}", form=form, button="Create", back=back)


def _project_made(form: ProjectForm, tenant_id: uuid.UUID) -> bool:
    try:
        with transaction.atomic():
            project_create(tenant_id=tenant_id, name=form.cleaned_data["name"])
    except IntegrityError:
        form.add_error("name", "There is a project of this name already.")
        return False
    return True
