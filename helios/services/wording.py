"""Lengths of time and amounts of GPU time as a person says them, for reasons."""

from __future__ import annotations

MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0


def duration(seconds: float) -> str:
    """Return a length of time to two digits: ``45 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 1.5 * MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 1.5 * HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    if seconds < 2 * DAY_S:
        return f"{_short(seconds / HOUR_S)} h"
    return f"{_short(seconds / DAY_S)} days"


def gpu_time(seconds: float) -> str:
    """Return GPU time: ``50 GPU-seconds``, ``24 GPU-minutes``, ``6.5 GPU-hours``, ``12 GPU-days``."""
    if seconds < 1.5 * MINUTE_S:
        return f"{seconds:.0f} GPU-seconds"
    if seconds < 1.5 * HOUR_S:
        return f"{seconds / MINUTE_S:.0f} GPU-minutes"
    if seconds < 2 * DAY_S:
        return f"{_short(seconds / HOUR_S)} GPU-hours"
    return f"{_short(seconds / DAY_S)} GPU-days"


def counted(number: int, noun: str) -> str:
    """Return ``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
