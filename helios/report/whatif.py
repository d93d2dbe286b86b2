"""What a what-if found: the values that tables, figures, pages and JSON are made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.metrics import QueueSummary
from helios.report.words import unit_of

POLICY_NAMES = {"fifo": "FIFO", "sjf": "SJF", "qssf": "QSSF", "fewest_gpus": "Fewest GPUs", "srtf": "SRTF"}


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
        What EASY plans with; without EASY what the order believes.
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

    @property
    def label(self) -> str:
        """Say in a few words what was replayed: ``QSSF predicted + EASY (limit)``."""
        believed = f" {self.run_times}" if self.run_times else ""
        return f"{POLICY_NAMES.get(self.policy, self.policy)}{believed}{self.backfill_label}"

    @property
    def backfill_label(self) -> str:
        """Say what may pass a blocked head; nothing where nothing may."""
        if self.backfill == "easy":
            return f" + EASY ({self.estimates})"
        return " + skip" if self.backfill == "skip" else ""

    @property
    def is_today(self) -> bool:
        """Whether it is what a Slurm site has today: FIFO with EASY backfill by time limits."""
        return (self.policy, self.backfill, self.estimates) == ("fifo", "easy", "limit")

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
            **self.summary.to_json(),
        }


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
    """

    cluster: str
    partitions: dict[str, int]
    gpus_per_node: int
    resource: str
    window: tuple[datetime, datetime]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]

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
