"""A slot belongs to one process; a lease ends by the database's clock or by a supervisor's word."""

from __future__ import annotations

import os

import pytest

from inference.contracts import PoolCounters
from inference.coordination.leases import lease_drop, lease_take
from inference.coordination.models import Worker
from inference.coordination.registry import SlotTaken, worker_died, worker_expire, worker_renew
from inference.database import execute
from tests.inference.conftest import register

pytestmark = pytest.mark.django_db

POOL = PoolCounters(free=1, cached=0, held=0, quarantined=0, total=1)


def end_lease(slot: str) -> None:
    execute("UPDATE coordination_worker SET lease_until = clock_timestamp() - interval '1 second' WHERE slot = %s", [slot])


def test_a_live_slot_is_refused_to_a_second_process() -> None:
    assert register("prefill-0", "prefill") == 1
    with pytest.raises(SlotTaken):
        register("prefill-0", "prefill")


def test_a_dead_slot_is_taken_with_the_next_epoch_and_its_own_arena() -> None:
    register("prefill-0", "prefill")
    end_lease("prefill-0")
    assert worker_expire() == ["prefill-0"]
    assert register("prefill-0", "prefill") == 2
    assert Worker.objects.get(slot="prefill-0").arena == "prefill-0-2.kv"


def test_a_process_that_lost_its_slot_cannot_renew() -> None:
    epoch = register("prefill-0", "prefill")
    assert worker_renew(slot="prefill-0", epoch=epoch, pool=POOL, load={})
    end_lease("prefill-0")
    worker_expire()
    assert not worker_renew(slot="prefill-0", epoch=epoch, pool=POOL, load={})


def test_a_renewal_before_anybody_expired_the_lease_still_counts() -> None:
    epoch = register("prefill-0", "prefill")
    end_lease("prefill-0")
    assert worker_renew(slot="prefill-0", epoch=epoch, pool=POOL, load={})
    assert worker_expire() == []


def test_a_supervisor_reports_only_the_process_it_saw() -> None:
    register("prefill-0", "prefill")
    assert not worker_died(slot="prefill-0", pid=os.getpid() + 1)
    assert worker_died(slot="prefill-0", pid=os.getpid())


def test_one_leader_at_a_time_and_a_new_fence_for_each() -> None:
    first = lease_take(name="dispatcher", holder="a", seconds=60)
    assert first == 1
    assert lease_take(name="dispatcher", holder="b", seconds=60) is None
    assert lease_take(name="dispatcher", holder="a", seconds=60) == first
    lease_drop(name="dispatcher", holder="a")
    assert lease_take(name="dispatcher", holder="b", seconds=60) == 2


def test_a_leader_that_overslept_gets_a_new_fence_even_without_a_rival() -> None:
    lease_take(name="dispatcher", holder="a", seconds=-1)
    assert lease_take(name="dispatcher", holder="a", seconds=60) == 2
