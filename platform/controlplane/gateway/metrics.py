"""What the gateway tells Prometheus. No label names a tenant, a key or a request."""

from __future__ import annotations

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
