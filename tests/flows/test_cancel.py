"""A client that goes, in every way and in every state of its request: it stops, nothing stays held, and what was made is billed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx2 as httpx
import pytest

from tests.flows.cast import ask, database, expected, until
from tests.flows.conftest import Stack
from tests.flows.leaving import (
    PATIENCE_S,
    WAYS,
    Call,
    Way,
    armed,
    billed_what_was_made,
    configured,
    nothing_is_held,
    wait_state,
)

pytestmark = pytest.mark.timeout(300)

LONG = "pepper and salt " * 90  # about 1,500 tokens: a dozen chunks
SLOW_PREFILL = {"point": "prefill.chunk", "action": "delay", "seconds": 0.5, "times": 60}
SLOW_DECODE = {"point": "decode.step", "action": "delay", "seconds": 0.25, "times": 60}


@pytest.fixture(autouse=True)
def nothing_stays(impatient: Stack) -> Iterator[None]:
    yield
    Call.close_all()
    nothing_is_held(impatient)


@pytest.fixture(scope="module", autouse=True)
def invariants_hold_at_the_end(impatient: Stack) -> Iterator[None]:
    yield
    found = until(lambda: impatient.run("check_invariants", "--json"), lambda result: result.returncode == 0, PATIENCE_S)
    assert found.returncode == 0, found.stdout


def crowd(stack: Stack, name: str, content: str = "") -> list[tuple[Way, Call]]:
    """One call for each way to leave, streaming and not."""
    tokens = 200 if content else 1_000
    return [(way, Call(stack, f"{name} {way} {streams} {content}", tokens, streams)) for way in WAYS for streams in (True, False)]


@contextmanager
def queued(stack: Stack) -> Iterator[list[tuple[Way, Call]]]:
    with configured(stack, "scheduling.paused", "true"):
        calls = crowd(stack, "queued")
        wait_state(stack, [call for _, call in calls], "queued")
        yield calls


@contextmanager
def prefilling(stack: Stack) -> Iterator[list[tuple[Way, Call]]]:
    with armed(stack, SLOW_PREFILL) as fired:
        calls = crowd(stack, "prefilling", LONG)
        wait_state(stack, [call for _, call in calls], "prefilling")
        yield calls
        assert fired(0)


@contextmanager
def ready(stack: Stack) -> Iterator[list[tuple[Way, Call]]]:
    """Claimed for prefill, then nothing is offered any more."""
    with ExitStack() as undo:
        with armed(stack, SLOW_PREFILL) as fired:
            calls = crowd(stack, "ready", LONG)
            wait_state(stack, [call for _, call in calls], "prefilling")
            undo.enter_context(configured(stack, "scheduling.paused", "true"))
            assert fired(0)
        wait_state(stack, [call for _, call in calls], "ready")
        yield calls


@contextmanager
def decoding(stack: Stack) -> Iterator[list[tuple[Way, Call]]]:
    with armed(stack, SLOW_DECODE) as fired:
        calls = crowd(stack, "decoding")
        wait_state(stack, [call for _, call in calls], "decoding")
        for _, call in calls:
            if call.stream:
                call.read(3)
                assert call.chunks >= 3
        yield calls
        assert fired(0)


@pytest.mark.parametrize("state", [queued, prefilling, ready, decoding])
def test_whoever_goes_in_whatever_state_stops_his_request(
    impatient: Stack, state: Callable[[Stack], Iterator[list[tuple[Way, Call]]]]
) -> None:
    with state(impatient) as calls:  # type: ignore[attr-defined]
        for way, call in calls:
            call.leave(way)
        wait_state(impatient, [call for _, call in calls], "cancelled")
    for _, call in calls:
        told = billed_what_was_made(call)
        assert told["events"][-1]["detail"] == "client_gone"


def test_a_cancel_whose_signal_is_lost_is_seen_all_the_same(impatient: Stack) -> None:
    """The flag alone, as where Valkey lost the signal: who runs looks at it each second, who waits is ended by the reaper."""
    with decoding(impatient) as calls, database(impatient) as connection:
        connection.execute(
            "UPDATE inference_request SET cancel_requested_at = clock_timestamp() WHERE id = ANY(%s)",
            [[call.id for _, call in calls]],
        )
        wait_state(impatient, [call for _, call in calls], "cancelled")
    for _, call in calls:
        billed_what_was_made(call)


def test_a_cancel_by_hand_ends_the_stream_with_an_error_and_the_bill_with_what_was_made(impatient: Stack) -> None:
    with armed(impatient, SLOW_DECODE):
        call = Call(impatient, "by hand", 1_000)
        call.read(3)
        told = [cancel(impatient, call) for _ in range(2)]
        assert {answer.status_code for answer in told} == {200}
        assert call.error() == "request_cancelled"
    told_at_last = billed_what_was_made(call)
    assert told_at_last["events"][-1]["detail"] == "client_asked"
    after = cancel(impatient, call)
    assert (after.status_code, after.json()) == (200, told_at_last)


def cancel(stack: Stack, call: Call) -> httpx.Response:
    return httpx.post(
        f"{stack.base_url}/requests/{call.public_id}/cancel",
        headers={"Authorization": f"Bearer {stack.api_key}"},
        timeout=PATIENCE_S,
    )


def test_whoever_goes_while_his_request_finishes_pays_once_and_for_what_was_made(impatient: Stack) -> None:
    chance = random.Random(7)
    calls = [Call(impatient, f"short {number}", 6, stream=number % 2 == 0) for number in range(40)]
    for call in chance.sample(calls, len(calls)):
        if call.stream:
            call.read(chance.randint(1, 6))
        call.leave(chance.choice(("fin", "rst")))
    wait_state(impatient, calls, "cancelled", "done")
    for call in calls:
        billed_what_was_made(call, ended=("cancelled", "done"))


def test_storms_of_clients_that_go_hold_nothing_and_change_nobodys_answer(impatient: Stack) -> None:
    def canary(number: int) -> tuple[str, str]:
        prompt = f"canary {number}"
        return str(ask(impatient, prompt, 12).choices[0].message.content), expected(prompt, 12)

    with ThreadPoolExecutor(2) as birds:
        for storm in range(3):
            flying = [birds.submit(canary, 10 * storm + number) for number in range(3)]
            calls = [Call(impatient, f"storm {storm} {number}", 300, stream=number % 2 == 0) for number in range(200)]
            for call in calls[:20:2]:  # some have begun to read
                call.read(1)
            for number, call in enumerate(calls):
                call.leave("rst" if number % 2 else "fin")
            for bird in flying:
                answer, right = bird.result(timeout=PATIENCE_S)
                assert answer == right
    with database(impatient) as connection:
        until(
            lambda: connection.execute("SELECT count(*) FROM inference_request WHERE finished_at IS NULL").fetchone(),
            lambda open_ones: open_ones == (0,),
            PATIENCE_S,
        )
    nothing_is_held(impatient)
    assert impatient.get("/readyz")[0] == 200
