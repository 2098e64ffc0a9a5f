"""What must hold once all is at rest: every answer right, every token once, every cent once. A fault is a line, `kind: what`."""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import billing.invariants
import inference.invariants
from inference.contracts import stream_entry_from_json
from inference.streams import stream_key
from inference.transcript import EntryFilter
from infra.chaos.kitchen import Answer, Kitchen
from infra.chaos.orders import LABEL, Ids, Order, Right

REST_S = 90.0
CALL_AGAIN_S = 3.0

_AT_REST = """
SELECT (SELECT count(*) FROM inference_request WHERE finished_at IS NULL) AS running,
       (SELECT count(*) FROM inference_usage_pending) AS unrated,
       (SELECT count(*) FROM holds_hold WHERE state = 'open') AS holds,
       (SELECT count(*) FROM kv_handoff WHERE released_at IS NULL) AS handoffs,
       (SELECT coalesce(sum((pool->>'held')::int + (pool->>'quarantined')::int), 0)::int FROM coordination_worker
         WHERE state = 'ready') AS blocks
"""
_ROWS = f"""
SELECT r.id, r.state, r.prompt_tokens, r.completion_tokens, r.finish_reasons, r.attempt,
       (SELECT jsonb_agg(jsonb_build_array(u.meter, u.cache_tier, u.quantity, u.billable)) FROM inference_usage u
         WHERE u.request_id = r.id),
       (SELECT count(*) FROM metering_line l WHERE l.request_id = r.id),
       (SELECT coalesce(sum(l.amount_nano_usd), 0)::bigint FROM metering_line l WHERE l.request_id = r.id),
       (SELECT jsonb_agg(m.total_nano_usd) FROM metering_request m WHERE m.request_id = r.id),
       (SELECT jsonb_agg(h.settled_nano_usd) FROM holds_hold h WHERE h.request_id = r.id AND h.state = 'settled')
  FROM inference_request r WHERE r.labels->>'metadata.{LABEL}' = %s
"""
_LOG = """
SELECT choice, position, ids FROM inference_token_log WHERE request_id = %s
   AND epoch = (SELECT max(epoch) FROM inference_token_log WHERE request_id = %s) ORDER BY choice, position
"""
_MONEY = """
SELECT (SELECT coalesce(sum(total_nano_usd), 0)::bigint FROM metering_request) AS receipts,
       (SELECT coalesce(sum(amount_nano_usd), 0)::bigint FROM metering_line) AS lines,
       (SELECT coalesce(sum(e.amount_nano_usd), 0)::bigint FROM ledger_entry e JOIN ledger_account a ON a.id = e.account_id
         WHERE a.kind = 'accrued') AS ledger,
       (SELECT coalesce(sum(settled_nano_usd), 0)::bigint FROM holds_hold) AS holds
"""
_INVOICED = """
SELECT (SELECT coalesce(sum(total_nano_usd), 0)::bigint FROM invoices_invoice) AS invoices,
       (SELECT coalesce(sum(amount_nano_usd), 0)::bigint FROM metering_line) AS lines
"""


class Books:
    def __init__(self, kitchen: Kitchen, right: Callable[[Order, Ids], Right]) -> None:
        self._kitchen = kitchen
        self._right = right

    def faults(self, answers: Sequence[Answer], label: str) -> list[str]:
        rows = {row[0]: row[1:] for row in self._kitchen.database.execute(_ROWS, [label])}
        return [
            *self._number_of_rows(answers, len(rows)),
            *(fault for answer in answers if answer.stream for fault in self._of_answer(answer, rows)),
            *(f"{fault} ({request_id})" for request_id, row in rows.items() for fault in _of_row(*row)),
            *self._differences(_MONEY),
        ]

    def attempts(self, label: str) -> dict[str, int]:
        """How often each request of the label was begun, by the id that its client knows."""
        rows = self._kitchen.database.execute(_ROWS, [label])
        return {f"chatcmpl-{row[0].hex}": row[5] for row in rows}

    def violations(self) -> list[str]:
        """What `manage.py check_invariants` says, without the second that its start takes."""
        found = []
        for name, message, sql in (*inference.invariants.CHECKS, *billing.invariants.CHECKS):
            rows = self._kitchen.database.execute(sql).fetchmany(5)
            found += [f"{name}: {message}: {row}" for row in rows]
        return found

    def wait_rest(self) -> list[str]:
        return self._wait(lambda: [f"not at rest: {name} {count}" for name, count in self._one(_AT_REST).items() if count])

    def wait_invoiced(self) -> list[str]:
        """A call may be lost with the process that had it: beat repeats it each minute, this more often."""
        called_at = float("-inf")

        def look() -> list[str]:
            nonlocal called_at
            found = self._differences(_INVOICED)
            if found and time.monotonic() - called_at > CALL_AGAIN_S:
                called_at = time.monotonic()
                self._kitchen.refresh_invoices()
            return found

        return self._wait(look)

    def _wait(self, look: Callable[[], list[str]]) -> list[str]:
        deadline = time.monotonic() + REST_S
        while (found := look()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _one(self, sql: str) -> dict[str, int]:
        cursor = self._kitchen.database.execute(sql)
        row = cursor.fetchone()
        assert row is not None
        return {column.name: value for column, value in zip(cursor.description or (), row, strict=True)}

    def _differences(self, sql: str) -> list[str]:
        sums = self._one(sql)
        return [f"money: {sums}"] if len(set(sums.values())) > 1 else []

    def _number_of_rows(self, answers: Sequence[Answer], rows: int) -> Iterator[str]:
        """One request a call. A call that failed may have made one: who cannot know asks again."""
        sure, most = (
            sum(answer.stream is not None for answer in answers),
            sum((answer.stream is not None) + len(answer.errors) for answer in answers),
        )
        if not sure <= rows <= most:
            yield f"rows: {rows} requests for {sure} to {most} calls"

    def _of_answer(self, answer: Answer, rows: Mapping[uuid.UUID, Any]) -> Iterator[str]:
        """The log has all tokens. The stream may lack some where its writer died or Valkey lost them: what it has must be right."""
        stream = answer.stream
        assert stream is not None
        request_id = uuid.UUID(stream.request_id.removeprefix("chatcmpl-"))
        tokens = self._tokens_of_log(request_id)
        right = self._right(answer.order, tokens)
        in_stream = self._tokens_of_stream(request_id)
        state, prompt, completion, reasons, *_ = rows.get(request_id, ("missing", 0, 0, []))
        said = {
            "state": (state, "done"),
            "texts": (stream.texts, dict(enumerate(right.texts))),
            "reasons": (stream.reasons, dict(enumerate(right.reasons))),
            "reasons of the row": (list(reasons), list(right.reasons)),
            "prompt": (prompt, right.prompt_tokens),
            "completion": (completion, right.completion_tokens),
            "prompt told": (stream.usage.get("prompt_tokens"), right.prompt_tokens),
            "completion told": (stream.usage.get("completion_tokens"), right.completion_tokens),
            "tokens of the log": (tokens, right.ids),
            "tokens of the stream": (in_stream, _as_far(right.ids, in_stream)),
            "receipt": (self._receipt(stream.request_id), True),
        }
        for name, (found, wanted) in said.items():
            if found != wanted:
                yield f"{name}: {found!r} instead of {wanted!r} ({request_id})"

    def _tokens_of_stream(self, request_id: uuid.UUID) -> tuple[tuple[int, ...], ...]:
        """As every reader of the stream sees them, from position 1 to the first gap."""
        sieve = EntryFilter()
        entries: Any = self._kitchen.valkey.xrange(stream_key(str(request_id)))
        for _, fields in entries:
            sieve.clean(stream_entry_from_json(json.loads(fields[b"e"])))
        return sieve.transcript.ids

    def _tokens_of_log(self, request_id: uuid.UUID) -> tuple[tuple[int, ...], ...]:
        choices: defaultdict[int, list[int]] = defaultdict(list)
        for choice, position, run in self._kitchen.database.execute(_LOG, [request_id, request_id]):
            ids = choices[choice]
            assert position <= len(ids) + 1, f"{request_id}: a gap in the token log"
            ids[position - 1 :] = run
        return tuple(tuple(choices[choice]) for choice in sorted(choices))

    def _receipt(self, request_id: str) -> bool:
        """Its lines make its total, by the formula that it states, and no meter stands there twice."""
        lines = self._kitchen.receipt(request_id)
        numbers = ("quantity", "unit_price_nano_usd", "unit_quantity", "carry_in", "amount_nano_usd")
        rows = [[int(line[name]) for name in numbers] for line in lines["lines"] or ()]
        meters = {(line["meter"], line["cache_tier"]) for line in lines["lines"] or ()}
        adds_up = int(lines["total_nano_usd"] or -1) == sum(row[-1] for row in rows)
        return adds_up and len(meters) == len(rows) and all((q * p + c) // u == amount for q, p, u, c, amount in rows)


def _as_far(right: Ids, heard: Ids) -> tuple[tuple[int, ...], ...]:
    """Of each choice that was heard, what it should say so far."""
    return tuple(tuple(ids[: len(said)]) for ids, said in zip(right, heard, strict=False))


def _of_row(
    state: str,
    prompt: int,
    completion: int,
    reasons: list[str],
    attempt: int,
    usage: list[tuple[str, str, int, bool]] | None,
    lines: int,
    amount: int,
    totals: list[int] | None,
    holds: list[int] | None,
) -> Iterator[str]:
    meters = {(meter, tier): quantity for meter, tier, quantity, _ in usage or ()}
    if len(meters) != len(usage or ()):
        yield f"usage: a meter has two rows: {usage}"
    if state == "done" and meters.get(("decode", "")) != completion:
        yield f"usage: {completion} tokens, metered {meters}"
    if state == "done" and meters.get(("prefill_computed", ""), 0) + meters.get(("prefill_cached", "device"), 0) != prompt:
        yield f"usage: a prompt of {prompt} tokens, metered {meters}"
    if lines != sum(billable for *_, billable in usage or ()):
        yield f"money: {lines} lines for {usage}"
    if not totals == holds == [amount]:
        yield f"money: lines of {amount}, receipts {totals}, settled {holds}"
