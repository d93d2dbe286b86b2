"""Predictor of run times, trained on the history of a cluster.

It learns the distribution of the run time (:mod:`helios.predict.distribution`), one binary LightGBM model for all
thresholds. Without enough history, or where training does not help, the untrained distribution of past runs predicts
(:mod:`helios.predict.past_runs`).

Whether training helps is seen on held-back jobs: the same recipe is trained on an earlier part of the history (the
backtest), and the jobs after it show which of the two predicts better. They also calibrate the intervals.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

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
from helios.predict.timeline import NO_TAIL, Levels, Model, Pairs, RecordedWalk, Timeline, untrained
from helios.predict.trees import parse_trees

# Training of the trees, here or on other machines.
#
# The interface is narrow on purpose. Arrays go in and LightGBM's own text comes out, so that a model has the same form
# wherever it was trained.

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


class Trainer(Protocol):
    """Interface for the training of trees."""

    def __call__(self, training_set: TrainingSet, *, seed: int, progress: Progress = no_progress) -> str:
        """Return LightGBM's text of the trees."""
        ...


def train_locally(training_set: TrainingSet, *, seed: int, progress: Progress = no_progress) -> str:
    """Train trees on this machine, with one thread.

    It is a :class:`Trainer`. The same seed gives the same trees.
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


FEWEST_JOBS = 200
MOST_JOBS = 50_000
"""Jobs that a model is trained on at most, the last ones, after bursts are thinned."""
MOST_PAIRS = 300_000
"""Pairs that a model is trained on at most, drawn from those of its jobs. A backtest has half as many."""
SPARED_JOBS = 8_000
"""With fewer jobs than this bursts are not thinned."""
LAST_SHARE, TAIL_POINTS = 0.02, 200
"""Share of the runs that outlast the time from which every job goes on as all do, and the points of that curve."""
# Share of the jobs, the last ones that ended, that are held back to evaluate the recipe. It is at least the last week,
# so that the nightly comparison has it, unless that were more than half.
HELD_BACK, HELD_BACK_S, AT_MOST_HELD_BACK = 0.2, 7 * 86_400, 0.5
FEWEST_UNITS = 5
"""Users, or days where no user is known, that held-back jobs must come from to show that training helps."""
SHRINKAGE = "shrinkage"
"""Name of the predictor without a model, the untrained distribution of past runs."""


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
        Times, log1p s, and the share of the runs beyond the first of them that outlast each.
    """

    until: datetime
    jobs: int
    text: str
    tail: NDArray[np.float64] = field(compare=False)

    def kernel(self, *, trained: bool = True) -> Model:
        """Return what the compiled kernels need.

        If not ``trained``, it is the untrained distribution with the tail of the trees.
        """
        forest = parse_trees((self.text,), features=PAIR_FEATURES) if trained else untrained().forest
        return Model(forest=forest, tail=self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationModel:
    """Trained predictor of run times.

    Attributes
    ----------
    model_id : str
        Made of its cluster, its last day and a digest of its parts, so that models with equal ids predict the same.
    trees : Trees
    trained : bool
        Whether the trees predict. False where the untrained distribution was better on held-back jobs.
    levels : Levels, optional
        Calibration of the intervals on the held-back jobs. None where none were held back.
    backtest : Trees, optional
        The same recipe trained on an earlier part of the history, which evaluates the model. None where the history
        was too short to hold any of it back.
    """

    cluster: str
    trees: Trees
    trained: bool = True
    levels: Levels | None = field(default=None, compare=False)
    backtest: Trees | None = None
    model_id: str = field(init=False)
    kernel: Model = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = [self.trees.text, repr(self.trees.tail.tolist()), repr(self.trained)]
        parts += [repr(part.tolist()) for part in self.levels or ()]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
        object.__setattr__(self, "model_id", f"{self.cluster}-{self.trained_until:%Y%m%d}-{digest}")
        object.__setattr__(self, "kernel", self.trees.kernel(trained=self.trained))

    @property
    def trained_until(self) -> datetime:
        """First moment that its trees know nothing of."""
        return self.trees.until

    @property
    def jobs(self) -> int:
        """Number of jobs that had ended when it was trained."""
        return self.trees.jobs

    def as_judged(self) -> DurationModel | None:
        """Return the backtest as a model, or None without a backtest."""
        if self.backtest is None:
            return None
        # The choice of the predictor and the calibration were made on the later jobs, on which it will be evaluated.
        return replace(self, trees=self.backtest, trained=True, levels=None, backtest=None)


def train(
    jobs: pd.DataFrame,
    *,
    cluster: str,
    until: datetime | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
    timezone: str = "UTC",
    trainer: Trainer = train_locally,
) -> DurationModel:
    """Train a model of ``cluster`` on what had happened before ``until``.

    All jobs are used if it is None.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.
    trainer : Trainer
        Trains the trees, here or on other machines.

    Raises
    ------
    NotEnoughHistory
        Fewer than ``FEWEST_JOBS`` jobs with a known run time ended before ``until``.
    """
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(jobs, timezone=timezone)
    return train_on(
        RecordedWalk(table), table, cluster=cluster, until=until, seed=seed, progress=progress, trainer=trainer
    )


def train_on(
    walk: RecordedWalk,
    table: JobTable,
    *,
    cluster: str,
    until: datetime | None,
    seed: int,
    progress: Progress = no_progress,
    trainer: Trainer = train_locally,
) -> DurationModel:
    """Train a model as ``train``, on a walk that has not begun.

    The walk is at ``until`` afterwards, with the calibration of the model.
    """
    until_s = NEVER_S if until is None else int(np.ceil(until.timestamp()))
    ended = _ended_before(table, until_s)
    refuse_too_few(len(ended), until)
    if until is None:
        until_s = int(table.ended_s[ended].max()) + 1
        until = datetime.fromtimestamp(until_s, UTC)
    back_s = _held_back_from(table, ended)
    grow = partial(grow_trees, walk.timeline, seed=seed, trainer=trainer)
    if len(_ended_before(table, back_s)) < FEWEST_JOBS:
        walk.to(until_s)
        return DurationModel(cluster=cluster, trees=grow(until, progress=progress))
    walk.to(back_s)
    back = datetime.fromtimestamp(back_s, UTC)
    backtest = grow(back, progress=partial(_stretch, progress, 0.0, 0.35), most_pairs=MOST_PAIRS // 2)
    plain = walk.branch()
    for each, trained in ((walk, True), (plain, False)):
        each.to(until_s, model=backtest.kernel(trained=trained))
    held_back = ended[table.submitted_s[ended] >= back_s]
    trained = _is_better(walk, plain, table, held_back)
    levels = (walk if trained else plain).levels()
    walk.set_levels(levels)
    return DurationModel(
        cluster=cluster,
        trees=grow(until, progress=partial(_stretch, progress, 0.35, 1.0)),
        trained=trained,
        levels=levels,
        backtest=backtest,
    )


def refit(model: DurationModel, walk: RecordedWalk, *, until: datetime, seed: int) -> DurationModel:
    """Return the model with trees trained anew, as of ``until``.

    Its choice of the predictor and its calibration are kept.
    """
    return replace(model, trees=grow_trees(walk.timeline, until, seed=seed), backtest=None)


def grow_trees(
    timeline: Timeline,
    until: datetime,
    *,
    seed: int,
    trainer: Trainer = train_locally,
    progress: Progress = no_progress,
    most_pairs: int = MOST_PAIRS,
    past: PastRuns | None = None,
) -> Trees:
    """Train trees on what a timeline knows ``until`` now.

    Running jobs teach too, with the thresholds that they have outlasted. Bursts are thinned, and only the last
    ``MOST_JOBS`` jobs are used. ``past`` says what has happened to the jobs, if not what the timeline knows.
    """
    until_s, past = int(np.ceil(until.timestamp())), past or timeline.state.past
    room = len(timeline.state.pairs.threshold)
    rows = np.arange(max(0, timeline.submissions - room), timeline.submissions)
    rows = rows[(past.started_s[rows] < until_s) & (np.isfinite(past.log_run[rows]) | ~past.ended[rows])]
    if len(rows) > SPARED_JOBS:
        rows = without_repeats(rows, groups=timeline.events.groups, submitted_s=timeline.events.submitted_s)
    rows = rows[-MOST_JOBS:]
    pairs = _training_set(timeline.state.pairs, past, rows, until_s, seed=seed, most_pairs=most_pairs)
    return Trees(
        until=until,
        jobs=int(np.isfinite(past.log_run).sum()),
        text=trainer(pairs, seed=seed, progress=progress),
        tail=_tail(past, rows, until_s),
    )


def _training_set(
    pairs: Pairs, past: PastRuns, rows: NDArray[np.int64], until_s: int, *, seed: int, most_pairs: int
) -> TrainingSet:
    places = rows % len(pairs.threshold)
    thresholds = pairs.threshold[places]
    log_run = np.where(past.ended[rows], past.log_run[rows], np.inf)
    age = np.log1p(np.maximum(until_s - past.started_s[rows], 0).astype(np.float64))
    where, which = np.nonzero(thresholds < age[:, None])
    if len(where) > most_pairs:
        chosen = np.sort(np.random.default_rng(seed).choice(len(where), most_pairs, replace=False))
        where, which = where[chosen], which[chosen]
    features = np.concatenate((pairs.of_threshold[places[where], which], pairs.of_job[places[where]]), axis=1)
    ended = (log_run[where] <= thresholds[where, which]).astype(np.float32)
    return TrainingSet(features=features, ended=ended, names=PAIR_FEATURES)


def _tail(past: PastRuns, rows: NDArray[np.int64], until_s: int) -> NDArray[np.float64]:
    """Return the tail beyond the time that ``LAST_SHARE`` of runs outlast.

    It is the estimate of Kaplan and Meier (1958).
    """
    if not len(rows):
        return NO_TAIL
    ended = past.ended[rows]
    so_far = np.where(ended, past.log_run[rows], np.log1p(np.maximum(until_s - past.started_s[rows], 0)))
    order = np.argsort(so_far, kind="stable")
    times, at_risk = so_far[order], np.arange(len(rows), 0, -1)
    survival = np.cumprod(1.0 - ended[order] / at_risk)
    first = min(int(np.searchsorted(-survival, -LAST_SHARE)), len(times) - 1)
    chosen = np.unique(np.linspace(first, len(times) - 1, TAIL_POINTS).astype(np.int64))
    beyond = np.maximum(survival[chosen], 0.5 / len(times))
    return np.stack((times[chosen], beyond / beyond[0]))


def _is_better(walk: RecordedWalk, plain: RecordedWalk, table: JobTable, rows: NDArray[np.int64]) -> bool:
    """Return whether a walk predicts ``rows`` with a smaller loss than another.

    Jobs of fewer than ``FEWEST_UNITS`` users, or days where no user is known, show nothing.
    """
    if len(np.unique(resampling_units(table.user[rows], table.submitted_s[rows]))) < FEWEST_UNITS:
        return False
    quantiles, run_s = slice(RUN_TIME.p10, RUN_TIME.p90 + 1), table.run_time_s[rows]
    trained, untrained_ = (pinball_losses(each.predicted[rows, quantiles], run_s).mean() for each in (walk, plain))
    return bool(trained < untrained_)


def _ended_before(table: JobTable, until_s: int) -> NDArray[np.int64]:
    """Return the jobs of known run time that ended before, by end."""
    rows = np.flatnonzero((table.ended_s < until_s) & np.isfinite(table.run_time_s))
    return rows[np.argsort(table.ended_s[rows], kind="stable")]


def _held_back_from(table: JobTable, ended: NDArray[np.int64]) -> int:
    """Return the time, s, from which the backtest holds jobs back."""
    ends_s = table.ended_s[ended]
    share_s = int(ends_s[int(len(ended) * (1.0 - HELD_BACK))])
    earliest_s = int(ends_s[int(len(ended) * (1.0 - AT_MOST_HELD_BACK))])
    return max(min(share_s, int(ends_s[-1]) - HELD_BACK_S), earliest_s)


def _stretch(progress: Progress, first: float, last: float, step: str, done: float) -> None:
    """Report ``done`` as a part of the range ``first`` to ``last``."""
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
