"""What must always be true of the money, each as one statement that returns the rows for which it is not."""

from __future__ import annotations

from typing import Any

from django.db import connection

from inference.violations import Violation

ROWS_SHOWN = 20

# (name, what is wrong with the rows, query). One statement has one snapshot, so no check sees half of a batch.
CHECKS: tuple[tuple[str, str, str], ...] = (
    (
        "usage_is_rated",
        "billable usage is neither rated nor pending",
        """
        SELECT u.id AS usage_id, u.request_id, u.meter FROM inference_usage u
        LEFT JOIN metering_line l ON l.usage_id = u.id
        LEFT JOIN inference_usage_pending p ON p.request_id = u.request_id
        WHERE u.billable AND l.id IS NULL AND p.request_id IS NULL
        """,
    ),
    (
        "lines_match_usage",
        "a rated line differs from its usage row, or the row is not billable",
        """
        SELECT l.id AS line_id, l.usage_id, l.request_id FROM metering_line l LEFT JOIN inference_usage u ON u.id = l.usage_id
        WHERE u.id IS NULL OR NOT u.billable OR (u.tenant_id, u.request_id, u.model, u.service_tier, u.meter, u.cache_tier,
            u.quantity, u.unit, u.occurred_at) IS DISTINCT FROM (l.tenant_id, l.request_id, l.model, l.service_tier, l.meter,
            l.cache_tier, l.quantity, l.unit, l.occurred_at)
        """,
    ),
    (
        "pending_is_taken",
        "a finished request waits for its rating for more than a minute, and no fault says why",
        """
        SELECT p.request_id, p.tenant_id, p.at::text FROM inference_usage_pending p
        WHERE p.at < now() - interval '60 seconds'
          AND NOT EXISTS (SELECT FROM metering_fault f WHERE f.request_id = p.request_id AND f.resolved_at IS NULL)
        """,
    ),
    (
        "lines_are_numbered",
        "a tenant's lines are not numbered 1, 2, 3, ...",
        """
        SELECT m.tenant_id, m.last_line, count(l.id) AS lines, max(l.number) AS highest FROM metering_tenant m
        LEFT JOIN metering_line l ON l.tenant_id = m.tenant_id GROUP BY m.tenant_id
        HAVING count(l.id) <> m.last_line OR coalesce(max(l.number), 0) <> m.last_line
        """,
    ),
    (
        "requests_are_sums",
        "a request's total is not the sum of its lines",
        """
        SELECT request_id, r.total_nano_usd, sums.total FROM metering_request r
        FULL JOIN (SELECT request_id, sum(amount_nano_usd) AS total FROM metering_line GROUP BY request_id) sums
        USING (request_id)
        WHERE r.request_id IS NULL OR r.total_nano_usd <> coalesce(sums.total, 0)
        """,
    ),
    (
        "days_are_sums",
        "the daily sums of a tenant differ from its lines",
        """
        SELECT tenant_id, day, meter, d.quantity, l.quantity AS of_lines, d.amount, l.amount AS amount_of_lines
        FROM (SELECT tenant_id, day, meter, sum(quantity) AS quantity, sum(amount_nano_usd) AS amount
              FROM metering_day GROUP BY 1, 2, 3) d
        FULL JOIN (SELECT tenant_id, (occurred_at AT TIME ZONE 'UTC')::date AS day, meter, sum(quantity) AS quantity,
                          sum(amount_nano_usd) AS amount FROM metering_line GROUP BY 1, 2, 3) l USING (tenant_id, day, meter)
        WHERE (d.quantity, d.amount) IS DISTINCT FROM (l.quantity, l.amount)
        """,
    ),
    (
        "lines_are_posted",
        "the lines behind a ledger transaction do not sum to what it accrued",
        """
        SELECT t.id AS transaction_id, t.tenant_id, e.accrued, l.amount AS of_lines
        FROM ledger_transaction t
        LEFT JOIN (SELECT transaction_id, sum(e.amount_nano_usd) AS accrued FROM ledger_entry e
                   JOIN ledger_account a ON a.id = e.account_id AND a.kind = 'accrued' GROUP BY 1) e ON e.transaction_id = t.id
        LEFT JOIN (SELECT ledger_transaction_id, sum(amount_nano_usd) AS amount FROM metering_line GROUP BY 1) l
               ON l.ledger_transaction_id = t.id
        WHERE t.source_key LIKE 'usage:%' AND e.accrued IS DISTINCT FROM l.amount
        """,
    ),
    (
        "transactions_balance",
        "the entries of a ledger transaction do not sum to zero",
        """
        SELECT t.id AS transaction_id, t.source_key, count(e.id) AS entries, sum(e.amount_nano_usd) AS sum
        FROM ledger_transaction t LEFT JOIN ledger_entry e ON e.transaction_id = t.id
        GROUP BY t.id HAVING coalesce(sum(e.amount_nano_usd), 0) <> 0 OR count(e.id) <> t.entry_count
        """,
    ),
    (
        "invoices_match_lines",
        "an invoice is not the sum of the rated lines that it covers",
        """
        SELECT i.id AS invoice_id, i.tenant_id, i.total_nano_usd, own.nano_usd AS of_invoice_lines, rated.nano_usd AS of_rated_lines
        FROM invoices_invoice i
        CROSS JOIN LATERAL (SELECT coalesce(sum(amount_nano_usd), 0) AS nano_usd, coalesce(sum(amount_cents), 0) AS cents
                            FROM invoices_line WHERE invoice_id = i.id) own
        CROSS JOIN LATERAL (SELECT coalesce(sum(amount_nano_usd), 0) AS nano_usd FROM metering_line l
                            WHERE l.tenant_id = i.tenant_id AND l.occurred_at >= i.period_start
                              AND l.occurred_at < i.period_end AND l.number <= i.lines_up_to) rated
        WHERE i.total_nano_usd <> own.nano_usd OR i.total_cents <> own.cents OR i.total_nano_usd <> rated.nano_usd
        """,
    ),
    (
        "holds_are_counted",
        "a hold account's counters are not the sums of its holds",
        """
        SELECT tenant_id, a.held_nano_usd, h.held, a.used_nano_usd, h.settled, r.relieved FROM holds_account a
        FULL JOIN (SELECT tenant_id, coalesce(sum(amount_nano_usd) FILTER (WHERE state = 'open'), 0) AS held,
                          sum(settled_nano_usd) AS settled FROM holds_hold GROUP BY 1) h USING (tenant_id)
        FULL JOIN (SELECT tenant_id, sum(amount_nano_usd) AS relieved FROM holds_relief GROUP BY 1) r USING (tenant_id)
        WHERE a.held_nano_usd IS DISTINCT FROM coalesce(h.held, 0)
           OR a.used_nano_usd IS DISTINCT FROM coalesce(h.settled, 0) - coalesce(r.relieved, 0)
        """,
    ),
    (
        "holds_match_ratings",
        "a rated request's hold is open, or settled at another amount",
        """
        SELECT r.request_id, h.state, h.settled_nano_usd, r.total_nano_usd FROM metering_request r
        LEFT JOIN holds_hold h ON h.request_id = r.request_id
        WHERE h.state IS DISTINCT FROM 'settled' OR h.settled_nano_usd <> r.total_nano_usd
        """,
    ),
    (
        "holds_end",
        "a request ended more than a minute ago, has no usage to rate, and its hold is open",
        """
        SELECT h.request_id, h.tenant_id, q.state FROM holds_hold h JOIN inference_request q ON q.id = h.request_id
        WHERE h.state = 'open' AND q.finished_at < now() - interval '60 seconds'
          AND NOT EXISTS (SELECT FROM inference_usage_pending p WHERE p.request_id = h.request_id)
        """,
    ),
)


def check() -> list[Violation]:
    """Reads all tenants: for the system role or the owner."""
    return [
        Violation(invariant=f"billing.{name}", message=message, rows=rows)
        for name, message, query in CHECKS
        if (rows := _rows(query))
    ]


def _rows(query: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM ({query}) violated LIMIT {ROWS_SHOWN}")
        names = [column.name for column in cursor.description or ()]
        return [{name: _plain(value) for name, value in zip(names, row, strict=True)} for row in cursor.fetchall()]


def _plain(value: Any) -> Any:
    """JSON has no UUID, no decimal and no date."""
    return value if value is None or isinstance(value, (bool, int)) else str(value)
