"""Every failpoint with every action, one after the other, on the real product: nothing lost, nothing wrong, nothing twice.

infra/chaos/matrix.py                    the whole matrix on embedded servers
infra/chaos/matrix.py --part 3           a seeded third of it
infra/chaos/matrix.py --only decode.step one point
DATABASE_URL=... BROKER_URL=amqp://... REDIS_URL=... infra/chaos/matrix.py      on other servers
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.chaos.kitchen import Kitchen, Outcome
from infra.chaos.scenarios import Scenario, matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", type=int, default=1, help="run one scenario in so many")
    parser.add_argument("--only", default="", help="points whose name begins so")
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [scenario for scenario in matrix(options.seed)[:: options.part] if scenario.point.startswith(options.only)]
    outcomes = run(chosen, options.streams)
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "outcomes": [asdict(outcome) for outcome in outcomes]}, indent=1))
    bad = [outcome for outcome in outcomes if not outcome.good]
    print(f"{len(outcomes) - len(bad)} passed, {len(bad)} failed")
    sys.exit(bool(bad))


def run(scenarios: list[Scenario], streams: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    print(
        f"{'scenario':<34} {'fired':>5} {'streams':>7} {'lost':>5} {'wrong':>5} {'silence s':>9} {'violations':>10} {'took s':>7}"
    )
    with tempfile.TemporaryDirectory(prefix="brigade-chaos-") as folder:
        kitchen = Kitchen(Path(folder) / "data")
        kitchen.start()
        try:
            for scenario in scenarios:
                began = time.monotonic()
                outcomes.append(kitchen.run(scenario, streams))
                _show(outcomes[-1], time.monotonic() - began)
        finally:
            kitchen.stop()
    return outcomes


def _show(outcome: Outcome, took_s: float) -> None:
    counts = f"{outcome.streams:>7} {outcome.lost:>5} {outcome.wrong:>5} {outcome.resumed_s:>9} {len(outcome.violations):>10}"
    print(f"{outcome.scenario:<34} {outcome.fired!s:>5} {counts} {took_s:>7.1f}{'' if outcome.good else '  <--'}", flush=True)
    for line in (*outcome.errors, *outcome.violations):
        print(f"    {line}")


if __name__ == "__main__":
    main()
