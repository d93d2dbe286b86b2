"""Trainings that may change their sizes, and the devices for them, as rules see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from helios.training.sizes.model import ElasticState

Placement = tuple[int, ...]
"""The node of each GPU; GPUs of one node follow each other."""


@dataclass(frozen=True, slots=True)
class ElasticTraining:
    """A training at a decision.

    Attributes
    ----------
    name : int
        Unique.
    weight : float
        Importance, relative to other trainings.
    """

    name: int
    placement: Placement
    state: ElasticState
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ElasticSnapshot:
    """All that a rule decides from.

    Attributes
    ----------
    jobs : tuple of ElasticTraining
        In the order of submission.
    nodes : tuple of int
        GPUs of each node that may be given to them.
    """

    now_s: float
    jobs: tuple[ElasticTraining, ...]
    nodes: tuple[int, ...]

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the largest node."""
        return max(self.nodes, default=1)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(self.nodes)


Decide = Callable[[ElasticSnapshot], Mapping[int, Placement]]
"""Return the placement of each job that is to have GPUs."""
