"""Conversion of text columns into numbers, durations, states and times.

Each function also returns which rows it could not read. Whole columns are converted at once. Where that fails, each
distinct text is parsed once. A row that is refused is reported with its line, its reason and its text, and does not
stop the reading.

Times are converted to UTC here and nowhere else. That needs a zone for times without one, and a rule for the hours that
daylight saving skips or repeats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.model import SIZES, JobState

Mask = NDArray[np.bool_]
Instants = NDArray[np.datetime64]  # unit us, in UTC unless the name says local

LARGEST_SIZE = 100_000_000
"""Larger counts are typing errors or sentinel values (Slurm's NO_VAL is 4,294,967,294), and would not fit int32."""
LONGEST_S = 100 * 365.25 * 86_400
"""A hundred years. Sentinel values and typing errors are larger, and much larger values overflow time arithmetic."""
MICROSECONDS = "datetime64[us]"
NOT_A_TIME = np.datetime64("NaT", "us")
EARLIEST = np.datetime64("1970-01-01T00:00:00", "us")
LONGEST_WAIT = np.timedelta64(3_653, "D")
"""Ten years: no job waits and runs so long."""
LATEST = np.datetime64("2200-01-01T00:00:00", "us")
"""Times outside are sentinel values or damage. pandas' nanosecond code and the zone files end not far beyond."""
UNKNOWN_TEXTS = pa.array(["Unknown", "None", "N/A", "NONE", "unknown", "NaT", "NULL", "null", "nan", "(null)"])
"""Words of sacct, pandas and people for "unknown". Never applied to names of jobs, users or accounts."""

_NO_TIMES = pa.concat_arrays(
    [
        UNKNOWN_TEXTS,
        pa.array(["0", "0.0", "-1", "0000-00-00 00:00:00", "0000-00-00T00:00:00", "4294967294", "4294967295"]),
    ]
)
"""Texts of times that are not set: 0 in slurmdbd's tables, MySQL's zero date, and slurm.h's NO_VAL and INFINITE."""

# The pattern matches digits in one way only. With two ways, a field of 10^5 digits and a letter took a minute.
_NUMBER = re.compile(r"[-+]?(\d+(?:\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMG])", re.ASCII)
_COUNT_UNITS = {"K": 1024.0, "M": 1024.0**2, "G": 1024.0**3}
_DURATION = re.compile(r"(?:(\d{1,7})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?(?:\.(\d{1,9}))?", re.ASCII)
_EPOCH = re.compile(r"\d{9,11}(\.\d{1,6})?", re.ASCII)
_EPOCH_DIGITS = (9, 10, 11)
_ABSOLUTE = re.compile(rb"\d{2}:\d{2}(:\d{2})?(\.\d+)?([+-]\d{2}:?\d{2}|Z)\b", re.ASCII)

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
    # slurm.h JOB_STATE_FLAGS: what Slurm prints in place of the base state of a job that holds its nodes,
    **dict.fromkeys(("CF", "CONFIGURING", "CG", "COMPLETING", "POWER_UP_NODE"), JobState.RUNNING),
    **dict.fromkeys(("SI", "SIGNALING", "SO", "STAGE_OUT", "ST", "STOPPED"), JobState.RUNNING),
    # and of one that goes back into the queue. A record with such a flag and an end is that of the run before.
    **dict.fromkeys(("RF", "REQUEUE_FED", "RH", "REQUEUE_HOLD"), JobState.REQUEUED),
    **dict.fromkeys(("RD", "RESV_DEL_HOLD", "SE", "SPECIAL_EXIT"), JobState.REQUEUED),
    # American spelling, used by Philly, Alibaba and people.
    "CANCELED": JobState.CANCELLED,
}

_SIZES = (*SIZES, *(f"{name}_requested" for name in SIZES))

EPOCH_ENDS = EARLIEST + np.timedelta64(1, "D")
"""Times before it are the epoch in some zone, which databases and pandas write for a time that is not set."""
EPOCH = "jobs have a time of 1970, as databases write an unknown one: it is read as unknown"
_LATER_TIMES = ("eligible_at", "started_at", "ended_at")


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
    SIBLING = "sibling of a job that another cluster of the federation ran"
    SUPERSEDED = "superseded by a later row of the same run"


REASONS = tuple(Reason)


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
    """Refuse the rows with contradictory or impossible values.

    A start before the submission is *not* refused: sites correct their clocks, and Slurm moves the submit time of a
    requeued job. A note counts such rows.

    Parameters
    ----------
    jobs : mapping of column name to array
        Columns of ``JOBS`` as plain arrays; absent columns are not checked.
    results : CheckResults
        The refusals are added to it.
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


def unset_epoch(jobs: dict[str, Any]) -> dict[str, Mask]:
    """Make times of the epoch unknown in jobs of a later time.

    Returns the rows by the text of their note. Traces whose own clock begins in 1970 are left as they are.
    """
    given = [name for name in ("submitted_at", *_LATER_TIMES) if name in jobs]
    early = {name: jobs[name] < EPOCH_ENDS for name in given}
    if not any(times.any() for times in early.values()):
        return {}
    is_of_1970 = early["submitted_at"]
    found = {name: early[name] & (jobs["submitted_at"] >= EPOCH_ENDS) for name in given}
    latest = np.fmax.reduce([jobs[name] for name in given])
    found["submitted_at"] = is_of_1970 & (
        (latest - jobs["submitted_at"] > LONGEST_WAIT) | (jobs["submitted_at"] < EARLIEST)
    )
    rows: Mask = np.logical_or.reduce(list(found.values()))
    if not rows.any():
        return {}
    for name, unset in found.items():
        jobs[name] = np.where(unset, NOT_A_TIME, jobs[name])
    if "run_time_s" in jobs:  # where it was counted between two of the times
        run_time_s = jobs["run_time_s"]
        counted = rows & ((run_time_s < 0) | (run_time_s > LONGEST_WAIT / np.timedelta64(1, "s")))
        jobs["run_time_s"] = np.where(counted, np.nan, run_time_s)
    return {EPOCH: rows}


def without(texts: pa.Array, word: str) -> pa.Array:
    """Return ``texts`` with ``word`` replaced by null."""
    return pc.if_else(pc.equal(texts, word), pa.scalar(None, pa.string()), texts)


def known_values(texts: pa.Array, *, unknown: pa.Array = UNKNOWN_TEXTS) -> pa.Array:
    """Return ``texts`` with words for "unknown" replaced by null."""
    return pc.if_else(pc.is_in(texts, value_set=unknown), pa.scalar(None, pa.string()), texts)


def distinct_texts(texts: pa.Array) -> tuple[NDArray[np.int32], list[str]]:
    """Return the code of each row's text, and the distinct texts.

    A code is the position of the text among the distinct ones, -1 for null.
    """
    encoded = pc.dictionary_encode(texts)
    codes = np.asarray(pc.fill_null(encoded.indices, -1), dtype=np.int32)
    return codes, encoded.dictionary.to_pylist()


def all_digits(texts: pa.Array) -> bool:
    """Return whether every text is a number of ASCII digits only."""
    return bool(pc.all(pc.ascii_is_decimal(texts), skip_nulls=False, min_count=0).as_py())


def parse_floats(texts: pa.Array, parse: Callable[[str], float | None]) -> tuple[NDArray[np.float64], Mask]:
    """Return each text as a float by ``parse``, and where that failed.

    NaN where the text is null. ``parse`` is called once for each distinct text and returns None where it fails.
    """
    codes, distinct = distinct_texts(texts)
    parsed = [parse(text) for text in distinct]
    values = np.array([*(np.nan if value is None else value for value in parsed), np.nan], dtype=np.float64)
    is_bad = np.array([*(value is None for value in parsed), False], dtype=np.bool_)
    return values[codes], is_bad[codes]


def numbers(texts: pa.Array) -> tuple[NDArray[np.float64], Mask]:
    """Return the numbers, and where a text is no finite number.

    NaN where null or unreadable. ``2K`` is 2,048, as sacct prints it.
    """
    try:
        values = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return parse_floats(known_values(texts), _number)
    is_finite = np.isfinite(values) | texts.is_null().to_numpy(zero_copy_only=False)
    return (values, ~is_finite) if is_finite.all() else parse_floats(known_values(texts), _number)


def durations(texts: pa.Array, *, bare_unit_s: float) -> tuple[NDArray[np.float64], Mask]:
    """Return Slurm durations in seconds, and where a text is none.

    A duration is ``D-HH:MM:SS``, ``D-HH``, ``HH:MM:SS``, ``MM:SS`` or a bare number.

    Parameters
    ----------
    texts : pyarrow.StringArray
        The column.
    bare_unit_s : float
        Seconds that a bare number counts: 1 for ElapsedRaw, 60 for TimelimitRaw.

    Returns
    -------
    values : array of shape (n_rows,)
        inf for UNLIMITED; NaN where null, unreadable or PARTITION_LIMIT.
    bad : array of shape (n_rows,)
        Where the text is no duration.
    """
    if all_digits(texts.drop_null()):
        seconds = pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False) * bare_unit_s
        return seconds, np.zeros(len(texts), dtype=np.bool_)
    return parse_floats(known_values(texts), lambda text: _duration(text, bare_unit_s))


def job_states(texts: pa.Array) -> tuple[pd.Categorical, Mask]:
    """Return the ``JobState`` of each text, and where there is none.

    Names and Slurm's short codes are read, also with a user behind them (``CANCELLED by 42``).
    """
    codes, distinct = distinct_texts(texts)
    states_of_texts = [_state(text) for text in distinct]
    names = sorted({state.value for state in states_of_texts if state})
    code_of_text = np.array(
        [*(names.index(state.value) if state else -1 for state in states_of_texts), -1], dtype=np.int8
    )
    states = pd.Categorical.from_codes(code_of_text[codes], categories=pd.Index(names, dtype="str"))
    return states, (codes >= 0) & (code_of_text[codes] < 0)


def category(texts: pa.Array) -> pd.Categorical:
    """Return texts as a pandas categorical, missing where null."""
    codes, distinct = distinct_texts(texts)
    return pd.Categorical.from_codes(codes, categories=pd.Index(distinct, dtype="str"))


def strings(texts: pa.Array) -> pd.Series[Any]:
    """Return texts as a pandas series of ``str``, missing where null."""
    return pd.Series(pd.array(texts, dtype="str"))


def has_utc_offset(head: bytes) -> bool:
    """Return whether the first times of a file have a UTC offset."""
    return _ABSOLUTE.search(head) is not None


def spans(seconds: NDArray[np.float64]) -> NDArray[np.timedelta64]:
    """Return seconds as time differences.

    NaT where unknown, negative or longer than a hundred years.
    """
    is_valid = (seconds >= 0) & (seconds <= LONGEST_S)
    microseconds = (np.where(is_valid, seconds, 0.0) * 1e6).round().astype("timedelta64[us]")
    return np.where(is_valid, microseconds, np.timedelta64("NaT", "us"))


def instants(seconds: NDArray[np.float64]) -> tuple[Instants, Mask]:
    """Return seconds since the epoch as instants, and which are no times.

    NaT where unknown or out of range.
    """
    lowest, highest = (time.astype("datetime64[s]").astype(np.int64) for time in (EARLIEST, LATEST))
    in_range: Mask = (seconds >= lowest) & (seconds < highest)
    microseconds = (np.where(in_range, seconds, 0.0) * 1e6).round().astype(MICROSECONDS)
    return np.where(in_range, microseconds, NOT_A_TIME), ~in_range & ~np.isnan(seconds)


class TimeParser:
    """Parser of the times of one file.

    Parameters
    ----------
    zone : str
        IANA zone of times without one.

    Attributes
    ----------
    ambiguous : int
        Local times that daylight saving repeats, counted so far.
    nonexistent : int
        Local times that daylight saving skips, counted so far.

    Raises
    ------
    UsageError
        There is no such zone.
    """

    def __init__(self, zone: str) -> None:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError) as reason:
            raise UsageError(
                f"There is no time zone {zone!r}.", hint="Name one of the IANA database, as Europe/Berlin or UTC."
            ) from reason
        self.zone = zone
        self.ambiguous = 0
        self.nonexistent = 0

    def read(self, texts: pa.Array, *, not_before: Instants | None = None) -> tuple[Instants, Mask]:
        """Return times in UTC, and where a text is no time.

        NaT where unknown or unreadable. A text is ISO 8601 with a space or T, with or without a UTC offset, or seconds
        since the epoch.

        A local time that daylight saving repeats is the first of the two, or the second if the first is before
        ``not_before`` (time of an earlier event, shape (n_rows,)). A local time that daylight saving skips is moved to
        the end of the gap. Both are counted.
        """
        texts = known_values(texts, unknown=_NO_TIMES)
        if all_digits(texts.drop_null()):  # at once, since each distinct one by itself takes forty times as long
            return _epochs(texts)
        try:
            local = pc.cast(texts, pa.timestamp("us")).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return self._read_absolute(texts, not_before)
        instants = self._in_utc(local, not_before)
        is_valid = _in_range(local) | np.isnat(local)
        return np.where(is_valid, instants, NOT_A_TIME), ~is_valid

    def _read_absolute(self, texts: pa.Array, not_before: Instants | None) -> tuple[Instants, Mask]:
        try:
            instants = pc.cast(texts, pa.timestamp("us", tz="UTC")).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return self._read_each(texts, not_before)
        is_valid = _in_range(instants) | np.isnat(instants)
        return np.where(is_valid, instants, NOT_A_TIME), ~is_valid

    def _read_each(self, texts: pa.Array, not_before: Instants | None) -> tuple[Instants, Mask]:
        codes, distinct = distinct_texts(texts)
        times = [_time(text) for text in distinct]
        local = _array([time if time is None or not time.tzinfo else None for time in times])[codes]
        absolute = _array([time.replace(tzinfo=None) if time and time.tzinfo else None for time in times])[codes]
        instants = np.where(np.isnat(absolute), self._in_utc(local, not_before), absolute)
        is_bad = (codes >= 0) & ~_in_range(instants)
        return np.where(is_bad, NOT_A_TIME, instants), is_bad

    def _in_utc(self, local: Instants, not_before: Instants | None) -> Instants:
        if self.zone == "UTC":
            return local
        readable = pd.DatetimeIndex(np.where(_in_range(local), local, NOT_A_TIME))
        first = self._localise(readable, first_of_two=True)
        second = self._localise(readable, first_of_two=False)
        ambiguous = first < second
        self.ambiguous += int(ambiguous.sum())
        round_trip = pd.DatetimeIndex(first).tz_localize("UTC").tz_convert(self.zone).tz_localize(None)
        self.nonexistent += int((readable.notna() & (round_trip != readable)).sum())
        return first if not_before is None else np.where(ambiguous & (first < not_before), second, first)

    def _localise(self, local: pd.DatetimeIndex, *, first_of_two: bool) -> Instants:
        # The first of two equal local times is the one still in daylight saving time.
        is_summer = np.full(len(local), first_of_two)
        zoned = local.tz_localize(self.zone, ambiguous=is_summer, nonexistent="shift_forward")
        return zoned.tz_convert("UTC").tz_localize(None).to_numpy().astype(MICROSECONDS)


def _epochs(texts: pa.Array) -> tuple[Instants, Mask]:
    """Return texts of digits as seconds since the epoch, and which are none."""
    found, bad = instants(pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False))
    digits = pc.fill_null(pc.utf8_length(texts), _EPOCH_DIGITS[0])
    bad = bad | ~np.asarray(pc.is_in(digits, value_set=pa.array(_EPOCH_DIGITS)))
    return np.where(bad, NOT_A_TIME, found), bad


def _in_range(times: Instants) -> Mask:
    # The epoch is a day earlier in local times of America.
    return (times >= EARLIEST - np.timedelta64(1, "D")) & (times < LATEST)


def _array(times: list[datetime | None]) -> Instants:
    return np.array([*times, None], dtype=MICROSECONDS)


def _time(text: str) -> datetime | None:
    """Return the time in a text, or None.

    A time with a UTC offset is converted to UTC; a local time stays naive.
    """
    text = text.strip()
    try:
        if _EPOCH.fullmatch(text):
            return datetime.fromtimestamp(float(text), tz=UTC)
        # fromisoformat also reads 20200101 and 2020W01, which are more likely numbers and names.
        time = datetime.fromisoformat(text) if len(text) >= 10 and text[4] == "-" else None
        return time.astimezone(UTC) if time and time.tzinfo else time
    except (ValueError, OverflowError, OSError):
        return None


def _below(jobs: Mapping[str, Any], name: str, least: float) -> Mask:
    return jobs[name] < least if name in jobs else np.zeros(len(jobs["submitted_at"]), dtype=np.bool_)


def _earlier(jobs: Mapping[str, Any], name: str, other: str) -> Mask:
    # Comparisons with NaT are False: an unknown time contradicts nothing.
    if name not in jobs or other not in jobs:
        return np.zeros(len(jobs["submitted_at"]), dtype=np.bool_)
    return np.asarray(jobs[name] < jobs[other])


def _number(text: str) -> float | None:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        value = float(text)
        return value if np.isfinite(value) else None
    # sacct without --noconvert shortens exact multiples: 2048 nodes print as 2K.
    match = _COUNT.fullmatch(text)
    return float(match[1]) * _COUNT_UNITS[match[2]] if match else None


def _duration(text: str, bare_unit_s: float) -> float | None:
    text = text.strip()
    if text.upper() == "UNLIMITED":
        return np.inf
    if text.upper() == "PARTITION_LIMIT":
        return np.nan
    if _NUMBER.fullmatch(text):
        return float(text) * bare_unit_s
    match = _DURATION.fullmatch(text)
    return None if match is None else _clock_seconds(*match.groups())


def _clock_seconds(days: str | None, first: str, second: str | None, third: str | None, fraction: str | None) -> float:
    if days is None and third is None:  # MM:SS. With days, or with three parts, the first part is hours.
        hours, minutes, seconds = 0, int(first), int(second or 0)
    else:
        hours, minutes, seconds = int(first), int(second or 0), int(third or 0)
    whole_s = int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds
    return whole_s + (float(f"0.{fraction}") if fraction else 0.0)


def _state(text: str) -> JobState | None:
    # "CANCELLED by 1000" names the user who did it; with "CANCELLED+" sacct shows that it cut the column.
    word = text.strip().upper().split(" ")[0].rstrip("+")
    if word in JobState.__members__:
        return JobState[word]
    return _STATES_BY_CODE.get(word)
