"""Style of all drawings, and the charts of what-ifs and of energy.

Charts are SVG text: deterministic, without a display, readable in grey and by the colour-blind. Each is drawn for a
computer's screen and paper, or ``narrow`` for a phone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator, PercentFormatter
from numpy.typing import NDArray

from helios.metrics.queue import mean_level_over_time
from helios.model import SIZE_CLASSES, SIZE_NAMES
from helios.report.energy import ALWAYS_ON, TIMERS_MIN, EnergyLedger, timer_name
from helios.report.energy_whatif import CES, ORACLE, EnergyWhatIf, PolicyResult
from helios.report.gains import GroupGain, saved_gpu_hours
from helios.report.history import STATES, Description
from helios.report.tables import CONTROL_NAMES
from helios.report.whatif import Run, WhatIf
from helios.units import DAY_S, duration

# Okabe and Ito's palette, distinguishable for the colour-blind (jfly.uni-koeln.de/color, 2002).
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
INK, SOFT, GREY, PALE = "#202124", "#5f6368", "#8a8f98", "#d5d8dd"
matplotlib.rcdefaults()  # since it has read a matplotlibrc of the current folder, whoever's that is
STYLE = matplotlib.rc_params_from_file(Path(__file__).with_name("charts.mplstyle"), use_default_template=False)
# Colours that a page has darker and lighter ones of (templates/base.html.j2); elsewhere they stay as they are.
THEMED = {
    INK: "ink",
    "#000000": "ink",
    SOFT: "soft",
    PALE: "pale",
    "#eceef1": "grid",
    "#9aa0a6": "edge",
    "#3c4043": "strong",
    "#cfd3d8": "faint",
    "#eaf6f1": "gain",
    "#fdf1e7": "pay",
    "#00795a": "good",
    "#b3470a": "bad",
    "#0072b2": "blue",
    "#fefefe": "card",
}
WIDE_IN, NARROW_IN = 9.4, 3.6
"""Widths of a figure: for a computer's screen or a sheet of paper, and for a phone; inch."""
TIME_TICKS_S = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
COARSE_TIME_TICKS_S = (1, 60, 3_600, 86_400, 30 * 86_400)
RATIOS = {0.2: "1/5", 5: "5 x"}
NEAR_RATIOS = {0.5: "half", 2: "twice"}
POWERS_OF_TEN = {0.001: "1/1000", 0.01: "1/100", 0.1: "1/10", 10: "10 x", 100: "100 x", 1000: "1000 x"}

LINES = (GREY, BLUE, ORANGE, GREEN)
LINE_ORDER = ("qssf", "service", "fewest_gpus", "fifo", "sjf")
SIZE_MARKS = dict(zip(SIZE_CLASSES, ((BLUE, "o"), (ORANGE, "s"), (RED, "D")), strict=True))
STATE_COLOURS = dict(zip(STATES, (GREEN, ORANGE, RED, PURPLE, GREY, PALE), strict=True))

N_STEPS = 300
DRAIN = 0.15
"""How far past the last submission time goes on, as a share of the window: the last long jobs end much later."""
LEAST_WAIT_S = 1.0
LONGEST_NAME = 24

PANELS = 6
"""Partitions that are drawn, those in which most is waited for."""
DOTS = 400
"""Users that are drawn, those who run most."""
MOST_POINTS = 600
"""Points that a curve is drawn through."""


LAYERS = (
    ("busy", "with a job", BLUE),
    ("idle", "idle", ORANGE),
    ("moving", "falling asleep or waking", PURPLE),
    ("asleep", "asleep", "#cfe3f3"),
    ("out", "out of service", GREY),
    ("unknown", "unknown", PALE),
)

HEIGHT_IN = 2.7

HALF_BAR_S = 32_400

GAINS, PAYS = "#eaf6f1", "#fdf1e7"
LABEL_LETTERS, LABEL_LINE_IN = 20, 0.16
"""Letters in a line of a narrow figure's label, which leave half of it for the axis; height of such a line, in."""


@dataclass(slots=True)
class Canvas:
    """A figure while it is being drawn.

    Attributes
    ----------
    panels : list of Axes
        Side by side, or below each other where ``narrow``.
    svg : str
        The finished figure, once the ``with`` block of :func:`canvas` has ended.
    pdf : bytes
        The same as a PDF, in place of the SVG, where that was asked for.
    """

    figure: Figure
    panels: list[Axes]
    narrow: bool
    svg: str = ""
    pdf: bytes = b""


@contextmanager
def canvas(
    description: str, *, height: float, narrow: bool = False, rows: int = 1, columns: int = 1, as_pdf: bool = False
) -> Iterator[Canvas]:
    """Provide an empty figure in the common style.

    A context manager: at its end the figure is rendered as SVG, and matplotlib's settings are as before.

    Parameters
    ----------
    description : str
        What the figure shows, for those who cannot see it.
    height : float
        Inch; of each column where ``narrow`` puts the columns below each other.
    as_pdf : bool
        Whether the figure is rendered as a PDF, not as SVG.
    """
    # Ids within an SVG are derived from this salt, and a page holds many figures.
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": f"{description}, {'narrow' if narrow else 'wide'}"}):
        if narrow:
            rows, columns, height = rows * columns, 1, height * columns
        figure = Figure(figsize=(NARROW_IN if narrow else WIDE_IN, height), layout="constrained")
        drawing = Canvas(figure, list(np.atleast_1d(figure.subplots(rows, columns)).flat), narrow)
        yield drawing
        if as_pdf:
            drawing.pdf = _pdf(figure)
        else:
            drawing.svg = _svg(figure, description)


def percent_axis(axes: Axes) -> None:
    """Write shares as whole per cent on the y axis."""
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def time_axis(axes: Axes, *, narrow: bool = False, upright: bool = False) -> None:
    """Make an axis logarithmic, from a second to a month.

    The x axis, or the y axis where ``upright``.
    """
    axis = axes.yaxis if upright else axes.xaxis
    (axes.set_yscale if upright else axes.set_xscale)("log")
    low, high = axes.get_ylim() if upright else axes.get_xlim()
    ticks = COARSE_TIME_TICKS_S if narrow else TIME_TICKS_S
    if sum(low <= tick <= high for tick in ticks) < 2:  # an axis with one tick has no scale
        low = max((tick for tick in ticks if tick <= low), default=low)
        high = min((tick for tick in ticks if tick >= high), default=high)
        (axes.set_ylim if upright else axes.set_xlim)(low, high)
    axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_major_formatter(FuncFormatter(lambda tick, _: _short_duration(tick)))
    axis.set_minor_locator(NullLocator())


def date_axis(axes: Axes, *, narrow: bool, offset: bool = True) -> None:
    """Make the x axis one of dates.

    ``offset``: whether the part that all dates have in common is written at its end.
    """
    ticks = AutoDateLocator(minticks=2, maxticks=5 if narrow else 9)  # type: ignore[no-untyped-call]  # because untyped
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks, show_offset=offset))  # type: ignore[no-untyped-call]  # because untyped


def local_times(times: pd.Series, timezone: str) -> NDArray[np.datetime64]:
    """Return moments in local time, without a zone, for axis labels."""
    found: NDArray[np.datetime64] = times.dt.tz_convert(timezone).dt.tz_localize(None).to_numpy(dtype="datetime64[s]")
    return found


def rare_share_axis(axes: Axes) -> None:
    """Make the y axis logarithmic for shares down to the rarest.

    With a tick at each power of ten.
    """
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([10.0**power for power in range(-9, 1) if low <= 10.0**power <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def ratio_axis(axes: Axes, *, low: float, high: float, same: str, narrow: bool) -> None:
    """Make the x axis logarithmic, with ratios in words.

    ``same`` is the label at 1.
    """
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    crowded = high / low > (50 if narrow else 10_000)
    near = NEAR_RATIOS if high / low <= (50 if narrow else 100) else {}  # else they overlap the label at 1
    ticks = {1: same, **POWERS_OF_TEN, **({} if crowded else RATIOS), **near}
    shown = {tick: text for tick, text in sorted(ticks.items()) if low <= tick <= high}
    axes.set_xticks(list(shown), list(shown.values()))
    axes.xaxis.set_minor_locator(NullLocator())


def _short_duration(seconds: float) -> str:
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:g} {name}"
    return f"{seconds:g} s"


def _svg(figure: Figure, description: str) -> str:
    """Return the figure as a compact SVG element.

    Without metadata, comments and unused ids, and with the colours of the page.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    element = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)", element))
    element = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _use_theme, element)
    element = re.sub(r' id="([^"]+)"', lambda name: name[0] if name[1] in used else "", element)
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def _pdf(figure: Figure) -> bytes:
    """Return the figure as a reproducible PDF."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return buffer.getvalue()


def _use_theme(found: re.Match[str]) -> str:
    what, colour = found.groups()
    return f"{what}: var(--{THEMED[colour]}, {colour})" if colour in THEMED else found[0]


def who_gains(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw each feasible replay's mean wait by size against the baseline's.

    As a ratio: sizes left of 1 gain, those right of it pay.

    None where there is nothing to compare.
    """
    ratios = {run: _ratios(run, result.baseline) for run in result.feasible}
    known = [ratio for by_size in ratios.values() for ratio in by_size.values()]
    if not known:
        return None
    low, high = 0.75 * min(*known, 0.5), 1.35 * max(*known, 2)
    what = "Who gains and who pays: mean wait by job size, as a multiple of the first replay's"
    labels = [_label(result.label_in_table(run), narrow) for run in reversed(ratios)]
    with canvas(what, height=1.2 + _rows_height(labels, 0.46 if narrow else 0.36), narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.axvspan(low, 1, color=GAINS, zorder=0)
        axes.axvspan(1, high, color=PAYS, zorder=0)
        for place, by_size in enumerate(reversed(ratios.values())):
            axes.plot(
                [min(by_size.values(), default=1), max(by_size.values(), default=1)], [place] * 2, color=PALE, lw=2
            )
            for name, ratio in by_size.items():
                colour, mark = SIZE_MARKS[name]
                axes.scatter(ratio, place, color=colour, marker=mark, s=44, zorder=3)
        for name, (colour, mark) in SIZE_MARKS.items():
            axes.scatter([], [], color=colour, marker=mark, label=SIZE_NAMES[name])
        axes.axvline(1, color=INK, lw=1.2)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(ratios)), labels)
        axes.set_ylim(-0.6, len(ratios) - 0.4)
        same = "as today" if result.baseline.is_own_order else "the same"
        ratio_axis(axes, low=low, high=high, same=same, narrow=narrow)
        waits = "" if narrow else "waits "
        axes.set_title(f"← {waits}shorter", loc="left", color="#00795a")
        axes.set_title(f"{waits}longer →", loc="right", color="#b3470a")
        drawing.figure.legend(loc="outside lower center", ncols=3)
    return drawing.svg


def mean_and_longest(result: WhatIf, *, narrow: bool = False) -> str:
    """Draw mean and longest wait of every replay side by side.

    Those that no live Slurm can do are grey.
    """
    runs = [result.baseline, *result.feasible, *result.impossible, *result.oracles][::-1]
    labels = [_label(result.label_in_table(run), narrow) for run in runs]
    colours = [_bar_colour(run, result.baseline) for run in runs]
    height = 0.6 + _rows_height(labels, 0.38 if narrow else 0.27)
    with canvas("Mean and longest wait of each replay", height=height, narrow=narrow, columns=2) as drawing:
        mean, longest = [run.summary.mean_wait_s for run in runs], [run.summary.max_wait_s for run in runs]
        for axes, title, values in zip(drawing.panels, ("Mean wait", "Longest wait"), (mean, longest), strict=True):
            bars = axes.barh(range(len(runs)), values, color=colours, height=0.68)
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
    """Draw the share of jobs that wait longer than a time.

    Both axes are logarithmic. None where nobody waits.
    """
    drawn = select_curves(result)
    if max(int(run.wait_s.max()) for run in drawn) < LEAST_WAIT_S:
        return None
    with canvas("Share of jobs that waited longer than a given time", height=3.2, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        for run, colour in zip(drawn, LINES, strict=False):
            waited = np.sort(run.wait_s)
            share = 1 - np.arange(len(waited)) / len(waited)
            keep = [place for place in _curve_positions(len(waited)) if waited[place] >= LEAST_WAIT_S]
            axes.step(waited[keep], share[keep], where="pre", color=colour, lw=1.8, label=run.label)
        rare_share_axis(axes)
        time_axis(axes, narrow=narrow)
        axes.set_xlabel("waited longer than")
        axes.set_ylabel("share of jobs")
        drawing.figure.legend(loc="outside upper left", ncols=1 if narrow else 2)
    return drawing.svg


def over_time(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw jobs waiting and utilisation over the window.

    None where all replays are preemptive.

    What preempted jobs did between their first start and their end is not kept, so SRTF has no line.
    """
    drawn = [run for run in select_curves(result) if run.policy != "srtf"]
    if not drawn:
        return None
    edges_s = time_steps(drawn)
    with canvas("Queue length and utilisation over time", height=4.2, narrow=narrow, rows=2) as drawing:
        queue, used = drawing.panels
        draw_queue_and_use(queue, used, drawn, edges_s=edges_s, total_gpus=result.total_gpus, widths=(1.4, 1.2))
        queue.set_title("Jobs waiting")
        used.set_title(f"{result.unit}s in use")
        used.set_ylim(0, 1.02)
        drawing.figure.legend(loc="outside upper left", ncols=1 if narrow else 2)
        for axes in drawing.panels:
            date_axis(axes, narrow=narrow)
    return drawing.svg


def error_profile(answer: Mapping[str, Any], *, narrow: bool = False) -> str:
    """Draw the share of jobs predicted within 10, 50 and 100 %.

    The figure has the model and its controls.
    """
    names = {"Helios": answer, **answer["controls"]}
    bounds = ("within_10pct", "within_50pct", "within_100pct")
    shades = (BLUE, ORANGE, *("#8a8f98", "#aeb3ba", "#ced2d7", "#e3e6ea"))
    with canvas("Share of jobs whose run time is predicted within a given error", height=2.7, narrow=narrow) as drawing:
        axes, width = drawing.panels[0], 0.84 / len(names)
        for place, (name, figures) in enumerate(names.items()):
            at = np.arange(len(bounds)) + (place - (len(names) - 1) / 2) * width
            shares, colour = [figures[bound] for bound in bounds], shades[place % len(shades)]
            axes.bar(at, shares, width=0.9 * width, color=colour, label=CONTROL_NAMES.get(name, name))
        axes.set_xticks(range(len(bounds)), ["within 10 %", "within 50 %", "within 100 %"])
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        percent_axis(axes)
        axes.set_ylabel("share of jobs")
        drawing.figure.legend(loc="outside upper left", ncols=2 if narrow else len(names))
    return drawing.svg


def sizes(description: Description, *, narrow: bool = False) -> str:
    """Draw jobs, hours and final states by size."""
    rows, unit = description.sizes, description.unit
    places = np.arange(len(rows))
    with canvas("Jobs and hours by size, and final state by size", height=3.0, narrow=narrow, columns=2) as drawing:
        spread, ends = drawing.panels
        jobs, hours = ([row[name] for row in rows] for name in ("share_of_jobs", "share_of_hours"))
        spread.bar(places - 0.2, jobs, width=0.38, color=BLUE, label="of jobs")
        spread.bar(places + 0.2, hours, width=0.38, color=ORANGE, label=f"of {unit} hours")
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
    """Draw submissions by hour of the day and by weekday.

    In the cluster's zone; also the mean use in each hour where it is known.
    """
    hours = f"hour of the day ({description.timezone})"
    busy = description.busy_by_hour
    what = "Submissions by hour and by weekday, and what is in use by hour"
    with canvas(what, height=2.3, narrow=narrow, columns=3 if busy else 2) as drawing:
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
        axes.set_yticks(range(len(rows)), [shorten(row["user"]) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_xlabel(f"share of {description.unit} hours")
    return drawing.svg


def select_curves(result: WhatIf) -> Sequence[Run]:
    """Return the few replays that get a line in a figure.

    The baseline, and of each policy the feasible replay with the shortest mean wait.
    """
    best: dict[str, Run] = {}
    for run in sorted(result.feasible, key=lambda run: run.summary.mean_wait_s):
        best.setdefault(run.policy, run)
    known = [best.pop(policy) for policy in LINE_ORDER if policy in best]
    return [result.baseline, *known, *best.values()][: len(LINES)]


def time_steps(runs: Sequence[Run]) -> NDArray[np.int64]:
    """Return the edges of the time steps of a figure.

    They span the window and a little of the time after it (``DRAIN``).
    """
    first, last = runs[0].submitted_s.min(), runs[0].submitted_s.max()
    end = min(last + DRAIN * (last - first), max(run.ended_s.max() for run in runs))
    return np.unique(np.linspace(first, end, N_STEPS + 1).astype(np.int64))


def draw_queue_and_use(
    queue: Axes,
    used: Axes,
    runs: Sequence[Run],
    *,
    edges_s: NDArray[np.int64],
    total_gpus: int,
    widths: tuple[float, float],
    rows: NDArray[np.bool_] | slice = slice(None),
) -> None:
    """Draw waiting jobs and utilisation over time.

    It shows the jobs in ``rows``. ``widths`` are those of the two lines, in points.
    """
    moments = (edges_s[:-1] + np.diff(edges_s) // 2).astype("datetime64[s]")
    for run, colour in zip(runs, LINES, strict=False):
        started_s, gpus = run.started_s[rows], run.gpus[rows].astype(np.float64)
        queued = mean_level_over_time(begins_s=run.submitted_s[rows], ends_s=started_s, edges_s=edges_s)
        busy = mean_level_over_time(begins_s=started_s, ends_s=run.ended_s[rows], weight=gpus, edges_s=edges_s)
        queue.plot(moments, queued, color=colour, lw=widths[0], label=run.label)
        used.plot(moments, busy / total_gpus, color=colour, lw=widths[1])
    queue.set_ylim(bottom=0)
    percent_axis(used)


def _ratios(run: Run, today: Run) -> dict[str, float]:
    """Return the ratio of mean waits to the baseline's, by size.

    Only of sizes that wait in either.
    """
    new, old = run.summary.mean_wait_s_by_size, today.summary.mean_wait_s_by_size
    pairs = {name: (new[name], old[name]) for name in SIZE_CLASSES}
    return {
        name: max(mean_s, LEAST_WAIT_S) / max(before_s, LEAST_WAIT_S)
        for name, (mean_s, before_s) in pairs.items()
        if mean_s is not None and before_s is not None and max(mean_s, before_s) >= LEAST_WAIT_S
    }


def _bar_colour(run: Run, baseline: Run) -> str:
    if run is baseline:
        return "#3c4043"
    if not run.is_possible_live:
        return "#cfd3d8"
    return BLUE if run.policy in {"qssf", "service"} else "#7fb8d8"


def _label(label: str, narrow: bool) -> str:
    return "\n".join(wrap(label, LABEL_LETTERS)) if narrow else label


def _rows_height(labels: Sequence[str], each: float) -> float:
    """Return the height of rows with labels of several lines, in."""
    return len(labels) * max(each, 0.06 + LABEL_LINE_IN * max(label.count("\n") + 1 for label in labels))


def shorten(name: str) -> str:
    """Cut a name that is too long for a figure."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _curve_positions(length: int) -> NDArray[np.int64]:
    """Return the positions in the sorted jobs that a curve passes through.

    Ever denser towards the end.
    """
    tail = length - np.geomspace(1, length, 200).astype(np.int64)
    return np.unique(np.concatenate([np.linspace(0, length - 1, 300).astype(np.int64), tail]))


def by_partition(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw queue and utilisation of each partition.

    The baseline against the proposed order. None where there is one partition, no proposal, or no names.
    """
    chosen, named = result.proposal, result.named
    if chosen is None or named is None or len(result.partitions) < 2:
        return None
    pair = (result.baseline, chosen)
    # Those in which most is waited for, in the order of the cluster.
    waited = (pair[0].wait_s + pair[1].wait_s) * chosen.gpus.astype(np.float64)
    total = np.bincount(named.partition, weights=waited, minlength=len(result.partitions))
    drawn = sorted(np.argsort(-total, kind="stable")[:PANELS].tolist())
    edges_s = time_steps(pair)
    names = list(result.partitions)
    what = "Queue length and utilisation of each partition over time"
    height = 0.8 + (1.15 if narrow else 0.95) * len(drawn)
    with canvas(what, height=height, narrow=narrow, rows=len(drawn), columns=2) as drawing:
        for place, partition in enumerate(drawn):
            rows = named.partition == partition
            gpus = result.gpus_per_node * result.partitions[names[partition]]
            queue, used = drawing.panels[2 * place : 2 * place + 2]
            draw_queue_and_use(queue, used, pair, edges_s=edges_s, total_gpus=gpus, widths=(1.3, 1.1), rows=rows)
            queue.yaxis.set_major_locator(MaxNLocator(3))
            used.set_ylim(0, 1.05)
            used.set_yticks([0, 0.5, 1])
            title = f"{shorten(names[partition])}, {gpus:,} {result.unit}{'' if gpus == 1 else 's'}"
            queue.set_title(f"{title}: jobs waiting")
            used.set_title(f"{result.unit}s in use")
        for axes in drawing.panels:
            date_axis(axes, narrow=narrow)
        for axes in [] if narrow else drawing.panels[:-2]:
            axes.tick_params(labelbottom=False)
            axes.xaxis.get_offset_text().set_visible(False)
        handles, labels = drawing.panels[0].get_legend_handles_labels()
        drawing.figure.legend(handles, labels, loc="outside upper left", ncols=1 if narrow else 2)
    return drawing.svg


def cumulative_gain(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw the GPU hours of waiting that each order saves.

    Added up over the window. None where no wait differs.
    """
    runs = [run for run in select_curves(result) if run is not result.baseline]
    if not any((run.wait_s != result.baseline.wait_s).any() for run in runs):
        return None
    with canvas("Waiting saved so far, over the window", height=2.8, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        axes.axhline(0, color=INK, lw=1)
        for run, colour in zip(runs, LINES[1:], strict=False):
            saved, length = saved_gpu_hours(run, result.baseline), len(run.submitted_s)
            kept = np.unique(np.linspace(0, length - 1, min(length, MOST_POINTS)).astype(np.int64))
            moments = run.submitted_s[kept].astype("datetime64[s]")
            axes.step(moments, saved[kept], where="post", color=colour, lw=1.8, label=run.label)
        axes.set_ylabel(f"{result.unit} hours of waiting")
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda hours, _: f"{hours:,.0f}" if hours else "0"))
        axes.set_title("saved ↑, lost ↓")
        date_axis(axes, narrow=narrow)
        drawing.figure.legend(loc="outside upper left", ncols=1 if narrow else 2)
    return drawing.svg


def users(gains: Sequence[GroupGain], *, reference: str, narrow: bool = False) -> str | None:
    """Draw each user's mean wait before and after.

    On logarithmic axes; users above the line wait longer.

    The area of a dot grows with the hours that the user runs. None where fewer than two users are known.
    """
    if len(gains) < 2:
        return None
    dots = sorted(gains, key=lambda gain: -gain.gpu_hours)[:DOTS]
    most_hours = max(dots[0].gpu_hours, 1e-9)
    with canvas("Mean wait of each user before and after", height=3.4, narrow=narrow) as drawing:
        axes = drawing.panels[0]
        for label, colour, mark, chosen in (
            ("waits longer", RED, "^", [gain for gain in dots if gain.loses]),
            ("waits shorter", BLUE, "o", [gain for gain in dots if gain.gains]),
            ("no difference", ORANGE, "s", [gain for gain in dots if not gain.loses and not gain.gains]),
        ):
            if chosen:
                axes.scatter(
                    [max(gain.before.mean_s, LEAST_WAIT_S) for gain in chosen],
                    [max(gain.after.mean_s, LEAST_WAIT_S) for gain in chosen],
                    s=[14 + 160 * gain.gpu_hours / most_hours for gain in chosen],
                    color=colour,
                    marker=mark,
                    alpha=0.65,
                    linewidths=0,
                    label=f"{label} ({len(chosen):,})",
                )
        longest_s = max(LEAST_WAIT_S, *(max(gain.before.mean_s, gain.after.mean_s) for gain in dots))
        axes.plot([LEAST_WAIT_S, 2 * longest_s], [LEAST_WAIT_S, 2 * longest_s], color=INK, lw=1)
        axes.set_xlim(0.7 * LEAST_WAIT_S, 2 * longest_s)
        axes.set_ylim(0.7 * LEAST_WAIT_S, 2 * longest_s)
        time_axis(axes, narrow=narrow)
        time_axis(axes, narrow=narrow, upright=True)
        axes.set_xlabel(f"mean wait {reference}")
        axes.set_ylabel("mean wait then")
        drawing.figure.legend(loc="outside upper left", ncols=1 if narrow else 3)
    return drawing.svg


def energy_figure(result: EnergyWhatIf, *, narrow: bool = False) -> str:
    """Draw the energy saved against the delays of each policy.

    As SVG; up and left is better.
    """
    with canvas("Energy saved and delays, by policy", height=3.4, narrow=narrow) as drawing:
        (axes,) = drawing.panels
        if result.front:
            points = [_saved_and_delayed(row.result, result) for row in result.front]
            axes.plot(*zip(*points, strict=True), ".-", color=BLUE, linewidth=1, alpha=0.5)
        right = 0.6 * max((_saved_and_delayed(policy, result)[0] for policy in result.policies), default=0.0)
        for policy in result.policies:
            x, y = _saved_and_delayed(policy, result)
            colour = _colour(policy.policy)
            axes.plot([x], [y], "o", color=colour, clip_on=False)
            # Names at the right end would leave the drawing.
            aside: Any = {"xytext": (-5, 4), "ha": "right"} if 0 < right < x else {"xytext": (5, 4), "ha": "left"}
            axes.annotate(policy.policy, (x, y), fontsize="small", color=colour, textcoords="offset points", **aside)
        # Timers delay many times as much as the rest, and would squeeze it into a corner.
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("submissions delayed, %" if result.has_jobs else "node hours short")
        axes.set_ylabel("saved, kWh a day")
    return drawing.svg


def _saved_and_delayed(policy: PolicyResult, result: EnergyWhatIf) -> tuple[float, float]:
    share = policy.share_of_submissions_delayed
    return policy.node_hours_short if share is None else 100 * share, policy.saved_kwh / result.days


def _colour(policy: str) -> str:
    if policy == ORACLE:
        return GREY
    if policy == "ces_published" or policy.startswith("max"):
        return ORANGE
    return BLUE if policy.startswith(CES) else INK


def nodes_over_time(ledger: EnergyLedger, *, narrow: bool = False) -> str | None:
    """Draw how many nodes were busy, idle and asleep over time.

    Also how many Helios wanted awake, where that is known. None where no level is known.
    """
    if ledger.levels.empty:
        return None
    with canvas("Nodes with a job, idle and asleep over time", height=HEIGHT_IN, narrow=narrow) as drawing:
        _draw_levels(drawing.panels[0], ledger, narrow=narrow)
        drawing.figure.legend(loc="outside lower center", ncols=2 if narrow else 6)
    return drawing.svg


def saved_by_day(ledger: EnergyLedger, *, narrow: bool = False) -> str | None:
    """Draw the energy that sleep saved on each day.

    Beside it what Slurm's idle timer would have saved.

    None where the window is a single day, or nothing slept.
    """
    if not _has_savings(ledger):
        return None
    with canvas("Energy saved by sleep on each day", height=2.2, narrow=narrow) as drawing:
        _draw_savings(drawing.panels[0], ledger, narrow=narrow)
        drawing.figure.legend(loc="outside lower center", ncols=1 if narrow else 2)
    return drawing.svg


def _has_savings(ledger: EnergyLedger) -> bool:
    return len(ledger.daily) > 1 and ledger.slept


def _draw_levels(axes: Axes, ledger: EnergyLedger, *, narrow: bool) -> None:
    levels = ledger.levels
    times = local_times(pd.concat([levels["time"], levels["ended_at"].tail(1)]), ledger.timezone)
    base = np.zeros(len(times))
    for name, label, colour in LAYERS:
        mean = levels[name].to_numpy(dtype=np.float64)
        if mean.max() <= 0:
            continue
        top = base + np.append(mean, mean[-1])
        axes.fill_between(times, base, top, step="post", color=colour, lw=0, label=label)
        base = top
    wanted = levels["wanted"].to_numpy(dtype=np.float64)
    if not np.isnan(wanted).all():
        wanted = np.append(wanted, wanted[-1])
        axes.step(times, wanted, where="post", color=INK, lw=1.6, label="wanted awake by Helios")
    axes.set_ylim(0, max(ledger.nodes, 1))
    axes.set_xlim(times[0], times[-1])
    axes.set_ylabel("nodes", color=GREY)
    axes.grid(visible=False)
    date_axis(axes, narrow=narrow, offset=False)


def _draw_savings(axes: Axes, ledger: EnergyLedger, *, narrow: bool) -> None:
    daily, timer = ledger.daily, TIMERS_MIN[0]
    days = local_times(daily["time"], ledger.timezone)
    saved = daily[ALWAYS_ON].to_numpy(dtype=np.float64)
    by_timer = saved - daily[timer_name(timer)].to_numpy(dtype=np.float64)
    axes.bar(days, saved, width=2 * HALF_BAR_S / DAY_S, color=BLUE, label="kWh saved against leaving all nodes on")
    half = np.timedelta64(HALF_BAR_S, "s")
    label = f"what Slurm's idle timer of {timer} min would have saved"
    axes.hlines(by_timer, days - half, days + half, color=ORANGE, lw=2.4, label=label)
    axes.axhline(0, color=GREY, lw=0.8)
    axes.set_ylim(bottom=min(0.0, 1.1 * float(min(saved.min(), by_timer.min()))))
    axes.set_ylabel("kWh", color=GREY)
    date_axis(axes, narrow=narrow, offset=False)
