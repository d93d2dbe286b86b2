"""Trials of a simulated pool, and what the pool has seen of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.model.trial_runs import MeasuredSpeed, TrialRun
from helios.targets import Target
from helios.training.model import ONE_DEVICE, Forecast, SharedSpeed, Trial, TrialForecast, peak_hardly_exceeded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairProfiles:
    """Measured speeds of families, alone and in pairs.

    Attributes
    ----------
    families : tuple of str
        n of them.
    alone : float64 array of shape (n,)
        Steps a second alone.
    beside : float64 array of shape (n, n)
        Speed of the row's family beside one of the column's, as a share of its speed alone; NaN: they do not fit.
    """

    families: tuple[str, ...]
    alone: NDArray[np.float64]
    beside: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTrial:
    """A trial and its true length and memory.

    Attributes
    ----------
    family : int
        Position in ``PairProfiles.families``.
    seconds : float
        From its first step to its end alone on a device, s.
    memory_mib : float
        Peak device memory, MiB.
    arrives_s : float
        When it can be started, s since the start of the pool.
    parameters : mapping
        Its parameters, which a rule sees.
    reports : bool
        Whether its program reports steps, so that its speed can be measured.
    first_memory : float
        Share of its memory that it has at its first step, 0 to 1. The rest grows evenly with its work.
    curve : tuple of (float, float)
        Share of its work and value of the metric then. Empty: it reports no metric. It reports at these points alone.
    speed_ups : mapping of tuple of int to float
        Speed on each placement that it can run on, relative to one device.
    target : Target, optional
        Target of its sweep.
    ends_at_target : bool
        Whether its program ends by itself where it reaches the last target.
    sweep : str
        Name of its sweep.
    weight : float
        Importance that the sweep's owner gives it.
    """

    family: int
    seconds: float
    memory_mib: float = 0.0
    arrives_s: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reports: bool = True
    first_memory: float = 1.0
    curve: tuple[tuple[float, float], ...] = ()
    speed_ups: Mapping[tuple[int, ...], float] = field(default_factory=lambda: {ONE_DEVICE: 1.0})
    target: Target | None = None
    ends_at_target: bool = False
    sweep: str = ""
    weight: float = 1.0

    @property
    def work_to_targets(self) -> tuple[float, ...]:
        """Share of its work at which it reaches each target.

        It is infinite where it never does.
        """
        if self.target is None:
            return ()
        return tuple(
            next((work for work, value in self.curve if self.target.is_reached(tier, value)), math.inf)
            for tier in range(len(self.target.values))
        )


class SeenTrials:
    """What a pool has seen of its trials, and its forecasts.

    Parameters
    ----------
    trials : sequence of SimulatedTrial
    names : sequence of str
        Names of the families.
    forecast : Forecast, optional
        None: what the trials of a family have shown.
    known_speeds : iterable of SharedSpeed
        Speeds from earlier pools.
    """

    def __init__(
        self,
        trials: Sequence[SimulatedTrial],
        names: Sequence[str],
        *,
        forecast: Forecast | None,
        known_speeds: Iterable[SharedSpeed],
    ) -> None:
        self._trials, self._names, self._forecast = trials, names, forecast
        self._forecasts: dict[int, TrialForecast] | None = None
        self.peak_mib: dict[int, float] = {}
        self._lengths_known: set[int] = set()
        self._speed_sums = {
            (speed.family, speed.beside, speed.placement): (speed.steps_per_s * speed.samples, speed.samples)
            for speed in known_speeds
        }
        self._speeds: tuple[SharedSpeed, ...] | None = None
        self._family_peak_mib: dict[int, float] = {}
        self._finished_mib: dict[int, list[float]] = defaultdict(list)
        self._family_lengths_s: dict[int, list[float]] = defaultdict(list)

    def speeds(self) -> tuple[SharedSpeed, ...]:
        """Return the mean measured speeds."""
        if self._speeds is None:
            self._speeds = tuple(
                SharedSpeed(family=family, beside=beside, placement=shape, steps_per_s=total / samples, samples=samples)
                for (family, beside, shape), (total, samples) in sorted(self._speed_sums.items())
            )
        return self._speeds

    def add_speed(self, number: int, beside: Iterable[int], shape: tuple[int, ...], steps_per_s: float) -> None:
        """Add a measured speed of a trial beside the trials of other families."""
        families = tuple(sorted(self._names[family] for family in beside))
        key = (self._names[self._trials[number].family], families, shape)
        total, samples = self._speed_sums.get(key, (0.0, 0))
        self._speed_sums[key] = (total + steps_per_s, samples + 1)
        self._speeds = self._forecasts = None

    def add_memory(self, number: int, used_mib: float) -> None:
        """Take the memory of a trial, as a peak where it is larger."""
        family = self._trials[number].family
        self.peak_mib[number] = max(used_mib, self.peak_mib.get(number, 0.0))
        self._family_peak_mib[family] = max(used_mib, self._family_peak_mib.get(family, 0.0))
        self._forecasts = None

    def add_end(self, number: int) -> None:
        """Take an ended trial's memory as what its family needs."""
        self._finished_mib[self._trials[number].family].append(self._trials[number].memory_mib)

    def add_length(self, number: int, taken_s: float) -> None:
        """Take the length of a trial as known.

        Of a program that reports nothing, only the time that it took beside others is seen.
        """
        if number not in self._lengths_known:
            self._lengths_known.add(number)
            true = self._trials[number]
            self._family_lengths_s[true.family].append(true.seconds if true.reports else taken_s)
            self._forecasts = None

    def add_report(self) -> None:
        """Forecast again, as a trial has reported."""
        self._forecasts = None

    def forecast(self, number: int, active: Sequence[int], trial: Callable[[int], Trial]) -> TrialForecast:
        """Return the forecast of a trial.

        Parameters
        ----------
        active : sequence of int
            All trials that have not ended.
        trial : callable
            Returns a trial without its forecast.
        """
        true = self._trials[number]
        if self._forecast is None:
            peak, lengths_s = self._family_peak_mib.get(true.family), self._family_lengths_s.get(true.family)
            family_s = float(np.mean(lengths_s)) if lengths_s else None
            return TrialForecast(
                memory_p50_mib=peak,
                memory_p95_mib=peak,
                memory_most_mib=peak_hardly_exceeded(self._finished_mib.get(true.family, ())),
                seconds_p50=true.seconds if number in self._lengths_known else family_s,
            )
        if self._forecasts is None:
            found = self._forecast([trial(other) for other in active], self._runs())
            self._forecasts = dict(zip(active, found, strict=True))
        return self._forecasts.get(number, TrialForecast())

    def _runs(self) -> list[TrialRun]:
        """Return the runs so far, as a warehouse would have them."""
        runs = []
        for number, peak_mib in sorted(self.peak_mib.items()):
            true, finished = self._trials[number], number in self._lengths_known
            name = self._names[true.family]
            total, samples = self._speed_sums.get((name, (), ONE_DEVICE), (0.0, 0))
            alone = (MeasuredSpeed(beside=(), steps_per_s=total / samples, seconds=1.0),) if samples else ()
            runs.append(
                TrialRun(
                    pool="",
                    number=number,
                    attempt=1,
                    program="",
                    family=name,
                    parameters=true.parameters,
                    device_kind="gpu",
                    outcome="finished" if finished else "running",
                    started_s=0.0,
                    seconds=true.seconds,
                    progress=1.0 if finished else None,
                    peak_memory_mib=peak_mib,
                    speeds=alone,
                )
            )
        return runs
