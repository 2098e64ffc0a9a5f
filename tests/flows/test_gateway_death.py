"""A gateway that dies, freezes or stops: nobody waits for its requests any more, so they end and cost what was made until then."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import openai
import pytest

from tests.flows.cast import ask, database, expected, rated, text_of, until, wait_until_ready
from tests.flows.conftest import Stack
from tests.flows.leaving import PATIENCE_S, Call, armed, billed_what_was_made, nothing_is_held, states
from tests.flows.test_readiness import pid_of

pytestmark = pytest.mark.timeout(300)

SLOW_DECODE = {"point": "decode.step", "action": "delay", "seconds": 0.25, "times": 200}


@pytest.fixture(autouse=True)
def alive_before_and_after(impatient: Stack) -> Iterator[None]:
    wait_until_ready(impatient)
    yield
    Call.close_all()
    wait_until_ready(impatient)
    assert ask(impatient, "the next guest", 12).choices[0].message.content == expected("the next guest", 12)
    nothing_is_held(impatient)


def reading(stack: Stack, name: str) -> list[Call]:
    """One who reads a stream, one who waits for the whole answer."""
    calls = [Call(stack, f"{name} {streams}", 1_000, streams) for streams in (True, False)]
    calls[0].read(3)
    until(lambda: states(stack, [calls[1].id]), lambda found: found == ["decoding"], PATIENCE_S)
    return calls


def cancelled(stack: Stack, calls: list[Call], detail: str) -> None:
    until(lambda: set(states(stack, [call.id for call in calls])), lambda found: found == {"cancelled"}, PATIENCE_S)
    wait_until_ready(stack)
    for call in calls:
        assert billed_what_was_made(call)["events"][-1]["detail"] == detail


def test_what_a_killed_gateway_left_is_cancelled(impatient: Stack) -> None:
    with armed(impatient, SLOW_DECODE) as fired:
        calls = reading(impatient, "killed")
        os.kill(pid_of(impatient, "gateway"), signal.SIGKILL)
        cancelled(impatient, calls, "gateway_gone")
        assert fired(0)


def test_a_gateway_that_was_frozen_for_too_long_ends_its_streams_and_goes_on_as_a_new_one(impatient: Stack) -> None:
    with armed(impatient, SLOW_DECODE), database(impatient) as connection:
        calls = reading(impatient, "frozen")
        [before] = connection.execute("SELECT id FROM coordination_gateway").fetchone() or (None,)
        pid = pid_of(impatient, "gateway")
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: set(states(impatient, [call.id for call in calls])), lambda found: found == {"cancelled"}, PATIENCE_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert calls[0].error() == "request_cancelled"
        cancelled(impatient, calls, "gateway_gone")
        after = until(
            lambda: connection.execute("SELECT id FROM coordination_gateway").fetchall(), lambda rows: len(rows) == 1, PATIENCE_S
        )
    assert after[0][0] != before
    assert pid_of(impatient, "gateway") == pid


def test_a_gateway_that_is_asked_to_stop_ends_its_streams_with_an_error(impatient: Stack) -> None:
    with armed(impatient, SLOW_DECODE):
        calls = reading(impatient, "stopped")
        os.kill(pid_of(impatient, "gateway"), signal.SIGTERM)
        assert calls[0].error() == "stream_interrupted"
        cancelled(impatient, calls, "gateway_gone")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_what_has_a_key_outlives_its_gateway_and_its_client_gets_it_from_the_next(impatient: Stack, number: int) -> None:
    key = f"outlives {number} {time.time_ns()}"
    asked: dict[str, Any] = {"stream": True, "user": key, "extra_headers": {"Idempotency-Key": key}}
    with armed(impatient, {**SLOW_DECODE, "times": 20}) as fired:
        chunks = ask(impatient, "a kept answer", 60, **asked)
        heard = next(chunks).id
        os.kill(pid_of(impatient, "gateway"), number)
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            list(chunks)
        wait_until_ready(impatient)
        assert fired(0)
    again = list(ask(impatient, "a kept answer", 60, **asked))
    assert {chunk.id for chunk in again} == {heard}
    assert text_of(iter(again)) == expected("a kept answer", 60)
    assert rated(impatient, heard)["state"] == "done"


def test_what_names_no_gateway_runs_to_its_end(impatient: Stack) -> None:
    """A gateway's death ends its own requests only."""
    with armed(impatient, SLOW_DECODE), database(impatient) as connection:
        calls = reading(impatient, "nobody's")
        connection.execute("UPDATE inference_request SET gateway_id = NULL WHERE id = ANY(%s)", [[call.id for call in calls]])
        os.kill(pid_of(impatient, "gateway"), signal.SIGKILL)
        wait_until_ready(impatient)
        assert set(states(impatient, [call.id for call in calls])) == {"decoding"}
    until(lambda: set(states(impatient, [call.id for call in calls])), lambda found: found == {"done"}, 3 * PATIENCE_S)
    for call in calls:
        assert billed_what_was_made(call, ended=("done",))["tokens"]["completion"] == 1_000
