"""The page of charts, and the charts of use that other pages show too."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app import reports
from helios.app.reports import ReportContext
from helios.app.series import By, SeriesFrame, Step, series, step_of
from helios.metrics.capacity import CapacitySource, capacity_of_nodes
from helios.model import SIZE_RANGES
from helios.report.admin.sacct_format import FieldKind, ReportTable, as_json, declare_fields
from helios.report.admin.usage import NO_START
from helios.units import HOUR_S, best_unit
from helios.warehouse.use import UNNAMED
from helios.web.chart import Chart, Line
from helios.web.page import Page, Reader, Section
from helios.web.pages.report_page import CHOICE
from helios.web.site import Site
from helios.web.table import DataTable

MONTHS = 12
"""Months up to the end of the window in the table of accounts and months."""
MOST_STEPS = 600
"""Most steps of a chart, the last ones."""
BY_MONTH = declare_fields(
    ("Month", "month", FieldKind.TEXT, 8, "Month, on the cluster's clock"),
    ("Account", "group", FieldKind.TEXT, 12, "Account of the jobs"),
    ("GPUHours", "gpu_hours", FieldKind.COUNT, 9, "GPU hours held in the month"),
    ("CPUHours", "cpu_hours", FieldKind.COUNT, 9, "CPU hours held in the month"),
    ("Jobs", "submitted", FieldKind.COUNT, 8, "Jobs submitted in the month, each run of a requeued one once"),
    ("P90Wait", "p90_wait_s", FieldKind.LENGTH, 11, "Wait that one job in ten of these exceeded"),
    ("Part", "part", FieldKind.TEXT, 36, "Part of the month that is known and in the window; empty where all is"),
)
CUT = "This history ends before the window: what jobs held after its end is in the reports, not in charts."
FIGURES = ("gpu_hours", "cpu_hours", "gpu_hours_waited", "cpu_hours_waited", "p50_wait_s", "p90_wait_s")
COUNTS = ("submitted", "started", "ended")

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UseSeries:
    """Use and waits over time as lines of charts.

    Attributes
    ----------
    frame : SeriesFrame
        What is not known is NaN in it, as on days that nobody recorded.
    resource : str
        ``gpus`` or ``cpus``, as reports choose it.
    hours : array of float
        Length of each step.
    """

    frame: SeriesFrame
    resource: str
    hours: NDArray[np.float64]

    @property
    def unit(self) -> str:
        """The unit in the plural, such as ``GPUs``."""
        return f"{best_unit(self.resource)}s"

    @property
    def groups(self) -> list[str]:
        """The groups, that with most hours first."""
        return list(dict.fromkeys(self.frame.rows["group"]))

    @property
    def has_starts(self) -> bool:
        """Whether any start is recorded, or nothing was submitted."""
        rows = self.frame.rows
        return bool(rows["started"].any()) or not rows["submitted"].any()

    def chart(self, name: str, title: str, unit: str, lines: Sequence[Line], **more: object) -> Chart:
        """Return a chart of lines over these steps."""
        begins = self.frame.rows["day"].drop_duplicates()
        options: dict[str, object] = {
            "times": [int(begin.timestamp()) for begin in begins],
            "end": int(self.frame.until.timestamp()),
            "timezone": self.frame.timezone,
        }
        return Chart(name=name, title=title, unit=unit, lines=lines, **{**options, **more})  # type: ignore[arg-type]

    def lines(self, column: str, *, is_mean: bool = False) -> list[Line]:
        """Return a column as one line for each group.

        ``is_mean``: whether hours become the mean number over the step.
        """
        table = self.frame.rows[column].to_numpy(dtype=np.float64).reshape(len(self.hours), len(self.groups))
        table = table / self.hours[:, np.newaxis] if is_mean else table
        return [
            Line(name=group or "all jobs", values=[None if np.isnan(value) else round(value, 3) for value in values])
            for group, values in zip(self.groups, table.T.tolist(), strict=True)
        ]

    def use_chart(self, *, by: str = "", capacity: float | None = None, note: str = "") -> Chart:
        """Return the mean number in use by group, with the capacity where it is known."""
        name, title = (f"use_by_{by}", f"{self.unit} in use by {by}") if by else ("use", f"{self.unit} in use")
        lines = self.lines(f"{self.resource[:-1]}_hours", is_mean=True)
        if capacity is not None and lines:
            lines.append(Line(name="Capacity", values=[capacity] * len(self.hours), is_bound=True))
        return self.chart(name, title, self.unit, lines, kind="stack", note=note)

    def waiting_chart(self) -> Chart:
        """Return the mean number waited for by group."""
        lines = self.lines(f"{self.resource[:-1]}_hours_waited", is_mean=True)
        return self.chart("waiting", f"{self.unit} waited for", self.unit, lines, kind="stack")

    def wait_charts(self) -> list[Chart]:
        """Return the middle and the long waits by group."""
        of_all = "" if len(self.groups) == 1 and not self.groups[0] else ", by GPUs of the job"
        places = {size: place for place, size in enumerate(SIZE_RANGES)}
        found = []
        for column, title in (("p50_wait_s", "Median wait"), ("p90_wait_s", "Wait that one job in ten exceeds")):
            lines = sorted(self.lines(column), key=lambda line: places.get(line.name, len(places)))
            found.append(self.chart(column.removesuffix("_s"), f"{title}{of_all}", "s", lines))
        return found


def use_series(
    context: ReportContext, *by: By, since: datetime | None = None, step: Step | None = None
) -> list[UseSeries]:
    """Return use and waits of a context's window, for each way to group.

    Steps that nobody recorded are unknown. What is before the record is one of them, so that the first step that is
    known begins with the record, and the last one ends now.
    """
    since, until = since or context.since, context.until
    step = step or step_of(until - since)
    first = context.known_from()
    begin, end = max(since, first or since), min(until, context.query.now)
    if begin >= end:
        begin, end = since, until  # nothing of it is known
    before = since if begin > since else None
    frames = series(context, *by, since=begin, until=end, step=step)
    return [_known_part(context, frame, before=before) for frame in frames]


def _known_part(context: ReportContext, frame: SeriesFrame, *, before: datetime | None) -> UseSeries:
    """Return a frame without values where nothing is known.

    ``before`` is the begin of the window where the record begins later.
    """
    if frame.rows.empty:
        return UseSeries(frame=frame, resource="gpus", hours=np.zeros(0))
    rows = frame.rows
    has_gpus = float(rows["gpu_hours"].sum() + rows["gpu_hours_waited"].sum()) > 0
    n_groups = rows["group"].nunique()
    rows = rows.iloc[-MOST_STEPS * n_groups :]
    if before is not None and len(rows) < MOST_STEPS * n_groups:
        unknown = rows.head(n_groups)[["group"]].assign(day=pd.Timestamp(before).tz_convert(frame.timezone))
        rows = pd.concat([unknown.reindex(columns=rows.columns), rows], ignore_index=True)
    begins_s = np.array([int(day.timestamp()) for day in rows["day"].drop_duplicates()], dtype=np.int64)
    ends_s = np.append(begins_s[1:], int(frame.until.timestamp()))
    known = context.known_steps(begins_s, ends_s)
    blank: dict[str, Any] = {}
    if not known.all():
        blank = {name: rows[name].where(np.repeat(known, n_groups)) for name in (*FIGURES, *COUNTS)}
    if not rows["started"].any() and rows["submitted"].any():
        # Without starts nothing says when anything was held or waited.
        blank |= dict.fromkeys(FIGURES, np.nan)
    return UseSeries(
        frame=replace(frame, rows=rows.assign(**blank)),
        resource="gpus" if has_gpus else "cpus",
        hours=np.maximum(ends_s - begins_s, 1) / HOUR_S,
    )


def capacity_of(context: ReportContext, resource: str) -> tuple[float | None, str]:
    """Return the capacity of a cluster whose nodes are known, and how it is known.

    None where no node has any of it.
    """
    nodes = context.warehouse.nodes(context.cluster)
    if partitions := context.query.partitions:
        nodes = nodes[nodes["partition"].isin(list(partitions))]
    if not bool((nodes[resource] > 0).any()):
        return None, ""
    found = capacity_of_nodes(nodes, resource=resource, source=CapacitySource.NODES)
    return found.units, f"{found.line()[:-1]}, as last read."


def history_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of charts."""
    with reports.open_context(site.report_query(reader, given, sums=True)) as context:
        partitions, accounts, waits = use_series(context, "partition", "account", "size")
        if partitions.resource != "gpus":
            (waits,) = use_series(context, "")
        (months,) = use_series(context, "account", since=_first_month(context), step="month")
        # What one account holds has no capacity of its own, and a user sees nothing but the own jobs.
        whole = reader.sees_sums and not (context.query.accounts or context.query.users)
        capacity, note = capacity_of(context, partitions.resource) if whole else (None, "")
        title, live = context.title("use and waits"), context.live
        is_cut = not live and context.until > context.query.now
    unit, step = partitions.unit, partitions.frame.step
    charts = [
        partitions.use_chart(by="partition", capacity=capacity, note=note),
        *([accounts.use_chart(by="account", capacity=capacity)] if accounts.groups != [UNNAMED] else []),
        partitions.waiting_chart(),
        *waits.wait_charts(),
        partitions.chart("submissions", "Jobs submitted", "jobs", partitions.lines("submitted"), kind="bars"),
    ]
    table = _month_table(months)
    hours = f"{best_unit(months.resource)} hours"
    by_month = months.chart(
        "months",
        f"{hours} by account and month",
        hours,
        months.lines(f"{months.resource[:-1]}_hours"),
        kind="bars",
        picks_window=False,
    )
    drawn = [chart for chart in charts if not chart.is_empty]
    lacking = [] if drawn or is_cut else ["No job was in this window."]
    lacking = [NO_START] if not partitions.has_starts else [*lacking, *([CUT] if is_cut else [])]
    return Page(
        title="Charts",
        subtitle=title,
        sections=[
            Section(
                sentences=lacking,
                charts=drawn,
                notes=[
                    f"{unit} in use and waited for are means over each {step}, waits are those of the jobs submitted "
                    "in it that have started. Each run of a requeued job counts once. Draw over a chart to look closer."
                ],
            ),
            Section(
                title=f"The {MONTHS} months to the end of the window",
                charts=[] if by_month.is_empty else [by_month],
                data=DataTable(answer=table, key="months"),
            ),
        ],
        values={
            "title": title,
            "live": live,
            "step": step,
            "resource": partitions.resource,
            "capacity": capacity,
            "months": as_json(table)["rows"],
        },
        form_fields=[name for name in CHOICE if reader.is_admin or name != "user"],
    )


def _first_month(context: ReportContext) -> datetime:
    last = pd.Timestamp(context.until).tz_convert(context.timezone)
    first = (last.normalize().replace(day=1) - pd.DateOffset(months=MONTHS - 1)).tz_convert("UTC")
    return first.to_pydatetime().astimezone(UTC)


def _parts_of_months(begins: pd.Series[Any], until: datetime) -> pd.Series[Any]:
    """Return the part of each month that is not whole."""
    edges = [*begins.drop_duplicates(), pd.Timestamp(until).tz_convert(begins.dt.tz)]
    ends = dict(itertools.pairwise(edges))
    is_whole = {begin: all(edge == edge.normalize().replace(day=1) for edge in (begin, ends[begin])) for begin in ends}
    texts = {begin: f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}" for begin, end in ends.items()}
    return begins.map({begin: None if is_whole[begin] else text for begin, text in texts.items()})


def _month_table(months: UseSeries) -> ReportTable:
    rows = months.frame.rows
    rows = rows.assign(part=_parts_of_months(rows["day"], months.frame.until))
    rows = rows[(rows["submitted"] > 0) | (rows["cpu_hours"] > 0) | (rows["gpu_hours"] > 0)]
    rows = rows.assign(month=rows["day"].dt.strftime("%Y-%m")).iloc[::-1].reset_index(drop=True)
    hidden = {"GPUHours"} if months.resource == "cpus" else set()
    return ReportTable(
        title="Hours by account and month",
        fields=BY_MONTH,
        shown=tuple(field.name for field in BY_MONTH if field.name not in hidden),
        rows=rows[[field.column for field in BY_MONTH]].sort_values("month", ascending=False, kind="stable"),
        empty="Nothing was submitted or held in these months.",
        timezone=months.frame.timezone,
    )
