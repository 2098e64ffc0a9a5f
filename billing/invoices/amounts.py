"""Periods and cents: pure functions."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from billing.errors import PeriodRefused

NANO_USD_PER_CENT = 10_000_000


def cents_from_nano_usd(amount_nano_usd: int) -> int:
    """The one place where money is rounded: to the nearest cent, half a cent up."""
    return (amount_nano_usd + NANO_USD_PER_CENT // 2) // NANO_USD_PER_CENT


def month_bounds(first: date, time_zone: str) -> tuple[datetime, datetime]:
    """Half-open, in UTC: from midnight of `first` to midnight of the next month's first day, by the clocks of the zone.

    Midnights come from the calendar, never from adding hours: a month with a clock change is an hour longer or shorter, and
    the end of a month is the start of the next.
    """
    if first.day != 1:
        raise PeriodRefused(f"{first} is not the first day of a month")
    following = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    zone = _zone(time_zone)
    return _midnight(first, zone), _midnight(following, zone)


def month_of(moment: datetime, time_zone: str) -> date:
    """The first day of the month that the moment lies in."""
    return moment.astimezone(_zone(time_zone)).date().replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise PeriodRefused(f"{name!r} is not a time zone") from error
