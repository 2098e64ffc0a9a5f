"""Numbers as people read them, and the few shapes that every page is made of. Templates print these and decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from inference.usage.models import Meter

NANO = 1_000_000_000
TOKEN_HOUR_US = 3_600_000_000
TOKEN_SECOND_US = 1_000_000
NONE = "—"
LESS_THAN_ANY = "< $0.000000001"

METERS: dict[str, str] = {
    Meter.PREFILL_COMPUTED: "prompt tokens, computed",
    Meter.PREFILL_CACHED: "prompt tokens, from cache",
    Meter.DECODE: "completion tokens",
    Meter.KV_TOKEN_SECONDS: "KV cache, token-seconds",
    Meter.RECOMPUTED: "recomputed tokens",
}

STATE_KINDS = {
    "done": "good",
    "ready": "good",
    "active": "good",
    "open": "busy",
    "queued": "busy",
    "prefilling": "busy",
    "decoding": "busy",
    "draining": "warn",
    "cancelled": "warn",
    "expired": "bad",
    "failed": "bad",
    "dead": "bad",
    "suspended": "bad",
    "revoked": "bad",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """`kind` is a class of the style sheet: number, code, or a badge (badge good, badge bad, ...).

    `decimals` is set where the text is an exact amount of money, so that its column can show as many.
    """

    text: str
    kind: str = ""
    url: str = ""
    decimals: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    empty: str = "Nothing here yet."
    note: str = ""
    foot: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: Cell
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar 100 units long, `width` from `x` on."""

    name: str
    text: str
    x: str
    width: str
    kind: str


def table(titles: Sequence[str], rows: Iterable[Sequence[Cell]], *, foot: Sequence[Cell] = (), **options: Any) -> Table:
    """A title that ends in `#` heads a column of numbers. All amounts of a column, the foot's too, get the same decimals."""
    columns = tuple(Cell(title.rstrip("#"), "number" if title.endswith("#") else "") for title in titles)
    lines = [*map(tuple, rows), *([tuple(foot)] if foot else [])]
    most = [max(cell.decimals for cell in column) for column in zip(*lines, strict=True)]
    lines = [tuple(_with_decimals(cell, many) for cell, many in zip(line, most, strict=True)) for line in lines]
    return Table(columns, tuple(lines[:-1] if foot else lines), foot=lines[-1] if foot else (), **options)


def _with_decimals(cell: Cell, decimals: int) -> Cell:
    return replace(cell, text=cell.text + "0" * (decimals - cell.decimals)) if cell.decimals else cell


def text(value: object, url: str = "") -> Cell:
    return Cell(NONE if value in (None, "") else str(value), "", url)


def code(value: object, url: str = "") -> Cell:
    return Cell(NONE if value in (None, "") else str(value), "code", url)


def number(value: float | Decimal | None, url: str = "") -> Cell:
    return Cell(NONE if value is None else f"{value:,}", "number", url)


def badge(state: str, shown: str = "") -> Cell:
    return Cell(shown or state, f"badge {STATE_KINDS.get(state, 'plain')}")


def money(amount_nano_usd: int | None) -> Cell:
    if amount_nano_usd is None:
        return Cell(NONE, "number")
    shown = usd(amount_nano_usd)
    return Cell(shown, "number", decimals=len(shown.partition(".")[2]))


def charge(amount_nano_usd: int, *, used: bool) -> Cell:
    """What use cost. Nothing that was used is shown as exactly zero: its remainder is carried on."""
    return Cell(LESS_THAN_ANY, "number", decimals=9) if used and amount_nano_usd == 0 else money(amount_nano_usd)


def meter_name(meter: str) -> str:
    return METERS.get(meter, meter.replace("_", " "))


def moment(at: datetime | None) -> Cell:
    return Cell(NONE if at is None else f"{at:%Y-%m-%d %H:%M:%S}", "time")


def instant(at: datetime) -> Cell:
    return Cell(f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}", "time")


def milliseconds(value: Any) -> Cell:
    return Cell(duration_ms(value), "number")


def usd(amount_nano_usd: int, *, decimals: int = 2) -> str:
    """Exact to the nano-dollar; at least `decimals` are shown."""
    whole, part = divmod(abs(amount_nano_usd), NANO)
    digits = f"{part:09d}".rstrip("0").ljust(decimals, "0")
    return f"{'-' if amount_nano_usd < 0 else ''}${whole:,}.{digits}"


def usd_short(amount_nano_usd: int) -> str:
    """Four decimals, for overviews."""
    return f"${Decimal(amount_nano_usd) / NANO:,.4f}"


def usd_cents(amount_cents: int) -> str:
    return f"{'-' if amount_cents < 0 else ''}${abs(amount_cents) // 100:,}.{abs(amount_cents) % 100:02d}"


def quantity(value: int | Decimal, unit: str) -> str:
    """Exact: a token-second has six decimals, as it is counted in microseconds."""
    if unit != "token_microsecond":
        return f"{int(value):,} {unit}s"
    seconds, rest_us = divmod(int(value), TOKEN_SECOND_US)
    return f"{seconds:,}.{rest_us:06d} token-seconds"


def unit_price(nano_usd: int, per: int, unit: str) -> str:
    if unit == "token_microsecond":
        return f"{usd(nano_usd)} / {_round_number(per // TOKEN_HOUR_US)} token-hours"
    return f"{usd(nano_usd)} / {_round_number(per)} {unit}s"


def _round_number(value: int) -> str:
    return f"{value // 1_000_000:,}M" if value and value % 1_000_000 == 0 else f"{value:,}"


def duration_ms(value: Any) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return NONE
    return f"{value:,.1f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def age(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.1f} {unit}" if divisor == 1 else f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def parts(pieces: Sequence[tuple[str, int, str]], total: int) -> list[Part]:
    """A bar of pieces (name, value, kind), one after the other."""
    begun, found = 0, []
    for name, value, kind in pieces:
        found.append(Part(name, f"{value:,}", _share(begun, total), _share(value, total), kind))
        begun += value
    return found


def _share(value: int, total: int) -> str:
    return f"{100 * max(value, 0) / total:.2f}" if total > 0 else "0"


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars for an SVG of 100 x `height` units; heights are prepared."""

    bars: tuple[ChartBar, ...]
    most: str
    first: str
    last: str
    height: int = 100


@dataclass(frozen=True, slots=True)
class ChartBar:
    x: str
    y: str
    width: str
    height: str
    title: str


def chart(values: Sequence[tuple[str, int, str]], *, most: str, height: int = 100) -> Chart:
    """`values`: label, amount, what the bar says. Not below zero."""
    top = max((value for _, value, _ in values), default=0)
    step = 1000 / max(len(values), 1)
    bars = []
    for index, (_, value, title) in enumerate(values):
        tall = height * value / top if top else 0
        bars.append(ChartBar(f"{index * step + step * 0.1:.2f}", f"{height - tall:.2f}", f"{step * 0.8:.2f}", f"{tall:.2f}", title))
    return Chart(tuple(bars), most, values[0][0] if values else "", values[-1][0] if values else "", height)


@dataclass(frozen=True, slots=True)
class Link:
    title: str
    url: str
    kind: str = ""
