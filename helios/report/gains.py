"""Who gains and who loses by another order: by size of job, by user, by job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.report.whatif import Run, WhatIf

SAME = 0.02
"""Relative difference of waits below which nothing is called different."""
SAME_S = 1.0
"""Difference below which nobody would notice, s."""
LOSERS, GAINERS = 10, 5
"""Users and jobs that a page names: those who wait longer most, and those who gain most."""
HOUR_S = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The waits of some jobs in one replay, s."""

    mean_s: float
    median_s: float
    p99_s: float
    longest_s: float

    @classmethod
    def of(cls, wait_s: NDArray[np.int64]) -> Waits:
        """Measure; at least one job."""
        return cls(
            mean_s=float(wait_s.mean()),
            median_s=float(np.median(wait_s)),
            p99_s=float(np.percentile(wait_s, 99)),
            longest_s=float(wait_s.max()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What some jobs, as those of a user, gain or lose.

    Attributes
    ----------
    name : str
    jobs : int
    gpu_hours : float
        That they run, GPUs (or CPUs) x hours.
    before, after : Waits
        In the baseline, and in the replay that is compared with it.
    longer : float
        Share of the jobs that wait longer than before.
    """

    name: str
    jobs: int
    gpu_hours: float
    before: Waits
    after: Waits
    longer: float

    @property
    def change_s(self) -> float:
        """How much longer they wait on average, s."""
        return self.after.mean_s - self.before.mean_s

    @property
    def loses(self) -> bool:
        """Whether they wait longer on average, by more than nothing."""
        return self.change_s > noticed_s(self.before.mean_s)

    @property
    def gains(self) -> bool:
        """Whether they wait shorter on average, by more than nothing."""
        return -self.change_s > noticed_s(self.before.mean_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """A job that waits longer: in the baseline, and in the replay that is compared with it, s."""

    job_id: str
    user: str
    partition: str
    gpus: int
    run_time_s: int
    submitted_s: int
    before_s: int
    after_s: int


def by_size(run: Run, result: WhatIf) -> list[Gain]:
    """Compare the waits of each size of job, smallest first; sizes are doubled from class to class."""
    top = np.ceil(np.log2(run.gpus)).astype(np.int64)
    return [_gain(_class_name(int(size)), top == size, run, result.baseline) for size in np.unique(top)]


def by_user(run: Run, result: WhatIf) -> list[Gain]:
    """Compare the waits of each user whose name is known, those who lose most by the mean first; none: no names."""
    names = result.named.users if result.named is not None else ()
    order = np.argsort(run.users, kind="stable")
    codes, first = np.unique(run.users[order], return_index=True)
    groups = np.split(order, first[1:])
    gains = [
        _gain(names[code], rows, run, result.baseline)
        for code, rows in zip(codes.tolist(), groups, strict=True)
        if 0 <= code < len(names)
    ]
    return sorted(gains, key=lambda gain: (-gain.change_s, gain.name))


def named_users(gains: Sequence[Gain]) -> tuple[list[Gain], list[Gain]]:
    """Return those users that a page names: who loses most, and who gains most."""
    return [gain for gain in gains if gain.loses][:LOSERS], [gain for gain in reversed(gains) if gain.gains][:GAINERS]


def losing_jobs(run: Run, result: WhatIf, *, most: int = LOSERS) -> list[Loser]:
    """Return the jobs that wait longer most, the worst first; none: no names, or nobody does."""
    return [] if result.named is None else list(_losers(run, result, most))


def saved_gpu_hours(run: Run, baseline: Run) -> NDArray[np.float64]:
    """Return how many GPU hours of waiting less there were, over all jobs up to each in order of submission.

    A job that asks for G GPUs and waits w hours less saves G w; array of shape (jobs,), falling where jobs lose.
    """
    saved = (baseline.wait_s - run.wait_s) * run.gpus.astype(np.int64)
    return np.cumsum(saved) / HOUR_S


def _losers(run: Run, result: WhatIf, most: int) -> Iterator[Loser]:
    longer_s, named = run.wait_s - result.baseline.wait_s, result.named
    partitions = list(result.partitions)
    for job in np.argsort(-longer_s, kind="stable")[:most].tolist():
        if named is None or longer_s[job] <= SAME_S:
            return
        code, place = int(run.users[job]), int(named.partition[job])
        yield Loser(
            job_id=str(named.job_ids[job]),
            user=named.users[code] if 0 <= code < len(named.users) else "",
            partition=partitions[place] if place < len(partitions) else "",
            gpus=int(run.gpus[job]),
            run_time_s=int(run.ended_s[job] - run.submitted_s[job] - run.wait_s[job]),
            submitted_s=int(run.submitted_s[job]),
            before_s=int(result.baseline.wait_s[job]),
            after_s=int(run.wait_s[job]),
        )


def _gain(name: str, rows: NDArray[np.int64] | NDArray[np.bool_], run: Run, baseline: Run) -> Gain:
    before_s, after_s = baseline.wait_s[rows], run.wait_s[rows]
    ran_s = run.ended_s[rows] - run.submitted_s[rows] - after_s
    return Gain(
        name=name,
        jobs=len(after_s),
        gpu_hours=float((run.gpus[rows] * ran_s.astype(np.float64)).sum()) / HOUR_S,
        before=Waits.of(before_s),
        after=Waits.of(after_s),
        longer=float((after_s - before_s > SAME_S).mean()),
    )


def _class_name(top: int) -> str:
    """Name the sizes above 2 ** (top - 1) and up to 2 ** top."""
    low, high = (2 ** (top - 1) + 1 if top else 1), 2**top
    return str(high) if low >= high else f"{low:,}-{high:,}"


def noticed_s(before_s: float) -> float:
    """Return the difference from which a wait is called another than ``before_s``, s."""
    return max(SAME * before_s, SAME_S)
