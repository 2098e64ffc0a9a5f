"""The console's site: who may enter, what a page is made of, and the base of all lists."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model, OuterRef, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.sites import UnfoldAdminSite
from unfold.views import ChangeList

from controlplane.tenants.models import Organisation

PAGE_ROWS = 50
View = Callable[..., HttpResponse]


class ConsoleSite(UnfoldAdminSite):  # type: ignore[misc]  # unfold has no types
    """Staff only. Pages besides lists enter by the decorator `page`; `home` is the first of them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._pages: list[tuple[str, str, View]] = []
        self.home: View | None = None

    def has_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """No link back to a site: there is none besides the console."""
        return {**super().each_context(request), "site_url": None}

    def page(self, address: str, name: str) -> Callable[[View], View]:
        def register(view: View) -> View:
            self._pages.append((address, name, view))
            return view

        return register

    def extra_urls(self) -> list[URLPattern]:
        return [path(address, self.admin_view(view), name=name) for address, name, view in self._pages]

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        assert self.home is not None
        return self.home(request)


site = ConsoleSite(name="console")


def render(request: HttpRequest, template: str, title: str, **context: Any) -> TemplateResponse:
    request.current_app = site.name
    return TemplateResponse(request, f"console/{template}.html", {**site.each_context(request), "title": title, **context})


def url(name: str, *arguments: object) -> str:
    return reverse(f"console:{name}", args=arguments)


def confirm(request: HttpRequest, *, title: str, question: str, button: str, back: str, act: Callable[[], str]) -> HttpResponse:
    """GET asks, POST acts. `act` answers what it did, in a sentence for the operator."""
    if request.method != "POST":
        return render(request, "confirm", title, question=question, button=button, back=back)
    messages.success(request, act())
    return HttpResponseRedirect(back)


def noted(request: HttpRequest, row: Model, what: str) -> str:
    """Writes an operator's act into the console's own log, and answers the sentence."""
    operator = request.user.pk
    assert operator is not None  # the site lets nobody else in
    LogEntry.objects.log_actions(operator, [row], CHANGE, what, single_object=True)
    return what


class RoomList(ChangeList):  # type: ignore[misc]  # unfold has no types
    def get_results(self, request: HttpRequest) -> None:
        """The page's title says nothing of a full count, which nobody has counted."""
        super().get_results(request)
        self.full_result_count = self.result_count


class RoomAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """A list of rows with a page for each. Nothing is edited here: what changes rows are the rooms' services."""

    title = ""
    template = "detail"
    list_per_page = PAGE_ROWS
    list_max_show_all = PAGE_ROWS
    show_full_result_count = False
    list_fullwidth = True
    list_filter_sheet = True
    actions = None
    sortable_by: tuple[str, ...] = ()  # columns without an index would sort the whole table

    def has_module_permission(self, request: HttpRequest) -> bool:
        return site.has_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return site.has_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[RoomList]:
        return RoomList

    def detail(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """The page's `title` and whatever its template prints."""
        raise NotImplementedError

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        answer: HttpResponse = super().changelist_view(request, {**(extra_context or {}), "title": self.title})
        return answer

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if object_id is None:  # rows are added by services; a list that offers it has its own `add_view`
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            answer: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
            return answer
        return render(request, self.template, **self.detail(request, row))


def with_tenant(rows: Any) -> Any:
    """Adds `tenant`, the organisation's name, in the same statement: rooms know tenants by id only."""
    return rows.annotate(tenant=Subquery(Organisation.objects.filter(id=OuterRef("tenant_id")).values("name")[:1]))


def tenant_link(tenant_id: uuid.UUID, name: str | None) -> str:
    return format_html('<a href="{}">{}</a>', url("tenants_organisation_change", tenant_id), name or tenant_id)


def nowrap(text: str) -> str:
    return format_html('<span class="bc-nowrap">{}</span>', text)


def tenant_names() -> dict[uuid.UUID, str]:
    """For pages that show many tenants, and for filters: the first thousand by name."""
    return dict(Organisation.objects.order_by("name").values_list("id", "name")[:1000])


def uuid_or_none(value: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(value)
    except ValueError:
        return None
