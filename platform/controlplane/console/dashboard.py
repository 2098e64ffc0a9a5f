"""Now: the last hour's requests, the queue, the machines, today's usage, and what must hold. A script refreshes the parts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import OperationalError, transaction
from django.db.models import Count, Min, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from billing import invariants as billing_invariants
from billing.metering.models import UsageDay
from billing.metering.selectors import rating_faults_open
from controlplane.console.display import (
    NONE,
    Cell,
    Fact,
    Part,
    Table,
    age,
    badge,
    charge,
    meter_name,
    milliseconds,
    number,
    parts,
    quantity,
    table,
    text,
    usd_short,
)
from controlplane.console.site import render, site, url
from controlplane.fleet.selectors import NEEDED_HEARTBEATS, fleet
from inference import invariants as inference_invariants
from inference.coordination.models import Worker, WorkerState
from inference.database import query, query_one
from inference.requests.models import InferenceRequest, State
from inference.usage.models import UNITS, Meter, UsagePending
from inference.violations import Violation

WINDOW = timedelta(hours=1)
REFRESH_S = 3
INVARIANTS_REFRESH_S = 60
INVARIANTS_TIMEOUT_MS = 10_000
LATE_HEARTBEAT_S = 5.0
SOLD = tuple(meter for meter in Meter if meter != Meter.RECOMPUTED)  # what we compute again is our own cost
POOL_PARTS = ("held", "cached", "quarantined", "free")


@dataclass(frozen=True, slots=True)
class StateCount:
    state: Cell
    count: Cell


def dashboard(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard", "Now", every_s=REFRESH_S, invariants_every_s=INVARIANTS_REFRESH_S, **pulse())


site.home = dashboard


@site.page("pulse/", "pulse")
def dashboard_pulse(request: HttpRequest) -> HttpResponse:
    """The part of the dashboard that moves."""
    return render(request, "parts/pulse", "Now", **pulse())


@site.page("invariants/", "invariants")
def dashboard_invariants(request: HttpRequest) -> HttpResponse:
    return render(request, "parts/invariants", "Invariants", **invariants())


def pulse() -> dict[str, Any]:
    now = timezone.now()
    workers = list(Worker.objects.order_by("slot"))
    return {
        "at": f"{now:%H:%M:%S} UTC",
        "facts": [*_queue(now), *_ttft(now), *_revenue(now.astimezone(UTC))],
        "states": _states(now),
        "workers": _workers(workers, now),
        "pools": _pools(workers),
        "heartbeats": _heartbeats(),
        "tokens": _tokens(now.astimezone(UTC)),
    }


def _first_id(now: datetime) -> uuid.UUID:
    """Ids carry their time (UUID version 7): the primary key finds the last hour. A minute is left for clocks that differ."""
    return uuid.UUID(int=int((now - WINDOW - timedelta(minutes=1)).timestamp() * 1000) << 80)


def _states(now: datetime) -> list[StateCount]:
    recent = InferenceRequest.objects.filter(id__gte=_first_id(now), created_at__gte=now - WINDOW)
    counted = dict(recent.values_list("state").annotate(Count("id")).order_by())
    listing = url("requests_inferencerequest_changelist")
    return [StateCount(badge(state), number(counted.get(state, 0), f"{listing}?state__exact={state}")) for state in State.values]


def _queue(now: datetime) -> list[Fact]:
    waiting = InferenceRequest.objects.filter(state__in=(State.QUEUED, State.READY))
    found = waiting.aggregate(many=Count("id"), oldest=Min("created_at"))
    oldest = age((now - found["oldest"]).total_seconds()) if found["oldest"] else "nobody waits"
    return [Fact("In the queue", number(found["many"]), f"oldest {oldest}" if found["oldest"] else oldest)]


def _ttft(now: datetime) -> list[Fact]:
    row = query_one(
        """
        SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY (timing->>'ttft')::float8),
               percentile_cont(0.95) WITHIN GROUP (ORDER BY (timing->>'ttft')::float8)
          FROM inference_request
         WHERE id >= %s AND created_at >= %s AND state = 'done' AND jsonb_typeof(timing->'ttft') = 'number'
        """,
        [_first_id(now), now - WINDOW],
    )
    many, p50, p95 = row or (0, None, None)
    note = f"{many:,} answers, last hour"
    return [Fact("TTFT p50", milliseconds(p50), note), Fact("TTFT p95", milliseconds(p95), note)]


def _revenue(now: datetime) -> list[Fact]:
    revenue = UsageDay.objects.filter(day=now.date()).aggregate(total=Sum("amount_nano_usd"))["total"] or 0
    pending, faults = UsagePending.objects.count(), rating_faults_open().count()
    return [
        Fact("Revenue today", Cell(usd_short(revenue), "number"), "rated, UTC day"),
        Fact("Waits for rating", number(pending), f"{faults:,} with a fault"),
    ]


def _tokens(now: datetime) -> Table:
    sums = UsageDay.objects.filter(day=now.date()).values_list("meter").annotate(Sum("quantity"), Sum("amount_nano_usd")).order_by()
    found = {meter: (many, amount) for meter, many, amount in sums}
    rows = []
    for meter in SOLD:
        many, amount = found.get(meter, (0, 0))
        rows.append((text(meter_name(meter)), Cell(quantity(many, UNITS[meter]), "number"), charge(int(amount), used=many > 0)))
    return table(("meter", "quantity#", "amount#"), rows, title="Usage today")


def _workers(workers: Iterable[Worker], now: datetime) -> Table:
    titles = ("slot", "roles", "state", "running#", "lease#", "epoch#", "model", "process")
    rows = [_worker(worker, (worker.lease_until - now).total_seconds()) for worker in workers]
    return table(titles, rows, title="Workers", empty="No worker has ever registered.")


def _worker(worker: Worker, lease_s: float) -> tuple[Cell, ...]:
    load = worker.load if isinstance(worker.load, dict) else {}
    dead = worker.state == WorkerState.DEAD
    return (
        text(worker.slot),
        text(", ".join(worker.roles)),
        badge("failed", "lease ended") if lease_s < 0 and not dead else badge(worker.state),
        Cell(NONE if dead else f"{load.get('running', 0)} / {load.get('max_running', NONE)}", "number"),
        Cell(NONE if dead else f"{lease_s:+.1f} s", "number"),
        number(worker.epoch),
        text(worker.model),
        text(f"{worker.host} {worker.pid} {worker.device}"),
    )


@dataclass(frozen=True, slots=True)
class PoolBar:
    slot: str
    parts: list[Part]
    total: str


def _pools(workers: Iterable[Worker]) -> list[PoolBar]:
    """A bar per living worker, from its last pulse."""
    living = [worker for worker in workers if worker.state != WorkerState.DEAD]
    return [PoolBar(worker.slot, _bar(worker.pool), f"{_blocks(worker.pool, 'total'):,} blocks") for worker in living]


def _bar(pool: Any) -> list[Part]:
    return parts([(name, _blocks(pool, name), name) for name in POOL_PARTS], _blocks(pool, "total"))


def _blocks(pool: Any, name: str) -> int:
    value = pool.get(name, 0) if isinstance(pool, dict) else 0
    return value if isinstance(value, int) else 0


def _heartbeats() -> Table:
    ages = fleet().heartbeat_age_s
    rows = [(text(name), Cell(age(ages.get(name)), "number"), _beat(ages.get(name))) for name in _names(ages)]
    return table(("process", "last progress#", ""), rows, title="Heartbeats")


def _names(ages: Iterable[str]) -> list[str]:
    return [*NEEDED_HEARTBEATS, *sorted(set(ages) - set(NEEDED_HEARTBEATS))]


def _beat(seconds: float | None) -> Cell:
    if seconds is None:
        return badge("failed", "never")
    return badge("done", "alive") if seconds <= LATE_HEARTBEAT_S else badge("failed", "late")


def invariants() -> dict[str, Any]:
    """All of them, now. A check that would take too long is given up, and says so."""
    try:
        with transaction.atomic():
            query("SELECT set_config('statement_timeout', %s, true)", [str(INVARIANTS_TIMEOUT_MS)])
            found = [*inference_invariants.check(), *billing_invariants.check()]
    except OperationalError as error:
        return {"verdict": badge("failed", "not checked"), "note": str(error).splitlines()[0], "violations": []}
    verdict = badge("failed", f"{len(found)} violated") if found else badge("done", "all hold")
    return {
        "verdict": verdict,
        "note": f"checked at {timezone.now():%H:%M:%S} UTC",
        "violations": [_violation(one) for one in found],
    }


def _violation(violation: Violation) -> Table:
    names = list(dict.fromkeys(name for row in violation.rows for name in row))
    rows = [[Cell(str(row.get(name, "")), "code") for name in names] for row in violation.rows]
    return table(names, rows, title=f"{violation.invariant}: {violation.message}")
