"""Lengths of time as a person writes them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from helios.errors import Misuse

UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1)}


def length(text: Any, *, or_none: bool = False) -> timedelta:
    """Read a length of time, as ``7d``, ``12h`` or ``90min``; with ``or_none`` also one of 0.

    Raises
    ------
    Misuse
        It is none.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(d|h|min)", text) if isinstance(text, str) else None
    if parts is None or not (or_none or float(parts[1])):
        raise Misuse(f"{text!r} is not a length of time.", remedy="Write 7d, 12h or 90min")
    return float(parts[1]) * UNITS[parts[2]]
