"""`manage.py serve`, step by step: from an empty folder, or yesterday's, to an answering API."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor

from controlplane.embedded.children import GATEWAY_NAME, MANAGE, environment, program_child, programs, server_child
from controlplane.embedded.errors import NotReady, PortInUse, StepFailed
from controlplane.embedded.folders import FolderLock, private_folder, remove_folder
from controlplane.embedded.on_sale import OnSale
from controlplane.embedded.outside import outside_servers_check
from controlplane.embedded.paths import BASE
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.processes import end_orphans
from controlplane.embedded.roles import database_setup
from controlplane.embedded.screen import say, step
from controlplane.embedded.signals import Signals, StopRequested
from controlplane.embedded.supervisor import TAIL_LINES, Child, Supervisor, describe
from controlplane.embedded.valkey import Valkey
from controlplane.fleet.selectors import NEEDED_ROLES, fleet
from controlplane.tenants.demo import DemoCredentials, demo_create
from inference.coordination.gateways import gateway_died
from inference.coordination.models import Gateway, Worker, WorkerState
from inference.coordination.registry import worker_died
from inference.text import open_text
from inference.text.model_files import KNOWN_MODELS, ensure_oracle, fetch

READY_TIMEOUT_S = 180
FIRST_NEWS_S = 8  # what is missing is shown after this time, and again at this distance
POLL_S = 0.1


class Serve:
    def __init__(self) -> None:
        self.data = settings.DATA
        self.signals = Signals()
        self.supervisor = Supervisor(self.signals, folders=[self.data.sockets, *self.data.arenas], on_death=_report_death)

    def run(self) -> None:
        """Returns when somebody asked it to stop and everything has ended. Raises EmbeddedError where it cannot start."""
        began = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(FolderLock(self.data))
            port = free_port(settings.BIND, settings.PORT)
            self.signals.install()
            try:
                outside_servers_check()
                self._clear_leavings()
                self.supervisor.start_guard()
                stack.callback(self._stop)
                credentials = self._start(port)
                welcome(port, credentials, time.monotonic() - began)
                self.supervisor.watch(OnSale(self.supervisor, port).follow)
            except StopRequested:
                say("Stopping. Once more Ctrl-C kills at once.")

    def _start(self, port: int) -> DemoCredentials:
        private_folder(self.data.sockets)
        self.data.port_file.write_text(str(port))
        for model in settings.MODELS:
            with step(f"Model {model}"):
                model_ensure(model, self.data.models)
        self._servers()
        with step("Database"):
            database_setup(settings.DATABASE_SERVER, secret_key=settings.SECRET_KEY)
            migrate(port)
        self._programs(port)
        with step("Demo tenant"):
            credentials = demo_create()
        connections.close_all()
        with step("Waiting for gateway, dispatcher and workers", "ready"):
            self._wait_ready(port)
        return credentials

    def _servers(self) -> None:
        servers: list[Postgres | Valkey] = []
        if settings.DATABASE_IS_EMBEDDED:
            servers.append(Postgres(self.data))
        if settings.REDIS_IS_EMBEDDED or settings.BROKER_IS_EMBEDDED:
            servers.append(Valkey(self.data))
        for server in servers:
            if isinstance(server, Postgres):
                with step("PostgreSQL: making its folder" if not server.folder.exists() else "PostgreSQL"):
                    server.create()
                    self._start_server(server)
            else:
                with step("Valkey"):
                    self._start_server(server)

    def _start_server(self, server: Postgres | Valkey) -> None:
        self.supervisor.start(server_child(server))
        server.wait_ready()

    def _programs(self, port: int) -> None:
        _bury_earlier_lives()
        for program in programs(port):
            self.supervisor.start(program_child(program, port))

    def _wait_ready(self, port: int) -> None:
        began = news_at = time.monotonic()
        while (missing := missing_parts(port) or missing_workers()) is not None:
            self.supervisor.look()
            self.supervisor.refuse_repeated_deaths()
            now = time.monotonic()
            if now - began > READY_TIMEOUT_S:
                raise NotReady(f"not ready after {READY_TIMEOUT_S} s; missing: {missing}. See the logs in {self.data.logs}")
            if now - news_at > FIRST_NEWS_S:
                news_at = now
                say(f"    not there yet: {missing}")
            self.signals.wait(POLL_S)

    def _clear_leavings(self) -> None:
        """We hold the lock: what is there belongs to a supervisor that was killed, and its guard with it."""
        end_orphans(self.data.sockets.name)
        for folder in (self.data.sockets, *self.data.arenas):
            remove_folder(folder)

    def _stop(self) -> None:
        began = time.monotonic()
        with self.signals.held():
            self.supervisor.stop()
        say(f"Stopped after {time.monotonic() - began:.1f} s; nothing is left running.")


def free_port(host: str, port: int) -> int:
    """`port`, or for 0 any free one."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUse(
                f"{host}:{port} cannot be used: {error.strerror}. Choose another: PORT={port + 1} make serve"
            ) from error
        return int(probe.getsockname()[1])


def model_ensure(name: str, folder: Path) -> None:
    """Its files are there, and its text side opens. Raises ModelFetchError, ModelFolderError, StepFailed."""
    if settings.TEST_HOOKS and name in ("tiny", "scripted"):
        ensure_oracle(name, folder)
    elif name in KNOWN_MODELS:
        fetch(name, folder, lambda line: say(f"    {line}"))
    elif not (folder / name).is_dir():
        raise StepFailed(
            f"BRIGADE_MODEL names {name!r}, and there is no such folder in {folder}. Take it out of BRIGADE_MODEL; while the server"
            f" runs, `manage.py model_add` puts models of your own on sale. Brigade brings along: {', '.join(KNOWN_MODELS)}."
        )
    open_text(folder / name)


def migrate(port: int) -> None:
    """As the owner, in a process of its own; not started where nothing is to be done, for that takes a second."""
    executor = MigrationExecutor(connection)
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return
    log = settings.DATA.logs / "migrate.log"
    log.parent.mkdir(mode=0o700, exist_ok=True)
    with log.open("wb") as output:
        env = environment("migrate", port, {"BRIGADE_DATABASE_ROLE": "owner"})
        argv = [*MANAGE, "migrate", "--no-input"]
        code = subprocess.run(argv, env=env, cwd=BASE, stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
    if code:
        last = "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        raise StepFailed(f"the migrations failed ({describe(code)}). The last lines of {log}:\n\n{last}")


def missing_parts(port: int) -> str | None:
    """None when ready, else the names of what is not."""
    client = http.client.HTTPConnection("127.0.0.1" if settings.BIND == "0.0.0.0" else settings.BIND, port, timeout=3)
    try:
        client.request("GET", "/readyz")
        answer = client.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return "gateway"
    finally:
        client.close()
    return None if answer.status == 200 else _not_ready(body)


def missing_workers() -> str | None:
    """None when each model has a worker of each role, else what is missing: readiness asks for a role's workers of any model."""
    there = {(worker.model, role) for worker in fleet().workers for role in worker.roles}
    connections.close_all()
    missing = [f"{role} of {model}" for model in settings.MODELS for role in NEEDED_ROLES if (model, role) not in there]
    return ", ".join(missing) or None


def _not_ready(body: bytes) -> str:
    try:
        parts = cast(dict[str, Any], json.loads(body)["parts"])
        return ", ".join(name for name, part in parts.items() if not part["ready"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"gateway (it answers: {body[:200].decode(errors='replace')})"


def _bury_earlier_lives() -> None:
    """A killed supervisor's processes keep their slots and requests until their leases end, though they are known to be gone."""
    rows = Worker.objects.filter(host=socket.gethostname()).exclude(state=WorkerState.DEAD)
    for slot, pid in list(rows.values_list("slot", "pid")):
        if not Path(f"/proc/{pid}").exists():
            worker_died(slot=slot, pid=pid)
    for pid in list(Gateway.objects.filter(host=socket.gethostname()).values_list("pid", flat=True)):
        if not Path(f"/proc/{pid}").exists():
            gateway_died(pid=pid)


def _report_death(child: Child, pid: int) -> None:
    """A worker's requests move on at once, a gateway's end; without the report they would wait for the end of its lease."""
    try:
        if child.slot:
            worker_died(slot=child.slot, pid=pid)
        elif child.name == GATEWAY_NAME:
            gateway_died(pid=pid)
    except DatabaseError as error:
        say(f"! {child.name}: its death could not be reported ({error}); its lease ends in some seconds")
    finally:
        connections.close_all()


def welcome(port: int, credentials: DemoCredentials, took_s: float) -> None:
    data = os.environ.get("BRIGADE_DATA", "")
    command = f"BRIGADE_DATA={data} " if data else ""
    metrics = f"\nMetrics    {settings.METRICS.url}" if settings.METRICS else ""
    say(
        f"""
Brigade answers at {credentials.base_url} (started in {took_s:.1f} s)

curl -N {credentials.base_url}/chat/completions \\
  -H "Authorization: Bearer {credentials.api_key}" -H "Content-Type: application/json" \\
  -d '{{"model": "{settings.MODEL}", "stream": true, "max_tokens": 100,
       "messages": [{{"role": "user", "content": "What does a line cook do?"}}]}}'

API key    {credentials.api_key}
Console    {credentials.console_url}
Login      {credentials.console_user}  {credentials.console_password}
Try        {command}.venv/bin/python manage.py demo
Logs       {settings.DATA.logs}{metrics}

Ctrl-C stops."""
    )
