"""Texts of a column into values: numbers, durations, sizes, states; whatever cannot be read is pointed out.

Whole columns are converted at once; a text that the fast conversion refuses is looked at once however
often it occurs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.ingest.check import Mask
from helios.model import JobState

# What sacct, pandas and people print for "not known"; never applied to names of jobs, users or accounts.
UNKNOWN_TEXTS = pa.array(["Unknown", "None", "N/A", "NONE", "unknown", "NaT", "NULL", "null", "nan", "(null)"])

# One way only to match digits: of two, a field of 10^5 digits and a letter took a minute.
_NUMBER = re.compile(r"[-+]?(\d+(?:\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMG])", re.ASCII)
_COUNT_UNITS = {"K": 1024.0, "M": 1024.0**2, "G": 1024.0**3}
_DURATION = re.compile(r"(?:(\d{1,7})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?(?:\.(\d{1,9}))?", re.ASCII)

_STATES_BY_CODE = {
    "BF": JobState.BOOT_FAIL,
    "CA": JobState.CANCELLED,
    "CD": JobState.COMPLETED,
    "DL": JobState.DEADLINE,
    "F": JobState.FAILED,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "PD": JobState.PENDING,
    "PR": JobState.PREEMPTED,
    "R": JobState.RUNNING,
    "RQ": JobState.REQUEUED,
    "RS": JobState.RESIZING,
    "RV": JobState.REVOKED,
    "S": JobState.SUSPENDED,
    "TO": JobState.TIMEOUT,
    # Flags of a running job that Slurm prints in place of RUNNING while its prolog or epilog runs.
    "CF": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,
    "CG": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    # The other spelling, used by Philly, Alibaba and people.
    "CANCELED": JobState.CANCELLED,
}


def known(texts: pa.Array) -> pa.Array:
    """Return ``texts`` with the ways to say "not known" replaced by null."""
    return pc.if_else(pc.is_in(texts, value_set=UNKNOWN_TEXTS), pa.scalar(None, pa.string()), texts)


def distinct_texts(texts: pa.Array) -> tuple[NDArray[np.int32], list[str]]:
    """Return for each row the position of its text among the distinct ones, -1 for null; and those."""
    encoded = pc.dictionary_encode(texts)
    codes = np.asarray(pc.fill_null(encoded.indices, -1), dtype=np.int32)
    return codes, encoded.dictionary.to_pylist()


def floats_of(texts: pa.Array, read: Callable[[str], float | None]) -> tuple[NDArray[np.float64], Mask]:
    """Return ``read`` of each text as a float, NaN where null; and where ``read`` gave None."""
    codes, distinct = distinct_texts(texts)
    found = [read(text) for text in distinct]
    values = np.array([*(np.nan if value is None else value for value in found), np.nan], dtype=np.float64)
    bad = np.array([*(value is None for value in found), False], dtype=np.bool_)
    return values[codes], bad[codes]


def numbers(texts: pa.Array) -> tuple[NDArray[np.float64], Mask]:
    """Return the numbers (NaN where null) and where a text is no finite number; ``2K`` is 2,048."""
    try:
        values = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return floats_of(known(texts), _number)
    finite = np.isfinite(values) | texts.is_null().to_numpy(zero_copy_only=False)
    return (values, ~finite) if finite.all() else floats_of(known(texts), _number)


def durations(texts: pa.Array, *, bare_unit_s: float) -> tuple[NDArray[np.float64], Mask]:
    """Return Slurm durations in s: ``D-HH:MM:SS``, ``HH:MM:SS``, ``MM:SS``, ``D-HH``, or a bare number.

    Parameters
    ----------
    bare_unit_s : float
        Seconds that a bare number counts: 1 for ElapsedRaw, 60 for TimelimitRaw.

    Returns
    -------
    values : array of shape (n_rows,)
        inf for UNLIMITED, NaN where null or decided by the partition.
    bad : array of shape (n_rows,)
        Where the text is no duration.
    """
    return floats_of(known(texts), lambda text: _duration(text, bare_unit_s))


def job_states(texts: pa.Array) -> tuple[pd.Categorical, Mask]:
    """Return the :class:`JobState` of each text and where it is none; long, short or ``CANCELLED by 42``."""
    codes, distinct = distinct_texts(texts)
    found = [_state(text) for text in distinct]
    names = sorted({state.value for state in found if state})
    position = np.array([*(names.index(state.value) if state else -1 for state in found), -1], dtype=np.int8)
    states = pd.Categorical.from_codes(position[codes], categories=pd.Index(names, dtype="str"))
    return states, (codes >= 0) & (position[codes] < 0)


def category(texts: pa.Array) -> pd.Categorical:
    """Return texts as a pandas categorical, missing where null."""
    codes, distinct = distinct_texts(texts)
    return pd.Categorical.from_codes(codes, categories=pd.Index(distinct, dtype="str"))


def strings(texts: pa.Array) -> pd.Series[Any]:
    """Return texts as a pandas series of ``str``, missing where null."""
    return pd.Series(pd.array(texts, dtype="str"))


def _number(text: str) -> float | None:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        value = float(text)
        return value if np.isfinite(value) else None
    # sacct without --noconvert shortens exact multiples: 2048 nodes print as 2K.
    counted = _COUNT.fullmatch(text)
    return float(counted[1]) * _COUNT_UNITS[counted[2]] if counted else None


def _duration(text: str, bare_unit_s: float) -> float | None:
    text = text.strip()
    if text.upper() == "UNLIMITED":
        return np.inf
    if text.upper() == "PARTITION_LIMIT":
        return np.nan
    if _NUMBER.fullmatch(text):
        return float(text) * bare_unit_s
    found = _DURATION.fullmatch(text)
    return None if found is None else _clock_seconds(*found.groups())


def _clock_seconds(days: str | None, first: str, second: str | None, third: str | None, fraction: str | None) -> float:
    if days is None and third is None:  # MM:SS; with days, or with three parts, the first part is hours
        hours, minutes, seconds = 0, int(first), int(second or 0)
    else:
        hours, minutes, seconds = int(first), int(second or 0), int(third or 0)
    whole = int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds
    return whole + (float(f"0.{fraction}") if fraction else 0.0)


def _state(text: str) -> JobState | None:
    # "CANCELLED by 1000" names who did it; "CANCELLED+" is sacct's mark of a cut column.
    word = text.strip().upper().split(" ")[0].rstrip("+")
    if word in JobState.__members__:
        return JobState[word]
    return _STATES_BY_CODE.get(word)
