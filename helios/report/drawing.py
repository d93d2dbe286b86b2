"""What all figures share: colours, axes of time and ratio, and the way from a drawing to SVG text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator, PercentFormatter

# Okabe and Ito's palette, told apart by the colour-blind (jfly.uni-koeln.de/color, 2002).
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
INK, SOFT, GREY, PALE = "#202124", "#5f6368", "#8a8f98", "#d5d8dd"
STYLE: Any = {
    "svg.fonttype": "none",
    # A user may be called $x$.
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": SOFT,
    "grid.color": "#eceef1",
    "legend.frameon": False,
    "legend.fontsize": "small",
    "legend.handlelength": 1.4,
    "xtick.color": SOFT,
    "ytick.color": INK,
}
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
}
WIDE_IN, NARROW_IN = 9.4, 3.6
"""Widths of a figure: of a desk's screen or a sheet of paper, and of a phone; inch."""
TIME_TICKS_S = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)
COARSE_TIME_TICKS_S = (1, 60, 3_600, 86_400, 30 * 86_400)
RATIOS = {0.2: "1/5", 0.5: "half", 2: "twice", 5: "5 x"}
POWERS_OF_TEN = {0.001: "1/1000", 0.01: "1/100", 0.1: "1/10", 10: "10 x", 100: "100 x", 1000: "1000 x"}


@dataclass(slots=True)
class Canvas:
    """A figure under way.

    Attributes
    ----------
    panels : list of Axes
        Side by side, or below each other where ``narrow``.
    svg : str
        The finished figure, once the ``with`` block of :func:`canvas` has ended.
    """

    figure: Figure
    panels: list[Axes]
    narrow: bool
    svg: str = ""


@contextmanager
def canvas(
    description: str, *, height: float, narrow: bool = False, rows: int = 1, columns: int = 1
) -> Iterator[Canvas]:
    """Draw a figure in our style; matplotlib's settings are as before once it is finished.

    Parameters
    ----------
    description : str
        What the figure shows, for those who cannot see it.
    height : float
        Inch; of each column where ``narrow`` puts the columns below each other.
    """
    # Names within an SVG are made of this salt, and a page holds many of them.
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": f"{description}, {'narrow' if narrow else 'wide'}"}):
        if narrow:
            rows, columns, height = rows * columns, 1, height * columns
        figure = Figure(figsize=(NARROW_IN if narrow else WIDE_IN, height), layout="constrained")
        drawing = Canvas(figure, list(np.atleast_1d(figure.subplots(rows, columns)).flat), narrow)
        yield drawing
        drawing.svg = _svg(figure, description)


def percent_axis(axes: Axes) -> None:
    """Write shares as whole per cent on the y axis."""
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))


def time_axis(axes: Axes, *, narrow: bool = False, upright: bool = False) -> None:
    """Make the x axis (``upright``: the y axis) one of times from a second to a month, logarithmic."""
    axis = axes.yaxis if upright else axes.xaxis
    (axes.set_yscale if upright else axes.set_xscale)("log")
    low, high = axes.get_ylim() if upright else axes.get_xlim()
    ticks = COARSE_TIME_TICKS_S if narrow else TIME_TICKS_S
    if sum(low <= tick <= high for tick in ticks) < 2:  # an axis with one tick has no scale
        low = max((tick for tick in ticks if tick <= low), default=low)
        high = min((tick for tick in ticks if tick >= high), default=high)
        (axes.set_ylim if upright else axes.set_xlim)(low, high)
    axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_major_formatter(FuncFormatter(lambda tick, _: _short(tick)))
    axis.set_minor_locator(NullLocator())


def date_axis(axes: Axes, *, narrow: bool) -> None:
    """Make the x axis one of dates."""
    ticks = AutoDateLocator(minticks=2, maxticks=5 if narrow else 9)  # type: ignore[no-untyped-call]  # because untyped
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks))  # type: ignore[no-untyped-call]  # because untyped


def rare_share_axis(axes: Axes) -> None:
    """Make the y axis one of shares down to the rarest, logarithmic, with a tick at each power of ten."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([10.0**power for power in range(-9, 1) if low <= 10.0**power <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def ratio_axis(axes: Axes, *, low: float, high: float, same: str, narrow: bool) -> None:
    """Make the x axis one of ratios in words, logarithmic; ``same`` is how 1 is called."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    crowded = high / low > (50 if narrow else 10_000)
    ticks = {1: same, **POWERS_OF_TEN, **({} if crowded else RATIOS)}
    shown = {tick: text for tick, text in sorted(ticks.items()) if low <= tick <= high}
    axes.set_xticks(list(shown), list(shown.values()))
    axes.xaxis.set_minor_locator(NullLocator())


def _short(seconds: float) -> str:
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:g} {name}"
    return f"{seconds:g} s"


def _svg(figure: Figure, description: str) -> str:
    """Return the figure as an SVG element, without what only an editor of drawings needs."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    element = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w.-]+)", element))
    element = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _themed, element)
    element = re.sub(r' id="([^"]+)"', lambda name: name[0] if name[1] in used else "", element)
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def _themed(found: re.Match[str]) -> str:
    what, colour = found.groups()
    return f"{what}: var(--{THEMED[colour]}, {colour})" if colour in THEMED else found[0]
