"""Filters that several lists share. Their choices come from small tables, never from a scan of the list itself."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from controlplane.catalog.models import ServedModel
from controlplane.console.site import tenant_names, uuid_or_none


class TenantFilter(SimpleListFilter):
    title = "tenant"
    parameter_name = "tenant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(tenant_id), name) for tenant_id, name in tenant_names().items()]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        if (wanted := uuid_or_none(value)) is None:
            raise IncorrectLookupParameters(value)
        return queryset.filter(tenant_id=wanted)


class ModelFilter(SimpleListFilter):
    title = "model"
    parameter_name = "model"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in ServedModel.objects.values_list("name", flat=True)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(model=self.value()) if self.value() else queryset


class DayFilter(SimpleListFilter):
    """Days in UTC. Besides the choices any `?day=2026-12-01` works."""

    title = "day (UTC)"
    parameter_name = "day"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        today = timezone.now().astimezone(UTC).date()
        days = [(today - timedelta(days=ago)).isoformat() for ago in range(7)]
        return [(day, day) for day in days]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        try:
            first = datetime.combine(date.fromisoformat(value), datetime.min.time(), UTC)
        except ValueError as error:
            raise IncorrectLookupParameters(value) from error
        return queryset.filter(created_at__gte=first, created_at__lt=first + timedelta(days=1))
