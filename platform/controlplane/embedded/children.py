"""The table of what `manage.py serve` runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

from controlplane.embedded.logs import LogFile
from controlplane.embedded.paths import BASE, DataFolder
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.processes import spawn
from controlplane.embedded.supervisor import Child
from controlplane.embedded.valkey import Valkey
from controlplane.fleet.selectors import NEEDED_ROLES

MANAGE = (sys.executable, str(BASE / "manage.py"))
GATEWAY, WORK, SERVERS = 0, 1, 2  # the order of stopping
GATEWAY_STOP_S, WORK_STOP_S, SERVER_STOP_S = 4.0, 3.0, 3.0
GATEWAY_NAME, METRICS_NAME = "gateway", "metrics"


@dataclass(frozen=True, slots=True)
class Program:
    """A Python process of ours: its name is also that of its log and of its database sessions."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    order: int = WORK
    slot: str = ""


def programs(port: int) -> list[Program]:
    """With BRIGADE_METRICS set, the page of them all is shown there; each shows its own at a socket."""
    shows = [Program(METRICS_NAME, (*MANAGE, "metrics", "--serve"), _role("system"))] if settings.METRICS else []
    return [*_serving(port), *shows]


def _serving(port: int) -> list[Program]:
    return [
        Program(GATEWAY_NAME, _gateway(port), _role("app"), order=GATEWAY),
        Program("dispatcher", (*MANAGE, "dispatcher"), _role("system")),
        *(worker for place, model in enumerate(settings.MODELS) for worker in model_workers(model, place)),
        Program("control", (*MANAGE, "control"), _role("system")),
    ]


def model_workers(model: str, place: int) -> list[Program]:
    """One for each role; `place` numbers the models of this copy."""
    return [_worker(role, place, model) for role in NEEDED_ROLES]


def metrics_sockets(data: DataFolder) -> dict[str, Path]:
    """Where the processes show their pages, by name: those that should be there, and whatever else is."""
    expected = {program.name: data.metrics_socket(program.name) for program in _serving(port=0)}
    found = {path.stem.removeprefix("metrics-"): path for path in data.sockets.glob("metrics-*.sock")}
    return expected | found


def _gateway(port: int) -> tuple[str, ...]:
    where = ("--host", settings.BIND, "--port", str(port))
    return (sys.executable, "-m", "controlplane.gateway", *where, "--grace", str(int(GATEWAY_STOP_S) - 1))


def _worker(role: str, place: int, model: str) -> Program:
    slot = f"{role}-{place}"
    threads = str(settings.WORKER_THREADS)
    env = _role("system", OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, WORKER_GRACE_S=str(int(WORK_STOP_S) - 1))
    env["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin would slow the other worker
    argv = (*MANAGE, "worker", "--slot", slot, "--roles", role, "--model", model)
    return Program(f"worker-{slot}", argv, env, slot=slot)


def _role(role: str, **more: str) -> dict[str, str]:
    return {"BRIGADE_DATABASE_ROLE": role, **more}


def environment(name: str, port: int, more: Mapping[str, str]) -> dict[str, str]:
    """Ours, plus where the code, the data and the port are."""
    path = os.pathsep.join(part for part in (str(BASE / "platform"), str(BASE), os.environ.get("PYTHONPATH", "")) if part)
    ours = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PORT": str(port), "BRIGADE_PROCESS": name}
    if name != METRICS_NAME:
        ours["BRIGADE_METRICS"] = f"unix:{settings.DATA.metrics_socket(name)}"
    return os.environ | ours | {"BRIGADE_DATA": str(settings.DATA.root)} | dict(more)


def program_child(program: Program, port: int) -> Child:
    log = settings.DATA.logs / f"{program.name}.log"

    def launch() -> subprocess.Popen[bytes]:
        return spawn(program.argv, log=log, env=environment(program.name, port, program.env), cwd=BASE)

    stop_s = GATEWAY_STOP_S if program.order == GATEWAY else WORK_STOP_S
    return Child(program.name, launch, LogFile(log), program.order, stop_s, slot=program.slot)


def server_child(server: Postgres | Valkey) -> Child:
    stop_signal = signal.SIGINT if isinstance(server, Postgres) else signal.SIGTERM
    return Child(server.name, server.launch, LogFile(server.log), SERVERS, SERVER_STOP_S, stop_signal, shows_errors=False)
