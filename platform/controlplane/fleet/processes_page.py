"""One page for all processes of a data folder: theirs, each line with the name of its process, and the database's facts."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from controlplane.fleet.facts import Facts

PROCESS_S = 2.0  # a process that hangs costs the page no more


class Processes(Collector):
    """Reads the page of each socket that `sockets` finds. `brigade_up` is 0 for one that does not answer."""

    def __init__(self, sockets: Callable[[], dict[str, Path]]) -> None:
        self._sockets = sockets

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("brigade_up", "1: the process answered.", labels=["process"])
        families: dict[str, Metric] = {}
        for process, path in self._sockets().items():
            page = page_of(path)
            up.add_metric([process], page is not None)
            _merge(families, process, page or "")
        yield up
        yield from families.values()


def _merge(families: dict[str, Metric], process: str, page: str) -> None:
    for family in text_string_to_metric_families(page):
        kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        for sample in family.samples:
            kept.samples.append(sample._replace(labels={"process": process, **sample.labels}))


def page_of(path: Path) -> str | None:
    """None where nobody answers."""
    client = http.client.HTTPConnection("localhost", timeout=PROCESS_S)
    try:
        client.sock = _connected(path)
        client.request("GET", "/metrics")
        return client.getresponse().read().decode()
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return None
    finally:
        client.close()


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(PROCESS_S)
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def registry(sockets: Callable[[], dict[str, Path]], facts: Facts) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    found.register(Processes(sockets))
    found.register(facts)
    return found
