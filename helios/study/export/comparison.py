"""Comparison of a history before and after it is made anonymous."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from helios.app.history import LoadedHistory
from helios.app.replay_cluster import POOL, replay_cluster_for
from helios.ports import Progress, no_progress
from helios.report.history import describe
from helios.simulate import ORDERS
from helios.study.export.anonymous import (
    OTHERS,
)
from helios.study.export.request import ANONYMOUS
from helios.study.study import study
from helios.study.text import Statement
from helios.units import DAY_S

MOST_REPLAYED = 1_000_000


def compare_exports(
    before: pd.DataFrame, after: pd.DataFrame, *, timezone: str, progress: Progress = no_progress
) -> dict[str, Any]:
    """Compare a history before and after anonymisation.

    Parameters
    ----------
    before, after : DataFrame
        Columns of ``JOBS``.

    Returns
    -------
    dict
        ``before`` and ``after`` by the name of the figure; None where it is not known. Statements of a study also have
        ``title`` and ``unit``. Users with few jobs are one user after it, as whoever gets the export will read it.
    """
    waits = _replayed_waits(before, after, progress)
    found = [
        _figures(jobs, timezone) | {f"replayed_mean_wait_s.{name}": mean for name, mean in of_one.items()}
        for jobs, of_one in zip((before, after), waits, strict=True)
    ]
    names = list(dict.fromkeys(name for figures in found for name in figures))
    figures = {name: {"before": found[0].get(name), "after": found[1].get(name)} for name in names}
    progress("Comparing studies", 0.0)
    earlier, later = _statements(before, timezone), _statements(after, timezone)
    progress("Comparing studies", 1.0)
    statements = {
        f"statements.{name}": {"before": one.value, "after": later[name].value, "title": one.title, "unit": one.unit}
        for name, one in earlier.items()
    }
    return figures | statements


def _figures(jobs: pd.DataFrame, timezone: str) -> dict[str, Any]:
    described = describe(jobs, cluster="", timezone=timezone)
    quantiles = ("mean", "p10", "p50", "p90", "p99")
    return {
        "jobs": described.jobs,
        "users": described.users - int((jobs["user"] == OTHERS).any()),
        f"{described.unit.lower()}_hours": described.resource_hours,
        **{f"run_time_s.{name}": described.run_time_s.get(name) for name in quantiles},
        **{f"wait_s.{name}": described.wait_s.get(name) for name in quantiles},
        **{f"share_of_hours.{row['size']}": row["share_of_hours"] for row in described.sizes},
    }


def _statements(jobs: pd.DataFrame, timezone: str) -> dict[str, Statement]:
    """Return the statements of a study by name."""
    found = study(LoadedHistory(cluster=ANONYMOUS, jobs=jobs, timezone=timezone))
    return {statement.name: statement for statement in found.statements}


def _replayed_waits(
    before: pd.DataFrame, after: pd.DataFrame, progress: Progress
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean wait under two orders with EASY, before and after.

    All on one pool as large as the mean demand, so that there is a queue. Empty where no job can be replayed, or more
    than ``MOST_REPLAYED``.
    """
    resource = "gpus" if bool((before["gpus"] > 0).any()) else "cpus"
    jobs, later = (frame[frame["run_time_s"].notna() & (frame[resource] > 0)] for frame in (before, after))
    if not 0 < len(jobs) <= MOST_REPLAYED:
        return {}, {}
    span_s = max((jobs["submitted_at"].max() - jobs["submitted_at"].min()).total_seconds(), 1.0)
    demand = float((jobs[resource] * jobs["run_time_s"]).sum()) / span_s
    largest = max(float(jobs[resource].max()), float(later[resource].max()))
    pool = int(np.ceil(max(demand, largest)))
    found: tuple[dict[str, float], dict[str, float]] = {}, {}
    for number, frame in enumerate((jobs, later)):
        machine = replay_cluster_for(frame, resource=resource, nodes={POOL: 1}, gpus_per_node=pool)
        for place, name in enumerate(("fifo", "fewest_gpus")):
            progress("Comparing replays", (2 * number + place) / 4)
            result = machine.replay(ORDERS[name], default_limit_s=7 * DAY_S)
            found[number][name] = float(result.wait_s.mean())
    progress("Comparing replays", 1.0)
    return found
