"""Figures as SVG text: deterministic, without a display, readable in grey and by the colour-blind.

Each is drawn for a desk's screen and paper, or ``narrow`` for a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from helios.metrics import SIZE_CLASSES, mean_level_over_time
from helios.report.describe import Description
from helios.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    canvas,
    date_axis,
    percent_axis,
    rare_share_axis,
    ratio_axis,
    time_axis,
)
from helios.report.tables import CONTROL_NAMES
from helios.report.whatif import Run, WhatIf
from helios.report.words import duration

LINES = (GREY, BLUE, ORANGE, GREEN)
LINE_ORDER = ("balanced", "qssf", "fewest_gpus", "fifo", "sjf")
SIZE_MARKS = dict(zip(SIZE_CLASSES, ((BLUE, "o"), (ORANGE, "s"), (RED, "D")), strict=True))
STATE_COLOURS = {
    "completed": GREEN,
    "cancelled": ORANGE,
    "failed": RED,
    "timeout": PURPLE,
    "other": GREY,
    "unknown": PALE,
}
GAINS, PAYS = "#eaf6f1", "#fdf1e7"
N_STEPS = 300
DRAIN = 0.15
"""How far past the last submission time goes on, as a share of the window: the last long jobs end much later."""
LEAST_WAIT_S = 1.0
LONGEST_NAME = 24


def who_gains(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw each feasible replay's mean wait by size as a multiple of the baseline's; the left gains, the right pays.

    None where there is nothing to compare.
    """
    ratios = {run: _ratios(run, result.baseline) for run in result.feasible}
    known = [ratio for of in ratios.values() for ratio in of.values()]
    if not known:
        return None
    low, high = 0.75 * min(*known, 0.5), 1.35 * max(*known, 2)
    with canvas(
        "Who gains and who pays: mean wait by job size, as a multiple of the first replay's",
        height=1.2 + (0.46 if narrow else 0.36) * len(ratios),
        narrow=narrow,
    ) as drawing:
        axes = drawing.panels[0]
        axes.axvspan(low, 1, color=GAINS, zorder=0)
        axes.axvspan(1, high, color=PAYS, zorder=0)
        for place, of in enumerate(reversed(ratios.values())):
            axes.plot([min(of.values(), default=1), max(of.values(), default=1)], [place] * 2, color=PALE, lw=2)
            for name, ratio in of.items():
                colour, mark = SIZE_MARKS[name]
                axes.scatter(ratio, place, color=colour, marker=mark, s=44, zorder=3)
        for name, (colour, mark) in SIZE_MARKS.items():
            axes.scatter([], [], color=colour, marker=mark, label=f"{name} {result.unit}{'' if name == '1' else 's'}")
        axes.axvline(1, color=INK, lw=1.2)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(ratios)), [_label(run, narrow) for run in reversed(ratios)])
        axes.set_ylim(-0.6, len(ratios) - 0.4)
        same = "as today" if result.baseline.is_today else "the same"
        ratio_axis(axes, low=low, high=high, same=same, narrow=narrow)
        waits = "" if narrow else "waits "
        axes.set_title(f"← {waits}shorter", loc="left", color="#00795a")
        axes.set_title(f"{waits}longer →", loc="right", color="#b3470a")
        drawing.figure.legend(loc="outside lower center", ncols=3)
    return drawing.svg


def mean_and_longest(result: WhatIf, *, narrow: bool = False) -> str:
    """Draw mean and longest wait of every replay side by side; oracles in grey."""
    runs = [result.baseline, *result.feasible, *result.oracles][::-1]
    labels = [_label(run, narrow) for run in runs]
    with canvas(
        "Mean and longest wait of each replay",
        height=0.6 + (0.38 if narrow else 0.27) * len(runs),
        narrow=narrow,
        columns=2,
    ) as drawing:
        for axes, name, title in zip(
            drawing.panels, ("mean_wait_s", "max_wait_s"), ("Mean wait", "Longest wait"), strict=True
        ):
            values = [getattr(run.summary, name) for run in runs]
            bars = axes.barh(range(len(runs)), values, color=[_bar_colour(run, result) for run in runs], height=0.68)
            axes.bar_label(bars, [duration(value) for value in values], padding=4, fontsize="small", color="#3c4043")
            axes.set_xlim(0, (1.45 if narrow else 1.22) * max([*values, 1]))
            axes.set_ylim(-0.6, len(runs) - 0.4)
            axes.set_title(title)
            axes.set_yticks(range(len(runs)), labels)
            axes.tick_params(axis="y", length=0)
            axes.xaxis.set_major_locator(NullLocator())
            axes.grid(visible=False)
            axes.spines["bottom"].set_visible(False)
        if not narrow:
            drawing.panels[1].set_yticklabels([])
    return drawing.svg


def waits(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw the share of jobs that wait longer than a time, on logarithmic axes; None where nobody waits."""
    drawn = shown(result)
    if max(int(run.wait_s.max()) for run in drawn) < LEAST_WAIT_S:
        return None
    with canvas("Share of jobs that waited longer than a given time", height=3.2, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        for run, colour in zip(drawn, LINES, strict=False):
            waited = np.sort(run.wait_s)
            share = 1 - np.arange(len(waited)) / len(waited)
            keep = [place for place in _drawn(len(waited)) if waited[place] >= LEAST_WAIT_S]
            axes.step(waited[keep], share[keep], where="pre", color=colour, lw=1.8, label=run.label)
        rare_share_axis(axes)
        time_axis(axes, narrow=narrow)
        axes.set_xlabel("waited longer than")
        axes.set_ylabel("share of jobs")
        drawing.figure.legend(loc="outside upper left", ncols=1 if narrow else 2)
    return drawing.svg


def over_time(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw how many jobs waited and how busy the cluster was, over the window; None where all were preempted.

    What preempted jobs did between their first start and their end is not kept, so SRTF has no line.
    """
    drawn = [run for run in shown(result) if run.policy != "srtf"]
    if not drawn:
        return None
    edges_s = time_steps(drawn)
    moments = (edges_s[:-1] + np.diff(edges_s) // 2).astype("datetime64[s]")
    with canvas("Queue length and utilisation over time", height=4.2, narrow=narrow, rows=2) as drawing:
        queue, used = drawing.panels
        for run, colour in zip(drawn, LINES, strict=False):
            queued = mean_level_over_time(begins_s=run.submitted_s, ends_s=run.started_s, edges_s=edges_s)
            busy = mean_level_over_time(
                begins_s=run.started_s, ends_s=run.ended_s, weight=run.gpus.astype(np.int64), edges_s=edges_s
            )
            queue.plot(moments, queued, color=colour, lw=1.4, label=run.label)
            used.plot(moments, busy / result.total_gpus, color=colour, lw=1.2)
        queue.set_title("Jobs waiting")
        queue.set_ylim(bottom=0)
        used.set_title(f"{result.unit}s in use")
        percent_axis(used)
        used.set_ylim(0, 1.02)
        drawing.figure.legend(loc="outside upper left", ncols=1 if narrow else 2)
        for axes in drawing.panels:
            date_axis(axes, narrow=narrow)
    return drawing.svg


def error_profile(answer: Mapping[str, Any], *, narrow: bool = False) -> str:
    """Draw the share of jobs predicted within 10, 50 and 100 %, the model beside its controls."""
    names = {"Helios": answer, **answer["controls"]}
    bounds = ("within_10pct", "within_50pct", "within_100pct")
    shades = (BLUE, ORANGE, *("#8a8f98", "#aeb3ba", "#ced2d7", "#e3e6ea"))
    with canvas("Share of jobs whose run time is predicted within a given error", height=2.7, narrow=narrow) as drawing:
        axes, width = drawing.panels[0], 0.84 / len(names)
        for place, (name, figures) in enumerate(names.items()):
            at = np.arange(len(bounds)) + (place - (len(names) - 1) / 2) * width
            axes.bar(
                at,
                [figures[bound] for bound in bounds],
                width=0.9 * width,
                color=shades[place % len(shades)],
                label=CONTROL_NAMES.get(name, name),
            )
        axes.set_xticks(range(len(bounds)), ["within 10 %", "within 50 %", "within 100 %"])
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        percent_axis(axes)
        axes.set_ylabel("share of jobs")
        drawing.figure.legend(loc="outside upper left", ncols=2 if narrow else len(names))
    return drawing.svg


def sizes(description: Description, *, narrow: bool = False) -> str:
    """Draw how jobs and their hours are spread over sizes, and how jobs of each size ended."""
    rows, unit = description.sizes, description.unit
    places = np.arange(len(rows))
    with canvas("Jobs and hours by size, and final state by size", height=3.0, narrow=narrow, columns=2) as drawing:
        spread, ends = drawing.panels
        spread.bar(places - 0.2, [row["share_of_jobs"] for row in rows], width=0.38, color=BLUE, label="of jobs")
        spread.bar(
            places + 0.2, [row["share_of_hours"] for row in rows], width=0.38, color=ORANGE, label=f"of {unit} hours"
        )
        spread.set_title("Share", pad=38)
        below = np.zeros(len(rows))
        for state, colour in STATE_COLOURS.items():
            share = np.array([row["states"].get(state, 0.0) for row in rows])
            if share.any():
                ends.bar(places, share, bottom=below, color=colour, width=0.72, label=state)
                below += share
        ends.set_title("How they ended", pad=38)
        for axes in drawing.panels:
            axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=3, columnspacing=1, handletextpad=0.4)
            axes.set_xticks(places, [row["size"] for row in rows])
            axes.tick_params(axis="x", length=0, labelsize="small")
            axes.grid(visible=False, axis="x")
            axes.set_xlabel(f"{unit}s of a job")
            percent_axis(axes)
    return drawing.svg


def run_times(description: Description, *, narrow: bool = False) -> str:
    """Draw the cumulative distribution of run times on a logarithmic axis."""
    points = np.array(description.run_time_cdf)
    with canvas("Distribution of run times", height=2.6, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.plot(np.maximum(points[:, 0], LEAST_WAIT_S), points[:, 1], color=BLUE, lw=2)
        time_axis(axes, narrow=narrow)
        percent_axis(axes)
        axes.set_ylim(0, 1.01)
        axes.set_xlabel("run time at most")
        axes.set_ylabel("share of jobs")
    return drawing.svg


def day_and_week(description: Description, *, narrow: bool = False) -> str:
    """Draw when jobs are submitted, by hour of the cluster's day and by weekday, and how busy each hour is if known."""
    hours = f"hour of the day ({description.timezone})"
    busy = description.busy_by_hour
    with canvas(
        "Submissions by hour and by weekday, and what is in use by hour",
        height=2.3,
        narrow=narrow,
        columns=3 if busy else 2,
    ) as drawing:
        by_hour, by_day, *in_use = drawing.panels
        by_hour.bar(range(24), description.day_shape, color=BLUE, width=0.8)
        by_hour.set_title("Submissions by hour")
        by_day.bar(range(7), description.week_shape, color=BLUE, width=0.8)
        by_day.set_xticks(range(7), ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"])
        by_day.set_title("Submissions by weekday")
        for axes in (by_hour, by_day):
            percent_axis(axes)
        for axes in in_use:
            axes.bar(range(24), busy, color=ORANGE, width=0.8)
            axes.set_title(f"{description.unit}s in use by hour, mean")
        for axes in (by_hour, *in_use):
            axes.set_xticks([0, 6, 12, 18, 23])
            axes.set_xlabel(hours)
        for axes in drawing.panels:
            axes.grid(visible=False, axis="x")
    return drawing.svg


def busiest_users(description: Description, *, narrow: bool = False) -> str:
    """Draw the users who hold most of the cluster's time."""
    rows = description.busiest_users[::-1]
    with canvas("Busiest users by share of hours", height=0.7 + 0.24 * len(rows), narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.barh(range(len(rows)), [row["share_of_hours"] for row in rows], color=BLUE, height=0.68)
        axes.set_yticks(range(len(rows)), [shortened(row["user"]) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_xlabel(f"share of {description.unit} hours")
    return drawing.svg


def shown(result: WhatIf) -> Sequence[Run]:
    """Return the few replays that lines are drawn for: the baseline, and of each policy the best that can be had."""
    best: dict[str, Run] = {}
    for run in sorted(result.feasible, key=lambda run: run.summary.mean_wait_s):
        best.setdefault(run.policy, run)
    known = [best.pop(policy) for policy in LINE_ORDER if policy in best]
    return [result.baseline, *known, *best.values()][: len(LINES)]


def time_steps(runs: Sequence[Run]) -> NDArray[np.int64]:
    """Return the edges of the steps of time: the window and a little of what it leaves behind."""
    first, last = runs[0].submitted_s.min(), runs[0].submitted_s.max()
    end = min(last + DRAIN * (last - first), max(run.ended_s.max() for run in runs))
    return np.unique(np.linspace(first, end, N_STEPS + 1).astype(np.int64))


def _ratios(run: Run, today: Run) -> dict[str, float]:
    """Return the mean wait of each size against today's, where that size waits in either."""
    new, old = run.summary.mean_wait_s_by_size, today.summary.mean_wait_s_by_size
    pairs = {name: (new[name], old[name]) for name in SIZE_CLASSES}
    return {
        name: max(mine, LEAST_WAIT_S) / max(theirs, LEAST_WAIT_S)
        for name, (mine, theirs) in pairs.items()
        if mine is not None and theirs is not None and max(mine, theirs) >= LEAST_WAIT_S
    }


def _label(run: Run, narrow: bool) -> str:
    return run.label.replace(" + ", "\n+ ") if narrow else run.label


def _bar_colour(run: Run, result: WhatIf) -> str:
    if run is result.baseline:
        return "#3c4043"
    if run.is_oracle:
        return "#cfd3d8"
    return BLUE if run.policy in {"balanced", "qssf"} else "#7fb8d8"


def shortened(name: str) -> str:
    """Cut a name that is too long for a figure."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _drawn(length: int) -> NDArray[np.int64]:
    """Return the places of the sorted jobs that a curve is drawn through, ever denser towards the end."""
    tail = length - np.geomspace(1, length, 200).astype(np.int64)
    return np.unique(np.concatenate([np.linspace(0, length - 1, 300).astype(np.int64), tail]))
