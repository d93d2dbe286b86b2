"""Predictions inside a replay.

Only jobs that have started or ended in the replay are learned from.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from threading import Barrier

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS
from helios.ports import HORIZON_S, RUN_TIME
from helios.predict.causal_stats import NEVER_S
from helios.predict.duration import SHRINKAGE, DurationModel, grow_trees
from helios.predict.job_table import JobTable
from helios.predict.past_runs import PastRuns
from helios.predict.timeline import RecordedWalk, Timeline, follow_submissions, note_ended, note_started, untrained

FIRST_FIT_JOBS = 1_000
"""Number of ended jobs at which a predictor is first trained."""
MEET_EVERY = 500
"""Number of submissions after which replays that share a training wait for each other."""
KEEPS_UP = 0.8
"""A replay trains together with others if it has at least this share of their ended jobs."""
WARM_SHARE = 0.25
"""Share of the history, its last jobs, whose predictions calibrate the intervals before the replay."""


class UserLast:
    """``ReplayPredictor`` that repeats the run time of the user's last ended job.

    For a user without one it predicts the mean of all jobs in log time. It is a baseline for comparisons.
    """

    def __init__(self, jobs: pd.DataFrame, *, history: pd.DataFrame | None = None) -> None:
        table = JobTable.from_frame(_concat(history, jobs))
        self._first, self._user, self._log_run = table.n - len(jobs), table.user, np.log1p(table.run_time_s)
        self._last = np.full(int(table.user.max(initial=-1)) + 1, np.nan)
        self._n, self._total = 0, 0.0
        ends = table.ends()
        ends = ends[ends < self._first]
        self._unlearned, self._unlearned_s = [ends], [table.ended_s[ends]]  # jobs that end, and when

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Learn that jobs have ended.

        See ``ReplayPredictor``.
        """
        self._unlearned.append(jobs + self._first)
        self._unlearned_s.append(ended_s)

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``.

        See ``ReplayPredictor``.
        """
        self._learn(now_s)
        user = self._user[jobs + self._first]
        mean = self._total / self._n if self._n else 0.0
        last = np.where(user >= 0, self._last[user] if len(self._last) else np.nan, np.nan)
        log_run = np.where(np.isnan(last), mean, last)
        predictions = np.repeat(np.expm1(log_run)[:, None], len(RUN_TIME), axis=1)
        predictions[:, RUN_TIME.truncated_mean] = np.minimum(predictions[:, RUN_TIME.mean], HORIZON_S)
        predictions[:, RUN_TIME.log_mean] = log_run
        return predictions

    def waiting(
        self,
        jobs: NDArray[np.int64],
        now_s: int,
        *,
        running: NDArray[np.int64],  # noqa: ARG002  because every ReplayPredictor takes it
        since_s: NDArray[np.int64],  # noqa: ARG002  likewise
    ) -> NDArray[np.float64]:
        """Predict again the run times of ``jobs``.

        See ``ReplayPredictor``.
        """
        return self.submitted(jobs, now_s)

    def _learn(self, now_s: int) -> None:
        jobs, ended_s = np.concatenate(self._unlearned), np.concatenate(self._unlearned_s)
        order = np.argsort(ended_s, kind="stable")
        jobs, ended_s = jobs[order], ended_s[order]
        n = int(np.searchsorted(ended_s, now_s))
        self._unlearned, self._unlearned_s = [jobs[n:]], [ended_s[n:]]
        for job in jobs[:n][~np.isnan(self._log_run[jobs[:n]])]:
            self._n, self._total = self._n + 1, self._total + self._log_run[job]
            if self._user[job] >= 0:
                self._last[self._user[job]] = self._log_run[job]


class ReplayTrainedPredictor:
    """``ReplayPredictor`` that learns during the replay.

    It begins with ``model``, or without one with the distribution of past runs. With ``refit`` it is trained again when
    ``FIRST_FIT_JOBS`` jobs have ended (with those of ``history``), and at every doubling of their number. With
    ``refit_every_s`` it is also trained when that time has passed since the last training, as by a nightly task.

    Parameters
    ----------
    jobs : DataFrame
        The workload to be replayed, columns of ``JOBS``, in workload order. Methods take positions in it. Times and
        states of a job are not used before :meth:`ended` is called for it. Its run time is then the recorded one.
    history : DataFrame, optional
        Earlier jobs, in submission order. They start and end as recorded, also while the replay runs.
    model : DurationModel, optional
        Trained on what had happened before the replay begins.
    refit_every_s : int, optional
        Longest time between trainings, s. None to train at doublings only.
    shared : SharedTraining, optional
        Training together with other replays of the same jobs. None to train alone.
    describes : bool
        Whether to keep what a model is trained on, .9 kB a job. Of replays that train together, one is enough.

    Attributes
    ----------
    timeline : Timeline
        What it has learned.
    unlearned : UnlearnedEvents
        Starts and ends that it knows and has not yet learned.
    first : int
        Position of the first of ``jobs`` in the timeline, behind those of ``history``.
    source : int16 array of shape (len(jobs),)
        Position in ``sources`` of what predicted each job last; -1 for a job that is not submitted.
    sources : list of str
        "shrinkage", then model ids.

    Raises
    ------
    FrameInvalid
        Jobs are not in submission order, or a job of ``history`` was submitted after the first of ``jobs``.
    """

    def __init__(
        self,
        jobs: pd.DataFrame,
        *,
        history: pd.DataFrame | None = None,
        model: DurationModel | None = None,
        refit: bool = True,
        refit_every_s: int | None = None,
        seed: int = 0,
        timezone: str = "UTC",
        shared: SharedTraining | None = None,
        describes: bool = True,
    ) -> None:
        table = JobTable.from_frame(_concat(history, jobs), timezone=timezone)
        self.first = first = table.n - len(jobs)
        self.describes = refit and describes
        walk = RecordedWalk(table, before=first, pairs=self.describes)
        walk.submit(first - int(first * WARM_SHARE))
        walk.submit(first, model=untrained())
        self.timeline = walk.timeline
        if model is not None:
            walk.set_calibration(model.calibration or walk.calibration())
            self.timeline.model = model.kernel
        self.unlearned = walk.unlearned_events(np.nan_to_num(table.run_time_s).round().astype(np.int64))
        self._model, self._seed, self._refit, self._refit_every_s = model, seed, refit, refit_every_s
        self._fitted_s = int(model.trained_until.timestamp()) if model else None
        self._next_fit = max(FIRST_FIT_JOBS, 2 * model.jobs if model else 0)
        self.sources = [SHRINKAGE] + ([model.model_id] if model else [])
        self.source = np.full(len(jobs), -1, dtype=np.int16)
        self._shared, self._n_meetings = shared, 0
        if shared is not None:
            shared.members.append(self)

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Add the ends of ``jobs`` at the ascending times ``ended_s``."""
        note_ended(self.unlearned, jobs + self.first, ended_s)

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``, submitted at ``now_s``.

        See ``ReplayPredictor``.
        """
        self.timeline.learn(self.unlearned, now_s)
        self.train_if_due(int(jobs[-1]), now_s)
        self.source[jobs] = len(self.sources) - 1
        return self.timeline.submitted(jobs + self.first, now_s)

    def follow(
        self,
        jobs: NDArray[np.int64],
        submitted_s: NDArray[np.int64],
        *,
        ended: NDArray[np.int64],
        ended_s: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], int]:
        """Predict jobs in the order of their submission, with ends in between.

        The result is that of calls of :meth:`ended` and :meth:`submitted` in the order of time.

        Parameters
        ----------
        jobs : int64 array of shape (n,)
            Consecutive jobs, submitted at ``submitted_s``, s since the epoch.
        ended, ended_s : int64 arrays
            Jobs that end, and when, in order of time.

        Returns
        -------
        predictions : float64 array of shape (n, len(RUN_TIME))
        n_ended : int
            How many of ``ended`` were added, those up to the last submission.
        """
        timeline, rows, ended = self.timeline, jobs + self.first, ended + self.first
        timeline.events.submitted_s[rows] = submitted_s
        predictions, progress = np.empty((len(jobs), len(RUN_TIME))), np.zeros(2, dtype=np.int64)
        is_done, begin = False, 0
        while not is_done:
            first_job, n_learned, due_s = self.training_limits()
            is_done = follow_submissions(
                *(timeline.state, timeline.events, timeline.model, self.unlearned, rows, ended, ended_s),
                *((max(first_job - int(jobs[0]), 0), n_learned, due_s), progress, predictions),
            )
            end = int(progress[0])
            self.source[jobs[begin:end]] = len(self.sources) - 1
            timeline.submissions, begin = max(timeline.submissions, int(rows[0]) + end), end
            if not is_done:
                now_s = int(submitted_s[end])
                self.train_if_due(int(jobs[np.searchsorted(submitted_s, now_s, side="right") - 1]), now_s)
        return predictions, int(progress[1])

    def train_if_due(self, last_job: int, now_s: int) -> None:
        """Train if one of the training limits is reached.

        Replays with a shared training wait for each other first.

        Parameters
        ----------
        last_job : int
            The last job that is to be predicted next.
        """
        first_job, n_learned, due_s = self.training_limits()
        if last_job < first_job and self.learned < n_learned and now_s < due_s:
            return
        if self._shared is None:
            self.fit(now_s)
        else:
            self._n_meetings = last_job // MEET_EVERY
            self._shared.meet(now_s)

    def training_limits(self) -> tuple[int, int, int]:
        """Return the job, learned ends and time when training is due.

        The time is in s since the epoch. ``NEVER_S`` is no limit.
        """
        if self._shared is not None:
            return (self._n_meetings + 1) * MEET_EVERY, NEVER_S, NEVER_S
        by_time = self._refit and self._refit_every_s is not None and self._fitted_s is not None
        due_s = (self._fitted_s or 0) + (self._refit_every_s or 0) if by_time else NEVER_S
        return NEVER_S, self._next_fit if self._refit else NEVER_S, due_s

    def waiting(
        self,
        jobs: NDArray[np.int64],
        now_s: int,
        *,
        running: NDArray[np.int64],
        since_s: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Predict again ``jobs`` that still wait at ``now_s``.

        See ``ReplayPredictor``. Jobs that ended since their submission are used, and the ages of running jobs.
        """
        note_started(self.unlearned, running + self.first, since_s, now_s)
        self.timeline.learn(self.unlearned, now_s)
        self.source[jobs] = len(self.sources) - 1
        return self.timeline.waiting(jobs + self.first, now_s)

    @property
    def past(self) -> PastRuns:
        """Jobs that have run and that run in the replay."""
        return self.timeline.state.past

    @property
    def learned(self) -> int:
        """Number of ended jobs with a known run time that it has learned."""
        return int(self.unlearned.learned[0])

    @property
    def is_due(self) -> bool:
        """Whether enough jobs have ended for a training."""
        return self.learned >= self._next_fit

    def fit(self, now_s: int, *, past: PastRuns | None = None, described: Timeline | None = None) -> DurationModel:
        """Train a model on what has happened by ``now_s``, and use it.

        Parameters
        ----------
        past : PastRuns, optional
            What has happened; None for all that happened in this replay.
        described : Timeline, optional
            Timeline with the pairs to train on; None for that of this object.
        """
        trees = grow_trees(described or self.timeline, datetime.fromtimestamp(now_s, UTC), seed=self._seed, past=past)
        cluster, trained = (self._model.cluster, self._model.trained) if self._model else ("replay", True)
        model = DurationModel(cluster=cluster, trees=trees, trained=trained)
        self.adopt(model, now_s)
        return model

    def adopt(self, model: DurationModel, now_s: int) -> None:
        """Use ``model`` from now on."""
        self.timeline.model = model.kernel
        self.sources.append(model.model_id)
        self._fitted_s, self._next_fit = now_s, 2 * self.learned


class SharedTraining:
    """Training of one model for several replays of the same jobs.

    Each replay has its own thread. They wait for each other at every ``MEET_EVERY``-th submission. When training is due
    in one of them, a model is trained on the events that happened in it and in all others that have about as many ended
    jobs. So no replay learns what has not happened in it yet. A replay that falls behind is trained later. (This
    happens in a strict order, where jobs wait for months that have long ended in others.) The pairs are those of the
    replay with the fewest ended jobs among those with ``describes``.

    Parameters
    ----------
    replays : int
        Number of predictors that share it.

    Attributes
    ----------
    members : list of ReplayTrainedPredictor
    """

    def __init__(self, replays: int) -> None:
        self.members: list[ReplayTrainedPredictor] = []
        self._now_s = 0
        self._barrier = Barrier(replays, action=self._train)

    def meet(self, now_s: int) -> None:
        """Wait until all replays are at ``now_s``.

        Raises
        ------
        BrokenBarrierError
            One of them failed.
        """
        self._now_s = now_s
        self._barrier.wait()

    def abort(self) -> None:
        """Stop the replays that wait, and the others at their next meeting."""
        self._barrier.abort()

    def _train(self) -> None:
        while due := [member for member in self.members if member.is_due]:
            most = max(member.learned for member in due)
            group = [member for member in self.members if KEEPS_UP * most <= member.learned <= most]
            group.sort(key=lambda member: member.learned)
            described = next(member for member in (*group, *self.members) if member.describes)
            past = _common_past([member.past for member in group])
            model = group[0].fit(self._now_s, past=past, described=described.timeline)
            for member in group[1:]:
                member.adopt(model, self._now_s)


def _common_past(pasts: list[PastRuns]) -> PastRuns:
    """Return the events that happened in all of several replays."""
    ended = np.logical_and.reduce([past.ended for past in pasts])
    return replace(
        pasts[0],
        started_s=np.maximum.reduce([past.started_s for past in pasts]),
        ended=ended,
        ended_s=np.maximum.reduce([past.ended_s for past in pasts]),
        log_run=np.where(ended, pasts[0].log_run, np.nan),
    )


def _concat(history: pd.DataFrame | None, jobs: pd.DataFrame) -> pd.DataFrame:
    if history is None or history.empty:
        return jobs
    return JOBS.conform(pd.concat([history, jobs], ignore_index=True))
