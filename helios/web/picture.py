"""Pictures of charts, for browsers without scripts.

Drawing takes half a second for the first one, so that nothing else imports this module at the start.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from helios.report.charts import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, canvas, date_axis, local_times
from helios.web.chart import Chart

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, "#56B4E9", "#F0E442", "#8C6D31", GREY)
"""As in static/helios.js, in this order."""
HEIGHT_IN = 2.7


def draw_chart(chart: Chart) -> str:
    """Return a chart as SVG."""
    with canvas(chart.title, height=HEIGHT_IN) as drawing:
        axes = drawing.panels[0]
        moments = pd.Series(pd.to_datetime(np.asarray(chart.times, dtype=np.int64), unit="s", utc=True))
        times = local_times(moments, chart.timezone)
        values = {line.name: np.array(line.values, dtype=np.float64) for line in chart.lines}
        drawn = [line for line in chart.lines if not line.is_bound]
        base = np.zeros(len(times))
        for line, colour in zip(drawn, COLOURS, strict=False):
            if chart.kind == "stack":
                top = base + np.nan_to_num(values[line.name])
                axes.fill_between(times, base, top, color=colour, lw=0, label=line.name)
                base = top
            elif chart.kind == "bars" and len(times) > 1:
                axes.bar(times, values[line.name], width=0.8 * np.diff(times).min(), color=colour, label=line.name)
            else:
                axes.plot(times, values[line.name], color=colour, label=line.name)
        for line in chart.lines:
            if line.is_bound:
                axes.plot(times, values[line.name], color=INK, ls="--", label=line.name)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(chart.unit)
        date_axis(axes, narrow=False)
        drawing.figure.legend(loc="outside lower center", ncols=5)
    return drawing.svg
