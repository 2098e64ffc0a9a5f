"""What the gateway tells Prometheus. No label names a tenant, a key or a request."""

from __future__ import annotations

import time

from prometheus_client import Counter, Gauge, Histogram

from inference.telemetry.histogram import REQUEST_S

RESPONSES = Counter("brigade_http_responses", "Answers of the API, by view and status.", ["route", "status"])
ERRORS = Counter("brigade_errors", "Errors that clients were told before an answer began.", ["code", "status"])
RATE_LIMIT_REFUSALS = Counter("brigade_rate_limit_refusals", "Calls above a limit of their key, by limit.", ["limit"])
ADMISSION = Histogram(
    "brigade_admission_seconds",
    "From the call to its committed row: key, limits, tokens, money, queue.",
    ["model", "tier"],
    buckets=REQUEST_S,
)
TTFT = Histogram(
    "brigade_time_to_first_token_seconds", "From the call to its first token, here.", ["model", "tier"], buckets=REQUEST_S
)
E2E = Histogram("brigade_e2e_request_latency_seconds", "From the call to its end, here.", ["model", "tier"], buckets=REQUEST_S)
FINISHED = Counter("brigade_requests_finished", "Admitted requests, by how they ended.", ["model", "tier", "reason"])
OPEN = Gauge("brigade_open_requests", "Admitted requests, streamed or not, that have not ended here.", ["model", "tier"])
PENDING = Gauge("brigade_gateway_calls_pending", "Blocking calls that run or wait in a pool of threads.", ["pool"])

CLIENT_GONE = "client_gone"


class Watch:
    """One request of a call that began at `started` (`perf_counter`). What happens to it is told here, up to its one end.

    A request that is answered from an earlier call is never admitted, and so not counted again.
    """

    def __init__(self, started: float, model: str, tier: str) -> None:
        self._started = started
        self._sold = (model, tier)
        self._admitted = self._spoke = self._ended = False

    def admitted(self) -> None:
        self._admitted = True
        ADMISSION.labels(*self._sold).observe(self._age_s())
        OPEN.labels(*self._sold).inc()

    def token(self) -> None:
        if self._admitted and not self._spoke:
            self._spoke = True
            TTFT.labels(*self._sold).observe(self._age_s())

    def ended(self, reason: str) -> None:
        """A finish reason, or an error's code. Only the first counts, and only of what was admitted."""
        if self._admitted and not self._ended:
            self._ended = True
            E2E.labels(*self._sold).observe(self._age_s())
            FINISHED.labels(*self._sold, reason).inc()
            OPEN.labels(*self._sold).dec()

    def _age_s(self) -> float:
        return time.perf_counter() - self._started
