"""Settings that change at run time, without a restart. A process sees a change within a second."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from inference.coordination.models import ConfigEntry

FRESH_S = 1.0


class UnknownSetting(ValueError):
    """The name is not one of SETTINGS, or the value is not one that it allows."""

    code = "unknown_setting"


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    default: Any
    allowed: tuple[Any, ...]
    meaning: str


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("scheduling.path", "auto", ("auto", "split", "fused"), "how requests of policy `auto` are placed"),
        Setting("scheduling.paused", False, (False, True), "true: nothing new is offered to workers"),
    )
}


def config_set(*, name: str, value: Any) -> None:
    setting = SETTINGS.get(name)
    if setting is None:
        raise UnknownSetting(f"no setting {name!r}; there are: {', '.join(SETTINGS)}")
    if value not in setting.allowed:
        raise UnknownSetting(f"{name} is one of {', '.join(map(json.dumps, setting.allowed))}")
    entry, created = ConfigEntry.objects.get_or_create(name=name, defaults={"value": value})
    if not created:
        entry.value, entry.version = value, entry.version + 1
        entry.save()


class Configuration:
    """A process's view: one read of the table a second at most."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._read_at = float("-inf")

    def __getitem__(self, name: str) -> Any:
        if time.monotonic() - self._read_at > FRESH_S:
            self._values = dict(ConfigEntry.objects.values_list("name", "value"))
            self._read_at = time.monotonic()
        return self._values.get(name, SETTINGS[name].default)
