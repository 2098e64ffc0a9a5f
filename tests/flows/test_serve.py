from __future__ import annotations

import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from controlplane.embedded.paths import DataFolder
from tests.flows.conftest import STOP_TIMEOUT_S, Stack, launch, left_behind, serving

pytestmark = pytest.mark.timeout(240)


def models(stack: Stack, key: str) -> int:
    request = urllib.request.Request(f"{stack.base_url}/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def refused(data: DataFolder, port: int) -> str:
    """What a start that cannot be says before it ends."""
    stack = launch(data, port)
    assert stack.process.wait(STOP_TIMEOUT_S) == 1
    return stack.output.read_text()


def test_a_start_prints_all_that_a_newcomer_needs(stack: Stack) -> None:
    text = stack.output.read_text()
    for needed in (
        "curl -N",
        stack.api_key,
        stack.base_url,
        stack.credentials["console_url"],
        stack.credentials["console_password"],
    ):
        assert needed in text
    assert stack.base_url == f"{stack.url}/v1"
    assert models(stack, stack.api_key) == 200
    assert stack.get("/healthz")[0] == stack.get("/readyz")[0] == 200


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that one start after the other uses."""
    return tmp_path_factory.mktemp("yesterday") / "data"


KEYS: set[str] = set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_every_end_leaves_nothing_and_the_next_start_has_the_same_data(yesterday: Path, number: signal.Signals) -> None:
    with serving(yesterday) as stack:
        KEYS.add(stack.api_key)
        assert left_behind(stack.data) != []  # else the check at the end could not fail
        assert models(stack, stack.api_key) == 200
        assert stack.stop(number) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert len(KEYS) == 1


def test_two_copies_run_side_by_side_and_know_nothing_of_each_other(stack: Stack, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as other:
        assert models(other, other.api_key) == models(stack, stack.api_key) == 200
        assert models(other, stack.api_key) == models(stack, other.api_key) == 401
    assert models(stack, stack.api_key) == 200


def test_a_second_start_on_the_same_data_is_refused_and_says_what_to_do(stack: Stack) -> None:
    output = stack.output.read_text()
    refusal = stack.run("serve")
    assert refusal.returncode == 1
    assert f"already runs on {stack.data.root} (process {stack.process.pid})" in refusal.stderr
    assert "BRIGADE_DATA and PORT" in refusal.stderr
    assert stack.output.read_text() == output


def test_a_port_in_use_is_named_and_another_one_proposed(stack: Stack, tmp_path: Path) -> None:
    said = refused(DataFolder(tmp_path / "data"), stack.port)
    assert f"127.0.0.1:{stack.port} cannot be used: Address already in use" in said
    assert f"PORT={stack.port + 1} make serve" in said


def test_it_starts_on_servers_of_this_machine(servers_stack: Stack) -> None:
    assert models(servers_stack, servers_stack.api_key) == 200
    assert not (servers_stack.data.root / "postgres").exists()
    assert not servers_stack.data.valkey_socket.exists()
