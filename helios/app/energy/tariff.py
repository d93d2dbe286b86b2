"""Price and carbon of a kWh.

They come from a file of hourly values, or are two constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.errors import EmptyDataError, ParserError

from helios.config import Energy
from helios.errors import FileUnreadable, FormatUnknown
from helios.units import HOUR_S

TIME, PRICE, CARBON = "time", "price_per_kwh", "co2_g_per_kwh"
G_PER_KG = 1_000
_HINT = (
    "Write it as time,price_per_kwh,co2_g_per_kwh with a line an hour: 2026-11-20T14:00+01:00,0.31,412 "
    "(one of the two may be left out; a time without a zone is UTC; prices may be below zero)."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tariff:
    """Price and carbon of a kWh over time, as step functions.

    Attributes
    ----------
    since_s : int64 array of shape (n,)
        From when each value holds, s since the epoch, ascending. Empty where the constants always hold.
    price_per_kwh, co2_g_per_kwh : float64 arrays of shape (n,)
    before : pair of float
        Price and carbon before the first of them, the constants of the configuration.
    source : str
        The file; empty for the configuration.
    """

    since_s: NDArray[np.int64]
    price_per_kwh: NDArray[np.float64]
    co2_g_per_kwh: NDArray[np.float64]
    before: tuple[float, float]
    source: str = ""

    def cost_of(
        self, kwh: NDArray[np.float64], *, edges_s: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return cost and kg of carbon dioxide of energy in time intervals.

        The energy is taken to be drawn evenly within each interval.

        Parameters
        ----------
        kwh : array of shape (..., n)
        edges_s : array of shape (n + 1,)
            Where the intervals begin and the last one ends, s since the epoch, ascending.
        """
        price = self._means(self.price_per_kwh, self.before[0], edges_s)
        carbon = self._means(self.co2_g_per_kwh, self.before[1], edges_s)
        return kwh * price, kwh * carbon / G_PER_KG

    def notes(self, begin_s: int, end_s: int) -> list[str]:
        """Return notes on times in [begin_s, end_s) without values in the file.

        Each says what was used instead.
        """
        if not self.source:
            return []
        said = []
        if len(self.since_s) == 0 or begin_s < self.since_s[0]:
            first = "nothing" if len(self.since_s) == 0 else f"only from {_written(self.since_s[0])} on"
            said.append(f"{self.source} tells prices {first}: before it those of [energy] are taken.")
        if len(self.since_s) and end_s > self.since_s[-1] + _step_s(self.since_s):
            said.append(
                f"{self.source} ends at {_written(self.since_s[-1])}: the last price and carbon hold from there on."
            )
        return said

    def _means(self, values: NDArray[np.float64], before: float, edges_s: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the mean of a step function within each interval."""
        if len(values) == 0:
            return np.full(len(edges_s) - 1, before)
        first = min(int(edges_s[0]), int(self.since_s[0]) - 1)
        last = max(int(edges_s[-1]), int(self.since_s[-1]) + 1)
        knots = np.concatenate([[first], self.since_s, [last]])
        areas = np.concatenate([[0.0], np.cumsum(np.diff(knots) * np.concatenate([[before], values]))])
        means: NDArray[np.float64] = np.diff(np.interp(edges_s, knots, areas)) / np.diff(edges_s)
        return means


def tariff_from(energy: Energy) -> Tariff:
    """Return the tariff of the configuration, constants or a file.

    Raises
    ------
    FileUnreadable
        The file is not there, or not readable.
    FormatUnknown
        It lacks a column, or a line has no time or no number.
    """
    before = (energy.price_per_kwh, energy.co2_g_per_kwh)
    if not energy.hourly:
        since_s, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Tariff(since_s=since_s, price_per_kwh=nothing, co2_g_per_kwh=nothing, before=before)
    path = Path(energy.hourly).expanduser()
    try:
        table = pd.read_csv(path, dtype="str", skipinitialspace=True)
    except (OSError, UnicodeDecodeError) as reason:
        raise FileUnreadable(f"{path} cannot be read: {reason}", hint="Correct energy.hourly.") from reason
    except (ParserError, EmptyDataError) as reason:
        raise FormatUnknown(f"{path} is not a CSV file: {reason}", hint=_HINT) from reason
    table.columns = table.columns.str.strip()
    if TIME not in table or not {PRICE, CARBON} & set(table.columns):
        there = ", ".join(map(str, table.columns)) or "none"
        raise FormatUnknown(f"{path} has the columns {there}.", hint=_HINT)
    moments = pd.to_datetime(table[TIME], utc=True, errors="coerce", format="ISO8601")
    _refuse(moments.isna(), table, path, TIME, "no time")
    told = pd.DataFrame({TIME: moments.to_numpy(dtype="datetime64[s]").astype(np.int64)})
    for name, constant in zip((PRICE, CARBON), before, strict=True):
        told[name] = pd.to_numeric(table[name], errors="coerce") if name in table else constant
        _refuse(~np.isfinite(told[name]), table, path, name, "no number")
    # Of several lines with one time the last counts.
    told = told.sort_values(TIME, kind="stable").drop_duplicates(TIME, keep="last")
    since_s, price, carbon = (told[name].to_numpy() for name in (TIME, PRICE, CARBON))
    return Tariff(
        since_s=since_s,
        price_per_kwh=price.astype(np.float64),
        co2_g_per_kwh=carbon.astype(np.float64),
        before=before,
        source=str(path),
    )


def _refuse(wrong: pd.Series, table: pd.DataFrame, path: Path, name: str, what: str) -> None:
    """Raise FormatUnknown for the first wrong value of a column."""
    for row in np.flatnonzero(wrong.to_numpy())[:1]:
        raise FormatUnknown(f"{path}, line {row + 2}: {name} is {table[name].iloc[row]!r}, {what}.", hint=_HINT)


def _step_s(since_s: NDArray[np.int64]) -> int:
    return int(np.median(np.diff(since_s))) if len(since_s) > 1 else HOUR_S


def _written(moment_s: int) -> str:
    return f"{datetime.fromtimestamp(int(moment_s), tz=UTC):%Y-%m-%d %H:%M} UTC"
