"""What a request costs, counted while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.engine.events import PhaseUsage


@dataclass(slots=True)
class UsageMeter:
    """`high_water`: KV positions below it have been computed (or found) before; to compute one again is `recomputed`.

    Positions of forced tokens are recomputed too, but for the last: nobody had computed its KV yet. The first `shared` entries are
    another choice's to account for.
    """

    prompt_tokens: int
    forced_tokens: int
    added_us: int
    high_water: int = 0
    shared: int = 0
    computed: int = 0
    cached: int = 0
    recomputed: int = 0
    completion: int = 0
    kv_token_us: int = 0
    started_us: int | None = None
    first_token_us: int | None = None
    last_token_us: int | None = None
    gaps_us: list[int] = field(default_factory=list)
    _kv_tokens: int = 0
    _kv_since_us: int = 0

    def found(self, tokens: int) -> None:
        """The cache held the first `tokens` entries."""
        self.cached += max(0, min(tokens, self.prompt_tokens) - self.high_water)
        self.high_water = max(self.high_water, tokens)

    def ran(self, start: int, end: int) -> None:
        """KV of positions [start, end) was computed."""
        prompt_end = min(end, self.prompt_tokens)
        again_end = min(end, max(self.high_water, self.prompt_tokens + max(0, self.forced_tokens - 1)))
        fresh = max(0, prompt_end - max(start, self.high_water))
        self.computed += fresh
        self.recomputed += max(0, again_end - start) - fresh
        self.high_water = max(self.high_water, end)

    def hold(self, kv_tokens: int, now_us: int) -> None:
        """From now on the request holds `kv_tokens` entries."""
        self.settle(now_us)
        self._kv_tokens = max(0, kv_tokens - self.shared)

    def start(self, now_us: int) -> None:
        if self.started_us is None:
            self.started_us = now_us

    def arrived(self, now_us: int) -> None:
        """KV and first token came from elsewhere: what follows is decoding."""
        self.start(now_us)
        self.first_token_us = now_us

    def emitted(self, now_us: int) -> None:
        self.completion += 1
        if self.first_token_us is None:
            self.first_token_us = now_us
        if self.last_token_us is not None:
            self.gaps_us.append(now_us - self.last_token_us)
        self.last_token_us = now_us

    def settle(self, now_us: int) -> None:
        """Counts up to now what is held."""
        self.kv_token_us += self._kv_tokens * (now_us - self._kv_since_us)
        self._kv_since_us = now_us


def phase_usage(meters: Sequence[UsageMeter], now_us: int) -> PhaseUsage:
    """Of a request's choices together."""
    for meter in meters:
        meter.settle(now_us)
    started = min((meter.started_us for meter in meters if meter.started_us is not None), default=now_us)
    first = min((meter.first_token_us for meter in meters if meter.first_token_us is not None), default=now_us)
    last = max((meter.last_token_us for meter in meters if meter.last_token_us is not None), default=first)
    return PhaseUsage(
        computed=sum(meter.computed for meter in meters),
        cached=sum(meter.cached for meter in meters),
        recomputed=sum(meter.recomputed for meter in meters),
        completion=sum(meter.completion for meter in meters),
        kv_token_us=sum(meter.kv_token_us for meter in meters),
        queue_ms=_ms(started - meters[0].added_us),
        prefill_ms=_ms(first - started),
        decode_ms=_ms(last - first),
        itl_ms=percentiles_ms([gap for meter in meters for gap in meter.gaps_us]),
    )


def percentiles_ms(values_us: Sequence[int]) -> tuple[float, float, float]:
    """p50, p95, p99 by nearest rank; zeros where there are no values."""
    if not values_us:
        return (0.0, 0.0, 0.0)
    ordered = sorted(values_us)
    p50, p95, p99 = (_ms(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]) for percent in (50, 95, 99))
    return (p50, p95, p99)


def _ms(duration_us: int) -> float:
    return round(duration_us / 1000, 3)
