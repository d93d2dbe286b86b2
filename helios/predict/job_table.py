"""Conversion of jobs into arrays, families of their names, and causal features.

Similar job names of one user are a family. People name jobs after what they do and then vary a number, a word or a
date, such as ``train_resnet50_lr0.1_seed3`` and ``train_resnet50_lr0.01_seed4``. A name is first reduced to its words.
Then it joins the most similar of the names that lead its user's families (leader clustering, one pass: Hartigan 1975),
or starts a new family. The similarity is rapidfuzz's. Only the last ``MOST_LEADERS`` leaders of a user are compared, so
that a user with a million names costs no more per name than one with a hundred. A name's family is fixed when it is
first submitted, from earlier names alone.
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
"""Least similarity of two names in one family, 0 to 100 (twice the common letters, in order, by all letters)."""
MOST_LEADERS = 64
"""Leaders of a user with which a new name is compared, those that were joined last."""
NO_FAMILY = -1


class JobNameFamilies:
    """Families of job names, assigned at the first submission.

    They are numbered from 0 in order of creation. Each belongs to one user.
    """

    def __init__(self) -> None:
        self._family: dict[tuple[int, str], int] = {}
        # The leaders' words by user and family. The one joined last comes last.
        self._leaders: dict[int, dict[int, str]] = {}
        self._founded = 0
        self._beneath: JobNameFamilies | None = None

    def aside(self) -> JobNameFamilies:
        """Return a copy that shares all known families.

        New names in the copy do not change this object.
        """
        other = JobNameFamilies()
        other._beneath, other._founded = self, self._founded
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
        return self._of_words(user, split_words(name)) if user >= 0 and name else NO_FAMILY

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
        words, of_name = _words_of_all(names)
        word = np.append(of_name, NO_FAMILY)[name]
        pair = np.where((user >= 0) & (word >= 0), user.astype(np.int64) * (len(words) + 1) + word, -1)
        place, pairs = pd.factorize(pair)
        family = np.array([self._of_pair(int(one), words) for one in pairs], dtype=np.int32)
        return family[place] if len(family) else np.empty(0, dtype=np.int32)

    def _of_pair(self, pair: int, words: Sequence[str]) -> int:
        user, word = divmod(pair, len(words) + 1)
        return NO_FAMILY if pair < 0 else self._of_words(user, words[word])

    def _of_words(self, user: int, words: str) -> int:
        if not words:
            return NO_FAMILY
        family = self._known(user, words)
        if family is None:
            family = self._family[user, words] = self._join_or_found(user, words)
        return family

    def _known(self, user: int, words: str) -> int | None:
        family = self._family.get((user, words))
        return self._beneath._known(user, words) if family is None and self._beneath else family

    def _leaders_of(self, user: int) -> dict[int, str]:
        if user not in self._leaders:
            self._leaders[user] = dict(self._beneath._leaders_of(user)) if self._beneath else {}
        return self._leaders[user]

    def _join_or_found(self, user: int, words: str) -> int:
        leaders = self._leaders_of(user)
        nearest = process.extractOne(words, leaders, scorer=fuzz.ratio, score_cutoff=LEAST_LIKENESS)
        if nearest is not None:
            family = int(nearest[2])
            leaders[family] = leaders.pop(family)
            return family
        if len(leaders) == MOST_LEADERS:
            del leaders[next(iter(leaders))]
        family, self._founded = self._founded, self._founded + 1
        leaders[family] = words
        return family


def _words_of_all(names: Sequence[str]) -> tuple[Sequence[str], NDArray[np.int64]]:
    """Return the distinct words of ``names``, and each name's position among them.

    -1 for a name without words.
    """
    of_name, words = pd.factorize(np.array([split_words(name) or None for name in names], dtype=object))
    return list(words), of_name


_FAILURES = frozenset(
    {JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.TIMEOUT}
)

# Columns of `columns_alike` that the jobs of one group have in common, by level. A new level needs one line here.
ALIKE: dict[str, tuple[str, ...]] = {
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
_TEXTS = ("user", "account", "partition")
_CODES = (*_TEXTS, "name", "stem", "family")
_NUMBERS = ("gpus", "cpus", "nodes", "time_limit_s", "memory_mib")
# Columns of a queue that predictions read.
ASKED = (*_TEXTS, "name", *_NUMBERS)

# Columns of a history that training reads, and by which a model knows what it has learned from.
READ = (
    *("submitted_at", *_TEXTS, "qos", "name", *_NUMBERS),
    *(*(f"{name}_requested" for name in SIZES), "started_at", "ended_at", "run_time_s", "state"),
)


class NameCodes(NamedTuple):
    """Codes of job names, int32 arrays of one entry per job.

    -1 without a name, and for ``family`` also without words or user.
    """

    name: NDArray[np.int32]
    stem: NDArray[np.int32]
    family: NDArray[np.int32]


class Coding(Protocol):
    """Interface that assigns codes to the values of columns.

    Equal values get the same code, missing ones -1.
    """

    def codes(self, name: str, column: Any) -> NDArray[np.int32]:
        """Return the codes of the column of ``JOBS`` called ``name``.

        ``column`` is its categorical array.
        """
        ...

    def name_codes(self, names: Any, user: NDArray[np.int32]) -> NameCodes:
        """Return the codes of job names, their stems and their families.

        ``names`` are texts or missing, ``user`` has the users' codes.
        """
        ...


class FrameCoding:
    """``Coding`` of a single frame.

    It is sufficient for whole histories.
    """

    def codes(self, name: str, column: Any) -> NDArray[np.int32]:  # noqa: ARG002 - the frame's own codes will do
        """See ``Coding``."""
        return np.asarray(column.codes, dtype=np.int32)

    def name_codes(self, names: Any, user: NDArray[np.int32]) -> NameCodes:
        """See ``Coding``."""
        codes, uniques = pd.factorize(names)
        stems = pd.Series(uniques, dtype="str").str.replace(_DIGITS, "", regex=True)
        # The last entry is for the code -1 of a missing name.
        of_unique = np.append(pd.factorize(stems)[0], -1)
        codes = codes.astype(np.int32)
        families = JobNameFamilies().codes(user, codes, list(uniques))
        return NameCodes(name=codes, stem=of_unique[codes].astype(np.int32), family=families)


_DIGITS = r"\d+"
_BY_FRAME = FrameCoding()


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
    gpus : int32
    cpus, nodes, time_limit_s, memory_mib : float64
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
    gpus: NDArray[np.int32]
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
    def from_frame(cls, jobs: pd.DataFrame, *, timezone: str = "UTC", coding: Coding = _BY_FRAME) -> JobTable:
        """Return the table of ``jobs``, which must be in submission order.

        A missing end is replaced by the start plus the run time. Where the start is missing too, it is the submission
        plus the run time (Venus and Philly publish no start, so that a job that waited seems to end earlier than it
        did).

        Raises
        ------
        FrameInvalid
            A column of ``READ`` is missing or of another type, or a job was submitted before the one above it.
        """
        JOBS.check(jobs, columns=READ)
        submitted_s = _seconds(jobs["submitted_at"])
        if (np.diff(submitted_s) < 0).any():
            raise FrameInvalid(
                "The jobs are not in submission order: one was submitted before the job above it.",
                hint="Order them first: helios.model.in_submission_order(jobs).",
            )
        local = jobs["submitted_at"].dt.tz_convert(timezone).dt
        return cls(
            submitted_s=submitted_s,
            started_s=np.where(jobs["started_at"].notna(), _seconds(jobs["started_at"]), NEVER_S),
            ended_s=_ends(jobs, submitted_s),
            run_time_s=jobs["run_time_s"].to_numpy(),
            failed=_failed(jobs["state"]),
            hour=local.hour.to_numpy(dtype=np.float64),
            weekday=local.day_of_week.to_numpy(dtype=np.float64),
            **_requests(_requested(jobs), coding),
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
        """Return the table of ``requests``, taken as submitted at ``now_s``.

        ``requests`` are as of :func:`distinct_requests`.
        """
        return cls.from_codes(_requests(requests, coding), now_s=now_s, hour=hour, weekday=weekday)

    @classmethod
    def from_codes(
        cls, known: dict[str, NDArray[Any]], *, now_s: int, hour: float = np.nan, weekday: float = np.nan
    ) -> JobTable:
        """Return the table of requests, taken as submitted at ``now_s``.

        ``known`` has coded columns of this class, at least ``gpus``. Others are unknown.
        """
        n = len(known["gpus"])
        unknown, never, no_code = np.full(n, np.nan), np.full(n, NEVER_S), np.full(n, -1, dtype=np.int32)
        return cls(
            submitted_s=np.full(n, now_s),
            started_s=never,
            ended_s=never,
            run_time_s=unknown,
            failed=unknown,
            hour=np.full(n, hour),
            weekday=np.full(n, weekday),
            **dict.fromkeys(_CODES, no_code) | dict.fromkeys(_NUMBERS, unknown) | known,
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
    """Features of jobs with their names.

    ``X`` is float32 of shape (n, len(names)), NaN where a value is not known at submission.
    """

    X: NDArray[np.float32]
    names: tuple[str, ...]


def causal_features(table: JobTable) -> FeatureMatrix:
    """Return each job's features, from what was known at its submission.

    These are its own request, earlier submissions, and jobs that ended strictly before. Of a job that had not ended
    only the request is used, not its wait, start, state or run time. O(n log n).
    """
    events = event_order(table)
    features = np.empty((table.n, len(FEATURES)), dtype=np.float32)
    ends = table.ends()
    replay_events(empty_stats(events), events, np.arange(table.n), ends, table.ended_s[ends], 0, features)
    return FeatureMatrix(X=features, names=FEATURES)


def past_mean_s(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the shrunk mean of past runs in log time, s.

    It is at most the time limit.

    ``features`` are as of :func:`causal_features`, the result has one number for each row.
    """
    anchor, limit = features[:, COLUMN.anchor].astype(np.float64), features[:, COLUMN.log_limit].astype(np.float64)
    return np.asarray(np.expm1(np.fmin(anchor, limit)))


def event_order(table: JobTable, *, groups: NDArray[np.int32] | None = None) -> Events:
    """Return the events that the causal features are computed from.

    ``groups`` default to :func:`group_columns`.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(table.time_limit_s > 0, table.run_time_s / table.time_limit_s, np.nan)
    return Events(
        submitted_s=table.submitted_s,
        log_run=np.log1p(table.run_time_s),
        limit_share=share,
        failed=table.failed,
        request=_request(table),
        nearness=nearness(table),
        groups=group_columns(table) if groups is None else groups,
    )


def request_events(requests: JobTable, *, groups: NDArray[np.int32]) -> Events:
    """Return the events of jobs of which only the requests are known."""
    unknown = requests.run_time_s
    return Events(
        submitted_s=requests.submitted_s,
        log_run=unknown,
        limit_share=unknown,
        failed=unknown,
        request=_request(requests),
        nearness=nearness(requests),
        groups=groups,
    )


def group_columns(table: JobTable) -> NDArray[np.int32]:
    """Return each job's group at each of ``LEVELS``.

    Groups of different levels never share a number.

    An unknown user has no history of its own, because pooling all unknown users would treat different people as one. On
    Venus and Philly (no users) pooling them by partition moved the trained model's rank correlation by +.006 each, and
    worsened its median absolute log error from 1.08 to 1.11 and from .45 to .52.
    """
    columns = {
        name: pd.factorize(values)[0] if values.dtype.kind == "f" else values
        for name, values in columns_alike(table).items()
    }
    groups = np.full((table.n, len(LEVELS)), -1, dtype=np.int32)
    first_free, members = 0, group_members(table)
    for level, name in enumerate(LEVELS):
        codes, count = _joint_codes([columns[part] for part in ALIKE[name]], table.n)
        member = members[name]
        at = slice(None) if member is None else member
        groups[at, level] = codes[at] + first_free
        first_free += count
    return groups


def columns_alike(table: JobTable) -> dict[str, NDArray[Any]]:
    """Return the columns by which jobs are grouped.

    Unknown is a value too.
    """
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
    lacking = np.flatnonzero(~np.logical_and.reduce(known, axis=1)).tolist()
    members = dict[str, NDArray[np.bool_] | None]()
    for level in levels:
        needed = [column for column in lacking if _NEVER_UNKNOWN[column] in ALIKE[level]]
        members[level] = np.logical_and.reduce(known[needed]) if needed else None
    return members


def _joint_codes(parts: list[NDArray[Any]], n: int) -> tuple[NDArray[np.int64], int]:
    joint, count = np.zeros(n, dtype=np.int64), min(n, 1)
    for codes in parts:
        joint, uniques = pd.factorize(joint * (int(codes.max(initial=-1)) + 2) + codes + 1)
        count = len(uniques)
    return joint, count


def _request(table: JobTable) -> NDArray[np.float32]:
    request = np.empty((table.n, len(REQUEST_FEATURES)), dtype=np.float32)
    request[:, COLUMN.gpus], request[:, COLUMN.hour], request[:, COLUMN.weekday] = table.gpus, table.hour, table.weekday
    request[:, COLUMN.log_cpus], request[:, COLUMN.log_nodes] = np.log1p(table.cpus), np.log1p(table.nodes)
    request[:, COLUMN.log_limit] = np.log1p(table.time_limit_s)
    request[:, COLUMN.log_memory] = np.log1p(table.memory_mib)
    return request


def nearness(table: JobTable) -> NDArray[np.float64]:
    """Return what shows how alike jobs are, as in ``Events``."""
    # An unknown limit is like an unknown one and far from any other; so is an unlimited one (20 > log of any limit).
    near = np.empty((table.n, 4))
    near[:, 0], near[:, 1], near[:, 2], near[:, 3] = (
        np.log1p(table.size),
        np.minimum(np.log1p(table.time_limit_s), 20.0),
        table.partition,
        table.stem,
    )
    near[np.isnan(near[:, 0]), 0], near[np.isnan(near[:, 1]), 1] = -1.0, -5.0
    return near


def distinct_requests(columns: Mapping[str, Any]) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Return the requests that differ, and which of them each job makes.

    They are in the order of their first jobs. Jobs of one request differ in nothing that predictions read.

    Parameters
    ----------
    columns : mapping
        Columns ``ASKED`` of ``QUEUE``, as of ``FrameKind.arrays``.

    Returns
    -------
    requests : dict
        The same columns, one entry for each request.
    kind : int64 array of shape (n_jobs,)
    """
    if len(columns["gpus"]) == 1:
        return dict(columns), np.zeros(1, dtype=np.int64)
    names = pa.array(columns["name"]).to_pylist()
    number = {name: number for number, name in enumerate(dict.fromkeys(names))}
    codes, numbers = (columns[name].codes for name in _TEXTS), (columns[name] for name in _NUMBERS)
    first, kind = distinct_rows(np.array([number[name] for name in names]), *codes, *numbers)
    requests = {name: columns[name][first] for name in (*_TEXTS, *_NUMBERS)}
    return requests | {"name": [names[row] for row in first.tolist()]}, kind


def distinct_rows(*columns: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each kind, and the kind of each row.

    Kinds are numbered in the order of these rows. Each column has the shape (n,) or (n, k).
    """
    # Numbers by their bits, because NaN is not equal to itself.
    rows = np.column_stack([part.view(f"i{part.itemsize}") if part.dtype.kind == "f" else part for part in columns])
    keys = rows.view(f"V{rows.strides[0]}")[:, 0].tolist()
    place = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    alike = np.fromiter(map(place.__getitem__, keys), dtype=np.int64, count=len(keys))
    first = np.empty(len(place), dtype=np.int64)
    first[alike[::-1]] = np.arange(len(keys) - 1, -1, -1)
    return first, alike


def _requested(jobs: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of a history that ``_requests`` reads.

    Sizes are those that were asked for.
    """
    frame = with_sizes_requested(jobs)
    return {name: frame[name].array for name in ASKED}


def _requests(columns: Mapping[str, Any], coding: Coding) -> dict[str, NDArray[Any]]:
    """Return the requests of jobs, coded."""
    codes = {name: coding.codes(name, columns[name]) for name in _TEXTS}
    numbers = {name: np.asarray(columns[name]) for name in _NUMBERS}
    return codes | numbers | coding.name_codes(columns["name"], codes["user"])._asdict()


def _ends(jobs: pd.DataFrame, submitted_s: NDArray[np.int64]) -> NDArray[np.int64]:
    run_s = jobs["run_time_s"].to_numpy()
    started = jobs["started_at"]
    begin_s = np.where(started.notna(), _seconds(started), submitted_s)
    ended = jobs["ended_at"]
    by_run_time = begin_s + np.nan_to_num(np.ceil(run_s), nan=0.0, posinf=0.0).astype(np.int64)
    by_run_time[~np.isfinite(run_s)] = NEVER_S
    return np.where(ended.notna(), _seconds(ended), by_run_time)


def _seconds(times: pd.Series[Any]) -> NDArray[np.int64]:
    # Floor division keeps times before 1970 in order; NaT becomes a value the caller masks.
    return np.asarray(times.astype("int64"), dtype=np.int64) // 1_000_000


def _failed(states: pd.Series[Any]) -> NDArray[np.float64]:
    by_code = np.array([float(state in _FAILURES) for state in states.cat.categories] + [np.nan])
    return by_code[states.cat.codes.to_numpy()]
