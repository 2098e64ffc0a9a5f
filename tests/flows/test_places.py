"""Who runs at the same time on the same servers gets a place of its own, and leaves nothing there."""

from __future__ import annotations

import redis

from infra.chaos.servers import SERVERS
from tests.flows.conftest import own_place_on_servers


def test_two_places_share_nothing_and_are_gone_afterwards() -> None:
    with own_place_on_servers() as one, own_place_on_servers() as other:
        assert {one[name] != other[name] for name in SERVERS} == {True}
        with redis.Redis.from_url(one["REDIS_URL"]) as mine, redis.Redis.from_url(other["REDIS_URL"]) as yours:
            mine.set("key", "mine")
            assert yours.get("key") is None
    with redis.Redis.from_url(one["REDIS_URL"]) as mine:
        assert mine.dbsize() == 0
