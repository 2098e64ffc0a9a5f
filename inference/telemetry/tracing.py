"""OpenTelemetry spans, where the standard OTEL_* variables name a collector. Elsewhere no SDK is loaded.

Spans are told when they are over, with their times. A thread of the library sends them in batches and drops what a collector that
is away does not take: nobody waits for it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from inference.telemetry.traceparent import traceparent_read

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

LAST_WORD_S = 1.0  # a process that ends waits so long for its last spans to be taken
HTTP = "http/protobuf"

Value = str | int | float | bool | tuple[str, ...]
Attributes = Mapping[str, Value]

_tracer: Tracer | None = None


class TracingMisconfigured(ValueError):
    """A variable asks for what is not built in."""

    code = "tracing_misconfigured"


def tracing_wanted(env: Mapping[str, str]) -> bool:
    """Raises TracingMisconfigured."""
    exporter = env.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    named = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none" or not (exporter or named):
        return False
    if exporter not in ("", "otlp"):
        raise TracingMisconfigured(f"OTEL_TRACES_EXPORTER: {exporter!r} is not built in; otlp is")
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or HTTP
    if protocol != HTTP:
        raise TracingMisconfigured(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is not built in; {HTTP} is")
    return True


def tracing_start(service: str) -> None:
    """Once, at the start of a process. `service` counts where OTEL_SERVICE_NAME says nothing. Raises TracingMisconfigured."""
    global _tracer
    if _tracer is not None or not tracing_wanted(os.environ):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    names_itself = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if names_itself else {"service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    atexit.register(_last_word, provider)
    _tracer = provider.get_tracer("brigade")


def _last_word(provider: TracerProvider) -> None:
    """The library's own end would wait for a collector that is away."""
    sending = threading.Thread(target=provider.force_flush, daemon=True)
    sending.start()
    sending.join(LAST_WORD_S)


def traced(parent: str) -> bool:
    """Whether a span under `parent` (a traceparent) would be told."""
    return _tracer is not None and bool(parent)


def span(name: str, parent: str, *, ended_s_ago: float = 0.0, lasted_s: float, attributes: Attributes, error: str = "") -> None:
    """Tells a span that is over, under `parent`. Does nothing where that is empty."""
    if _tracer is None or not parent:
        return
    end_ns = time.time_ns() - int(max(0.0, ended_s_ago) * 1e9)
    told = _tracer.start_span(
        name, context=_context(parent), start_time=end_ns - int(max(0.0, lasted_s) * 1e9), attributes=dict(attributes)
    )
    if error:
        _fail(told, error)
    told.end(end_ns)


class ServerSpan:
    """A call that a client made, from now to `end`. Untraced it only passes on the client's own context."""

    def __init__(self, name: str, header: str) -> None:
        """`header` is the client's `traceparent`, whatever it sent."""
        self.context = traceparent_read(header) if header else ""  # for what is done under this span
        self._span: Span | None = None
        if _tracer is None:
            return
        from opentelemetry.trace import SpanKind

        self._span = _tracer.start_span(name, context=_context(self.context), kind=SpanKind.SERVER)
        own = self._span.get_span_context()
        self.context = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags & 1:02x}"

    @property
    def recorded(self) -> bool:
        return self._open_span() is not None

    def _open_span(self) -> Span | None:
        return self._span if self._span is not None and self._span.is_recording() else None

    def rename(self, name: str) -> None:
        if told := self._open_span():
            told.update_name(name)

    def set(self, attributes: Attributes) -> None:
        if told := self._open_span():
            told.set_attributes(dict(attributes))

    def fail(self, error: str) -> None:
        """`error` is a code."""
        if told := self._open_span():
            _fail(told, error)

    def end(self) -> None:
        """May be called twice. What is told afterwards is dropped."""
        if told := self._open_span():
            told.end()


def _context(parent: str) -> Context | None:
    """None: a root."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if not parent:
        return Context()
    _, trace, span, flags = parent.split("-")
    remote = SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _fail(told: Span, error: str) -> None:
    from opentelemetry.trace import StatusCode

    told.set_attribute("error.type", error)
    told.set_status(StatusCode.ERROR)
