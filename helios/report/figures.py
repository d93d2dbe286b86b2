"""Figures as SVG text: deterministic, without a display, readable in grey and by the colour-blind."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator, PercentFormatter
from numpy.typing import NDArray

from helios.metrics import SIZE_CLASSES, level_over_time
from helios.report.describe import Description
from helios.report.whatif import Run, WhatIf
from helios.report.words import duration

# Okabe and Ito's palette, told apart by the colour-blind (jfly.uni-koeln.de/color, 2002).
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#8a8f98"
LINES = (GREY, BLUE, ORANGE, GREEN)
SIZE_MARKS = dict(zip(SIZE_CLASSES, ((BLUE, "o"), (ORANGE, "s"), (RED, "D")), strict=True))
STATE_COLOURS = {
    "completed": GREEN,
    "cancelled": ORANGE,
    "failed": RED,
    "timeout": PURPLE,
    "other": GREY,
    "unknown": "#d5d8dd",
}
STYLE: Any = {
    "svg.hashsalt": "helios",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": "#eceef1",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "xtick.color": "#5f6368",
    "ytick.color": "#202124",
}
TIME_TICKS_S = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
N_MOMENTS = 400
LEAST_WAIT_S = 1.0


def who_gains(result: WhatIf) -> str:
    """Draw each feasible replay's mean wait by size as a multiple of today's; the left side gains, the right pays."""
    today, runs = result.baseline, _feasible(result)
    with _styled(height=1.7 + 0.42 * len(runs)) as (figure, axes):
        for place, run in enumerate(reversed(runs)):
            ratios = {name: _ratio(run, today, name) for name in SIZE_CLASSES}
            known = [ratio for ratio in ratios.values() if ratio is not None]
            axes.plot([min(known, default=1), max(known, default=1)], [place, place], color="#d5d8dd", lw=2, zorder=1)
            for name, ratio in ratios.items():
                if ratio is not None:
                    colour, mark = SIZE_MARKS[name]
                    axes.scatter(ratio, place, color=colour, marker=mark, s=46, zorder=3)
        for name, (colour, mark) in SIZE_MARKS.items():
            axes.scatter([], [], color=colour, marker=mark, label=f"{name} {result.unit}{'' if name == '1' else 's'}")
        axes.axvline(1, color="#202124", lw=1.2)
        axes.set_xscale("log")
        axes.set_yticks(range(len(runs)), [run.label for run in reversed(runs)])
        _ratio_axis(axes)
        axes.set_xlabel("mean wait against today's:  shorter  ←  1  →  longer")
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
        return _svg(figure, "Who gains and who pays: mean wait by job size, as a multiple of today's")


def mean_and_longest(result: WhatIf) -> str:
    """Draw mean and longest wait of every replay side by side; oracles in grey."""
    runs = [result.baseline, *_feasible(result), *(run for run in result.runs if run.is_oracle)]
    with _styled(height=0.9 + 0.3 * len(runs), columns=2) as (figure, pair):
        for axes, name, title in (
            (pair[0], "mean_wait_s", "Mean wait"),
            (pair[1], "max_wait_s", "Longest wait"),
        ):
            values = [getattr(run.summary, name) for run in reversed(runs)]
            colours = [_bar_colour(run, result) for run in reversed(runs)]
            axes.barh(range(len(runs)), values, color=colours, height=0.66)
            for place, value in enumerate(values):
                axes.text(value, place, f" {duration(value)}", va="center", fontsize=8.5, color="#3c4043")
            axes.set_xlim(0, 1.22 * max([*values, 1]))
            axes.set_title(title)
            axes.xaxis.set_major_locator(NullLocator())
            axes.grid(visible=False)
            axes.spines["bottom"].set_visible(False)
        pair[0].set_yticks(range(len(runs)), [run.label for run in reversed(runs)])
        pair[1].set_yticks([])
        return _svg(figure, "Mean and longest wait of each replay")


def waits(result: WhatIf) -> str | None:
    """Draw the share of jobs that wait longer than a time, on logarithmic axes; None where nobody waits."""
    if max(int(run.wait_s.max()) for run in _shown(result)) < LEAST_WAIT_S:
        return None
    with _styled(height=3.4) as (figure, axes):
        for run, colour in zip(_shown(result), LINES, strict=False):
            waited = np.sort(run.wait_s)
            share = 1 - np.arange(len(waited)) / len(waited)
            keep = [place for place in _drawn(len(waited)) if waited[place] >= LEAST_WAIT_S]
            axes.step(waited[keep], share[keep], where="pre", color=colour, lw=1.8, label=run.label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
        _time_axis(axes)
        axes.set_xlabel("wait longer than")
        axes.set_ylabel("share of jobs")
        axes.legend(loc="lower left")
        return _svg(figure, "Share of jobs that waited longer than a given time")


def over_time(result: WhatIf) -> str:
    """Draw how many jobs waited and how busy the cluster was, over the window."""
    with _styled(height=4.4, rows=2) as (figure, pair):
        for run, colour in zip(_shown(result), LINES, strict=False):
            at = np.linspace(run.submitted_s.min(), run.ended_s.max(), N_MOMENTS).astype(np.int64)
            queued = level_over_time(begins_s=run.submitted_s, ends_s=run.started_s, at_s=at)
            gpus = run.gpus.astype(np.int64)
            busy = level_over_time(begins_s=run.started_s, ends_s=run.ended_s, weight=gpus, at_s=at)
            days = at.astype("datetime64[s]")
            pair[0].plot(days, queued, color=colour, lw=1.4, label=run.label)
            pair[1].plot(days, busy / result.total_gpus, color=colour, lw=1.2)
        pair[0].set_title("Jobs waiting")
        pair[1].set_title(f"{result.unit}s in use")
        pair[1].yaxis.set_major_formatter(PercentFormatter(xmax=1))
        pair[1].set_ylim(0, 1.02)
        pair[0].legend(loc="upper right", fontsize=8.5)
        for axes in pair:
            ticks = axes.xaxis.get_major_locator()
            axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks))  # type: ignore[no-untyped-call]  # because untyped
        return _svg(figure, "Queue length and utilisation over time")


def error_profile(answer: Mapping[str, Any]) -> str:
    """Draw the share of jobs predicted within 10, 50 and 100 %, the model beside its controls."""
    names = {"Helios": answer, **answer["controls"]}
    bounds = ("within_10pct", "within_50pct", "within_100pct")
    with _styled(height=2.8) as (figure, axes):
        width = 0.8 / len(names)
        for place, (name, figures) in enumerate(names.items()):
            shades = BLUE if place == 0 else ("#9aa0a6", "#b7bcc3", "#cfd3d8", "#e1e4e8")[(place - 1) % 4]
            at = np.arange(len(bounds)) + place * width
            axes.bar(at, [figures[bound] for bound in bounds], width=0.92 * width, color=shades, label=name)
        axes.set_xticks(np.arange(len(bounds)) + 0.4 - width / 2, ["within 10 %", "within 50 %", "within 100 %"])
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_ylabel("share of jobs")
        axes.legend(ncols=len(names), loc="lower center", bbox_to_anchor=(0.45, 1.0), fontsize=9)
        return _svg(figure, "Share of jobs whose run time is predicted within a given error")


def sizes(description: Description) -> str:
    """Draw how jobs and their hours are spread over sizes, and how jobs of each size ended."""
    rows, unit = description.sizes, description.unit
    places = np.arange(len(rows))
    with _styled(height=2.9, columns=2) as (figure, pair):
        pair[0].bar(places - 0.2, [row["share_of_jobs"] for row in rows], width=0.38, color=BLUE, label="jobs")
        pair[0].bar(
            places + 0.2, [row["share_of_hours"] for row in rows], width=0.38, color=ORANGE, label=f"{unit} hours"
        )
        pair[0].legend(loc="upper right")
        below = np.zeros(len(rows))
        for state, colour in STATE_COLOURS.items():
            share = np.array([row["states"].get(state, 0.0) for row in rows])
            if share.any():
                pair[1].bar(places, share, bottom=below, color=colour, width=0.7, label=state)
                below += share
        pair[1].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8.5)
        for axes in pair:
            axes.set_xticks(places, [row["size"] for row in rows])
            axes.set_xlabel(f"{unit}s of a job")
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        return _svg(figure, "Jobs and hours by size, and final state by size")


def run_times(description: Description) -> str:
    """Draw the cumulative distribution of run times on a logarithmic axis."""
    points = np.array(description.run_time_cdf)
    with _styled(height=2.6) as (figure, axes):
        axes.plot(np.maximum(points[:, 0], LEAST_WAIT_S), points[:, 1], color=BLUE, lw=2)
        axes.set_xscale("log")
        _time_axis(axes)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_ylim(0, 1)
        axes.set_xlabel("run time at most")
        axes.set_ylabel("share of jobs")
        return _svg(figure, "Distribution of run times")


def day_and_week(description: Description) -> str:
    """Draw when jobs are submitted: by hour of the cluster's day, and by weekday."""
    with _styled(height=2.4, columns=2) as (figure, pair):
        pair[0].bar(range(24), description.day_shape, color=BLUE, width=0.8)
        pair[0].set_xticks([0, 6, 12, 18, 23])
        pair[0].set_xlabel(f"hour of submission ({description.timezone})")
        pair[1].bar(range(7), description.week_shape, color=BLUE, width=0.8)
        pair[1].set_xticks(range(7), ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"])
        for axes in pair:
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        return _svg(figure, "Submissions by hour and by weekday")


def busiest_users(description: Description) -> str:
    """Draw the ten users who hold most of the cluster's time."""
    rows = list(reversed(description.busiest_users))
    with _styled(height=0.8 + 0.26 * len(rows)) as (figure, axes):
        axes.barh([row["user"] for row in rows], [row["share_of_hours"] for row in rows], color=BLUE, height=0.66)
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_xlabel(f"share of {description.unit} hours")
        return _svg(figure, "Busiest users by share of hours")


class _styled:  # noqa: N801 - reads as a verb where it is used: with _styled(...)
    """A figure with our style in force until it is written; matplotlib's global state is left alone."""

    def __init__(self, *, height: float, rows: int = 1, columns: int = 1) -> None:
        self._context = matplotlib.rc_context(STYLE)
        self._size, self._grid = (8.2, height), (rows, columns)

    def __enter__(self) -> tuple[Figure, Any]:
        self._context.__enter__()
        figure = Figure(figsize=self._size, layout="constrained")
        return figure, figure.subplots(*self._grid)

    def __exit__(self, *reason: object) -> None:
        self._context.__exit__(None, None, None)


def _svg(figure: Figure, description: str) -> str:
    """Return the figure as an SVG element with a text for those who cannot see it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    element = text[text.index("<svg") :]
    return element.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)


def _feasible(result: WhatIf) -> list[Run]:
    return [run for run in result.runs if run is not result.baseline and not run.is_oracle]


def _shown(result: WhatIf) -> Sequence[Run]:
    """Return the few replays that lines are drawn for: today's, and of each policy the best that can be had."""
    best: dict[str, Run] = {}
    for run in sorted(_feasible(result), key=lambda run: run.summary.mean_wait_s):
        if run.policy != "srtf":
            best.setdefault(run.policy, run)
    chosen = sorted(best.values(), key=lambda run: ("qssf", "fewest_gpus", "fifo", "sjf").index(run.policy))
    return [result.baseline, *chosen][: len(LINES)]


def _ratio(run: Run, today: Run, size: str) -> float | None:
    new, old = run.summary.mean_wait_s_by_size[size], today.summary.mean_wait_s_by_size[size]
    if new is None or old is None or max(new, old) < LEAST_WAIT_S:
        return None
    return max(new, LEAST_WAIT_S) / max(old, LEAST_WAIT_S)


def _bar_colour(run: Run, result: WhatIf) -> str:
    if run is result.baseline:
        return "#3c4043"
    if run.is_oracle:
        return "#cfd3d8"
    return BLUE if run.policy == "qssf" else "#7fb8d8"


def _ratio_axis(axes: Axes) -> None:
    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 100, 1000) if low <= tick <= high]
    axes.set_xticks(ticks, [f"x {tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())


def _time_axis(axes: Axes) -> None:
    low, high = axes.get_xlim()
    ticks = [tick for tick in TIME_TICKS_S if low <= tick <= high]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: _short(tick)))
    axes.xaxis.set_minor_locator(NullLocator())


def _short(seconds: float) -> str:
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:g} {name}"
    return f"{seconds:g} s"


def _drawn(length: int) -> NDArray[np.int64]:
    """Return the places of the sorted jobs that a curve is drawn through, ever denser towards the end."""
    tail = length - np.geomspace(1, length, 200).astype(np.int64)
    return np.unique(np.concatenate([np.linspace(0, length - 1, 300).astype(np.int64), tail]))
