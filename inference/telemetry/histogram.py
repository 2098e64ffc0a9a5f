"""A histogram for hot loops: one call counts a value any number of times."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

# Seconds: what a step or a token may take, and what a whole request may.
STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class Cell:
    """The counts of one combination of labels."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, times: int = 1) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += times
            self._sum += value * times

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative (upper bound, count), and the sum of all values."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(counts)), strict=True)), total


class BatchHistogram(Collector):
    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry | None = REGISTRY,
    ) -> None:
        self._name, self._documentation, self._labels, self._bounds = name, documentation, tuple(labels), tuple(bounds)
        self._cells: dict[tuple[str, ...], Cell] = {}
        if registry is not None:
            registry.register(self)

    def labels(self, *values: str) -> Cell:
        return self._cells.setdefault(values, Cell(self._bounds))

    def describe(self) -> Iterable[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, cell in list(self._cells.items()):
            buckets, total = cell.read()
            family.add_metric(values, buckets, total)
        yield family
