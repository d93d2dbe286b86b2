"""Numbers of the runs of requeued jobs.

Slurm closes the record of a run that is requeued and opens another one with the same id. Its submission is the moment
at which the epilog of the run before had ended (batch_requeue_fini() in job_mgr.c). The record of a job that is resized
is closed likewise, and the submission of the next one is the moment of the change (22.05.8).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model.records import JobState

INTERRUPTED = (JobState.REQUEUED, JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.RESIZING)
"""States of records after which the same job may have another one."""
FINISHED = (
    *(JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED, JobState.OUT_OF_MEMORY),
    JobState.DEADLINE,
)
"""States of records after which somebody may have requeued the job by hand (``scontrol requeue``).

slurmdbd then sets the record to REQUEUED, with the moment of the requeue as its end (seen on 22.05.8). What was
exported before, or written by jobcomp, keeps the state.
"""
LONGEST_EPILOG_US = 86_400_000_000
"""Longest time between the end of a run and the submission of the next one, µs. A node that hangs is one for hours."""
CLOCK_US = 60_000_000
"""The next submission may be earlier than the end by so much, µs."""
NEVER_US = np.iinfo(np.int64).max
"""Stands for a start or an end that is not known, µs."""


def number_runs(runs: pd.DataFrame) -> NDArray[np.int32]:
    """Return the number of each run of its job, 0 for the first.

    A run follows another one of the same id if both have the same submission, or if the earlier one was interrupted or
    had finished, ended shortly before the submission of the later one, and is of the same user, who must be known where
    it had finished. Any other row with the id of another one is a job of its own, since ids are used again.

    Parameters
    ----------
    runs : DataFrame
        One row for each run: ``job`` (any value that is the same for one id on one cluster), ``submitted``, ``started``
        and ``ended`` (µs, or ``NEVER_US``), ``interrupted``, ``finished``, ``user`` (a number, negative where unknown),
        ``least`` (a number that the run has at least, as the cluster or an earlier reading says), and ``is_first``
        (whether the cluster says that it is the first).
    """
    order = runs.sort_values(["job", "submitted", "started", "least"], kind="stable").index
    ordered = runs.loc[order]
    job, submitted = (ordered[name].to_numpy() for name in ("job", "submitted"))
    starts_job = np.ones(len(runs), dtype=np.bool_)
    same_submission = submitted[1:] == submitted[:-1]
    starts_job[1:] = (job[1:] != job[:-1]) | ~(same_submission | _may_follow(ordered))
    sequence = np.cumsum(starts_job)
    place = ordered.groupby(sequence).cumcount().to_numpy()
    # Each number is at least one more than the one before, and at least what is known of it.
    surplus = pd.Series(ordered["least"].to_numpy() - place).groupby(sequence).cummax().clip(lower=0).to_numpy()
    numbers: NDArray[np.int32] = pd.Series(place + surplus, index=order).loc[runs.index].to_numpy().astype(np.int32)
    return numbers


def _may_follow(ordered: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which rows may be the next run of the row before."""
    submitted, ended, user = (ordered[name].to_numpy() for name in ("submitted", "ended", "user"))
    interrupted, finished = (ordered[name].to_numpy()[:-1] for name in ("interrupted", "finished"))
    has_ended = ended[:-1] != NEVER_US
    later = submitted[1:] - np.where(has_ended, ended[:-1], 0)
    in_time = has_ended & (later >= -CLOCK_US) & (later <= LONGEST_EPILOG_US)
    either_unknown = (user[1:] < 0) | (user[:-1] < 0)
    follows = np.where(either_unknown, interrupted, (interrupted | finished) & (user[1:] == user[:-1]))
    found: NDArray[np.bool_] = in_time & follows & ~ordered["is_first"].to_numpy()[1:]
    return found
