"""What a kWh costs and emits, hour by hour: a file of prices and carbon, or two constants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.errors import EmptyDataError, ParserError

from helios.config import Energy
from helios.errors import FileUnreadable, FormatUnknown

TIME, PRICE, CARBON = "time", "price_per_kwh", "co2_g_per_kwh"
HOUR_S = 3_600
G_PER_KG = 1_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tariff:
    """Price and carbon of a kWh over time; each value holds until the next one.

    Attributes
    ----------
    since_s : int64 array of shape (n,)
        From when each value holds, s since the epoch, ascending; empty: the constants always do.
    price_per_kwh, co2_g_per_kwh : float64 arrays of shape (n,)
    before : pair of float
        Price and carbon before the first of them: the constants of the configuration.
    currency : str
    source : str
        The file; empty: the configuration.
    """

    since_s: NDArray[np.int64]
    price_per_kwh: NDArray[np.float64]
    co2_g_per_kwh: NDArray[np.float64]
    before: tuple[float, float]
    currency: str
    source: str = ""

    def cost_of(
        self, kwh: NDArray[np.float64], *, edges_s: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return money and kg of carbon dioxide of energy that was drawn evenly within each stretch of time.

        Parameters
        ----------
        kwh : array of shape (..., n)
        edges_s : array of shape (n + 1,)
            Where the stretches begin and the last one ends, s since the epoch, ascending.
        """
        price = self._means(self.price_per_kwh, self.before[0], edges_s)
        carbon = self._means(self.co2_g_per_kwh, self.before[1], edges_s)
        return kwh * price, kwh * carbon / G_PER_KG

    def notes(self, begin_s: int, end_s: int) -> list[str]:
        """Say where in [begin_s, end_s) the file does not say what a kWh costs, and what was taken instead."""
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
        """Return the mean of a step function within each stretch."""
        if len(values) == 0:
            return np.full(len(edges_s) - 1, before)
        first = min(int(edges_s[0]), int(self.since_s[0]) - 1)
        last = max(int(edges_s[-1]), int(self.since_s[-1]) + 1)
        knots = np.concatenate([[first], self.since_s, [last]])
        areas = np.concatenate([[0.0], np.cumsum(np.diff(knots) * np.concatenate([[before], values]))])
        means: NDArray[np.float64] = np.diff(np.interp(edges_s, knots, areas)) / np.diff(edges_s)
        return means


def tariff_of(energy: Energy) -> Tariff:
    """Return what the configuration says: its constants, or its file of hourly values.

    Raises
    ------
    FileUnreadable
        The file is not there, or not readable.
    FormatUnknown
        It lacks a column, or a line has no time or no number.
    """
    before = (energy.price_per_kwh, energy.co2_g_per_kwh)
    if not energy.hourly:
        nothing = np.array([], dtype=np.float64)
        return Tariff(
            since_s=nothing.astype(np.int64),
            price_per_kwh=nothing,
            co2_g_per_kwh=nothing,
            before=before,
            currency=energy.currency,
        )
    path = Path(energy.hourly).expanduser()
    table = _read(path)
    return Tariff(
        since_s=table[TIME].to_numpy(dtype=np.int64),
        price_per_kwh=_numbers(table, PRICE, path, otherwise=before[0]),
        co2_g_per_kwh=_numbers(table, CARBON, path, otherwise=before[1]),
        before=before,
        currency=energy.currency,
        source=str(path),
    )


def _read(path: Path) -> pd.DataFrame:
    """Return the file's lines in the order of time, the time as s since the epoch."""
    try:
        table = pd.read_csv(path, dtype="str", skipinitialspace=True)
    except (OSError, UnicodeDecodeError) as reason:
        raise FileUnreadable(f"{path} cannot be read: {reason}", remedy="Correct energy.hourly.") from reason
    except (ParserError, EmptyDataError) as reason:
        raise FormatUnknown(f"{path} is not a CSV file: {reason}", remedy=_REMEDY) from reason
    table.columns = table.columns.str.strip()
    if TIME not in table or not {PRICE, CARBON} & set(table.columns):
        there = ", ".join(map(str, table.columns)) or "none"
        raise FormatUnknown(f"{path} has the columns {there}.", remedy=_REMEDY)
    moments = pd.to_datetime(table[TIME], utc=True, errors="coerce", format="ISO8601")
    if moments.isna().any():
        wrong = int(np.flatnonzero(moments.isna().to_numpy())[0])
        raise FormatUnknown(f"{path}, line {wrong + 2}: {table[TIME].iloc[wrong]!r} is no time.", remedy=_REMEDY)
    seconds = moments.to_numpy(dtype="datetime64[s]").astype(np.int64)
    return table.assign(**{TIME: seconds}).sort_values(TIME, kind="stable").drop_duplicates(TIME, keep="last")


def _numbers(table: pd.DataFrame, name: str, path: Path, *, otherwise: float) -> NDArray[np.float64]:
    if name not in table:
        return np.full(len(table), otherwise)
    read: Any = pd.to_numeric(table[name], errors="coerce")
    if not np.isfinite(read).all():
        wrong = int(np.flatnonzero(~np.isfinite(read.to_numpy()))[0])
        line = int(table.index[wrong]) + 2
        raise FormatUnknown(f"{path}, line {line}: {name} is {table[name].iloc[wrong]!r}, no number.", remedy=_REMEDY)
    return np.asarray(read, dtype=np.float64)


def _step_s(since_s: NDArray[np.int64]) -> int:
    return int(np.median(np.diff(since_s))) if len(since_s) > 1 else HOUR_S


def _written(moment_s: int) -> str:
    return f"{datetime.fromtimestamp(int(moment_s), tz=UTC):%Y-%m-%d %H:%M} UTC"


_REMEDY = (
    "Write it as time,price_per_kwh,co2_g_per_kwh with a line an hour: 2026-11-20T14:00+01:00,0.31,412 "
    "(one of the two may be left out; a time without a zone is UTC; prices may be below zero)."
)
