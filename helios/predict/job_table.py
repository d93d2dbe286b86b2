"""Conversion of jobs into arrays, families of names and causal features.

Similar job names of one user are a family. People name jobs after what they do and then vary a number, a word or a
date, such as ``train_resnet50_lr0.1_seed3`` and ``train_resnet50_lr0.01_seed4``. A name is first reduced to its words.
Then it joins the family whose leader (its first name) is most similar, or starts a new family (leader clustering in one
pass; Hartigan 1975). The similarity is that of rapidfuzz. Only the last ``MOST_LEADERS`` leaders of a user are
compared, so that a name of a user with a million names costs no more than one of a user with a hundred. The family of a
name is fixed when it is first submitted, from earlier names alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from rapidfuzz import fuzz, process

from helios.errors import FrameInvalid
from helios.model import JOBS, SIZES, JobState, with_sizes_requested
from helios.model.records import split_words
from helios.predict.causal_stats import (
    COLUMN,
    FEATURES,
    LEVELS,
    NEVER_S,
    REQUEST_FEATURES,
    Events,
    empty_stats,
    replay_events,
)

LEAST_LIKENESS = 80.0
"""Least similarity of two names in one family, 0 to 100 (rapidfuzz's ``fuzz.ratio``)."""
MOST_LEADERS = 64
"""Number of leaders that a new name is compared with, those of the families of the user that last got a name."""
NO_FAMILY = -1

_FAILURES = frozenset(
    {JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.TIMEOUT}
)
# Columns of ``grouping_columns`` in which the jobs of one group are equal, by level. A new level needs one line here.
LEVEL_COLUMNS: dict[str, tuple[str, ...]] = {
    "global": (),
    "partition": ("partition",),
    "request": ("size", "limit", "partition"),
    "account": ("account",),
    "user": ("user",),
    "user_limit": ("user", "limit"),
    "user_any_limit": ("user", "size"),
    "user_size": ("user", "size", "limit"),
    "user_family": ("family",),
    "user_stem": ("user", "stem"),
    "user_name": ("user", "name", "size"),
}
# A job with an unknown value in one of these columns belongs to no group of that column. In other columns, unknown is a
# value like any other.
_NEVER_UNKNOWN = ("user", "account", "name", "stem", "family")
_CATEGORICAL = ("user", "account", "partition")
_CODES = (*_CATEGORICAL, "name", "stem", "family")
_NUMERIC = ("gpus", "cpus", "nodes", "time_limit_s", "memory_mib")
# Columns of a queue that predictions read.
REQUEST_COLUMNS = (*_CATEGORICAL, "name", *_NUMERIC)
# Columns of a history that training reads. A model records their digest.
TRAINING_COLUMNS = (
    *("submitted_at", *_CATEGORICAL, "qos", "name", *_NUMERIC),
    *(*(f"{name}_requested" for name in SIZES), "started_at", "ended_at", "run_time_s", "state"),
)


class JobNameFamilies:
    """Families of job names, assigned at the first submission.

    They are numbered from 0 in order of creation. Each belongs to one user.
    """

    def __init__(self) -> None:
        self._families: dict[tuple[int, str], int] = {}
        # The words of each family's leader, by user and family. The family that last got a name comes last.
        self._leaders: dict[int, dict[int, str]] = {}
        self._n_families = 0
        self._base: JobNameFamilies | None = None

    def overlay(self) -> JobNameFamilies:
        """Return an object that starts with the families of this one.

        New names in it do not change this object.
        """
        other = JobNameFamilies()
        other._base, other._n_families = self, self._n_families
        return other

    def code(self, user: int, name: str | None) -> int:
        """Return the family of a job called ``name`` that ``user`` submits now.

        The same name always has the same family.

        Parameters
        ----------
        user : int
            Number of the user; negative if unknown.

        Returns
        -------
        int
            ``NO_FAMILY`` where the user is unknown or the name has no words.
        """
        return self._family(user, split_words(name)) if user >= 0 and name else NO_FAMILY

    def codes(self, user: NDArray[np.int32], name: NDArray[np.int32], names: Sequence[str]) -> NDArray[np.int32]:
        """Return the families of many jobs, in the order of their submission.

        They are the same as from :meth:`code` one by one.

        Parameters
        ----------
        user : int32 array of shape (n,)
            As for :meth:`code`.
        name : int32 array of shape (n,)
            Positions in ``names``; -1 without a name.
        """
        # Names without words have the code -1.
        word_codes, words = pd.factorize(np.array([split_words(name) or None for name in names], dtype=object))
        word = np.append(word_codes, -1)[name]
        pair = np.where((user >= 0) & (word >= 0), user.astype(np.int64) * (len(words) + 1) + word, -1)
        pair_codes, pairs = pd.factorize(pair)
        families = np.full(len(pairs), NO_FAMILY, dtype=np.int32)
        for i, key in enumerate(pairs.tolist()):
            if key >= 0:
                one_user, one_word = divmod(key, len(words) + 1)
                families[i] = self._family(one_user, words[one_word])
        return families[pair_codes]

    def _family(self, user: int, words: str) -> int:
        if not words:
            return NO_FAMILY
        family = self._known_family(user, words)
        if family is None:
            family = self._families[user, words] = self._assign_family(user, words)
        return family

    def _known_family(self, user: int, words: str) -> int | None:
        family = self._families.get((user, words))
        return self._base._known_family(user, words) if family is None and self._base else family

    def _user_leaders(self, user: int) -> dict[int, str]:
        if user not in self._leaders:
            self._leaders[user] = dict(self._base._user_leaders(user)) if self._base else {}
        return self._leaders[user]

    def _assign_family(self, user: int, words: str) -> int:
        leaders = self._user_leaders(user)
        nearest = process.extractOne(words, leaders, scorer=fuzz.ratio, score_cutoff=LEAST_LIKENESS)
        if nearest is not None:
            family = int(nearest[2])
            leaders[family] = leaders.pop(family)
            return family
        if len(leaders) == MOST_LEADERS:
            del leaders[next(iter(leaders))]
        family, self._n_families = self._n_families, self._n_families + 1
        leaders[family] = words
        return family


class NameCodes(NamedTuple):
    """Codes of job names, int32 arrays of one entry per job.

    They are -1 without a name. ``family`` is -1 also for a name without words and for an unknown user.
    """

    name: NDArray[np.int32]
    stem: NDArray[np.int32]
    family: NDArray[np.int32]


class Coding(Protocol):
    """Interface that assigns codes to the values of columns.

    Equal values get the same code, missing ones -1.
    """

    def encode(self, name: str, column: Any) -> NDArray[np.int32]:
        """Return the codes of the column ``name`` of ``JOBS``.

        ``column`` is its categorical array.
        """
        ...

    def encode_names(self, names: Any, user: NDArray[np.int32]) -> NameCodes:
        """Return the codes of job names, their stems and their families.

        ``names`` are texts or missing, ``user`` has the users' codes.
        """
        ...


class FrameCodes:
    """``Coding`` of a single frame, such as a whole history."""

    def encode(self, name: str, column: Any) -> NDArray[np.int32]:  # noqa: ARG002 - the frame has codes by column
        """See ``Coding``."""
        return np.asarray(column.codes, dtype=np.int32)

    def encode_names(self, names: Any, user: NDArray[np.int32]) -> NameCodes:
        """See ``Coding``."""
        codes, uniques = pd.factorize(names)
        stems = pd.Series(uniques, dtype="str").str.replace(r"\d+", "", regex=True)
        # The last entry is for the code -1 of a missing name.
        stem_codes = np.append(pd.factorize(stems)[0], -1)
        codes = codes.astype(np.int32)
        families = JobNameFamilies().codes(user, codes, list(uniques))
        return NameCodes(name=codes, stem=stem_codes[codes].astype(np.int32), family=families)


_FRAME_CODES = FrameCodes()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable:
    """Columns that predictors need, as arrays of one entry per job.

    Jobs are in submission order.

    Attributes
    ----------
    submitted_s, started_s, ended_s : int64
        s since the epoch; ``NEVER_S`` where a job has not started or ended, or the time is not known.
    run_time_s : float64
        NaN where it is unknown.
    user, account, partition, name, stem, family : int32
        Codes, -1 if unknown. ``stem`` is the name without digits, ``family`` the user's similar names.
    failed : float64
        1 if the job failed, 0 if it completed or was cancelled, NaN if unknown.
    gpus, cpus, nodes, time_limit_s, memory_mib : float64
    hour, weekday : float64
        Of submission, in the site's time zone; Monday is 0.
    """

    submitted_s: NDArray[np.int64]
    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    run_time_s: NDArray[np.float64]
    user: NDArray[np.int32]
    account: NDArray[np.int32]
    partition: NDArray[np.int32]
    name: NDArray[np.int32]
    stem: NDArray[np.int32]
    family: NDArray[np.int32]
    failed: NDArray[np.float64]
    gpus: NDArray[np.float64]
    cpus: NDArray[np.float64]
    nodes: NDArray[np.float64]
    time_limit_s: NDArray[np.float64]
    memory_mib: NDArray[np.float64]
    hour: NDArray[np.float64]
    weekday: NDArray[np.float64]

    @property
    def n(self) -> int:
        """Number of jobs."""
        return len(self.submitted_s)

    @classmethod
    def from_frame(cls, jobs: pd.DataFrame, *, timezone: str = "UTC", coding: Coding = _FRAME_CODES) -> JobTable:
        """Return the table of ``jobs``, which must be in submission order.

        A missing end is replaced by the start plus the run time. Where the start is missing too, it is replaced by the
        submission plus the run time. (The traces of Venus and Philly have no start, so that a job that waited seems to
        end earlier than it did.)

        Raises
        ------
        FrameInvalid
            A column of ``TRAINING_COLUMNS`` is missing or has another type, or the jobs are not in submission order.
        """
        JOBS.check(jobs, columns=TRAINING_COLUMNS)
        submitted_s = _seconds(jobs["submitted_at"])
        if (np.diff(submitted_s) < 0).any():
            raise FrameInvalid(
                "The jobs are not in submission order: one was submitted before the job above it.",
                hint="Order them first: helios.model.in_submission_order(jobs).",
            )
        local, requested = jobs["submitted_at"].dt.tz_convert(timezone).dt, with_sizes_requested(jobs)
        return cls(
            submitted_s=submitted_s,
            started_s=np.where(jobs["started_at"].notna(), _seconds(jobs["started_at"]), NEVER_S),
            ended_s=_end_times_s(jobs, submitted_s),
            run_time_s=jobs["run_time_s"].to_numpy(),
            failed=_failed(jobs["state"]),
            hour=local.hour.to_numpy(dtype=np.float64),
            weekday=local.day_of_week.to_numpy(dtype=np.float64),
            **_encoded({name: requested[name].array for name in REQUEST_COLUMNS}, coding),
        )

    @classmethod
    def from_requests(
        cls,
        requests: Mapping[str, Any],
        *,
        coding: Coding,
        now_s: int,
        hour: float = np.nan,
        weekday: float = np.nan,
    ) -> JobTable:
        """Return the table of ``requests`` as if submitted at ``now_s``.

        ``requests`` are those of :func:`distinct_requests`.
        """
        return cls.from_codes(_encoded(requests, coding), now_s=now_s, hour=hour, weekday=weekday)

    @classmethod
    def from_codes(
        cls, columns: dict[str, NDArray[Any]], *, now_s: int, hour: float = np.nan, weekday: float = np.nan
    ) -> JobTable:
        """Return the table of encoded requests as if submitted at ``now_s``.

        ``columns`` has columns of this class, at least ``gpus``. The others are unknown.
        """
        n = len(columns["gpus"])
        unknown, never, no_code = np.full(n, np.nan), np.full(n, NEVER_S), np.full(n, -1, dtype=np.int32)
        return cls(
            submitted_s=np.full(n, now_s),
            started_s=never,
            ended_s=never,
            run_time_s=unknown,
            failed=unknown,
            hour=np.full(n, hour),
            weekday=np.full(n, weekday),
            **dict.fromkeys(_CODES, no_code) | dict.fromkeys(_NUMERIC, unknown) | columns,
        )

    @property
    def size(self) -> NDArray[np.float64]:
        """Number of GPUs, or of CPUs for a job without GPUs.

        NaN where it is unknown.
        """
        return np.where(self.gpus > 0, self.gpus, self.cpus)

    def ends(self) -> NDArray[np.int64]:
        """Return the jobs that end, ordered by end, then job."""
        ended = np.flatnonzero(self.ended_s != NEVER_S)
        return ended[np.argsort(self.ended_s[ended], kind="stable")]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMatrix:
    """Features of jobs and the names of their columns.

    ``X`` is float32 of shape (n, len(names)), NaN where a value is not known at submission.
    """

    X: NDArray[np.float32]
    names: tuple[str, ...]


def causal_features(table: JobTable) -> FeatureMatrix:
    """Return the features of each job from what was known at its submission.

    That is its own request, earlier submissions, and jobs that ended strictly before. Of a job that had not ended only
    the request is used, not its wait, start, state or run time. O(n log n).
    """
    events = job_events(table)
    features = np.empty((table.n, len(FEATURES)), dtype=np.float32)
    ends = table.ends()
    replay_events(empty_stats(events), events, np.arange(table.n), ends, table.ended_s[ends], 0, features)
    return FeatureMatrix(X=features, names=FEATURES)


def past_mean_s(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the shrunk mean of past runs, at most the time limit, s.

    ``features`` has the columns of :func:`causal_features`. The result has one number for each row.
    """
    anchor, limit = features[:, COLUMN.anchor].astype(np.float64), features[:, COLUMN.log_limit].astype(np.float64)
    return np.asarray(np.expm1(np.fmin(anchor, limit)))


def job_events(table: JobTable, *, groups: NDArray[np.int32] | None = None) -> Events:
    """Return the events that the causal features are computed from.

    ``groups`` default to :func:`job_groups`.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        limit_share = np.where(table.time_limit_s > 0, table.run_time_s / table.time_limit_s, np.nan)
    return Events(
        submitted_s=table.submitted_s,
        log_run=np.log1p(table.run_time_s),
        limit_share=limit_share,
        failed=table.failed,
        request=_request_features(table),
        traits=job_traits(table),
        groups=job_groups(table) if groups is None else groups,
    )


def request_events(requests: JobTable, *, groups: NDArray[np.int32]) -> Events:
    """Return the events of jobs that have not ended."""
    unknown = requests.run_time_s
    return Events(
        submitted_s=requests.submitted_s,
        log_run=unknown,
        limit_share=unknown,
        failed=unknown,
        request=_request_features(requests),
        traits=job_traits(requests),
        groups=groups,
    )


def job_groups(table: JobTable) -> NDArray[np.int32]:
    """Return the number of each job's group at each of ``LEVELS``.

    The result has the shape (table.n, len(LEVELS)), -1 for no group. Groups of different levels never share a number.

    Jobs of unknown users have no group of a user, because one for all would treat different people as one. On Venus and
    Philly (no users), one group per partition changed the rank correlation of the trained model by +.006 each, and
    worsened its median absolute log error from 1.08 to 1.11 and from .45 to .52.
    """
    columns = {
        name: pd.factorize(values)[0] if values.dtype.kind == "f" else values
        for name, values in grouping_columns(table).items()
    }
    groups = np.full((table.n, len(LEVELS)), -1, dtype=np.int32)
    first_free, members = 0, group_members(table)
    for level, name in enumerate(LEVELS):
        codes, n_groups = _joint_codes([columns[column] for column in LEVEL_COLUMNS[name]], table.n)
        member = members[name]
        rows = slice(None) if member is None else member
        groups[rows, level] = codes[rows] + first_free
        first_free += n_groups
    return groups


def grouping_columns(table: JobTable) -> dict[str, NDArray[Any]]:
    """Return the columns that group jobs, where unknown is a value."""
    return {
        "size": np.where(table.gpus > 0, table.gpus, -1.0 - np.where(np.isnan(table.cpus), 0.0, table.cpus)),
        "limit": np.where(np.isnan(table.time_limit_s), -1.0, table.time_limit_s),
        "user": table.user,
        "account": table.account,
        "partition": table.partition,
        "name": table.name,
        "stem": table.stem,
        "family": table.family,
    }


def group_members(table: JobTable, levels: Sequence[str] = LEVELS) -> dict[str, NDArray[np.bool_] | None]:
    """Return which jobs belong to a group of each level.

    A job does not if a needed column is unknown. None stands for all jobs.
    """
    known = np.array([getattr(table, column) for column in _NEVER_UNKNOWN]) >= 0
    incomplete = np.flatnonzero(~np.logical_and.reduce(known, axis=1)).tolist()
    members = dict[str, NDArray[np.bool_] | None]()
    for level in levels:
        needed = [column for column in incomplete if _NEVER_UNKNOWN[column] in LEVEL_COLUMNS[level]]
        members[level] = np.logical_and.reduce(known[needed]) if needed else None
    return members


def _joint_codes(columns: list[NDArray[Any]], n: int) -> tuple[NDArray[np.int64], int]:
    """Return a code for each combination of codes, and their number."""
    joint, n_codes = np.zeros(n, dtype=np.int64), min(n, 1)
    for codes in columns:
        joint, uniques = pd.factorize(joint * (int(codes.max(initial=-1)) + 2) + codes + 1)
        n_codes = len(uniques)
    return joint, n_codes


def _request_features(table: JobTable) -> NDArray[np.float32]:
    request = np.empty((table.n, len(REQUEST_FEATURES)), dtype=np.float32)
    request[:, COLUMN.gpus], request[:, COLUMN.hour], request[:, COLUMN.weekday] = table.gpus, table.hour, table.weekday
    request[:, COLUMN.log_cpus], request[:, COLUMN.log_nodes] = np.log1p(table.cpus), np.log1p(table.nodes)
    request[:, COLUMN.log_limit] = np.log1p(table.time_limit_s)
    request[:, COLUMN.log_memory] = np.log1p(table.memory_mib)
    return request


def job_traits(table: JobTable) -> NDArray[np.float64]:
    """Return the traits by which jobs are compared (see ``Events``)."""
    # Unknown limits are equal and far from all others, and so are infinite ones (20 is above the log of any limit).
    traits = np.empty((table.n, 4))
    traits[:, 0], traits[:, 1], traits[:, 2], traits[:, 3] = (
        np.log1p(table.size),
        np.minimum(np.log1p(table.time_limit_s), 20.0),
        table.partition,
        table.stem,
    )
    traits[np.isnan(traits[:, 0]), 0], traits[np.isnan(traits[:, 1]), 1] = -1.0, -5.0
    return traits


def distinct_requests(columns: Mapping[str, Any]) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Return the distinct requests, and the position of each job's.

    They are in the order of their first jobs. Jobs with one request differ in nothing that predictions read.

    Parameters
    ----------
    columns : mapping
        ``REQUEST_COLUMNS`` of ``QUEUE``, as of ``FrameKind.arrays``.

    Returns
    -------
    requests : dict
        The same columns, one entry for each request.
    request_index : int64 array of shape (n_jobs,)
    """
    if len(columns["gpus"]) == 1:
        return dict(columns), np.zeros(1, dtype=np.int64)
    names = pa.array(columns["name"]).to_pylist()
    name_codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    codes, numbers = (columns[name].codes for name in _CATEGORICAL), (columns[name] for name in _NUMERIC)
    first, request_index = distinct_rows(np.array([name_codes[name] for name in names]), *codes, *numbers)
    requests = {name: columns[name][first] for name in (*_CATEGORICAL, *_NUMERIC)}
    return requests | {"name": [names[row] for row in first.tolist()]}, request_index


def distinct_rows(*columns: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows, and which of them each row equals.

    Distinct rows are in the order of their first appearance. Each column has the shape (n,) or (n, k).
    """
    # Floats are compared by their bits, because NaN is not equal to itself.
    rows = np.column_stack([part.view(f"i{part.itemsize}") if part.dtype.kind == "f" else part for part in columns])
    keys = rows.view(f"V{rows.strides[0]}")[:, 0].tolist()
    key_codes = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    inverse = np.fromiter(map(key_codes.__getitem__, keys), dtype=np.int64, count=len(keys))
    first = np.empty(len(key_codes), dtype=np.int64)
    first[inverse[::-1]] = np.arange(len(keys) - 1, -1, -1)
    return first, inverse


def _encoded(columns: Mapping[str, Any], coding: Coding) -> dict[str, NDArray[Any]]:
    """Return ``REQUEST_COLUMNS`` as columns of ``JobTable``."""
    codes = {name: coding.encode(name, columns[name]) for name in _CATEGORICAL}
    numbers = {name: np.asarray(columns[name]) for name in _NUMERIC}
    return codes | numbers | coding.encode_names(columns["name"], codes["user"])._asdict()


def _end_times_s(jobs: pd.DataFrame, submitted_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the recorded ends, or those that follow from the run times."""
    run_s, started, ended = jobs["run_time_s"].to_numpy(), jobs["started_at"], jobs["ended_at"]
    start_s = np.where(started.notna(), _seconds(started), submitted_s)
    computed_s = start_s + np.nan_to_num(np.ceil(run_s), nan=0.0, posinf=0.0).astype(np.int64)
    computed_s[~np.isfinite(run_s)] = NEVER_S
    return np.where(ended.notna(), _seconds(ended), computed_s)


def _seconds(times: pd.Series[Any]) -> NDArray[np.int64]:
    # Floor division keeps times before 1970 in order; NaT becomes a value the caller masks.
    return np.asarray(times.astype("int64"), dtype=np.int64) // 1_000_000


def _failed(states: pd.Series[Any]) -> NDArray[np.float64]:
    by_code = np.array([float(state in _FAILURES) for state in states.cat.categories] + [np.nan])
    return by_code[states.cat.codes.to_numpy()]
