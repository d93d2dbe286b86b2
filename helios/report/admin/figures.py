"""Figures of the nightly page: waits by day, and the day's queue by the hour."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import FuncFormatter, MultipleLocator
from numpy.typing import NDArray

from helios.report.admin.nightly import Digest
from helios.report.drawing import BLUE, GREY, ORANGE, PALE, canvas
from helios.report.words import duration

TICKS_S = (1, 5, 15, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 86_400, 2 * 86_400, 7 * 86_400)


def waits_by_day(digest: Digest, *, narrow: bool = False) -> str | None:
    """Draw mean and p95 wait of the jobs that started on each day; None where no start is known."""
    daily = digest.daily
    if daily["mean_wait_s"].isna().all():
        return None
    days = _local(daily["time"], digest.timezone)
    with canvas("Mean and p95 wait of each day of the last four weeks", height=2.4, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        colours = [PALE] * (len(days) - 1) + [ORANGE]
        axes.bar(days, daily["p95_wait_s"], color=colours, width=0.8, label="one in 20 waits longer")
        axes.plot(days, daily["mean_wait_s"], color=BLUE, marker="o", ms=3.5, lw=1.4, label="mean")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MultipleLocator(_tick_s(float(daily["p95_wait_s"].max()))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds) if seconds else "0"))
        _dates(axes, narrow=narrow)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def queue_by_hour(digest: Digest, *, narrow: bool = False) -> str | None:
    """Draw waiting and running jobs of the day, means of each hour; None where there were none."""
    hourly = digest.hourly
    if not (hourly["waiting"].any() or hourly["running"].any()):
        return None
    gpus = bool(hourly["running_gpus"].any() or hourly["waiting_gpus"].any())
    unit, suffix = ("GPUs", "_gpus") if gpus else ("jobs", "")
    # The last hour is drawn to its end.
    hourly = pd.concat([hourly, hourly.tail(1).assign(time=hourly["time"].iloc[-1] + pd.Timedelta(hours=1))])
    hours = _local(hourly["time"], digest.timezone)
    with canvas(f"Waiting and running {unit} of the day by hour", height=2.2, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.fill_between(hours, hourly[f"running{suffix}"], step="post", color=PALE, label=f"{unit} in use")
        axes.step(hours, hourly[f"waiting{suffix}"], where="post", color=BLUE, lw=1.8, label=f"{unit} waited for")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit, color=GREY)
        _dates(axes, narrow=narrow)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def _tick_s(top_s: float) -> float:
    """Return the round length of time of which at most four fit below ``top_s``."""
    return next((tick for tick in TICKS_S if top_s <= 4 * tick), top_s / 4)


def _local(times: pd.Series, timezone: str) -> NDArray[np.datetime64]:
    """Return moments as the clock on the wall shows them, which is how the axis is to be labelled."""
    shown: NDArray[np.datetime64] = times.dt.tz_convert(timezone).dt.tz_localize(None).to_numpy(dtype="datetime64[s]")
    return shown


def _dates(axes: Axes, *, narrow: bool) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=5 if narrow else 9)  # type: ignore[no-untyped-call]  # because matplotlib does not type it
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, show_offset=False)  # type: ignore[no-untyped-call]  # because as above
    axes.xaxis.set_major_formatter(formatter)
