"""What only the database knows, as metrics: queue, usage that waits for its rating, who lives. Read by one process, now and then.

Each statement reads an index of what is open, or a handful of rows, however large the history is.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from django.conf import settings
from django.db import Error, connections
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.catalog.selectors import served_models
from controlplane.fleet.selectors import NEEDED_ROLES, fleet
from inference.database import query

log = logging.getLogger(__name__)

FACTS_S = 5.0
PENDING_MOST = 100_000  # counted no further


class Facts(Collector):
    """The last reading, so that a page never waits for the database. `brigade_database_up` says whether the last try succeeded."""

    def __init__(self) -> None:
        self._families: list[Metric] = []
        self._up = False
        self._read_at = 0.0

    def read_always(self) -> None:
        threading.Thread(target=self._read_always, name="facts", daemon=True).start()

    def _read_always(self) -> None:
        while True:
            self.read()
            time.sleep(FACTS_S)

    def read(self) -> None:
        try:
            self._families = [*_requests(), *_usage(), *_processes()]
            self._up, self._read_at = True, time.time()
        except Error as error:
            log.warning("the database's facts cannot be read: %s", error)
            self._up = False
            connections.close_all()

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("brigade_database_up", "1: the last reading of the database succeeded.", self._up)
        yield GaugeMetricFamily("brigade_facts_timestamp_seconds", "When the database was last read.", self._read_at)
        yield from self._families
        yield from _disk()


def _requests() -> Iterable[Metric]:
    counts = GaugeMetricFamily("brigade_requests", "Open requests by state.", labels=["model", "tier", "state"])
    oldest = GaugeMetricFamily(
        "brigade_queue_age_seconds", "Of the oldest request that waits for a worker.", labels=["model", "tier"]
    )
    rows = query(
        """SELECT model, service_tier, state, count(*), extract(epoch FROM clock_timestamp() - min(created_at))::float8
             FROM inference_request WHERE finished_at IS NULL GROUP BY model, service_tier, state"""
    )
    for model, tier, state, count, age_s in rows:
        counts.add_metric([model, tier, state], count)
        if state == "queued":
            oldest.add_metric([model, tier], age_s)
    return counts, oldest


def _usage() -> Iterable[Metric]:
    [(pending, lag_s)] = query(
        """SELECT (SELECT count(*) FROM (SELECT 1 FROM inference_usage_pending LIMIT %s) AS counted),
                  (SELECT extract(epoch FROM clock_timestamp() - min(at))::float8 FROM inference_usage_pending)""",
        [PENDING_MOST],
    )
    faults = GaugeMetricFamily("brigade_unrated_requests", "Requests that cannot be rated until somebody acts.", labels=["reason"])
    for reason, count in query("SELECT reason, count(*) FROM metering_fault WHERE resolved_at IS NULL GROUP BY reason"):
        faults.add_metric([reason], count)
    yield GaugeMetricFamily("brigade_usage_pending", "Finished requests whose usage waits for its rating.", pending)
    yield GaugeMetricFamily("brigade_usage_lag_seconds", "Age of the oldest usage that waits for its rating.", lag_s or 0.0)
    yield faults


def _processes() -> Iterable[Metric]:
    now = fleet()
    workers = GaugeMetricFamily("brigade_workers", "Workers that hold their lease and take work.", labels=["model", "role"])
    models = {model.name for model in served_models()} | {worker.model for worker in now.workers}
    for model, role in product(sorted(models), NEEDED_ROLES):  # a model without workers shows a zero, not nothing
        workers.add_metric([model, role], sum(worker.model == model and role in worker.roles for worker in now.workers))
    beats = GaugeMetricFamily(
        "brigade_heartbeat_age_seconds", "Since the last round of dispatcher, reaper, ingest.", labels=["name"]
    )
    for name, age_s in now.heartbeat_age_s.items():
        beats.add_metric([name], age_s)
    return workers, beats


def _disk() -> Iterable[Metric]:
    free = GaugeMetricFamily("brigade_disk_free_bytes", "Room where data and KV arenas lie.", labels=["place"])
    size = GaugeMetricFamily("brigade_disk_size_bytes", "Size of the file systems.", labels=["place"])
    for place, path in (("data", settings.DATA.root), ("shared_memory", Path("/dev/shm"))):
        if path.exists():
            usage = shutil.disk_usage(path)
            free.add_metric([place], usage.free)
            size.add_metric([place], usage.total)
    return free, size
