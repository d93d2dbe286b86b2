"""Predictions for a live queue, by a model or by shrinkage alone.

What it has learned has room that grows. Sums and samples are those of :mod:`helios.predict.causal_stats` and
:mod:`helios.predict.past_runs`, and their kernels update them. They accept new groups, and submissions in any order. A
question works on copies of its own groups, so that what is known for that question alone (running and waiting jobs)
leaves nothing behind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import compress, repeat
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from helios.jit import cached_jit
from helios.model import JOBS, PREDICTIONS, QUEUE, in_submission_order
from helios.ports import RUN_TIME
from helios.predict import causal_stats as stats
from helios.predict.causal_stats import (
    COLUMN,
    FEATURES,
    LEVELS,
    NEVER_S,
    REQUEST,
    USER,
    USER_FAMILY,
    USER_SIZE,
    CausalStats,
    Events,
)
from helios.predict.distribution import read_off
from helios.predict.explain import BASES, fallback_level
from helios.predict.job_table import (
    ALIKE,
    ASKED,
    JobNameFamilies,
    JobTable,
    NameCodes,
    columns_alike,
    distinct_requests,
    distinct_rows,
    event_order,
    group_members,
    nearness,
    request_events,
)
from helios.predict.past_runs import (
    PastRuns,
    blank_past,
    blank_sample_state,
    note_end,
    note_start,
    note_starts,
    take_samples,
)
from helios.predict.timeline import (
    Levels,
    Model,
    Scratch,
    add_up,
    cut_and_round,
    decide,
    empty_levels,
    lay_out,
    level_by_features,
    note_outlived,
    started_s,
    untrained,
)

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel


# Codes and group numbers that do not change when more jobs come.
#
# A whole history is numbered at once by factorizing its columns (:func:`helios.predict.job_table.group_columns`). A
# live predictor cannot do so, because a new user must not change the numbers of those that it has learned from.

_DIGITS_PATTERN = re.compile(r"\d+")
_KEPT_LISTS = 64
_FEW_NAMES = 50
"""Names below which pandas takes longer than doing without it."""


class Codes:
    """Codes of values, numbered in the order in which values first appear."""

    def __init__(self, known: Mapping[Hashable, int] | None = None) -> None:
        self._known = {} if known is None else known
        self._fresh: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._fresh)

    def aside(self) -> Codes:
        """Return a copy that shares all known codes.

        New values in the copy do not change this object.
        """
        return Codes(self._fresh)

    def of(self, values: Iterable[Hashable]) -> list[int]:
        """Return the code of each value.

        A new value gets the next one.
        """
        known, fresh, first = self._known, self._fresh, len(self._known)
        if not known:
            return [fresh.setdefault(value, len(fresh)) for value in values]
        return [known[value] if value in known else fresh.setdefault(value, first + len(fresh)) for value in values]


class Categories:
    """Growing ``Coding`` with group numbers.

    Old values and old groups keep their numbers. Groups of all levels share one numbering, from 0.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Codes] = {}
        self._names, self._stems, self._groups = Codes(), Codes(), Codes()
        self._families = JobNameFamilies()
        self._stem_of: list[int] = []  # by number of the name
        self._is_aside = False
        self._texts: dict[int, tuple[pd.Index[Any], list[Any]]] = {}

    @property
    def n_groups(self) -> int:
        """Number of groups so far."""
        return len(self._groups)

    def aside(self) -> Categories:
        """Return a copy that shares all known codes.

        New values in the copy do not change this object.
        """
        other = Categories()
        other._columns = {name: codes.aside() for name, codes in self._columns.items()}
        other._names, other._stems, other._groups = self._names.aside(), self._stems.aside(), self._groups.aside()
        other._families = self._families.aside()
        other._stem_of, other._is_aside, other._texts = self._stem_of, True, self._texts
        return other

    def codes(self, name: str, column: Any) -> NDArray[np.int32]:
        """See ``Coding``."""
        texts = self._texts_of(column.categories)
        numbers = self._columns.setdefault(name, Codes())
        if len(column) > len(texts):
            # The additional last entry is for the code -1 of a missing value.
            of_category = np.array([*numbers.of(texts), -1], dtype=np.int32)
            return np.asarray(of_category[column.codes])
        codes = column.codes.tolist()
        known = iter(numbers.of(texts[code] for code in codes if code >= 0))
        return np.array([-1 if code < 0 else next(known) for code in codes], dtype=np.int32)

    def _texts_of(self, categories: pd.Index[Any]) -> list[Any]:
        """Return categories as a list.

        Lists are cached, because the same categories are often used again.
        """
        kept = self._texts.get(id(categories))
        if kept is None or kept[0] is not categories:
            if len(self._texts) >= _KEPT_LISTS:
                self._texts.clear()
            kept = self._texts[id(categories)] = (categories, categories.tolist())
        return kept[1]

    def name_codes(self, names: Any, user: NDArray[np.int32] | None = None) -> NameCodes:
        """See ``Coding``.

        Without ``user`` there are no families.
        """
        texts = list(names)
        codes = np.full((3, len(texts)), -1, dtype=np.int32)
        known = [place for place, text in enumerate(texts) if isinstance(text, str)]
        if known:
            named = [texts[place] for place in known]
            numbers = self._names.of(named)
            codes[:2, known] = numbers, self._stems_of(numbers, named)
            if user is not None and len(named) < _FEW_NAMES:
                codes[2, known] = [self._families.code(*job) for job in zip(user[known].tolist(), named, strict=True)]
            elif user is not None:
                place, uniques = pd.factorize(np.array(named, dtype=object))
                codes[2, known] = self._families.codes(user[known], place.astype(np.int32), list(uniques))
        return NameCodes(*codes)

    def groups(self, table: JobTable, *, levels: Sequence[int] = range(len(LEVELS))) -> NDArray[np.int32]:
        """Return each job's group at each of ``LEVELS``, -1 for none.

        The result has the shape (table.n, len(LEVELS)).

        Parameters
        ----------
        table : JobTable
            Coded by this object.
        levels : sequence of int
            Those that are needed. The others stay -1.
        """
        columns = {name: values.tolist() for name, values in columns_alike(table).items()}
        members = group_members(table, [LEVELS[level] for level in levels])
        groups = np.full((table.n, len(LEVELS)), -1, dtype=np.int32)
        for level in levels:
            name = LEVELS[level]
            keys = zip(repeat(level, table.n), *(columns[part] for part in ALIKE[name]), strict=True)
            member = members[name]
            if member is None:
                groups[:, level] = self._groups.of(keys)
            elif member.any():
                groups[member, level] = self._groups.of(compress(keys, member))
        return groups

    def _stems_of(self, numbers: list[int], names: list[str]) -> list[int]:
        """Return the stem of each name.

        Stems of known names are not computed again.
        """
        old = self._stem_of
        fresh = {number: name for number, name in zip(numbers, names, strict=True) if number >= len(old)}
        stems = self._stems.of([_DIGITS_PATTERN.sub("", name) for name in fresh.values()])
        stem_of = dict(zip(fresh, stems, strict=True))
        found = [old[number] if number < len(old) else stem_of[number] for number in numbers]
        if not self._is_aside:
            old.extend(stems)  # new names are numbered in the order in which they are met
        return found


# Statistics and past runs of ended jobs.

_RINGS = {
    USER_SIZE: ("key_runs", "key_count"),
    USER: ("user_starts", "user_count"),
    REQUEST: ("request_starts", "request_count"),
}
"""Rings and their lengths in ``PastRuns``, by the level of their groups."""
_ROOM = 1024
_NO_JOBS = np.empty(0, dtype=np.int64)
# A submission without a group. Ends before it are learned, and it changes nothing itself.
_NOBODY = Events(
    submitted_s=np.array([NEVER_S]),
    log_run=np.full(1, np.nan),
    limit_share=np.full(1, np.nan),
    failed=np.full(1, np.nan),
    request=np.zeros((1, len(stats.REQUEST_FEATURES)), dtype=np.float32),
    nearness=np.zeros((1, 4)),
    groups=np.full((1, len(LEVELS)), -1, dtype=np.int32),
)
# One empty row of each array, the initial value of every new one.
_BLANK_STATS = stats.empty_stats(replace(_NOBODY, groups=np.zeros_like(_NOBODY.groups)))
_BLANK_PAST = blank_past(1, 1, 1, 1, 1)


class Unended(NamedTuple):
    """Jobs that have been submitted and have not ended.

    Attributes
    ----------
    groups : int32 array of shape (n_requests, len(LEVELS))
        Of each of their requests.
    nearness : float64 array of shape (n_requests, 4)
        As in ``Events``.
    submitted : int64 array of shape (n,)
        Requests of those that features need.
    submitted_s : int64 array of shape (n,)
        Their submissions, s since the epoch.
    running : int64 array of shape (n_running,)
        Requests of those that run; -1 where no question asks for its groups.
    since_s : int64 array of shape (n_running,)
        Their starts, s since the epoch.
    """

    groups: NDArray[np.int32]
    nearness: NDArray[np.float64]
    submitted: NDArray[np.int64]
    submitted_s: NDArray[np.int64]
    running: NDArray[np.int64]
    since_s: NDArray[np.int64]


NO_GROUPS = _NOBODY.groups[:0]
_NOTHING_UNENDED = Unended(NO_GROUPS, _NOBODY.nearness[:0], *[_NO_JOBS] * 4)


def join_unended(parts: Sequence[Unended]) -> Unended:
    """Return the jobs of all parts."""
    total = parts[0] if parts else _NOTHING_UNENDED
    for part in parts[1:]:
        first = len(total.groups)
        submitted, running = (np.where(kind < 0, -1, kind + first) for kind in (part.submitted, part.running))
        pairs: Any = zip(total, part._replace(submitted=submitted, running=running), strict=True)
        total = Unended(*map(np.concatenate, pairs))
    return total


class LiveHistory:
    """``CausalStats`` and ``PastRuns`` of the ended jobs of a live cluster.

    Attributes
    ----------
    levels : Levels
        Only the share of jobs that outlived their limits is learned here.
    """

    def __init__(self) -> None:
        self.levels = empty_levels()
        self._scratch = Scratch()
        self._n = self._n_groups = self._n_stems = 0
        self._n_rings = dict.fromkeys(_RINGS, 0)
        self._groups, self._nearness = (np.repeat(part, _ROOM, axis=0) for part in (_NOBODY.groups, _NOBODY.nearness))
        self._past = blank_past(_ROOM, _ROOM, _ROOM, _ROOM, _ROOM)
        self._stats = CausalStats(*(np.repeat(values, _ROOM, axis=0) for values in _BLANK_STATS))
        self._submissions: dict[int, NDArray[np.int64]] = {}

    def learn(self, events: Events, started_s: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Add jobs that have ended.

        Older submissions may come after younger ones. Ends count in the order of the calls, and those of one call by
        their time, then by row.

        Parameters
        ----------
        events : Events
            In submission order.
        started_s, ended_s : int64 arrays, s since the epoch
        """
        self._make_room(events.groups)
        self._n_stems = max(self._n_stems, int(events.nearness[:, 3].max(initial=-1.0)) + 1)
        _submit(self._stats.counts, events.groups, events.submitted_s)
        order = np.argsort(ended_s, kind="stable")
        with_nobody = Events(*map(np.concatenate, zip(_NOBODY, events, strict=True)))
        unread = np.empty((1, len(FEATURES)), dtype=np.float32)
        nobody = np.zeros(1, dtype=np.int64)
        stats.replay_events(self._stats, with_nobody, nobody, order + 1, ended_s[order], 0, unread)
        for user, submitted_s in _by_group(events.groups[:, USER], events.submitted_s):
            earlier = self._submissions.get(user, _NO_JOBS)
            self._submissions[user] = np.sort(np.concatenate((earlier, submitted_s)))
        timed = np.flatnonzero(np.isfinite(events.log_run))
        rows = self._place(events.groups[timed], events.nearness[timed])
        by_start, by_end = (rows[np.argsort(when[timed], kind="stable")] for when in (started_s, ended_s))
        when_s = np.zeros((2, len(self._groups)), dtype=np.int64)
        when_s[0, rows], when_s[1, rows] = started_s[timed], ended_s[timed]
        log_run, log_limit = np.zeros(len(self._groups)), np.full(len(self._groups), np.nan)
        log_run[rows], log_limit[rows] = events.log_run[timed], events.request[timed, COLUMN.log_limit]
        _learn(self._past, self._groups, self.levels, by_start, by_end, when_s, log_run, log_limit)
        self._n += len(rows)

    def predict(
        self,
        requests: JobTable,
        groups: NDArray[np.int32],
        kind: NDArray[np.int64],
        unended: Unended,
        *,
        now_s: int,
        model: Model,
        levels: Levels | None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Predict the run times of jobs that are submitted now.

        What is kept here is not changed.

        Parameters
        ----------
        requests : JobTable
            What the jobs ask for.
        groups : int32 array of shape (requests.n, len(LEVELS))
            Their groups. Unknown numbers are new groups.
        kind : int64 array of shape (n_asked,)
            Which of the requests each job makes.
        levels : Levels, optional
            Calibration of the intervals.

        Returns
        -------
        predictions : float64 array of shape (n_asked, len(RUN_TIME))
        features : float32 array of shape (n_asked, len(FEATURES))
        """
        events = request_events(requests, groups=groups.copy())
        if len(kind) > 1:
            events, kind = self._without_new_names(events, kind, unended)
        asked = events.groups
        numbers = np.unique(asked[asked >= 0])
        asked[:] = _renumbered(asked, numbers)
        # The last request, number -1, has no group.
        requested = np.concatenate((_renumbered(unended.groups, numbers), _NOBODY.groups))
        near = np.concatenate((unended.nearness, _NOBODY.nearness))
        others = requested[unended.submitted]
        # The additional last entry is for the number -1 of no group.
        level_of = np.full(len(numbers) + 1, -1)
        level_of[asked] = np.arange(len(LEVELS))
        members = {level: np.flatnonzero(level_of[:-1] == level).astype(np.int32) for level in _RINGS}
        ring_of = np.full(len(numbers), -1, dtype=np.int32)
        for found in members.values():
            ring_of[found] = np.arange(len(found), dtype=np.int32)
        history = self._stats_of(numbers, ring_of, users=members[USER])
        _submit(history.counts, others, unended.submitted_s)
        self._count_bursts(history, numbers, members[USER], others[:, USER], unended.submitted_s, now_s)
        features = np.empty((len(kind), len(FEATURES)), dtype=np.float32)
        _describe_asked(history, events, kind, features)

        by_start = np.argsort(unended.since_s, kind="stable")
        runs = self._place(requested[unended.running], near[unended.running])
        jobs = self._place(asked, events.nearness, after=len(runs))
        past = self._past_of(numbers, ring_of, members)
        past.started_s[self._n : jobs[-1] + 1] = NEVER_S
        past.ended[self._n : jobs[-1] + 1] = False
        learned = self.levels if levels is None else replace(levels, outlived=self.levels.outlived)
        out = np.empty((len(kind), len(RUN_TIME)))
        place = past, history, self._groups, self._nearness
        starts = runs[by_start], unended.since_s[by_start]
        asked_for = features, kind, np.argsort(kind, kind="stable"), jobs
        _predict(*place, learned, model, self._scratch, *starts, *asked_for, now_s, out)
        return out, features

    def _without_new_names(
        self, events: Events, kind: NDArray[np.int64], unended: Unended
    ) -> tuple[Events, NDArray[np.int64]]:
        """Merge requests that differ only in names of which nothing is known.

        No job of such a name, stem or family has ended, so all their groups are empty, and of these levels only sums
        over ended jobs are read. A stem that no other job has is as far from every job as any other such stem.

        Parameters
        ----------
        events : Events
            One entry per request.
        kind : int64 array
            Which of them each job makes.

        Returns
        -------
        events, kind
            The same with fewer entries.
        """
        groups, nearness = events.groups.copy(), events.nearness.copy()
        names, stem = groups[:, USER_FAMILY:], nearness[:, 3]
        # The number of no other group: users' groups also have counts.
        names[names >= self._n_groups] = groups.max() + 1
        stem[(stem >= self._n_stems) & ~np.isin(stem, unended.nearness[:, 3])] = -2.0
        first, place = distinct_rows(events.request, nearness, groups)
        events = replace(events, nearness=nearness, groups=groups)
        return Events(*(part[first] for part in events)), place[kind]

    def _place(self, groups: NDArray[np.int32], nearness: NDArray[np.float64], *, after: int = 0) -> NDArray[np.int64]:
        """Write jobs' groups and requests into new rows, and return these."""
        rows = self._n + after + np.arange(len(groups))
        needed = self._n + after + len(groups)
        self._past = _with_room(
            self._past, _BLANK_PAST, dict.fromkeys(("started_s", "log_run", "ended", "ended_s"), needed)
        )
        self._groups, self._nearness = _longer(self._groups, needed, -1), _longer(self._nearness, needed, 0.0)
        self._groups[rows], self._nearness[rows] = groups, nearness
        return rows

    def _make_room(self, groups: NDArray[np.int32]) -> None:
        """Make room for all groups, and give every new one its rings."""
        self._n_groups = max(self._n_groups, int(groups.max(initial=-1)) + 1)
        # One more than needed, because the row after the last one stands for unknown groups.
        ring_of, n_rows = _longer(self._past.ring_of, self._n_groups + 1, -1), dict[str, int]()
        for level, names in _RINGS.items():
            numbers = np.unique(groups[:, level])
            fresh = numbers[(numbers >= 0) & (ring_of[numbers] < 0)]
            ring_of[fresh] = np.arange(self._n_rings[level], self._n_rings[level] + len(fresh), dtype=np.int32)
            self._n_rings[level] += len(fresh)
            n_rows |= dict.fromkeys(names, self._n_rings[level] + 1)
        self._past = replace(_with_room(self._past, _BLANK_PAST, n_rows), ring_of=ring_of)
        n_rows = dict.fromkeys(("sums", "counts"), self._n_groups + 1)
        n_rows |= dict.fromkeys(("rings", "ring_length"), self._n_rings[USER] + 1)
        self._stats = replace(_with_room(self._stats, _BLANK_STATS, n_rows), ring_of=ring_of)

    def _ring_rows(self, numbers: NDArray[np.int32], level: int) -> NDArray[np.int32]:
        """Return the ring of each group, or the blank one after the last."""
        rings = self._past.ring_of[np.minimum(numbers, self._n_groups)]
        return np.where(rings < 0, self._n_rings[level], rings)

    def _stats_of(
        self, numbers: NDArray[np.int32], ring_of: NDArray[np.int32], *, users: NDArray[np.int32]
    ) -> CausalStats:
        """Return a copy of the groups ``numbers``, renumbered by position.

        ``users`` are such positions.
        """
        rows, rings = np.minimum(numbers, self._n_groups), self._ring_rows(numbers[users], USER)
        return CausalStats(
            sums=self._stats.sums[rows],
            counts=self._stats.counts[rows],
            rings=self._stats.rings[rings],
            ring_of=ring_of,
            ring_length=self._stats.ring_length[rings],
        )

    def _past_of(
        self, numbers: NDArray[np.int32], ring_of: NDArray[np.int32], members: Mapping[int, NDArray[np.int32]]
    ) -> PastRuns:
        """Return the past with copies of the rings of the groups ``numbers``, renumbered by position.

        ``members`` are such positions by level.
        """
        past = self._past
        rings = {name: getattr(past, name).copy() for name in ("all_starts", "all_count")}
        for level, names in _RINGS.items():
            rows = self._ring_rows(numbers[members[level]], level)
            rings |= {name: getattr(past, name)[rows] for name in names}
        return replace(past, ring_of=ring_of, sample_state=blank_sample_state(), **rings)

    def _count_bursts(  # noqa: PLR0917 - what one user's count needs
        self,
        history: CausalStats,
        numbers: NDArray[np.int32],
        users: NDArray[np.int32],
        unended: NDArray[np.int32],
        submitted_s: NDArray[np.int64],
        now_s: int,
    ) -> None:
        """Set how many jobs each user has submitted in a row.

        The count of other groups is never read.

        Parameters
        ----------
        users : int32 array
            Positions in ``numbers``.
        unended, submitted_s : arrays of equal length
            Users and submissions of jobs that have not ended.
        """
        lately = users[history.counts[users, stats._LAST_SUBMIT_S] >= now_s - stats.BURST_GAP_S]
        if not len(lately):
            return
        order = np.lexsort((submitted_s, unended))
        ascending, theirs_s = unended[order], submitted_s[order]
        first, past_last = np.searchsorted(ascending, lately), np.searchsorted(ascending, lately, side="right")
        for user, low, high in zip(lately.tolist(), first.tolist(), past_last.tolist(), strict=True):
            known = self._submissions.get(int(numbers[user]), _NO_JOBS)
            history.counts[user, stats._BURST] = _last_burst(known, theirs_s[low:high])


@cached_jit
def _last_burst(some: Any, others: Any) -> int:
    """Return the length of the burst at the end of two ascending lists."""
    left, right, length, later = len(some), len(others), 0, 0
    while left + right > 0:
        if right == 0 or (left > 0 and some[left - 1] > others[right - 1]):
            left -= 1
            when = some[left]
        else:
            right -= 1
            when = others[right]
        if length > 0 and later - when > stats.BURST_GAP_S:
            break
        later = when
        length += 1
    return length


def _with_room(table: Any, blank: Any, n_rows: Mapping[str, int]) -> Any:
    """Return a table with more room in some of its arrays."""
    short = {name: n for name, n in n_rows.items() if n > len(getattr(table, name))}
    longer = {name: _longer(getattr(table, name), n, getattr(blank, name)[0]) for name, n in short.items()}
    return replace(table, **longer) if longer else table


def _longer(values: NDArray[Any], needed: int, blank: Any) -> NDArray[Any]:
    """Return an array with room for ``needed`` rows.

    It grows by at least half, so that this is rare.
    """
    if needed <= len(values):
        return values
    more = max(needed - len(values), len(values) // 2)
    return np.concatenate((values, np.full((more, *values.shape[1:]), blank, dtype=values.dtype)))


def _renumbered(groups: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return groups as positions in ``numbers``, which ascend.

    -1 for no group, and for a group that is not in ``numbers``.
    """
    if not len(numbers):
        return np.full_like(groups, -1)
    found = np.minimum(np.searchsorted(numbers, groups), len(numbers) - 1)
    return np.where(numbers[found] == groups, found, -1).astype(np.int32)


def _by_group(groups: NDArray[np.int32], values: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the values of each group but -1."""
    order = np.argsort(groups, kind="stable")
    found, first = np.unique(groups[order], return_index=True)
    parts = np.split(values[order], first[1:]) if len(found) else []
    return [(group, part) for group, part in zip(found.tolist(), parts, strict=True) if group >= 0]


@cached_jit
def _submit(counts: Any, groups: Any, submitted_s: Any) -> None:
    for job in range(len(groups)):
        for group in groups[job]:
            if group < 0:
                continue
            count = counts[group]
            count[stats._SUBMITTED] += 1
            count[stats._UNENDED] += 1
            count[stats._UNENDED_SUM_S] += submitted_s[job]
            count[stats._LAST_SUBMIT_S] = max(count[stats._LAST_SUBMIT_S], submitted_s[job])


@cached_jit
def _describe_asked(history: Any, events: Any, kind: Any, features: Any) -> None:
    """Fill in the features of jobs that are submitted in order.

    ``kind`` has each job's row of ``events``.
    """
    first = np.full(len(events.groups), -1)
    for job in range(len(kind)):
        request, row = kind[job], features[job]
        if first[request] < 0:
            first[request] = job
            stats._describe(history, events, request, row)
        else:
            # Between jobs of one request only submissions have been added.
            row[:] = features[first[request]]
            stats._describe_activity(history, events.groups[request], events.submitted_s[request], row)
        stats._arrive(history, events, request)


@cached_jit
def _learn(  # noqa: PLR0917 - numba kernels are called by position
    past: Any, groups: Any, levels: Any, by_start: Any, by_end: Any, when_s: Any, log_run: Any, log_limit: Any
) -> None:
    for job in by_start:
        note_start(past, groups, job, when_s[0, job])
    for job in by_end:
        note_end(past, groups, job, when_s[1, job], log_run[job])
        note_outlived(levels, log_run[job], log_limit[job])


@cached_jit
def _predict(  # noqa: PLR0917 - as above
    past: Any,
    history: Any,
    groups: Any,
    nearness: Any,
    levels: Any,
    model: Any,
    scratch: Any,
    runs: Any,
    since_s: Any,
    features: Any,
    kind: Any,
    by_kind: Any,
    jobs: Any,
    now: int,
    out: Any,
) -> None:
    note_starts(past, groups, runs, since_s)
    ends = np.empty(len(model.forest.feature), dtype=np.int32)
    low, high, before = 0.0, 0.0, -1
    for job in by_kind:
        row = features[job]
        # Nothing is computed twice that is the same as for the job before, of the same user and request.
        another = before < 0 or kind[job] != kind[before]
        if another:
            take_samples(past, history, groups, nearness, jobs[kind[job]], now, scratch.samples)
            lay_out(scratch, model, row, ends)
        another |= decide(scratch, model, row, ends)
        if another:
            add_up(scratch, levels, model, row, ends)
        own_low, own_high = level_by_features(levels, row, 0), level_by_features(levels, row, 1)
        if another or own_low != low or own_high != high:
            low, high = own_low, own_high
            read_off(scratch.at, scratch.p, scratch.by_grid[5], low, high, out[job])
            cut_and_round(levels, row, out[job])
        else:
            out[job] = out[before]
        before = job


_UNENDED = ("submitted_at", "started_at", *(name for name in ASKED if name not in {"account", "nodes", "memory_mib"}))
"""Columns that are read of jobs that have not ended: they are compared by size, limit, partition and name."""
_COLUMNS = pd.Index(PREDICTIONS.names)
_NUMBERS = [getattr(RUN_TIME, name.removesuffix("_s")) for name in PREDICTIONS.names[:-1]]
_UNKNOWN_S = np.iinfo(np.int64).min // 1_000_000


class LivePredictor:
    """Predictor for a live queue, which learns from ended jobs.

    It never forgets, so a long-lived process should replace it by a new one with the latest history from time to time.
    Threads may share it.

    Parameters
    ----------
    history : DataFrame
        Columns of ``JOBS``, learned as by :meth:`learn`.
    model : DurationModel, optional
        None for shrinkage alone, which serves from the first job.
    timezone : str
        Zone of the cluster's local time.

    Attributes
    ----------
    model : DurationModel or None
        May be exchanged at any time.
    """

    def __init__(self, history: pd.DataFrame, *, model: DurationModel | None = None, timezone: str = "UTC") -> None:
        self.model = model
        self._zone = ZoneInfo(timezone)
        self._told: set[tuple[str, int, int]] = set()
        self._not_yet_past = JOBS.empty()
        self._history, self._vocabulary = LiveHistory(), Categories()
        self._lock = Lock()
        self.learn(history)

    def learn(self, ended: pd.DataFrame) -> int:
        """Add jobs that have ended.

        A job that was added before counts once.

        A job is learned by the first :meth:`predict` for a time after its end. Jobs added before that call are learned
        in the order of their ends, in whatever order they were added. A job that is added later is learned then, as if
        it had ended after all known ones. As older jobs weigh less, it then counts a little more than it should.

        Parameters
        ----------
        ended : DataFrame
            Columns of ``JOBS``, in any order. Jobs without an end are left out.

        Returns
        -------
        int
            Number of new jobs.

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        JOBS.check(ended)
        over = ended[ended["ended_at"].notna()]
        with self._lock:
            fresh = over[self._are_new(over)]
            if len(fresh):
                both = [self._not_yet_past, fresh] if len(self._not_yet_past) else [fresh]
                self._not_yet_past = in_submission_order(JOBS.conform(pd.concat(both)))
        return len(fresh)

    def predict(self, pending: pd.DataFrame, *, now: datetime, running: pd.DataFrame | None = None) -> pd.DataFrame:
        """Predict run times of jobs as if submitted now, in this order.

        Jobs that ended while they waited are used. The call stores nothing about pending or running jobs.

        Parameters
        ----------
        pending : DataFrame
            Columns of ``QUEUE``. An array's record is predicted as one of its tasks.
        now : datetime
            Not before that of an earlier call, because learned jobs cannot be removed.
        running : DataFrame, optional
            Columns of ``QUEUE``. Users' running jobs are a feature.

        Returns
        -------
        DataFrame
            Columns of ``PREDICTIONS``, one row for each of ``pending``, with its index. ``source`` is the model's id,
            or which past jobs shrinkage rests on (``shrinkage: user+size``; see :data:`helios.predict.explain.BASES`).

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        if pending.empty:
            return PREDICTIONS.empty()
        found, features = self._predict(pending, running, now)
        return _as_frame(found, features, self.model, pending.index)

    def _are_new(self, jobs: pd.DataFrame) -> NDArray[np.bool_]:
        names = jobs["job_id"].tolist(), jobs["submitted_at"].astype("int64").tolist(), jobs["restart"].tolist()
        new = np.zeros(len(jobs), dtype=np.bool_)
        for row, key in enumerate(zip(*names, strict=True)):
            new[row] = key not in self._told
            self._told.add(key)
        return new

    def _predict(
        self, pending: pd.DataFrame, running: pd.DataFrame | None, now: datetime
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return predictions, columns of ``RunTime``, and the features of the jobs."""
        local, now_s, model = now.astimezone(self._zone), math.floor(now.timestamp()), self.model
        requests, kind = distinct_requests(QUEUE.arrays(pending, ASKED))
        with self._lock:
            self._learn_until(now_s)
            vocabulary = self._vocabulary.aside()
            asked = JobTable.from_requests(
                requests, coding=vocabulary, now_s=now_s, hour=float(local.hour), weekday=float(local.weekday())
            )
            groups = vocabulary.groups(asked)
            frames = [frame for frame in (running, self._not_yet_past) if frame is not None and len(frame)]
            unended = [_unended(frame, asked, now_s, vocabulary) for frame in frames]
            return self._history.predict(
                asked,
                groups,
                kind,
                join_unended(unended),
                now_s=now_s,
                model=model.kernel if model else untrained(),
                levels=model.levels if model else None,
            )

    def _learn_until(self, now_s: int) -> None:
        """Learn from the jobs that ended strictly before a moment."""
        told = self._not_yet_past
        if told.empty:
            return
        past = (_seconds(told["ended_at"].array) < now_s) & (_seconds(told["submitted_at"].array) < now_s)
        if past.any():
            table = JobTable.from_frame(told[past], coding=self._vocabulary)
            events = event_order(table, groups=self._vocabulary.groups(table))
            self._history.learn(events, started_s(table), table.ended_s)
            self._not_yet_past = told[~past]


def _seconds(times: Any) -> NDArray[np.int64]:
    """Return times in s since the epoch, ``_UNKNOWN_S`` for unknown ones."""
    return np.asarray(times.asi8 // 1_000_000)


def _unended(jobs: pd.DataFrame, asked: JobTable, now_s: int, vocabulary: Categories) -> Unended:
    """Return the jobs of a frame that have not ended.

    Features need those of the users who ask, submitted before. Of running jobs, those with neither the user nor the
    request of any job asked about count as running alone, and their groups are left out, which take most of the time.
    """
    columns = QUEUE.arrays(jobs, _UNENDED)
    submitted_s, since_s = _seconds(columns["submitted_at"]), _seconds(columns["started_at"])
    begun = (since_s < now_s) & (since_s > _UNKNOWN_S)
    user, gpus, limit_s = vocabulary.codes("user", columns["user"]), columns["gpus"], columns["time_limit_s"]
    own = _is_among(user, asked.user)
    alike = _is_among(gpus, asked.gpus) & (np.isnan(limit_s) | _is_among(limit_s, asked.time_limit_s))
    theirs = own & (submitted_s < now_s)
    needed = np.flatnonzero(theirs | (begun & (own | alike)))
    groups, near, kind = NO_GROUPS, np.empty((0, 4)), np.full(len(jobs), -1)
    if len(needed):
        names, own = pa.array(columns["name"]).to_pylist(), own[needed]
        named = [names[row] if is_own else None for row, is_own in zip(needed.tolist(), own.tolist(), strict=True)]
        known = {
            "user": np.where(own, user[needed], -1),
            "stem": vocabulary.name_codes(named).stem,
            "partition": vocabulary.codes("partition", columns["partition"])[needed],
            **{name: columns[name][needed] for name in ("gpus", "cpus", "time_limit_s")},
        }
        first, kind[needed] = distinct_rows(*known.values())
        table = JobTable.from_codes({name: values[first] for name, values in known.items()}, now_s=now_s)
        groups, near = vocabulary.groups(table, levels=(REQUEST, USER, USER_SIZE)), nearness(table)
    return Unended(groups, near, kind[theirs], submitted_s[theirs], kind[begun], since_s[begun])


def _is_among(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are among the wanted ones, at once if there is one."""
    return np.asarray(values == wanted[0] if len(wanted) == 1 else np.isin(values, wanted))


def _as_frame(
    found: NDArray[np.float64], features: NDArray[np.float32], model: DurationModel | None, index: pd.Index[Any]
) -> pd.DataFrame:
    if model and model.trained:
        sources, codes = _sources(model.model_id), np.zeros(len(features), dtype=np.int8)
    else:
        sources, codes = _sources(*(f"shrinkage: {basis}" for basis in BASES)), fallback_level(features)
    known = found[:, _NUMBERS]
    known[~np.isfinite(known).all(axis=1)] = np.nan  # no prediction: a bound beyond every number
    # Names that are set last take a third of the time of a frame from single columns.
    frame = pd.DataFrame(known, index=index)
    source: Any = pd.Categorical.from_codes(codes, dtype=sources, validate=False)
    frame.insert(len(_NUMBERS), len(_NUMBERS), source)
    frame.columns = _COLUMNS
    return frame


@lru_cache(maxsize=4)
def _sources(*names: str) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(pd.Index(names, dtype="str"))


# Remaining run time of a running job: its prediction, given that it has not ended.
#
# The run time T has a distribution through the three predicted quantiles, whose log-odds of having ended are piecewise
# linear in log T: one line below the median, one from there to p90 (a log-logistic in two pieces, so that every
# quantile of T given T > t has a closed form), and beyond p90 a third whose slope is the same for every job. There it
# is a Pareto law: the remaining time is proportional to the elapsed time, so that a job far beyond its prediction is
# expected neither to end at once nor to run for ever.

TAIL_SLOPE = 0.8
"""Growth of log T by log-odds beyond p90. Half of the jobs far beyond run for another 2**0.8 - 1 = 0.74 of their time.

Best of .6, .8 and 1 on Venus and Philly, where no limits end jobs. On KTH-SP2 and SDSC-BLUE it makes no difference
(benchmarks/remaining.py evaluates the same logs). A plain log-logistic, which keeps the slope below p90, covers 67 % of
Philly's running jobs, and this one 76 %.
"""
LEAST_SLOPE = 0.01
"""Least slope of the other two lines. Quantiles may coincide (mostly at a time limit), but a line needs a slope."""
LIMIT_GRACE_S = 60.0
"""Longest time that a job outlasts its limit, s. 41 % of SDSC-BLUE's running jobs outlast it, by 27 to 58 s.

Slurm looks for jobs past their limit every 30 s and gives them another 30 s (``KillWait``) to end.
"""
CHANCES = (0.1, 0.5, 0.9)
"""Probabilities of the quantiles, in the order of their columns."""

_SHORTEST_S = 1.0
_LOG_ODDS_P90 = np.log(9.0)

Floats = NDArray[np.float64]


def remaining_run_time(
    quantiles_s: Floats,
    elapsed_s: Floats,
    *,
    limit_s: Floats | None = None,
    chances: Sequence[float | Floats] = CHANCES,
) -> Floats:
    """Return quantiles of running jobs' remaining run time.

    The jobs have run for ``elapsed_s`` and not ended.

    Parameters
    ----------
    quantiles_s : float64 array of shape (n, 3)
        p10, p50, p90 of the whole run time as predicted at submission, s, ascending; below 1 s they count as 1 s. With
        NaN, no prediction, the result is NaN too.
    elapsed_s : float64 array of shape (n,)
        Time run so far, s; a negative one (clocks differ) counts as 0.
    limit_s : float64 array of shape (n,), optional
        Time limits, s; NaN or infinite for none. No time remains beyond ``LIMIT_GRACE_S`` after it.
    chances : sequence of float or float64 arrays of shape (n,)
        Probabilities of the k quantiles; with uniform random numbers the result is drawn from the distribution.

    Returns
    -------
    float64 array of shape (n, k)
        s, ascending in each row and not negative. At 0 s elapsed they are ``quantiles_s``, except that p10 and p90 are
        at least 2 % away from p50. Their sum with ``elapsed_s`` never falls as time passes.
    """
    elapsed_s = np.maximum(np.asarray(elapsed_s, dtype=np.float64), 0.0)
    odds = _Odds(quantiles_s)
    # The log of 0 s elapsed is -inf, as it should be. NaN, no prediction, stays NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_survival = -np.logaddexp(0.0, odds.at(np.log(elapsed_s)))
    total_s = np.stack([odds.run_time(log_survival + np.log1p(-np.asarray(chance))) for chance in chances], axis=-1)
    remaining_s = total_s - elapsed_s[:, None]
    if limit_s is not None:
        left_s = np.maximum(np.where(np.isnan(limit_s), np.inf, limit_s) + LIMIT_GRACE_S - elapsed_s, 0.0)
        remaining_s = np.minimum(remaining_s, left_s[:, None])
    return remaining_s


class _Odds:
    """Log-odds of having ended by a time, for each of n jobs.

    They are three straight lines in log time, and have an inverse.
    """

    def __init__(self, quantiles_s: Floats) -> None:
        low, self._median, high = np.log(np.maximum(quantiles_s, _SHORTEST_S)).T
        self._below = np.maximum((self._median - low) / _LOG_ODDS_P90, LEAST_SLOPE)
        self._above = np.maximum((high - self._median) / _LOG_ODDS_P90, LEAST_SLOPE)

    def at(self, log_time: Floats) -> Floats:
        past = log_time - self._median
        beyond = past - self._above * _LOG_ODDS_P90
        odds = np.where(past < 0, past / self._below, past / self._above)
        return np.asarray(np.where(beyond > 0, _LOG_ODDS_P90 + beyond / TAIL_SLOPE, odds))

    def run_time(self, log_survival: Floats) -> Floats:
        """Return the run times, s, that jobs exceed with a log probability."""
        odds = np.log(-np.expm1(log_survival)) - log_survival
        within = odds * np.where(odds < 0, self._below, self._above)
        beyond = self._above * _LOG_ODDS_P90 + TAIL_SLOPE * (odds - _LOG_ODDS_P90)
        return np.asarray(np.exp(self._median + np.where(odds > _LOG_ODDS_P90, beyond, within)))
