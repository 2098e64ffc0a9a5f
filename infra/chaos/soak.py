"""An hour of mixed traffic with faults at random moments: clients get what is right, and at the end all is as it was before.

infra/chaos/soak.py --minutes 60 --seed 1 [--rate 1.0] [--json FILE]

Traffic: streams and whole answers, clients that hang up, hostile bodies, crowds, idle pauses. Faults, one at a time: a kill or a
stop of each role, an empty Valkey, all connections to the database cut. Each minute is measured. After a rest the copy holds no
more than before the first fault: see `kept`. A process that was started again counts as its role.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.chaos import gauges
from infra.chaos.books import Books
from infra.chaos.corpus import chat, corpus
from infra.chaos.gauges import ROLES, Gauge
from infra.chaos.kitchen import Kitchen
from infra.chaos.orders import Oracle, Order, crowd
from infra.chaos.wire import send

LABEL = "soak"
MENU = 24  # orders whose right answers are known
CROWD = 12
FAULT_EVERY_S = (20.0, 45.0)
CALM_S = 75.0  # at the beginning: what is held then is what may be held at the end
REST_S = 45.0
PATIENCE_S = 90.0
MORE_RSS_KIB, MORE_DESCRIPTORS, MORE_THREADS, MORE_CONNECTIONS = 96 << 10, 12, 8, 8
MORE_ENTRIES = 8
EMPTY = ("open requests", "unrated", "open holds", "held nano-dollars", "open hand-offs", "held blocks")

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'brigade %' AND pid <> pg_backend_pid()"

Texts = Callable[[Order], dict[int, str]]  # what an order must be answered, by choice


@dataclass(slots=True)
class Report:
    """Good where `faults` is empty. `blows` are the faults that we made, `troubles` what clients saw of them and asked again."""

    minutes: float
    seed: int
    asked: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    blows: list[tuple[float, str]] = field(default_factory=list)
    looks: list[Gauge] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("minutes", "seed", "asked", "troubles", "blows", "faults")}
        return {**plain, "looks": [look.to_json() for look in self.looks]}


class Traffic:
    def __init__(self, kitchen: Kitchen, report: Report, chance: random.Random, right: Texts) -> None:
        self._kitchen = kitchen
        self._report = report
        self._chance = chance
        self._right = right
        self._menu = crowd(LABEL, MENU, report.seed)
        self._cases = corpus()
        self._running: set[asyncio.Task[None]] = set()

    async def flow(self, until: float, rate: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(self._chance.expovariate(rate))
            draw = self._chance.random()
            if draw < 0.01:
                await asyncio.sleep(self._chance.uniform(5, 20))
            elif draw < 0.03:
                for _ in range(CROWD):
                    self._start("order", self._order())
            elif draw < 0.60:
                self._start("order", self._order())
            elif draw < 0.75:
                self._start("hang-up", self._hang_up())
            else:
                self._start("hostile", self._hostile())
        if self._running:
            await asyncio.wait(self._running, timeout=2 * PATIENCE_S)

    def _start(self, kind: str, call: Coroutine[Any, Any, None]) -> None:
        self._report.asked[kind] += 1
        task = asyncio.create_task(call)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report.faults.append(f"{type(error).__name__}: {error}")

    async def _order(self) -> None:
        order = self._chance.choice(self._menu)
        answer = await self._kitchen.ask(order, LABEL, again="always")
        self._report.troubles.update(error[:120] for error in answer.errors)
        if answer.stream is None:
            self._report.faults.append(f"no answer to {order.content[:30]!r}: {answer.errors[-3:]}")
        elif answer.stream.texts != self._right(order):
            self._report.faults.append(f"a wrong answer: {answer.stream.request_id}: {answer.stream.texts!r}")

    async def _hang_up(self) -> None:
        wire = chat(messages=[{"role": "user", "content": "spoon " * self._chance.randint(1, 200)}], max_tokens=200, stream=True)
        try:
            await self._send(wire, self._chance.uniform(0, 0.6))
        except TimeoutError:
            self._report.troubles["hung up"] += 1

    async def _hostile(self) -> None:
        """While something is down the answer may be 503, or none; it is never a 500, and it does not hang."""
        case = self._chance.choice([case for case in self._cases if case.free])
        status = await self._send(case.wire, PATIENCE_S)
        if status not in (*case.statuses, 0, 503):
            self._report.faults.append(f"{case.kind}: {case.name}: {status} instead of {case.statuses}")

    async def _send(self, wire: bytes, patience_s: float) -> int:
        """0 where there is no connection, or no answer on it."""
        try:
            port = urlsplit(self._kitchen.base_url).port or 0
            return (await send(port, wire.replace(b"$KEY", self._kitchen.api_key.encode()), patience_s=patience_s)).status
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            return 0


class Blows:
    """One fault after the other, each seen to have happened."""

    def __init__(self, kitchen: Kitchen, report: Report, chance: random.Random) -> None:
        self._kitchen = kitchen
        self._report = report
        self._chance = chance
        self._began = time.monotonic()

    async def fall(self, until: float) -> None:
        kinds = [*((name, role) for name in ("kill", "stop") for role in ROLES), ("flush", "valkey"), ("cut", "database")]
        waiting: list[tuple[str, str]] = []
        while (pause := self._chance.uniform(*FAULT_EVERY_S)) < until - time.monotonic():
            await asyncio.sleep(pause)
            if not waiting:
                waiting = self._chance.sample(kinds, len(kinds))
            name, target = waiting.pop()
            if self._blow(name, target):
                self._report.blows.append((round(time.monotonic() - self._began, 1), f"{name} {target}"))

    def _blow(self, name: str, target: str) -> bool:
        """Whether it hit: a role may be just on its way up."""
        if name == "flush":
            return bool(self._kitchen.valkey.flushall())
        if name == "cut":
            return len(self._kitchen.database.execute(CUT).fetchall()) > 0
        pids = self._kitchen.pids(target)
        for pid in pids:
            os.kill(pid, signal.SIGKILL if name == "kill" else signal.SIGSTOP)
        return bool(pids)


def run(minutes: float, seed: int, rate: float, tell: Callable[[str], None] = print) -> Report:
    report = Report(minutes, seed)
    with tempfile.TemporaryDirectory(prefix="brigade-soak-") as folder, Kitchen(Path(folder) / "data", {}) as kitchen:
        oracle = Oracle(kitchen.data.models)
        right = {order: dict(enumerate(oracle.right(order).texts)) for order in crowd(LABEL, MENU, seed)}
        kitchen.wait_ready()
        asyncio.run(_soak(kitchen, report, right.__getitem__, rate, tell))
        time.sleep(REST_S)
        kitchen.wait_ready()
        books = Books(kitchen, oracle.right)
        report.faults += [*books.wait_rest(), *books.violations()]
        report.looks.append(gauges.read(kitchen, report.asked.total()))
    report.faults += kept(report.looks)
    return report


async def _soak(kitchen: Kitchen, report: Report, right: Texts, rate: float, tell: Callable[[str], None]) -> None:
    began = time.monotonic()
    until = began + report.minutes * 60
    chance = random.Random(report.seed)
    traffic = Traffic(kitchen, report, random.Random(chance.getrandbits(64)), right)
    watching = asyncio.create_task(_watch(kitchen, report, began, tell))
    flowing = asyncio.create_task(traffic.flow(until, rate))
    try:
        await asyncio.sleep(min(CALM_S, report.minutes * 20))
        report.looks.append(gauges.read(kitchen, report.asked.total()))
        await Blows(kitchen, report, random.Random(chance.getrandbits(64))).fall(until - 20)
        await flowing
    finally:
        watching.cancel()


async def _watch(kitchen: Kitchen, report: Report, began: float, tell: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(60)
        look = await asyncio.to_thread(gauges.read, kitchen, report.asked.total())
        report.looks.append(look)
        rss = " ".join(f"{name} {role.rss_kib >> 10}" for name, role in look.roles.items())
        minute = round((time.monotonic() - began) / 60)
        tell(f"{minute:>3} min, {look.calls} calls, {len(report.blows)} blows, {len(report.faults)} faults; MiB: {rss}")


def kept(looks: list[Gauge]) -> list[str]:
    """What is held at the end and was not when the copy was warm and nothing had happened to it. The first look is that one."""
    warm, last = looks[0], looks[-1]
    found = [f"{last.rows[name]} {name} at the end" for name in EMPTY if last.rows[name]]
    found += [
        f"{last.rows[name]} {name} at the end, {warm.rows[name]} before"
        for name in ("gateways", "workers")
        if last.rows[name] > warm.rows[name]
    ]
    if last.slots:
        found.append(f"{last.slots} slots of the rate limiter at the end")
    if last.shm_bytes > warm.shm_bytes:
        found.append(f"{last.shm_bytes} bytes of shared memory at the end, {warm.shm_bytes} before")
    if last.lasting_entries > warm.lasting_entries + MORE_ENTRIES:
        found.append(f"{last.lasting_entries} entries that never expire in Valkey at the end, {warm.lasting_entries} before")
    for name, role in last.roles.items():
        before = warm.roles[name]
        growth = {
            "KiB": (role.rss_kib, before.rss_kib, MORE_RSS_KIB),
            "descriptors": (role.descriptors, before.descriptors, MORE_DESCRIPTORS),
            "threads": (role.threads, before.threads, MORE_THREADS),
            "connections": (role.connections, before.connections, MORE_CONNECTIONS),
        }
        found += [
            f"{name}: {now} {what} at the end, {then} before" for what, (now, then, more) in growth.items() if now > then + more
        ]
        if len(role.pids) != len(before.pids):
            found.append(f"{name}: processes {role.pids} at the end, {before.pids} before")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0, help="calls per second, on average")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options.minutes, options.seed, options.rate, lambda line: print(line, flush=True))
    if options.json:
        options.json.write_text(json.dumps(report.to_json(), indent=1))
    print(gauges.table([report.looks[0], report.looks[-1]]))
    print(f"asked {dict(report.asked)}; blows {dict(Counter(blow for _, blow in report.blows))}")
    print(f"troubles {dict(report.troubles.most_common(12))}")
    print("\n".join(report.faults[:50]) or "all as it was at the beginning")
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
