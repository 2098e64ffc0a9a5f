"""Settings that change at run time. Each is one of a few values; the service refuses all else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from controlplane.console.display import Cell, moment
from controlplane.console.site import noted, render, site, url
from controlplane.console.usage import Option
from inference.coordination.configuration import SETTINGS, Setting, UnknownSetting, config_set
from inference.coordination.models import ConfigEntry


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    meaning: str
    options: tuple[Option, ...]
    default: str
    version: str
    changed: Cell


@site.page("configuration/", "configuration")
def configuration(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        _change(request, request.POST.get("name", ""), request.POST.get("value", ""))
        return HttpResponseRedirect(url("configuration"))
    return render(request, "configuration", "Configuration", rows=configuration_rows())


def _change(request: HttpRequest, name: str, value: str) -> None:
    try:
        config_set(name=name, value=_parsed(value))
    except UnknownSetting as error:
        messages.error(request, str(error))
        return
    messages.success(request, noted(request, ConfigEntry.objects.get(name=name), f"{name} = {value}"))


def _parsed(value: str) -> Any:
    """Options travel as JSON. Lists and objects are no value of any setting."""
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise UnknownSetting("the value is not one of the options") from error
    if not isinstance(parsed, (str, bool, int)):
        raise UnknownSetting("the value is not one of the options")
    return parsed


def configuration_rows() -> list[Row]:
    entries = {entry.name: entry for entry in ConfigEntry.objects.filter(name__in=SETTINGS)}
    return [_row(setting, entries.get(name)) for name, setting in SETTINGS.items()]


def _row(setting: Setting, entry: ConfigEntry | None) -> Row:
    value = entry.value if entry else setting.default
    return Row(
        name=setting.name,
        meaning=setting.meaning,
        options=tuple(Option(json.dumps(one), _shown(one), "selected" if one == value else "") for one in setting.allowed),
        default=_shown(setting.default),
        version=str(entry.version) if entry else "—",
        changed=moment(entry.changed_at if entry else None),
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
