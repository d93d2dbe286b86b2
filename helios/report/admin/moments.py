"""Moments as sacct's ``-S`` and ``-E`` take them: a documented part of Slurm's words, on the cluster's own clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

from helios.config import zone
from helios.errors import Misuse

WORDS = "now, now-1days, today, yesterday, midnight, noon, 2026-11-01, 2026-11-01T08:00, 08:00"
UNITS_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_FROM_NOW = re.compile(r"now([+-])(\d{1,6})([a-z]*)")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def moment_in_words(text: str, *, now: datetime, timezone: str) -> datetime:
    """Read a moment as sacct does.

    Parameters
    ----------
    text : str
        ``now``, ``now-3hours`` (seconds, minutes, hours, days, weeks; without a unit seconds), ``today`` or
        ``midnight`` (the day's begin), ``noon``, ``yesterday``, ``HH:MM[:SS]`` (today), ``YYYY-MM-DD`` (its begin) or
        ``YYYY-MM-DDTHH:MM[:SS]``, with a zone or without.
    now : datetime
        Aware.
    timezone : str
        Zone of the cluster's clock, for what names none.

    Raises
    ------
    Misuse
        It is none of these.
    """
    word = text.strip()
    local = now.astimezone(zone(timezone))
    if found := _FROM_NOW.fullmatch(word.lower()):
        return (now + int(f"{found[1]}1") * int(found[2]) * _unit(found[3], text)).astimezone(UTC)
    if (named := _named(word.lower(), local)) is not None:
        return named.astimezone(UTC)
    return _dated(word, local).astimezone(UTC)


def local_day(day: datetime, *, timezone: str) -> tuple[datetime, datetime]:
    """Return the begin of the day that ``day`` falls in, and of the next, on the clock of ``timezone``."""
    begin = _begin(day.astimezone(zone(timezone)))
    # Arithmetic within one zone is by the wall clock, so that a day of 23 or 25 hours ends at midnight too.
    return begin.astimezone(UTC), (begin + timedelta(days=1)).astimezone(UTC)


def _unit(name: str, text: str) -> timedelta:
    for unit, seconds in UNITS_S.items():
        if name and f"{unit}s".startswith(name) and (len(name) >= 3 or name == unit[0]):
            return timedelta(seconds=seconds)
    if name:
        raise _not_understood(text)
    return timedelta(seconds=1)


def _named(word: str, local: datetime) -> datetime | None:
    midnight = _begin(local)
    named = {
        "now": local,
        "today": midnight,
        "midnight": midnight,
        "noon": midnight.replace(hour=12),
        "yesterday": midnight - timedelta(days=1),
    }
    return named.get(word)


def _dated(word: str, local: datetime) -> datetime:
    try:
        if _CLOCK.fullmatch(word):
            clock = time.fromisoformat(word.zfill(5 if word.count(":") == 1 else 8))
            return datetime.combine(local.date(), clock, local.tzinfo)
        read = datetime.fromisoformat(word) if re.match(r"\d{4}-\d{2}-\d{2}", word) else None
    except ValueError:
        read = None
    if read is None:
        raise _not_understood(word)
    return read if read.tzinfo else read.replace(tzinfo=local.tzinfo)


def _begin(local: datetime) -> datetime:
    return local.replace(hour=0, minute=0, second=0, microsecond=0)


def _not_understood(text: str) -> Misuse:
    return Misuse(f"{text!r} is not a moment that is understood.", remedy=f"Write it as one of: {WORDS}")
