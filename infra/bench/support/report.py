"""The one form of a benchmark's result: a table for people, rows for machines (`--json FILE`)."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Better = Literal["higher", "lower"]
SMALL_DIFFERENCE = 0.2
PAIRS_FOR_SMALL_DIFFERENCE = 10


@dataclass(frozen=True, slots=True)
class Row:
    """`ratio` is value / peer_value, the median over interleaved pairs; `spread` is (max - min) / median of `value`."""

    id: str
    figure: str
    value: float
    unit: str
    better: Better
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    spread: float | None = None
    pairs: int = 0


def row(id_: str, figure: str, values: Sequence[float], unit: str, better: Better) -> Row:
    """Several runs of ours alone."""
    return Row(id_, figure, _round(statistics.median(values)), unit, better, spread=spread(values), pairs=len(values))


def paired(id_: str, figure: str, ours: Sequence[float], peer: str, theirs: Sequence[float], unit: str, better: Better) -> Row:
    """Runs in turn: ours, theirs, ours, theirs. The ratio is the median of the pairs' ratios, for the machine drifts."""
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    value, peer_value = statistics.median(ours), statistics.median(theirs)
    return Row(id_, figure, _round(value), unit, better, peer, _round(peer_value), _round(ratio), spread(ours), len(ours))


def spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return _round((max(values) - min(values)) / middle) if middle else 0.0


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    return parser


def publish(rows: Sequence[Row], file: Path | None) -> None:
    print(f"{'figure':<58} {'value':>10} {'unit':<9} {'peer':<10} {'peer value':>10} {'ratio':>7} {'spread':>7} {'pairs':>5}")
    for entry in rows:
        print(
            f"{entry.figure:<58} {entry.value:>10} {entry.unit:<9} {entry.peer or '-':<10} {_shown(entry.peer_value):>10} "
            f"{_shown(entry.ratio):>7} {_shown(entry.spread):>7} {entry.pairs:>5}{_caution(entry)}"
        )
    if file is not None:
        file.write_text(json.dumps([asdict(entry) for entry in rows], indent=1) + "\n")


def _caution(entry: Row) -> str:
    small = entry.ratio is not None and abs(entry.ratio - 1) < SMALL_DIFFERENCE and entry.pairs < PAIRS_FOR_SMALL_DIFFERENCE
    return "  (too few pairs to call this a difference)" if small else ""


def _shown(value: float | None) -> str:
    return "-" if value is None else str(value)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
