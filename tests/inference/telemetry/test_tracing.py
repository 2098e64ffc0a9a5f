from __future__ import annotations

import os
import subprocess
import sys

import pytest

from controlplane.embedded.paths import BASE
from inference.telemetry.traceparent import trace_id_of, traceparent_read
from inference.telemetry.tracing import TracingMisconfigured, tracing_wanted

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize("flags", ["00", "01", "03", "ff"])
def test_a_clients_context_is_taken_with_the_one_flag_that_is_defined(flags: str) -> None:
    read = traceparent_read(f" 00-{TRACE}-{SPAN}-{flags} ")
    assert read == f"00-{TRACE}-{SPAN}-0{int(flags, 16) & 1}"
    assert trace_id_of(read) == TRACE


def test_what_a_later_version_added_is_dropped() -> None:
    assert traceparent_read(f"01-{TRACE}-{SPAN}-01-what-comes") == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{'٣' * 32}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01-{'a' * 600}",
    ],
)
def test_what_is_no_context_is_none(header: str) -> None:
    assert traceparent_read(header) == ""
    assert trace_id_of("") == ""


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
    ],
)
def test_the_standard_variables_turn_it_on(env: dict[str, str], wanted: bool) -> None:
    assert tracing_wanted(env) is wanted


@pytest.mark.parametrize(
    "env", [{"OTEL_TRACES_EXPORTER": "zipkin"}, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}]
)
def test_what_is_not_built_in_is_refused_by_name(env: dict[str, str]) -> None:
    with pytest.raises(TracingMisconfigured, match=f"^{list(env)[-1]}: '{list(env.values())[-1]}' is not built in"):
        tracing_wanted(env)


def test_untraced_processes_load_no_exporter_and_record_nothing() -> None:
    code = """
import django, sys
django.setup()
import controlplane.gateway.application, inference.workers.loop, inference.scheduling.dispatcher
from inference.telemetry.process import telemetry_start
from inference.telemetry.tracing import ServerSpan, span
telemetry_start("worker", slot="w0")
call = ServerSpan("chat", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
call.set({"a": 1}); call.fail("code"); call.end()
span("queue", call.context, lasted_s=1.0, attributes={})
heavy = ("opentelemetry.exporter", "opentelemetry.sdk.trace", "google.protobuf")
print(call.context, [name for name in sys.modules if name.startswith(heavy)])
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    env = clean | {"DJANGO_SETTINGS_MODULE": "controlplane.settings.main"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, cwd=BASE, capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"00-{TRACE}-{SPAN}-01 []\n", ended.stderr
