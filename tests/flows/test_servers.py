"""The same on servers of the user's own: PostgreSQL as this machine has it, RabbitMQ, Redis."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.flows.cast import ask, expected, rated, stream, text_of, until, wait_until_idle
from tests.flows.conftest import Stack

pytestmark = pytest.mark.timeout(240)


def test_a_crowd_is_served_over_rabbitmq_as_over_valkey(servers_stack: Stack) -> None:
    prompts = [f"table {number}, {'soup ' * number}" for number in range(8)]
    with ThreadPoolExecutor(8) as crowd:
        answers = list(crowd.map(lambda prompt: text_of(stream(servers_stack, prompt)), prompts))
    assert answers == [expected(prompt, 24) for prompt in prompts]
    told = rated(servers_stack, ask(servers_stack, prompts[0]).id)
    assert told["path"] == "split"
    assert int(told["total_nano_usd"]) == sum(int(line["amount_nano_usd"]) for line in told["lines"]) > 0
    wait_until_idle(servers_stack)
    found = until(lambda: servers_stack.run("check_invariants", "--json"), lambda result: result.returncode == 0)
    assert found.returncode == 0, found.stdout
