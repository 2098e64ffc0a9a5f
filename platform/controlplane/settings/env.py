"""Typed readers of the environment. A value that does not parse stops the start and names itself; secrets may come from files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

from inference.telemetry.address import Address
from inference.telemetry.redaction import keep_secret

T = TypeVar("T")


def _read(name: str, default: T, parse: Callable[[str], T]) -> T:
    raw = os.environ.get(name, "").strip()
    if not raw:
        return default
    try:
        return parse(raw)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}: {error}") from error


def text(name: str, default: str = "") -> str:
    return _read(name, default, str)


def integer(name: str, default: int, *, least: int | None = None, most: int | None = None) -> int:
    def parse(raw: str) -> int:
        try:
            value = int(raw)
        except ValueError:
            raise ValueError(f"{raw!r} is not a whole number") from None
        if least is not None and value < least:
            raise ValueError(f"{value} is less than {least}")
        if most is not None and value > most:
            raise ValueError(f"{value} is more than {most}")
        return value

    return _read(name, default, parse)


def boolean(name: str, default: bool = False) -> bool:
    def parse(raw: str) -> bool:
        words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
        if raw.lower() not in words:
            raise ValueError(f"{raw!r} is not one of {', '.join(words)}")
        return words[raw.lower()]

    return _read(name, default, parse)


def choice(name: str, default: str, choices: Sequence[str]) -> str:
    def parse(raw: str) -> str:
        if raw not in choices:
            raise ValueError(f"{raw!r} is none of {', '.join(choices)}")
        return raw

    return _read(name, default, parse)


def names(name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Names of folders, with commas between; none twice, none hidden, none a path."""

    def parse(raw: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in raw.split(","))
        for part in found:
            if not part or part.startswith(".") or Path(part).name != part:
                raise ValueError(f"{part!r} is no folder's name")
        if len(set(found)) < len(found):
            raise ValueError("a name stands twice")
        return found

    return _read(name, default, parse)


def address(name: str) -> Address | None:
    return _read(name, None, Address.parse)


def secret(name: str, default: str = "") -> str:
    """The variable itself, or the content of the file that NAME_FILE names. No log line shows it."""
    path = os.environ.get(f"{name}_FILE", "").strip()
    if not path:
        return keep_secret(text(name, default))
    if os.environ.get(name):
        raise ImproperlyConfigured(f"set {name} or {name}_FILE, not both")
    try:
        return keep_secret(Path(path).read_text().strip())
    except OSError as error:
        raise ImproperlyConfigured(f"{name}_FILE: {error}") from error
    except UnicodeDecodeError:
        raise ImproperlyConfigured(f"{name}_FILE: {path} is not a text file") from None
