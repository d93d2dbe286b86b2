"""Tables of what-if replays for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.model import SIZE_CLASSES, SIZE_HEADS
from helios.report.tables import WIDE, plain_table
from helios.report.whatif import Run, WhatIf
from helios.units import change, duration, percent

MIDDLE = 72
"""Terminal columns below which only the mean and the longest wait are shown, as on a phone."""


def whatif_table(result: WhatIf, *, width: int) -> RenderableType:
    """Compare the replays of a what-if.

    The verdict comes first; then the baseline, what the site could have, and what no live Slurm can do.

    Parameters
    ----------
    width : int
        Columns of the terminal; from ``WIDE`` on secondary figures are shown too, below ``MIDDLE`` only the mean and
        the longest wait.
    """
    baseline, feasible = result.baseline, result.feasible
    against = "vs today" if baseline.is_own_order else "vs plain" if baseline.is_plain else "vs 1st"
    heads = ["Replayed", "Mean wait", "Longest"]
    heads += [against, "p99", *SIZE_HEADS.values()] if width >= MIDDLE else []
    table = plain_table(*heads)
    for name in ("Median", "JCT", "Slowdown", "Used", "Queued") if width >= WIDE else ():
        table.add_column(name, justify="right")
    best = best_figures([baseline, *feasible])
    for run in (baseline, *feasible):
        table.add_row(*_cells(run, result, best, width))
    if impossible := [*result.impossible, *result.oracles]:
        table.add_section()
        table.add_row("[dim]Not possible on a live Slurm:[/]")
        for run in impossible:
            table.add_row(*_cells(run, result, {}, width), style="dim")
    first, last = result.window
    caption = (
        f"{escape(result.cluster)}: {baseline.summary.jobs:,} jobs from {first:%Y-%m-%d} to {last:%Y-%m-%d} (UTC) "
        f"on {result.size}. "
        "Wait by size: mean. Best of those that can be had: bold."
    )
    return Group(*map(escape, result.headline()), "", caption, "", table)


def best_figures(runs: Sequence[Run]) -> dict[str, float]:
    """Return the smallest of each wait that a table shows.

    Only of waits in which the replays differ.
    """
    figures: dict[str, list[float | None]] = {
        "mean": [run.summary.mean_wait_s for run in runs],
        "p99": [run.summary.p99_wait_s for run in runs],
        "longest": [run.summary.max_wait_s for run in runs],
        **{name: [run.summary.mean_wait_s_by_size[name] for run in runs] for name in SIZE_CLASSES},
    }
    known = {name: [value for value in values if value is not None] for name, values in figures.items()}
    return {name: min(values) for name, values in known.items() if values and min(values) < max(values)}


def _cells(run: Run, result: WhatIf, best: Mapping[str, float], width: int) -> list[str]:
    summary, baseline = run.summary, result.baseline
    by_size = summary.mean_wait_s_by_size
    cells = [
        result.label_in_table(run),
        _mark_best("mean", summary.mean_wait_s, best),
        _mark_best("longest", summary.max_wait_s, best),
    ]
    if width >= MIDDLE:
        cells += [
            "" if run is baseline else change(summary.mean_wait_s, baseline.summary.mean_wait_s),
            _mark_best("p99", summary.p99_wait_s, best),
            *(_mark_best(name, by_size[name], best) for name in SIZE_CLASSES),
        ]
    if width >= WIDE:
        cells += [
            duration(summary.median_wait_s),
            duration(summary.mean_jct_s),
            f"{summary.mean_bounded_slowdown:,.1f}",
            percent(summary.utilization),
            f"{summary.queued_jobs:,}",
        ]
    return cells


def _mark_best(name: str, value: float | None, best: Mapping[str, float]) -> str:
    text = duration(value)
    return f"[bold green]{text}[/]" if value is not None and value == best.get(name) else text
