"""What a dispatcher tells Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from inference.telemetry.histogram import STEP_S

OFFERS = Counter("brigade_dispatcher_offers", "Requests offered to workers, by the state they waited in.", ["state"])
PASS = Histogram("brigade_dispatcher_pass_seconds", "One pass over the queue.", buckets=STEP_S)
LEADS = Gauge("brigade_dispatcher_leads", "1 while this process holds the dispatcher's office.")
