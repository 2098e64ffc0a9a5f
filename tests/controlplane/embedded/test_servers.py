from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane.embedded.errors import AlreadyRunning, UnsafeFolder
from controlplane.embedded.folders import FolderLock, private_folder, remove_folder
from controlplane.embedded.paths import DataFolder
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.processes import orphans, spawn
from controlplane.embedded.valkey import Valkey

HOLD = """
import sys, time
from pathlib import Path
from controlplane.embedded.folders import FolderLock
from controlplane.embedded.paths import DataFolder
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.valkey import Valkey
data = DataFolder(Path(sys.argv[1]))
with FolderLock(data):
    Postgres(data).start()
    Valkey(data).start()
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataFolder]:
    folder = DataFolder(tmp_path / "data")
    private_folder(folder.root)
    yield folder
    remove_folder(folder.sockets)


@pytest.fixture
def postgres(data: DataFolder) -> Iterator[Postgres]:
    server = Postgres(data)
    yield server
    server.stop()


def _connect(data: DataFolder) -> psycopg.Connection:
    return psycopg.connect(host=str(data.sockets), user="postgres", dbname="postgres", autocommit=True)


def _until(what: str, condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_what_was_committed_survives_kill_9(postgres: Postgres, data: DataFolder) -> None:
    postgres.start()
    with _connect(data) as connection:
        connection.execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
    assert postgres.process
    postgres.process.kill()
    postgres.process.wait()
    postgres.start()
    with _connect(data) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


def test_a_database_that_starts_again_leaves_the_other_server_alone(postgres: Postgres, data: DataFolder) -> None:
    """Both name the sockets' folder on their command lines; only what a killed postmaster left may be ended."""
    valkey = Valkey(data)
    valkey.start()
    try:
        postgres.start()
        assert postgres.process
        postgres.process.kill()
        postgres.process.wait()
        postgres.start()
        assert valkey.answers()
        assert valkey.process
        assert valkey.process.poll() is None
    finally:
        valkey.stop()


def test_a_stale_pid_file_that_names_a_living_process_is_no_obstacle(postgres: Postgres, data: DataFolder) -> None:
    postgres.start()
    pid_file = postgres.folder / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    assert postgres.process
    postgres.process.kill()
    postgres.process.wait()
    pid_file.write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
    postgres.start()
    assert postgres.answers()


def test_servers_listen_on_private_sockets_only(postgres: Postgres, data: DataFolder) -> None:
    postgres.start()
    with _connect(data) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
    assert data.sockets.stat().st_mode & 0o777 == 0o700
    assert (data.postgres / "18").stat().st_mode & 0o077 == 0


def test_a_socket_folder_of_somebody_else_is_refused(data: DataFolder, tmp_path: Path) -> None:
    data.sockets.symlink_to(tmp_path)
    try:
        with pytest.raises(UnsafeFolder, match="belongs to another user or is no folder"):
            private_folder(data.sockets)
    finally:
        data.sockets.unlink()


def test_a_cluster_whose_making_was_killed_is_made_again(postgres: Postgres, data: DataFolder) -> None:
    (data.postgres / "18.unfinished").mkdir(parents=True)
    (data.postgres / "18.unfinished" / "PG_VERSION").write_text("18\n")
    assert postgres.create() is True
    assert postgres.create() is False


def test_valkey_keeps_nothing_on_disk_and_replaces_a_stale_socket(data: DataFolder) -> None:
    server = Valkey(data)
    try:
        server.start()
        assert data.valkey_socket.stat().st_mode & 0o777 == 0o600
        assert server.process
        server.process.kill()
        server.process.wait()
        assert data.valkey_socket.exists()
        server.start()
        assert {path.name for path in data.sockets.iterdir()} == {"valkey.sock"}
    finally:
        server.stop()
    assert not data.valkey_socket.exists()


def test_servers_end_with_the_process_that_started_them_and_their_data_opens_again(postgres: Postgres, data: DataFolder) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(data.root)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(AlreadyRunning, match=f"process {holder.pid}"), FolderLock(data):
            pass
        holder.kill()
    _until("servers outlived the holder", lambda: not orphans(data.sockets.name))
    assert list(data.sockets.iterdir()) == []
    with FolderLock(data):
        postgres.start()


def test_a_server_that_outlived_its_supervisor_is_ended_before_a_new_one_starts(postgres: Postgres, data: DataFolder) -> None:
    postgres.start()
    orphan, postgres.process = postgres.process, None
    assert orphan
    postgres.start()
    assert orphan.wait(5) == 0
    assert postgres.answers()


def test_a_child_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    from controlplane.embedded.processes import end

    log = tmp_path / "log"
    child = spawn(["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"], log=log)
    _until("the child did not start", lambda: log.read_text() == "up\n")
    end(child, signal.SIGTERM, timeout_s=0.2)
    assert child.returncode == -signal.SIGKILL
