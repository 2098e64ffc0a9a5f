"""The whole product as a user runs it: `manage.py serve` as a process of its own, with the tiny model.

stack           on embedded servers, one for the session
impatient       another one, with short times, for tests of what is gone
fragile         another one, whose servers and processes fail
servers_stack   the same on PostgreSQL, RabbitMQ and Redis of this machine; skipped (under CI: failed) where they do not answer
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded.paths import DataFolder
from controlplane.embedded.processes import orphans, spawn
from inference.failpoints import VARIABLE
from infra.chaos.servers import NoServers, own_place

BASE = Path(__file__).parents[2]
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 20
OF_THE_TEST_RUN = ("DATABASE_URL", "REDIS_URL", "BROKER_URL", "BRIGADE_DATABASE_ROLE", "BRIGADE_DATA", "BRIGADE_PROCESS", "PORT")


@dataclass
class Stack:
    """A running copy of Brigade, and how to speak to it."""

    data: DataFolder
    port: int
    env: dict[str, str]
    output: Path
    process: subprocess.Popen[bytes]
    credentials: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return self.credentials["base_url"]

    @property
    def api_key(self) -> str:
        return self.credentials["api_key"]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`manage.py ARGUMENTS` against this copy, whatever its exit status."""
        argv = [sys.executable, str(BASE / "manage.py"), *arguments]
        return subprocess.run(argv, env=self.env, cwd=BASE, capture_output=True, text=True, timeout=180)

    def manage(self, *arguments: str) -> Any:
        """`manage.py ARGUMENTS`, which must succeed and print JSON."""
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends it, answers its exit status, and checks that nothing is left of it."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(STOP_TIMEOUT_S)
        assert_nothing_left(self.data)
        return status


def assert_nothing_left(data: DataFolder, timeout_s: float = 12) -> None:
    deadline = time.monotonic() + timeout_s
    while left := left_behind(data):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def left_behind(data: DataFolder) -> list[str]:
    """Processes that were started for this data folder, sockets, arenas in shared memory."""
    marker = f"BRIGADE_DATA={data.root}".encode()
    processes = [f"process {path.name}" for path in Path("/proc").glob("[0-9]*") if _names(path, marker)]
    servers = [orphan.command for orphan in orphans(data.sockets.name)]
    return processes + servers + [str(folder) for folder in (data.sockets, *data.arenas) if folder.exists()]


def _names(process: Path, marker: bytes) -> bool:
    if process.name in (str(os.getpid()), "self"):
        return False
    try:
        return marker in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_environment(data: DataFolder, port: int, more: dict[str, str] | None = None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name.removesuffix("_FILE") not in OF_THE_TEST_RUN}
    ours = {"BRIGADE_DATA": str(data.root), "PORT": str(port), "BRIGADE_MODEL": "tiny", "BRIGADE_TEST_HOOKS": "1"}
    return env | ours | (more or {})


def launch(data: DataFolder, port: int, more: dict[str, str] | None = None, through: Sequence[str] = ()) -> Stack:
    """Starts `manage.py serve` (by the command `through`) and returns at once. It is stopped when the test run dies."""
    env = serve_environment(data, port, more)
    output = data.root.parent / f"{data.root.name}.serve.log"
    output.unlink(missing_ok=True)
    process = spawn([*through, sys.executable, BASE / "manage.py", "serve"], log=output, env=env, cwd=BASE)
    return Stack(data, port, env, output, process)


def wait_until_it_answers(stack: Stack) -> Stack:
    deadline = time.monotonic() + START_TIMEOUT_S
    while "Ctrl-C stops" not in stack.output.read_text():
        if stack.process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"manage.py serve did not start:\n{stack.output.read_text()}")
        time.sleep(0.05)
    stack.credentials = stack.manage("demo_credentials", "--json")
    return stack


@contextmanager
def serving(folder: Path, more: dict[str, str] | None = None, through: Sequence[str] = ()) -> Iterator[Stack]:
    """A running copy on `folder`, with failpoints that `armed` arms, ended at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="brigade-failpoints-") as hooks:
        failpoints = Path(hooks) / "failpoints.json"
        failpoints.write_text('{"run": "none", "points": []}')
        stack = launch(DataFolder(folder), free_port(), {VARIABLE: str(failpoints)} | (more or {}), through)
        try:
            yield wait_until_it_answers(stack)
        finally:
            stack.stop()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serving(tmp_path_factory.mktemp("stack") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """With short times: a client or gateway that is silent for three seconds is gone. Its processes may die."""
    more = {"BRIGADE_CLIENT_TIMEOUT_S": "3", "BRIGADE_GATEWAY_LEASE_S": "3"}
    with serving(tmp_path_factory.mktemp("impatient") / "data", more) as running:
        yield running


@pytest.fixture(scope="session")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serving(tmp_path_factory.mktemp("fragile") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def servers_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with own_place_on_servers() as urls, serving(tmp_path_factory.mktemp("servers") / "data", urls) as running:
        yield running


@contextmanager
def own_place_on_servers() -> Iterator[dict[str, str]]:
    """A database, a virtual host and a Redis number that are nobody else's; all gone at the end."""
    with ExitStack() as stack:
        try:
            urls = stack.enter_context(own_place())
        except NoServers as error:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))
        yield urls
