"""What a running copy holds, read from outside: by role, so that a process that was started again counts as the one before it."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from infra.chaos.kitchen import Kitchen

ROLES = ("gateway", "dispatcher", "worker-prefill-0", "worker-decode-0", "control")
LIVE = {
    "open requests": "SELECT count(*) FROM inference_request WHERE finished_at IS NULL",
    "unrated": "SELECT count(*) FROM inference_usage_pending",
    "open holds": "SELECT count(*) FROM holds_hold WHERE state = 'open'",
    "held nano-dollars": "SELECT coalesce(sum(held_nano_usd), 0)::bigint FROM holds_account",
    "open hand-offs": "SELECT count(*) FROM kv_handoff WHERE released_at IS NULL",
    "held blocks": "SELECT coalesce(sum((pool->>'held')::int + (pool->>'quarantined')::int), 0)::int FROM coordination_worker"
    " WHERE state = 'ready'",
    "gateways": "SELECT count(*) FROM coordination_gateway",
    "workers": "SELECT count(*) FROM coordination_worker",
}


@dataclass(frozen=True, slots=True)
class Role:
    pids: tuple[int, ...]
    rss_kib: int
    descriptors: int
    threads: int
    connections: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """One look. `calls` is what had been asked by then; `slots` are running requests by the rate limiter's account.

    `lasting_entries` are the elements in Valkey of all keys that never expire, the broker's too.
    """

    at_s: float
    calls: int
    roles: dict[str, Role]
    rows: dict[str, int]
    shm_bytes: int
    valkey_keys: int
    lasting_entries: int
    slots: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read(kitchen: Kitchen, calls: int) -> Gauge:
    counted = kitchen.database.execute("SELECT application_name, count(*) FROM pg_stat_activity GROUP BY 1")
    connections: dict[str, int] = dict(counted.fetchall())
    return Gauge(
        at_s=round(time.monotonic(), 1),
        calls=calls,
        roles={role: _role(kitchen.pids(role), connections.get(f"brigade {role}", 0)) for role in ROLES},
        rows={name: _count(kitchen, sql) for name, sql in LIVE.items()},
        shm_bytes=sum(
            path.stat().st_blocks * 512 for folder in kitchen.data.arenas for path in folder.rglob("*") if path.is_file()
        ),
        valkey_keys=int(kitchen.valkey.dbsize()),
        lasting_entries=_lasting_entries(kitchen),
        slots=sum(kitchen.valkey.zcard(key) for key in kitchen.valkey.scan_iter("rate:*:running")),
    )


def _count(kitchen: Kitchen, sql: str) -> int:
    [(count,)] = kitchen.database.execute(sql).fetchall()
    return int(count)


def _lasting_entries(kitchen: Kitchen) -> int:
    entries = 0
    for number in (0, 1):  # the embedded broker has the second one
        valkey: Any = redis.Redis.from_url(f"unix://{kitchen.data.valkey_socket}?db={number}")
        sizes = {b"set": valkey.scard, b"list": valkey.llen, b"hash": valkey.hlen, b"zset": valkey.zcard}
        for key in valkey.scan_iter():
            if valkey.ttl(key) == -1:
                entries += sizes.get(valkey.type(key), valkey.exists)(key)
        valkey.close()
    return entries


def _role(pids: Sequence[int], connections: int) -> Role:
    alive = [Path(f"/proc/{pid}") for pid in pids if Path(f"/proc/{pid}").exists()]
    status = [_status(process) for process in alive]
    return Role(
        pids=tuple(pids),
        rss_kib=sum(int(found["VmRSS"].split()[0]) for found in status),
        descriptors=sum(len(list((process / "fd").iterdir())) for process in alive),
        threads=sum(int(found["Threads"]) for found in status),
        connections=connections,
    )


def _status(process: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two of them (Theil and Sen): what grows always shows, a single step does not."""
    pairs = itertools.combinations(points, 2)
    return statistics.median([(late_y - y) / (late_x - x) for (x, y), (late_x, late_y) in pairs if late_x > x] or [0.0])


def table(gauges: Sequence[Gauge]) -> str:
    lines = [f"{'calls':>7} {'':<17}{'rss MiB':>8} {'descr.':>7} {'threads':>8} {'db conn.':>9}"]
    for gauge in gauges:
        for name, role in gauge.roles.items():
            figures = f"{role.rss_kib / 1024:>8.1f} {role.descriptors:>7} {role.threads:>8} {role.connections:>9}"
            lines.append(f"{gauge.calls:>7} {name:<17}{figures}")
    return "\n".join(lines)
