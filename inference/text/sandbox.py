"""Jinja for templates that nobody has read: no attribute that leads out, no unbounded step, time or memory.

Jinja's own sandbox closes the way to Python's internals but lets a template run and allocate without end. Here every loop step and
every call costs a step, everything that can grow costs its size, and both end in `ChatTemplateError`. What may grow is known as
filters and methods are listed here by name; what is not listed does not exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cached_property
from typing import Any, cast

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import FILTERS
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from inference.text.errors import ChatTemplateError

MAX_SOURCE_CHARACTERS = 262_144
MAX_STEPS = 200_000  # loop steps and calls
MAX_VOLUME = 4_194_304  # characters and list items that a rendering may make, intermediate ones included
MAX_INTEGER = 2**62
MAX_SECONDS = 2.0

_FILTERS = {
    *(
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "int",
        "items",
        "last",
        "length",
        "list",
    ),
    *(
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "reverse",
        "safe",
        "select",
        "selectattr",
        "sort",
        "sum",
        "title",
    ),
    *("trim", "unique", "upper"),
}
_STRING_METHODS = {
    *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower"),
    *(
        "isnumeric",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
    ),
    *(
        "rfind",
        "rindex",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "upper",
    ),
}
_METHODS: dict[type, set[str]] = {
    str: _STRING_METHODS,
    dict: {"get", "items", "keys", "values"},
    list: {"count", "index"},
    tuple: {"count", "index"},
    int: set(),
    float: set(),
    bytes: set(),
}


class _RefusalError(TemplateError):
    """`raise_exception` of a template: these messages do not fit it."""


class _LimitError(SecurityError):
    pass


class _Budget:
    def __init__(self) -> None:
        self.steps = MAX_STEPS
        self.volume = MAX_VOLUME
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self.steps -= 1
        if self.steps < 0 or time.monotonic() > self.deadline:
            raise _LimitError("too many steps")

    def charge(self, size: int) -> None:
        self.volume -= size
        if self.volume < 0:
            raise _LimitError("too much text")


_budget: ContextVar[_Budget] = ContextVar("template_budget")


def _size(value: object) -> int:
    """Characters and items in `value`, as deep as it goes; what is there twice counts twice. Stops when it exceeds the budget."""
    most, size, open_values = _budget.get().volume, 0, [value]
    while open_values:
        inner = open_values.pop()
        size += len(inner) if isinstance(inner, str | range) else 1
        if isinstance(inner, list | tuple):
            open_values += inner
        elif isinstance(inner, dict):
            open_values += inner.values()
        if size > most:
            raise _LimitError("too much text")
    return size


def _charged(value: Any) -> Any:
    _budget.get().charge(_size(value))
    return value


def _text(value: object) -> str:
    if isinstance(value, str | int | float | Undefined) or value is None:
        return str(value)
    raise SecurityError(f"{type(value).__name__} has no text form here; use tojson")


def _concat(parts: Iterable[str]) -> str:
    """Jinja's joining of what a block or macro wrote."""
    written = []
    for part in parts:
        _budget.get().charge(len(part) + 1)
        written.append(part)
    return "".join(written)


@pass_context
def _steps(_context: Context, items: Any) -> Iterator[Any]:
    for item in items:
        _budget.get().step()
        yield item


@pass_context
def _charged_value(_context: Context, value: Any) -> Any:
    return _charged(value)


@pass_context
def _joined(_context: Context, parts: list[Any]) -> str:
    return _concat(map(_text, parts))


def _replace(value: object, old: object, new: object, count: int | None = None) -> str:
    text, pattern, replacement = _text(value), _text(old), _text(new)
    _budget.get().charge(len(text) + (text.count(pattern) + 1) * len(replacement))
    return text.replace(pattern, replacement, -1 if count is None else count)


def _join(separator: str, items: Iterable[Any]) -> str:
    parts = [_text(item) for item in items]
    _budget.get().charge(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _join_filter(items: Iterable[Any], separator: str = "") -> str:
    return _join(str(separator), items)


def _to_json(value: Any, indent: int | None = None) -> str:
    if indent is not None and not 0 <= indent <= 8:
        raise _LimitError("an indent of more than 8")
    return _concat(json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value))


def _range(*bounds: int) -> range:
    return _charged(range(*bounds))  # type: ignore[no-any-return]


def _raise_exception(message: object) -> None:
    raise _RefusalError(str(message)[:300])


def _charged_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """Same filter, its result paid for; Jinja's marks for context and environment stay."""

    def charged(*arguments: Any, **options: Any) -> Any:
        _budget.get().step()
        return _charged(function(*arguments, **options))

    charged.__dict__.update(getattr(function, "__dict__", {}))
    return charged


def _product(left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right)):
        count = next((value for value in (left, right) if isinstance(value, int)), 1)
        _budget.get().charge((_size(left) + _size(right)) * max(count, 0))
    return left * right


def _sum(left: Any, right: Any) -> Any:
    _budget.get().charge(_size(left) + _size(right))
    return left + right


def _remainder(left: Any, right: Any) -> Any:
    if not _is_number(left):
        raise SecurityError("formatting with % is not supported")
    return left % right


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"*": _product, "+": _sum, "%": _remainder}


class _Bounding(NodeTransformer):
    """Puts the meters where Jinja compiles to bare Python: loops, `~`, slices, lists that are written out.

    A list pays for all that it holds, so that no structure is larger than the budget, whoever walks it later.
    """

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "__charged")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "__charged")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "__charged") if node.ctx == "load" else node

    def visit_Name(self, node: nodes.Name) -> nodes.Expr:  # noqa: N802
        if node.name in ("varargs", "kwargs"):
            raise SecurityError(f"{node.name} is not supported")
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "__steps")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "__joined")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "__charged") if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})
    concat = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols"], finalize=_text
        )
        kept = {name: _charged_filter(FILTERS[name]) for name in _FILTERS}
        own = {"replace": _replace, "join": _join_filter, "tojson": _to_json, "string": _text}
        meters = {"__steps": _steps, "__charged": _charged_value, "__joined": _joined}
        self.filters = kept | own | meters
        self.globals = {"range": _range, "namespace": self.globals["namespace"], "raise_exception": _raise_exception}

    def compiled(self, source: str) -> Template:
        tree = _Bounding().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), None)
        return super().is_safe_attribute(obj, attr, value) and (allowed is None or attr in allowed)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` would pass by the methods allowed above."""

    def call(self, context: Context, function: Any, /, *arguments: Any, **options: Any) -> Any:
        _budget.get().step()
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str) and getattr(function, "__name__", "") in ("replace", "join"):
            function = {"replace": _replace, "join": _join}[function.__name__]
            arguments = (owner, *arguments)
        return _charged(super().call(context, function, *arguments, **options))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("powers are not supported")
        result = _OPERATORS[operator](left, right) if operator in _OPERATORS else super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > MAX_INTEGER:
            raise _LimitError("a number above 2**62")
        return result


class BoundedTemplate:
    def __init__(self, source: str) -> None:
        self.source = source

    def render(self, **values: Any) -> str:
        """Raises `ChatTemplateError`, whatever the template does."""
        token = _budget.set(_Budget())
        try:
            return _concat(self._compiled.root_render_func(self._compiled.new_context(values)))
        except _RefusalError as error:
            raise ChatTemplateError(
                f"The model's chat template refuses these messages: {error}", code="chat_template_refused"
            ) from error
        except (_LimitError, RecursionError, MemoryError, OverflowError) as error:
            raise ChatTemplateError(
                "The chat template exceeds its limits.", code="chat_template_limit", detail=str(error)
            ) from error
        except Exception as error:  # hostile code may raise anything; nothing is swallowed
            raise ChatTemplateError("The model's chat template fails.", detail=f"{type(error).__name__}: {error}") from error
        finally:
            _budget.reset(token)

    @cached_property
    def _compiled(self) -> Template:
        if len(self.source) > MAX_SOURCE_CHARACTERS:
            raise _LimitError(f"a source of {len(self.source)} characters")
        return _Environment().compiled(self.source)
