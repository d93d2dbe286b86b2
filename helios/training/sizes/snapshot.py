"""A cluster of trainings that change their sizes, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from helios.training.sizes.goodput import Goodput, fit_speed
from helios.training.sizes.model import BatchLimits, Gradient, Measured

NODES, GPUS_PER_NODE = 16, 4
CHANGE_S = 30
"""Seconds that a training stands still when its placement changes."""

Placement = tuple[int, ...]
"""The node of each GPU; GPUs of one node follow each other."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What is known of a training at a decision.

    Attributes
    ----------
    most_gpus : int
        Twice the GPUs it has run on so far, within what the job and its batch allow.
    remaining : float
        Progress to its end, in steps of the smallest batch, by the epochs that its owner states.
    gpu_s : float
        GPU seconds it has had.
    measured : tuple
        Steps that it has taken, sorted; empty before the first.
    gradient : Gradient, optional
        Of the last step.
    """

    name: str
    submit_s: int
    gpus: int
    limits: BatchLimits
    placement: Placement
    most_gpus: int
    restarts: int
    gpu_s: float
    epoch: int
    remaining: float
    measured: Measured
    gradient: Gradient | None

    @property
    def goodput(self) -> Goodput | None:
        """What it would reach on other sizes, missing before the first step."""
        return self.gradient and Goodput(fit_speed(self.measured), self.gradient, self.limits)


@dataclass(frozen=True, slots=True)
class ElasticSnapshot:
    """All that a rule decides from, jobs in the order of submission."""

    now_s: int
    jobs: tuple[TrainingState, ...]
    nodes: int = NODES
    gpus_per_node: int = GPUS_PER_NODE

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * self.gpus_per_node


Decide = Callable[[ElasticSnapshot], Mapping[str, Placement]]
"""Return the placement of each job that is to have GPUs."""
