"""How numbers read."""

from __future__ import annotations

import pytest

from controlplane.console.display import age, chart, duration_ms, parts, quantity, unit_price, usd, usd_cents


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
    assert quantity(5_400_000_000, "token_microsecond") == "1.5000 token-hours"
    assert unit_price(100_000_000, 1_000_000, "token") == "$0.10 / 1M tokens"
    assert unit_price(3, 7, "token") == "$0.000000003 / 7 tokens"


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
