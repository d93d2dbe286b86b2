"""Sums over jobs by period and group.

The figures of a longer period follow from them. All are integers, so that they can be added and taken back exactly:
counts, and times in ms that are rounded for each job and period. Waits, run times and limits over run times are counted
in bins, so that quantiles are known within ``QUANTILE_ERROR``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.occupancy import (
    FAILURES,
    STILL_RUNNING,
    STILL_WAITING,
    Flags,
    Floats,
    Times,
    held_until_us,
    microseconds,
)
from helios.model import NEVER_US, JobState

MEASURES = (
    "submitted",
    "finished",
    "failed",
    "timed_out",
    "gpus_unknown",
    "waits",
    "wait_ms",
    "started",
    "ended",
    "present",
    "with_gpus",
    "with_nodes",
    "gpu_ms",
    "cpu_ms",
    "node_ms",
    "lost_gpu_ms",
    "lost_cpu_ms",
    "queued_gpu_ms",
    "queued_cpu_ms",
)
"""Sums of a period and group.

Up to ``wait_ms`` of the jobs submitted in it: those that have finished with a known state, and of these the failed and
the timed out; those with unknown GPUs; those with a known wait, and its sum. Then of all: jobs started and ended in it;
jobs submitted in it or holding resources, and how many of these have known GPUs and nodes; resources x time held, those
of failed jobs, and resources x time waited.
"""
DISTRIBUTIONS = ("wait", "run_time", "over_asked")
"""Counted values of the jobs submitted in a period: wait and run time in ms, limit over run time in thousandths."""
QUANTILE_ERROR = 0.01
"""Largest relative error of a quantile: half a bin, 1/128, rounded up."""
LONGEST_SPAN_US = 100 * 86_400_000_000
"""Jobs that take longer from submission to end are left out of sums by day, which would be very many, µs."""
DAY_US = 86_400_000_000

STATES: Mapping[str, Collection[JobState]] = {
    "runs": STILL_RUNNING,
    "waits": STILL_WAITING,
    "failed": FAILURES,
    "timed_out": (JobState.TIMEOUT,),
    "completed": (JobState.COMPLETED,),
}
"""States of which each flag of ``JobArrays`` says that a job is in one."""

LARGEST_BIN = 4095
_BITS = 6
"""Bits of a value that are kept behind the first one, as in an HDR histogram: bins are 1/64 wide at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobArrays:
    """Jobs as arrays of shape (n_jobs,).

    Attributes
    ----------
    submitted_us, eligible_us, started_us, ended_us : int64 array
        ``NEVER_US`` where unknown.
    run_s, limit_s, nodes, cpus, gpus : float64 array
        NaN where unknown.
    runs, waits, failed, timed_out, completed, has_state : bool array
        Whether the state says so; ``has_state`` where one is known.
    """

    submitted_us: Times
    eligible_us: Times
    started_us: Times
    ended_us: Times
    run_s: Floats
    limit_s: Floats
    nodes: Floats
    cpus: Floats
    gpus: Floats
    runs: Flags
    waits: Flags
    failed: Flags
    timed_out: Flags
    completed: Flags
    has_state: Flags

    @classmethod
    def of_frame(cls, jobs: pd.DataFrame) -> Self:
        """Return the jobs of a ``JOBS`` frame."""
        states = jobs["state"]

        def are_in(wanted: Collection[JobState]) -> Flags:
            return states.isin([str(state) for state in wanted]).to_numpy()

        arrays: dict[str, Any] = {
            **{
                f"{name}_us": microseconds(jobs[f"{name}_at"]) for name in ("submitted", "eligible", "started", "ended")
            },
            **{name: jobs[name].to_numpy(dtype=np.float64) for name in ("nodes", "cpus", "gpus")},
            "run_s": jobs["run_time_s"].to_numpy(dtype=np.float64),
            "limit_s": jobs["time_limit_s"].to_numpy(dtype=np.float64),
            **{name: are_in(wanted) for name, wanted in STATES.items()},
            "has_state": states.notna().to_numpy(),
        }
        return cls(**arrays)

    def where(self, mask: Flags) -> Self:
        """Return the jobs that a mask chooses."""
        return type(self)(**{name: getattr(self, name)[mask] for name in self.__slots__})

    def able_us(self) -> Times:
        """Return from when each job could have started."""
        return np.where(self.eligible_us == NEVER_US, self.submitted_us, self.eligible_us)

    def are_settled(self) -> Flags:
        """Return which jobs belong into sums that are kept.

        The others run or wait still, so that their shares grow, or are so long or so odd that they are looked at one by
        one: their runs begin more than a day before the submission, or not before their end.
        """
        never_ended = self.ended_us == NEVER_US
        started = np.where(self.started_us == NEVER_US, self.submitted_us, self.started_us)
        is_open = never_ended & (self.runs | self.waits)
        length_us = np.where(never_ended, _whole(1e6 * np.nan_to_num(self.run_s)), self.ended_us - self.submitted_us)
        backwards = (self.started_us != NEVER_US) & ~never_ended & (started >= self.ended_us)
        backwards &= (started > self.ended_us) | (self.run_s > 0)
        is_odd = (started < self.submitted_us - DAY_US) | (length_us > LONGEST_SPAN_US) | backwards
        settled: Flags = ~is_open & ~is_odd
        return settled

    def wait_at(self, moment_us: int) -> Flags:
        """Return which jobs could have started and had not at a moment."""
        without = self.started_us == NEVER_US
        never_ended = self.ended_us == NEVER_US
        later = ~without & (self.started_us > moment_us)
        given_up = without & ~never_ended & (self.ended_us > moment_us)
        waits: Flags = (self.able_us() <= moment_us) & (later | given_up | (without & never_ended & self.waits))
        return waits

    def run_at(self, moment_us: int) -> Flags:
        """Return which jobs ran at a moment."""
        never_ended = self.ended_us == NEVER_US
        goes_on = (~never_ended & (self.ended_us > moment_us)) | (never_ended & self.runs)
        runs: Flags = (self.started_us != NEVER_US) & (self.started_us <= moment_us) & goes_on
        return runs

    def hold(self, since_us: int, until_us: int, *, now_us: int) -> Flags:
        """Return which started jobs held something in a window."""
        holds: Flags = (self.started_us < until_us) & (self._held_until(now_us) > np.maximum(since_us, self.started_us))
        return holds

    def _held_until(self, now_us: int) -> Times:
        return held_until_us(
            started_us=self.started_us,
            ended_us=self.ended_us,
            run_s=self.run_s,
            limit_s=self.limit_s,
            runs=self.runs,
            now_us=now_us,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """Sums by period and group.

    Attributes
    ----------
    cells : DataFrame
        ``period`` and ``group`` as numbers, and ``MEASURES``.
    bins : DataFrame
        ``cell`` (a row of ``cells``), ``kind`` (a place in ``DISTRIBUTIONS``), ``bin`` and ``count``.
    """

    cells: pd.DataFrame
    bins: pd.DataFrame


def sum_jobs(
    jobs: JobArrays, *, group: NDArray[np.int64], edges_us: Times, now_us: int, until_us: int | None = None
) -> Sums:
    """Return the sums of jobs by period and group.

    Parameters
    ----------
    group : int64 array of shape (n_jobs,)
        Group of each job, as a small number that is not negative.
    edges_us : int64 array of shape (n_periods + 1,)
        Edges of the periods, rising. What lies outside is left out.
    now_us : int
        Until when running and waiting jobs are counted.
    until_us : int, optional
        Moment at which the jobs are looked at: the wait of one that waited then is not known.
    """
    started, able, held_until = jobs.started_us != NEVER_US, jobs.able_us(), jobs._held_until(now_us)
    periods = _Periods(edges_us)
    held, queued = _held_parts(jobs, held_until, periods), _queued_parts(jobs, able, now_us, periods)
    cells = _Cells(
        group,
        submitted=(np.arange(len(group)), periods.of(jobs.submitted_us)),
        started=(np.arange(len(group)), np.where(started, periods.of(jobs.started_us), -1)),
        ended=(np.arange(len(group)), np.where(jobs.ended_us != NEVER_US, periods.of(jobs.ended_us), -1)),
        held=held[:2],
        queued=queued[:2],
    )
    finished = ~np.isnan(jobs.run_s) & jobs.has_state
    waited = started if until_us is None else started & ~jobs.wait_at(until_us)
    wait_ms = np.where(waited, np.maximum(jobs.started_us - able, 0) // 1000, 0)
    cells.count("submitted")
    cells.count("submitted", "finished", finished)
    cells.count("submitted", "failed", finished & jobs.failed)
    cells.count("submitted", "timed_out", finished & jobs.timed_out)
    cells.count("submitted", "gpus_unknown", np.isnan(jobs.gpus))
    cells.count("submitted", "waits", waited)
    cells.sum("submitted", "wait_ms", wait_ms)
    cells.count("started")
    cells.count("ended")
    _count_present(cells, jobs)
    _sum_held(cells, jobs, held_until, held[2])
    rows, _, length_us = queued
    for name, sizes in (("queued_gpu_ms", jobs.gpus), ("queued_cpu_ms", jobs.cpus)):
        cells.sum("queued", name, _whole(np.nan_to_num(sizes)[rows] * length_us / 1000))
    run_ms = _whole(1000 * np.nan_to_num(jobs.run_s))
    asked = np.isfinite(jobs.limit_s) & ~np.isnan(jobs.run_s) & (jobs.completed | jobs.timed_out | ~jobs.has_state)
    ratio = np.where(asked, jobs.limit_s, 0.0) / np.maximum(np.nan_to_num(jobs.run_s), 1.0)
    known = {"wait": waited, "run_time": ~np.isnan(jobs.run_s), "over_asked": asked}
    return cells.sums(known, {"wait": wait_ms, "run_time": run_ms, "over_asked": _whole(1000 * ratio)})


Parts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Rows of jobs, and the period of each part; -1 outside of all periods."""


class _Periods:
    """Periods between edges."""

    def __init__(self, edges_us: Times) -> None:
        self._edges_us = edges_us

    def of(self, moments_us: Times) -> NDArray[np.int64]:
        """Return the period of each moment, -1 outside of all."""
        period = np.searchsorted(self._edges_us, moments_us, side="right") - 1
        return np.where(period < len(self._edges_us) - 1, period, -1)

    def split(self, begins_us: Times, ends_us: Times) -> tuple[NDArray[np.int64], NDArray[np.int64], Times]:
        """Return row, period and length in µs of each part of an interval."""
        edges = self._edges_us
        begins, ends = np.maximum(begins_us, edges[0]), np.minimum(ends_us, edges[-1])
        rows = np.flatnonzero(ends > begins)
        first = np.searchsorted(edges, begins[rows], side="right") - 1
        n_parts = np.searchsorted(edges, ends[rows], side="left") - first
        rows = np.repeat(rows, n_parts)
        period = np.repeat(first, n_parts) + np.arange(len(rows)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
        return rows, period, np.minimum(ends[rows], edges[period + 1]) - np.maximum(begins[rows], edges[period])


class _Cells:
    """Sums by cell, which is a period and a group.

    Only cells in which a job has a part are there.
    """

    def __init__(self, group: NDArray[np.int64], **parts: Parts) -> None:
        self._n_groups = int(group.max(initial=0)) + 1
        self.rows = {name: rows for name, (rows, _) in parts.items()}
        codes = [np.where(period < 0, -1, period * self._n_groups + group[rows]) for rows, period in parts.values()]
        cell, self._codes = pd.factorize(np.concatenate([[-1], *codes]), sort=True)
        edges = np.cumsum([1, *map(len, codes)])
        # The first of all cells, -1, stands for what is outside.
        self.cell = {name: cell[first:last] for name, first, last in zip(parts, edges, edges[1:], strict=False)}
        self._measures = {name: np.zeros(len(self._codes), dtype=np.int64) for name in MEASURES}

    def count(self, part: str, name: str = "", which: Flags | None = None) -> None:
        """Count parts in their cells, under the name of the part by default."""
        cell = self.cell[part] if which is None else self.cell[part][which]
        self._measures[name or part] += np.bincount(cell, minlength=len(self._codes))

    def sum(self, part: str, name: str, values: NDArray[np.int64], which: Flags | None = None) -> None:
        """Add the values of parts to their cells."""
        cell, values = (self.cell[part], values) if which is None else (self.cell[part][which], values[which])
        np.add.at(self._measures[name], cell, values)

    def sums(self, known: dict[str, Flags], values: dict[str, NDArray[np.int64]]) -> Sums:
        """Return the cells, and the counted values of the jobs submitted in them."""
        submitted = self.cell["submitted"]
        parts = []
        for kind, name in enumerate(DISTRIBUTIONS):
            chosen = known[name] & (submitted > 0)
            cell = submitted[chosen] * len(DISTRIBUTIONS) + kind
            parts.append(np.unique(cell * (LARGEST_BIN + 1) + bin_of(values[name][chosen]), return_counts=True))
        code, count = (np.concatenate(column) for column in zip(*parts, strict=True))
        place = code // (LARGEST_BIN + 1)
        keys = {"period": self._codes // self._n_groups, "group": self._codes % self._n_groups}
        return Sums(
            cells=pd.DataFrame({**keys, **self._measures}).iloc[1:].reset_index(drop=True),
            bins=pd.DataFrame(
                {
                    "cell": place // len(DISTRIBUTIONS) - 1,
                    "kind": place % len(DISTRIBUTIONS),
                    "bin": code % (LARGEST_BIN + 1),
                    "count": count,
                }
            ),
        )


def _whole(values: Floats) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _held_parts(
    jobs: JobArrays, held_until: Times, periods: _Periods
) -> tuple[NDArray[np.int64], NDArray[np.int64], Times]:
    """Return row, period and length in µs of what jobs held."""
    started = jobs.started_us != NEVER_US
    rows, period, length_us = periods.split(np.where(started, jobs.started_us, 0), np.where(started, held_until, 0))
    # Where no start is recorded, the whole run counts in the period of the submission.
    whole = np.flatnonzero(~started & (jobs.run_s > 0))
    return (
        np.concatenate([rows, whole]),
        np.concatenate([period, periods.of(jobs.submitted_us[whole])]),
        np.concatenate([length_us, _whole(1e6 * jobs.run_s[whole])]),
    )


def _queued_parts(
    jobs: JobArrays, able: Times, now_us: int, periods: _Periods
) -> tuple[NDArray[np.int64], NDArray[np.int64], Times]:
    """Return row, period and length in µs of the waits of jobs."""
    until = np.where(jobs.started_us == NEVER_US, jobs.ended_us, jobs.started_us)
    # Nobody waits before the submission, whatever a clock said.
    able = np.maximum(able, jobs.submitted_us - DAY_US)
    return periods.split(able, np.where(until == NEVER_US, np.where(jobs.waits, now_us, 0), until))


def _sum_held(cells: _Cells, jobs: JobArrays, held_until: Times, length_us: Times) -> None:
    rows, held_ms = cells.rows["held"], length_us / 1000
    run_us = np.where(jobs.started_us == NEVER_US, 0, held_until - jobs.started_us)[rows]
    ran_us = 1e6 * jobs.run_s[rows]
    # slurmdbd takes suspensions off CPUs only, because a suspended job keeps its GPUs and memory.
    suspended = ~(jobs.runs & (jobs.ended_us == NEVER_US))[rows] & (ran_us < run_us)
    worked_ms = held_ms * np.divide(ran_us, run_us, out=np.ones(len(rows)), where=suspended)
    gpus, cpus, nodes = (np.nan_to_num(sizes)[rows] for sizes in (jobs.gpus, jobs.cpus, jobs.nodes))
    for name, amount in (("gpu_ms", gpus * held_ms), ("cpu_ms", cpus * worked_ms), ("node_ms", nodes * held_ms)):
        cells.sum("held", name, _whole(amount))
        if name != "node_ms":
            cells.sum("held", f"lost_{name}", _whole(amount), jobs.failed[rows])


def _count_present(cells: _Cells, jobs: JobArrays) -> None:
    # A job that was submitted in a period counts once there, though it also held something in it.
    held = cells.rows["held"]
    later = cells.cell["submitted"][held] != cells.cell["held"]
    known = {"present": None, "with_gpus": ~np.isnan(jobs.gpus), "with_nodes": ~np.isnan(jobs.nodes)}
    for name, which in known.items():
        cells.count("submitted", name, which)
        cells.count("held", name, later if which is None else later & which[held])


def bin_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bin of each value, which is not negative."""
    exponent = np.maximum(np.frexp(values.astype(np.float64))[1] - 1 - _BITS, 0).astype(np.int64)
    bins: NDArray[np.int64] = np.minimum((exponent << _BITS) + (values >> exponent), LARGEST_BIN)
    return bins


def middle_of(bins: NDArray[np.int64]) -> Floats:
    """Return the middle of each bin."""
    exponent = np.maximum((bins >> _BITS) - 1, 0)
    middle: Floats = ((bins - (exponent << _BITS)) + 0.5) * 2.0**exponent - 0.5
    return middle


def bin_quantiles(bins: pd.DataFrame, kind: str, shares: Sequence[float], *, n_cells: int) -> Floats:
    """Return quantiles of counted values in each cell, NaN without any.

    They are interpolated linearly between order statistics, each of which is taken as the middle of its bin.

    Parameters
    ----------
    bins : DataFrame
        As in ``Sums``. Several rows of a bin count together.
    kind : str
        One of ``DISTRIBUTIONS``.

    Returns
    -------
    float64 array of shape (n_shares, n_cells)
        In s, or as a ratio.
    """
    of_kind = bins[(bins["kind"] == DISTRIBUTIONS.index(kind)).to_numpy()]
    cell, number, count = (of_kind[name].to_numpy() for name in ("cell", "bin", "count"))
    order = np.lexsort((number, cell))
    values, last = middle_of(number[order]) / 1000, np.cumsum(count[order])
    total = np.bincount(cell, weights=count, minlength=n_cells).astype(np.int64)
    first = np.cumsum(total) - total
    known = total > 0
    found = np.full((len(shares), n_cells), np.nan)
    for row, share in enumerate(shares):
        place = share * (total[known] - 1)
        below, above = (
            values[np.searchsorted(last, first[known] + rank.astype(np.int64), side="right")]
            for rank in (np.floor(place), np.ceil(place))
        )
        found[row, known] = below + (above - below) * (place - np.floor(place))
    return found
