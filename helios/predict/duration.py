"""Predictors of run time by shrinkage and by boosted trees.

Shrinkage serves from the first job. Trees correct it.

There are four ensembles of trees (LightGBM, quantile loss on log run time). Three predict p10, p50 and p90 of the
*difference* from the shrinkage anchor, which transfers better to sites with few users or one dominating array than the
level does. The fourth predicts the median of the level itself. The predicted median is the mean of both, which err on
different jobs.

The weight of the trees is chosen on held-back jobs: the same recipe is trained on an earlier part of the history (the
backtest), and the jobs after it show which share of the correction orders jobs best. They also calibrate the intervals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any, Protocol

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import NotEnoughHistory
from helios.jit import cached_jit
from helios.ports import Progress, no_progress
from helios.predict.bursts import without_repeats
from helios.predict.calibration import Calibration, calibrate
from helios.predict.causal_stats import COLUMN, FEATURES, NEVER_S
from helios.predict.job_table import FeaturesAtStart, JobTable, features_at_start, group_columns
from helios.predict.scores import spearman
from helios.predict.trees import TreeEnsemble, parse_trees, predict_trees

# Training of the trees, one ensemble for each quantile, here or on other machines.
#
# The interface is narrow on purpose. Arrays go in and LightGBM's own text comes out, so that a model has the same form
# wherever it was trained.

ROUNDS = 250
PARAMETERS = {
    "objective": "quantile",
    "num_leaves": 31,  # against 15: docs/experiments.md
    "learning_rate": 0.08,
    "min_data_in_leaf": 40,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    # Half as many bins as before, and every feature in every tree (before: 70 %): the loss on KTH and SDSC-BLUE is the
    # same or lower, and Dask's workers exchange half as much. What else was tried is in docs/experiments.md.
    "max_bin": 63,
    # The three quantiles are trained in parallel, one thread each. This gives the same trees on every machine, and no
    # waiting at an OpenMP barrier when the machine is busy with something else.
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
    features : float32 array of shape (n_jobs, n_features)
        NaN where a value is unknown.
    residual : float64 array of shape (n_jobs,)
        Target of the training, such as log1p of the run time in s less the shrinkage anchor.
    weight : float64 array of shape (n_jobs,), optional
        None for equal weights, which takes a third of the time.
    names : tuple of str
        Names of the columns of ``features``.
    """

    features: NDArray[np.float32]
    residual: NDArray[np.float64]
    names: tuple[str, ...]
    weight: NDArray[np.float64] | None = None


class Trainer(Protocol):
    """Interface for the training of trees."""

    def __call__(
        self, training_set: TrainingSet, *, quantiles: Sequence[float], seed: int, progress: Progress = no_progress
    ) -> tuple[str, ...]:
        """Return LightGBM's text of one ensemble for each of ``quantiles``."""
        ...


def train_locally(
    training_set: TrainingSet, *, quantiles: Sequence[float], seed: int, progress: Progress = no_progress
) -> tuple[str, ...]:
    """Train trees on this machine, with one thread for each quantile.

    It is a :class:`Trainer`. The same seed gives the same trees.
    """
    binned = lightgbm.Dataset(
        training_set.features,
        training_set.residual,
        weight=training_set.weight,
        feature_name=list(training_set.names),
        params=PARAMETERS,
        free_raw_data=True,
    ).construct()
    rounds_done, lock = 0, Lock()

    def report_round(_: Any) -> None:
        nonlocal rounds_done
        with lock:
            rounds_done += 1
            progress("Learning run times", rounds_done / (ROUNDS * len(quantiles)))

    def grow(quantile: float) -> str:
        parameters = PARAMETERS | {"alpha": quantile, "seed": seed}
        return str(lightgbm.train(parameters, binned, ROUNDS, callbacks=[report_round]).model_to_string())

    with ThreadPoolExecutor(len(quantiles)) as side_by_side:
        return tuple(side_by_side.map(grow, quantiles))


QUANTILES = (0.1, 0.5, 0.9)
LEVEL = 3
"""Position of the ensemble for the level itself. The first three are those of ``QUANTILES``."""
FEWEST_JOBS = 200
# A bound on training time and memory. The last jobs are used, after bursts are thinned. SDSC-BLUE (107,000) stays below
# it, so what it costs in quality is not known. The backtest uses half of it.
MOST_JOBS = 200_000
# With fewer jobs than this bursts are not thinned. KTH (20,000) is the smallest log on which thinning was tried.
SPARED_JOBS = 10_000
# Share of the jobs, the last ones that ended, that are held back to evaluate the recipe. It is at least the last week,
# so that the nightly comparison has it, unless that were more than half.
HELD_BACK, HELD_BACK_S, AT_MOST_HELD_BACK = 0.2, 7 * 86_400, 0.5
# Shares of the trees' correction that are tried. The largest one is used unless another orders the held-back jobs
# clearly better.
TRUSTS = (1.0, 0.75, 0.5, 0.25, 0.0)
CLEARLY = 0.005
# A century. A prediction beyond it is an overflow or comes from a damaged model.
LONGEST_S = 100 * 366 * 86_400.0
Z90 = 1.2815515655446004  # the normal distribution's .9 quantile


@dataclass(frozen=True, slots=True)
class HistoryPredictor:
    """Predictor by hierarchical shrinkage alone.

    It needs no training and works from the first job. Quantiles come from the spread of the same groups, taken as
    normal in log time, and are cut at the job's time limit.
    """

    model_id: str = "shrinkage"

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return p10, p50 and p90 of the run time, s, of shape (n, 3).

        ``features`` must be causal.
        """
        return np.asarray(_shrinkage_quantiles(features))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """The same recipe trained on an earlier part of the history.

    Later jobs are used to evaluate it.

    Attributes
    ----------
    until : datetime
        No job that ended at or after this was used.
    jobs : int
        Number of jobs it learned from.
    texts : tuple of str
        As in :class:`DurationModel`.
    """

    until: datetime
    jobs: int
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationModel:
    """Trained predictor of run times.

    Attributes
    ----------
    model_id : str
        Made of its cluster, its last day and a digest of its trees, so that models with equal ids predict the same.
    trained_until : datetime
        No job that ended at or after this was used.
    jobs : int
        Number of jobs it learned from.
    features : tuple of str
        Names of the columns of its feature matrix.
    texts : tuple of str
        LightGBM's text of the trees, for p10, p50 and p90 of the difference from the anchor and p50 of the level.
    trust : float
        Share of the trees' correction that is used, 0 (shrinkage alone) to 1, chosen on held-back jobs.
    calibration : Calibration, optional
        Calibration of the intervals on the held-back jobs. None where none were held back.
    backtest : Backtest, optional
        Backtest that evaluates the model. None where the history was too short to hold any of it back.
    """

    cluster: str
    trained_until: datetime
    jobs: int
    features: tuple[str, ...]
    texts: tuple[str, ...]
    trust: float = 1.0
    calibration: Calibration | None = field(default=None, compare=False)
    backtest: Backtest | None = None
    model_id: str = field(init=False)
    forest: TreeEnsemble = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        said = [*self.texts, repr(self.trust), *(repr(part.tolist()) for part in self.calibration or ())]
        digest = hashlib.sha256("\n".join(said).encode()).hexdigest()[:8]
        object.__setattr__(self, "model_id", f"{self.cluster}-{self.trained_until:%Y%m%d}-{digest}")
        object.__setattr__(self, "forest", parse_trees(self.texts, features=self.features))

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return p10, p50 and p90 of the run time, s, not calibrated.

        Parameters
        ----------
        features : float32 array of shape (n, len(self.features))
            As :func:`helios.predict.job_table.causal_features` makes them.

        Returns
        -------
        float64 array of shape (n, 3)
            Ascending in each row. NaN where the trees give an impossible run time.
        """
        return np.asarray(_mixed(predict_trees(self.forest, features), features, self.trust))

    def as_judged(self) -> DurationModel | None:
        """Return the backtest as a model, or None without a backtest."""
        if self.backtest is None:
            return None
        return replace(
            self,
            trained_until=self.backtest.until,
            jobs=self.backtest.jobs,
            texts=self.backtest.texts,
            trust=TRUSTS[0],  # this and the calibration were chosen on the later jobs, on which it will be evaluated
            calibration=None,
            backtest=None,
        )


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
    """Train a model of ``cluster`` on the jobs that ended before ``until``.

    All ended jobs are used if it is None.

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
        table, features_at_start(table), cluster=cluster, until=until, seed=seed, progress=progress, trainer=trainer
    )


def train_on(
    table: JobTable,
    known: FeaturesAtStart,
    *,
    cluster: str,
    until: datetime | None,
    seed: int,
    progress: Progress = no_progress,
    trainer: Trainer = train_locally,
) -> DurationModel:
    """Train a model as ``train``, from features that were computed before."""
    until_s = NEVER_S if until is None else int(np.ceil(until.timestamp()))
    ended = _ended_before(table, until_s)
    refuse_too_few(len(ended), until)
    groups = group_columns(table)
    fit_rows = partial(_fit_rows, table, known, groups=groups, cluster=cluster, seed=seed, trainer=trainer)
    until = until or datetime.fromtimestamp(int(table.ended_s[ended].max()) + 1, UTC)
    back_s = _held_back_from(table, ended)
    earlier = _ended_before(table, back_s)
    if len(earlier) < FEWEST_JOBS:
        return fit_rows(ended, until=until, progress=progress)
    first = partial(_stretch, progress, 0.0, 0.45)
    judged = fit_rows(earlier, until=datetime.fromtimestamp(back_s, UTC), progress=first, most=MOST_JOBS // 2)
    held_back = ended[table.submitted_s[ended] >= back_s]
    trust = _best_trust(judged, known.at_submission[held_back], table.run_time_s[held_back])
    # The held-back jobs calibrate its intervals, in the order of their ends.
    judged = replace(judged, trust=trust)
    waited = np.flatnonzero((table.submitted_s >= back_s) & (table.submitted_s < until_s))
    quantiles = np.full((table.n, 3), np.nan)
    quantiles[waited] = judged.predict(known.at_submission[waited])
    _, calibration = calibrate(
        known.at_submission,
        quantiles,
        groups=groups,
        submitted_s=table.submitted_s,
        ended_s=table.ended_s,
        run_time_s=table.run_time_s,
        until_s=until_s,
    )
    return replace(
        fit_rows(ended, until=until, progress=partial(_stretch, progress, 0.45, 1.0)),
        trust=trust,
        calibration=calibration,
        backtest=Backtest(until=judged.trained_until, jobs=judged.jobs, texts=judged.texts),
    )


def refit(
    model: DurationModel, table: JobTable, known: FeaturesAtStart, *, until: datetime, seed: int
) -> DurationModel:
    """Return the model with trees trained anew on jobs ended before ``until``.

    Its trust and calibration are kept.
    """
    ended = _ended_before(table, int(np.ceil(until.timestamp())))
    groups = group_columns(table)
    grown = _fit_rows(table, known, ended, groups=groups, cluster=model.cluster, until=until, seed=seed)
    return replace(grown, trust=model.trust, calibration=model.calibration)


def _fit_rows(
    table: JobTable, known: FeaturesAtStart, ended: NDArray[np.int64], *, until: datetime, **options: Any
) -> DurationModel:
    """Train on the jobs ``ended`` of a table, as ``fit`` does."""
    return fit(
        ended,
        features=known.at_submission,
        again=known,
        submitted_s=table.submitted_s,
        log_run=np.log1p(table.run_time_s),
        trained_until=until,
        **options,
    )


def _ended_before(table: JobTable, until_s: int) -> NDArray[np.int64]:
    """Return the jobs of known run time that ended before, ordered by end."""
    rows = np.flatnonzero((table.ended_s < until_s) & np.isfinite(table.run_time_s))
    return rows[np.argsort(table.ended_s[rows], kind="stable")]


def _held_back_from(table: JobTable, ended: NDArray[np.int64]) -> int:
    """Return the time, s, from which jobs are held back from the backtest."""
    ends_s = table.ended_s[ended]
    share_s = int(ends_s[int(len(ended) * (1.0 - HELD_BACK))])
    earliest_s = int(ends_s[int(len(ended) * (1.0 - AT_MOST_HELD_BACK))])
    return max(min(share_s, int(ends_s[-1]) - HELD_BACK_S), earliest_s)


def _best_trust(model: DurationModel, features: NDArray[np.float32], run_time_s: NDArray[np.float64]) -> float:
    """Return the trust with which ``model`` orders jobs best.

    The jobs must not have been used in its training.
    """
    opinions = predict_trees(model.forest, features)
    scores = [spearman(_mixed(opinions, features, trust)[:, 1], run_time_s) or 0.0 for trust in TRUSTS]
    return next(trust for trust, score in zip(TRUSTS, scores, strict=True) if score >= max(scores) - CLEARLY)


def _stretch(progress: Progress, first: float, last: float, step: str, done: float) -> None:
    """Report progress ``done`` as a part of the range from ``first`` to ``last``."""
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


def fit(
    ended: NDArray[np.int64],
    *,
    features: NDArray[np.float32],
    groups: NDArray[np.int32],
    submitted_s: NDArray[np.int64],
    log_run: NDArray[np.float64],
    cluster: str,
    trained_until: datetime,
    seed: int,
    again: FeaturesAtStart | None = None,
    most: int = MOST_JOBS,
    progress: Progress = no_progress,
    trainer: Trainer = train_locally,
) -> DurationModel:
    """Train on the rows ``ended`` (ordered by end) of the other arrays.

    Bursts are thinned, and only the last ``most`` jobs are used.

    Parameters
    ----------
    most : int
        Largest number of jobs to learn from; see ``MOST_JOBS``.
    again : FeaturesAtStart, optional
        Features at the start of jobs that waited, which are used in addition.
    """
    rows = ended if len(ended) < SPARED_JOBS else without_repeats(ended, groups=groups, submitted_s=submitted_s)
    rows = rows[-most:]
    known, target = features[rows], log_run[rows]
    if again is not None:
        place = np.full(len(features), -1)
        place[rows] = np.arange(len(rows))
        second = np.flatnonzero(place[again.waited] >= 0)
        from_first = place[again.waited[second]]
        known = np.concatenate((known, again.at_start[second]))
        target = np.append(target, target[from_first])
    difference = TrainingSet(features=known, residual=target - known[:, COLUMN.anchor], names=FEATURES)
    level = replace(difference, residual=difference.residual + known[:, COLUMN.anchor])
    texts = (
        *trainer(difference, quantiles=QUANTILES, seed=seed, progress=partial(_stretch, progress, 0.0, 0.75)),
        *trainer(level, quantiles=(0.5,), seed=seed, progress=partial(_stretch, progress, 0.75, 1.0)),
    )
    return DurationModel(cluster=cluster, trained_until=trained_until, jobs=len(ended), features=FEATURES, texts=texts)


@cached_jit
def _mixed(opinions: Any, features: Any, trust: float) -> Any:
    quantiles = np.empty((len(features), 3))
    for row in range(len(features)):
        anchor, spread = float(features[row, COLUMN.anchor]), Z90 * float(features[row, COLUMN.anchor_sd])
        middle = 0.5 * (anchor + opinions[row, 1] + opinions[row, LEVEL])
        for column in range(3):
            learned = middle if column == 1 else anchor + opinions[row, column]
            untrained = anchor + (column - 1) * spread
            quantiles[row, column] = max(np.expm1(trust * learned + (1.0 - trust) * untrained), 0.0)
        quantiles[row].sort()
        # NaN is sorted to the end, and is not below anything.
        if not quantiles[row, 2] < LONGEST_S:
            quantiles[row] = np.nan
    return quantiles


@cached_jit
def _shrinkage_quantiles(features: Any) -> Any:
    quantiles = np.empty((len(features), 3))
    for row in range(len(features)):
        anchor, spread = float(features[row, COLUMN.anchor]), Z90 * float(features[row, COLUMN.anchor_sd])
        limit = float(features[row, COLUMN.log_limit])
        for column in range(3):
            log_run = anchor + (column - 1) * spread
            if log_run > limit:  # noqa: PLR1730 - min() would let an unknown limit's NaN through
                log_run = limit
            quantiles[row, column] = max(np.expm1(log_run), 0.0)
    return quantiles
