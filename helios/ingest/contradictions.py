"""Rules for rows of any format that contradict themselves.

Each row is counted and named in the load report. Rules that need the fields of one format are with its reader.
``docs/formats.md`` lists all of them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from helios.ingest.job_rows import JobRows
from helios.ingest.parse import NOT_A_TIME, Mask, unset_epoch
from helios.metrics.occupancy import RUNAWAY, RUNAWAY_GRACE
from helios.model import JobState
from helios.model.gpu_parts import WAYS, SiteGpus, gpus_from_nodes

CLOCK_STEP = np.timedelta64(1, "D")
"""A start may be earlier than the submission by so much, as clocks and zones leave it."""
LIMIT_GRACE_S = 3_600.0
"""A run above twice its limit and so much more is far above it, s."""

STARTED_EARLY = "jobs have a start before their submission, as clocks or requeues leave it; they are kept"
STARTED_DAYS_EARLY = "jobs have a start more than a day before their submission: their run counts, without a wait"
FAR_ABOVE_LIMIT = "jobs ran far above their limit: their run time is kept as it was recorded"
RUNAWAYS = (
    "jobs seem to run for longer than any can: each counts as ended when it started, as Slurm's own repair does it"
    " (sacctmgr show runawayjobs)"
)
OLD_RUNNING = (
    "jobs have run for longer than any can by today's date, and no job of the file has ended; they are kept as RUNNING,"
    " which is true only of a file as old; else they are runaways (sacctmgr show runawayjobs)"
)
NO_RECORD = "jobs have no record of their GPUs, as no row names gres/gpu"
_FROM_NODES = {
    WAYS.index("none"): "jobs ran on nodes without GPUs and held none; their lists name no GPU",
    WAYS.index("exclusive"): "jobs of exclusive partitions held all GPUs of their nodes; their lists name no GPU",
    WAYS.index(
        "whole nodes"
    ): "jobs held all CPUs of their nodes, and count with all GPUs of these; their lists name no GPU",
    WAYS.index("asked"): "jobs count with the GPUs that their SubmitLine asks for; their lists name no GPU",
    -1: "jobs may hold some of their nodes' GPUs, which is not recorded; their lists name no GPU",
}
"""How GPUs that no row names are counted where the nodes are known."""
_RUNNING = (JobState.RUNNING.value, JobState.SUSPENDED.value)


def settle(draft: JobRows, *, as_of: np.datetime64, any_ended: bool) -> dict[str, Mask]:
    """Settle contradictions in translated rows, and return the rows of each.

    Parameters
    ----------
    draft : JobRows
        Its jobs are changed.
    as_of : datetime64
        The latest time in the file.
    any_ended : bool
        Whether a job of the file has ended. Otherwise its latest time does not tell how long the others have run.

    Returns
    -------
    dict of str to array of shape (n_rows,)
        Masks by the text of the note.
    """
    jobs = draft.jobs
    found = {**draft.remarks, **unset_epoch(jobs)}
    submitted, started = jobs["submitted_at"], jobs["started_at"]
    early = started < submitted
    if early.any():
        days_early = submitted - started > CLOCK_STEP
        found |= {STARTED_EARLY: early & ~days_early, STARTED_DAYS_EARLY: days_early}
    if "state" in jobs and "ended_at" in jobs:
        found[RUNAWAYS] = _run_too_long(jobs, as_of)
        _end_runaways(jobs, found[RUNAWAYS])
        if not any_ended:
            found[OLD_RUNNING] = _run_too_long(jobs, _today())
    if "time_limit_s" in jobs and "run_time_s" in jobs:
        found[FAR_ABOVE_LIMIT] = jobs["run_time_s"] > 2 * jobs["time_limit_s"] + LIMIT_GRACE_S
    return found


def settle_gpus(draft: JobRows, *, named: bool, site: SiteGpus | None) -> dict[str, Mask]:
    """Set the GPUs of rows that name none.

    Returns the rows of each way in which they are known, by the text of its note.

    Parameters
    ----------
    named : bool
        Whether the site accounts for GPUs, so that such rows hold none.
    """
    jobs, rows = draft.jobs, draft.unnamed
    if rows is None or not rows.any():
        return {}
    if named:
        jobs["gpus"] = np.where(rows, 0.0, jobs["gpus"])
        return {}
    if site is None:
        return {NO_RECORD: rows}
    lists, partitions = (
        np.asarray(jobs[name], dtype=object) if name in jobs else np.full(len(rows), None)
        for name in ("node_list", "partition")
    )
    unknown = np.full(len(rows), np.nan)
    cpus, asked = jobs.get("cpus", unknown), unknown if draft.asked is None else draft.asked
    gpus, way = gpus_from_nodes(site, node_lists=lists, partitions=partitions, cpus=cpus, asked=asked)
    jobs["gpus"] = np.where(rows, gpus, jobs["gpus"])
    return {note: rows & (way == number) for number, note in _FROM_NODES.items()}


def latest(draft: JobRows) -> np.datetime64:
    """Return the latest time in translated rows that is not in the future."""
    times = [draft.jobs[name] for name in ("submitted_at", "started_at", "ended_at") if name in draft.jobs]
    known = [found for column in times if not np.isnat(found := np.fmax.reduce(column, initial=NOT_A_TIME))]
    return min(max(known), _today()) if known else NOT_A_TIME


def _today() -> np.datetime64:
    return np.datetime64(datetime.now(UTC).replace(tzinfo=None), "us")


def _run_too_long(jobs: dict[str, Any], as_of: np.datetime64) -> Mask:
    """Return which jobs have run for longer than any can."""
    runs: Mask = np.asarray(jobs["state"].isin(_RUNNING)) & np.isnat(jobs["ended_at"])
    if not runs.any():
        return runs
    limit_s = jobs.get("time_limit_s", np.full(len(runs), np.nan))
    limited = np.isfinite(limit_s)
    twice = (np.where(limited, 2 * limit_s, 0.0) * 1e6).astype("timedelta64[us]")
    longest = np.where(limited, twice + RUNAWAY_GRACE, RUNAWAY)
    too_long: Mask = runs & (as_of - jobs["started_at"] > longest)
    return too_long


def _end_runaways(jobs: dict[str, Any], runaway: Mask) -> None:
    # "sacctmgr show runawayjobs" sets the end to the start. The state is unknown rather than COMPLETED, as there.
    if runaway.any():
        state = jobs["state"]
        codes = np.where(runaway, -1, state.codes)
        jobs["state"] = pd.Categorical.from_codes(codes, categories=state.categories)
        jobs["ended_at"] = np.where(runaway, jobs["started_at"], jobs["ended_at"])
        if "run_time_s" in jobs:
            jobs["run_time_s"] = np.where(runaway, np.nan, jobs["run_time_s"])
