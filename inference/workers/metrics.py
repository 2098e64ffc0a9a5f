"""What a worker tells Prometheus. The engine knows nothing of it: the loop calls once a step, whatever the batch."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from inference.contracts import PoolCounters
from inference.engine.events import PhaseUsage
from inference.requests.claims import Claim
from inference.telemetry.histogram import REQUEST_S, STEP_S, BatchHistogram
from inference.workers.jobs import Job

STEP = BatchHistogram("brigade_engine_step_seconds", "One turn of the engine loop that computed something.", ["slot"], STEP_S)
GAP = BatchHistogram("brigade_inter_token_latency_seconds", "Between two tokens of a request.", ["model"], STEP_S)
GENERATED = Counter("brigade_generation_tokens", "Tokens generated.", ["model"])
PROMPT = Counter("brigade_prompt_tokens", "Prompt tokens, computed or found in a cache.", ["model", "phase"])
CACHE_HITS = Counter("brigade_prefix_cache_hit_tokens", "Prompt tokens found, by the tier of the cache.", ["model", "tier"])
RECOMPUTED = Counter("brigade_recomputed_tokens", "Tokens computed again for a reason of ours; never billed.", ["model"])
PREFILL = Histogram("brigade_request_prefill_seconds", "A prompt's computing.", ["model"], buckets=REQUEST_S)
DECODE = Histogram("brigade_request_decode_seconds", "From the first token here to the last.", ["model"], buckets=REQUEST_S)
QUEUE = Histogram(
    "brigade_request_queue_seconds",
    "prefill: from the request's creation to its claim; decode: from the prompt's hand-off to the claim.",
    ["model", "tier", "phase"],
    buckets=REQUEST_S,
)
CLAIMS = Counter("brigade_claims", "Offers that reached the worker, by what came of them.", ["outcome"])
TAKEOVERS = Counter("brigade_takeovers", "Requests that went on here after their worker was lost.")
RUNNING = Gauge("brigade_requests_running", "Requests that a worker owns.", ["slot"])
HANDOFFS = Gauge("brigade_handoffs_held", "Prompts whose pages wait here for a decode worker.", ["slot"])
BLOCKS = Gauge("brigade_kv_blocks", "Blocks of the KV pool.", ["slot", "state"])
TRANSFER = Histogram("brigade_kv_transfer_seconds", "Copy of a hand-off's pages.", buckets=STEP_S)
TRANSFER_BYTES = Counter("brigade_kv_transfer_bytes", "Bytes copied between pools.")
FALLBACKS = Counter("brigade_kv_transfer_fallbacks", "Hand-offs that were computed again, by reason.", ["reason"])
ENTRIES_DROPPED = Counter("brigade_stream_entries_dropped", "Entries that Valkey did not take; readers use the token log.")
JOURNAL_RETRIES = Counter("brigade_journal_retries", "Writes to PostgreSQL that were tried again.")


class WorkerMetrics:
    """One worker's cells, found once: a step costs three calls and one look at each job."""

    def __init__(self, slot: str, model: str) -> None:
        self._slot, self._model = slot, model
        self._step, self._gap = STEP.labels(slot), GAP.labels(model)
        self._generated = GENERATED.labels(model)
        self._prefill, self._decode = PREFILL.labels(model), DECODE.labels(model)
        self._computed, self._cached = PROMPT.labels(model, "computed"), PROMPT.labels(model, "cached")
        self._hits = CACHE_HITS.labels(model, "device")
        self._recomputed = RECOMPUTED.labels(model)

    def stepped(self, began: float, spoke: Sequence[Job]) -> None:
        """A step that began at `began` (monotonic) ended; `spoke` has a job for each token. Most share their last token's time."""
        now = time.monotonic()
        self._step.observe(now - began)
        if not spoke:
            return
        self._generated.inc(len(spoke))
        for spoke_at, tokens in Tally([job.spoke_at for job in spoke]).items():
            if spoke_at is not None:
                self._gap.observe(now - spoke_at, tokens)
        for job in spoke:
            job.spoke_at = now

    def claimed(self, claim: Claim) -> None:
        CLAIMS.labels("taken").inc()
        if claim.handoff:
            QUEUE.labels(self._model, claim.policy.tier, "decode").observe(claim.handoff.waited_us / 1e6)
        elif claim.attempt == 1:
            QUEUE.labels(self._model, claim.policy.tier, "prefill").observe(claim.elapsed_ms / 1e3)
        else:
            TAKEOVERS.inc()

    def left(self, usage: PhaseUsage) -> None:
        """A request leaves the engine: prefilled, finished, failed or aborted."""
        self._computed.inc(usage.computed)
        self._cached.inc(usage.cached)
        self._hits.inc(usage.cached)
        self._recomputed.inc(usage.recomputed)
        if usage.computed:
            self._prefill.observe(usage.prefill_ms / 1e3)
        if usage.decode_ms:
            self._decode.observe(usage.decode_ms / 1e3)

    def looked(self, pool: PoolCounters, *, running: int, held: int) -> None:
        for state in ("free", "cached", "held", "quarantined"):
            BLOCKS.labels(self._slot, state).set(getattr(pool, state))
        RUNNING.labels(self._slot).set(running)
        HANDOFFS.labels(self._slot).set(held)
