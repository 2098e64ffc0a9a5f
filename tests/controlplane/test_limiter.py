from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2 as httpx
import pytest
import pytest_asyncio

from controlplane.admission.limiter import Limiter, duration, limiter_connections
from controlplane.errors import RateLimitExceeded, RequestAboveRateLimit
from controlplane.keys.models import ApiKey
from controlplane.keys.verification import KeyRecord
from tests.controlplane.conftest import ScriptedWorker, Stage, chat


@pytest.fixture
def key() -> KeyRecord:
    unique = uuid.uuid4()
    return KeyRecord(unique, unique, unique, b"", None, None, None, 10, 1_000, 5, "active", 1)


@pytest_asyncio.fixture
async def limiter(redis_url: str) -> AsyncIterator[Limiter]:
    redis = limiter_connections(redis_url)
    yield Limiter(redis, lease_s=60)
    await redis.aclose()


async def test_parallel_requests_never_pass_a_limit_together(limiter: Limiter, key: KeyRecord, redis_url: str) -> None:
    """Two limiters stand for two gateways."""
    redis = limiter_connections(redis_url)
    other = Limiter(redis, lease_s=60)
    takes = [one.take(key, request_ids=[uuid.uuid4()], tokens=1) for one in (limiter, other) for _ in range(50)]
    verdicts = [state.verdict for state in await asyncio.gather(*takes)]
    assert verdicts.count("ok") == 5  # the limit on requests at once
    await redis.aclose()


async def test_a_burst_waits_for_a_connection_and_is_not_refused(limiter: Limiter, key: KeyRecord) -> None:
    states = await asyncio.gather(*(limiter.look(key) for _ in range(300)))
    assert {state.verdict for state in states} == {"ok"}


async def test_tokens_are_taken_ahead_and_what_was_not_used_comes_back_once(limiter: Limiter, key: KeyRecord) -> None:
    request_id = uuid.uuid4()
    state = await limiter.take(key, request_ids=[request_id], tokens=900)
    assert state.tokens.remaining == 100
    assert (await limiter.take(key, request_ids=[uuid.uuid4()], tokens=500)).verdict == "tokens"
    for _ in range(2):
        await limiter.release(key, request_id=request_id, unused_tokens=400)
    assert 500 <= (await limiter.look(key)).tokens.remaining < 560


async def test_a_refusal_takes_nothing_from_any_limit(limiter: Limiter, key: KeyRecord) -> None:
    refused = await limiter.take(key, request_ids=[uuid.uuid4()], tokens=1_001)
    assert refused.verdict == "size"
    with pytest.raises(RequestAboveRateLimit):
        refused.check()
    state = await limiter.look(key)
    assert (state.requests.remaining, state.tokens.remaining) == (10, 1_000)
    assert (await limiter.take(replace(key, concurrent_requests=1), request_ids=[uuid.uuid4()], tokens=1)).verdict == "ok"


async def test_a_running_request_whose_gateway_died_frees_its_place_in_time(key: KeyRecord, redis_url: str) -> None:
    redis = limiter_connections(redis_url)
    dead, other = Limiter(redis, lease_s=1.0), Limiter(redis, lease_s=60)
    one = replace(key, concurrent_requests=1)
    assert (await dead.take(one, request_ids=[uuid.uuid4()], tokens=1)).verdict == "ok"
    assert (await other.take(one, request_ids=[uuid.uuid4()], tokens=1)).verdict == "concurrent"
    await asyncio.sleep(1.1)
    assert (await other.take(one, request_ids=[uuid.uuid4()], tokens=1)).verdict == "ok"
    await redis.aclose()


async def test_a_place_is_kept_for_as_long_as_the_request_runs_and_not_longer(key: KeyRecord, redis_url: str) -> None:
    redis = limiter_connections(redis_url)
    limiter = Limiter(redis, lease_s=1.5)
    one, request_id = replace(key, concurrent_requests=1), uuid.uuid4()
    assert (await limiter.take(one, request_ids=[request_id], tokens=1)).verdict == "ok"
    renewing = asyncio.create_task(limiter.renew_always())
    await asyncio.sleep(2.5)
    assert (await limiter.take(one, request_ids=[uuid.uuid4()], tokens=1)).verdict == "concurrent"
    await limiter.release(one, request_id=request_id, unused_tokens=0)
    await limiter.renew()
    assert (await limiter.take(one, request_ids=[uuid.uuid4()], tokens=1)).verdict == "ok"
    renewing.cancel()
    await redis.aclose()


async def test_a_refusal_says_when_it_will_fit(limiter: Limiter, key: KeyRecord) -> None:
    one = replace(key, requests_per_minute=1)
    await limiter.take(one, request_ids=[uuid.uuid4()], tokens=1)
    state = await limiter.take(one, request_ids=[uuid.uuid4()], tokens=1)
    with pytest.raises(RateLimitExceeded) as caught:
        state.check()
    assert caught.value.retry_after_s == pytest.approx(60, abs=1)


async def test_giving_back_never_raises_a_limit(limiter: Limiter, key: KeyRecord) -> None:
    request_id = uuid.uuid4()
    await limiter.take(key, request_ids=[request_id], tokens=10)
    await limiter.release(key, request_id=request_id, unused_tokens=10**9)
    assert (await limiter.look(key)).tokens.remaining == 1_000


async def test_giving_back_a_negative_amount_takes_nothing(limiter: Limiter, key: KeyRecord) -> None:
    request_id = uuid.uuid4()
    await limiter.take(key, request_ids=[request_id], tokens=10)
    await limiter.release(key, request_id=request_id, unused_tokens=-500)
    assert (await limiter.look(key)).tokens.remaining >= 990


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0104, "10ms"),
        (1.5, "1.5s"),
        (20, "20s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (59.9999, "1m0s"),
        (119.9, "2m0s"),
        (12.3456, "12.346s"),
    ],
)
def test_durations_are_written_as_the_api_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_over_http_a_refused_request_is_429_with_its_headers(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    ApiKey.objects.filter(id=stage.acme.key.id).update(requests_per_minute=1)
    headers = {"Authorization": f"Bearer {stage.acme.secret}"}
    post = {"url": f"{gateway}/v1/chat/completions", "json": {"model": "tiny", "messages": chat()}, "headers": headers}
    assert httpx.post(**post).status_code == 200  # type: ignore[arg-type]
    answer = httpx.post(**post)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert 50 <= int(answer.headers["retry-after"]) <= 60
    other = httpx.get(f"{gateway}/v1/models", headers={"Authorization": f"Bearer {stage.rival.secret}"})
    assert other.headers["x-ratelimit-remaining-requests"] == "6000"
