"""Results of a what-if."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.metrics.capacity import ClusterCapacity
from helios.metrics.queue import QueueSummary
from helios.model import UNKNOWN_NODE, NodeSizes, Sizes, size_class
from helios.report.verdict import (
    NOBODY_WAITS,
    PLAIN,
    SINGLE_REPLAY,
    OrderVerdict,
    RecordedWaits,
    compare_recorded,
)
from helios.units import best_unit, count_in_words, duration_in_words

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
SAME_S = 1.0
"""Difference below which nobody would notice, s."""
PROPOSALS = ("qssf", "service", "sjf")
"""Policies that Helios can run live, the first that was replayed; other replays are controls."""


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
