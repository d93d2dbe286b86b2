"""Replay of a cluster's own history with services acting on it.

The same window is also replayed without services, as controls. All replays are measured alike.

Guards and reverts are as in a live cycle: the rules are those of :mod:`helios.control`. Where several services ask for
one setting of a job, the first service gets it, and keeps it also in cycles in which it is not asked. What a service
was asked about and no longer names is reverted, and so is everything of a suspended service. What exceeds one user's
share is made neutral. A ``Revert`` of a service means that it asks for nothing there, as if it had not named the job.

A service is called at a moment when something may start and there is a choice, at most once in its ``every``; where it
is too early, as soon as ``every`` has passed. In between its answer could change nothing. All services that are called
at a moment see one snapshot, and their changes are applied in their order before anything starts at that moment.

A jobwise service (:class:`helios.ports.JobwiseService`) is called for the same changes at the same moments, but only
for jobs for which it may request another change than at its last call: the replay is the same, at many times the
speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from heapq import heappop, heappush
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from helios.actions import Action, JobAction, Reorder, Result, Revert, SoftLimit
from helios.app.history import LoadedHistory
from helios.app.replay_guards import SECOND_US, Positions, ReplayGuards
from helios.app.replay_predictions import NamedPredictor, ReplayPredictions
from helios.app.scenarios import Scenario
from helios.app.whatif import (
    WhatIfRequest,
    describe_sources,
    measure,
    predictor_for,
    prepare_replay,
    train_predictor,
)
from helios.choices import Policy, RunTimes
from helios.model import Snapshot
from helios.ports import ChangeRequests, JobwiseService, Progress, Service, no_progress
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.report.whatif import Run
from helios.simulate import Backfill, LongestWaits, SimCluster
from helios.simulate.core.state import NEVER
from helios.simulate.simulated_cluster import SimulatedCluster, StopPoint
from helios.simulate.snapshot import MomentRows, moment

_FOR_EVER = np.iinfo(np.int64).min  # as NaT

FAILURES_TO_SUSPEND = 3
"""Default of ``control.failures_to_suspend``."""
MOMENTS_PER_REPORT = 500

SITE_FACTOR_MOST = 10_000
"""Default bound of the SiteFactor; it limits the number of distinct urgencies."""
PREDICT_AGAIN_S = 600
"""How often waiting jobs are predicted again, s, as in live cycles."""
_TAUGHT = Scenario(policy=Policy.QSSF, backfill=Backfill.EASY, run_times=RunTimes.PREDICTED, estimates=RunTimes.LIMIT)

_Answer = TypeVar("_Answer")
_Act = Callable[[], Mapping[Result, int]]


class OutdatedJobs:
    """Pending jobs for which a jobwise service must be called again.

    These are new jobs, jobs whose prediction changed, and jobs whose change has expired.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._upto = 0
        self._is_outdated = np.zeros(len(cluster.started_s), dtype=np.bool_)
        self._any = self._all = False
        self._expires_s = np.full(len(cluster.started_s), NEVER)
        self._expiries: list[tuple[int, int]] = []  # a heap of when, and which job

    def changed(self, jobs: Positions) -> None:
        """Record that a column of ``jobs`` has changed."""
        self._is_outdated[jobs] = self._any = True

    def disturbed(self) -> None:
        """Record that another service has acted on some jobs."""
        self._all = True

    def next_s(self) -> int:
        """Return when the service is next worth calling, s.

        -NEVER: now.
        """
        if self._all or self._any or self._upto < self._cluster.arrived:
            return -NEVER
        while self._expiries and not self._is_live(*self._expiries[0]):
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else NEVER

    def jobs(self, now_s: int) -> Positions:
        """Return the pending jobs for which the service must be called.

        They stay outdated until they are given to :meth:`mark_called`.
        """
        arrived, is_outdated, jobs = self._cluster.arrived, self._is_outdated, self._cluster.waiting()
        is_outdated[jobs if self._all else slice(self._upto, arrived)] = True
        self._mark_expired(now_s)
        jobs = jobs[is_outdated[jobs]]
        self._upto, self._all, self._any = arrived, False, len(jobs) > 0
        return jobs

    def mark_called(self, jobs: Positions, until: NDArray[np.datetime64]) -> None:
        """Record that the service was called for ``jobs``, all the outdated ones.

        ``until`` is when the change of each expires; NaT: never.
        """
        self._is_outdated[jobs] = self._any = False
        # A plain loop: most often there is one job.
        for job, until_us in zip(jobs.tolist(), until.view(np.int64).tolist(), strict=True):
            expires_s = NEVER if until_us == _FOR_EVER else until_us // SECOND_US + 1
            if expires_s != self._expires_s[job]:
                self._expires_s[job] = expires_s
                if expires_s < NEVER:
                    heappush(self._expiries, (expires_s, job))

    def _mark_expired(self, now_s: int) -> None:
        while self._expiries and self._expiries[0][0] <= now_s:
            expires_s, job = heappop(self._expiries)
            if self._is_live(expires_s, job):
                self._is_outdated[job] = True

    def _is_live(self, expires_s: int, job: int) -> bool:
        return bool(self._expires_s[job] == expires_s and self._cluster.started_s[job] == NEVER)


@dataclass(slots=True, kw_only=True, eq=False)
class ReplayedService:
    """One service in a replay, with its results so far.

    Attributes
    ----------
    name : str
    service : Service
    every : timedelta
        Least time between two calls; zero: whenever there is a choice.
    asked : int
        Number of calls.
    outcomes : Counter
        Number of jobs by the result of their change.
    problems : Counter
        Errors that it raised, and how often.
    suspended : bool
        Whether it raised too often in a row, and is called no more.
    failures_to_suspend : int
        Failures in a row after which it is suspended; as in a live cycle.
    """

    name: str
    service: Service
    every: timedelta
    asked: int = 0
    outcomes: Counter[Result] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    suspended: bool = False
    failures_to_suspend: int = FAILURES_TO_SUSPEND
    _failures: int = 0
    _due_s: int = -NEVER

    def to_json(self) -> dict[str, Any]:
        """Return its results as plain values."""
        outcomes = {result.value: jobs for result, jobs in sorted(self.outcomes.items())}
        results = {"service": self.name, "asked": self.asked, "outcomes": outcomes}
        return results | {"problems": dict(self.problems), "suspended": self.suspended}

    def notes(self) -> list[str]:
        """Return its problems in words."""
        lines = [f"Service {self.name} raised {times} times: {problem}" for problem, times in self.problems.items()]
        if self.suspended:
            lines.append(f"Service {self.name} raised {self.failures_to_suspend} times in a row and was suspended.")
        return lines

    def is_due(self, now_s: int) -> bool:
        """Return whether it may be called at ``now_s``."""
        return not self.suspended and now_s >= self._due_s

    def next_due_s(self) -> int:
        """Return when it may be called again, NEVER if suspended."""
        return NEVER if self.suspended else self._due_s

    def passes(self, now_s: int) -> None:
        """Skip its call at ``now_s``, as it has nothing new to request."""
        self._due_s = now_s + int(np.ceil(self.every.total_seconds()))

    def proposals(self, snapshot: Snapshot, *, now_s: int) -> list[JobAction] | None:
        """Call it with a snapshot and return its actions.

        None: it raised, which is recorded in ``problems``.
        """
        return self._answer(lambda: _checked(self.service.decide(snapshot)), now_s)

    def changes(self, jobs: MomentRows, *, now_s: int) -> ChangeRequests | None:
        """Call it for some jobs, as a jobwise service, and return its changes.

        None: it raised, which is recorded in ``problems``.
        """
        service: Any = self.service
        return self._answer(
            lambda: _checked_changes(service.changes(jobs.values, moment(now_s)), len(jobs.rows)), now_s
        )

    def _answer(self, ask: Callable[[], _Answer], now_s: int) -> _Answer | None:
        self.asked += 1
        self.passes(now_s)
        try:
            answer = ask()
        except Exception as reason:  # because a service is anybody's code
            self.problems[f"{type(reason).__name__}: {reason}"] += 1
            self._failures += 1
            self.suspended = self._failures >= self.failures_to_suspend
            return None
        self._failures = 0
        return answer


def replay_services(
    cluster: SimulatedCluster,
    active_services: Sequence[ReplayedService],
    *,
    predictor: NamedPredictor,
    predict_again_s: int | None = None,
    own_order: LongestWaits | None = None,
    most_of_one_user: float = 1.0,
    jobwise: bool = True,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Run a replay to its end with services acting on it.

    Parameters
    ----------
    cluster : SimulatedCluster
        Advanced to its end.
    active_services : sequence of ReplayedService
        Called on the way; updated with their results.
    predictor : NamedPredictor
        Predicts each job at its submission and learns of each end; its predictions are in the snapshots.
    predict_again_s : int, optional
        Also predict all pending jobs again, before the first moment that is at least so long after the last such time,
        or after the first submission, s; None: never.
    own_order : LongestWaits, optional
        Longest wait so far of these jobs under the site's own order; None: services do not see it.
    most_of_one_user : float
        As ``control.most_of_one_user``; 1: no cap.
    jobwise : bool
        Call a jobwise service for single jobs. False: for the whole queue each time, as any other, which is slow.
    progress : callable, optional
        Called now and then with the number of jobs ended.
    """
    guards = ReplayGuards(cluster, len(active_services), most_of_one_user)
    played = _ReplayRun(
        cluster,
        active_services,
        ReplayPredictions(cluster, predictor, predict_again_s, own_order),
        guards,
        jobwise=jobwise,
    )
    moments = 0
    while (halt := played.next_stop()) is not None:
        played.stop(halt)
        moments += 1
        if progress is not None and moments % MOMENTS_PER_REPORT == 0:
            progress(len(cluster.ended))
    played.finish()


class _ReplayRun:
    """A running replay, advanced from one stop to the next."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        active_services: Sequence[ReplayedService],
        predictions: ReplayPredictions,
        guards: ReplayGuards,
        *,
        jobwise: bool,
    ) -> None:
        self._cluster, self._predictions, self._guards = cluster, predictions, guards
        self._active_services = [
            (active, OutdatedJobs(cluster) if jobwise and isinstance(active.service, JobwiseService) else None)
            for active in active_services
        ]
        self._alarm_s = NEVER

    def next_stop(self) -> StopPoint | None:
        """Advance to where the predictor or a service must be called.

        Arrivals are predicted at the next stop, as of their own moments. They are stops themselves only where a
        service waits for them. None: nothing is left to happen.
        """
        choices_from_s, alarm_from_s, arrivals = NEVER, NEVER, not self._predictions.is_begun
        for active, outdated in self._active_services:
            due_s = active.next_due_s()
            if outdated is None or active.every or self._guards.follows_the_queue:
                alarm_from_s = min(alarm_from_s, due_s)
            elif not active.suspended:
                due_s, arrivals = outdated.next_s(), True
            choices_from_s = min(choices_from_s, due_s)
        return self._cluster.advance_to_decision(
            arrivals=arrivals,
            choices_from_s=choices_from_s,
            alarm_s=self._alarm_s,
            alarm_from_s=alarm_from_s,
            **self._predictions.due_s(),
        )

    def stop(self, halt: StopPoint) -> None:
        """Call the predictor or the services that are due at a stop."""
        self._predictions.put_off(halt.again_s)
        self._predictions.follow()
        if halt.before:
            self._alarm_s = halt.alarm_s
            jobs = self._predictions.update_due(halt.moment_s)
            for _, outdated in self._active_services:
                if outdated is not None and len(jobs):
                    outdated.changed(jobs)
            return
        self._alarm_s = self._ask(halt.moment_s) if halt.choice else NEVER

    def finish(self) -> None:
        """Predict the jobs that arrived after the last stop."""
        self._predictions.follow()

    def _ask(self, now_s: int) -> int:
        """Call the services that are due now.

        Returns when the next of the others is due, or NEVER.
        """
        later_s = NEVER
        snapshot: Snapshot | None = None
        act: _Act | None
        apply: list[tuple[ReplayedService, OutdatedJobs | None, _Act]] = []
        for number, (active, outdated) in enumerate(self._active_services):
            if not active.is_due(now_s):
                later_s = min(later_s, active.next_due_s())
                continue
            if outdated is None:
                snapshot = snapshot or self._cluster.snapshot_with(self._predictions.predictions)
                proposals = active.proposals(snapshot, now_s=now_s)
                act = None if proposals is None else partial(self._guards.act, number, proposals)
            else:
                if apply:  # a service before it may overwrite or drop its changes, so it must request all of them again
                    outdated.disturbed()
                act = self._request_changes(number, active, outdated, now_s)
            if active.suspended:
                act = partial(self._guards.release, number)
            if act is not None:
                apply.append((active, outdated, act))
        for active, outdated, act in apply:
            outcomes = act()
            for result, jobs in outcomes.items():
                active.outcomes[result] += jobs
            if Result.DONE in outcomes:
                for _, other in self._active_services:
                    if other is not None and other is not outdated:
                        other.disturbed()
        return later_s

    def _request_changes(self, number: int, active: ReplayedService, outdated: OutdatedJobs, now_s: int) -> _Act | None:
        """Call a jobwise service for its outdated jobs.

        None: there is nothing to apply, or it raised.
        """
        jobs = outdated.jobs(now_s)
        if not len(jobs):
            active.passes(now_s)
            nothing = (np.empty(0, dtype=np.int64), np.empty(0))
            return partial(self._guards.change, number, *nothing) if self._guards.follows_the_queue else None
        rows = self._cluster.rows(jobs, self._predictions.predictions)
        changes = active.changes(rows, now_s=now_s)
        if changes is None:
            return None
        outdated.mark_called(jobs, changes.until)
        return partial(self._guards.change, number, jobs, changes.urgency)


def _checked_changes(changes: ChangeRequests, n_jobs: int) -> ChangeRequests:
    if len(changes.urgency) != n_jobs or len(changes.until) != n_jobs:
        raise TypeError(f"{len(changes.urgency)} urgencies and {len(changes.until)} expiry times for {n_jobs} jobs")
    if (np.abs(changes.urgency) > 1).any():
        raise ValueError("a change has an urgency that is not between -1 and 1")
    return changes


def _checked(actions: Iterable[Action]) -> list[JobAction]:
    chosen = list(actions)
    known = [action for action in chosen if isinstance(action, Reorder | SoftLimit | Revert)]
    if len(known) < len(chosen):
        stranger = next(action for action in chosen if not isinstance(action, Reorder | SoftLimit | Revert))
        raise TypeError(f"{stranger!r} is not an action on a job")
    return known


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceReplay:
    """A replay with services acting.

    Attributes
    ----------
    run : Run
    active_services : tuple of ReplayedService
        One for each service.
    jobs_per_s : float
        Jobs replayed per second of this computer's time.
    notes : tuple of str
        Who predicted, and what services said.
    """

    run: Run
    active_services: tuple[ReplayedService, ...]
    jobs_per_s: float
    notes: tuple[str, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what each service did as plain values."""
        return [active.to_json() for active in self.active_services]


def replay_acting(
    history: LoadedHistory,
    request: WhatIfRequest,
    services: Mapping[str, Service],
    *,
    site_factor_most: int = SITE_FACTOR_MOST,
    failures_to_suspend: int = FAILURES_TO_SUSPEND,
    most_of_one_user: float = 1.0,
    progress: Progress = no_progress,
) -> ServiceReplay:
    """Replay a window of history with services acting.

    It is measured as the replays of :func:`~helios.app.whatif.whatif` are. Run times are predicted as they would be
    live, from jobs that had ended before the window or have ended in it.

    Parameters
    ----------
    request : WhatIfRequest
        The window and the machine; its scenarios are ignored.
    services : mapping of str to Service
        By name, in the order in which their changes are applied.
    site_factor_most : int
        Bound of the SiteFactor (``slurm.site_factor_most``), to whose steps urgencies are rounded.
    failures_to_suspend : int
        Failures in a row after which a service is suspended (``control.failures_to_suspend``).
    most_of_one_user : float
        Largest share of the jobs put ahead of others' that one user may have (``control.most_of_one_user``); 1: no cap.

    Raises
    ------
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`~helios.app.whatif.whatif`.
    """
    window = ReplayedWindow(history, request, progress)
    begun = perf_counter()
    active_services = replayed_services(services, every=None, failures_to_suspend=failures_to_suspend)
    run, predictor = window.replay(
        active_services, site_factor_most=site_factor_most, most_of_one_user=most_of_one_user
    )
    return ServiceReplay(
        run=run,
        active_services=tuple(active_services),
        jobs_per_s=len(window.setup.workload) / (perf_counter() - begun),
        notes=(*describe_sources(predictor), *(note for active in active_services for note in active.notes())),
    )


def replayed_services(
    services: Mapping[str, Service], *, every: timedelta | None, failures_to_suspend: int = FAILURES_TO_SUSPEND
) -> list[ReplayedService]:
    """Return services as they enter a replay.

    ``every`` is the least time between two calls; None: each service's own.
    """
    return [
        ReplayedService(
            name=name, service=it, every=it.every if every is None else every, failures_to_suspend=failures_to_suspend
        )
        for name, it in services.items()
    ]


class ReplayedWindow:
    """A window of history with all that its replays have in common."""

    def __init__(self, history: LoadedHistory, request: WhatIfRequest, progress: Progress) -> None:
        self.request, self._progress = replace(request, scenarios=[_TAUGHT]), progress
        self.setup = prepare_replay(history, self.request)
        self._taught = train_predictor(history, self.setup, self.request, progress)
        self._cluster = history.cluster

    def replay(
        self,
        active_services: Sequence[ReplayedService],
        *,
        site_factor_most: int = SITE_FACTOR_MOST,
        predict_again_s: int | None = PREDICT_AGAIN_S,
        most_of_one_user: float,
    ) -> tuple[Run, ReplayTrainedPredictor]:
        """Replay with services acting, and return the result, measured, with the predictor."""
        setup, title = self.setup, " + ".join(active.name for active in active_services) or Policy.FIFO.value
        cluster = SimCluster(
            setup.workload,
            setup.machine.shape,
            setup.machine.jobs,
            estimates_s=setup.limit_s,
            name=self._cluster,
            site_factor_most=site_factor_most,
            resource=setup.machine.resource,
        )
        predictor, label = predictor_for(setup, self._taught, self.request), f"Replaying {title}"
        self._progress(label, 0.0)
        replay_services(
            cluster,
            active_services,
            predictor=predictor,
            predict_again_s=predict_again_s,
            own_order=setup.own_order,
            most_of_one_user=most_of_one_user,
            progress=lambda done: self._progress(label, done / len(setup.workload)),
        )
        self._progress(label, 1.0)
        about = {"policy": title, "estimates": RunTimes.LIMIT.value, "backfill": Backfill.EASY.value}
        run = measure(setup, cluster.started_s, cluster.ended_s, **about)
        return run, predictor
