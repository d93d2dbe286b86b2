"""Pictures of charts, for browsers without scripts.

Drawing takes half a second for the first one, so that nothing else imports this module at the start.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from helios.report.charts import INK, canvas, date_axis, local_times
from helios.units import duration
from helios.web.chart import Chart

COLOURS = ("#0072B2", "#B86B00", "#00835F", "#C4569B", "#D55E00", "#332288", "#7A7A12", "#882255", "#6b7280")
"""Those of a light ground in static/helios.css, in this order."""
HEIGHT_IN = 2.7


def draw_chart(chart: Chart) -> str:
    """Return a chart as SVG."""
    with canvas(chart.title, height=HEIGHT_IN) as drawing:
        axes = drawing.panels[0]
        ends = np.append(np.asarray(chart.times, dtype=np.int64), chart.times[-1] if chart.end is None else chart.end)
        edges = local_times(pd.Series(pd.to_datetime(ends, unit="s", utc=True)), chart.timezone)
        times = edges[:-1]
        values = {line.name: np.array(line.values, dtype=np.float64) for line in chart.lines}
        drawn = [line for line in chart.lines if not line.is_bound]
        known = np.any([np.isfinite(values[line.name]) for line in drawn], axis=0) if drawn else np.zeros(0, dtype=bool)
        base = np.where(known, 0.0, np.nan)
        for place, line in enumerate(drawn):
            colour = COLOURS[place % len(COLOURS)]
            if chart.kind == "line":
                style = "--" if place % 2 else "-"
                mark = "o" if len(times) == 1 else None
                axes.plot(times, values[line.name], color=colour, ls=style, marker=mark, label=line.name)
                continue
            top = base + np.nan_to_num(values[line.name])
            if chart.kind == "stack":
                low, high = (np.append(level, level[-1]) for level in (base, top))
                axes.fill_between(edges, low, high, step="post", color=colour, lw=0, label=line.name)
            else:
                width = 0.85 * np.diff(edges)
                axes.bar(times, top - base, width=width, bottom=base, align="edge", color=colour, label=line.name)
            base = top
        for line in chart.lines:
            if line.is_bound:
                level = np.append(values[line.name], values[line.name][-1])
                axes.step(edges, level, where="post", color=INK, ls="--", label=line.name)
        axes.set_ylim(bottom=min(axes.get_ylim()[0], 0) if (base < 0).any() else 0)
        axes.set_ylabel(chart.unit if chart.unit != "s" else "")
        if chart.unit == "s":
            axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
        date_axis(axes, narrow=False)
        drawing.figure.legend(loc="outside lower center", ncols=5)
    return drawing.svg
