"""Gains and losses by another order, by size, user and job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from helios.model import SIZE_NAMES
from helios.report.whatif import SAME_S, Run, WhatIf
from helios.units import HOUR_S, as_count, change, duration_in_words

SAME = 0.02
"""Relative difference of waits below which nothing is called different."""
LOSERS, GAINERS = 10, 5
"""Users and jobs that a page names: those who wait longer most, and those who gain most."""


class SizedWaits(Protocol):
    """Waits of one replay or record, as ``QueueSummary`` has them."""

    @property
    def mean_wait_s_by_size(self) -> Mapping[str, float | None]:
        """Mean wait of each of ``SIZE_CLASSES``.

        None without such a job.
        """
        ...

    @property
    def max_wait_s(self) -> float:
        """Longest wait."""
        ...


def compare_sizes(before: SizedWaits, after: SizedWaits) -> str:
    """Compare the waits of each size of job, and the longest.

    It stands wherever a gain in the mean wait is told of, because a mean hides who pays for it.
    """
    old, new = before.mean_wait_s_by_size, after.mean_wait_s_by_size
    sizes = [
        f"{name} {_instead(old_s, new_s)}"
        for size, name in SIZE_NAMES.items()
        if (old_s := old[size]) is not None and (new_s := new[size]) is not None
    ]
    return f"Mean wait by size: {'; '.join(sizes)}. Longest wait: {_instead(before.max_wait_s, after.max_wait_s)}."


def _instead(old_s: float, new_s: float) -> str:
    old, new = duration_in_words(old_s), duration_in_words(new_s)
    return f"{new} instead of {old} ({change(new_s, old_s)})" if new != old and old_s else f"{new}, as before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The waits of some jobs in one replay, s."""

    mean_s: float
    median_s: float
    p99_s: float
    longest_s: float

    @classmethod
    def of(cls, wait_s: NDArray[np.int64]) -> Waits:
        """Summarize the waits of at least one job."""
        return cls(
            mean_s=float(wait_s.mean()),
            median_s=float(np.median(wait_s)),
            p99_s=float(np.percentile(wait_s, 99)),
            longest_s=float(wait_s.max()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGain:
    """What some jobs, as those of a user, gain or lose.

    Attributes
    ----------
    name : str
    jobs : int
    gpu_hours : float
        Size x run time of the jobs, in GPU or CPU hours.
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
        """Whether they wait noticeably longer on average."""
        return self.change_s > noticed_s(self.before.mean_s)

    @property
    def gains(self) -> bool:
        """Whether they wait noticeably shorter on average."""
        return -self.change_s > noticed_s(self.before.mean_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LosingJob:
    """A job that waits longer than in the baseline.

    ``before_s`` is its wait in the baseline, ``after_s`` in the replay compared with it.
    """

    job_id: str
    user: str
    partition: str
    gpus: float
    run_time_s: int
    submitted_s: int
    before_s: int
    after_s: int


def by_size(run: Run, result: WhatIf) -> list[GroupGain]:
    """Compare the waits of each size of job, smallest first.

    Sizes double from class to class, from parts of one on.
    """
    top = np.ceil(np.log2(np.maximum(run.gpus, 0.5))).astype(np.int64)
    top[run.gpus < 1] = -1
    gains = []
    for size in np.unique(top).tolist():
        low, high = (2 ** (size - 1) + 1 if size > 0 else 1), 2 ** max(size, 0)
        name = "<1" if size < 0 else str(high) if low >= high else f"{low:,}-{high:,}"
        gains.append(_gain(name, top == size, run, result.baseline))
    return gains


def by_user(run: Run, result: WhatIf) -> list[GroupGain]:
    """Compare the waits of each user whose name is known.

    The largest growth of the mean wait first. Empty where no names are known.
    """
    names = result.named.users if result.named is not None else ()
    order = np.argsort(run.users, kind="stable")
    codes, first = np.unique(run.users[order], return_index=True)
    groups = zip(codes.tolist(), np.split(order, first[1:]), strict=True)
    gains = [_gain(names[code], rows, run, result.baseline) for code, rows in groups if 0 <= code < len(names)]
    return sorted(gains, key=lambda gain: (-gain.change_s, gain.name))


def biggest_users(gains: Sequence[GroupGain]) -> tuple[list[GroupGain], list[GroupGain]]:
    """Return the users that a page names.

    They are those who lose most, and those who gain most.
    """
    return [gain for gain in gains if gain.loses][:LOSERS], [gain for gain in reversed(gains) if gain.gains][:GAINERS]


def losing_jobs(run: Run, result: WhatIf) -> list[LosingJob]:
    """Return the jobs whose wait grows most, the worst first.

    Empty where no names are known, or no job waits longer.
    """
    named, baseline = result.named, result.baseline
    if named is None:
        return []
    longer_s, partitions = run.wait_s - baseline.wait_s, list(result.partitions)
    worst = [job for job in np.argsort(-longer_s, kind="stable")[:LOSERS].tolist() if longer_s[job] > SAME_S]
    return [
        LosingJob(
            job_id=str(named.job_ids[job]),
            user=named.users[run.users[job]] if 0 <= run.users[job] < len(named.users) else "",
            partition=partitions[named.partition[job]],
            gpus=as_count(float(run.gpus[job])),
            run_time_s=int(run.ended_s[job] - run.submitted_s[job] - run.wait_s[job]),
            submitted_s=int(run.submitted_s[job]),
            before_s=int(baseline.wait_s[job]),
            after_s=int(run.wait_s[job]),
        )
        for job in worst
    ]


def saved_gpu_hours(run: Run, baseline: Run) -> NDArray[np.float64]:
    """Return the GPU hours of waiting saved so far, job by job.

    Over all jobs up to each one, in order of submission.

    A job that asks for G GPUs and waits w hours less saves G w; array of shape (jobs,), falling where jobs lose.
    """
    saved = (baseline.wait_s - run.wait_s) * run.gpus
    return np.cumsum(saved) / HOUR_S


def _gain(name: str, rows: NDArray[np.int64] | NDArray[np.bool_], run: Run, baseline: Run) -> GroupGain:
    before_s, after_s = baseline.wait_s[rows], run.wait_s[rows]
    ran_s = run.ended_s[rows] - run.submitted_s[rows] - after_s
    return GroupGain(
        name=name,
        jobs=len(after_s),
        gpu_hours=float((run.gpus[rows] * ran_s.astype(np.float64)).sum()) / HOUR_S,
        before=Waits.of(before_s),
        after=Waits.of(after_s),
        longer=float((after_s - before_s > SAME_S).mean()),
    )


def noticed_s(before_s: float) -> float:
    """Return the smallest noticeable difference from a wait, s."""
    return max(SAME * before_s, SAME_S)
