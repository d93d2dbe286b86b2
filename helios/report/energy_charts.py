"""Charts of the energy of nodes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from helios.report.charts import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, canvas, date_axis, local_times
from helios.report.energy import (
    ALWAYS_ON,
    FORESEEING,
    PUBLISHED,
    TIMERS_MIN,
    EnergyLedger,
    EnergyWhatIf,
    energy_answer,
    timer_name,
)
from helios.units import DAY_S

FAR_RIGHT = 10.0
"""Wake-ups a day above which a name is written to the left of its dot."""


def energy_figure(result: EnergyWhatIf, *, narrow: bool = False) -> str:
    """Draw nodes asleep against wake-ups a day of each policy.

    As SVG; up and left is better.
    """
    with canvas("Nodes asleep and wake-ups a day, by policy", height=3.4, narrow=narrow) as drawing:
        (axes,) = drawing.panels
        for policy in result.policies:
            low, high = policy.wakeups_per_day_interval
            x, y, colour = policy.wakeups_per_day, policy.mean_sleeping_nodes, _colour(policy.policy)
            axes.plot([low, high], [y, y], color=colour, linewidth=1, alpha=0.5)
            axes.plot([x], [y], "o", color=colour, clip_on=False)
            # Names at the right end would leave the drawing; the two timers lie side by side.
            right, below = x > FAR_RIGHT, policy.policy == "idle_timer_10min"
            aside = (5, -13) if below else (-5, 4) if right else (5, 4)
            place: Any = {"xytext": aside, "textcoords": "offset points", "ha": "right" if right else "left"}
            axes.annotate(policy.policy, (x, y), fontsize="small", color=colour, **place)
        # Timers wake some dozens of times a day and would squeeze all else into a corner.
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.12 * max((policy.mean_sleeping_nodes for policy in result.policies), default=1.0) or 1.0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("wake-ups a day (line: 95 % interval)")
        axes.set_ylabel("nodes asleep, mean")
    return drawing.svg


def _colour(policy: str) -> str:
    if policy in FORESEEING:
        return GREY
    if policy == PUBLISHED or policy.startswith("max"):
        return ORANGE
    if policy.startswith("ces"):
        return BLUE
    return GREEN if "node_fill_order" in policy else INK


LAYERS = (
    ("busy", "with a job", BLUE),
    ("idle", "idle", ORANGE),
    ("moving", "falling asleep or waking", PURPLE),
    ("asleep", "asleep", "#cfe3f3"),
    ("out", "out of service", GREY),
    ("unknown", "unknown", PALE),
)


DPI = 130


HEIGHT_IN = 2.7


HALF_BAR_S = 32_400


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


def as_png(ledger: EnergyLedger) -> bytes:
    """Return the figures of nodes and of savings as one PNG.

    Savings below the nodes, where there are any.
    """
    rows = 2 if _has_savings(ledger) else 1
    written = io.BytesIO()
    with canvas("Nodes over time, and energy saved", height=3.4 * rows, rows=rows) as drawing:
        drawing.panels[0].set_title(energy_answer(ledger).title)
        _draw_levels(drawing.panels[0], ledger, narrow=False)
        if rows > 1:
            _draw_savings(drawing.panels[1], ledger, narrow=False)
        for axes in drawing.panels:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=7)
        drawing.figure.savefig(written, format="png", dpi=DPI, metadata={"Software": None})
    return written.getvalue()


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
