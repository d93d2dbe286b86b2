"""Data types of demand forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import ConfigurationInvalid, FrameInvalid
from helios.model import STEP_S, Demand

AHEAD_S = (3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 24 * 3_600)
"""Horizons of every forecast, s."""
LEVELS = (0.5, 0.9, 0.99)
"""Quantiles of the most nodes needed within a horizon."""
AHEAD = tuple(ahead_s // STEP_S for ahead_s in AHEAD_S)
"""The horizons in steps."""
DAY = 86_400 // STEP_S
"""Steps of a day."""
_LONGEST_HOLIDAYS_DAYS = 366


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Horizons at which each part of a forecast is wanted, s, of ``AHEAD_S``.

    The other horizons are NaN and not trained. ``most`` ascends in horizon, so that a horizon also depends on the
    shorter ones.
    """

    point: tuple[int, ...] = AHEAD_S
    mean: tuple[int, ...] = AHEAD_S
    most: tuple[int, ...] = AHEAD_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """A site's time zone and holidays.

    Attributes
    ----------
    zone : ZoneInfo
        Zone of the site's local time.
    holidays : frozenset of date
        Local dates. Weekends need not be listed.
    """

    zone: ZoneInfo
    holidays: frozenset[date] = frozenset()

    def describe(self, ended_s: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the calendar features of each step.

        They are hour of the day, weekday (Monday is 0), and whether the day and the next one are holidays.

        Parameters
        ----------
        ended_s : int64 array of shape (n_steps,)
            Ends of steps, s since the epoch.

        Returns
        -------
        float32 array of shape (n_steps, 4)
        """
        local = pd.DatetimeIndex(ended_s.astype("datetime64[s]")).tz_localize("UTC").tz_convert(self.zone)
        local = local.tz_localize(None)
        features = np.zeros((len(ended_s), 4), dtype=np.float32)
        features[:, 0] = local.hour + local.minute / 60
        features[:, 1] = local.day_of_week
        if self.holidays:
            holidays = np.array(sorted(self.holidays), dtype="datetime64[D]")
            today = local.to_numpy().astype("datetime64[D]")
            features[:, 2] = np.isin(today, holidays)
            features[:, 3] = np.isin(today + np.timedelta64(1, "D"), holidays)
        return features


@lru_cache(maxsize=16)
def parse_holidays(text: str) -> frozenset[date]:
    """Read ``2026-12-25, 2026-12-28..2027-01-03`` as dates.

    Raises
    ------
    ConfigurationInvalid
        A part is not a date, or a span runs backwards or for more than a year.
    """
    days: set[date] = set()
    for part in filter(None, (word.strip() for word in text.split(","))):
        first, _, last = part.partition("..")
        try:
            start, end = date.fromisoformat(first.strip()), date.fromisoformat((last or first).strip())
        except ValueError as reason:
            raise _holidays_error(part) from reason
        if not 0 <= (end - start).days <= _LONGEST_HOLIDAYS_DAYS:
            raise _holidays_error(part)
        days |= {start + timedelta(days=number) for number in range((end - start).days + 1)}
    return frozenset(days)


def _holidays_error(part: str) -> ConfigurationInvalid:
    return ConfigurationInvalid(
        f"demand.holidays: {part!r} is not a day, nor a span of days within a year",
        hint="Write 2026-12-25, 2026-12-28..2027-01-03",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemandJobState:
    """Features of a pool's jobs at the end of each step.

    See :func:`helios.predict.demand.features.job_state`.

    Attributes
    ----------
    names : tuple of str
        Names of the columns of ``values``.
    values : float32 array of shape (n_steps, n_features)
        One row for each step. A row uses nothing that happened after the end of its step.
    """

    names: tuple[str, ...]
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise FrameInvalid(f"a job state of shape {self.values.shape} does not fit its {len(self.names)} names")

    def rows(self, first: int, after: int) -> DemandJobState:
        """Return the steps ``first`` to ``after`` - 1."""
        return DemandJobState(names=self.names, values=self.values[first:after])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecasts:
    """Forecasts of the busy nodes of one pool, made at the ends of some steps.

    Attributes
    ----------
    ahead_s : tuple of int
        Horizons, s.
    levels : tuple of float
        Quantiles of ``most``.
    point : float64 array of shape (n_steps, n_ahead)
        Busy nodes in the step that ends ``ahead_s`` later.
    mean : float64 array of shape (n_steps, n_ahead)
        Mean of the busy nodes over the steps of the next ``ahead_s``.
    most : float64 array of shape (n_steps, n_ahead, n_levels)
        Quantiles of the maximum of the busy nodes over these steps, ascending in level and in horizon.
    source : str
        The method, for people. The last one if it changed between steps.
    """

    ahead_s: tuple[int, ...]
    levels: tuple[float, ...]
    point: NDArray[np.float64]
    mean: NDArray[np.float64]
    most: NDArray[np.float64]
    source: str


def assemble(
    pools: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64], Forecasts]], *, ended_s: int
) -> Demand:
    """Combine the series and forecasts of several pools.

    Parameters
    ----------
    pools : mapping
        For each pool, busy and total nodes of shape (n_steps,), whose last step ended at ``ended_s``, and the forecasts
        made at the last of these steps. Series of unequal length are cut to the shortest.

    Raises
    ------
    FrameInvalid
        There is no pool, or forecasts of more steps than a series has.
    """
    if not pools:
        raise FrameInvalid("the demand of no pool at all was to be assembled")
    n_steps = min(len(busy) for busy, _, _ in pools.values())
    forecasts = [pool_forecasts for _, _, pool_forecasts in pools.values()]
    return Demand(
        pools=tuple(pools),
        ended_s=ended_s,
        busy=np.stack([busy[len(busy) - n_steps :] for busy, _, _ in pools.values()]).astype(np.float64),
        total=np.stack([total[len(total) - n_steps :] for _, total, _ in pools.values()]).astype(np.float64),
        ahead_s=forecasts[0].ahead_s,
        levels=forecasts[0].levels,
        point=np.stack([_align_end(pool.point, n_steps) for pool in forecasts]),
        mean=np.stack([_align_end(pool.mean, n_steps) for pool in forecasts]),
        most=np.stack([_align_end(pool.most, n_steps) for pool in forecasts]),
        source=", ".join(dict.fromkeys(pool.source for pool in forecasts)),
    )


def _align_end(values: NDArray[np.float64], n_steps: int) -> NDArray[np.float64]:
    """Return the last ``n_steps`` rows, with NaN before them if there are fewer."""
    aligned = np.full((n_steps, *values.shape[1:]), np.nan)
    last = values[max(len(values) - n_steps, 0) :]
    aligned[n_steps - len(last) :] = last
    return aligned
