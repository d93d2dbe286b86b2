"""What attempts of trials used, as the warehouse keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """Speed of an attempt in one group.

    Attributes
    ----------
    beside : tuple of str
        Families of the others on its devices, sorted. Empty where it is alone.
    steps_per_s : float
    seconds : float
        How long it was measured, s.
    """

    beside: tuple[str, ...]
    steps_per_s: float
    seconds: float


class CurvePoint(NamedTuple):
    """Value of a metric at a step of a trial.

    Attributes
    ----------
    step : int
    seconds : float
        Time that the trial had run until then, in all its attempts, s. Pauses, and time in which it was held back, do
        not count.
    value : float, optional
        None where it was not a finite number.
    """

    step: int
    seconds: float
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """A finished attempt of a trial, with its use.

    Attributes
    ----------
    pool : str
        Identity of the pool.
    number, attempt : int
        Number of the trial in its pool, and of the attempt, from 1.
    program, family : str
        What runs, and which trials are expected to behave alike.
    parameters : mapping
    device_kind, device_model : str
        Kind and model, as in :class:`helios.training.model.Device`.
    outcome : str
        ``finished``, ``stopped`` (as finished, before its end), ``diverged``, ``pruned``, ``failed``,
        ``out_of_memory``, ``killed``, ``paused`` or ``interrupted``.
    started_s, seconds : float
        When it began, s since the epoch, and how long it took, s, without the time in which it was held back for others
        that had a share of its device.
    start_up_s : float, optional
        Until its first report, s.
    progress : float, optional
        Share of the trial that was done at its end.
    peak_memory_mib, memory_limit_mib : float, optional
    utilization : float, optional
        Mean share of its devices' time that it used; of a shared GPU that of all on it.
    energy_j : float, optional
        Energy of its devices, in parts by the time for which those on each ran, J.
    speeds : tuple of MeasuredSpeed
    metrics : mapping
        Last values that it reported.
    placement : tuple of int
        How many devices of each node it ran on, most first. Memory is that on one of them.
    metric, direction : str
        Metric that the pool compares trials by, and ``maximize`` or ``minimize``. Empty where there is none.
    curve : tuple of CurvePoint
        This metric by step from the trial's beginning to the end of this attempt, at most 200 points. Reports without
        a step are not in it.
    sizes : mapping
        What a trial that may change its size has shown, as plain values of
        :func:`helios.training.pool.elastic_state.describe_shown`. Empty for others.
    user : str
        Who stored it in the warehouse. Empty elsewhere.
    """

    pool: str
    number: int
    attempt: int
    program: str
    family: str
    parameters: Mapping[str, Any]
    device_kind: str
    device_model: str = ""
    outcome: str
    started_s: float
    seconds: float
    start_up_s: float | None = None
    progress: float | None = None
    peak_memory_mib: float | None = None
    memory_limit_mib: float | None = None
    utilization: float | None = None
    energy_j: float | None = None
    speeds: tuple[MeasuredSpeed, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    placement: tuple[int, ...] = (1,)
    metric: str = ""
    direction: str = ""
    curve: tuple[CurvePoint, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""

    @property
    def ended_s(self) -> float:
        """When it ended, s since the epoch."""
        return self.started_s + self.seconds
