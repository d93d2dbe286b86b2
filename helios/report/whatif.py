"""What a what-if found: the values that tables, figures, pages and JSON are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.metrics import QueueSummary
from helios.report.words import spoken_duration, unit_of

POLICY_NAMES = {
    "fifo": "FIFO",
    "sjf": "SJF",
    "qssf": "QSSF",
    "balanced": "Balanced",
    "fewest_gpus": "Fewest GPUs",
    "srtf": "SRTF",
    "slurm": "Slurm as set up",
    "slurm_otherwise": "Slurm, other settings",
}
BACKFILL_NAMES = {"none": "", "skip": " + skip", "easy": " + EASY ({})", "nodes": " + nodes ({})"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """One replay.

    Attributes
    ----------
    policy, backfill : str
        As typed: fifo, easy.
    run_times : str, optional
        What the order believes: predicted or true; None where it uses no run times.
    estimates : str, optional
        What backfill plans with; where it does not plan what the order believes.
    options : mapping
        What else the policy was told; lengths in s, None: never.
    bound_s : int, optional
        Who had waited longer went first, at the end of the replay, s; None: nobody did.
    summary : QueueSummary
    submitted_s, started_s, ended_s, wait_s, gpus, users : arrays of shape (jobs,)
        Each job's own figures; ``users`` are codes, -1 unknown.
    """

    policy: str
    run_times: str | None
    estimates: str | None
    backfill: str
    summary: QueueSummary
    submitted_s: NDArray[np.int64]
    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    wait_s: NDArray[np.int64]
    gpus: NDArray[np.int32]
    users: NDArray[np.int64]
    options: Mapping[str, float | None] = field(default_factory=dict)
    bound_s: int | None = None

    @property
    def label(self) -> str:
        """Say in a few words what was replayed: ``QSSF predicted + EASY (limit)``."""
        return label_of(
            policy=self.policy,
            run_times=self.run_times,
            backfill=self.backfill,
            estimates=self.estimates,
            options=self.options,
        )

    @property
    def is_today(self) -> bool:
        """Whether it is what a Slurm site has today: its own Slurm, else FIFO with EASY backfill by time limits."""
        parts = (self.policy, self.backfill, self.estimates, dict(self.options))
        return self.policy == "slurm" or parts == ("fifo", "easy", "limit", {})

    @property
    def is_oracle(self) -> bool:
        """Whether it knows what nobody can: true run times."""
        return "true" in (self.run_times, self.estimates)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "policy": self.policy,
            "run_times": self.run_times,
            "estimates": self.estimates,
            "backfill": self.backfill,
            **({"options": dict(self.options)} if self.options else {}),
            **({} if self.bound_s is None else {"bound_s": self.bound_s}),
            **self.summary.to_json(),
        }


def label_of(
    *,
    policy: str,
    run_times: str | None,
    backfill: str,
    estimates: str | None,
    options: Mapping[str, float | None] | None = None,
) -> str:
    """Name a replay in a few words; the parts are those of a :class:`Run`."""
    believed = f" {run_times}" if run_times else ""
    told = "".join(f", {_told(name, value)}" for name, value in (options or {}).items())
    return f"{POLICY_NAMES.get(policy, policy)}{believed}{BACKFILL_NAMES[backfill].format(estimates)}{told}"


def _told(name: str, value: float | None) -> str:
    """Write an option as ``share 0.9`` or ``least 3 h``."""
    if value is None:
        return f"{name.removesuffix('_s')} never"
    return f"{name.removesuffix('_s')} {spoken_duration(value)}" if name.endswith("_s") else f"{name} {value:g}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Named:
    """What the jobs of a what-if are called; every replay has the same jobs in the same order.

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
    named : Named, optional
        The jobs, users and partitions by name; None: they are not told.
    """

    cluster: str
    partitions: dict[str, int]
    gpus_per_node: int
    resource: str
    window: tuple[datetime, datetime]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    named: Named | None = None

    @property
    def baseline(self) -> Run:
        """What a Slurm site has today, where it was replayed; else the first run."""
        return next((run for run in self.runs if run.is_today), self.runs[0])

    @property
    def feasible(self) -> list[Run]:
        """The other replays of what can be had, in the order asked for."""
        return [run for run in self.runs if run is not self.baseline and not run.is_oracle]

    @property
    def oracles(self) -> list[Run]:
        """The other replays, which know the true run times: bounds, not proposals."""
        return [run for run in self.runs if run is not self.baseline and run.is_oracle]

    @property
    def reference(self) -> str:
        """How a sentence names the baseline: ``today``, or the first replay's label."""
        return "today" if self.baseline.is_today else self.baseline.label

    @property
    def unit(self) -> str:
        """What jobs hold, as a person writes it: ``GPU`` or ``CPU``."""
        return unit_of(self.resource)

    @property
    def size(self) -> str:
        """Say how large the cluster is: ``133 nodes of 8 GPUs``."""
        nodes, of = sum(self.partitions.values()), self.gpus_per_node
        return f"{nodes:,} node{'' if nodes == 1 else 's'} of {of:,} {self.unit}{'' if of == 1 else 's'}"

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
            "from": first.isoformat(),
            "to": last.isoformat(),
            "notes": list(self.notes),
            "runs": [run.to_json() for run in self.runs],
        }
