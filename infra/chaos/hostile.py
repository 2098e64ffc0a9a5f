"""Thousands of hostile calls on the real product, many at a time: no 5xx, no hang, nothing kept, and right text for everybody else.

infra/chaos/hostile.py --calls 10000 --seed 1 [--json FILE]

A call is a case of the corpus, a mutation of one (its body, or all of its bytes), or an ordinary request, of which some hang up.
After each hundred a canary is asked whose text is known. Memory is flat where the last third of a long run grows by less than
SLOPE_KIB a call; it, descriptors and threads must end about where the first third ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from inference.contracts import SamplingParams
from infra.chaos import gauges
from infra.chaos.books import Books
from infra.chaos.corpus import Case, armed, chat, corpus
from infra.chaos.gauges import Gauge
from infra.chaos.kitchen import Kitchen
from infra.chaos.orders import Oracle, Order
from infra.chaos.wire import Reply, fault, leak, refusal_fault, send

AT_ONCE = 24
HUNDRED = 100
PATIENCE_S = 90.0  # a request that is whole is answered
HALF_S = 1.5  # one that may be half is left after this
WARM_CALLS = 1_000  # until then a worker meets sizes of batches that it has not met before
SLOPE_KIB = 2.0  # the pages of a worker's KV pool, 8 MiB, count when they are touched first
MORE_KIB = 32 << 10  # from the first third to the end
MORE_DESCRIPTORS, MORE_THREADS = 8, 4
LENGTH = re.compile(rb"(?i)^(Content-Length: )[0-9]+(?=\r)", re.MULTILINE)
SPICE = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\ud800", b"\\u0000", b"\0", b"\xff", b"\xf0\x9f", b"NaN", b"1e999", b"-"),
    *(b"null", b"true", b'"n":', b'"stop":', b'"stream":true,', b'"max_tokens":1,', b'"seed":-1,', b"9" * 400, b"[" * 50, b"\r\n"),
    *(b"<|im_end|>", b"\xe2\x80\xae", b'"logit_bias":{"1":1},', b'"messages":[],', b"0x1", b".", b"e", b"\n\n", b"%00", b" " * 300),
)
CANARY = Order("canary", SamplingParams(max_tokens=24, temperature=0.0), stream=True)


@dataclass(slots=True)
class Report:
    """Good where `faults` is empty."""

    calls: int
    seed: int
    took_s: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    canaries: int = 0
    looks: list[Gauge] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("calls", "seed", "took_s", "canaries", "faults")}
        return {**plain, "statuses": dict(self.statuses), "looks": [look.to_json() for look in self.looks]}


class Attack:
    def __init__(self, kitchen: Kitchen, report: Report) -> None:
        self._kitchen = kitchen
        self._report = report
        self._port = urlsplit(kitchen.base_url).port or 0
        self._cases = corpus()
        self._chance = random.Random(report.seed)

    async def hundred(self, count: int) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(seed: int) -> None:
            async with gate:
                await self._call(random.Random(seed))

        await asyncio.gather(*(one(self._chance.getrandbits(64)) for _ in range(count)))

    async def _call(self, chance: random.Random) -> None:
        kind = chance.random()
        case = chance.choice(self._cases)
        if kind < 0.4:
            await self._as_it_stands(case)
        elif kind < 0.7:
            await self._with_body_mutated(case, chance)
        elif kind < 0.85:
            await self._with_bytes_mutated(case, chance)
        else:
            await self._ordinary(chance)

    async def _as_it_stands(self, case: Case) -> None:
        reply = await self._send(case.kind + ": " + case.name, case.wire, PATIENCE_S)
        if reply is not None:
            self._note(case.kind + ": " + case.name, fault(reply, case.statuses, secret=self._kitchen.api_key))

    async def _with_body_mutated(self, case: Case, chance: random.Random) -> None:
        """The length is told as it is, so an answer must come."""
        head, _, body = (case.wire if len(LENGTH.findall(case.wire)) == 1 else chat()).partition(b"\r\n\r\n")
        body = mutated(body, chance)
        wire = LENGTH.sub(b"\\g<1>%d" % len(body), head + b"\r\n\r\n", count=1) + body
        name = f"body of {case.kind}: {case.name}: {body[:200]!r}"
        reply = await self._send(name, wire, PATIENCE_S)
        if reply is not None and reply.status >= 400:
            self._note(name, refusal_fault(reply, secret=self._kitchen.api_key))
        elif reply is not None and reply.status == 0 and b"chunked" not in head:
            self._note(name, "no answer")

    async def _with_bytes_mutated(self, case: Case, chance: random.Random) -> None:
        """It may be no request, or half of one: that it is waited for is all right."""
        wire = mutated(armed(case, self._kitchen.api_key), chance)
        await self._send(f"bytes of {case.kind}: {case.name}: {wire[:200]!r}", wire, HALF_S, half=True)

    async def _ordinary(self, chance: random.Random) -> None:
        wire = chat(
            messages=[{"role": "user", "content": "spoon " * chance.randint(1, 60)}],
            max_tokens=chance.choice((1, 2, 8, 24)),
            temperature=chance.choice((0, 1)),
            stream=chance.random() < 0.6,
        )
        hangs_up = chance.random() < 0.25
        reply = await self._send("ordinary", wire, chance.random() * 0.2 if hangs_up else PATIENCE_S, half=hangs_up)
        if reply is not None and (reply.status != 200 or b'"error"' in reply.body):
            self._note("ordinary", f"{reply.status} {reply.body[:200]!r}")

    async def _send(self, name: str, wire: bytes, patience_s: float, *, half: bool = False) -> Reply | None:
        try:
            reply = await send(self._port, wire.replace(b"$KEY", self._kitchen.api_key.encode()), patience_s=patience_s)
        except TimeoutError:
            self._report.statuses[-1 if half else -2] += 1
            self._note(name, "" if half else f"no answer in {patience_s:g} s")
            return None
        self._report.statuses[reply.status] += 1
        self._note(name, f"{reply.status}: {reply.body[:300]!r}" if reply.status >= 500 or b"server_error" in reply.body else "")
        self._note(name, leak(reply) if reply.status >= 400 else "")
        return reply

    def _note(self, name: str, text: str) -> None:
        if text:
            self._report.faults.append(f"{name}: {text}")


def mutated(wire: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut, doubled, or spiced."""
    found = bytearray(wire)
    for _ in range(chance.randint(1, 4)):
        place = chance.randint(0, len(found))
        length = chance.choice((1, 2, 10, 100))
        match chance.randint(0, 3):
            case 0:
                found[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del found[place : place + length]
            case 2:
                found[place:place] = found[max(0, place - length) : place] * chance.choice((1, 2, 40))
            case 3:
                found[place:place] = chance.choice(SPICE)
    return bytes(found)


def run(calls: int, seed: int) -> Report:
    report = Report(calls, seed)
    with tempfile.TemporaryDirectory(prefix="brigade-hostile-") as folder, Kitchen(Path(folder) / "data", {}) as kitchen:
        oracle = Oracle(kitchen.data.models)
        kitchen.wait_ready()
        began = time.monotonic()
        asyncio.run(_attack(kitchen, oracle, report))
        report.took_s = round(time.monotonic() - began, 1)
        books = Books(kitchen, oracle.right)
        report.faults += [*books.wait_rest(), *books.violations()]
        time.sleep(6)  # the server's own time for idle connections
        report.looks.append(gauges.read(kitchen, calls))
    report.faults += kept(report.looks)
    return report


async def _attack(kitchen: Kitchen, oracle: Oracle, report: Report) -> None:
    attack = Attack(kitchen, report)
    [song] = oracle.right(CANARY).texts
    for done in range(0, report.calls, HUNDRED):
        if done % max(HUNDRED, report.calls // 30 // HUNDRED * HUNDRED) == 0:
            report.looks.append(gauges.read(kitchen, done))
        await attack.hundred(min(HUNDRED, report.calls - done))
        answer = await kitchen.ask(CANARY, "canary", again="never")
        report.canaries += 1
        if answer.stream is None or answer.stream.texts.get(0) != song:
            report.faults.append(f"the canary after {done + HUNDRED} calls: {answer}")


def kept(looks: list[Gauge]) -> list[str]:
    """What the product holds at the end and did not hold when it was warm, or what still grows."""
    warm, last = looks[len(looks) // 3], looks[-1]
    found = [
        f"{count} {name} at the end" for name, count in {**last.rows, "slots": last.slots}.items() if count and name not in FEW
    ]
    found += [f"{name}: {last.rows[name]}" for name, most in FEW.items() if last.rows[name] > most]
    for name, role in last.roles.items():
        before = warm.roles[name]
        if role.pids != looks[0].roles[name].pids:
            found.append(f"{name} was started again: {looks[0].roles[name].pids}, {role.pids}")
        if warm.calls >= WARM_CALLS and role.rss_kib - before.rss_kib > MORE_KIB:
            found.append(f"{name} grew from {before.rss_kib} to {role.rss_kib} KiB")
        late = [(float(look.calls), float(look.roles[name].rss_kib)) for look in looks[len(looks) * 2 // 3 :]]
        if warm.calls >= WARM_CALLS and gauges.slope(late) > SLOPE_KIB:
            found.append(f"{name} still grows by {gauges.slope(late):.2f} KiB a call")
        if role.descriptors > before.descriptors + MORE_DESCRIPTORS or role.threads > before.threads + MORE_THREADS:
            found.append(f"{name} holds {role.descriptors} descriptors and {role.threads} threads, warm {before}")
    return found


FEW = {"gateways": 1, "workers": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options.calls, options.seed)
    if options.json:
        options.json.write_text(json.dumps(report.to_json(), indent=1))
    print(gauges.table([report.looks[0], report.looks[len(report.looks) // 3], report.looks[-1]]))
    print(
        f"{report.calls} calls in {report.took_s} s, {report.canaries} canaries; by status: {dict(sorted(report.statuses.items()))}"
    )
    print("\n".join(report.faults[:50]) or "nothing kept, nothing wrong")
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
