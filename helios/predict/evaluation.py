"""Evaluation and comparison of predictors and drift of models.

A model is compared with simple baselines (controls). Its intervals are calibrated as they would have been at each
submission.

Predictors are compared on the same jobs, with intervals for chance. Jobs of one user come in campaigns, so that a
thousand jobs are not a thousand observations. So whole users are resampled (paired bootstrap over clusters: Efron and
Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 8). Where few users are known, or one has most of the jobs,
bursts of similar jobs are resampled.

Drift is how inputs and errors have changed since the training. Inputs are compared by the population stability index,
the sum over bins of (p - q) ln(p / q), between training and a later period. A value below .1 is commonly taken as
stable and above .25 as another population (Siddiqi, "Credit Risk Scorecards", 2006). Single weeks of a cluster always
differ from its long-term mean. So each index comes with its usual value in the weeks of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import TypeAdapter

from helios.errors import NotEnoughHistory, UsageError
from helios.ports import Progress, no_progress
from helios.predict.causal_stats import COLUMN, FEATURES, NEVER_S
from helios.predict.duration import DurationModel, refit, refuse_too_few, train_on
from helios.predict.job_table import JobTable, job_groups
from helios.predict.scores import (
    EvaluationSet,
    PredictorScore,
    Scores,
    best_guess,
    burst_groups,
    evaluation_set,
    find_bursts,
    predictor_score,
    rank_score,
    scores_for,
)
from helios.predict.timeline import RecordedWalk, empty_calibration, untrained
from helios.units import in_number

# Evaluation of a model on later jobs.


SHRINKAGE_PREDICTS = "Shrinkage predicted the held-back jobs better than the trees did, so it predicts and they do not."

RESAMPLES = 400
LIKELY = 0.9
"""Share of the resamples that lie within the interval of a difference."""

NEGLIGIBLE = 0.01
"""Difference of rank correlation, or of log error (1 % of the run time), that is too small to matter.

With very many jobs even such a difference is significant.
"""
TOO_MUCH = 0.1
"""Difference that counts against a model even where it may be chance, because few jobs were evaluated."""

BINS = 10

FEWEST_JOBS = 200
"""Fewest jobs of a period whose index is not mostly chance, which is about the number of bins over that of jobs."""
WEEKS_OF_TRAINING = 12
USUAL = 0.9
"""Quantile of the index over the weeks of training that is called usual."""
WEEK_S = 7 * 86_400
_LEAST_SHARE = 1e-3
"""Least share of a bin, because an empty one would make the index infinite."""
_JOBS_FOR_EDGES = 50_000
"""Most jobs from which the edges of bins are computed. The shares are counted on all."""
NOT_COMPARED = frozenset({"global_mean", "partition_mean", "user_ended", "user_size_ended", "user_submitted"})
"""Features without an index: counts that only grow, and means that are equal for all jobs of a day.

They always leave the bins of training, whatever the workload is like (on KTH with an index of 5).
"""

# Users are resampled if they are at least so many, and none has more than this share of the jobs.
FEWEST_USERS, LARGEST_USER = 10, 0.5

MOVED, CHANGED = 0.1, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of a model and of its controls on the same jobs.

    Attributes
    ----------
    train_until : datetime
        Training used jobs that ended before this time, and evaluation those submitted at or after it.
    train_jobs, jobs : int
        Number of jobs in training and in evaluation.
    figures : Scores
        Scores of predictions made at submission.
    controls : mapping of str to Scores
        Scores of the baselines, by name.
    figures_at_start : Scores, optional
        Scores of predictions of the same jobs made again at their start. None where no job waited.
    notes : tuple of str
        Messages for people about the limits of the scores.
    model : DurationModel, optional
        The model as trained first.
    """

    cluster: str
    train_until: datetime
    train_jobs: int
    jobs: int
    model_id: str
    figures: Scores
    controls: Mapping[str, Scores]
    figures_at_start: Scores | None = None
    notes: tuple[str, ...] = ()
    model: DurationModel | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain values.

        Those of the model are at the top level.
        """
        return {
            "cluster": self.cluster,
            "train_until": self.train_until.isoformat(),
            "train_jobs": self.train_jobs,
            "jobs": self.jobs,
            **asdict(self.figures),
            "model": self.model_id,
            "at_start": asdict(self.figures_at_start) if self.figures_at_start else None,
            "controls": {name: asdict(figures) for name, figures in self.controls.items()},
            "notes": list(self.notes),
        }


def evaluate(
    jobs: pd.DataFrame,
    *,
    cluster: str,
    train_until: datetime | None = None,
    test_fraction: float | None = None,
    gpu_only: bool = False,
    refit_every: timedelta | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
    timezone: str = "UTC",
) -> Evaluation:
    """Train on jobs that ended, and evaluate on later submissions.

    During the test, features and intervals continue to learn from ended jobs.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.
    train_until : datetime, optional
        Time that divides training and test, aware.
    test_fraction : float, optional
        In place of ``train_until``, the share of the jobs, last in submission order, to evaluate on.
    gpu_only : bool
        Whether to evaluate on GPU jobs alone. Training always uses all jobs.
    refit_every : timedelta, optional
        Time between trainings during the test, as by a nightly task. None to keep the model.

    Raises
    ------
    UsageError
        Not exactly one of ``train_until`` and ``test_fraction`` is given, the fraction is not within (0, 1), or
        ``refit_every`` is not positive.
    NotEnoughHistory
        Too few jobs ended before the split, or none with a known run time was submitted after it.
    """
    if refit_every is not None and refit_every <= timedelta(0):
        raise UsageError(
            "The time between two trainings (--refit-every) must be longer than 0.",
            hint="Write 7d, or leave --refit-every out to train once.",
        )
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(jobs, timezone=timezone)
    first_test, split_s = _split(table, train_until, test_fraction)
    split = datetime.fromtimestamp(split_s, UTC)
    is_training = (table.ended_s < split_s) & np.isfinite(table.run_time_s)
    refuse_too_few(int(is_training.sum()), split)
    is_test = np.isfinite(table.run_time_s) & (np.arange(table.n) >= first_test) & ((table.gpus > 0) | (not gpu_only))
    if not is_test.any():
        kind = "GPU job" if gpu_only else "job"
        raise NotEnoughHistory(
            f"No {kind} with a known run time was submitted at or after {split:%Y-%m-%d %H:%M}.",
            hint="Choose an earlier moment, or a larger fraction to test on.",
        )
    test_rows = np.flatnonzero(is_test)
    walk = RecordedWalk(table, at_start=True)
    model = train_on(walk, table, cluster=cluster, until=split, seed=seed, progress=progress)
    shrinkage = walk.branch(calibration=empty_calibration())
    n_refits = _predict_to_end(walk, model, table, refit_every=refit_every, seed=seed, progress=progress)
    progress("Judging predictions", 0.0)
    shrinkage.to(_end_s(table), model=untrained())
    test = evaluation_set(table, walk.timeline.state.features, test_rows)
    figures = scores_for(walk.predicted[test_rows], test)
    waited = np.isfinite(walk.at_start[test_rows, :1])
    at_start = np.where(waited, walk.at_start[test_rows], walk.predicted[test_rows])
    controls = _controls(table, walk.timeline.state.features, is_training, test_rows, test)
    controls["shrinkage"] = scores_for(shrinkage.predicted[test_rows], test)
    notes = [] if model.trained else [SHRINKAGE_PREDICTS]
    if n_refits:
        notes.append(f"The model was trained again {n_refits} times during the test.")
    return Evaluation(
        cluster=cluster,
        train_until=split,
        train_jobs=model.jobs,
        jobs=len(test_rows),
        model_id=model.model_id,
        model=model,
        figures=figures,
        figures_at_start=scores_for(at_start, test) if waited.any() else None,
        controls=controls,
        notes=(*notes, *_notes(table, test_rows, test, figures, controls)),
    )


def _split(table: JobTable, train_until: datetime | None, fraction: float | None) -> tuple[int, int]:
    """Return the first job to evaluate on and the time of the split.

    The time is in s since the epoch.
    """
    if (train_until is None) == (fraction is None):
        raise UsageError(
            "Either a time to train until or a share of the jobs to test on is needed, and not both.",
            hint="Give --train-until 2020-09-01 or --test-fraction 0.3.",
        )
    if table.n == 0:
        raise NotEnoughHistory("There are no jobs.", hint="Load a trace first: helios trace load FILE.")
    if train_until is not None:
        split_s = int(np.ceil(train_until.timestamp()))
        return int(np.searchsorted(table.submitted_s, split_s)), split_s
    if fraction is None or not 0 < fraction < 1:
        raise UsageError(f"The fraction of jobs to test on must lie between 0 and 1, not at {fraction}.")
    first_test = min(int(table.n * (1 - fraction)), table.n - 1)
    return first_test, int(table.submitted_s[first_test])


def _predict_to_end(
    walk: RecordedWalk,
    model: DurationModel,
    table: JobTable,
    *,
    refit_every: timedelta | None,
    seed: int,
    progress: Progress,
) -> int:
    """Predict the rest of a history.

    Returns how often the model was trained again.
    """
    n_refits = 0
    if refit_every is not None:
        every_s = int(refit_every.total_seconds())
        refits_s = range(int(model.trained_until.timestamp()) + every_s, int(table.submitted_s[-1]), every_s)
        for n_refits, refit_s in enumerate(refits_s, 1):
            progress("Training again", (n_refits - 1) / len(refits_s))
            walk.to(refit_s, model=model.kernel)
            model = refit(model, walk, until=datetime.fromtimestamp(refit_s, UTC), seed=seed)
    walk.to(_end_s(table), model=model.kernel)
    return n_refits


def _end_s(table: JobTable) -> int:
    """Return the second after the last submission or start, s since the epoch."""
    started_s = table.started_s[table.started_s != NEVER_S]
    return int(max(table.submitted_s[-1], started_s.max(initial=0))) + 1


def _controls(
    table: JobTable,
    features: NDArray[np.float32],
    is_training: NDArray[np.bool_],
    test_rows: NDArray[np.int64],
    test: EvaluationSet,
) -> dict[str, Scores]:
    """Return the scores of predictions without a model.

    They are the user's last run time, the time limit, and the median run time of jobs of the same size. Where one is
    unknown, it is replaced by the median of all jobs.
    """
    median_s = float(np.median(table.run_time_s[is_training]))
    last_s = np.expm1(features[test_rows, COLUMN.user_last_1].astype(np.float64))
    limit_s = table.time_limit_s[test_rows]
    size = pd.Series(table.gpus if (table.gpus > 0).any() else table.cpus)
    size_medians_s = pd.Series(table.run_time_s)[is_training].groupby(size[is_training]).median()
    by_size_s = np.asarray(size[test_rows].map(size_medians_s).fillna(median_s), dtype=np.float64)
    return {
        "user_last": scores_for(np.where(np.isnan(last_s), median_s, last_s), test),
        "time_limit": scores_for(np.where(np.isfinite(limit_s), limit_s, median_s), test),
        "size_only": scores_for(by_size_s, test),
    }


def _notes(
    table: JobTable,
    test_rows: NDArray[np.int64],
    test: EvaluationSet,
    figures: Scores,
    controls: Mapping[str, Scores],
) -> list[str]:
    """Return messages for people about the limits of the scores."""
    notes, spearman = [], figures.spearman or 0.0
    better = [
        f"{name} ({scores.spearman:.2f})"
        for name, scores in controls.items()
        if scores.spearman and scores.spearman > spearman
    ]
    if better:
        notes.append(
            f"The model orders these jobs worse (rank correlation {spearman:.2f}) than a control does: "
            f"{', '.join(better)}."
        )
    largest = float(test.groups["top_user"].mean())
    if not (table.user[test_rows] >= 0).any():
        notes.append("No user is known: the control user_last is one number for all jobs.")
    elif largest >= 0.5:
        notes.append(
            f"One user submitted {largest:.0%} of the judged jobs: rank correlation says little about the others."
        )
    if not np.isfinite(table.time_limit_s[test_rows]).any():
        notes.append("No time limit is known: the control time_limit is one number for all jobs.")
    untimed = int((~np.isfinite(table.run_time_s)).sum())
    if untimed:
        notes.append(in_number(untimed, "jobs without a known run time count as submissions only."))
    return notes


# Comparison of predictors.


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference of a score between two predictors, with its interval.

    It is the score of the challenger minus that of the other, and lies between ``low`` and ``high`` with probability
    ``LIKELY``. With a single user or burst to resample, the whole difference may be chance.
    """

    value: float
    low: float
    high: float

    @property
    def is_chance(self) -> bool:
        """Whether the difference may be chance, or is too small to matter."""
        return self.low <= 0 <= self.high or abs(self.value) < NEGLIGIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """Comparison of the challenger with another predictor.

    Attributes
    ----------
    error : PairedDifference
        Of the median absolute log error. Below 0 the challenger is better.
    rank : PairedDifference, optional
        Of the rank correlation. Above 0 the challenger is better. None where one of them has none.
    """

    error: PairedDifference
    rank: PairedDifference | None

    @property
    def worse_in(self) -> tuple[str, ...]:
        """Scores in which the challenger is worse, beyond chance or by ``TOO_MUCH``."""
        losses = self._losses().items()
        return tuple(name for name, (loss, chance) in losses if loss > 0 and (not chance or loss > TOO_MUCH))

    @property
    def better_in(self) -> tuple[str, ...]:
        """Scores in which the challenger is better, beyond chance."""
        return tuple(name for name, (loss, chance) in self._losses().items() if loss < 0 and not chance)

    @property
    def is_chance(self) -> bool:
        """Whether the challenger is neither better nor worse in any score."""
        return not self.better_in and not self.worse_in

    @property
    def ahead(self) -> bool:
        """Whether the challenger is worse in no score and better in one, even by chance."""
        return any(loss < 0 for loss, _ in self._losses().values()) and not self.worse_in

    def _losses(self) -> dict[str, tuple[float, bool]]:
        """Return by how much the challenger is worse, and whether it may be chance."""
        losses = {"log error": (self.error.value, self.error.is_chance)}
        return losses | ({"rank correlation": (-self.rank.value, self.rank.is_chance)} if self.rank else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Scores of several predictors, and comparisons of one with each other one.

    Attributes
    ----------
    challenger : str
        A key of ``scores``. ``against`` has all other keys.
    jobs, clusters : int
        Number of evaluated jobs, and of the groups of jobs that are resampled.
    drawn : str
        Kind of these groups, ``users`` or ``bursts``.
    """

    challenger: str
    jobs: int
    clusters: int
    drawn: str
    scores: Mapping[str, PredictorScore]
    against: Mapping[str, Versus]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain = asdict(self)
        for name, versus in self.against.items():
            plain["against"][name] |= {
                "worse_in": list(versus.worse_in),
                "better_in": list(versus.better_in),
                "is_chance": versus.is_chance,
            }
        return plain

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Comparison:
        """Return the comparison that ``to_json`` wrote.

        Raises ValueError for other values.
        """
        return TypeAdapter(cls).validate_python(stored)


def compare_predictors(
    predictions: Mapping[str, NDArray[np.float64]],
    truth_s: NDArray[np.float64],
    *,
    challenger: str,
    table: JobTable,
    rows: NDArray[np.int64],
) -> Comparison:
    """Evaluate several predictors on the jobs ``rows`` of ``table``.

    Parameters
    ----------
    predictions : mapping of arrays of shape (n_rows,) or (n_rows, len(RUN_TIME))
        One number each, s, or the columns of :class:`helios.ports.RunTime`.
    truth_s : array of shape (n_rows,)
    challenger : str
        The predictor that is compared with each of the others.
    """
    cluster, kind = user_clusters(table, rows)
    n_clusters = int(cluster.max(initial=-1)) + 1
    # How often each cluster counts, in the sample itself and in each resample. The seed is fixed.
    resamples = np.random.default_rng(0).multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=RESAMPLES)
    counts = np.vstack([np.ones(n_clusters), resamples])
    errors, ranks = dict[str, NDArray[np.float64]](), dict[str, NDArray[np.float64]]()
    for name, predicted in predictions.items():
        log_error = np.abs(np.log1p(best_guess(predicted)) - np.log1p(truth_s))
        errors[name] = _weighted_medians(log_error, cluster, counts)
        ranks[name] = _rank_correlations(rank_score(predicted), truth_s, cluster, counts)
    against = {}
    for name in predictions:
        if name != challenger:
            error, rank = errors[challenger] - errors[name], ranks[challenger] - ranks[name]
            against[name] = Versus(
                error=_difference(error, is_single=n_clusters < 2),
                rank=None if np.isnan(rank[0]) else _difference(rank, is_single=n_clusters < 2),
            )
    return Comparison(
        challenger=challenger,
        jobs=len(rows),
        clusters=n_clusters,
        drawn=kind,
        scores={name: predictor_score(predicted, truth_s) for name, predicted in predictions.items()},
        against=against,
    )


def user_clusters(table: JobTable, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], str]:
    """Return the cluster of each job for resampling, and the kind of cluster.

    Clusters are numbered from 0. The kind is ``users`` or ``bursts``.
    """
    users = table.user[rows]
    known = users[users >= 0]
    sizes = np.bincount(known) if len(known) else np.zeros(1)
    if len(known) == len(rows) and (sizes > 0).sum() >= FEWEST_USERS and sizes.max() <= LARGEST_USER * len(rows):
        return pd.factorize(users)[0], "users"
    return find_bursts(burst_groups(job_groups(table)[rows]), table.submitted_s[rows]), "bursts"


def _weighted_medians(
    values: NDArray[np.float64], cluster: NDArray[np.int64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the median of ``values`` in each sample of ``counts``."""
    order = np.argsort(values, kind="stable")
    values, cluster = values[order], cluster[order]
    medians = np.empty(len(counts))
    for i, count in enumerate(counts):
        cumulative = np.cumsum(count[cluster])
        medians[i] = values[min(int(np.searchsorted(cumulative, cumulative[-1] / 2)), len(values) - 1)]
    return medians


def _rank_correlations(
    predicted: NDArray[np.float64],
    truth_s: NDArray[np.float64],
    cluster: NDArray[np.int64],
    counts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return Spearman's correlation in each sample of ``counts``.

    Ranks are those in the first sample. The correlation is NaN where a value is constant.
    """
    x, y = (pd.Series(values).rank().to_numpy() for values in (predicted, truth_s))
    x, y = x - x.mean(), y - y.mean()
    moments = np.column_stack(
        [np.bincount(cluster, term, minlength=counts.shape[1]) for term in (np.ones(len(x)), x, y, x * x, y * y, x * y)]
    )
    n, sum_x, sum_y, sum_xx, sum_yy, sum_xy = (counts @ moments).T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt((sum_xx - sum_x * sum_x / n) * (sum_yy - sum_y * sum_y / n))
        return np.asarray((sum_xy - sum_x * sum_y / n) / np.where(spread > 0, spread, np.nan))


def _difference(samples: NDArray[np.float64], *, is_single: bool) -> PairedDifference:
    """Return the difference in the first sample, with its interval from the others.

    ``is_single`` says that there is a single cluster, which does not show how much is chance.
    """
    value = float(samples[0])
    if is_single:
        return PairedDifference(value=value, low=-abs(value), high=abs(value))
    low, high = np.nanquantile(samples[1:], [(1 - LIKELY) / 2, (1 + LIKELY) / 2])
    return PairedDifference(value=value, low=float(low), high=float(high))


# Drift.


class Steadiness(StrEnum):
    """Class of a population stability index."""

    STEADY = "steady"
    MOVED = "moved"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distribution of a feature's values in training.

    Attributes
    ----------
    edges : tuple of float
        Upper edges of the bins but the last, ascending. A value equal to an edge is in the bin below it.
    shares : tuple of float
        Shares of the known values in each bin.
    missing : float
        Share of jobs whose value is not known.
    usual : float, optional
        Index of a week against all of training that nine of ten weeks did not exceed. None for a short training.
    """

    edges: tuple[float, ...]
    shares: tuple[float, ...]
    missing: float
    usual: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Summary of a model's training inputs.

    Attributes
    ----------
    jobs : int
        Number of jobs.
    new_users, new_names : float, optional
        Share of jobs whose user had no ended job, and of jobs whose name nobody had submitted before. None where no
        user, or no name, is known.
    spreads : mapping of str to Spread
        Distribution of each feature.
    """

    jobs: int
    new_users: float | None
    new_names: float | None
    spreads: Mapping[str, Spread]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Inputs:
        """Return the summary that ``to_json`` wrote.

        Raises ValueError for other values.
        """
        return TypeAdapter(cls).validate_python(stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShift:
    """Shift of one feature against training.

    Attributes
    ----------
    index : float
        Population stability index.
    usual : float, optional
        As in :class:`Spread`.
    """

    feature: str
    index: float
    usual: float | None

    @property
    def steadiness(self) -> Steadiness:
        """Class of the index."""
        if self.index < MOVED:
            return Steadiness.STEADY
        return Steadiness.MOVED if self.index < CHANGED else Steadiness.CHANGED

    @property
    def is_unusual(self) -> bool:
        """Whether the feature changed, and by more than usual in training."""
        return self.steadiness is Steadiness.CHANGED and (self.usual is None or self.index > self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekOfErrors:
    """Scores of the model and of shrinkage on one week's jobs.

    Attributes
    ----------
    begin : datetime
        Start of the week in which the jobs were submitted.
    jobs : int
        Number of jobs with a known run time.
    """

    begin: datetime
    jobs: int
    model: PredictorScore
    shrinkage: PredictorScore


def training_inputs(features: NDArray[np.float32], table: JobTable, rows: NDArray[np.int64]) -> Inputs:
    """Return a summary of the jobs ``rows`` that a model learned from.

    Parameters
    ----------
    features : float32 array of shape (table.n, len(FEATURES))
    """
    ages_s = table.submitted_s[rows].max(initial=0) - table.submitted_s[rows]
    rows_by_week = [rows[ages_s // WEEK_S == weeks_ago] for weeks_ago in range(WEEKS_OF_TRAINING)]
    weeks = [week for week in rows_by_week if len(week) >= FEWEST_JOBS]
    return Inputs(
        jobs=len(rows),
        new_users=new_users(features, rows),
        new_names=new_names(table, rows),
        spreads={
            name: _spread(features[rows, column], [features[week, column] for week in weeks])
            for column, name in enumerate(FEATURES)
            if name not in NOT_COMPARED
        },
    )


def shifted_features(
    inputs: Inputs, features: NDArray[np.float32], rows: NDArray[np.int64]
) -> tuple[FeatureShift, ...]:
    """Compare the jobs ``rows`` with training, largest shift first.

    Empty for fewer than ``FEWEST_JOBS`` jobs. Features that training did not have are left out.
    """
    if len(rows) < FEWEST_JOBS:
        return ()
    shifts = [
        FeatureShift(feature=name, index=stability_index(spread, features[rows, column]), usual=spread.usual)
        for column, name in enumerate(FEATURES)
        if (spread := inputs.spreads.get(name)) is not None
    ]
    return tuple(sorted(shifts, key=lambda shift: -shift.index))


def stability_index(spread: Spread, values: NDArray[np.float32]) -> float:
    """Return the population stability index of ``values`` against ``spread``.

    Missing values are one more bin.
    """
    p, q = _all_shares(spread.shares, spread.missing), _all_shares(*_shares(np.array(spread.edges), values))
    return float(((q - p) * np.log(q / p)).sum())


def new_users(features: NDArray[np.float32], rows: NDArray[np.int64]) -> float | None:
    """Return the share of jobs whose user had no ended job.

    Only jobs of known users count. None where no user is known.
    """
    ended = features[rows, COLUMN.user_ended]
    known = ended[~np.isnan(ended)]
    return float((known == 0).mean()) if len(known) else None


def new_names(table: JobTable, rows: NDArray[np.int64]) -> float | None:
    """Return the share of jobs whose name is new.

    Only jobs with a name count. None where no name is known.
    """
    is_first = np.zeros(table.n, dtype=bool)
    is_first[np.unique(table.name, return_index=True)[1]] = True
    has_name = table.name[rows] >= 0
    return float(is_first[rows][has_name].mean()) if has_name.any() else None


def weeks_of_errors(
    predicted: NDArray[np.float64],
    shrinkage: NDArray[np.float64],
    truth_s: NDArray[np.float64],
    *,
    submitted_s: NDArray[np.int64],
    end_s: int,
) -> tuple[WeekOfErrors, ...]:
    """Return the scores of the weeks until ``end_s``, oldest first.

    A week without jobs is left out.

    Parameters
    ----------
    predicted, shrinkage : arrays of shape (n, len(RUN_TIME))
        Columns of :class:`helios.ports.RunTime`.
    truth_s, submitted_s : arrays of shape (n,)
        Known run times, and submissions in order.
    """
    weeks_ago = (end_s - 1 - submitted_s) // WEEK_S
    weeks = []
    for week in np.unique(weeks_ago[weeks_ago >= 0])[::-1].tolist():
        in_week = weeks_ago == week
        weeks.append(
            WeekOfErrors(
                begin=datetime.fromtimestamp(end_s - (week + 1) * WEEK_S, UTC),
                jobs=int(in_week.sum()),
                model=predictor_score(predicted[in_week], truth_s[in_week]),
                shrinkage=predictor_score(shrinkage[in_week], truth_s[in_week]),
            )
        )
    return tuple(weeks)


def _spread(values: NDArray[np.float32], weeks: Sequence[NDArray[np.float32]] = ()) -> Spread:
    edges = known = values[~np.isnan(values)].astype(np.float64)
    if len(known):
        sample = known[:: max(1, len(known) // _JOBS_FOR_EDGES)]
        tenths = np.quantile(sample, np.arange(1, BINS) / BINS, method="inverted_cdf")
        # The first edge is just below the least value, so that lower values later have a bin of their own.
        edges = np.unique([np.nextafter(known.min(), -np.inf), *tenths])
        edges = edges[np.isfinite(edges)]
    shares, missing = _shares(edges, values)
    spread = Spread(edges=tuple(edges.tolist()), shares=shares, missing=missing, usual=None)
    if len(weeks) < 3:
        return spread
    return replace(spread, usual=float(np.quantile([stability_index(spread, week) for week in weeks], USUAL)))


def _shares(edges: NDArray[np.float64], values: NDArray[np.float32]) -> tuple[tuple[float, ...], float]:
    known = values[~np.isnan(values)]
    counts = np.bincount(np.searchsorted(edges, known, side="left"), minlength=len(edges) + 1)
    missing = 1.0 - len(known) / len(values) if len(values) else 0.0
    return tuple((counts / max(len(known), 1)).tolist()), missing


def _all_shares(shares: Sequence[float], missing: float) -> NDArray[np.float64]:
    all_shares = np.maximum(np.append(np.asarray(shares) * (1 - missing), missing), _LEAST_SHARE)
    return np.asarray(all_shares / all_shares.sum())
