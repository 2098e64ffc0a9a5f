"""A running copy under test: `manage.py serve` on its own data folder, its failpoints, its clients, a hand on its processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
import redis
from celery import Celery

from controlplane.embedded.paths import DataFolder
from controlplane.embedded.processes import spawn
from controlplane.settings.queues import celery_settings
from inference.failpoints import VARIABLE, mark
from infra.bench.support.client import CallFailed, Stream, chat, complete, free_port, get
from infra.chaos.orders import MODEL, Order

ROOT = Path(__file__).resolve().parents[2]
STOPPED_S = 4.5  # longer than a lease, so that a stopped process comes back as a zombie
PATIENCE_S = 90.0
AGAIN_S = 0.3
PLACES = ("DATABASE_URL", "BROKER_URL", "REDIS_URL")
_NOT_OURS = (*PLACES, "BRIGADE_DATABASE_ROLE", "BRIGADE_DATA", "BRIGADE_PROCESS", "PORT")


Again = Literal["never", "refused", "always"]  # after which errors a client asks again: none, 429 and 503, all


@dataclass(slots=True)
class Answer:
    """What a client got. `errors` are those before it, `refused` of them were refusals; a client that may not repeat gives up."""

    order: Order
    stream: Stream | None = None
    errors: list[str] = field(default_factory=list)
    refused: int = 0


class Kitchen:
    """`servers`: DATABASE_URL, BROKER_URL, REDIS_URL; without them the embedded ones. The entering thread must outlive it."""

    def __init__(self, folder: Path, servers: Mapping[str, str]) -> None:
        self.data = DataFolder(folder)
        self.failpoints = folder / "failpoints.json"
        self._manage = [sys.executable, str(ROOT / "manage.py")]
        kept = {name: value for name, value in os.environ.items() if name.removesuffix("_FILE") not in _NOT_OURS}
        hooks = {"BRIGADE_MODEL": MODEL, "BRIGADE_TEST_HOOKS": "1", VARIABLE: str(self.failpoints)}
        self._env = {**kept, **servers, **hooks, "BRIGADE_DATA": str(folder), "PORT": str(free_port())}
        self._database_url = servers.get("DATABASE_URL", self.data.database_url)
        self._redis_url = servers.get("REDIS_URL", self.data.redis_url)
        self._celery = Celery("chaos", set_as_current=False)
        self._celery.config_from_object(celery_settings(servers.get("BROKER_URL", self.data.broker_url)), namespace="CELERY")
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        self.data.make()
        self.arm("none", [])
        self._process = spawn([*self._manage, "serve"], log=self.data.root / "serve.log", env=self._env, cwd=ROOT)
        try:
            self._wait_started()
        except BaseException:
            self._process.kill()
            raise
        known = json.loads(self.manage("demo_credentials", "--json"))
        self.base_url, self.api_key = known["base_url"], known["api_key"]
        self.database = psycopg.connect(self._database_url, autocommit=True)
        self.valkey = redis.Redis.from_url(self._redis_url)
        threading.Thread(target=self._wake_the_stopped, name="wake", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._celery.close()
        self.database.close()
        self.valkey.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    # Commands and failpoints.

    def manage(self, *words: str) -> str:
        done = subprocess.run([*self._manage, *words], env=self._env, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"manage.py {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def use_path(self, path: str) -> None:
        self.manage("config_set", "scheduling.path", path)
        time.sleep(1.2)  # the dispatcher reads its configuration once a second

    def refresh_invoices(self) -> None:
        """Beat does it once a minute."""
        self._celery.send_task("billing.refresh_invoice_drafts", ignore_result=True)

    def arm(self, run: str, points: Sequence[Mapping[str, Any]]) -> None:
        fresh = self.failpoints.with_suffix(".new")
        fresh.write_text(json.dumps({"run": run, "points": points}))
        fresh.replace(self.failpoints)

    def fired(self, run: str, times: int) -> int:
        """How often the run's first point acted, of so many times."""
        return sum(mark(self.failpoints, run, 0, count).exists() for count in range(times))

    # Clients.

    def serve(self, orders: Sequence[Order], label: str, *, again: Again) -> list[Answer]:
        """All together."""

        async def crowd() -> list[Answer]:
            return await asyncio.gather(*(self.ask(order, label, again=again) for order in orders))

        return asyncio.run(crowd())

    async def ask(self, order: Order, label: str, *, again: Again) -> Answer:
        answer = Answer(order)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    call = chat if order.stream else complete
                    answer.stream = await call(self.base_url, self.api_key, order.body(label))
                    return answer
            except (OSError, CallFailed, TimeoutError) as failure:
                answer.errors.append(f"{type(failure).__name__}: {failure}")
                refused = isinstance(failure, CallFailed) and failure.status in ("429", "503")
            answer.refused += refused
            if not (again == "always" or (again == "refused" and refused)):
                break
            await asyncio.sleep(AGAIN_S)
        return answer

    def receipt(self, request_id: str) -> dict[str, Any]:
        return get(self.base_url, self.api_key, f"/requests/{request_id}")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                get(self.base_url.removesuffix("/v1"), "", "/readyz")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the copy under test does not become ready again")

    # Processes.

    def pids(self, *names: str) -> list[int]:
        """Of its processes, by the names that the supervisor gives them."""
        wanted = {f"BRIGADE_PROCESS={name}".encode() for name in names}
        return [pid for pid, env in self._processes() if wanted & env]

    def stopped(self) -> list[int]:
        return [pid for pid, _ in self._processes() if _is_stopped(pid)]

    def _processes(self) -> list[tuple[int, set[bytes]]]:
        marker = f"BRIGADE_DATA={self.data.root}".encode()
        found = ((int(path.name), _environment(path)) for path in Path("/proc").glob("[0-9]*"))
        return [(pid, env) for pid, env in found if marker in env]

    def _wake_the_stopped(self) -> None:
        """Continues processes that stopped themselves, after their leases are over."""
        since: dict[int, float] = {}
        while not self._closed.wait(0.2):
            now = time.monotonic()
            since = {pid: since.get(pid, now) for pid in self.stopped()}
            for pid in [pid for pid, began in since.items() if now - began > STOPPED_S]:
                with contextlib.suppress(ProcessLookupError):  # its supervisor was quicker
                    os.kill(pid, signal.SIGCONT)

    def _wait_started(self) -> None:
        log = self.data.root / "serve.log"
        deadline = time.monotonic() + 2 * PATIENCE_S
        while "Ctrl-C stops" not in log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)


def _environment(process: Path) -> set[bytes]:
    try:
        return set((process / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
