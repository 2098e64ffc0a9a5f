"""What is counted as computed, cached, recomputed, and for how long KV is held."""

from inference.engine.usage import UsageMeter, percentiles_ms, phase_usage


def test_a_prompt_found_in_part_is_computed_for_the_rest() -> None:
    meter = UsageMeter(prompt_tokens=40, forced_tokens=0, added_us=0)
    meter.found(32)
    meter.ran(32, 40)
    meter.ran(40, 41)
    assert (meter.cached, meter.computed, meter.recomputed) == (32, 8, 0)


def test_a_second_pass_after_a_preemption_is_recomputed_and_finds_nothing_new() -> None:
    meter = UsageMeter(prompt_tokens=40, forced_tokens=0, added_us=0)
    meter.ran(0, 40)
    meter.ran(40, 41)
    meter.found(32)
    meter.ran(32, 41)
    meter.ran(41, 42)
    assert (meter.cached, meter.computed, meter.recomputed) == (0, 40, 9)


def test_a_preemption_inside_the_prompt_still_adds_up() -> None:
    meter = UsageMeter(prompt_tokens=100, forced_tokens=0, added_us=0)
    meter.ran(0, 30)
    meter.ran(0, 50)
    meter.ran(50, 100)
    assert (meter.cached + meter.computed, meter.recomputed) == (100, 30)


def test_forced_tokens_are_recomputed_but_for_the_last() -> None:
    meter = UsageMeter(prompt_tokens=10, forced_tokens=4, added_us=0)
    meter.ran(0, 14)
    assert (meter.computed, meter.recomputed) == (10, 3)


def test_held_kv_is_integrated_over_time() -> None:
    meter = UsageMeter(prompt_tokens=1, forced_tokens=0, added_us=0)
    meter.hold(10, 100)
    meter.hold(20, 150)
    meter.hold(0, 160)
    assert phase_usage([meter], 1_000).kv_token_us == 10 * 50 + 20 * 10


def test_times_are_split_at_the_start_and_at_the_first_token() -> None:
    meter = UsageMeter(prompt_tokens=1, forced_tokens=0, added_us=1_000)
    meter.start(3_000)
    for now_us in (7_000, 8_000, 11_000):
        meter.emitted(now_us)
    usage = phase_usage([meter], 20_000)
    assert (usage.queue_ms, usage.prefill_ms, usage.decode_ms, usage.itl_ms) == (2.0, 4.0, 4.0, (1.0, 3.0, 3.0))


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles_ms([]) == (0.0, 0.0, 0.0)
    assert percentiles_ms([1000 * value for value in range(100, 0, -1)]) == (50.0, 95.0, 99.0)
