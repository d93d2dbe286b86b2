"""Rules for when a job waits, and for how long it holds resources."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import NEVER_US, JobState

RUNAWAY = np.timedelta64(366, "D")
"""Age at which a job without a limit does not run any more."""
RUNAWAY_GRACE = np.timedelta64(7, "D")
"""A job may run so much longer than twice its limit, as Slurm lets suspended ones (OverTimeLimit, gang scheduling)."""
FAILURES = frozenset({JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL, JobState.BOOT_FAIL})
"""Ends that nobody wanted; a time limit reached and a cancellation may be a choice."""
STILL_RUNNING = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.RESIZING})
STILL_WAITING = frozenset({JobState.PENDING, JobState.REQUEUED})

_SECOND = np.timedelta64(1, "s")
_SECOND_US = 1_000_000

Times = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def held_until_us(
    *, started_us: Times, ended_us: Times, run_s: Floats, limit_s: Floats, runs: Flags, now_us: int
) -> Times:
    """Return until when each started job held its resources, in µs.

    A run that goes on has held them until ``now_us``, or for as long as any can run. A start without an end is followed
    by the run time. Without a run time nothing was held. ``NEVER_US`` stands for an unknown time, and the result is the
    start where that is unknown.

    Parameters
    ----------
    runs : bool array
        Whether the state says that the job runs.
    """
    begun = started_us != NEVER_US
    start = np.where(begun, started_us, 0)
    goes_on = runs & (ended_us == NEVER_US)
    # Else jobs that ran when an old history was recorded would hold nodes until today.
    most_s = np.where(np.isfinite(limit_s), 2 * limit_s + RUNAWAY_GRACE / _SECOND, RUNAWAY / _SECOND)
    latest = np.minimum(now_us, start + (most_s * _SECOND_US).astype(np.int64))
    # Some traces have a start and a length, but no end.
    by_length = start + np.rint(np.nan_to_num(run_s) * _SECOND_US).astype(np.int64)
    end = np.where(goes_on, latest, np.where((ended_us != NEVER_US) & (ended_us > start), ended_us, by_length))
    return np.where(begun, end, started_us)


def microseconds(times: pd.Series[Any]) -> Times:
    """Return times in µs since the epoch, ``NEVER_US`` where unknown."""
    values = times.to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(values), NEVER_US, values.astype(np.int64))
