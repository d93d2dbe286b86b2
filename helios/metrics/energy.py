"""Energy of nodes by a stated linear model.

The same functions serve real, simulated and imagined node hours. A node awake draws ``node_idle_w``, and each GPU or
CPU that a job holds adds to it; a node asleep draws ``node_sleep_w``, one on the way ``boot_w``; the building draws
``cooling_factor`` times all of it. More cannot be known from states alone; a site that has measured its nodes writes
its own figures in the configuration.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from helios.config import Energy

J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeconds:
    """How long nodes were in each state, summed over nodes, s.

    Attributes
    ----------
    busy, idle : float
        Awake, with a job and without.
    asleep, falling_asleep, waking : float
        Not able to run a job at once.
    gpus_busy, cpus_busy : float
        GPUs and CPUs held by jobs, times the time they were, s.
    """

    busy: float = 0.0
    idle: float = 0.0
    asleep: float = 0.0
    falling_asleep: float = 0.0
    waking: float = 0.0
    gpus_busy: float = 0.0
    cpus_busy: float = 0.0

    def __add__(self, other: NodeSeconds) -> NodeSeconds:
        return NodeSeconds(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(NodeSeconds)}
        )

    def __sub__(self, other: NodeSeconds) -> NodeSeconds:
        return NodeSeconds(
            **{field.name: getattr(self, field.name) - getattr(other, field.name) for field in fields(NodeSeconds)}
        )

    @property
    def powered(self) -> float:
        """Node seconds that were not spent asleep."""
        return self.busy + self.idle + self.falling_asleep + self.waking

    @property
    def utilization(self) -> float:
        """Busy node seconds over powered ones, the node utilisation of CES.

        NaN where none was powered.
        """
        return self.busy / self.powered if self.powered else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def energy_kwh(seconds: NodeSeconds, model: Energy) -> float:
    """Return the energy of the building for node seconds, kWh."""
    awake_j = (seconds.busy + seconds.idle) * model.node_idle_w
    load_j = seconds.gpus_busy * model.gpu_busy_w + seconds.cpus_busy * model.cpu_busy_w
    rest_j = seconds.asleep * model.node_sleep_w + (seconds.falling_asleep + seconds.waking) * model.boot_w
    return (awake_j + load_j + rest_j) * model.cooling_factor / J_PER_KWH


def payback_s(model: Energy) -> float:
    """Return the shortest sleep of a node that saves energy, s.

    It is compared with a node that stays awake. The result is inf where no sleep saves energy.
    """
    saved_w = model.node_idle_w - model.node_sleep_w
    extra_j = (model.boot_s + model.shutdown_s) * max(model.boot_w - model.node_idle_w, 0.0)
    return extra_j / saved_w if saved_w > 0 else float("inf")
