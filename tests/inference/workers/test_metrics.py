"""What workers count of requests that they really serve."""

from __future__ import annotations

import pytest

from inference.requests.models import State
from inference.usage.models import Meter, UsageRow
from inference.workers.jobs import Job
from inference.workers.metrics import WorkerMetrics
from tests.inference.conftest import MakeRequest
from tests.inference.workers.conftest import Kitchen
from tests.samples import Growth, sample

pytestmark = pytest.mark.django_db(transaction=True)

PROMPT = tuple(range(40, 100))


def test_tokens_are_counted_as_they_are_metered_over_both_workers(kitchen: Kitchen, make_request: MakeRequest) -> None:
    computed, cached = (Growth("brigade_prompt_tokens_total", model="tiny", phase=phase) for phase in ("computed", "cached"))
    hits = Growth("brigade_prefix_cache_hit_tokens_total", model="tiny", tier="device")
    generated = Growth("brigade_generation_tokens_total", model="tiny")
    gaps = Growth("brigade_inter_token_latency_seconds_count", model="tiny")
    steps = Growth("brigade_engine_step_seconds_count", slot="decode-0")
    copied, copies = Growth("brigade_kv_transfer_bytes_total"), Growth("brigade_kv_transfer_seconds_count")
    for _ in range(2):
        request = make_request(prompt=PROMPT, max_tokens=12)
        kitchen.give(request, "prefill-0")
        kitchen.wait(request, State.READY)
        kitchen.give(request, "decode-0")
        kitchen.wait(request, State.DONE)
        kitchen.stations["prefill-0"].loop.release(str(request.id))
    kitchen.wait_idle()
    metered = {meter: sum(UsageRow.objects.filter(meter=meter).values_list("quantity", flat=True)) for meter in Meter.values}
    assert metered[Meter.PREFILL_CACHED] == 48
    assert (computed.by, cached.by) == (metered[Meter.PREFILL_COMPUTED], metered[Meter.PREFILL_CACHED])
    assert (hits.by, generated.by) == (cached.by, metered[Meter.DECODE])
    assert gaps.by == generated.by - 4  # the first token of each request on each worker has none before it
    assert steps.by >= gaps.by
    assert copies.by == 2
    assert copied.by > 0


def test_pages_that_cannot_be_used_are_counted_by_their_reason(kitchen: Kitchen, make_request: MakeRequest) -> None:
    fallbacks = Growth("brigade_kv_transfer_fallbacks_total", reason="source_gone")
    recomputed = Growth("brigade_recomputed_tokens_total", model="tiny")
    request = make_request(prompt=PROMPT, max_tokens=8)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    kitchen.stations["prefill-0"].arena.remove()
    kitchen.give(request, "decode-0")
    kitchen.wait(request, State.DONE)
    assert (fallbacks.by, recomputed.by) == (1, len(PROMPT))


def test_a_pools_blocks_are_shown_by_state(kitchen: Kitchen, make_request: MakeRequest) -> None:
    request = make_request(prompt=PROMPT, max_tokens=8)
    kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    kitchen.until(lambda: sample("brigade_handoffs_held", slot="prefill-0") == 1)
    assert sample("brigade_kv_blocks", slot="prefill-0", state="held") == 4
    kitchen.stations["prefill-0"].loop.release(str(request.id))
    kitchen.until(lambda: sample("brigade_kv_blocks", slot="prefill-0", state="held") == 0)
    assert sample("brigade_handoffs_held", slot="prefill-0") == 0


def test_the_times_from_creation_and_from_hand_off_to_a_claim_are_two(kitchen: Kitchen, make_request: MakeRequest) -> None:
    waits = {
        phase: Growth("brigade_request_queue_seconds_count", model="tiny", tier="default", phase=phase)
        for phase in ("prefill", "decode")
    }
    request = make_request(prompt=PROMPT, max_tokens=8)
    first = kitchen.give(request, "prefill-0")
    kitchen.wait(request, State.READY)
    second = kitchen.give(request, "decode-0")
    for claim in (first, second):
        kitchen.stations["decode-0"].loop.metrics.claimed(claim)
    assert {phase: growth.by for phase, growth in waits.items()} == {"prefill": 1, "decode": 1}
    kitchen.wait(request, State.DONE)


def test_a_step_of_many_requests_costs_one_observation_for_each_age_of_their_last_tokens(
    kitchen: Kitchen, make_request: MakeRequest
) -> None:
    metrics = WorkerMetrics("w9", "another")
    jobs = [Job.of(kitchen.give(make_request(), "prefill-0", start=False)) for _ in range(3)]
    metrics.stepped(0.0, [])
    metrics.stepped(0.0, jobs[:2])
    metrics.stepped(0.0, [*jobs, jobs[0]])  # two choices of the first
    assert sample("brigade_engine_step_seconds_count", slot="w9") == 3
    assert sample("brigade_generation_tokens_total", model="another") == 6
    assert sample("brigade_inter_token_latency_seconds_count", model="another") == 3
