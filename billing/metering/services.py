"""Usage becomes rated lines, ledger postings and settled holds: per batch in one transaction, so exactly once.

Lock order: pending rows (skipping locked ones), tenants by id, then rows that only the holder of a tenant's lock writes, the
ledger's source keys, and the hold accounts last, because hold placement waits for them.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db import DataError, IntegrityError, transaction

from billing.database import insert_rows
from billing.errors import BillingError
from billing.holds.services import Settlement, holds_settle
from billing.ledger.models import AccountKind
from billing.ledger.selectors import USAGE_PREFIX
from billing.ledger.services import Draft, Posting, ledger_post_all
from billing.metering.metrics import FAULTS, RATED
from billing.metering.models import FaultReason, RatingFault, Remainder, TenantMeter
from billing.metering.rating import Fault, Line, PricedRow, Usage, price_request, rate
from billing.pricing.selectors import price_history
from inference import failpoints
from inference.coordination.heartbeat import beat
from inference.database import execute, query

logger = logging.getLogger(__name__)

POISON = (BillingError, DataError, IntegrityError)
QUARTER_S = 900  # every time zone's midnight lies on a quarter of an hour
RETRY_FIRST_S, RETRY_MOST_S = 60, 3600

_TAKE = """
SELECT p.request_id, p.tenant_id FROM inference_usage_pending p
WHERE (%s OR p.request_id = ANY(%s)) AND NOT EXISTS (
    SELECT FROM metering_fault f WHERE f.request_id = p.request_id AND f.resolved_at IS NULL AND f.retry_at > now()
)
ORDER BY p.at, p.request_id LIMIT %s FOR UPDATE OF p SKIP LOCKED
"""

_UNRATED = f"""
SELECT {", ".join(f"u.{name}" for name in Usage._fields)} FROM inference_usage u
LEFT JOIN metering_line l ON l.usage_id = u.id
WHERE u.request_id = ANY(%s) AND u.billable AND l.id IS NULL
"""

LINE_COLUMNS = {
    "tenant_id": "uuid",
    "number": "bigint",
    "usage_id": "bigint",
    "request_id": "uuid",
    "project_id": "uuid",
    "key_id": "uuid",
    "model": "text",
    "service_tier": "text",
    "meter": "text",
    "cache_tier": "text",
    "quantity": "bigint",
    "unit": "text",
    "price_id": "bigint",
    "price_book": "integer",
    "unit_price_nano_usd": "bigint",
    "unit_quantity": "bigint",
    "carry_in": "bigint",
    "amount_nano_usd": "bigint",
    "occurred_at": "timestamptz",
    "ledger_transaction_id": "bigint",
}


@dataclass(slots=True)
class Batch:
    tenants: dict[uuid.UUID, uuid.UUID]  # tenant by request id, of all that can be rated
    rows: dict[uuid.UUID, list[PricedRow]] = field(default_factory=dict)  # by tenant
    faults: list[Fault] = field(default_factory=list)


def ingest_usage(*, limit: int = 500) -> int:
    """Rates up to `limit` finished requests and returns how many. Any number of ingesters may run; each request is rated once.

    A request that cannot be rated stays pending with a RatingFault, and is tried again later.
    """
    try:
        rated = _ingest(limit)
    except POISON as error:
        logger.warning("a batch was refused, its requests go one by one: %s", error)
        rated = _ingest_one_by_one(limit)
    if rated:
        failpoints.reach("ingest.committed")
    RATED.inc(rated)
    beat("ingest", rated=rated)
    return rated


def rating_faults_retry() -> int:
    """After prices were added: the next ingest tries all open faults again. Returns how many."""
    return RatingFault.objects.filter(resolved_at__isnull=True).update(retry_at=_epoch())


@transaction.atomic
def _ingest(limit: int, only: Collection[uuid.UUID] | None = None) -> int:
    batch = _price(_take(limit, only))
    _write(batch, _rate(batch))
    if batch.tenants:
        failpoints.reach("ingest.commit")
    return len(batch.tenants)


def _ingest_one_by_one(limit: int) -> int:
    """So that one request that the database refuses stops no other."""
    waiting = query("SELECT request_id, tenant_id FROM inference_usage_pending ORDER BY at, request_id LIMIT %s", [limit])
    return sum(_ingest_alone(request_id, tenant_id) for request_id, tenant_id in waiting)


def _ingest_alone(request_id: uuid.UUID, tenant_id: uuid.UUID) -> int:
    try:
        return _ingest(1, only=[request_id])
    except POISON as error:
        fault = Fault(request_id, tenant_id, FaultReason.REFUSED, f"{type(error).__name__}: {error}"[:400])
        _faults_write(Batch(tenants={}, faults=[fault]))
        return 0


def _take(limit: int, only: Collection[uuid.UUID] | None) -> dict[uuid.UUID, uuid.UUID]:
    return dict(query(_TAKE, [only is None, list(only or ()), limit]))


def _price(taken: dict[uuid.UUID, uuid.UUID]) -> Batch:
    """Splits what was taken into requests of which every row has a price, and faults."""
    batch = Batch(tenants=taken)
    by_request: dict[uuid.UUID, list[Usage]] = {}
    for row in _unrated(taken):
        by_request.setdefault(row.request_id, []).append(row)
    history = price_history({row.model for rows in by_request.values() for row in rows})
    for request_id, rows in by_request.items():
        priced = price_request(taken[request_id], rows, history)
        if isinstance(priced, Fault):
            batch.faults.append(priced)
            del batch.tenants[request_id]
        else:
            batch.rows.setdefault(taken[request_id], []).extend(priced)
    return batch


def _unrated(taken: Mapping[uuid.UUID, uuid.UUID]) -> list[Usage]:
    return [Usage(*row) for row in query(_UNRATED, [list(taken)])]


def _rate(batch: Batch) -> list[Line]:
    tenants = sorted(batch.rows)
    last_lines = _tenants_lock(tenants)
    remainders = {
        (tenant_id, price_id): remainder
        for tenant_id, price_id, remainder in Remainder.objects.filter(tenant_id__in=tenants).values_list(
            "tenant_id", "price_id", "remainder"
        )
    }
    lines = [line for tenant in tenants for line in rate(batch.rows[tenant], last_lines[tenant], remainders)]
    _remainders_write({key: remainders[key] for key in sorted({(line.tenant_id, line.price_id) for line in lines})})
    return lines


def _tenants_lock(tenants: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Last line number by tenant. Held until the commit."""
    execute(
        "INSERT INTO metering_tenant (tenant_id, last_line) SELECT tenant, 0 FROM unnest(%s::uuid[]) AS t (tenant) "
        "ORDER BY tenant ON CONFLICT DO NOTHING",
        [list(tenants)],
    )
    rows = TenantMeter.objects.select_for_update().filter(tenant_id__in=tenants).order_by("tenant_id")
    return dict(rows.values_list("tenant_id", "last_line"))


def _write(batch: Batch, lines: Sequence[Line]) -> None:
    posted = _ledger_write(lines)
    insert_rows("metering_line", LINE_COLUMNS, [(*line, posted.get(line.tenant_id)) for line in lines])
    _tenants_write(lines)
    _days_write(lines)
    totals = _requests_write(batch.tenants, lines)
    _faults_write(batch)
    _pending_delete(batch.tenants)
    holds_settle(settlements={request_id: Settlement(batch.tenants[request_id], total) for request_id, total in totals.items()})


def _ledger_write(lines: Iterable[Line]) -> dict[uuid.UUID, int]:
    """One transaction per tenant, in which the entries of a quarter of an hour stand together. Ids by tenant."""
    batch_key = uuid.uuid4()
    by_tenant: dict[uuid.UUID, list[Line]] = {}
    for line in lines:
        by_tenant.setdefault(line.tenant_id, []).append(line)
    drafts = [
        Draft(f"{USAGE_PREFIX}{batch_key}:{tenant_id}", tenant_id, entries, f"Usage, lines {owned[0].number} to {owned[-1].number}")
        for tenant_id, owned in by_tenant.items()
        if (entries := _entries(owned))
    ]
    posted = ledger_post_all(drafts)
    return {draft.tenant_id: posted[draft.source_key] for draft in drafts}


def _entries(lines: Iterable[Line]) -> list[Posting]:
    sums: Counter[datetime] = Counter()
    for line in lines:
        sums[_quarter(line.occurred_at)] += line.amount_nano_usd
    return [
        Posting(kind, sign * amount, at)
        for at, amount in sorted(sums.items())
        if amount
        for kind, sign in ((AccountKind.ACCRUED, 1), (AccountKind.REVENUE, -1))
    ]


def _quarter(moment: datetime) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // QUARTER_S * QUARTER_S, UTC)


def _tenants_write(lines: Iterable[Line]) -> None:
    last = {line.tenant_id: line.number for line in lines}
    execute(
        "UPDATE metering_tenant AS m SET last_line = t.last FROM unnest(%s::uuid[], %s::bigint[]) AS t (tenant_id, last) "
        "WHERE m.tenant_id = t.tenant_id",
        [list(last), list(last.values())],
    )


def _remainders_write(remainders: Mapping[tuple[uuid.UUID, int], int]) -> None:
    execute(
        "INSERT INTO metering_remainder (tenant_id, price_id, remainder) "
        "SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[]) "
        "ON CONFLICT (tenant_id, price_id) DO UPDATE SET remainder = EXCLUDED.remainder",
        [[tenant for tenant, _ in remainders], [price for _, price in remainders], list(remainders.values())],
    )


def _days_write(lines: Iterable[Line]) -> None:
    quantities: Counter[tuple[object, ...]] = Counter()
    amounts: Counter[tuple[object, ...]] = Counter()
    for line in lines:
        day = line.occurred_at.astimezone(UTC).date()
        key = (line.tenant_id, day, line.project_id, line.model, line.service_tier, line.meter, line.unit)
        quantities[key] += line.quantity
        amounts[key] += line.amount_nano_usd
    keys = sorted(quantities, key=lambda key: tuple(map(str, key)))
    columns = [list(column) for column in zip(*keys, strict=True)] or [[] for _ in range(7)]
    execute(
        "INSERT INTO metering_day AS d "
        "(tenant_id, day, project_id, model, service_tier, meter, unit, quantity, amount_nano_usd) SELECT * FROM unnest("
        "%s::uuid[], %s::date[], %s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[], %s::numeric[], %s::bigint[]) "
        "ON CONFLICT (tenant_id, day, project_id, model, service_tier, meter, unit) DO UPDATE "
        "SET quantity = d.quantity + EXCLUDED.quantity, amount_nano_usd = d.amount_nano_usd + EXCLUDED.amount_nano_usd",
        [*columns, [quantities[key] for key in keys], [amounts[key] for key in keys]],
    )


def _requests_write(tenants: Mapping[uuid.UUID, uuid.UUID], lines: Iterable[Line]) -> dict[uuid.UUID, int]:
    """The totals so far: a request whose rows came in two batches has both in it."""
    added: Counter[uuid.UUID] = Counter(dict.fromkeys(sorted(tenants), 0))
    for line in lines:
        added[line.request_id] += line.amount_nano_usd
    rows = query(
        "INSERT INTO metering_request AS r (request_id, tenant_id, total_nano_usd) "
        "SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[]) "
        "ON CONFLICT (request_id) DO UPDATE SET total_nano_usd = r.total_nano_usd + EXCLUDED.total_nano_usd "
        "RETURNING request_id, total_nano_usd",
        [list(added), [tenants[request_id] for request_id in added], list(added.values())],
    )
    return dict(rows)


def _faults_write(batch: Batch) -> None:
    faults = sorted(batch.faults, key=lambda fault: fault.request_id)
    for fault in faults:
        FAULTS.labels(fault.reason).inc()
    execute(
        "INSERT INTO metering_fault AS f (request_id, tenant_id, reason, detail, tries, retry_at) "
        "SELECT request_id, tenant_id, reason, detail, 1, now() + make_interval(secs => %s) "
        "FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::text[]) AS t (request_id, tenant_id, reason, detail) "
        "ON CONFLICT (request_id) DO UPDATE SET reason = EXCLUDED.reason, detail = EXCLUDED.detail, tries = f.tries + 1, "
        "resolved_at = NULL, retry_at = now() + make_interval(secs => least(%s * 2 ^ least(f.tries, 20), %s))",
        [
            RETRY_FIRST_S,
            [fault.request_id for fault in faults],
            [fault.tenant_id for fault in faults],
            [fault.reason.value for fault in faults],
            [fault.detail for fault in faults],
            RETRY_FIRST_S,
            RETRY_MOST_S,
        ],
    )
    execute("UPDATE metering_fault SET resolved_at = now() WHERE request_id = ANY(%s)", [list(batch.tenants)])


def _pending_delete(requests: Iterable[uuid.UUID]) -> None:
    execute("DELETE FROM inference_usage_pending WHERE request_id = ANY(%s)", [list(requests)])


def _epoch() -> datetime:
    return datetime.fromtimestamp(0, UTC)
