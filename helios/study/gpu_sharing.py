"""What sharing GPUs would have saved of recorded jobs of one GPU.

Each job goes, when it starts, to the fullest GPU where the predicted memories fit and the predicted use sums below
100 %; otherwise it opens another. What it did is judged with what was measured: an overflow is a moment at which the
peaks of memory do not fit, and jobs slow down where their use sums above 100 %. Two published sets of measured pairs
are the ends: Lucid's (ASPLOS'23), which hardly slow each other, and Gavel's on a V100 (OSDI'20), which do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

FULL = 100.0
"""Utilization that a GPU has, %."""
LOOKED_AT = 20
"""GPUs that are looked at for a job, the fullest with enough memory."""
SLOWDOWNS = ("by_use", "mild", "harsh")
PAIR_GAINS = (2.0, 1.87, 1.31)
"""Sum of the speeds of two on a GPU, as measured for each of ``SLOWDOWNS``; with 2 they slow each other by use only."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneGpuJobs:
    """Jobs of one GPU, with what was predicted and measured of each.

    Attributes
    ----------
    started_s, ended_s : int64 arrays of shape (n_jobs,)
        The part of the run that counts.
    group : int64 array of shape (n_jobs,)
        Jobs of a group may share a GPU, such as those of a partition and type of GPU; -1 for a job that may not.
    predicted_mib, predicted_use : float64 arrays of shape (n_jobs,)
        Memory that it will hardly exceed, and mean utilization, %.
    memory_mib, utilization : float64 arrays of shape (n_jobs,)
        The measured peak, and mean utilization, %.
    gpu_mib : float64 array of shape (n_jobs,)
        Memory of the GPU.
    """

    started_s: Codes
    ended_s: Codes
    group: Codes
    predicted_mib: Floats
    predicted_use: Floats
    memory_mib: Floats
    utilization: Floats
    gpu_mib: Floats

    @property
    def may_share(self) -> NDArray[np.bool_]:
        """Whether all is known of a job that sharing needs, and it fits a GPU."""
        needed = (self.predicted_mib, self.predicted_use, self.memory_mib, self.utilization, self.gpu_mib)
        known = ~np.isnan(np.array(needed)).any(axis=0)
        found: NDArray[np.bool_] = known & (self.group >= 0) & (self.ended_s > self.started_s)
        return found & (self.predicted_mib < self.gpu_mib) & (self.predicted_use < FULL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedGpus:
    """What became of each job.

    Attributes
    ----------
    shared_s : float64 array of shape (n_jobs,)
        How long others were on its GPU, s.
    did_overflow : bool array of shape (n_jobs,)
        Whether peaks of memory did not fit while it shared.
    taken_s : float64 array of shape (n_jobs, 3)
        Its run time, by ``SLOWDOWNS``, s.
    gpu_s : float64 array of shape (n_jobs, 3)
        Its share of the time of GPUs, by ``SLOWDOWNS``, s.
    """

    shared_s: Floats
    did_overflow: NDArray[np.bool_]
    taken_s: Floats
    gpu_s: Floats


class _Gpu:
    """A GPU with the jobs on it.

    ``place`` is its entry among the open GPUs of its group: free predicted memory, and its number. ``use`` is the
    predicted use of its jobs.
    """

    __slots__ = ("jobs", "number", "place", "since_s", "use")

    def __init__(self, number: int, since_s: int) -> None:
        self.number, self.since_s = number, since_s
        self.jobs: list[int] = []
        self.use = 0.0
        self.place: tuple[float, int] | None = None


def share_gpus(jobs: OneGpuJobs, *, most: int) -> SharedGpus:
    """Put jobs of one GPU together as they start.

    Parameters
    ----------
    most : int
        Most jobs on a GPU.

    Returns
    -------
    SharedGpus
        A job that may not share has its GPU alone.
    """
    sweep = _Sweep(jobs, most)
    chosen = np.flatnonzero(jobs.may_share)
    for job in chosen[np.argsort(jobs.started_s[chosen], kind="stable")].tolist():
        sweep.start(job)
    sweep.end_until(None)
    alone = (jobs.ended_s - jobs.started_s).astype(np.float64)[:, None]
    return SharedGpus(
        shared_s=sweep.shared_s,
        did_overflow=sweep.did_overflow,
        taken_s=alone + sweep.longer_s,
        gpu_s=alone - sweep.saved_s,
    )


class _Sweep:
    """State of a sweep over starts and ends."""

    def __init__(self, jobs: OneGpuJobs, most: int) -> None:
        n = len(jobs.started_s)
        self._most = most
        # Plain lists are several times as fast as arrays where single numbers are read.
        self._started_s, self._ended_s, self._group = (
            values.tolist() for values in (jobs.started_s, jobs.ended_s, jobs.group)
        )
        self._predicted = list(zip(jobs.predicted_mib.tolist(), jobs.predicted_use.tolist(), strict=True))
        self._measured = list(zip(jobs.memory_mib.tolist(), jobs.utilization.tolist(), strict=True))
        self._gpu_mib = jobs.gpu_mib.tolist()
        self._open: dict[int, list[tuple[float, int]]] = {}
        self._gpus: dict[int, _Gpu] = {}
        self._ends: list[tuple[int, int, int]] = []
        self.shared_s, self.did_overflow = np.zeros(n), np.zeros(n, dtype=np.bool_)
        self.longer_s, self.saved_s = np.zeros((n, len(SLOWDOWNS))), np.zeros((n, len(SLOWDOWNS)))

    def start(self, job: int) -> None:
        """Put a job on the fullest GPU where it fits, or on another one."""
        now_s = self._started_s[job]
        self.end_until(now_s)
        gpu = self._fullest_that_fits(job)
        if gpu is None:
            gpu = self._gpus[job] = _Gpu(job, now_s)
        self._change(gpu, now_s, [*gpu.jobs, job])
        heappush(self._ends, (self._ended_s[job], job, gpu.number))

    def end_until(self, now_s: int | None) -> None:
        """End the jobs that end by a moment, all where none is given."""
        while self._ends and (now_s is None or self._ends[0][0] <= now_s):
            ended_s, job, number = heappop(self._ends)
            gpu = self._gpus[number]
            self._change(gpu, ended_s, [one for one in gpu.jobs if one != job])
            if not gpu.jobs:
                del self._gpus[number]

    def _fullest_that_fits(self, job: int) -> _Gpu | None:
        need_mib, use = self._predicted[job]
        places = self._open.get(self._group[job], [])
        first = bisect_left(places, (need_mib, -1))
        for _, number in places[first : first + LOOKED_AT]:
            gpu = self._gpus[number]
            if use + gpu.use < FULL:
                return gpu
        return None

    def _change(self, gpu: _Gpu, now_s: int, jobs: list[int]) -> None:
        self._account(gpu, now_s)
        places = self._open.setdefault(self._group[gpu.number], [])
        if gpu.place is not None:
            del places[bisect_left(places, gpu.place)]
        gpu.jobs, gpu.since_s, gpu.place = jobs, now_s, None
        gpu.use = sum(self._predicted[one][1] for one in jobs)
        if gpu.jobs and len(gpu.jobs) < self._most:
            held_mib = sum(self._predicted[one][0] for one in gpu.jobs)
            gpu.place = (min(self._gpu_mib[one] for one in gpu.jobs) - held_mib, gpu.number)
            insort(places, gpu.place)

    def _account(self, gpu: _Gpu, now_s: int) -> None:
        """Count the time since the jobs of a GPU last changed."""
        together, lasted_s = len(gpu.jobs), now_s - gpu.since_s
        if together < 2 or not lasted_s:
            return
        held_mib = sum(self._measured[one][0] for one in gpu.jobs)
        use = sum(self._measured[one][1] for one in gpu.jobs)
        overflows = held_mib > min(self._gpu_mib[one] for one in gpu.jobs)
        slowdown = [max(use / FULL, 1 + (together - 1) * (2 / gain - 1)) for gain in PAIR_GAINS]
        for job in gpu.jobs:
            self.shared_s[job] += lasted_s
            self.did_overflow[job] |= overflows
            for way, times in enumerate(slowdown):
                self.longer_s[job, way] += lasted_s * (times - 1)
                self.saved_s[job, way] += lasted_s * (1 - times / together)
