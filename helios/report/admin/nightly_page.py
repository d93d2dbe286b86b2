"""The nightly report as one self-contained HTML page."""

from __future__ import annotations

import pandas as pd
from matplotlib.ticker import FuncFormatter, MultipleLocator

from helios.report.admin.nightly import ENERGY, QUEUE, WAITS, Digest
from helios.report.admin.sacct_format import FieldKind, write_values
from helios.report.charts import BLUE, GREY, ORANGE, PALE, canvas, date_axis, local_times
from helios.report.energy_charts import nodes_over_time, saved_by_day
from helios.report.html import PageSection, inline, render_sections, to_cells
from helios.units import duration

TICKS_S = (1, 5, 15, 60, 300, 900, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 86_400, 2 * 86_400, 7 * 86_400)


def waits_by_day(digest: Digest, *, narrow: bool = False) -> str | None:
    """Draw mean and p95 wait of the jobs started on each day.

    None where no start is known.
    """
    daily = digest.daily
    if daily["mean_wait_s"].isna().all():
        return None
    days = local_times(daily["time"], digest.timezone)
    with canvas("Mean and p95 wait of each day of the last four weeks", height=2.4, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        colours = [PALE] * (len(days) - 1) + [ORANGE]
        axes.bar(days, daily["p95_wait_s"], color=colours, width=0.8, label="one in 20 waits longer")
        axes.plot(days, daily["mean_wait_s"], color=BLUE, marker="o", ms=3.5, lw=1.4, label="mean")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MultipleLocator(_tick_s(float(daily["p95_wait_s"].max()))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds) if seconds else "0"))
        date_axis(axes, narrow=narrow, offset=False)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def queue_by_hour(digest: Digest, *, narrow: bool = False) -> str | None:
    """Draw the hourly means of waiting and running jobs of the day.

    GPUs in place of jobs where any are used or waited for. None where nothing waited or ran.
    """
    hourly = digest.hourly
    if not (hourly["waiting"].any() or hourly["running"].any()):
        return None
    gpus = bool(hourly["running_gpus"].any() or hourly["waiting_gpus"].any())
    unit, suffix = ("GPUs", "_gpus") if gpus else ("jobs", "")
    # The last hour is drawn to its end.
    hourly = pd.concat([hourly, hourly.tail(1).assign(time=hourly["time"].iloc[-1] + pd.Timedelta(hours=1))])
    hours = local_times(hourly["time"], digest.timezone)
    with canvas(f"Waiting and running {unit} of the day by hour", height=2.2, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.fill_between(hours, hourly[f"running{suffix}"], step="post", color=PALE, label=f"{unit} in use")
        axes.step(hours, hourly[f"waiting{suffix}"], where="post", color=BLUE, lw=1.8, label=f"{unit} waited for")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit, color=GREY)
        date_axis(axes, narrow=narrow, offset=False)
        drawing.figure.legend(loc="outside lower center", ncols=2)
    return drawing.svg


def _tick_s(top_s: float) -> float:
    """Return a round tick distance for an axis from 0 to ``top_s``.

    In s; the shortest with at most four ticks.
    """
    return next((tick for tick in TICKS_S if top_s <= 4 * tick), top_s / 4)


def render_nightly(digest: Digest) -> str:
    """Return the page of a night."""
    energy = digest.energy
    drawn = {WAITS: [inline(waits_by_day, digest)], QUEUE: [inline(queue_by_hour, digest)]}
    if energy is not None:
        drawn[ENERGY] = [inline(nodes_over_time, energy.day), inline(saved_by_day, energy.days)]
    sections = [
        PageSection(
            title=section.title,
            sentences=section.sentences,
            figures=drawn.get(section.title, ()),
            tables=[to_cells(table) for table in section.tables],
            notes=section.notes,
        )
        for section in digest.sections
    ]
    return render_sections(
        f"{digest.cluster}, {write_values(digest.begin, FieldKind.MOMENT, timezone=digest.timezone)[:10]}",
        f"Times on the cluster's own clock ({digest.timezone}).",
        sections,
        alarming=digest.alarming,
        footer="Written by Helios from history and its own audit; to write it, nothing on the cluster was read or "
        "changed.",
    )
