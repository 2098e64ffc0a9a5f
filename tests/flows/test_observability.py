"""What operators see of a running copy: a page of metrics, the trace of a request, log lines for machines. And what they do not."""

from __future__ import annotations

import json
import re
import secrets
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.flows.cast import PATIENCE_S, ask, client, expected, kill_worker, say, stream, text_of, until, wait_until_ready
from tests.flows.collector import Collector, Told, collecting
from tests.flows.conftest import Stack, free_port, serving

pytestmark = pytest.mark.timeout(240)

PROMPT = "the recipe of grandmother's dumplings"
PROCESSES = {"gateway", "dispatcher", "worker-prefill-0", "worker-decode-0", "control"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting(Collector()) as running:
        yield running


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Stack]:
    """A copy that shows all it can."""
    more = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "BRIGADE_LOG_FORMAT": "json",
        "BRIGADE_LOG_LEVEL": "DEBUG",
        "BRIGADE_METRICS": f"127.0.0.1:{free_port()}",
    }
    with serving(tmp_path_factory.mktemp("observed") / "data", more) as running:
        yield running


def traced(stack: Stack, **more: Any) -> tuple[str, str]:
    """Asks as a client with a trace of its own. Answers that trace's id, and the client's span."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace}-{span}-01"}
    text_of(stream(stack, PROMPT, 24, extra_headers=headers, **more))
    return trace, span


def refused(stack: Stack, *, api_key: str | None = None, model: str = "tiny", content: str = "hi", **more: Any) -> None:
    with client(stack, api_key=api_key) as one, pytest.raises(openai.APIStatusError):
        one.chat.completions.create(model=model, messages=say(content), **more)


def spans_of(collector: Collector, trace: str, *names: str) -> dict[str, list[Told]]:
    """By name, once all of `names` have come."""

    def found() -> dict[str, list[Told]]:
        by_name: dict[str, list[Told]] = {}
        for span in collector.of(trace):
            by_name.setdefault(span.name, []).append(span)
        return by_name

    return until(found, lambda spans: set(names) <= set(spans))


def page(stack: Stack) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    with urllib.request.urlopen(f"http://{stack.env['BRIGADE_METRICS']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def total(stack: Stack, name: str, **labels: str) -> float:
    return sum(value for found, value in page(stack).get(name, {}).items() if labels.items() <= dict(found).items())


def lines(stack: Stack, process: str = "*") -> list[dict[str, Any]]:
    texts = [path.read_text() for path in stack.data.logs.glob(f"{process}.log") if path.stem in PROCESSES]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def test_a_request_is_one_trace_over_gateway_and_both_workers(observed: Stack, collector: Collector) -> None:
    trace, client_span = traced(observed)
    spans = spans_of(collector, trace, "chat tiny", "admission", "prefill", "ready", "transfer", "decode", "finish")
    [call] = spans["chat tiny"]
    assert (call.parent, call.service, call.kind, call.failed) == (client_span, "brigade-gateway", 2, False)
    others = [span for span in collector.of(trace) if span is not call]
    assert {span.parent for span in others} == {call.id}
    where = {
        name: [(span.service, span.attributes.get("brigade.worker.slot")) for span in spans[name]]
        for name in ("admission", "prefill", "ready", "transfer", "decode", "finish")
    }
    prefill, decode = ("brigade-worker", "prefill-0"), ("brigade-worker", "decode-0")
    assert where == {
        "admission": [("brigade-gateway", None)],
        "prefill": [prefill],
        "ready": [prefill],
        "transfer": [decode],
        "decode": [decode],
        "finish": [decode],
    }
    assert sorted(span.attributes["brigade.phase"] for span in spans["queue"]) == ["decode", "prefill"]


def test_the_spans_of_a_trace_follow_one_another_inside_the_call(observed: Stack, collector: Collector) -> None:
    trace, _ = traced(observed)
    spans = spans_of(collector, trace, "chat tiny", "finish", "decode", "transfer", "prefill")
    [call] = spans["chat tiny"]
    order = [spans[name][0] for name in ("admission", "prefill", "transfer", "decode", "finish")]
    assert all(first.start_ns < then.start_ns for first, then in pairwise(order))
    assert all(call.start_ns <= span.start_ns <= span.end_ns for span in order)


def test_a_call_says_what_opentelemetry_asks_of_generative_ai(observed: Stack, collector: Collector) -> None:
    trace, _ = traced(observed)
    [call] = spans_of(collector, trace, "chat tiny")["chat tiny"]
    told = call.attributes
    assert told["gen_ai.operation.name"] == "chat"
    assert (told["gen_ai.request.model"], told["gen_ai.request.max_tokens"]) == ("tiny", 24)
    assert (told["gen_ai.response.finish_reasons"], told["gen_ai.usage.output_tokens"]) == (["length"], 24)
    assert told["gen_ai.usage.input_tokens"] > told["gen_ai.usage.cache_read.input_tokens"] >= 0
    assert 0 < told["gen_ai.response.time_to_first_chunk"] < (call.end_ns - call.start_ns) / 1e9
    assert (told["http.route"], told["http.response.status_code"]) == ("chat_completions", 200)


def test_a_refusal_is_a_span_with_its_code_and_no_failure(observed: Stack, collector: Collector) -> None:
    trace = secrets.token_hex(16)
    refused(observed, model="nothing", extra_headers={"traceparent": f"00-{trace}-{'1' * 16}-01"})
    [call] = spans_of(collector, trace, "POST chat_completions")["POST chat_completions"]
    assert (call.attributes["error.type"], call.attributes["http.response.status_code"], call.failed) == (
        "model_not_found",
        404,
        False,
    )


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "x" * 10_000])
def test_a_client_without_a_trace_starts_one(observed: Stack, collector: Collector, header: str) -> None:
    before = len(collector.spans)
    ask(observed, PROMPT, 4, extra_headers={"traceparent": header})
    roots = until(
        lambda: [span for span in collector.spans[before:] if span.name == "chat tiny" and not span.parent],
        lambda found: bool(found),
    )
    spans_of(collector, roots[0].trace, "decode")


def test_a_trace_that_the_client_does_not_record_is_not_told(observed: Stack, collector: Collector) -> None:
    trace, later = secrets.token_hex(16), secrets.token_hex(16)
    for one, flags in ((trace, "00"), (later, "01")):
        ask(observed, PROMPT, 4, extra_headers={"traceparent": f"00-{one}-{'1' * 16}-{flags}"})
    spans_of(collector, later, "chat tiny", "finish")
    assert collector.of(trace) == []


def test_one_page_shows_all_processes_and_what_the_database_knows(observed: Stack) -> None:
    before = total(observed, "brigade_requests_finished_total", reason="length")
    ask(observed, PROMPT, 24)
    until(lambda: total(observed, "brigade_usage_rated_total"), lambda rated: rated > 0)
    assert total(observed, "brigade_requests_finished_total", reason="length") == before + 1
    shown = page(observed)
    assert {dict(labels)["process"] for labels in shown["brigade_up"]} == PROCESSES
    assert sum(shown["brigade_up"].values()) == len(PROCESSES)
    until(lambda: total(observed, "brigade_database_up"), lambda up: up == 1)
    until(lambda: total(observed, "brigade_workers", role="decode"), lambda workers: workers == 1)  # read every five seconds
    assert total(observed, "brigade_kv_transfer_bytes_total", process="worker-decode-0") > 0
    assert observed.get("/metrics")[0] == 404
    printed = observed.run("metrics")
    assert "brigade_workers{" in printed.stdout


def test_no_sample_names_a_tenant_a_key_or_a_request_and_more_requests_make_no_more_samples(observed: Stack) -> None:
    def samples() -> set[str]:
        return {f"{name}{labels}" for name, found in page(observed).items() if name.startswith("brigade_") for labels in found}

    ask(observed, PROMPT, 24)
    time.sleep(1)  # the workers' pools are read twice a second
    before = samples()
    answers = [ask(observed, f"{PROMPT} {number}", 24) for number in range(5)]
    assert len(samples() - before) == 0
    text = " ".join(samples())
    assert not [answer.id for answer in answers if answer.id.partition("-")[2] in text.replace("-", "")]
    assert not re.search(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}", text)


def test_a_dead_worker_is_seen_in_the_figures(observed: Stack) -> None:
    before = total(observed, "process_start_time_seconds", process="worker-decode-0")
    kill_worker(observed, "decode-0")
    until(lambda: total(observed, "process_start_time_seconds", process="worker-decode-0"), lambda at: at > before, 40)
    wait_until_ready(observed)
    assert total(observed, "brigade_up") == len(PROCESSES)


def test_log_lines_are_json_and_say_which_process_speaks(observed: Stack) -> None:
    found = lines(observed)
    assert {line["process"] for line in found if "process" in line} >= {"gateway", "worker", "control"}
    assert {line["slot"] for line in found if line.get("process") == "worker"} == {"prefill-0", "decode-0"}
    assert all({"time", "level", "logger", "message"} <= set(line) for line in found)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in found)


def test_neither_logs_nor_spans_nor_metrics_hold_a_key_or_what_a_customer_wrote(observed: Stack, collector: Collector) -> None:
    secret_words = "xylophone-marzipan-quicksand"
    answer = ask(observed, secret_words, 24)
    wrong = "bk-" + "b" * 40
    for key in (observed.api_key, wrong):
        refused(observed, api_key=key, model=secret_words, content=secret_words, stop=[""] * 9)
    trace, _ = traced(observed, user="marzipan")
    spans_of(collector, trace, "finish", "chat tiny")
    seen = [path.read_bytes() for path in observed.data.logs.glob("*")] + collector.bodies
    assert sum(map(len, seen)) > 10_000
    for hidden in (observed.api_key, wrong, "Bearer b", "marzipan", "quicksand", "dumplings", expected(secret_words, 24), "sesame"):
        assert not [one for one in seen if hidden.encode() in one], hidden
    assert answer.choices[0].message.content == expected(secret_words, 24)


def test_a_collector_that_is_away_is_waited_for_by_nobody(observed: Stack) -> None:
    """Another copy, whose collector never was there; it ends as quickly as any."""
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with serving(observed.data.root.parent / "alone", away) as alone:
        for number in range(5):
            content = f"alone {number}"
            assert ask(alone, content).choices[0].message.content == expected(content, 24)
        for process in ("gateway", "worker-prefill-0", "worker-decode-0"):
            log = alone.data.logs / f"{process}.log"
            until(log.read_text, lambda text: "opentelemetry" in text, 4 * PATIENCE_S)  # it was tried, and failed
        assert text_of(stream(alone, "alone at last")) == expected("alone at last", 24)
        assert alone.stop() == 0
