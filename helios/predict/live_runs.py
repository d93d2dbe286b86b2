"""Past runs of a live cluster, with room that grows.

The samples are those of :mod:`helios.predict.past_runs`, and its kernels take them. A question works on copies of the
rings of its own groups, so that running jobs, which are known for that question alone, leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import cached_jit
from helios.ports import RUN_TIME
from helios.predict.causal_stats import COLUMN, LEVELS, NEVER_S, REQUEST, USER, USER_SIZE, CausalStats, Events
from helios.predict.distribution import read_off
from helios.predict.past_runs import (
    PastRuns,
    blank_past,
    blank_sample_state,
    note_end,
    note_start,
    take_samples,
)
from helios.predict.timeline import (
    Levels,
    Model,
    cut_at_limit,
    distribute,
    empty_levels,
    empty_scratch,
    level_by_features,
    note_outlived,
)

_RINGS = {
    USER_SIZE: ("key_runs", "key_count"),
    USER: ("user_starts", "user_count"),
    REQUEST: ("request_starts", "request_count"),
}
"""Rings and their lengths in ``PastRuns``, by the level of their groups."""
_ROOM = 1024


class LiveRuns:
    """``PastRuns`` of the ended jobs of a live cluster.

    Attributes
    ----------
    levels : Levels
        Only the share of jobs that outlived their limits is learned here.
    """

    def __init__(self) -> None:
        self.levels = empty_levels()
        self._n = 0
        self._rings = dict.fromkeys(_RINGS, 0)
        self._groups = np.full((_ROOM, len(LEVELS)), -1, dtype=np.int32)
        self._nearness = np.zeros((_ROOM, 4))
        self._scratch = empty_scratch()
        self._past = blank_past(_ROOM, _ROOM, _ROOM, _ROOM, _ROOM)

    def learn(self, events: Events, started_s: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Add jobs that have ended.

        Parameters
        ----------
        events : Events
            Their requests and run times.
        started_s, ended_s : int64 arrays, s since the epoch
        """
        timed = np.flatnonzero(np.isfinite(events.log_run))
        if not len(timed):
            return
        rows = self._place(events, timed)
        self._give_rings(events.groups[timed])
        by_start, by_end = (rows[np.argsort(when[timed], kind="stable")] for when in (started_s, ended_s))
        when_s = np.zeros((2, len(self._groups)), dtype=np.int64)
        when_s[0, rows], when_s[1, rows] = started_s[timed], ended_s[timed]
        log_run, log_limit = np.zeros(len(self._groups)), np.full(len(self._groups), np.nan)
        log_run[rows], log_limit[rows] = events.log_run[timed], events.request[timed, COLUMN.log_limit]
        _learn(self._past, self._groups, self.levels, by_start, by_end, when_s, log_run, log_limit)
        self._n += len(rows)

    def predict(
        self,
        asked: Events,
        features: NDArray[np.float32],
        history: CausalStats,
        *,
        running: Sequence[Events],
        since_s: NDArray[np.int64],
        now_s: int,
        model: Model,
        levels: Levels | None,
    ) -> NDArray[np.float64]:
        """Predict the run times of jobs that are not known here.

        Parameters
        ----------
        asked : Events
            The jobs. Unknown group numbers are new groups.
        features : float32 array of shape (n_asked, len(FEATURES))
        history : CausalStats
            With the rings of all users in ``asked``.
        running : sequence of Events
            Running jobs, in parts.
        since_s : int64 array of shape (n_running,)
            Their starts, s since the epoch, part after part.
        levels : Levels, optional
            Calibration of the intervals.

        Returns
        -------
        float64 array of shape (n_asked, len(RUN_TIME))
        """
        rows = [np.empty(0, dtype=np.int64)]
        for part in running:
            rows.append(self._place(part, np.arange(len(part.log_run)), after=sum(map(len, rows))))
        runs, by_start = np.concatenate(rows), np.argsort(since_s, kind="stable")
        jobs = self._place(asked, np.arange(len(features)), after=len(runs))
        most = max(int(events.groups.max(initial=-1)) for events in (asked, *running))
        past = self._copy_for(asked.groups, most=most)
        past.started_s[self._n : jobs[-1] + 1] = NEVER_S
        past.ended[self._n : jobs[-1] + 1] = False
        learned = self.levels if levels is None else replace(levels, outlived=self.levels.outlived)
        out = np.empty((len(features), len(RUN_TIME)))
        place = past, history, self._groups, self._nearness
        _predict(*place, learned, model, self._scratch, runs[by_start], since_s[by_start], features, jobs, now_s, out)
        return out

    def _place(self, events: Events, chosen: NDArray[np.int64], *, after: int = 0) -> NDArray[np.int64]:
        """Write jobs' groups and requests into new rows, and return these."""
        rows = self._n + after + np.arange(len(chosen))
        more = more_room(len(self._groups), self._n + after + len(chosen))
        if more:
            of_jobs = ("started_s", "log_run", "ended", "ended_s")
            blank = {"started_s": NEVER_S, "log_run": np.nan, "ended": False, "ended_s": NEVER_S}
            self._past = replace(
                self._past, **{name: _longer(getattr(self._past, name), more, blank[name]) for name in of_jobs}
            )
            self._groups, self._nearness = _longer(self._groups, more, -1), _longer(self._nearness, more, 0.0)
        self._groups[rows], self._nearness[rows] = events.groups[chosen], events.nearness[chosen]
        return rows

    def _give_rings(self, groups: NDArray[np.int32]) -> None:
        """Give every new group a ring."""
        past = self._past
        more = more_room(len(past.ring_of), int(groups.max(initial=-1)) + 1)
        ring_of = _longer(past.ring_of, more, -1)
        rings: dict[str, Any] = {}
        for level, (name, count) in _RINGS.items():
            numbers = np.unique(groups[:, level])
            fresh = numbers[(numbers >= 0) & (ring_of[numbers] < 0)]
            ring_of[fresh] = np.arange(self._rings[level], self._rings[level] + len(fresh), dtype=np.int32)
            self._rings[level] += len(fresh)
            ring, length = getattr(past, name), getattr(past, count)
            more = more_room(len(ring), self._rings[level])
            rings |= {name: _longer(ring, more, np.nan if level == USER_SIZE else -1), count: _longer(length, more, 0)}
        self._past = replace(past, ring_of=ring_of, **rings)

    def _copy_for(self, groups: NDArray[np.int32], *, most: int) -> PastRuns:
        """Return the past with copies of the rings of some groups.

        ``most`` is the largest group number that may be asked for.
        """
        past = self._past
        ring_of, rings = np.full(most + 1, -1, dtype=np.int32), dict[str, Any]()
        for level, (name, count) in _RINGS.items():
            numbers = np.unique(groups[:, level])
            numbers = numbers[numbers >= 0]
            known = np.where(numbers < len(past.ring_of), past.ring_of[np.minimum(numbers, len(past.ring_of) - 1)], -1)
            ring_of[numbers] = np.arange(len(numbers), dtype=np.int32)
            own, length = getattr(past, name)[known], getattr(past, count)[known]
            length[known < 0] = 0
            rings |= {name: own, count: length}
        return replace(
            past,
            ring_of=ring_of,
            all_starts=past.all_starts.copy(),
            all_count=past.all_count.copy(),
            sample_state=blank_sample_state(),
            **rings,
        )


def more_room(room: int, needed: int) -> int:
    """Return by how much to enlarge an array.

    It is enlarged by at least half, so that this is rare.
    """
    return 0 if needed <= room else max(needed - room, room // 2)


def _longer(values: NDArray[Any], more: int, blank: Any) -> NDArray[Any]:
    return np.concatenate((values, np.full((more, *values.shape[1:]), blank, dtype=values.dtype))) if more else values


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
    jobs: Any,
    now: int,
    out: Any,
) -> None:
    for place in range(len(runs)):
        note_start(past, groups, runs[place], since_s[place])
    for place in range(len(jobs)):
        row = features[place]
        take_samples(past, history, groups, nearness, jobs[place], now, scratch.samples)
        distribute(scratch, levels, model, row)
        low, high = level_by_features(levels, row, 0), level_by_features(levels, row, 1)
        read_off(scratch.at, scratch.p, scratch.by_grid[5], low, high, out[place])
        cut_at_limit(levels, row, out[place])
