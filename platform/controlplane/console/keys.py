"""API keys: found by their visible prefix, made, revoked. A secret is in one answer, and nowhere else."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from controlplane.console.display import Fact, Link, badge, code, moment, number, text
from controlplane.console.filters import TenantFilter
from controlplane.console.site import RoomAdmin, confirm, noted, render, site, tenant_link, url, uuid_or_none, with_tenant
from controlplane.keys.models import ApiKey
from controlplane.keys.services import api_key_create, api_key_revoke
from controlplane.keys.tokens import PREFIX_LENGTH
from controlplane.tenants.models import Organisation, Project, User

PROJECTS_SHOWN = 500


def key_state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= timezone.now() else "active"


class LiveFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "live"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "not revoked"), ("no", "revoked")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(revoked_at__isnull=self.value() == "yes") if self.value() else queryset


@admin.register(ApiKey, site=site)
class ApiKeyAdmin(RoomAdmin):
    title = "API keys"
    list_display = ("visible", "name", "state_label", "tenant_name", "project_name", "created", "last_used")
    list_filter = (LiveFilter, TenantFilter)
    search_fields = ("prefix",)
    search_help_text = "The beginning of a key: bk- and up to eight characters"
    ordering = ("-created_at",)

    def get_queryset(self, request: HttpRequest) -> Any:
        project = Subquery(Project.objects.filter(id=OuterRef("project_id")).values("name")[:1])
        return with_tenant(super().get_queryset(request)).defer("digest").annotate(project=project)

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        """Only the visible part is looked at, should somebody paste a whole key."""
        return (queryset.filter(prefix__startswith=search_term.strip()[:PREFIX_LENGTH]) if search_term else queryset), False

    @display(description="key")  # type: ignore[untyped-decorator]
    def visible(self, row: Any) -> str:
        return f"{row.prefix}…"

    @display(description="state", label={"active": "success", "revoked": "danger", "expired": "warning"})  # type: ignore[untyped-decorator]
    def state_label(self, row: Any) -> str:
        return key_state(row)

    @display(description="tenant")  # type: ignore[untyped-decorator]
    def tenant_name(self, row: Any) -> str:
        return tenant_link(row.tenant_id, row.tenant)

    @display(description="project")  # type: ignore[untyped-decorator]
    def project_name(self, row: Any) -> str:
        return row.project or "—"

    @display(description="made (UTC)")  # type: ignore[untyped-decorator]
    def created(self, row: Any) -> str:
        return moment(row.created_at).text

    @display(description="last used (UTC)")  # type: ignore[untyped-decorator]
    def last_used(self, row: Any) -> str:
        return moment(row.last_used_at).text

    def has_add_permission(self, request: HttpRequest) -> bool:
        return site.has_permission(request)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return key_new(request)

    def detail(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        links = [] if row.revoked_at else [Link("Revoke", url("key_revoke", row.id), "danger")]
        return {"title": f"Key {row.prefix}…", "facts": _facts(row), "links": links}


def _facts(row: Any) -> list[Fact]:
    maker = User.objects.filter(id=row.created_by_id).first() if row.created_by_id else None
    return [
        Fact("State", badge(key_state(row))),
        Fact("Name", text(row.name)),
        Fact("Key", code(f"{row.prefix}…")),
        Fact("Tenant", text(row.tenant or row.tenant_id, url("tenants_organisation_change", row.tenant_id))),
        Fact("Project", text(row.project or row.project_id)),
        Fact("Made by", text(maker)),
        Fact("Made (UTC)", moment(row.created_at)),
        Fact("Expires (UTC)", moment(row.expires_at)),
        Fact("Revoked (UTC)", moment(row.revoked_at)),
        Fact("Last used (UTC)", moment(row.last_used_at)),
        Fact("Requests a minute", number(row.requests_per_minute)),
        Fact("Tokens a minute", number(row.tokens_per_minute)),
        Fact("At the same time", number(row.concurrent_requests)),
    ]


class KeyForm(forms.Form):
    project = forms.ChoiceField(widget=UnfoldAdminSelectWidget)
    name = forms.CharField(max_length=200, widget=UnfoldAdminTextInputWidget, help_text="For people: what uses this key.")
    days = forms.IntegerField(
        min_value=1,
        max_value=3650,
        required=False,
        label="Expires after (days)",
        help_text="Empty: never.",
        widget=UnfoldAdminIntegerFieldWidget,
    )

    def __init__(self, data: Any, projects: list[Project]) -> None:
        super().__init__(data)
        choices = [(str(project.id), f"{project.organisation.name} / {project.name}") for project in projects]
        self.fields["project"].choices = choices  # type: ignore[attr-defined]


@sensitive_variables()
def key_new(request: HttpRequest) -> HttpResponse:
    """The answer to the POST shows the secret: a redirect would have to keep it somewhere in between."""
    projects = _projects(request.GET.get("tenant", ""))
    form = KeyForm(request.POST or None, projects)
    if request.method != "POST" or not form.is_valid():
        return render(request, "form", "New API key", form=form, button="Create", back=url("keys_apikey_changelist"))
    chosen = next(project for project in projects if str(project.id) == form.cleaned_data["project"])
    days = form.cleaned_data["days"]
    row, secret = api_key_create(
        tenant_id=chosen.organisation_id,
        project_id=chosen.id,
        name=form.cleaned_data["name"],
        created_by_id=request.user.pk,
        expires_at=timezone.now() + timedelta(days=days) if days else None,
    )
    noted(request, row, f"Made for {chosen.organisation.name}.")
    return render(request, "key_created", "The new key", secret=secret, name=row.name, back=url("keys_apikey_change", row.id))


def _projects(tenant: str) -> list[Project]:
    rows = Project.objects.select_related("organisation").order_by("organisation__name", "name")
    wanted = uuid_or_none(tenant)
    return list((rows.filter(organisation_id=wanted) if wanted else rows)[:PROJECTS_SHOWN])


@site.page("keys/<uuid:key_id>/revoke/", "key_revoke")
def key_revoke(request: HttpRequest, key_id: uuid.UUID) -> HttpResponse:
    row = get_object_or_404(ApiKey, id=key_id)
    tenant = Organisation.objects.filter(id=row.tenant_id).first()

    def act() -> str:
        done = api_key_revoke(tenant_id=row.tenant_id, key_id=key_id)
        return noted(request, row, f"Revoked {row.prefix}….") if done else "It was revoked already."

    return confirm(
        request,
        title=f"Revoke {row.prefix}…",
        question=f"The key “{row.name}” of {tenant or row.tenant_id} is refused within a second. This cannot be undone.",
        button="Revoke",
        back=url("keys_apikey_change", key_id),
        act=act,
    )
