"""JSON from a stranger: depth, constants, numbers and repeated names are looked at; what is not an object is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from controlplane.errors import InvalidJson
from controlplane.gateway import limits, threads
from controlplane.gateway.fields import shown

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)  # cannot backtrack: linear on any input

Object = dict[str, Any]
T = TypeVar("T")


async def read_body(body: bytes, read: Callable[[Object], T]) -> tuple[Object, T]:
    """The object and what `read` makes of it. Large ones in a thread: the loop, which holds the lease and all streams, must turn.

    Raises InvalidJson, Overloaded, and what `read` raises.
    """

    def work() -> tuple[Object, T]:
        data = parse_object(body)
        return data, read(data)

    return work() if len(body) <= limits.JSON_INLINE_BYTES else await threads.bodies.run(work)


def parse_object(body: bytes) -> Object:
    """Raises InvalidJson."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidJson("The body is not UTF-8.") from error
    _check_structure(text)
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_each_name_once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidJson(f"The body is not valid JSON{_place(error)}.") from error
    except ValueError as error:  # all else is JSON to the parser
        raise InvalidJson(f"The body has an integer of more than {sys.get_int_max_str_digits()} digits.") from error
    if not isinstance(data, dict):
        raise InvalidJson("The body must be a JSON object.")
    return data


def _place(error: Exception) -> str:
    return f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""


def _no_constant(name: str) -> NoReturn:
    raise InvalidJson(f"The body is not valid JSON: {name} is no number.")


def _each_name_once(pairs: list[tuple[str, Any]]) -> Object:
    """Of two equal names one would be ignored in silence, and a proxy before us may have read the other."""
    data: Object = {}
    for name, value in pairs:
        if name in data:
            raise InvalidJson(f"The name '{shown(name)}' stands twice in one object.")
        data[name] = value
    return data


def _check_structure(text: str) -> None:
    """Depth, and the number of arrays and objects: each costs many times its two characters."""
    if text.count("[") + text.count("{") <= limits.JSON_DEPTH:
        return
    depth = begun = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        first = match[0][0]
        depth += (first in "[{") - (first in "]}")
        begun += first in "[{"
        if depth > limits.JSON_DEPTH:
            raise InvalidJson(f"The body is nested deeper than {limits.JSON_DEPTH} levels.")
        if begun > limits.JSON_NODES:
            raise InvalidJson(f"The body has more than {limits.JSON_NODES} arrays and objects.")
