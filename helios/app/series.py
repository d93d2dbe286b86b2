"""Use, waiting and submissions by day, for charts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.reports import ReportContext
from helios.dates import local_day
from helios.metrics.job_sums import Sums, bin_quantiles
from helios.warehouse.use import Use

By = Literal["", "partition", "account", "size"]
Step = Literal["hour", "day", "month"]
LONGEST_BY_HOUR = timedelta(days=4)
"""Shortest window that is given by day. Shorter ones are given by hour."""
LONGEST_BY_DAY = timedelta(days=400)
"""Longest window that is given by day. Longer ones are given by month."""
MOST_GROUPS = 8
"""Most groups of a chart: more colours than these are not told apart."""
OTHERS = "others"
_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeriesFrame:
    """Figures of each step and group of a window.

    Attributes
    ----------
    rows : DataFrame
        A row for each step and group, by time and then the group with most hours first: ``day`` (begin of the step in
        the cluster's time zone), ``group`` (empty where all jobs are one), ``gpu_hours`` and ``cpu_hours`` held,
        ``gpu_hours_waited`` and ``cpu_hours_waited`` (over the hours of the step, GPUs that waited on average),
        ``submitted``, ``started`` and ``ended`` jobs, and of the jobs submitted in the step ``p50_wait_s`` and
        ``p90_wait_s``, within 1 %. What is not known is NaN.
    step : str
        ``hour``, ``day`` or ``month``. The first and the last are cut by the window.
    until : datetime
        End of the last step.
    timezone : str
    """

    rows: pd.DataFrame
    step: Step
    until: datetime
    timezone: str


def series(
    context: ReportContext,
    *by: By,
    since: datetime | None = None,
    until: datetime | None = None,
    step: Step | None = None,
) -> list[SeriesFrame]:
    """Return use, waiting and submissions of a window by day, for each way to group.

    A window below ``LONGEST_BY_HOUR`` is given by hour, one above ``LONGEST_BY_DAY`` by month. At most ``MOST_GROUPS``
    groups are named, those with most hours; the rest is ``OTHERS``.

    Parameters
    ----------
    *by : str
        What to group by; empty for one group.
    since, until : datetime, optional
        The window, by default that of the query.
    step : str, optional
        By default it follows from the length of the window.
    """
    since, until = since or context.since, until or context.until
    step = step or step_of(until - since)
    edges = _edges(since, until, step=step, timezone=context.timezone)
    return [_frame(use, edges, step=step, until=until, timezone=context.timezone) for use in context.use(by, edges)]


def _frame(use: Use, edges: list[datetime], *, step: Step, until: datetime, timezone: str) -> SeriesFrame:
    sums, (named, place) = use.sums, _largest(use.sums, use.names)
    shape = pd.MultiIndex.from_product([range(len(edges) - 1), range(len(named))], names=["period", "group"])
    cell = sums.cells["period"].to_numpy() * len(named) + place[sums.cells["group"]]
    cells = sums.cells.groupby(cell).sum().reindex(range(len(shape)), fill_value=0)
    waits = sums.bins.assign(cell=cell[sums.bins["cell"]])
    found = bin_quantiles(waits, "wait", (0.5, 0.9), n_cells=len(shape))
    unknown = ((cells["present"] > 0) & (cells["with_gpus"] == 0)).to_numpy()
    hours = {name: cells[f"{name}_ms"].to_numpy() / _MS_PER_HOUR for name in ("gpu", "cpu", "queued_gpu", "queued_cpu")}
    begins = pd.DatetimeIndex(edges[:-1]).tz_convert(timezone)
    rows = pd.DataFrame(
        {
            "day": begins[shape.get_level_values("period")],
            "group": [named[group] for group in shape.get_level_values("group")],
            "gpu_hours": np.where(unknown, np.nan, hours["gpu"]),
            "cpu_hours": hours["cpu"],
            "gpu_hours_waited": np.where(unknown, np.nan, hours["queued_gpu"]),
            "cpu_hours_waited": hours["queued_cpu"],
            **{name: cells[name].to_numpy() for name in ("submitted", "started", "ended")},
            "p50_wait_s": found[0],
            "p90_wait_s": found[1],
        }
    )
    return SeriesFrame(rows=rows, step=step, until=until, timezone=timezone)


def step_of(length: timedelta) -> Step:
    """Return the step of a window of this length."""
    return "month" if length > LONGEST_BY_DAY else "day" if length >= LONGEST_BY_HOUR else "hour"


def _edges(since: datetime, until: datetime, *, step: Step, timezone: str) -> list[datetime]:
    """Return the edges of the steps.

    They are those of the window, and the full hours, local midnights or first days of months in it.
    """
    if step == "hour":
        hours = pd.date_range(pd.Timestamp(since).ceil("h"), until, freq="h", inclusive="left")
        return [since, *(hour.to_pydatetime() for hour in hours if hour > since), until]
    edges, day = [since], since
    while True:
        _, day = local_day(day, timezone=timezone)
        if day >= until:
            return [*edges, until]
        if step == "day" or pd.Timestamp(day).tz_convert(timezone).day == 1:
            edges.append(day)


def _largest(sums: Sums, names: list[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names to show, and the place of each group among them."""
    total = sums.cells.groupby("group")[["gpu_ms", "cpu_ms", "submitted"]].sum()
    by = "gpu_ms" if bool((total["gpu_ms"] > 0).any()) else "cpu_ms"
    order = total.sort_values([by, "submitted"], ascending=False, kind="stable").index.to_numpy(dtype=np.int64)
    shown = order if len(order) <= MOST_GROUPS else order[: MOST_GROUPS - 1]
    place = np.full(len(names), len(shown), dtype=np.int64)
    place[shown] = np.arange(len(shown))
    return [*(names[group] for group in shown), *([OTHERS] if len(shown) < len(order) else [])], place
