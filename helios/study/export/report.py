"""Tables of the re-identification risk and the losses of an anonymous export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from helios.metrics.blocks import Estimate
from helios.report.tables import plain_table
from helios.study.export.reidentification import Risk
from helios.study.sentences import value_text
from helios.units import change, duration, percent

_FIGURES = {
    "jobs": "Jobs",
    "users": "Users",
    "gpu_hours": "GPU hours",
    "cpu_hours": "CPU hours",
    "run_time_s": "Run time,",
    "wait_s": "Wait,",
    "share_of_hours": "Share of hours in jobs of size",
    "replayed_mean_wait_s": "Replayed mean wait,",
}


def risk_table(risk: Risk, *, bound: float) -> RenderableType:
    """Show the re-identification risk of an export."""
    rows = [
        ("Alone with their size and submission", risk.unique_jobs, None),
        (f"Given to their user (bound {percent(bound)}) by size and submission", risk.traced.jobs, risk.traced.users),
        ("by a list of each user's jobs or hours", risk.by_usage_list.jobs, risk.by_usage_list.users),
        ("by size, run time and state of three jobs", risk.by_known_jobs.jobs, risk.by_known_jobs.users),
        ("by the first half of the site's own log", risk.by_half_a_log.jobs, risk.by_half_a_log.users),
        ("In that log by size and submission", risk.by_size_and_submission.jobs, risk.by_size_and_submission.users),
        ("and by wait and run time, too", risk.by_size_and_all_times.jobs, risk.by_size_and_all_times.users),
    ]
    table = plain_table("Risk", "Jobs", "Users")
    for name, jobs, users in rows:
        table.add_row(name, percent(jobs, 1), percent(users, 1))
    verb = "shows" if risk.shift_found else "does not show"
    return Group(
        table,
        "",
        f"The site's own log {verb} by how many weeks the times were moved ({risk.shifts_tried:,} shifts tried). "
        f"{risk.left_out:,} jobs were left out to hide their users. A user here is a cohort of three and more. "
        "Share this export only with people who may link it to jobs that they know.",
    )


def loss_table(loss: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """Compare a history with its anonymous export."""
    table = plain_table("Lost", "Before", "After", "Change")
    for name, figure in loss.items():
        kind, _, part = name.partition(".")
        before, after = figure["before"], figure["after"]
        if before is None and after is None:
            continue
        if kind == "statements":
            texts = [value_text(Estimate(value=value), figure["unit"]) for value in (before, after)]
            label = figure["title"]
        else:
            texts = [_value(kind, value) for value in (before, after)]
            label = f"{_FIGURES[kind]} {part}".strip()
        table.add_row(label, *texts, change(after, before))
    return table


def _value(kind: str, value: float | None) -> str:
    if kind.endswith("_s"):
        return duration(value)
    if kind == "share_of_hours":
        return percent(value, 1)
    return "-" if value is None else f"{value:,.0f}"
