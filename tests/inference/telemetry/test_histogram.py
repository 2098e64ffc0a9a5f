from __future__ import annotations

import random
import threading

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inference.telemetry.histogram import STEP_S, BatchHistogram


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(sample.name, sample.labels.get("le", "")): round(sample.value, 6) for family in families for sample in family.samples}


def test_a_batch_counts_as_the_librarys_own_histogram_does_one_by_one() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    batch = BatchHistogram("t_seconds", "t", ["model"], STEP_S, ours).labels("tiny")
    single = Histogram("t_seconds", "t", ["model"], buckets=STEP_S, registry=theirs).labels("tiny")
    draw = random.Random(7)
    for value in [*STEP_S, *(draw.expovariate(10) for _ in range(200)), 99.0]:
        times = draw.randrange(1, 5)
        batch.observe(value, times)
        for _ in range(times):
            single.observe(value)
    assert samples(ours) == samples(theirs)
    assert samples(ours)["t_seconds_count", ""] > 200


def test_threads_lose_no_count() -> None:
    registry = CollectorRegistry()
    histogram = BatchHistogram("t_seconds", "t", [], STEP_S, registry)

    def observe() -> None:
        for _ in range(20_000):
            histogram.labels().observe(0.002, 3)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples(registry)["t_seconds_count", ""] == 240_000
