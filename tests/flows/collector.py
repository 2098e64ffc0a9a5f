"""An OTLP/HTTP collector of the tests' own: it keeps the spans that processes send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


@dataclass(frozen=True)
class Told:
    """A span as it came over the wire."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    spans: list[Told] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of(self, trace: str) -> list[Told]:
        return [span for span in list(self.spans) if span.trace == trace]

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            self.spans += [_told(service, span) for scope in resource.scope_spans for span in scope.spans]


def _told(service: str, span: Any) -> Told:
    return Told(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.code == 2,
        attributes=_attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found


class _Handler(BaseHTTPRequestHandler):
    collector: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        self.collector.take(body)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *message: Any) -> None:
        return


@contextmanager
def collecting(collector: Collector) -> Iterator[Collector]:
    """Listens on a port of its own, or again on the one that it had."""
    handler = type("Handler", (_Handler,), {"collector": collector})
    with ThreadingHTTPServer(("127.0.0.1", collector.port), handler) as server:
        collector.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
