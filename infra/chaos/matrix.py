"""Every failpoint with every action, one after the other, on the real product: nothing lost, nothing wrong, nothing twice.

infra/chaos/matrix.py                    the whole matrix on embedded servers (DATABASE_URL, BROKER_URL, REDIS_URL: on those)
infra/chaos/matrix.py --servers          on this machine's PostgreSQL, RabbitMQ and Redis, in a place of its own there
infra/chaos/matrix.py --part 4           a seeded quarter of it
infra/chaos/matrix.py --only decode.step one point
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.chaos.books import Books
from infra.chaos.kitchen import PLACES, Kitchen
from infra.chaos.orders import Oracle, crowd
from infra.chaos.scenarios import Scenario, matrix, part
from infra.chaos.servers import own_place

LATE_S = 20.0  # ingest comes after the streams have ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """`fired` of `times`; `lost` calls had no answer; `silence_s` is the longest that a client waited for the next text."""

    scenario: str
    fired: int
    times: int
    streams: int
    lost: int
    silence_s: float
    took_s: float
    faults: list[str]

    @property
    def good(self) -> bool:
        return self.fired == self.times and not self.lost and not self.faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", action="store_true")
    parser.add_argument("--part", type=int, default=1, help="run one scenario in so many, of each point one at least")
    parser.add_argument("--only", default="", help="scenarios whose name begins so")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [scenario for scenario in part(matrix(options.seed), options.part) if scenario.name.startswith(options.only)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="brigade-chaos-") as folder, place(servers=options.servers) as urls:
        outcomes = run(chosen, Path(folder), urls, Oracle(Path(folder) / "models"), seed=options.seed, streams=options.streams)
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "outcomes": [asdict(outcome) for outcome in outcomes]}, indent=1))
    bad = [outcome for outcome in outcomes if not outcome.good]
    print(f"{len(outcomes) - len(bad)} passed, {len(bad)} failed, seed {options.seed}, {time.monotonic() - began:.0f} s")
    sys.exit(bool(bad))


def place(*, servers: bool) -> AbstractContextManager[dict[str, str]]:
    named = {name: os.environ[name] for name in PLACES if os.environ.get(name)}
    return own_place() if servers else nullcontext(named)


def run(
    scenarios: Iterable[Scenario], folder: Path, servers: Mapping[str, str], oracle: Oracle, *, seed: int, streams: int
) -> list[Outcome]:
    """In a kitchen of its own on `servers`, one after the other; prints each."""
    outcomes: list[Outcome] = []
    where = "servers" if servers else "embedded"
    with Kitchen(folder / where, servers) as kitchen:
        books = Books(kitchen, oracle.right)
        path = "auto"
        for scenario in scenarios:
            if scenario.path != path:
                path = scenario.path
                kitchen.use_path(path)
            outcomes.append(play(scenario, kitchen, books, seed=seed, streams=streams))
            _show(where, outcomes[-1])
        kitchen.manage("check_invariants")
    return outcomes


def play(scenario: Scenario, kitchen: Kitchen, books: Books, *, seed: int, streams: int) -> Outcome:
    """A crowd together, with the failpoint armed; then waits until all is at rest and looks."""
    began = time.monotonic()
    kitchen.wait_ready()
    orders = crowd(scenario.name, streams, seed)
    kitchen.arm(scenario.name, scenario.failpoints)
    answers = kitchen.serve(orders, scenario.name, again="always" if scenario.cuts_clients else "never")
    if scenario.point.startswith("invoice."):
        books.wait_rest()
        kitchen.refresh_invoices()
    fired = _wait_fired(scenario, kitchen)
    kitchen.arm("none", [])
    faults = books.wait_rest()
    if scenario.point.startswith("invoice."):
        faults += books.wait_invoiced()
    faults += [*books.faults(answers, scenario.name), *books.violations()]
    done = [answer.stream for answer in answers if answer.stream]
    faults += [error for answer in answers if not answer.stream for error in answer.errors[-1:]]
    silence_s = max((silence for stream in done for silence in stream.silences_s), default=0.0)
    return Outcome(
        scenario.name,
        fired,
        scenario.times,
        streams,
        streams - len(done),
        round(silence_s, 2),
        round(time.monotonic() - began, 1),
        faults,
    )


def _wait_fired(scenario: Scenario, kitchen: Kitchen) -> int:
    deadline = time.monotonic() + LATE_S
    while (fired := kitchen.fired(scenario.name, scenario.times)) < scenario.times and time.monotonic() < deadline:
        time.sleep(0.05)
    return fired


def _show(where: str, outcome: Outcome) -> None:
    counts = f"fired {outcome.fired}/{outcome.times}  lost {outcome.lost}/{outcome.streams}  silence {outcome.silence_s:>5} s"
    print(f"{where:<9} {outcome.scenario:<34} {counts}  took {outcome.took_s:>5} s{'' if outcome.good else '  <--'}", flush=True)
    for fault in outcome.faults:
        print(f"    {fault[:1000]}", flush=True)


if __name__ == "__main__":
    main()
