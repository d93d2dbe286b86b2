"""Reasons to refuse a row of history, with the checks.

A refused row is kept with its line, its reason and its text; it is never dropped in silence and never fatal. The
checks work on whole columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.model import SIZES

# Larger counts are typing errors or sentinel values (Slurm's NO_VAL is 4,294,967,294), and would not fit int32.
LARGEST_SIZE = 100_000_000
# A hundred years. Sentinel values and typing errors are larger, and much larger values overflow time arithmetic.
LONGEST_S = 100 * 365.25 * 86_400

Mask = NDArray[np.bool_]


class Reason(StrEnum):
    """Why a row is refused.

    The text is shown to people beside the number of such rows.
    """

    INVALID_UTF8 = "invalid UTF-8"
    NUL_BYTE = "NUL byte"
    WRONG_FIELD_COUNT = "wrong number of fields"
    UNREADABLE_RECORD = "record is not understood"
    MISSING_JOB_ID = "no job id"
    UNREADABLE_JOB_ID = "job id is not understood"
    MISSING_SUBMIT_TIME = "no submit time"
    UNREADABLE_TIME = "time is not understood"
    UNREADABLE_NUMBER = "number is not understood"
    UNREADABLE_DURATION = "duration is not understood"
    UNREADABLE_TRES = "TRES or GRES is not understood"
    UNKNOWN_STATE = "unknown state"
    NEGATIVE_SIZE = "negative size"
    SIZE_OUT_OF_RANGE = "size out of range"
    DURATION_OUT_OF_RANGE = "duration out of range"
    NEGATIVE_RUN_TIME = "negative run time"
    NEGATIVE_TIME_LIMIT = "negative time limit"
    END_BEFORE_START = "end before start"
    END_BEFORE_SUBMIT = "end before submit"
    DUPLICATE_ROW = "duplicate row"
    SUPERSEDED = "superseded by a later row of the same run"


REASONS = tuple(Reason)
_SIZES = (*SIZES, *(f"{name}_requested" for name in SIZES))


class CheckResults:
    """Result of the checks for each row of a batch.

    Attributes
    ----------
    codes : array of shape (n_rows,)
        -1 where the row is accepted, else the position of its reason in ``REASONS``. The first reason found counts.
    """

    def __init__(self, rows: int) -> None:
        self.codes: NDArray[np.int8] = np.full(rows, -1, dtype=np.int8)

    def refuse(self, rows: Mask, reason: Reason) -> None:
        """Refuse the rows selected by ``rows`` for ``reason``.

        ``rows`` is a mask of shape (n_rows,). A row that was refused before keeps its earlier reason.
        """
        self.codes[rows & (self.codes < 0)] = REASONS.index(reason)

    @property
    def accepted(self) -> Mask:
        """Mask of the rows that were not refused, shape (n_rows,)."""
        return self.codes < 0

    def reasons(self) -> list[str]:
        """Return the reasons of the refused rows, by row."""
        return [REASONS[code].value for code in self.codes[self.codes >= 0]]


def check_jobs(jobs: Mapping[str, Any], results: CheckResults) -> None:
    """Refuse the rows that contradict themselves.

    A start before the submission is *not* refused: sites correct their clocks, and Slurm moves the submit time of a
    requeued job. A note counts such rows.

    Parameters
    ----------
    jobs : mapping of column name to array
        Columns of ``JOBS`` as plain arrays; absent columns are not checked.
    results : CheckResults
        Takes the refusals.
    """
    results.refuse(np.asarray(jobs["job_id"].isna()), Reason.MISSING_JOB_ID)
    results.refuse(np.isnat(jobs["submitted_at"]), Reason.MISSING_SUBMIT_TIME)
    for name in (*_SIZES, "memory_mib"):
        results.refuse(_below(jobs, name, 0.0), Reason.NEGATIVE_SIZE)
    for name in _SIZES:
        if name in jobs:
            results.refuse(jobs[name] > LARGEST_SIZE, Reason.SIZE_OUT_OF_RANGE)
    results.refuse(_below(jobs, "run_time_s", 0.0), Reason.NEGATIVE_RUN_TIME)
    results.refuse(_below(jobs, "time_limit_s", 0.0), Reason.NEGATIVE_TIME_LIMIT)
    for name in ("run_time_s", "time_limit_s"):
        if name in jobs:
            results.refuse((jobs[name] > LONGEST_S) & np.isfinite(jobs[name]), Reason.DURATION_OUT_OF_RANGE)
    results.refuse(_earlier(jobs, "ended_at", "started_at"), Reason.END_BEFORE_START)
    unstarted = np.isnat(jobs["started_at"]) if "started_at" in jobs else np.array(True)
    results.refuse(_earlier(jobs, "ended_at", "submitted_at") & unstarted, Reason.END_BEFORE_SUBMIT)


def _below(jobs: Mapping[str, Any], name: str, least: float) -> Mask:
    return jobs[name] < least if name in jobs else np.zeros(len(jobs["submitted_at"]), dtype=np.bool_)


def _earlier(jobs: Mapping[str, Any], name: str, other: str) -> Mask:
    # Comparisons with NaT are False: an unknown time contradicts nothing.
    if name not in jobs or other not in jobs:
        return np.zeros(len(jobs["submitted_at"]), dtype=np.bool_)
    return np.asarray(jobs[name] < jobs[other])
