"""A crowd of requests, and at half time one kind of process is killed: what is lost, and for how long is everybody silent?

infra/chaos/deaths.py                    every kind, one after the other, on embedded servers
infra/chaos/deaths.py --servers          on this machine's PostgreSQL, RabbitMQ and Redis, in a place of its own there
infra/chaos/deaths.py --requests 60 --roles decode
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.bench.support.client import Stream
from infra.chaos.books import Books
from infra.chaos.kitchen import Again, Answer, Kitchen
from infra.chaos.matrix import place
from infra.chaos.orders import Oracle, Order, crowd

ROLES = {
    "prefill": ("worker-prefill-0",),
    "decode": ("worker-decode-0",),
    "dispatcher": ("dispatcher",),
    "control": ("control",),
    "gateway": ("gateway",),
    "workers": ("worker-prefill-0", "worker-decode-0"),
}
TOGETHER = (20, 60)
CHANGE_AFTER = 25  # answers; then another number of requests run together
RESUMED_S = 6.0  # a lease of 4 s, and what the reaper and the next owner take


@dataclass(frozen=True, slots=True)
class Toll:
    """What a death cost. `refused` and `interrupted` calls were asked again; `taken_over` streams had text before and after it."""

    role: str
    killed: int
    requests: int
    lost: int
    refused: int
    interrupted: int
    wrong_texts: int
    wrong_tokens: int
    wrong_usage: int
    wrong_money: int
    violations: int
    taken_over: int
    first_resumed_s: float | None
    last_resumed_s: float | None
    silence_s: float
    took_s: float
    faults: list[str]

    @property
    def good(self) -> bool:
        resumed = self.last_resumed_s is None or self.last_resumed_s <= RESUMED_S
        return self.killed == len(ROLES[self.role]) and not self.lost and not self.faults and resumed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", action="store_true")
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--roles", default=",".join(ROLES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="brigade-deaths-") as folder, place(servers=options.servers) as urls:
        tolls = run(options.roles.split(","), Path(folder), urls, seed=options.seed, requests=options.requests)
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "tolls": [asdict(toll) for toll in tolls]}, indent=1))
    bad = [toll for toll in tolls if not toll.good]
    print(f"{len(tolls) - len(bad)} passed, {len(bad)} failed, seed {options.seed}, {time.monotonic() - began:.0f} s")
    sys.exit(bool(bad))


def run(roles: Sequence[str], folder: Path, servers: Mapping[str, str], *, seed: int, requests: int) -> list[Toll]:
    """In one kitchen, one death after the other; prints each."""
    tolls = []
    with Kitchen(folder / "deaths", servers) as kitchen:
        books = Books(kitchen, Oracle(folder / "models").right)
        for role in roles:
            kitchen.wait_ready()
            tolls.append(_one_death(role, kitchen, books, seed=seed, requests=requests))
            _show(tolls[-1])
        kitchen.manage("check_invariants")
    return tolls


def _one_death(role: str, kitchen: Kitchen, books: Books, *, seed: int, requests: int) -> Toll:
    began = time.monotonic()
    label = f"{role} dies"
    rush = _Rush(kitchen, role, label, random.Random(f"{seed} {label}"))
    answers = asyncio.run(rush.serve(crowd(label, requests, seed)))
    took_s = time.monotonic() - began
    faults = [*books.wait_rest(), *books.faults(answers, label)]
    violations = books.violations()
    attempts = books.attempts(label)
    done = [answer.stream for answer in answers if answer.stream]
    again = [stream for stream in done if attempts.get(stream.request_id, 1) > 1]
    resumed = [seconds for stream in again if (seconds := _resumed_s(stream, rush.killed_at)) is not None]
    kinds = Counter(fault.split(":")[0] for fault in faults)
    errors = sum(len(answer.errors) for answer in answers)
    refused = sum(answer.refused for answer in answers)
    left = set(rush.killed) & set(kitchen.pids(*ROLES[role]))
    return Toll(
        role=role,
        killed=len(rush.killed) - len(left),
        requests=requests,
        lost=requests - len(done),
        refused=refused,
        interrupted=errors - refused,
        wrong_texts=kinds["text"] + kinds["reason"],
        wrong_tokens=kinds["tokens of the log"] + kinds["tokens of the stream"],
        wrong_usage=kinds["usage"] + kinds["rows"],
        wrong_money=kinds["money"] + kinds["receipt"],
        violations=len(violations),
        taken_over=len(resumed),
        first_resumed_s=min(resumed, default=None),
        last_resumed_s=max(resumed, default=None),
        silence_s=round(max(silence for stream in done for silence in stream.silences_s), 2),
        took_s=round(took_s, 1),
        faults=[*faults, *violations, *(error for answer in answers if not answer.stream for error in answer.errors[-1:])],
    )


def _resumed_s(stream: Stream, killed_at: float) -> float | None:
    """From the kill to the end of the longest silence after it; what was on its way to the client is no resumption."""
    if not stream.chunk_times or not stream.chunk_times[0] < killed_at < stream.chunk_times[-1]:
        return None
    pairs = [pair for pair in zip(stream.chunk_times, stream.chunk_times[1:], strict=False) if pair[1] > killed_at]
    longest = max(pairs, key=lambda pair: pair[1] - pair[0])
    return round(longest[1] - killed_at, 2)


class _Rush:
    """Clients that come as others leave; how many are there together changes. At half time the role is killed."""

    def __init__(self, kitchen: Kitchen, role: str, label: str, chance: random.Random) -> None:
        self._kitchen = kitchen
        self._role = role
        self._label = label
        self._chance = chance
        self.killed: list[int] = []
        self.killed_at = 0.0

    async def serve(self, orders: Sequence[Order]) -> list[Answer]:
        again: Again = "always" if self._role == "gateway" else "refused"
        tasks: list[asyncio.Task[Answer]] = []
        limit = self._chance.randint(*TOGETHER)
        while len(tasks) < len(orders) or not all(task.done() for task in tasks):
            running = [task for task in tasks if not task.done()]
            for order in orders[len(tasks) : len(tasks) + max(0, limit - len(running))]:
                tasks.append(asyncio.create_task(self._kitchen.ask(order, self._label, again=again)))
            done = len(tasks) - len(running)
            if not self.killed and done >= len(orders) // 2:
                self._kill()
            if done // CHANGE_AFTER != (done - 1) // CHANGE_AFTER:
                limit = self._chance.randint(*TOGETHER)
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        return [task.result() for task in tasks]

    def _kill(self) -> None:
        self.killed = self._kitchen.pids(*ROLES[self._role])
        self.killed_at = time.time()
        for pid in self.killed:
            os.kill(pid, signal.SIGKILL)


def _show(toll: Toll) -> None:
    counts = ", ".join(f"{name} {value}" for name, value in asdict(toll).items() if name not in ("role", "faults"))
    print(f"{toll.role}: {counts}{'' if toll.good else '  <--'}", flush=True)
    for fault in toll.faults[:20]:
        print(f"    {fault[:500]}", flush=True)


if __name__ == "__main__":
    main()
