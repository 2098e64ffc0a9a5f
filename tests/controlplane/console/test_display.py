"""How numbers read."""

from __future__ import annotations

import pytest

from controlplane.console.display import (
    METERS,
    age,
    charge,
    chart,
    duration_ms,
    money,
    parts,
    quantity,
    table,
    text,
    unit_price,
    usd,
    usd_cents,
)
from inference.usage.models import Meter


@pytest.mark.parametrize(
    ("amount_nano_usd", "shown"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (1_500_000_000, "$1.50"),
        (-12_340_000_000, "-$12.34"),
        (1_234_567_000_000_001, "$1,234,567.000000001"),
    ],
)
def test_money_is_exact_to_the_nano_dollar(amount_nano_usd: int, shown: str) -> None:
    assert usd(amount_nano_usd) == shown


def test_cents_keep_their_sign() -> None:
    assert [usd_cents(cents) for cents in (0, 5, 123_456, -5)] == ["$0.00", "$0.05", "$1,234.56", "-$0.05"]


def test_quantities_and_prices_carry_their_unit() -> None:
    assert quantity(1_234, "token") == "1,234 tokens"
    assert quantity(5_400_000_001, "token_microsecond") == "5,400.000001 token-seconds"
    assert unit_price(500_000_000, 3_600_000_000_000_000, "token_microsecond") == "$0.50 / 1M token-hours"
    assert unit_price(100_000_000, 1_000_000, "token") == "$0.10 / 1M tokens"
    assert unit_price(3, 7, "token") == "$0.000000003 / 7 tokens"


def test_the_amounts_of_a_column_have_the_same_decimals() -> None:
    shown = table(("a", "b#"), [(text("x"), money(1_500_000_000)), (text("y"), money(None))], foot=(text("sum"), money(1_250)))
    assert [row[1].text for row in (*shown.rows, shown.foot)] == ["$1.50000000", "—", "$0.00000125"]
    assert [row[0].text for row in (*shown.rows, shown.foot)] == ["x", "y", "sum"]


def test_what_was_used_never_costs_exactly_nothing() -> None:
    assert [charge(0, used=used).text for used in (True, False)] == ["< $0.000000001", "$0.00"]
    assert charge(1, used=True).text == "$0.000000001"
    shown = table(("a#",), [(charge(0, used=True),), (money(10_000_000),)])
    assert [row[0].text for row in shown.rows] == ["< $0.000000001", "$0.010000000"]


def test_every_meter_has_a_name_of_its_own() -> None:
    assert len({METERS[meter] for meter in Meter}) == len(Meter)


def test_durations_and_ages_choose_their_unit() -> None:
    assert [duration_ms(value) for value in (None, "x", True, 12.34, 12_340)] == ["—", "—", "—", "12.3 ms", "12.3 s"]
    assert [age(seconds) for seconds in (None, 1.25, 600, 7_200, 200_000)] == ["—", "1.2 s", "10 min", "2 h", "2 d"]


def test_bars_and_charts_of_nothing_are_empty() -> None:
    assert [part.width for part in parts([("a", 0, "a")], 0)] == ["0"]
    assert chart([], most="").bars == ()
    assert [bar.height for bar in chart([("d", 0, "d")], most="$0").bars] == ["0.00"]


def test_the_parts_of_a_bar_follow_each_other() -> None:
    found = parts([("a", 25, "a"), ("b", 50, "b"), ("c", 25, "c")], 100)
    assert [(part.x, part.width) for part in found] == [("0.00", "25.00"), ("25.00", "50.00"), ("75.00", "25.00")]
