"""What watching costs: an engine step, a request, a page."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.bench.support.report import Row, arguments, publish, row

ROUNDS, REPEATS = 9, 2_000


class Spoken:
    """All of a job that a step's metrics look at."""

    spoke_at: float | None = None


def microseconds(work: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """A call's time, once for each round."""
    values = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        values.append((time.perf_counter() - began) / repeats * 1e6)
    return values


def rows() -> list[Row]:
    from prometheus_client import generate_latest

    from inference.telemetry.tracing import ServerSpan, span
    from inference.workers.metrics import WorkerMetrics

    metrics = WorkerMetrics("bench-0", "bench")
    found = []
    for batch in (1, 8, 32, 128):
        jobs = cast(Any, [Spoken() for _ in range(batch)])
        values = microseconds(lambda jobs=jobs: metrics.stepped(time.monotonic(), jobs))  # type: ignore[misc]
        found.append(row(f"step_{batch}", f"metrics of an engine step, {batch} tokens", values, "us", "lower"))
    untraced = microseconds(lambda: span("queue", "", lasted_s=0.0, attributes={}))
    call = microseconds(lambda: ServerSpan("chat", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").end())
    page = microseconds(lambda: generate_latest(), 20)
    return [
        *found,
        row("span_off", "a span, while nobody collects", untraced, "us", "lower"),
        row("call_off", "a call's span and traceparent, while nobody collects", call, "us", "lower"),
        row("page", "a process's page", page, "us", "lower"),
    ]


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.main")
    import django

    django.setup()
    publish(rows(), options.json)


if __name__ == "__main__":
    main()
