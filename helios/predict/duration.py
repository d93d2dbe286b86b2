"""Predictor of run times, trained on the history of a cluster.

It learns the distribution of the run time with one binary LightGBM model for all thresholds
(:mod:`helios.predict.distribution`). Without enough history, or where training does not help, the untrained
distribution of past runs is used (:mod:`helios.predict.past_runs`).

Whether training helps is measured on held-back jobs. The same kind of model is trained on an earlier part of the
history (the backtest), and the later jobs show which of the two predicts better. They also calibrate the intervals.

Trees are trained here or on other machines. The input is arrays and the output LightGBM's own text, so that a model
does not depend on where it was trained.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import NotEnoughHistory
from helios.ports import RUN_TIME, Progress, no_progress
from helios.predict.causal_stats import NEVER_S
from helios.predict.distribution import PAIR_FEATURES
from helios.predict.job_table import JobTable
from helios.predict.past_runs import PastRuns
from helios.predict.scores import pinball_losses, resampling_units, without_repeats
from helios.predict.timeline import NO_TAIL, Calibration, Model, Pairs, RecordedWalk, Timeline, untrained
from helios.predict.trees import parse_trees

ROUNDS = 120
PARAMETERS = {
    "objective": "binary",
    "num_leaves": 31,
    "learning_rate": 0.06,
    "min_data_in_leaf": 150,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "max_bin": 127,
    # One thread gives the same trees on every machine, and no waiting at a barrier when the machine is busy.
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}

FEWEST_JOBS = 200
MOST_JOBS = 50_000
"""Most jobs that a model is trained on, the last ones, after bursts are thinned."""
MOST_PAIRS = 300_000
"""Most pairs that a model is trained on, drawn from those of its jobs. A backtest has half as many."""
THINNED_FROM_JOBS = 8_000
"""Bursts are thinned where there are more jobs than this."""

FEWEST_UNITS = 5
"""Fewest users, or days where no user is known, of held-back jobs that can show that training helps."""
SHRINKAGE = "shrinkage"
"""Name of the predictor without a model, the untrained distribution of past runs."""

TAIL_SHARE, TAIL_POINTS = 0.02, 200
"""The tail, common to all jobs, begins at the time that this share of runs outlasts. It has at most so many points."""
# Share of the jobs, the last ones that ended, that are held back to evaluate a model. They are at least those of the
# last week, for the nightly comparison, but at most half of all.
HELD_BACK, HELD_BACK_S, AT_MOST_HELD_BACK = 0.2, 7 * 86_400, 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSet:
    """Input of the training of trees.

    Attributes
    ----------
    features : float32 array of shape (n_pairs, n_features)
        NaN where a value is unknown.
    ended : float32 array of shape (n_pairs,)
        Target of the training, 1 where the run had ended by the threshold.
    names : tuple of str
        Names of the columns of ``features``.
    """

    features: NDArray[np.float32]
    ended: NDArray[np.float32]
    names: tuple[str, ...]


def fit_trees(training_set: TrainingSet, *, seed: int, progress: Progress = no_progress) -> str:
    """Return LightGBM's text of the trees.

    They are trained with one thread. The same seed gives the same trees.
    """
    pairs = lightgbm.Dataset(
        training_set.features,
        training_set.ended,
        feature_name=list(training_set.names),
        params=PARAMETERS,
        free_raw_data=True,
    )

    def report_round(environment: Any) -> None:
        progress("Learning run times", (environment.iteration + 1) / ROUNDS)

    booster = lightgbm.train(PARAMETERS | {"seed": seed}, pairs, ROUNDS, callbacks=[report_round])
    return str(booster.model_to_string())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Trained part of a model.

    Attributes
    ----------
    until : datetime
        Nothing that happened at or after this was used.
    jobs : int
        Number of ended jobs by then.
    text : str
        LightGBM's text.
    tail : float64 array of shape (2, k)
        As in :class:`helios.predict.timeline.Model`.
    """

    until: datetime
    jobs: int
    text: str
    tail: NDArray[np.float64] = field(compare=False)

    def kernel(self, *, trained: bool = True) -> Model:
        """Return the trees for compiled kernels.

        If not ``trained``, the result is the untrained distribution with the tail of the trees.
        """
        forest = parse_trees((self.text,), features=PAIR_FEATURES) if trained else untrained().forest
        return Model(forest=forest, tail=self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationModel:
    """Trained predictor of run times.

    Attributes
    ----------
    model_id : str
        Cluster, last day and a digest of the content, so that models with equal ids predict the same.
    trees : Trees
    trained : bool
        Whether the trees are used. False where the untrained distribution was better on held-back jobs.
    calibration : Calibration, optional
        Calibration of the intervals on the held-back jobs. None where none were held back.
    backtest : Trees, optional
        Trees trained in the same way on an earlier part of the history, by which the model is evaluated. None where the
        history was too short to hold jobs back.
    """

    cluster: str
    trees: Trees
    trained: bool = True
    calibration: Calibration | None = field(default=None, compare=False)
    backtest: Trees | None = None
    model_id: str = field(init=False)
    kernel: Model = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = [self.trees.text, repr(self.trees.tail.tolist()), repr(self.trained)]
        parts += [repr(part.tolist()) for part in self.calibration or ()]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
        object.__setattr__(self, "model_id", f"{self.cluster}-{self.trained_until:%Y%m%d}-{digest}")
        object.__setattr__(self, "kernel", self.trees.kernel(trained=self.trained))

    @property
    def trained_until(self) -> datetime:
        """Time from which on nothing was used for training."""
        return self.trees.until

    @property
    def jobs(self) -> int:
        """Number of jobs that had ended when it was trained."""
        return self.trees.jobs

    def backtest_model(self) -> DurationModel | None:
        """Return the backtest as a model to evaluate, or None without a backtest."""
        if self.backtest is None:
            return None
        # ``trained`` and the calibration depend on the later jobs, on which the backtest will be evaluated.
        return replace(self, trees=self.backtest, trained=True, calibration=None, backtest=None)


def train(
    jobs: pd.DataFrame,
    *,
    cluster: str,
    until: datetime | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
    timezone: str = "UTC",
) -> DurationModel:
    """Train a model on what happened before ``until``, or on all jobs.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.

    Raises
    ------
    NotEnoughHistory
        Fewer than ``FEWEST_JOBS`` jobs with a known run time ended before ``until``.
    """
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(jobs, timezone=timezone)
    return train_on(RecordedWalk(table), table, cluster=cluster, until=until, seed=seed, progress=progress)


def train_on(
    walk: RecordedWalk,
    table: JobTable,
    *,
    cluster: str,
    until: datetime | None,
    seed: int,
    progress: Progress = no_progress,
) -> DurationModel:
    """Train a model as ``train`` does, on a walk that has not begun.

    Afterwards the walk is at ``until`` and has the calibration of the model.
    """
    until_s = NEVER_S if until is None else int(np.ceil(until.timestamp()))
    ended = _ended_before(table, until_s)
    refuse_too_few(len(ended), until)
    if until is None:
        until_s = int(table.ended_s[ended].max()) + 1
        until = datetime.fromtimestamp(until_s, UTC)
    backtest_s = _held_back_from_s(table, ended)
    grow = partial(grow_trees, walk.timeline, seed=seed)
    if len(_ended_before(table, backtest_s)) < FEWEST_JOBS:
        walk.to(until_s)
        return DurationModel(cluster=cluster, trees=grow(until, progress=progress))
    walk.to(backtest_s)
    backtest = grow(
        datetime.fromtimestamp(backtest_s, UTC),
        progress=partial(_report_part, progress, 0.0, 0.35),
        most_pairs=MOST_PAIRS // 2,
    )
    untrained_walk = walk.branch()
    walk.to(until_s, model=backtest.kernel())
    untrained_walk.to(until_s, model=backtest.kernel(trained=False))
    held_back = ended[table.submitted_s[ended] >= backtest_s]
    trained = _is_better(walk, untrained_walk, table, held_back)
    calibration = (walk if trained else untrained_walk).calibration()
    walk.set_calibration(calibration)
    return DurationModel(
        cluster=cluster,
        trees=grow(until, progress=partial(_report_part, progress, 0.35, 1.0)),
        trained=trained,
        calibration=calibration,
        backtest=backtest,
    )


def grow_trees(
    timeline: Timeline,
    until: datetime,
    *,
    seed: int,
    progress: Progress = no_progress,
    most_pairs: int = MOST_PAIRS,
    past: PastRuns | None = None,
) -> Trees:
    """Train trees on what a timeline has learned, which is now at ``until``.

    Running jobs are used too, with the thresholds that they have outlasted. Bursts are thinned, and only the last
    ``MOST_JOBS`` jobs are used.

    Parameters
    ----------
    past : PastRuns, optional
        What has happened to the jobs; None for what the timeline has learned.
    """
    until_s, past = int(np.ceil(until.timestamp())), past or timeline.state.past
    room = len(timeline.state.pairs.threshold)
    rows = np.arange(max(0, timeline.submissions - room), timeline.submissions)
    rows = rows[(past.started_s[rows] < until_s) & (np.isfinite(past.log_run[rows]) | ~past.ended[rows])]
    if len(rows) > THINNED_FROM_JOBS:
        rows = without_repeats(rows, groups=timeline.events.groups, submitted_s=timeline.events.submitted_s)
    rows = rows[-MOST_JOBS:]
    pairs = _training_set(timeline.state.pairs, past, rows, until_s, seed=seed, most_pairs=most_pairs)
    return Trees(
        until=until,
        jobs=int(np.isfinite(past.log_run).sum()),
        text=fit_trees(pairs, seed=seed, progress=progress),
        tail=_tail(past, rows, until_s),
    )


def _training_set(
    pairs: Pairs, past: PastRuns, rows: NDArray[np.int64], until_s: int, *, seed: int, most_pairs: int
) -> TrainingSet:
    pair_rows = rows % len(pairs.threshold)
    thresholds = pairs.threshold[pair_rows]
    log_run = np.where(past.ended[rows], past.log_run[rows], np.inf)
    age = np.log1p(np.maximum(until_s - past.started_s[rows], 0).astype(np.float64))
    job, k = np.nonzero(thresholds < age[:, None])
    if len(job) > most_pairs:
        chosen = np.sort(np.random.default_rng(seed).choice(len(job), most_pairs, replace=False))
        job, k = job[chosen], k[chosen]
    features = np.concatenate((pairs.threshold_features[pair_rows[job], k], pairs.job_features[pair_rows[job]]), axis=1)
    ended = (log_run[job] <= thresholds[job, k]).astype(np.float32)
    return TrainingSet(features=features, ended=ended, names=PAIR_FEATURES)


def _tail(past: PastRuns, rows: NDArray[np.int64], until_s: int) -> NDArray[np.float64]:
    """Return the tail beyond the time that ``TAIL_SHARE`` of runs outlast.

    It is the estimate of Kaplan and Meier (1958).
    """
    if not len(rows):
        return NO_TAIL
    ended = past.ended[rows]
    log_time = np.where(ended, past.log_run[rows], np.log1p(np.maximum(until_s - past.started_s[rows], 0)))
    order = np.argsort(log_time, kind="stable")
    times, at_risk = log_time[order], np.arange(len(rows), 0, -1)
    survival = np.cumprod(1.0 - ended[order] / at_risk)
    first = min(int(np.searchsorted(-survival, -TAIL_SHARE)), len(times) - 1)
    chosen = np.unique(np.linspace(first, len(times) - 1, TAIL_POINTS).astype(np.int64))
    tail_survival = np.maximum(survival[chosen], 0.5 / len(times))
    return np.stack((times[chosen], tail_survival / tail_survival[0]))


def _is_better(walk: RecordedWalk, other: RecordedWalk, table: JobTable, rows: NDArray[np.int64]) -> bool:
    """Return whether a walk predicts ``rows`` with a smaller loss than another.

    False if the jobs come from fewer than ``FEWEST_UNITS`` users, or days where no user is known.
    """
    if len(np.unique(resampling_units(table.user[rows], table.submitted_s[rows]))) < FEWEST_UNITS:
        return False
    quantiles, run_s = slice(RUN_TIME.p10, RUN_TIME.p90 + 1), table.run_time_s[rows]
    loss, other_loss = (pinball_losses(each.predicted[rows, quantiles], run_s).mean() for each in (walk, other))
    return bool(loss < other_loss)


def _ended_before(table: JobTable, until_s: int) -> NDArray[np.int64]:
    """Return jobs of known run time ended before a time, by end."""
    rows = np.flatnonzero((table.ended_s < until_s) & np.isfinite(table.run_time_s))
    return rows[np.argsort(table.ended_s[rows], kind="stable")]


def _held_back_from_s(table: JobTable, ended: NDArray[np.int64]) -> int:
    """Return the time from which jobs are held back, s since the epoch."""
    ends_s = table.ended_s[ended]
    share_s = int(ends_s[int(len(ended) * (1.0 - HELD_BACK))])
    earliest_s = int(ends_s[int(len(ended) * (1.0 - AT_MOST_HELD_BACK))])
    return max(min(share_s, int(ends_s[-1]) - HELD_BACK_S), earliest_s)


def _report_part(progress: Progress, first: float, last: float, step: str, done: float) -> None:
    """Report the progress of a part of the whole."""
    progress(step, first + (last - first) * done)


def refuse_too_few(ended: int, until: datetime | None) -> None:
    """Raise NotEnoughHistory if ``ended`` jobs are too few to train on."""
    if ended >= FEWEST_JOBS:
        return
    before = "" if until is None else f" ended before {until:%Y-%m-%d %H:%M} and"
    raise NotEnoughHistory(
        f"{ended:,} jobs{before} have a known run time; to train a model takes at least {FEWEST_JOBS:,}.",
        hint="Load a longer history, or choose a later moment. Without a model, predictions come from shrinkage.",
    )
