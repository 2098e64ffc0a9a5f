"""Writes the usage rows of a request that ends. Runs inside the transaction of its last transition."""

from __future__ import annotations

import uuid

from inference import failpoints
from inference.contracts import RequestOutcome
from inference.database import USAGE_CHANNEL, execute, notify
from inference.usage.models import UNITS, Meter

# meter, cache tier, billable, field of the outcome
_ROWS: tuple[tuple[Meter, str, bool, str], ...] = (
    (Meter.PREFILL_COMPUTED, "", True, "computed"),
    (Meter.PREFILL_CACHED, "device", True, "cached"),
    (Meter.DECODE, "", True, "completion"),
    (Meter.KV_TOKEN_SECONDS, "device", True, "kv_token_us"),
    (Meter.RECOMPUTED, "", False, "recomputed"),
)


def usage_write(*, request_id: uuid.UUID, outcome: RequestOutcome) -> None:
    """One row a meter that counted something, and one pending row for billing, even where nothing was used: it frees the hold.

    What failed or expired is metered but not billed: the customer asked for an answer and got none from us.
    """
    rows = [(meter, tier, getattr(outcome, name), UNITS[meter], billable) for meter, tier, billable, name in _ROWS]
    rows = [row for row in rows if row[2]]
    meters, tiers, quantities, units, billables = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 5
    failpoints.reach("usage.write")
    execute(
        """
        WITH request AS (SELECT * FROM inference_request WHERE id = %s), used AS (
            INSERT INTO inference_usage (request_id, attempt, meter, cache_tier, sequence, tenant_id, project_id, key_id, model,
                                         service_tier, quantity, unit, billable, occurred_at)
            SELECT r.id, r.attempt, u.meter, u.tier, 0, r.tenant_id, r.project_id, r.key_id, r.model,
                   r.service_tier, u.quantity, u.unit, u.billable AND r.state IN ('done', 'cancelled'), clock_timestamp()
              FROM request r, unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bool[])
                   AS u(meter, tier, quantity, unit, billable)
        )
        INSERT INTO inference_usage_pending (request_id, tenant_id, at) SELECT id, tenant_id, clock_timestamp() FROM request
        """,
        [request_id, meters, tiers, quantities, units, billables],
    )
    notify(USAGE_CHANNEL)
    failpoints.reach("usage.written")
