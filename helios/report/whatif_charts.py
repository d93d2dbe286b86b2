"""Figures of who gains and who loses by another order.

Over time, by partition and by user. See :mod:`helios.report.charts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from helios.report.charts import (
    BLUE,
    INK,
    LEAST_WAIT_S,
    LINES,
    ORANGE,
    RED,
    canvas,
    date_axis,
    draw_queue_and_use,
    select_curves,
    shorten,
    time_axis,
    time_steps,
)
from helios.report.whatif import GroupGain, WhatIf, saved_gpu_hours
from helios.report.whatif_text import propose_scenario

PANELS = 6
"""Partitions that are drawn, those in which most is waited for."""
DOTS = 400
"""Users that are drawn, those who run most."""
MOST_POINTS = 600
"""Points that a curve is drawn through."""


def by_partition(result: WhatIf, *, narrow: bool = False) -> str | None:
    """Draw queue and utilisation of each partition.

    The baseline against the proposed order. None where there is one partition, no proposal, or no names.
    """
    chosen, named = propose_scenario(result), result.named
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
            saved, kept = saved_gpu_hours(run, result.baseline), _evenly_spaced(len(run.submitted_s))
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


def _evenly_spaced(length: int) -> NDArray[np.int64]:
    """Return the positions of the points that a curve is drawn through.

    All, or ``MOST_POINTS`` evenly spread ones with the first and the last.
    """
    return np.unique(np.linspace(0, length - 1, min(length, MOST_POINTS)).astype(np.int64))
