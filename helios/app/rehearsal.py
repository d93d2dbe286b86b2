"""Simulate before anything acts: services on a replay of the cluster's own history, beside what the site has today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from time import perf_counter
from typing import Any

import numpy as np

from helios.app.history import History
from helios.app.plans import Plan, Policy, RunTimes
from helios.app.timeline import RAISES_TO_BENCH, Seat, play
from helios.app.whatif import (
    Question,
    Stage,
    answered,
    measured,
    predictor_for,
    resource_of,
    run_of,
    set_the_stage,
    sources_said,
    teach,
)
from helios.backlog import Reckoning
from helios.metrics import DAY_S, FEWEST_DAYS
from helios.ports import Progress, Service, in_silence
from helios.predict import DurationModel, OnlinePredictor
from helios.report.whatif import Run, WhatIf
from helios.simulate import Backfill, ClusterShape, SimCluster, Workload

TODAY = Plan(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=RunTimes.LIMIT)
"""What a Slurm site has without Helios, and what backfill plans with in a rehearsal."""
CONTROLS = (TODAY, Plan(policy=Policy.FEWEST_GPUS, backfill=Backfill.EASY, estimates=RunTimes.LIMIT))
"""Replayed beside every service: today, and the order that needs no model, which a service has to beat."""
RESOLUTION = 10_000
"""Bound of the SiteFactor that urgencies are counted in where the site has not set one."""
PREDICT_AGAIN_S = 600
"""How often what waits is predicted again, as :class:`helios.app.value.Site` has it and live turns do, s."""
DRAWS = 2_000
LONGEST_MAY_GROW = 0.05
"""Share by which the longest wait, which hangs on single jobs, may differ and still count as no longer."""
LEAST_SAVED = 0.01
"""Share of the mean wait below which a saving is not worth a mechanism that can do damage."""
_TAUGHT = Plan(policy=Policy.QSSF, backfill=Backfill.EASY, run_times=RunTimes.PREDICTED, estimates=RunTimes.LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatReport:
    """What became of one service in a rehearsal.

    Attributes
    ----------
    service : str
    asked : int
        How often it was asked.
    outcomes : mapping of str to int
        Jobs that its proposals ended for in each way, by Result.
    troubles : mapping of str to int
        What it raised, and how often.
    benched : bool
        It raised three times running and was asked no more.
    """

    service: str
    asked: int
    outcomes: Mapping[str, int]
    troubles: Mapping[str, int]
    benched: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rehearsal:
    """What a rehearsal found.

    Attributes
    ----------
    whatif : WhatIf
        Today's replay, the control that needs no model, the one with the services; measured alike.
    seats : tuple of SeatReport
        Each service.
    jobs_per_s : float
        Jobs replayed with the services per second of this computer's time.
    """

    whatif: WhatIf
    seats: tuple[SeatReport, ...]
    jobs_per_s: float

    def to_json(self) -> dict[str, Any]:
        """Return everything but the jobs themselves as plain values; the same question gives the same answer."""
        return {**self.whatif.to_json(), "services": [seat.to_json() for seat in self.seats]}


def rehearse(
    history: History,
    question: Question,
    services: Mapping[str, Service],
    *,
    every: timedelta | None = None,
    resolution: int = RESOLUTION,
    raises_to_bench: int = RAISES_TO_BENCH,
    predict_again_s: int | None = PREDICT_AGAIN_S,
    most_of_one_user: float = 1.0,
    progress: Progress = in_silence,
) -> Rehearsal:
    """Replay a window of a cluster's history with services acting on it, and as it is today; measure both alike.

    Run times are predicted as they would be live: from what had ended before the window, and has ended in it.

    Parameters
    ----------
    question : Question
        The window and the machine; its plans are not looked at.
    services : mapping of str to Service
        By name, in the order in which their proposals are applied.
    every : timedelta, optional
        Least time between two questions to a service; None: each its own.
    resolution : int
        Bound of the SiteFactor that urgencies are counted in (``slurm.site_factor_most``).
    raises_to_bench : int
        Times running that a service may raise, the last included (``control.raises_to_bench``).
    predict_again_s : int, optional
        How often jobs that wait are predicted again, s; None: never.
    most_of_one_user : float
        Largest share of the jobs put ahead of others' that one user may have (``control.most_of_one_user``); 1: no cap.

    Raises
    ------
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`~helios.app.whatif.whatif`.
    """
    staged = _staged(history, question, progress)
    runs = [run_of(plan, staged.stage, None, progress) for plan in CONTROLS]
    begun = perf_counter()
    seats = _seats(services, every=every, raises_to_bench=raises_to_bench)
    rehearsed, predictor = _played(
        staged,
        seats,
        resolution=resolution,
        predict_again_s=predict_again_s,
        most_of_one_user=most_of_one_user,
        progress=progress,
    )
    jobs_per_s = len(staged.stage.workload) / (perf_counter() - begun)
    said = [*sources_said(predictor), *(trouble for seat in seats for trouble in _said_of(seat))]
    return Rehearsal(
        whatif=answered(history, staged.question, staged.stage, runs=[*runs, rehearsed], said=said),
        seats=tuple(map(_report, seats)),
        jobs_per_s=jobs_per_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What soft limits would have done to the waits of a site's own last weeks.

    Attributes
    ----------
    jobs, days : int
        Jobs that were counted, and the days on which they were submitted.
    mean_wait_s, mean_wait_with_s : float
        Mean wait without soft limits, and with them, s.
    longest_wait_s, longest_wait_with_s : float
        Longest wait without, and with them, s.
    saved_s : tuple of float
        Mean wait saved a job, s: the 2.5th and the 97.5th percentile of a bootstrap over days.
    """

    jobs: int
    days: int
    mean_wait_s: float
    mean_wait_with_s: float
    longest_wait_s: float
    longest_wait_with_s: float
    saved_s: tuple[float, float]

    @property
    def is_clear(self) -> bool:
        """Whether the mean wait clearly falls, and the longest does not grow."""
        return not self._objection()

    @property
    def sentence(self) -> str:
        """Say in one sentence what was found, and whether it will do."""
        mean = f"the mean wait from {self.mean_wait_s:,.0f} s to {self.mean_wait_with_s:,.0f} s"
        longest = f"the longest from {self.longest_wait_s:,.0f} s to {self.longest_wait_with_s:,.0f} s"
        seen = f"on {self.jobs:,} jobs of {self.days} days soft limits change {mean} and {longest}"
        return f"No gain: {seen}; {self._objection()}." if self._objection() else f"A gain: {seen}."

    def _objection(self) -> str:
        if self.days < FEWEST_DAYS:
            return f"{self.days} days are too few to tell"
        if self.longest_wait_with_s > (1 + LONGEST_MAY_GROW) * self.longest_wait_s:
            return "the longest wait grows"
        if self.saved_s[0] <= 0 or self.mean_wait_with_s > (1 - LEAST_SAVED) * self.mean_wait_s:
            return f"the saving may be chance (between {self.saved_s[0]:,.0f} s and {self.saved_s[1]:,.0f} s a job)"
        return ""


def soft_limit_gain(
    history: History,
    question: Question,
    soft_limits: Service,
    *,
    beside: Mapping[str, Service] | None = None,
    every: timedelta | None = None,
    most_of_one_user: float = 1.0,
    progress: Progress = in_silence,
) -> Gain:
    """Replay a window with and without soft limits, all else alike, and say what they do to the waits.

    Backfill that plans with predictions lengthens waits on many sites, so a site's own history has to show that here
    it does not. Days are drawn anew, not jobs: jobs of one day wait behind the same jobs.

    Parameters
    ----------
    question : Question
        The window and the machine: the site's last weeks, with a warm-up.
    soft_limits : Service
        The service as it would run.
    beside : mapping of str to Service, optional
        Other services that act in both replays, as the one that orders the queue; None: first in, first out.
    most_of_one_user : float
        As for :func:`rehearse`.

    Raises
    ------
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`~helios.app.whatif.whatif`.
    """
    staged = _staged(history, question, progress)
    others = dict(beside or {})
    without, with_them = (
        _played(
            staged,
            _seats(services, every=every),
            most_of_one_user=most_of_one_user,
            progress=progress,
        )[0]
        for services in (others, {**others, "soft_limits": soft_limits})
    )
    return _gain(without, with_them, seed=question.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    cluster: str
    question: Question
    stage: Stage
    taught: DurationModel | None
    resource: str


def _staged(history: History, question: Question, progress: Progress) -> _Staged:
    asked = replace(question, plans=[_TAUGHT])
    stage = set_the_stage(history, asked)
    return _Staged(
        cluster=history.cluster,
        question=asked,
        stage=stage,
        taught=teach(history, stage, asked, progress),
        resource=resource_of(history, asked),
    )


def _seats(
    services: Mapping[str, Service], *, every: timedelta | None, raises_to_bench: int = RAISES_TO_BENCH
) -> list[Seat]:
    return [
        Seat(name=name, service=it, every=it.every if every is None else every, raises_to_bench=raises_to_bench)
        for name, it in services.items()
    ]


def _played(
    staged: _Staged,
    seats: Sequence[Seat],
    *,
    resolution: int = RESOLUTION,
    predict_again_s: int | None = PREDICT_AGAIN_S,
    most_of_one_user: float,
    progress: Progress,
) -> tuple[Run, OnlinePredictor]:
    """Replay with services acting; return what is measured, and who predicted."""
    stage, title = staged.stage, " + ".join(seat.name for seat in seats) or Policy.FIFO.value
    cluster = SimCluster(
        stage.workload,
        stage.machine.shape,
        stage.machine.jobs,
        estimates_s=stage.limit_s,
        name=staged.cluster,
        resolution=resolution,
        resource=staged.resource,
    )
    predictor = predictor_for(stage, staged.taught, staged.question)
    told = f"Rehearsing {title}"
    progress(told, 0.0)
    play(
        cluster,
        seats,
        predictor=predictor,
        predict_again_s=predict_again_s,
        reckoning=reckoning_of(stage.workload, stage.machine.shape),
        most_of_one_user=most_of_one_user,
        progress=lambda done: progress(told, done / len(stage.workload)),
    )
    progress(told, 1.0)
    run = measured(
        stage,
        policy=title,
        run_times=None,
        estimates=RunTimes.LIMIT.value,
        backfill=Backfill.EASY.value,
        started_s=cluster.started_s,
        ended_s=cluster.ended_s,
    )
    return run, predictor


def reckoning_of(workload: Workload, shape: ClusterShape) -> Reckoning:
    """Return what reckons the backlog of a replay as it goes on."""
    capacity = shape.nodes.astype(np.int64) * shape.gpus_per_node
    return Reckoning(partition=workload.partition, gpus=workload.gpus, capacity=capacity)


def _gain(without: Run, with_them: Run, *, seed: int) -> Gain:
    saved_s = (without.wait_s - with_them.wait_s).astype(np.float64)
    _, day = np.unique(without.submitted_s // DAY_S, return_inverse=True)
    of_day_s, jobs_of_day = np.bincount(day, weights=saved_s), np.bincount(day)
    drawn = np.random.default_rng(seed).integers(len(of_day_s), size=(DRAWS, len(of_day_s)))
    means = of_day_s[drawn].sum(axis=1) / jobs_of_day[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Gain(
        jobs=len(saved_s),
        days=len(of_day_s),
        mean_wait_s=without.summary.mean_wait_s,
        mean_wait_with_s=with_them.summary.mean_wait_s,
        longest_wait_s=without.summary.max_wait_s,
        longest_wait_with_s=with_them.summary.max_wait_s,
        saved_s=(float(low), float(high)),
    )


def _report(seat: Seat) -> SeatReport:
    return SeatReport(
        service=seat.name,
        asked=seat.asked,
        outcomes={result.value: jobs for result, jobs in sorted(seat.outcomes.items())},
        troubles=dict(seat.troubles),
        benched=seat.benched,
    )


def _said_of(seat: Seat) -> list[str]:
    said = [f"Service {seat.name} raised {times} times: {trouble}" for trouble, times in seat.troubles.items()]
    if seat.benched:
        said.append(f"Service {seat.name} raised {seat.raises_to_bench} times running and was asked no more.")
    return said
