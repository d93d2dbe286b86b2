"""Values of reports in the forms that JSON has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pandas as pd


def plain(value: Any) -> Any:
    """Return dataclasses, frames and containers as plain values.

    A frame becomes a list of its rows. What is missing or not finite is None. Moments stay as they are.
    """
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, pd.DataFrame):
        return value.astype(object).where(value.notna(), None).to_dict("records")
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None  # without the sign of a negative zero
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [plain(part) for part in value]
