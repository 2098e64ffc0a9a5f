"""What leases and the reaper tell Prometheus. Whoever loses a lease may end before it can say so: the reaper counts it."""

from __future__ import annotations

from prometheus_client import Counter

RENEWALS = Counter("brigade_lease_renewals", "Leases renewed, by kind of holder.", ["holder"])
LOST = Counter("brigade_leases_lost", "Leases that ran out, by kind of holder.", ["holder"])
REQUEUES = Counter("brigade_requeues", "Requests that went back to the queue, by who saw to it.", ["by"])
REAPED = Counter("brigade_reaped", "What the reaper did, by kind.", ["kind"])


def reaped(done: dict[str, int]) -> None:
    for kind, count in done.items():
        REAPED.labels(kind).inc(count)
    LOST.labels("worker").inc(done["workers_dead"])
    LOST.labels("gateway").inc(done["gateways_gone"])
    REQUEUES.labels("reaper").inc(done["requeued"])
