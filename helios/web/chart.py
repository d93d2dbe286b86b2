"""Charts over time, as data.

For the browser's drawing, for a table, and for a picture without scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from zoneinfo import ZoneInfo

from helios.report.html import TableCells
from helios.units import duration, write_count

ChartKind = Literal["line", "stack", "bars"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a chart.

    Attributes
    ----------
    name : str
    values : sequence of float or None
        One for each time; None where it is unknown.
    is_bound : bool
        Whether it bounds the others, as a capacity does. It is dashed and never stacked.
    """

    name: str
    values: Sequence[float | None]
    is_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart over time.

    Attributes
    ----------
    name : str
        Key of its data in the JSON of the page.
    title : str
        What it shows, in a few words; screen readers read it.
    unit : str
        Unit of the values, such as ``GPUs``; ``s`` is written as a duration.
    kind : str
        ``line``, ``stack`` (areas on each other) or ``bars`` (on each other, too).
    times : sequence of int
        Begin of each step, s since 1970-01-01 UTC.
    lines : sequence of Line
    timezone : str
        Zone in which times are shown.
    note : str
        What a reader must know of the values.
    end : int, optional
        End of the last step, s since 1970-01-01 UTC. By default the last step has no length.
    picks_window : bool
        Whether zooming picks the page's window.
    is_small : bool
        Whether it stands beside others.
    """

    name: str
    title: str
    unit: str
    times: Sequence[int]
    lines: Sequence[Line]
    kind: ChartKind = "line"
    timezone: str = "UTC"
    note: str = ""
    end: int | None = None
    picks_window: bool = True
    is_small: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known at any time."""
        return not any(value is not None for line in self.lines for value in line.values)

    def to_json(self) -> dict[str, Any]:
        """Return the chart as plain values."""
        return {
            "title": self.title,
            "unit": self.unit,
            "kind": self.kind,
            "timezone": self.timezone,
            "times": list(self.times),
            "end": self.times[-1] if self.end is None else self.end,
            "lines": [
                {"name": line.name, "values": list(line.values), **({"is_bound": True} if line.is_bound else {})}
                for line in self.lines
            ],
            **({"note": self.note} if self.note else {}),
        }

    def to_cells(self, *, most: int) -> TableCells:
        """Return the chart as a table, of the last ``most`` times, the latest first."""
        moments = [datetime.fromtimestamp(time, ZoneInfo(self.timezone)) for time in self.times]
        begins = [moment.replace(tzinfo=None) for moment in moments]
        # The first step may begin within a day, and so may the first one that is known, which is then the second.
        is_by_day = all(not (begin.hour or begin.minute) for begin in begins[2:])
        texts = [
            f"{begin:%Y-%m-%d}" if is_by_day and not (begin.hour or begin.minute) else f"{begin:%Y-%m-%d %H:%M}"
            for begin in begins
        ]
        rows = [
            (texts[at], *(self._write(line.values[at]) for line in self.lines))
            for at in range(len(self.times) - 1, max(len(self.times) - most, 0) - 1, -1)
        ]
        return TableCells(header=[("From", True), *((line.name, False) for line in self.lines)], rows=rows)

    def _write(self, value: float | None) -> str:
        if value is None:
            return ""
        return duration(value) if self.unit == "s" else write_count(round(value, 2))
