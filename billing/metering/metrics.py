"""What rating tells Prometheus."""

from __future__ import annotations

from prometheus_client import Counter

RATED = Counter("brigade_usage_rated", "Finished requests whose usage was rated.")
FAULTS = Counter("brigade_rating_faults", "Requests that could not be rated, each try counted, by reason.", ["reason"])
