"""No room in shared memory, on the data folder's disk, in both: what cannot be written is refused or waits, and is not billed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import openai
import psycopg
import pytest

from tests.flows.cast import ask, database
from tests.flows.conftest import Stack, serving
from tests.flows.faults import crowd, process_of

pytestmark = pytest.mark.timeout(300)

DISK_MIB = 320
NO_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh")


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A copy whose data folder lies on a small disk, and which finds no shared memory."""
    disk = tmp_path_factory.mktemp("disk")
    with small_disk(disk), serving(disk / "data", through=NO_SHARED_MEMORY) as running:
        yield running


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Not a byte is left on this disk."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    try:
        assert shutil.disk_usage(folder).free == 0
        yield
    finally:
        filler.unlink()


def test_a_worker_that_finds_no_room_says_so_and_leaves_nothing(cramped: Stack) -> None:
    before = sorted((cramped.data.root / "arenas").rglob("*.kv"))
    greedy = Stack(cramped.data, cramped.port, cramped.env | {"WORKER_BLOCKS": "10000000"}, cramped.output, cramped.process)
    refusal = greedy.run("worker", "--slot", "decode-9", "--roles", "decode")
    assert refusal.returncode == 1
    assert refusal.stderr.startswith("CommandError: no room for the KV pool, ")
    assert "No space left on device" in refusal.stderr
    assert sorted((cramped.data.root / "arenas").rglob("*.kv")) == before


def test_a_full_disk_refuses_and_waits(cramped: Stack) -> None:
    """PostgreSQL ends where its log has no room, and cannot start again before there is some. Pages lie on this disk as well."""
    arenas = [path.name.rpartition("-")[0] for path in (cramped.data.root / "arenas").rglob("*.kv")]
    assert sorted(arenas) == ["decode-0", "prefill-0"]
    programs = [process_of(cramped, name) for name in ("gateway", "control")]
    with crowd(cramped), full(cramped.data.root):
        with pytest.raises(psycopg.OperationalError):
            write_64_mib(cramped)
        with pytest.raises(openai.APIStatusError) as refusal:
            ask(cramped, "bread")
        assert refusal.value.status_code == 503
    assert [process_of(cramped, name) for name in ("gateway", "control")] == programs


def write_64_mib(stack: Stack) -> None:
    with database(stack) as connection:
        for _ in range(64):
            connection.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1048576))")
