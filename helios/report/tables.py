"""Tables for a terminal, readable at 80 columns.

Among them the comparison of a replay's starts with the recorded ones, beside simple controls. Start order follows
submissions whatever the rules are, so that its rank correlation is high for any replay: read it beside the control
"in order of submission". The rank correlation of waits says more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.errors import NotEnoughHistory
from helios.metrics.statistics import rank_correlation
from helios.model.frames import plain
from helios.report.history import Description
from helios.units import bar, duration, in_number, percent, sparkline, write_count

WIDE = 120
"""Terminal columns from which the secondary figures are shown too."""

CONTROL_NAMES = {
    "user_last": "user's last ended job",
    "time_limit": "time limit",
    "size_only": "median of that size",
    "shrinkage": "shrinkage, untrained",
}
GROUP_NAMES = {
    "new_user": "of users with fewer than 10 ended jobs",
    "burst": "in bursts",
    "large": "larger than 8",
    "top_user": "of the busiest user",
}

_LEGEND = (
    "[dim]Rank corr.: Spearman; 90 % range: of it, when users are resampled (days, where none is known); by burst: "
    "of bursts of alike jobs, each taken as one. Log error: median; 0.69 is a factor of 2. Bias: mean log error; above "
    "0 predicts too long. <=10 %: share of jobs predicted within 10 %. p10-p90: share of jobs inside the predicted "
    "interval; 80 % is right. Width: p90 over p10, as a factor.[/]"
)

FEWEST_JOBS = 3
"""Jobs below which a rank correlation means nothing."""


def plain_table(*names: str, right_from: int = 1, rows: Iterable[Iterable[str]] = ()) -> Table:
    """Return a table whose columns from ``right_from`` on hold numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for place, name in enumerate(names):
        right = place >= right_from
        table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def describe_missing(description: Description) -> str:
    """Name the columns that jobs lack, with how many jobs lack them.

    Empty where no job lacks any.
    """
    words = {name: name.removesuffix("_at").removesuffix("_s").replace("_", " ") for name in description.missing}
    words |= {"started_at": "start", "ended_at": "end"}
    lacking = {name: rows for name, rows in description.missing.items() if rows}
    return ", ".join(
        f"{words[name]} {percent(share) if (share := rows / description.jobs) >= 0.005 else in_number(rows, 'jobs')}"
        for name, rows in lacking.items()
    )


def evaluation_table(answer: Mapping[str, Any]) -> RenderableType:
    """Compare a model with its controls, and show its intervals' coverage.

    ``answer`` is the evaluation's JSON.
    """
    caption = (
        f"{escape(str(answer['cluster']))}: learned from {answer['train_jobs']:,} jobs that had ended by "
        f"{answer['train_until'][:16].replace('T', ' ')} UTC, evaluated on {answer['jobs']:,} submitted since."
    )
    rows = {"Helios": answer} | {CONTROL_NAMES.get(name, name): found for name, found in answer["controls"].items()}
    if answer.get("at_start"):
        rows = {"Helios": answer, "Helios, at job's start": answer["at_start"], **rows}
    parts: list[RenderableType] = [caption, "", _order_table(rows), "", _error_table(rows)]
    if answer.get("coverage_p90_by_group"):
        parts += ["", _bound_table(answer)]
    return Group(*parts, "", _LEGEND)


def _order_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = plain_table("Predictor", "Rank corr.", "90 % range", "By burst", "Log error", "p10-p90", "MAE")
    for place, (name, figures) in enumerate(rows.items()):
        cells = (
            figure(figures["spearman"], 3),
            "-" if not figures.get("spearman_90") else "{:.2f}..{:.2f}".format(*figures["spearman_90"]),
            figure(figures.get("spearman_by_burst"), 3),
            f"{figures['median_abs_log_error']:.2f}",
            percent(figures["coverage_p10_p90"]),
            duration(figures["mae_s"]),
        )
        table.add_row(name, *cells, style="" if place else "bold")
    return table


def _error_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = plain_table("Errors", "<=10 %", "<=50 %", "<=100 %", "Bias", "Width")
    for place, (name, figures) in enumerate(rows.items()):
        bias, width = figures.get("bias_log"), figures.get("log_width")
        shares = (percent(figures[f"within_{share}pct"]) for share in (10, 50, 100))
        cells = ("-" if bias is None else f"{bias:+.2f}", "-" if width is None else f"x {exp(width):,.0f}")
        table.add_row(name, *shares, *cells, style="" if place else "bold")
    return table


def _bound_table(answer: Mapping[str, Any]) -> Table:
    """Show the shares of jobs at or below p90."""
    sources = (answer, answer["controls"].get("shrinkage") or {})
    table = plain_table("At or below p90 (90 % is right)", "Jobs", "Helios", "shrinkage")
    table.add_row("all jobs", f"{answer['jobs']:,}", *(percent(source.get("coverage_p90")) for source in sources))
    for group, found in answer["coverage_p90_by_group"].items():
        shares = [(source.get("coverage_p90_by_group") or {}).get(group, {}).get("share") for source in sources]
        table.add_row(GROUP_NAMES.get(group, group), f"{found['jobs']:,}", *map(percent, shares))
    return table


def figure(value: float | None, digits: int = 2) -> str:
    """Write a number with a fixed number of decimals.

    None is a dash.
    """
    return "-" if value is None else f"{value:.{digits}f}"


def counted(number: float, noun: str) -> str:
    """Write a number with its noun, as ``1 job`` or ``0.25 GPUs``."""
    text = f"{number:,.0f}" if number == np.round(number) else write_count(number)
    return f"{text} {noun}{'' if number == 1 else 's'}"


def description_tables(description: Description) -> list[RenderableType]:
    """Return the tables that describe a history.

    Figures, sizes with states and mean waits, busiest users, day and week.
    """
    unit = description.unit
    busiest = ["", _busiest(description, unit)] if description.busiest_users else []
    return [_overview(description, unit), "", _sizes(description, unit), *busiest, "", _shapes(description)]


def load_table(answer: Mapping[str, Any]) -> RenderableType:
    """Show the result of a load.

    ``answer`` is the load's JSON.
    """
    cluster = escape(str(answer["cluster"]))
    head = (
        f"{cluster}: this file was loaded before; nothing changed."
        if answer["already_loaded"]
        else f"{cluster}: {answer['rows_read']:,} rows read, {answer['jobs_new']:,} new jobs, "
        f"{answer['jobs_updated']:,} updated, {answer['jobs_unchanged']:,} already known."
    )
    if not answer["rejects"]:
        return Group(head, "Every row could be read.")
    rejects = sorted(answer["rejects"].items(), key=lambda item: -item[1])
    rows = [(escape(reason), f"{count:,}") for reason, count in rejects]
    table = plain_table("Rows that make no sense", "Rows", rows=rows)
    return Group(head, "", table, "They are kept with their line and text: helios trace describe")


def rejects_table(rows: pd.DataFrame, counts: pd.DataFrame) -> RenderableType:
    """Show refused rows with file, line and reason, below their counts."""
    if rows.empty:
        return "No row was refused."
    counted_rows = zip(counts["reason"].astype(str).map(escape), counts["rows"].map("{:,}".format), strict=True)
    summary = plain_table("Reason", "Rows", rows=counted_rows)
    refused = rows.assign(text=rows["text"].astype(str).str[:200])[["line", "reason", "text", "path"]].astype(str)
    table = plain_table("Line", "Reason", "Text", "File", right_from=4, rows=refused.map(escape).to_numpy())
    return Group(summary, "", table)


def _overview(description: Description, unit: str) -> RenderableType:
    first, last = (at[:16].replace("T", " ") for at in (description.first_submitted_at, description.last_submitted_at))
    run_time_s, wait_s = description.run_time_s, description.wait_s
    rows = {
        "Cluster": escape(description.cluster),
        "Jobs": f"{description.jobs:,} ({description.gpu_jobs:,} with GPUs)",
        "Submitted": f"{first} to {last} UTC, {description.days:.1f} days",
        "Users": f"{description.users:,}" if description.users else "unknown",
        "Partitions": f"{description.partitions:,}" if description.partitions else "unknown",
        f"{unit} hours": f"{description.resource_hours:,.0f}",
        "Run time": _format_quantiles(run_time_s) if run_time_s else "unknown",
        "Wait": _format_quantiles(wait_s) if wait_s else "unknown (no start is recorded)",
        "Unknown": describe_missing(description),
        "Resource": "CPUs: no job names a GPU in this history" if description.resource == "cpus" else "",
    }
    table = plain_table("", "", right_from=2, rows=(row for row in rows.items() if row[1]))
    table.show_header, table.collapse_padding = False, False
    table.columns[0].style, table.columns[0].no_wrap = "bold", True
    return table


def _format_quantiles(quantiles: Mapping[str, float]) -> str:
    shown = ("p10", "p50", "p90", "p99", "max")
    return f"mean {duration(quantiles['mean'])}; " + ", ".join(f"{name} {duration(quantiles[name])}" for name in shown)


def _sizes(description: Description, unit: str) -> RenderableType:
    names = ("Done", "Cancelled", "Failed", "Timeout", "Other")
    table = plain_table(f"{unit}s", "Jobs", "", f"{unit} hours", *names, "Wait")
    table.columns[2].justify = "left"
    for row in description.sizes:
        states = row["states"]
        table.add_row(
            row["size"],
            f"{row['jobs']:,}",
            bar(row["share_of_jobs"], width=6),
            percent(row["share_of_hours"]),
            *(percent(states.get(name, 0)) for name in ("completed", "cancelled", "failed", "timeout")),
            percent(states.get("other", 0) + states.get("unknown", 0)),
            duration(row["mean_wait_s"]),
        )
    return table


def _shapes(description: Description) -> RenderableType:
    """Draw the shapes of day and week as sparklines."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row(f"Submissions by hour, 0 to 23 ({description.timezone})", sparkline(description.day_shape))
    if description.busy_by_hour:
        table.add_row(f"{description.unit}s in use by hour, mean", sparkline(description.busy_by_hour))
    table.add_row("Submissions by weekday, Monday first", sparkline(description.week_shape))
    return table


def _busiest(description: Description, unit: str) -> RenderableType:
    rows = [
        (escape(row["user"]), f"{row['jobs']:,}", f"{row['hours']:,.0f}", percent(row["share_of_hours"]))
        for row in description.busiest_users
    ]
    return plain_table("Busiest users", "Jobs", f"{unit} hours", "Share", rows=rows)


Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How near one replay's starts come to the recorded ones.

    Attributes
    ----------
    name : str
        What was replayed.
    jobs : int
    order_correlation, wait_correlation : float
        Spearman's, of starts and of waits; NaN where all are equal.
    median_error_s, p95_error_s : float
        Quantiles of the absolute difference of starts, s.
    mean_wait_s, recorded_wait_s : float
        Mean from eligible to start, s.
    """

    name: str
    jobs: int
    order_correlation: float
    wait_correlation: float
    median_error_s: float
    p95_error_s: float
    mean_wait_s: float
    recorded_wait_s: float

    @property
    def mean_wait_error(self) -> float:
        """Relative error of the mean wait.

        As a share of the recorded one; NaN where nobody waited.
        """
        return self.mean_wait_s / self.recorded_wait_s - 1 if self.recorded_wait_s else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values.

        What has no value is None.
        """
        return plain(asdict(self) | {"mean_wait_error": self.mean_wait_error})  # type: ignore[no-any-return]  # because of its parts


def fidelity(name: str, *, eligible_s: Times, recorded_s: Times, replayed_s: Times) -> Fidelity:
    """Compare replayed starts with the recorded ones.

    All arrays have the shape (jobs,), in s since the same moment.

    Raises
    ------
    NotEnoughHistory
        Fewer than ``FEWEST_JOBS`` jobs.
    """
    if len(recorded_s) < FEWEST_JOBS:
        raise NotEnoughHistory(
            f"{len(recorded_s)} recorded starts are too few to judge a replay by.", hint="Give a longer window."
        )
    error_s = np.abs(replayed_s - recorded_s)
    return Fidelity(
        name=name,
        jobs=len(recorded_s),
        order_correlation=rank_correlation(recorded_s, replayed_s),
        wait_correlation=rank_correlation(recorded_s - eligible_s, replayed_s - eligible_s),
        median_error_s=float(np.median(error_s)),
        p95_error_s=float(np.percentile(error_s, 95)),
        mean_wait_s=float(np.mean(replayed_s - eligible_s)),
        recorded_wait_s=float(np.mean(recorded_s - eligible_s)),
    )


def fidelity_table(rows: Sequence[Fidelity]) -> RenderableType:
    """Compare replays with the record, the first in bold."""
    table = plain_table("Beside the recorded starts", "Order", "Waits", "Median error", "p95", "Mean wait", "Error")
    for place, row in enumerate(rows):
        table.add_row(
            escape(row.name),
            _correlation(row.order_correlation),
            _correlation(row.wait_correlation),
            f"{row.median_error_s:,.1f} s",
            f"{row.p95_error_s:,.1f} s",
            f"{row.mean_wait_s:,.1f} s",
            "-" if np.isnan(row.mean_wait_error) else f"{100 * row.mean_wait_error:+.1f} %",
            style="" if place else "bold",
        )
    legend = (
        f"[dim]{rows[0].jobs:,} jobs; recorded mean wait {rows[0].recorded_wait_s:,.1f} s. Order, Waits: Spearman's "
        "rank correlation of starts, of waits. Errors: of starts.[/]"
    )
    return Group(table, legend)


def _correlation(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}"
