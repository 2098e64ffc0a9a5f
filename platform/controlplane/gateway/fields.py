"""Kinds of values in a request's body. Each reads a value, or refuses it by its place, and says as JSON Schema what it takes.

So the parser and the published document cannot differ: both are made of these. A bool is not a number, 1.0 is not an integer, and
text must be text (no lone surrogate).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from controlplane.errors import InvalidRequest, InvalidValue, UnsupportedParameter

Schema = dict[str, Any]
T_co = TypeVar("T_co", covariant=True)

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"
NO_NUL = r"^[^\x00]*$"
DECIMAL = re.compile(r"(0|[1-9][0-9]{0,8})")


class Kind(Protocol[T_co]):
    def read(self, value: Any, place: str) -> T_co:
        """`value` is never null. Raises InvalidRequest with `place`, a path like messages[0].content."""

    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class Field(Generic[T_co]):
    """A parameter by its name: null counts as absent."""

    kind: Kind[T_co]
    about: str
    required: bool = False

    def schema(self) -> Schema:
        schema = self.kind.schema()
        return {**(schema if self.required else nullable(schema)), "description": self.about}


@dataclass(frozen=True, slots=True)
class Boolean:
    def read(self, value: Any, place: str) -> bool:
        if not isinstance(value, bool):
            raise invalid(place, "true or false")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Integer:
    least: int
    most: int

    def read(self, value: Any, place: str) -> int:
        if type(value) is not int or not self.least <= value <= self.most:
            raise invalid(place, f"an integer from {self.least} to {self.most}")
        return value

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


_TOKEN_ID = Integer(0, 999_999_999)


@dataclass(frozen=True, slots=True)
class Number:
    least: float
    most: float

    def read(self, value: Any, place: str) -> float:
        if type(value) not in (int, float) or not self.least <= value <= self.most:
            raise invalid(place, f"a number from {self.least:g} to {self.most:g}")
        return float(value)

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Label:
    """A short text without control characters, because it is stored and shown."""

    most: int
    least: int = 0

    def read(self, value: Any, place: str) -> str:
        if not is_text(value) or not self.least <= len(value) <= self.most or CONTROL.search(value):
            raise invalid(place, f"a string of {self.least} to {self.most} characters, without control characters")
        return str(value)

    def schema(self) -> Schema:
        shortest = {"minLength": self.least} if self.least else {}
        return {"type": "string", **shortest, "maxLength": self.most, "pattern": NO_CONTROL}


@dataclass(frozen=True, slots=True)
class Labels:
    """An object of strings."""

    pairs: int
    key: Label
    value: Label

    def read(self, value: Any, place: str) -> dict[str, str]:
        if not isinstance(value, dict) or len(value) > self.pairs:
            raise invalid(place, f"an object of at most {self.pairs} strings")
        return {self.key.read(key, place): self.value.read(inner, f"{place}.{shown(key)}") for key, inner in value.items()}

    def schema(self) -> Schema:
        keys = {name: limit for name, limit in self.key.schema().items() if name != "type"}  # a name is a string
        return {
            "type": "object",
            "maxProperties": self.pairs,
            "propertyNames": keys,
            "additionalProperties": self.value.schema(),
        }


@dataclass(frozen=True, slots=True)
class OneOrMore:
    """A string or a list of strings, all without NUL, which PostgreSQL cannot store."""

    strings: int
    characters: int

    def read(self, value: Any, place: str) -> tuple[str, ...]:
        strings = [value] if isinstance(value, str) else value
        if not isinstance(strings, list) or len(strings) > self.strings:
            raise invalid(place, f"a string or a list of at most {self.strings} strings")
        for string in strings:
            if not is_text(string) or not 1 <= len(string) <= self.characters or "\0" in string:
                raise invalid(place, f"strings of 1 to {self.characters} characters, without NUL")
        return tuple(strings)

    def schema(self) -> Schema:
        string = {"type": "string", "minLength": 1, "maxLength": self.characters, "pattern": NO_NUL}
        return {"anyOf": [string, {"type": "array", "maxItems": self.strings, "items": string}]}


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A list of token ids. Whether the model has them is looked at where the model is known: `check_ids`."""

    most: int
    least: int = 0

    def read(self, value: Any, place: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            raise invalid(place, f"a list of {self.least} to {self.most} token ids")
        if all(type(token_id) is int and 0 <= token_id <= _TOKEN_ID.most for token_id in value):
            return tuple(value)
        return tuple(_TOKEN_ID.read(token_id, f"{place}[{index}]") for index, token_id in enumerate(value))  # names the first

    def schema(self) -> Schema:
        least = {"minItems": self.least} if self.least else {}
        return {"type": "array", **least, "maxItems": self.most, "items": _TOKEN_ID.schema()}


@dataclass(frozen=True, slots=True)
class LogitBias:
    """An object from token ids, written as strings, to what is added to their logits."""

    entries: int
    most: float

    def read(self, value: Any, place: str) -> tuple[tuple[int, float], ...]:
        if not isinstance(value, dict) or len(value) > self.entries:
            raise invalid(place, f"an object of at most {self.entries} token ids with their bias")
        return tuple(self._entry(name, bias, place) for name, bias in value.items())

    def _entry(self, name: str, bias: Any, place: str) -> tuple[int, float]:
        if not DECIMAL.fullmatch(name):
            raise invalid(f"{place}.{shown(name)}", "a token id as its name")
        return int(name), Number(-self.most, self.most).read(bias, f"{place}.{name}")

    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": self.entries,
            "propertyNames": {"pattern": f"^{DECIMAL.pattern}$"},
            "additionalProperties": Number(-self.most, self.most).schema(),
        }


def check_ids(ids: Sequence[int], vocabulary_size: int, place: str) -> None:
    """Raises InvalidValue that names the first id which the model does not have. `place` has a `{}` for its index and its id."""
    if max(ids, default=0) < vocabulary_size:
        return
    for index, token_id in enumerate(ids):
        if token_id >= vocabulary_size:
            raise invalid(place.format(index, token_id), f"a token id below {vocabulary_size}, the size of the model's vocabulary")


class Neutral:
    """Not supported, but a value that asks for nothing is no reason to refuse: clients send defaults. No values: null alone."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def read(self, value: Any, place: str) -> None:
        if not any(_same(value, neutral) for neutral in self.values):
            accepted = " or ".join(json.dumps(neutral) for neutral in self.values)
            advice = f"Leave it out, or send {accepted}." if accepted else "Leave it out."
            raise UnsupportedParameter(f"'{place}' is not supported yet. {advice}", param=place)

    def schema(self) -> Schema:
        return {"enum": list(self.values)}


def _same(value: Any, neutral: Any) -> bool:
    """1 is not true; but 0.0 asks for as little as 0 does."""
    if neutral == 0 and type(neutral) is float:
        return type(value) in (int, float) and value == 0
    return type(value) is type(neutral) and bool(value == neutral)


def nullable(schema: Schema) -> Schema:
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def invalid(place: str, expected: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{place}': expected {expected}.", param=place)


def unsupported(place: str, name: str) -> InvalidRequest:
    param = f"{place}.{shown(name)}"
    return UnsupportedParameter(f"'{param}' is not supported.", param=param)


def unknown(name: str) -> InvalidRequest:
    return UnsupportedParameter(f"Unknown parameter: '{shown(name)}'.", param=shown(name))


def shown(name: str) -> str:
    """A client's own word, short and printable enough to be sent back."""
    return name[:64].encode("unicode_escape").decode()
