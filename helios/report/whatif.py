"""Results of a what-if."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from helios.metrics.capacity import ClusterCapacity
from helios.metrics.queue import QueueSummary
from helios.model import SIZE_NAMES, UNKNOWN_NODE, NodeSizes, Sizes, size_class
from helios.report.verdict import (
    NOBODY_WAITS,
    PLAIN,
    SINGLE_REPLAY,
    OrderVerdict,
    RecordedWaits,
    compare_recorded,
)
from helios.units import as_count, best_unit, change, count_in_words, duration_in_words

POLICY_NAMES = {
    "fifo": "FIFO",
    "sjf": "SJF",
    "qssf": "QSSF",
    "service": "GPUs x median",
    "mean_service": "GPUs x mean",
    "fewest_gpus": "Fewest GPUs",
    "srtf": "SRTF",
    "slurm": "Slurm as set up",
    "slurm_otherwise": "Slurm, other settings",
}
BACKFILL_NAMES = {"none": "", "skip": " + skip", "easy": " + EASY ({})", "nodes": " + nodes ({})"}
SAME = 0.02
"""Relative difference of waits below which nothing is called different."""
SAME_S = 1.0
"""Difference below which nobody would notice, s."""
PROPOSALS = ("qssf", "service", "sjf")
"""Policies that Helios can run live, the first that was replayed; other replays are controls."""
LOSERS, GAINERS = 10, 5
"""Users and jobs that a page names: those who wait longer most, and those who gain most."""
HOUR_S = 3_600


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One replay.

    Attributes
    ----------
    policy, backfill : str
        As typed: fifo, easy.
    run_times : str, optional
        Run times that the order uses: predicted or true. None where it uses none.
    estimates : str, optional
        Run times that backfill plans with; without backfill those of the order.
    options : mapping
        Other options of the policy; lengths in s, None: never.
    bound_s : int, optional
        Wait beyond which a job went first, at the end of the replay, s. None where there was no bound.
    unit : str
        ``GPU`` or ``CPU``: of what the sizes of jobs are.
    node : int, or int64 array of shape (jobs,)
        GPUs of a node, as in :func:`helios.model.size_class`.
    summary : QueueSummary
    submitted_s, started_s, ended_s, wait_s, gpus, users : arrays of shape (jobs,)
        Each job's own figures; ``users`` are codes, -1 unknown.
    """

    policy: str
    run_times: str | None = None
    estimates: str | None = None
    backfill: str
    summary: QueueSummary
    submitted_s: NDArray[np.int64]
    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    wait_s: NDArray[np.int64]
    gpus: Sizes
    users: NDArray[np.int64]
    options: Mapping[str, float | None] = field(default_factory=dict)
    bound_s: int | None = None
    unit: str = "GPU"
    node: NodeSizes = UNKNOWN_NODE

    @property
    def size_class(self) -> NDArray[np.int64]:
        """Size class of each job, an index into ``SIZE_CLASSES``."""
        return size_class(self.gpus, self.node)

    @property
    def label(self) -> str:
        """Short name, as ``QSSF predicted + EASY (limit)``."""
        return scenario_label(
            policy=self.policy,
            run_times=self.run_times,
            backfill=self.backfill,
            estimates=self.estimates,
            options=self.options,
            unit=self.unit,
        )

    @property
    def is_own_order(self) -> bool:
        """Whether it is what the site has today, by its own slurm.conf."""
        return self.policy == "slurm"

    @property
    def is_plain(self) -> bool:
        """Whether it is plain FIFO with EASY backfill by time limits.

        Few sites have that alone: priorities, limits and reservations are missing.
        """
        parts = (self.policy, self.backfill, self.estimates, dict(self.options))
        return parts == ("fifo", "easy", "limit", {})

    @property
    def is_oracle(self) -> bool:
        """Whether it uses true run times, which nobody can know."""
        return "true" in (self.run_times, self.estimates)

    @property
    def is_live_default(self) -> bool:
        """Whether it is what Helios does live by default."""
        parts = (self.policy, self.run_times, self.backfill, self.estimates, dict(self.options))
        return parts == ("qssf", "predicted", "easy", "limit", {})

    @property
    def is_possible_live(self) -> bool:
        """Whether a live Slurm can do it.

        Its backfill plans with time limits, not with predictions, and nobody knows true run times.
        """
        return not self.is_oracle and not (
            self.backfill in {"easy", "nodes"} and self.estimates in {"predicted", "expected"}
        )

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "possible_live": self.is_possible_live,
            **{name: getattr(self, name) for name in ("policy", "run_times", "estimates", "backfill")},
            **({"options": dict(self.options)} if self.options else {}),
            **({} if self.bound_s is None else {"bound_s": self.bound_s}),
            **self.summary.to_json(),
        }


def scenario_label(
    *,
    policy: str,
    run_times: str | None,
    backfill: str,
    estimates: str | None,
    options: Mapping[str, float | None] | None = None,
    unit: str = "GPU",
) -> str:
    """Return the short name of a replay.

    The parts are those of a :class:`Run`.
    """
    order = POLICY_NAMES.get(policy, policy).replace("GPU", unit)
    by = f" {run_times}" if run_times else ""
    written_options = ""
    for name, value in (options or {}).items():
        written = "never" if value is None else duration_in_words(value) if name.endswith("_s") else f"{value:g}"
        written_options += f", {name.removesuffix('_s')} {written}"
    return f"{order}{by}{BACKFILL_NAMES[backfill].format(estimates)}{written_options}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobNames:
    """Ids and names of the jobs, partitions and users of a what-if.

    Every replay has the same jobs in the same order.

    Attributes
    ----------
    job_ids : object array of shape (jobs,)
        The site's ids.
    partition : int array of shape (jobs,)
        Each job's place among :attr:`WhatIf.partitions`.
    users : tuple of str
        Names of the codes in :attr:`Run.users`.
    """

    job_ids: NDArray[np.object_]
    partition: NDArray[np.int32]
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIf:
    """Replays of one window of one cluster's history.

    Attributes
    ----------
    partitions : dict of int
        Nodes of each partition.
    resource : str
        ``gpus`` or ``cpus``.
    window : pair of datetime
        First and last submission that count.
    notes : tuple of str
        What was assumed.
    named : JobNames, optional
        The jobs, users and partitions by name. None where not given.
    verdict : OrderVerdict, optional
        On the live order, over draws. None where there is only this one replay.
    recorded_wait_s : float array of shape (jobs,), optional
        Recorded wait of each job, s, NaN where unknown.
    capacity : ClusterCapacity, optional
        Size of the cluster, and how it is known. None where no command asked for it.
    interrupted : bool
        Whether a person stopped it before all replays were made.
    """

    cluster: str
    partitions: dict[str, int]
    gpus_per_node: int
    resource: str
    window: tuple[datetime, datetime]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    named: JobNames | None = None
    verdict: OrderVerdict | None = None
    recorded_wait_s: NDArray[np.float64] | None = None
    capacity: ClusterCapacity | None = None
    interrupted: bool = False

    def label_in_table(self, run: Run) -> str:
        """Return the label of a replay with its marks."""
        marks = {" (today)": run.is_own_order, " (plain)": run.is_plain}
        return run.label + "".join(mark for mark, holds in marks.items() if holds)

    @property
    def baseline(self) -> Run:
        """The replay that the others are compared with."""
        today = [run for run in self.runs if run.is_own_order]
        plain = [run for run in self.runs if run.is_plain]
        return [*today, *plain, *self.runs][0]

    @property
    def feasible(self) -> list[Run]:
        """The other replays of what a live Slurm can do."""
        return [run for run in self.runs if run is not self.baseline and run.is_possible_live]

    @property
    def impossible(self) -> list[Run]:
        """The replays that no live Slurm can do.

        Their backfill plans with predictions.
        """
        return [run for run in self.runs if run is not self.baseline and not run.is_possible_live and not run.is_oracle]

    @property
    def oracles(self) -> list[Run]:
        """The other replays, which know the true run times.

        They are bounds, not proposals.
        """
        return [run for run in self.runs if run is not self.baseline and run.is_oracle]

    @property
    def reference(self) -> str:
        """Name of the baseline within a sentence.

        ``today``, ``plain FIFO + EASY``, or the first replay's label.
        """
        if self.baseline.is_own_order:
            return "today"
        return PLAIN if self.baseline.is_plain else self.baseline.label

    @property
    def recorded(self) -> RecordedWaits | None:
        """Recorded waits beside those of plain FIFO + EASY.

        None where too few starts are known, or it was not replayed.
        """
        if self.verdict is not None:
            return self.verdict.recorded
        return compare_recorded(self.recorded_wait_s, self.baseline.wait_s) if self.baseline.is_plain else None

    @property
    def has_no_waits(self) -> bool:
        """Whether waits are too short in every replay to be compared."""
        return max(run.summary.mean_wait_s for run in self.runs) < SAME_S

    def headline(self) -> list[str]:
        """Return the verdict on the live order, and the recorded wait."""
        if self.verdict is not None:
            return self.verdict.sentences()
        recorded = [] if self.recorded is None else self.recorded.sentences()
        return [NOBODY_WAITS if self.has_no_waits else SINGLE_REPLAY, *recorded]

    @property
    def proposal(self) -> Run | None:
        """The replay that a page compares with the baseline.

        It is what Helios does live by default. If that was not replayed, it is the replay with the smallest mean wait:
        of the first of ``PROPOSALS`` that was replayed, or else of all feasible replays. None where only the baseline
        is feasible.
        """
        chosen = [run for run in self.feasible if run.is_live_default]
        for policy in PROPOSALS:
            chosen = chosen or [run for run in self.feasible if run.policy == policy]
        return min(chosen or self.feasible, key=lambda run: run.summary.mean_wait_s, default=None)

    @property
    def unit(self) -> str:
        """Name of the resource that jobs hold, ``GPU`` or ``CPU``."""
        return best_unit(self.resource)

    @property
    def size(self) -> str:
        """Size of the cluster in words, as ``133 nodes of 8 GPUs``."""
        nodes, gpus = sum(self.partitions.values()), self.gpus_per_node
        return f"{nodes:,} node{'' if nodes == 1 else 's'} of {count_in_words(gpus, self.unit)}"

    @property
    def total_gpus(self) -> int:
        """GPUs (or CPUs) of the whole cluster."""
        return self.gpus_per_node * sum(self.partitions.values())

    def to_json(self) -> dict[str, Any]:
        """Return everything but the jobs themselves as plain values."""
        first, last = self.window
        return {
            "cluster": self.cluster,
            "nodes": self.partitions,
            "gpus_per_node": self.gpus_per_node,
            "resource": self.resource,
            "capacity": None if self.capacity is None else self.capacity.to_json(),
            "from": first.isoformat(),
            "to": last.isoformat(),
            "notes": list(self.notes),
            "recorded_wait": None if self.recorded is None else self.recorded.to_json(),
            "verdict": None if self.verdict is None else self.verdict.to_json(),
            "runs": [run.to_json() for run in self.runs],
        }


# Who gains and who loses by another order: by size of job, by user, by job.


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
