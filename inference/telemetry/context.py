"""Which process this is, and which request a piece of work belongs to: what log lines say beside their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from inference.telemetry.traceparent import trace_id_of

_process: dict[str, str] = {}
_nothing: Mapping[str, str] = MappingProxyType({})
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=_nothing)


def set_process(role: str, slot: str = "") -> None:
    _process.update({"process": role, "slot": slot} if slot else {"process": role})


def process() -> Mapping[str, str]:
    return _process


def about() -> Mapping[str, str]:
    return _about.get()


def set_about(*, request_id: str = "", tenant_id: str = "", trace_context: str = "") -> None:
    """For the rest of this task or thread, beside what is known already. What is empty changes nothing."""
    told = {"request_id": request_id, "tenant_id": tenant_id, "trace_id": trace_id_of(trace_context)}
    _about.set({**_about.get(), **{name: value for name, value in told.items() if value}})


@contextmanager
def work_about(*, request_id: str, tenant_id: str = "", trace_context: str = "") -> Iterator[None]:
    """For a block, in place of what was known."""
    token = _about.set({})
    set_about(request_id=request_id, tenant_id=tenant_id, trace_context=trace_context)
    try:
        yield
    finally:
        _about.reset(token)
