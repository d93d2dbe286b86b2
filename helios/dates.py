"""Dates and times as people write them.

Every command, the pages and the settings read them here, so that they are written in one way.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from helios.errors import UsageError

FORMS = "2026-09, 2026-09-01, 2026-09-01T12:00, today, yesterday, now or now-7days"
UNITS_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Bounds of a date. No job is beyond them, and reports of thousands of years take seconds or end in an overflow."""

_FROM_NOW = re.compile(r"now([+-])(\d{1,6})([a-z]*)")
_MONTH = re.compile(r"(\d{4})-(\d{2})")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def parse_date(text: str, *, now: datetime, timezone: str, is_end: bool = False) -> datetime:
    """Return the time that a text means, in UTC.

    Parameters
    ----------
    text : str
        A month (``2026-09``), a day (``2026-09-01``, ``today``, ``yesterday``), or a moment: ``2026-09-01T12:00`` with
        a zone or without, ``now``, or ``now-7days`` (seconds, minutes, hours, days, weeks; without a unit seconds).
    now : datetime
        Aware.
    timezone : str
        Zone of the cluster's clock, for what names none.
    is_end : bool
        Whether it ends a window. A month or a day is then included; else the window begins with it.

    Raises
    ------
    UsageError
        It is none of these, or not within ``EARLIEST`` and ``LATEST``.
    """
    word = text.strip()
    try:
        found = _bounds(word.lower(), now=now, local=now.astimezone(ZoneInfo(timezone)))[is_end].astimezone(UTC)
    except ValueError as reason:
        raise UsageError(f"{word!r} is not a date or time.", hint=f"Write it as one of: {FORMS}") from reason
    except OverflowError:
        found = LATEST  # beyond what a datetime can be
    if not EARLIEST <= found < LATEST:
        raise UsageError(f"{word!r} is not between {EARLIEST:%Y} and {LATEST:%Y}.", hint=f"Write it as one of: {FORMS}")
    return found


def local_day(day: datetime, *, timezone: str) -> tuple[datetime, datetime]:
    """Return begin and end of a day on a local clock.

    The day that ``day`` falls in on the clock of ``timezone``; both moments in UTC.
    """
    begin, end = _day(day.astimezone(ZoneInfo(timezone)))
    return begin.astimezone(UTC), end.astimezone(UTC)


def _bounds(word: str, *, now: datetime, local: datetime) -> tuple[datetime, datetime]:
    """Return begin and end of what a word means."""
    if word == "now":
        return now, now
    if found := _FROM_NOW.fullmatch(word):
        moment = now + int(f"{found[1]}{found[2]}") * _unit(found[3])
        return moment, moment
    if word in {"today", "yesterday"}:
        return _day(local - timedelta(days=word == "yesterday"))
    if found := _MONTH.fullmatch(word):
        year, month = int(found[1]), int(found[2])
        after = (year + month // 12, month % 12 + 1)
        return datetime(year, month, 1, tzinfo=local.tzinfo), datetime(*after, 1, tzinfo=local.tzinfo)
    if not _DAY.match(word):
        raise ValueError(word)
    read = datetime.fromisoformat(word.upper())  # T and Z
    read = read if read.tzinfo else read.replace(tzinfo=local.tzinfo)
    return _day(read) if _DAY.fullmatch(word) else (read, read)


def _day(local: datetime) -> tuple[datetime, datetime]:
    begin = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    # Arithmetic within one zone is by the wall clock, so that a day of 23 or 25 hours ends at midnight too.
    return begin, begin + timedelta(days=1)


def _unit(name: str) -> timedelta:
    """Return the unit that an abbreviation means."""
    for unit, seconds in UNITS_S.items():
        if name and f"{unit}s".startswith(name) and (len(name) >= 3 or name == unit[0]):
            return timedelta(seconds=seconds)
    if name:
        raise ValueError(name)
    return timedelta(seconds=1)
