"""Metrics of this process, as they grow."""

from __future__ import annotations

from prometheus_client import REGISTRY


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Growth:
    """Of a sample since this was made."""

    def __init__(self, name: str, **labels: str) -> None:
        self._name, self._labels = name, labels
        self._before = sample(name, **labels)

    @property
    def by(self) -> float:
        return sample(self._name, **self._labels) - self._before
