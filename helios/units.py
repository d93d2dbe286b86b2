"""Durations, sizes and shares as people read and write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from math import isnan
from typing import Any

from helios.errors import UsageError

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400

UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1)}

_SINGULARS = {
    "^jobs": "job",
    "^rows": "row",
    "^bytes": "byte",
    "^lines": "line",
    "^(job|row|byte)( that|) have": r"\1\2 has",
    "^(job|row|byte)( that|) are": r"\1\2 is",
    "^errors stand": "error stands",
    "^(job|row|byte)( that|) were": r"\1\2 was",
    "^(line.*) were skipped": r"\1 was skipped",
    "^job( that|) (hold|ask|start|seem)": r"job\1 \2s",
    r"^row of (\S+) make": r"row of \1 makes",
    "were (left out|not replayed|read as)": r"was \1",
    "go to": "goes to",
    "their (start|submission|whole|partition|size|sum|limit|run|GPUs)": r"its \1",
    "they held": "it held",
    "they have": "it has",
    "they started": "it started",
    "they count": "it counts",
    "they are": "it is",
}
"""Plural words of notes about jobs or rows, with their singulars, in the order in which they are replaced."""


def best_unit(resource: str) -> str:
    """Return the unit of a resource, ``GPU`` for ``gpus``."""
    return resource.removesuffix("s").upper()


def duration(seconds: float | None) -> str:
    """Format a length of time with at most two units.

    Examples: ``42s``, ``12m05s``, ``3h05m``, ``5d03h``. A dash for None.
    """
    if seconds is None:
        return "-"
    rounded_s = round(seconds)
    for unit_s, name, below_s, below_name in (
        (DAY_S, "d", HOUR_S, "h"),
        (HOUR_S, "h", MINUTE_S, "m"),
        (MINUTE_S, "m", 1, "s"),
    ):
        if rounded_s >= unit_s:
            return f"{rounded_s // unit_s}{name}{rounded_s % unit_s // below_s:02d}{below_name}"
    return f"{rounded_s}s"


def duration_in_words(seconds: float) -> str:
    """Format a length of time as in a sentence.

    Examples: ``42 s``, ``1 min 29 s``, ``12 min``, ``3 h 5 min``, ``5 days 3 h``.
    """
    rounded_s = round(seconds)
    if rounded_s < MINUTE_S:
        return f"{rounded_s} s"
    if rounded_s < 10 * MINUTE_S:
        minutes, left_s = divmod(rounded_s, MINUTE_S)
        return f"{minutes} min {left_s} s" if left_s else f"{minutes} min"
    if rounded_s < 2 * DAY_S:
        hours, minutes = divmod(round(rounded_s / MINUTE_S), 60)
        if not hours:
            return f"{minutes} min"
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(rounded_s / HOUR_S), 24)
    return f"{days} days {hours} h" if hours else f"{days} days"


def change(value: float | None, base: float | None) -> str:
    """Format how ``value`` differs from ``base``.

    Examples: ``-56 %``, and from a factor of 2 on ``x 3.2``. A dash where there is no value or base.
    """
    if value is None or not base:
        return "-"
    ratio = value / base
    return f"x {ratio:.1f}" if ratio >= 2 else f"{round(100 * (ratio - 1)):+d} %"


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share of 1 in per cent, or None as a dash."""
    # Adding 0.0 removes the sign of a negative zero.
    return "-" if share is None else f"{round(100 * share, digits) + 0.0:.{digits}f} %"


def bar(share: float, *, width: int = 20) -> str:
    """Return a share of 1 as a bar of block characters."""
    eighths = round(8 * width * share)
    return "█" * (eighths // 8) + ("▏▎▍▌▋▊▉"[eighths % 8 - 1] if eighths % 8 else "")


def sparkline(values: Iterable[float]) -> str:
    """Return values as a line of block characters, the largest highest."""
    numbers = list(values)
    top = max(numbers, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * value / top))] for value in numbers)


def length(text: Any, *, or_none: bool = False) -> timedelta:
    """Parse a length of time such as ``7d``, ``12h`` or ``90min``.

    A length of 0 is accepted only with ``or_none``.

    Raises
    ------
    UsageError
        The text is not a length of time.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(d|h|min)", text) if isinstance(text, str) else None
    if parts is None or not (or_none or float(parts[1])):
        raise UsageError(f"{text!r} is not a length of time.", hint="Write 7d, 12h or 90min")
    return float(parts[1]) * UNITS[parts[2]]


def rounded_duration(seconds: float) -> str:
    """Format a length of time with two digits.

    Examples: ``45 s``, ``12 min``, ``3.5 h``, ``2.1 days``.
    """
    return _two_digits(seconds, ("s", "min", "h", "days"))


def gpu_time(seconds: float) -> str:
    """Format an amount of GPU time.

    Examples: ``50 GPU-seconds``, ``24 GPU-minutes``, ``6.5 GPU-hours``, ``12 GPU-days``.
    """
    return _two_digits(seconds, ("GPU-seconds", "GPU-minutes", "GPU-hours", "GPU-days"))


def count_in_words(number: float, noun: str) -> str:
    """Return a number with its noun, such as ``0.25 GPUs``."""
    return f"{write_count(number)} {noun}" if number == 1 else f"{write_count(number)} {noun}s"


def as_count(number: float) -> float:
    """Return a number as an integer where it is whole."""
    return int(number) if number == round(number, 0) else number


def write_count(number: float) -> str:
    """Return a count with up to three decimals, and whole ones without.

    Examples: ``8``, ``0.25``, ``unknown``.
    """
    if isnan(number):
        return "unknown"
    return f"{number:.0f}" if number == round(number) else f"{number:.3f}".rstrip("0")


def in_number(count: int, sentence: str) -> str:
    """Return a count with a plural sentence about jobs or rows.

    For a count of 1, ``jobs have no limit`` becomes ``1 job has no limit``.
    """
    if count == 1:
        for plural, singular in _SINGULARS.items():
            sentence = re.sub(rf"{plural}\b", singular, sentence)
    return f"{count:,} {sentence}"


def _two_digits(seconds: float, units: tuple[str, str, str, str]) -> str:
    if seconds < 1.5 * MINUTE_S:
        return f"{seconds:.0f} {units[0]}"
    if seconds < 1.5 * HOUR_S:
        return f"{seconds / MINUTE_S:.0f} {units[1]}"
    number, unit = (seconds / HOUR_S, units[2]) if seconds < 2 * DAY_S else (seconds / DAY_S, units[3])
    return f"{number:.0f} {unit}" if number >= 10 or number == int(number) else f"{number:.1f} {unit}"


def format_signed(seconds: float) -> str:
    """Write a difference with its sign, as ``+1h05m``."""
    text = duration(abs(seconds))
    return text if text == "0s" else f"{'+' if seconds > 0 else '-'}{text}"
