"""Replay of a cluster's own history with services acting on it.

The same window is also replayed without services, as controls. All replays are measured alike.

Guards and reverts are as in a live cycle: the rules are those of :mod:`helios.control`. Where several services ask for
one setting of a job, the first service gets it, and keeps it also in cycles in which it is not asked. What a service
was asked about and no longer names is reverted, and so is everything of a suspended service. What exceeds one user's
share is made neutral. A ``Revert`` of a service means that it asks for nothing there, as if it had not named the job.

Ownership is computed here again, over columns: live it goes over one ``Change`` with its reason for each pending job,
which takes 10 microseconds for each job of the queue in every cycle. A replay at 20,000 jobs a CPU second has 50 for
each job in its whole life, and a cycle at every event. What a ``Revert`` leaves of a service's requests, and how much
one user may have, is computed by the functions of a live cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from heapq import heappop, heappush
from time import perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import Action, JobAction, JobSetting, Reorder, Result, Revert, SoftLimit
from helios.app.history import LoadedHistory
from helios.app.scenarios import CONTROLS, Scenario
from helios.app.whatif import (
    WhatIfRequest,
    answer_request,
    describe_sources,
    measure,
    predictor_for,
    prepare_replay,
    to_run,
    train_predictor,
)
from helios.changes import Change, revert_job, to_job_changes
from helios.choices import Policy, RunTimes
from helios.control.guards import ahead_of_others, beyond_share
from helios.jit import cached_jit, inline_jit
from helios.model import Snapshot
from helios.ports import RUN_TIME, ChangeRequests, JobwiseService, Progress, ReplayPredictor, Service, no_progress
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.report.whatif import Run, WhatIf
from helios.simulate import Backfill, LongestWaits, Predictions, SimCluster
from helios.simulate.ageing import EVERY_S
from helios.simulate.core.state import NEVER
from helios.simulate.simulated_cluster import SimulatedCluster, StopPoint
from helios.simulate.snapshot import MomentRows, moment

# Predictions along a replay. They are causal: only ended jobs are learned from, and each job is predicted as it comes.


class NamedPredictor(ReplayPredictor, Protocol):
    """Predictor that says which model or fallback made each prediction.

    Attributes
    ----------
    source : int16 array of shape (n_jobs,)
        Which of ``sources`` predicted each job; -1: not predicted yet. The array object stays the same.
    sources : list of str
        Model ids and fallbacks.
    """

    source: NDArray[np.int16]
    sources: list[str]


@cached_jit
def _take_anew(run_times: Any, jobs: Any, predicted: Any, source: Any, before: Any) -> Any:
    """Take new predictions, and return the jobs whose predictions have changed.

    ``before`` is what predicted them before.
    """
    anew, n = np.empty(len(jobs), dtype=np.int64), 0
    for place in range(len(jobs)):
        job, other = jobs[place], source[jobs[place]] != before[place]
        for column in range(run_times.shape[1]):
            other |= run_times[job, column] != predicted[place, column]
            run_times[job, column] = predicted[place, column]
        if other:
            anew[n] = job
            n += 1
    return anew[:n]


class ReplayPredictions:
    """Predictions of a replay, and the own order's longest wait.

    A job is predicted at its submission, and again while it waits.

    Parameters
    ----------
    cluster : SimulatedCluster
    predictor : NamedPredictor
    predict_again_s : int, optional
        Time between two predictions of all pending jobs, s; None: they are not predicted again.
    own_order : LongestWaits, optional
        Longest wait so far of these jobs under the site's own order; None: not known.

    Attributes
    ----------
    predictions : Predictions
        What is predicted of each job now.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        predictor: NamedPredictor,
        predict_again_s: int | None,
        own_order: LongestWaits | None = None,
    ) -> None:
        self._cluster, self._predictor, self._period_s = cluster, predictor, predict_again_s
        self._own_order = own_order
        self._n_predicted = self._n_reported = 0
        self._run_times = np.full((len(cluster.started_s), len(RUN_TIME)), np.nan)
        self.predictions = Predictions(run_times=self._run_times, source=predictor.source, sources=predictor.sources)
        self._predict_at_s = self._own_order_at_s = NEVER

    @property
    def is_begun(self) -> bool:
        """Whether a job has been predicted."""
        return self._n_predicted > 0

    def due_s(self) -> dict[str, int]:
        """Return the times of the next updates, as ``advance_to_decision`` takes them."""
        again_every_s = self._period_s or NEVER
        return {"before_s": self._own_order_at_s, "again_s": self._predict_at_s, "again_every_s": again_every_s}

    def put_off(self, again_s: int) -> None:
        """Put the next predictions of pending jobs off, as nobody waited."""
        self._predict_at_s = again_s

    def follow(self) -> None:
        """Predict the jobs that have arrived since the last call."""
        arrived, now_s = self._cluster.arrived, self._cluster.now_s
        if arrived == self._n_predicted:
            return
        if self._n_predicted == 0:
            self._predict_at_s = NEVER if self._period_s is None else now_s + self._period_s
            self._follow_own_order(now_s)
        jobs = np.arange(self._n_predicted, arrived)
        self._run_times[self._n_predicted : arrived] = self._submitted(jobs)
        self._n_predicted = arrived

    def _submitted(self, jobs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Predict each of consecutive ``jobs`` from what was known when it was submitted."""
        submitted_s = self._cluster.submitted_s[jobs]
        if isinstance(self._predictor, ReplayTrainedPredictor):
            ended, ended_s = self._unreported()
            run_times, told = self._predictor.follow(jobs, submitted_s, ended=ended, ended_s=ended_s)
            self._n_reported += told
            return run_times
        rows = []
        for moment_s in np.unique(submitted_s).tolist():
            self._report_ended(moment_s)
            rows.append(self._predictor.submitted(jobs[submitted_s == moment_s], moment_s))
        return np.concatenate(rows)

    def update_due(self, now_s: int) -> NDArray[np.int64]:
        """Make the updates that are due at ``now_s``.

        Returns the pending jobs whose predictions or longest wait under the site's own order changed.
        """
        jobs = self._cluster.waiting()
        anew = self._predict_again(jobs, now_s) if now_s >= self._predict_at_s else jobs[:0]
        return jobs if now_s >= self._own_order_at_s and self._follow_own_order(now_s) else anew

    def _predict_again(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.int64]:
        self._predict_at_s = now_s + (self._period_s or NEVER)
        self._report_ended()
        if not len(jobs):
            return jobs
        source = self._predictor.source[jobs]
        running, since_s = self._cluster.running()
        run_times = self._predictor.waiting(jobs, now_s, running=running, since_s=since_s)
        anew: NDArray[np.int64] = _take_anew(self._run_times, jobs, run_times, self._predictor.source, source)
        return anew

    def _follow_own_order(self, now_s: int) -> bool:
        """Update the longest own wait, and return whether it changed."""
        if self._own_order is None:
            return False
        self._own_order_at_s = now_s + EVERY_S
        before_s, after_s = float(self.predictions.longest_own_wait_s), float(self._own_order.at(now_s))
        self.predictions.longest_own_wait_s[...] = after_s
        return before_s != after_s

    def _report_ended(self, until_s: int = NEVER) -> None:
        fresh, ended_s = self._unreported()
        n = int(np.searchsorted(ended_s, until_s, side="right"))
        if n:
            self._predictor.ended(fresh[:n], ended_s[:n])
            self._n_reported += n

    def _unreported(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ended jobs unknown to the predictor, and their ends."""
        fresh = self._cluster.ended[self._n_reported :].copy()
        return fresh, self._cluster.ended_s[fresh]


_FOR_EVER = np.iinfo(np.int64).min  # as NaT


class ReplayState:
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

    def outdated(self, now_s: int) -> Positions:
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
            expires_s = NEVER if until_us == _FOR_EVER else until_us // _SECOND_US + 1
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


# Services called along a replayed timeline: the same objects as in a live cycle, on a simulated cluster.
#
# A service is called at a moment when something may start and there is a choice, at most once in its ``every``; where
# it is too early, as soon as ``every`` has passed. In between its answer could change nothing. All services that are
# called at a moment see one snapshot, and their changes are applied in their order before anything starts at that
# moment. What a service no longer requests is reverted, see the module's docstring.
#
# A jobwise service (:class:`helios.ports.JobwiseService`) is called for the same changes at the same moments, but only
# for jobs for which it may request another change than at its last call: the replay is the same, at many times the
# speed.

_Answer = TypeVar("_Answer")
_Act = Callable[[], Mapping[Result, int]]
FAILURES_TO_SUSPEND = 3
"""Default of ``control.failures_to_suspend``."""
MOMENTS_PER_REPORT = 500


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
    claims = ReplayGuards(cluster, len(active_services), most_of_one_user)
    played = _ReplayRun(
        cluster,
        active_services,
        ReplayPredictions(cluster, predictor, predict_again_s, own_order),
        claims,
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
        claims: ReplayGuards,
        *,
        jobwise: bool,
    ) -> None:
        self._cluster, self._predictions, self._claims = cluster, predictions, claims
        self._active_services = [
            (active, ReplayState(cluster) if jobwise and isinstance(active.service, JobwiseService) else None)
            for active in active_services
        ]
        self._alarm_s = NEVER

    def next_stop(self) -> StopPoint | None:
        """Advance to where the predictor or a service must be called.

        Arrivals are predicted at the next stop, as of their own moments. They are stops themselves only where a
        service waits for them. None: nothing is left to happen.
        """
        choices_from_s, alarm_from_s, arrivals = NEVER, NEVER, not self._predictions.is_begun
        for active, applied in self._active_services:
            due_s = active.next_due_s()
            if applied is None or active.every or self._claims.follows_the_queue:
                alarm_from_s = min(alarm_from_s, due_s)
            elif not active.suspended:
                due_s, arrivals = applied.next_s(), True
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
            for _, applied in self._active_services:
                if applied is not None and len(jobs):
                    applied.changed(jobs)
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
        apply: list[tuple[ReplayedService, ReplayState | None, _Act]] = []
        for number, (active, applied) in enumerate(self._active_services):
            if not active.is_due(now_s):
                later_s = min(later_s, active.next_due_s())
                continue
            if applied is None:
                snapshot = snapshot or self._cluster.snapshot_with(self._predictions.predictions)
                proposals = active.proposals(snapshot, now_s=now_s)
                act = None if proposals is None else partial(self._claims.act, number, proposals)
            else:
                if apply:  # a service before it may overwrite or drop its changes, so it must request all of them again
                    applied.disturbed()
                act = self._request_changes(number, active, applied, now_s)
            if active.suspended:
                act = partial(self._claims.release, number)
            if act is not None:
                apply.append((active, applied, act))
        for active, applied, act in apply:
            outcomes = act()
            for result, jobs in outcomes.items():
                active.outcomes[result] += jobs
            if Result.DONE in outcomes:
                for _, other in self._active_services:
                    if other is not None and other is not applied:
                        other.disturbed()
        return later_s

    def _request_changes(self, number: int, active: ReplayedService, applied: ReplayState, now_s: int) -> _Act | None:
        """Call a jobwise service for its outdated jobs.

        None: there is nothing to apply, or it raised.
        """
        jobs = applied.outdated(now_s)
        if not len(jobs):
            active.passes(now_s)
            nothing = (np.empty(0, dtype=np.int64), np.empty(0))
            return partial(self._claims.change, number, *nothing) if self._claims.follows_the_queue else None
        rows = self._cluster.rows(jobs, self._predictions.predictions)
        changes = active.changes(rows, now_s=now_s)
        if changes is None:
            return None
        applied.mark_called(jobs, changes.until)
        return partial(self._claims.change, number, jobs, changes.urgency)


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


SITE_FACTOR_MOST = 10_000
"""Default bound of the SiteFactor; it limits the number of distinct urgencies."""
PREDICT_AGAIN_S = 600
"""How often waiting jobs are predicted again, s, as in live cycles."""
_TAUGHT = Scenario(policy=Policy.QSSF, backfill=Backfill.EASY, run_times=RunTimes.PREDICTED, estimates=RunTimes.LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceReplay:
    """Results of a replay with services.

    Attributes
    ----------
    whatif : WhatIf
        The baseline, the control that needs no model, and the replay with the services; measured alike.
    active_services : tuple of ReplayedService
        One for each service.
    jobs_per_s : float
        Jobs replayed with the services per second of this computer's time.
    """

    whatif: WhatIf
    active_services: tuple[ReplayedService, ...]
    jobs_per_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain values, without the jobs and the speed.

        The same request gives the same values.
        """
        return {**self.whatif.to_json(), "services": [active.to_json() for active in self.active_services]}


def simulate_services(
    history: LoadedHistory,
    request: WhatIfRequest,
    services: Mapping[str, Service],
    *,
    every: timedelta | None = None,
    site_factor_most: int = SITE_FACTOR_MOST,
    failures_to_suspend: int = FAILURES_TO_SUSPEND,
    predict_again_s: int | None = PREDICT_AGAIN_S,
    most_of_one_user: float = 1.0,
    progress: Progress = no_progress,
) -> ServiceReplay:
    """Replay a window of history with services, and without them as controls.

    All replays are measured alike. Run times are predicted as they would be live, from jobs that had ended before the
    window or have ended in it.

    Parameters
    ----------
    request : WhatIfRequest
        The window and the machine; its scenarios are ignored.
    services : mapping of str to Service
        By name, in the order in which their changes are applied.
    every : timedelta, optional
        Least time between two calls of a service; None: each its own.
    site_factor_most : int
        Bound of the SiteFactor (``slurm.site_factor_most``), to whose steps urgencies are rounded.
    failures_to_suspend : int
        Failures in a row after which a service is suspended (``control.failures_to_suspend``).
    predict_again_s : int, optional
        How often pending jobs are predicted again, s; None: never.
    most_of_one_user : float
        Largest share of the jobs put ahead of others' that one user may have (``control.most_of_one_user``); 1: no cap.

    Raises
    ------
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`~helios.app.whatif.whatif`.
    """
    window = ReplayedWindow(history, request, progress)
    runs = [to_run(plan, window.setup, None, progress) for plan in CONTROLS]
    begun = perf_counter()
    active_services = replayed_services(services, every=every, failures_to_suspend=failures_to_suspend)
    simulated, predictor = window.replay(
        active_services,
        site_factor_most=site_factor_most,
        predict_again_s=predict_again_s,
        most_of_one_user=most_of_one_user,
    )
    jobs_per_s = len(window.setup.workload) / (perf_counter() - begun)
    notes = [*describe_sources(predictor), *(note for active in active_services for note in active.notes())]
    return ServiceReplay(
        whatif=answer_request(history, window.request, window.setup, runs=[*runs, simulated], said=notes),
        active_services=tuple(active_services),
        jobs_per_s=jobs_per_s,
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
        self.request, self._progress = replace(request, plans=[_TAUGHT]), progress
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


# The cap on one user's share: the rule of a live cycle, over columns that change from moment to moment.

Floats = NDArray[np.float64]
_AHEAD, _BEYOND = inline_jit(ahead_of_others), inline_jit(beyond_share)


@cached_jit
def _pass_capped(cap: Any, waiting: Any, jobs: Any, urgency: Any, now_s: int, share: float) -> Any:  # noqa: PLR0917 - numba kernels are called by position
    """Take new urgencies, and return the jobs and urgencies that may have changed.

    ``cap`` has the columns of :class:`UserCap`.
    """
    partition, eligible_s, user, started_s, is_named, asked, passed = cap
    asked[jobs] = urgency
    asked[-1] = np.nan
    effective = asked[waiting]
    able = np.flatnonzero(eligible_s[waiting] <= now_s)
    urgencies = effective[able]
    urgencies[np.isnan(urgencies)] = 0.0
    if (urgencies > 0.0).any():
        its = waiting[able]
        ahead = _AHEAD(partition[its], eligible_s[its], user[its], urgencies)
        effective[able[_BEYOND(partition[its], user[its], urgencies, ahead, share)]] = 0.0
    found = np.empty(len(jobs) + len(waiting), dtype=np.int64)
    values = np.empty(len(found))
    is_named[jobs] = True
    n = len(jobs)
    for place in range(len(waiting)):
        job, value, before = waiting[place], effective[place], passed[waiting[place]]
        passed[job] = value
        if value != before and not (np.isnan(value) and np.isnan(before)) and not is_named[job]:
            found[n], values[n] = job, value
            n += 1
    is_named[jobs] = False
    for place in range(len(jobs)):
        job = jobs[place]
        # NOBODY and started jobs keep the urgency that was asked for; applying it gives the right refusal.
        found[place] = job
        values[place] = passed[job] if job >= 0 and started_s[job] == NEVER else urgency[place]
    return found[:n], values[:n]


class UserCap:
    """Cap on one user's share of the jobs put ahead of others'.

    Parameters
    ----------
    cluster : SimulatedCluster
        Only its jobs that wait and could start count.
    active_services : int
        Number of services. They are numbered, and each has its own cap, as live.
    share : float
        ``control.most_of_one_user``.
    """

    def __init__(self, cluster: SimulatedCluster, active_services: int, share: float) -> None:
        self._cluster, self._share = cluster, share
        every = cluster.rows(np.arange(len(cluster.started_s)), None)
        # Jobs without a user count as those of one user, as live.
        self._user, self._partition = (pd.factorize(every.values(name))[0] for name in ("user", "partition"))
        self._eligible_s = every.values("eligible_at").astype("datetime64[us]").view(np.int64) // _SECOND_US
        jobs = len(every.rows) + 1  # the last entry is for NOBODY, whose position is -1
        self._is_named = np.zeros(jobs, dtype=np.bool_)
        self._asked, self._passed = (np.full((active_services, jobs), np.nan) for _ in range(2))

    @property
    def binds(self) -> bool:
        """Whether there is more than one user."""
        return bool((self._user != self._user[:1]).any())

    def passed(self, active: int, jobs: Positions, urgency: Floats) -> tuple[Positions, Floats]:
        """Take a service's new urgencies, and return what the cap lets pass.

        A NaN urgency means that the service no longer asks for the job. The result also has other waiting jobs whose
        value changes because of the new ones.
        """
        cluster = self._cluster
        columns = (self._partition, self._eligible_s, self._user, cluster.started_s, self._is_named)
        cap = (*columns, self._asked[active], self._passed[active])
        found: tuple[Positions, Floats] = _pass_capped(
            cap, cluster.waiting(), jobs, urgency, cluster.now_s, self._share
        )
        return found


FREE = np.iinfo(np.int16).max
"""In place of a service's number, where no service has set the job's urgency."""
NOT_NAMED = "the service no longer asks for it"
_APPLIED = frozenset({Result.DONE, Result.UNCHANGED})


class ReplayGuards:
    """Applies what services propose to a replay, and reverts what they drop.

    Parameters
    ----------
    cluster : SimulatedCluster
    active_services : int
        Number of services. Each has a number; the service with the smaller number has precedence.
    most_of_one_user : float
        As in ``control.most_of_one_user``; 1 for no cap.
    """

    def __init__(self, cluster: SimulatedCluster, active_services: int, most_of_one_user: float = 1.0) -> None:
        self._cluster, self._alone = cluster, active_services == 1
        jobs = len(cluster.started_s) + 1  # the last entry is for NOBODY, whose position is -1
        self._ordered_by = np.full(jobs, FREE, dtype=np.int16)
        self._is_named = np.zeros(jobs, dtype=np.bool_)
        self._named = [np.empty(0, dtype=np.int64)] * active_services
        self._limited_by: dict[str, int] = {}
        cap = UserCap(cluster, active_services, most_of_one_user) if most_of_one_user < 1 else None
        self._cap = cap if cap is not None and cap.binds else None

    @property
    def follows_the_queue(self) -> bool:
        """Whether starts and submissions change the guards.

        With a cap on one user's share it can, even where no service asks for anything new.
        """
        return self._cap is not None

    def change(self, active: int, jobs: Positions, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies of pending jobs by position, and count the results.

        A NaN urgency means that the service does not name the job.
        """
        if self._cap is not None:
            jobs, urgency = self._cap.passed(active, jobs, urgency)
        unnamed = np.isnan(urgency)
        if self._alone and not unnamed.any():
            self._ordered_by[jobs] = active
            self._ordered_by[-1] = FREE
            return self._cluster.change(jobs, urgency)
        owner = self._ordered_by[jobs]
        dropped, another = unnamed & (owner == active), ~unnamed & (owner < active)
        its = ~unnamed & ~another
        self._ordered_by[jobs[its]] = active
        self._ordered_by[jobs[dropped]] = self._ordered_by[-1] = FREE
        outcomes = self._cluster.change(jobs, np.where(its, urgency, np.where(dropped, 0.0, np.nan)))
        return _add_outcome(outcomes, Result.REFUSED, int(another.sum()))

    def act(self, active: int, actions: Sequence[JobAction]) -> Mapping[Result, int]:
        """Apply what a service proposes, revert the rest, and count the results."""
        orders = [action for action in actions if isinstance(action, Reorder)]
        is_simple = not any(isinstance(action, Revert) for action in actions)
        # Of orders no changes are made where that can be avoided: replays have a hundred thousand of them.
        others = [action for action in actions if isinstance(action, SoftLimit)] if is_simple else actions
        changes = to_job_changes(others).changes
        limits = [change for change in changes if change.setting is JobSetting.SOFT_LIMIT]
        ranked = [self._cluster.ranked(order) for order in orders]
        if not is_simple:
            urgency = {change.target: change.value for change in changes if change.setting is JobSetting.ORDER}
            ranked = [(self._cluster.positions([*urgency]), np.array([*urgency.values()]))] if urgency else []
        outcomes = self._order(active, ranked) if ranked or len(self._named[active]) else {}
        if not limits and active not in self._limited_by.values():
            return outcomes
        return Counter(outcomes) + Counter(self._limit(active, limits))

    def release(self, active: int) -> Mapping[Result, int]:
        """Revert all that a service has set."""
        return self.act(active, ())

    def _order(self, active: int, ranked: Sequence[tuple[Positions, Floats]]) -> Mapping[Result, int]:
        jobs, urgency = _places(ranked)
        dropped, self._named[active] = self._unnamed(active, jobs), jobs
        if len(dropped):
            jobs, urgency = np.concatenate((jobs, dropped)), np.concatenate((urgency, np.full(len(dropped), np.nan)))
        return self.change(active, jobs, urgency)

    def _unnamed(self, active: int, named: Positions) -> Positions:
        """Return the pending jobs that a service no longer names.

        Only jobs whose urgency this service has set count.
        """
        before = self._named[active]
        self._is_named[named] = True
        unnamed: Positions = before[~self._is_named[before]]
        self._is_named[named] = False
        its: Positions = unnamed[self._ordered_by[unnamed] == active]
        pending: Positions = its[self._cluster.started_s[its] == NEVER]
        return pending

    def _limit(self, active: int, limits: Sequence[Change[float]]) -> Mapping[Result, int]:
        its = [limit for limit in limits if self._limited_by.get(limit.target, active) >= active]
        outcomes = self._cluster.apply(its)
        limited = {outcome.job_id for outcome in outcomes if outcome.result in _APPLIED}
        self._limited_by.update(dict.fromkeys(limited, active))
        counts = Counter(outcome.result for outcome in outcomes) + Counter(self._revert_limits(active, but=limited))
        return _add_outcome(counts, Result.REFUSED, len(limits) - len(its))

    def _revert_limits(self, active: int, *, but: set[str]) -> Iterator[Result]:
        """Revert a service's soft limits except some, and yield the results.

        Jobs that are no longer pending have no result.
        """
        dropped = tuple(job_id for job_id, setter in self._limited_by.items() if setter == active and job_id not in but)
        for job_id in dropped:
            del self._limited_by[job_id]
        if dropped:
            reverts = [revert_job(JobSetting.SOFT_LIMIT, job_id, reason=NOT_NAMED) for job_id in dropped]
            yield from (it.result for it in self._cluster.apply(reverts) if it.result is not Result.GONE)


def _places(ranked: Sequence[tuple[Positions, Floats]]) -> tuple[Positions, Floats]:
    """Return the positions and urgencies of all jobs in some orders.

    Each job appears once, with its urgency in the last order that names it.
    """
    if not ranked:
        return np.empty(0, dtype=np.int64), np.empty(0)
    if len(ranked) == 1:
        return ranked[0]
    jobs, urgency = (np.concatenate(parts)[::-1] for parts in zip(*ranked, strict=True))
    distinct, last = np.unique(jobs, return_index=True)
    return distinct, urgency[last]


def _add_outcome(outcomes: Mapping[Result, int], result: Result, jobs: int) -> Mapping[Result, int]:
    return {**outcomes, result: outcomes.get(result, 0) + jobs} if jobs else outcomes


# Jobs for which a jobwise service may request another change than at its last call.

Positions = NDArray[np.int64]
_SECOND_US = 1_000_000
