"""Rate limits of a key: requests per minute, tokens per minute, requests at once. One script decides all three, or takes nothing.

The windows lie in Valkey and may be lost; money is guarded by the holds in PostgreSQL. Time is Valkey's own.
A token bucket per minute limit: full at the start, refilled evenly. Tokens are taken as prompt + choices x max_tokens, and what was
not generated is given back at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from controlplane.errors import Overloaded, RateLimitExceeded, RequestAboveRateLimit
from controlplane.gateway.limits import LIMITER_CONNECTIONS, RATE_WINDOW_S, RELEASE_PATIENCE_S, RELEASE_RETRY_S
from controlplane.gateway.metrics import RATE_LIMIT_REFUSALS
from controlplane.keys.verification import KeyRecord

Verdict = Literal["ok", "requests", "tokens", "concurrent", "size", "count"]

_LEVEL = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local window = tonumber(ARGV[1])
local function level(key, limit)
  local stored = redis.call('HMGET', key, 'level', 'at')
  if not stored[1] then return limit end
  return math.min(limit, stored[1] + math.max(0, now - stored[2]) * limit / window)
end
local function store(key, value)
  redis.call('HSET', key, 'level', string.format('%.6f', value), 'at', string.format('%.3f', now))
  redis.call('PEXPIRE', key, math.ceil(window * 2))
end
"""

# KEYS requests, tokens, running. ARGV window ms, limits of the three, tokens wanted, lease ms, request ids (none: only looks)
TAKE = (
    _LEVEL
    + """
local most_requests, most_tokens, most_running = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local wanted, lease, count = tonumber(ARGV[5]), tonumber(ARGV[6]), #ARGV - 6
local requests, tokens = level(KEYS[1], most_requests), level(KEYS[2], most_tokens)
local verdict, wait = 'ok', 0
if count > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  if wanted > most_tokens then verdict = 'size'
  elseif count > most_requests or count > most_running then verdict = 'count'
  elseif requests < count then verdict = 'requests'; wait = (count - requests) * window / most_requests
  elseif tokens < wanted then verdict = 'tokens'; wait = (wanted - tokens) * window / most_tokens
  elseif redis.call('ZCARD', KEYS[3]) + count > most_running then verdict = 'concurrent'; wait = 1000
  else
    requests, tokens = requests - count, tokens - wanted
    store(KEYS[1], requests)
    store(KEYS[2], tokens)
    for i = 7, #ARGV do redis.call('ZADD', KEYS[3], now + lease, ARGV[i]) end
    redis.call('PEXPIRE', KEYS[3], lease)
  end
end
return {verdict, string.format('%.6f', requests), string.format('%.6f', tokens), string.format('%.3f', wait)}
"""
)

# KEYS tokens, running. ARGV window ms, limit of tokens, request id, tokens to give back. A second release changes nothing.
RELEASE = (
    _LEVEL
    + """
if redis.call('ZREM', KEYS[2], ARGV[3]) == 1 then
  store(KEYS[1], math.min(tonumber(ARGV[2]), level(KEYS[1], tonumber(ARGV[2])) + tonumber(ARGV[4])))
end
return 0
"""
)

# KEYS running. ARGV lease ms, request ids. What was given back meanwhile stays so.
RENEW = """
local time = redis.call('TIME')
local till = time[1] * 1000 + time[2] / 1000 + tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', till, ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 0
"""


@dataclass(frozen=True, slots=True)
class Window:
    """One limit as the client may see it."""

    limit: int
    level: float

    @property
    def remaining(self) -> int:
        return max(0, int(self.level + 1e-6))

    @property
    def reset(self) -> str:
        return duration((self.limit - self.level) / self.limit * RATE_WINDOW_S)


@dataclass(frozen=True, slots=True)
class RateState:
    verdict: Verdict
    requests: Window
    tokens: Window
    wait_s: float

    def headers(self) -> dict[str, str]:
        return {
            "x-ratelimit-limit-requests": str(self.requests.limit),
            "x-ratelimit-limit-tokens": str(self.tokens.limit),
            "x-ratelimit-remaining-requests": str(self.requests.remaining),
            "x-ratelimit-remaining-tokens": str(self.tokens.remaining),
            "x-ratelimit-reset-requests": self.requests.reset,
            "x-ratelimit-reset-tokens": self.tokens.reset,
        }

    def check(self) -> None:
        """Raises what the client must see."""
        if self.verdict != "ok":
            RATE_LIMIT_REFUSALS.labels(self.verdict).inc()
        if self.verdict == "size":
            raise RequestAboveRateLimit(
                f"The request is larger than your limit of {self.tokens.limit} tokens per minute.", param="max_tokens"
            )
        if self.verdict == "count":
            raise RequestAboveRateLimit("These are more prompts than your key may have per minute or at once.", param="prompt")
        if self.verdict != "ok":
            raise RateLimitExceeded(_MESSAGES[self.verdict].format(self=self), retry_after_s=self.wait_s)


_MESSAGES = {
    "requests": "Rate limit reached: {self.requests.limit} requests per minute.",
    "tokens": "Rate limit reached: {self.tokens.limit} tokens per minute.",
    "concurrent": "Rate limit reached: too many requests of this key are running at once.",
}


def duration(seconds: float) -> str:
    """As the API writes it: 120ms, 1.5s, 6m0s."""
    milliseconds = max(0, round(seconds * 1_000))
    if milliseconds < 1_000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1_000:g}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


def limiter_connections(redis_url: str) -> Redis:
    """A few connections that a burst waits for: the client's ordinary pool refuses the 101st command at once."""
    pool = BlockingConnectionPool.from_url(
        redis_url, max_connections=LIMITER_CONNECTIONS, timeout=5, socket_timeout=5, socket_connect_timeout=5
    )
    return Redis.from_pool(pool)


class Limiter:
    """A place among a key's requests at once is held by a lease, which this process renews until it gives the place back."""

    def __init__(self, redis: Redis, *, lease_s: float) -> None:
        self._take = redis.register_script(TAKE)
        self._release = redis.register_script(RELEASE)
        self._renew = redis.register_script(RENEW)
        self._lease_ms = int(lease_s * 1_000)
        self._places: dict[str, set[str]] = {}  # request ids by the name of their key's set

    async def take(self, key: KeyRecord, *, request_ids: Sequence[uuid.UUID], tokens: int) -> RateState:
        """Counts all of the requests, which take so many tokens together, or nothing where the verdict is not ok."""
        ids = [str(request_id) for request_id in request_ids]
        state = await self._ask(key, ids, tokens)
        if state.verdict == "ok":
            self._places.setdefault(_names(key.key_id)[2], set()).update(ids)
        return state

    async def renew_always(self) -> None:
        """Where Valkey is away nothing is renewed: places may be lost, as all that lies there."""
        while True:
            await asyncio.sleep(self._lease_ms / 3_000)
            with contextlib.suppress(RedisError, OSError):
                await self.renew()

    async def renew(self) -> None:
        for name, ids in list(self._places.items()):
            await self._renew(keys=[name], args=[self._lease_ms, *ids])

    async def look(self, key: KeyRecord) -> RateState:
        return await self._ask(key, [], 0)

    async def release(self, key: KeyRecord, *, request_id: uuid.UUID, unused_tokens: int) -> None:
        """May be called twice. Tried again while Valkey is away: the place ends with its lease, but the tokens would be lost."""
        names = _names(key.key_id)
        self._forget(names[2], str(request_id))
        arguments: list[int | str] = [int(RATE_WINDOW_S * 1_000), key.tokens_per_minute, str(request_id), max(0, unused_tokens)]
        until = time.monotonic() + RELEASE_PATIENCE_S
        while True:
            try:
                await self._release(keys=names[1:], args=arguments)
                return
            except (RedisError, OSError):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(RELEASE_RETRY_S)

    def _forget(self, name: str, request_id: str) -> None:
        ids = self._places.get(name, set())
        ids.discard(request_id)
        if not ids:
            self._places.pop(name, None)

    async def _ask(self, key: KeyRecord, request_ids: list[str], tokens: int) -> RateState:
        limits = [key.requests_per_minute, key.tokens_per_minute, key.concurrent_requests]
        arguments: list[int | str] = [int(RATE_WINDOW_S * 1_000), *limits, tokens, self._lease_ms, *request_ids]
        try:
            verdict, requests, left, wait_ms = await self._take(keys=_names(key.key_id), args=arguments)
        except (RedisError, OSError) as error:
            raise Overloaded("The server is busy. Try again in a moment.", detail=f"rate limiter: {error}") from error
        return RateState(
            verdict=verdict.decode(),
            requests=Window(key.requests_per_minute, float(requests)),
            tokens=Window(key.tokens_per_minute, float(left)),
            wait_s=float(wait_ms) / 1_000,
        )


def _names(key_id: uuid.UUID) -> list[str]:
    """In one hash slot, where Valkey is a cluster."""
    return [f"rate:{{{key_id}}}:{part}" for part in ("requests", "tokens", "running")]
