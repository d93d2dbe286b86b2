"""Evaluation of predictions on later jobs, comparison of predictors, and drift.

A model is compared with simple baselines (controls). Its intervals are calibrated as they would have been at each
submission.

Predictors are compared on the same jobs, with intervals for chance. Jobs of one user come in campaigns, so that a
thousand jobs are not a thousand observations. So whole users are resampled (paired bootstrap over clusters: Efron and
Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 8). Where few users are known, or one has most of the jobs,
bursts of alike jobs are resampled.

Drift is how inputs and errors have changed since the training. Inputs are compared by the population stability index,
the sum over bins of (p - q) ln(p / q), between training and a later period. A value below .1 is commonly taken as
stable and above .25 as another population (Siddiqi, "Credit Risk Scorecards", 2006). Single weeks of a cluster always
differ from its long-term mean, so each index is given together with its usual value in the weeks of training.
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
    evaluation_set,
    find_bursts,
    predictor_score,
    rank_score,
    scores_for,
    similar_names,
)
from helios.predict.timeline import RecordedWalk, empty_calibration, untrained
from helios.units import in_number

BINS = 10
MOVED, CHANGED = 0.1, 0.25
FEWEST_JOBS = 200
"""Jobs of a period below which the index is mostly chance, about the number of bins over the number of jobs."""
WEEKS_OF_TRAINING = 12
USUAL = 0.9
"""Quantile over the weeks of training that is called usual."""
WEEK_S = 7 * 86_400
# A bin that is empty on one side would make the index infinite.
_FLOOR = 1e-3
# Edges are computed from at most so many jobs; the shares are counted on all.
_JOBS_FOR_EDGES = 50_000
NOT_COMPARED = frozenset({"global_mean", "partition_mean", "user_ended", "user_size_ended", "user_submitted"})
"""Counts that only grow, and means that are the same for all jobs of a day. They always leave the bins of training (on
KTH an index of 5), whatever the workload is like."""


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
        Ascending. A bin has the values above the previous edge and not above its own.
    shares : tuple of float
        Shares of the known values, one more than there are edges.
    missing : float
        Share of jobs whose value is not known.
    usual : float, optional
        Index that nine of ten weeks of training did not exceed against all of it. None where training was too short.
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
        Number of jobs counted.
    new_users, new_names : float, optional
        Share of jobs whose user had no ended job, and of jobs whose name nobody had submitted before. None where no
        user, or no name, is known.
    spreads : mapping of Spread
        By feature.
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
        As of :class:`Spread`.
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
    of_week = [rows[ages_s // WEEK_S == back] for back in range(WEEKS_OF_TRAINING)]
    weeks = [week for week in of_week if len(week) >= FEWEST_JOBS]
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
    found = [
        FeatureShift(feature=name, index=stability_index(spread, features[rows, column]), usual=spread.usual)
        for column, name in enumerate(FEATURES)
        if (spread := inputs.spreads.get(name)) is not None
    ]
    return tuple(sorted(found, key=lambda one: -one.index))


def stability_index(spread: Spread, values: NDArray[np.float32]) -> float:
    """Return the population stability index of ``values`` against ``spread``.

    Missing values are one more bin.
    """
    p, q = _all_shares(spread.shares, spread.missing), _all_shares(*_shares(np.array(spread.edges), values))
    return float(((q - p) * np.log(q / p)).sum())


def new_users(features: NDArray[np.float32], rows: NDArray[np.int64]) -> float | None:
    """Return the share of jobs whose user had no ended job.

    It is taken among jobs of known users. None where no user is known.
    """
    ended = features[rows, COLUMN.user_ended]
    known = ended[~np.isnan(ended)]
    return float((known == 0).mean()) if len(known) else None


def new_names(table: JobTable, rows: NDArray[np.int64]) -> float | None:
    """Return the share of jobs with a name never seen before.

    It is taken among jobs with a name. None where no name is known.
    """
    first = np.zeros(table.n, dtype=bool)
    first[np.unique(table.name, return_index=True)[1]] = True
    named = table.name[rows] >= 0
    return float(first[rows][named].mean()) if named.any() else None


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
    week = (end_s - 1 - submitted_s) // WEEK_S
    return tuple(
        WeekOfErrors(
            begin=datetime.fromtimestamp(end_s - (back + 1) * WEEK_S, UTC),
            jobs=int((week == back).sum()),
            model=predictor_score(predicted[week == back], truth_s[week == back]),
            shrinkage=predictor_score(shrinkage[week == back], truth_s[week == back]),
        )
        for back in np.unique(week[week >= 0])[::-1].tolist()
    )


def _spread(values: NDArray[np.float32], weeks: Sequence[NDArray[np.float32]] = ()) -> Spread:
    edges = known = values[~np.isnan(values)].astype(np.float64)
    if len(known):
        some = known[:: max(1, len(known) // _JOBS_FOR_EDGES)]
        tenths = np.quantile(some, np.arange(1, BINS) / BINS, method="inverted_cdf")
        # The first edge is below the smallest value. Otherwise values below all of training would share a bin with it.
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
    every = np.append(np.asarray(shares) * (1 - missing), missing)
    floored = np.maximum(every, _FLOOR)
    return np.asarray(floored / floored.sum())


RESAMPLES = 400
LIKELY = 0.9
"""Share of the resamples that lie within the interval of a difference."""
FEWEST_USERS = 10
LARGEST_USER = 0.5
NEGLIGIBLE = 0.01
"""Difference of rank correlation, or of log error (1 % of the run time), that is too small to matter. With very many
jobs even such a difference is significant."""
TOO_MUCH = 0.1
"""Difference that counts against a model even where it may be chance, because few jobs were evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference of a score between two predictors, with its interval.

    It is the challenger's score less the other's, and lies between ``low`` and ``high`` with probability ``LIKELY``.
    With a single user or burst to resample, the whole difference may be chance.
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
        """Whether the challenger is worse in no score and better in one.

        For the better one chance does not count.
        """
        return any(loss < 0 for loss, _ in self._losses().values()) and not self.worse_in

    def _losses(self) -> dict[str, tuple[float, bool]]:
        """Return the challenger's losses, and whether they may be chance."""
        losses = {"log error": (self.error.value, self.error.is_chance)}
        return losses | ({"rank correlation": (-self.rank.value, self.rank.is_chance)} if self.rank else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Scores of several predictors, and the challenger's comparison with each.

    Attributes
    ----------
    challenger : str
        A key of ``scores``. ``against`` has all other keys.
    jobs, clusters : int
        Number of evaluated jobs, and of the groups that are resampled.
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
        for name, other in self.against.items():
            words = {"worse_in": list(other.worse_in), "better_in": list(other.better_in)}
            plain["against"][name] |= words | {"is_chance": other.is_chance}
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
    cluster, drawn = user_clusters(table, rows)
    n_clusters = int(cluster.max(initial=-1)) + 1
    # Number of times each cluster counts: the sample itself first, then the resamples, with a fixed seed.
    resamples = np.random.default_rng(0).multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), size=RESAMPLES)
    counts = np.vstack([np.ones(n_clusters), resamples])
    errors = {
        name: _weighted_medians(np.abs(np.log1p(best_guess(values)) - np.log1p(truth_s)), cluster, counts)
        for name, values in predictions.items()
    }
    ranks = {
        name: _rank_correlations(rank_score(values), truth_s, cluster, counts) for name, values in predictions.items()
    }
    return Comparison(
        challenger=challenger,
        jobs=len(rows),
        clusters=n_clusters,
        drawn=drawn,
        scores={name: predictor_score(predicted, truth_s) for name, predicted in predictions.items()},
        against={
            name: Versus(
                error=_difference(errors[challenger] - errors[name], alone=n_clusters < 2),
                rank=None
                if np.isnan(ranks[challenger][0] - ranks[name][0])
                else _difference(ranks[challenger] - ranks[name], alone=n_clusters < 2),
            )
            for name in predictions
            if name != challenger
        },
    )


def user_clusters(table: JobTable, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], str]:
    """Return each job's cluster for resampling, and the kind of cluster.

    Clusters are numbered from 0. The kind is ``users`` or ``bursts``.
    """
    users = table.user[rows]
    known = users[users >= 0]
    sizes = np.bincount(known) if len(known) else np.zeros(1)
    if len(known) == len(rows) and (sizes > 0).sum() >= FEWEST_USERS and sizes.max() <= LARGEST_USER * len(rows):
        return pd.factorize(users)[0], "users"
    return find_bursts(similar_names(job_groups(table)[rows]), table.submitted_s[rows]), "bursts"


def _weighted_medians(
    values: NDArray[np.float64], cluster: NDArray[np.int64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the median of ``values`` in each draw."""
    order = np.argsort(values, kind="stable")
    in_order, of = values[order], cluster[order]
    medians = np.empty(len(counts))
    for draw, count in enumerate(counts):
        running = np.cumsum(count[of])
        medians[draw] = in_order[min(int(np.searchsorted(running, running[-1] / 2)), len(values) - 1)]
    return medians


def _rank_correlations(
    predicted: NDArray[np.float64],
    truth_s: NDArray[np.float64],
    cluster: NDArray[np.int64],
    counts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return Spearman's correlation in each draw, with the ranks of the sample.

    NaN where a value is constant.
    """
    a, b = (pd.Series(values).rank().to_numpy() for values in (predicted, truth_s))
    a, b = a - a.mean(), b - b.mean()
    moments = np.column_stack(
        [np.bincount(cluster, part, minlength=counts.shape[1]) for part in (np.ones(len(a)), a, b, a * a, b * b, a * b)]
    )
    n, s_a, s_b, s_aa, s_bb, s_ab = (counts @ moments).T
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt((s_aa - s_a * s_a / n) * (s_bb - s_b * s_b / n))
        return np.asarray((s_ab - s_a * s_b / n) / np.where(spread > 0, spread, np.nan))


def _difference(drawn: NDArray[np.float64], *, alone: bool) -> PairedDifference:
    """Return the difference in the sample, with its interval.

    The sample comes first in ``drawn``, then the resamples.
    """
    value = float(drawn[0])
    if alone:  # a single cluster does not show how much is chance
        return PairedDifference(value=value, low=-abs(value), high=abs(value))
    low, high = np.nanquantile(drawn[1:], [(1 - LIKELY) / 2, (1 + LIKELY) / 2])
    return PairedDifference(value=value, low=float(low), high=float(high))


SHRINKAGE_PREDICTS = "Shrinkage predicted the held-back jobs better than the trees did, so it predicts and they do not."


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
        Limits of the scores, for a person.
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
        """Return the scores as plain values, the model's at the top level."""
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

    During the test, features and intervals go on learning from ended jobs.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.
    train_until : datetime, optional
        The time, aware.
    test_fraction : float, optional
        Instead of it, the share of jobs, last in submission order, to evaluate on.
    gpu_only : bool
        Whether to evaluate on GPU jobs alone. Training always uses all jobs.
    refit_every : timedelta, optional
        Time between new trainings during the test, as a nightly task would do. None to keep the model.

    Raises
    ------
    UsageError
        Not exactly one of ``train_until`` and ``test_fraction`` is given, the fraction is not within (0, 1), or
        ``refit_every`` is not positive.
    NotEnoughHistory
        Too few jobs ended before the moment, or none with a known run time was submitted after it.
    """
    if refit_every is not None and refit_every <= timedelta(0):
        raise UsageError(
            "The time between two trainings (--refit-every) must be longer than 0.",
            hint="Write 7d, or leave --refit-every out to train once.",
        )
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(jobs, timezone=timezone)
    first_test, split_s = _split(table, train_until, test_fraction)
    moment = datetime.fromtimestamp(split_s, UTC)
    taught = (table.ended_s < split_s) & np.isfinite(table.run_time_s)
    refuse_too_few(int(taught.sum()), moment)
    eligible = np.isfinite(table.run_time_s) & (np.arange(table.n) >= first_test) & ((table.gpus > 0) | (not gpu_only))
    if not eligible.any():
        kind = "GPU job" if gpu_only else "job"
        raise NotEnoughHistory(
            f"No {kind} with a known run time was submitted at or after {moment:%Y-%m-%d %H:%M}.",
            hint="Choose an earlier moment, or a larger fraction to test on.",
        )
    tested = np.flatnonzero(eligible)
    walk = RecordedWalk(table, at_start=True)
    model = train_on(walk, table, cluster=cluster, until=moment, seed=seed, progress=progress)
    shrinkage = walk.branch(calibration=empty_calibration())
    trainings = _walk_to_the_end(walk, model, table, refit_every=refit_every, seed=seed, progress=progress)
    progress("Judging predictions", 0.0)
    shrinkage.to(_end(table), model=untrained())
    judged = evaluation_set(table, walk.timeline.state.features, tested)
    figures = scores_for(walk.predicted[tested], judged)
    again = np.isfinite(walk.at_start[tested, :1])
    at_start = np.where(again, walk.at_start[tested], walk.predicted[tested])
    controls = _controls(table, walk.timeline.state.features, taught, tested, judged)
    controls["shrinkage"] = scores_for(shrinkage.predicted[tested], judged)
    notes = [] if model.trained else [SHRINKAGE_PREDICTS]
    if trainings:
        notes.append(f"The model was trained again {trainings} times during the test.")
    return Evaluation(
        cluster=cluster,
        train_until=moment,
        train_jobs=model.jobs,
        jobs=len(tested),
        model_id=model.model_id,
        model=model,
        figures=figures,
        figures_at_start=scores_for(at_start, judged) if again.any() else None,
        controls=controls,
        notes=(*notes, *_notes(table, tested, judged, figures, controls)),
    )


def _split(table: JobTable, moment: datetime | None, fraction: float | None) -> tuple[int, int]:
    """Return the first job to evaluate on, and the split, s."""
    if (moment is None) == (fraction is None):
        raise UsageError(
            "Either a time to train until or a share of the jobs to test on is needed, and not both.",
            hint="Give --train-until 2020-09-01 or --test-fraction 0.3.",
        )
    if table.n == 0:
        raise NotEnoughHistory("There are no jobs.", hint="Load a trace first: helios trace load FILE.")
    if moment is not None:
        split_s = int(np.ceil(moment.timestamp()))
        return int(np.searchsorted(table.submitted_s, split_s)), split_s
    if fraction is None or not 0 < fraction < 1:
        raise UsageError(f"The fraction of jobs to test on must lie between 0 and 1, not at {fraction}.")
    first_test = min(int(table.n * (1 - fraction)), table.n - 1)
    return first_test, int(table.submitted_s[first_test])


def _walk_to_the_end(
    walk: RecordedWalk,
    model: DurationModel,
    table: JobTable,
    *,
    refit_every: timedelta | None,
    seed: int,
    progress: Progress,
) -> int:
    """Predict the rest of a history, and return the number of trainings."""
    end_s, trainings = _end(table), 0
    if refit_every is not None:
        every_s = int(refit_every.total_seconds())
        edges_s = range(int(model.trained_until.timestamp()) + every_s, int(table.submitted_s[-1]), every_s)
        for trainings, edge_s in enumerate(edges_s, 1):
            progress("Training again", (trainings - 1) / len(edges_s))
            walk.to(edge_s, model=model.kernel)
            model = refit(model, walk, until=datetime.fromtimestamp(edge_s, UTC), seed=seed)
    walk.to(end_s, model=model.kernel)
    return trainings


def _end(table: JobTable) -> int:
    """Return the second after the last submission or start, since 1970."""
    started_s = table.started_s[table.started_s != NEVER_S]
    return int(max(table.submitted_s[-1], started_s.max(initial=0))) + 1


def _controls(
    table: JobTable,
    features: NDArray[np.float32],
    taught: NDArray[np.bool_],
    tested: NDArray[np.int64],
    judged: EvaluationSet,
) -> dict[str, Scores]:
    median_s = float(np.median(table.run_time_s[taught]))
    last_s = np.expm1(features[tested, COLUMN.user_last_1].astype(np.float64))
    limit_s = table.time_limit_s[tested]
    size = pd.Series(table.gpus.astype(np.float64) if table.gpus.any() else table.cpus)
    medians = pd.Series(table.run_time_s)[taught].groupby(size[taught]).median()
    of_size_s = np.asarray(size[tested].map(medians).fillna(median_s), dtype=np.float64)
    return {
        "user_last": scores_for(np.where(np.isnan(last_s), median_s, last_s), judged),
        "time_limit": scores_for(np.where(np.isfinite(limit_s), limit_s, median_s), judged),
        "size_only": scores_for(of_size_s, judged),
    }


def _notes(
    table: JobTable,
    tested: NDArray[np.int64],
    judged: EvaluationSet,
    figures: Scores,
    controls: Mapping[str, Scores],
) -> list[str]:
    """Return the limits of the scores, for a person."""
    notes, mine = [], figures.spearman or 0.0
    better = [f"{name} ({its.spearman:.2f})" for name, its in controls.items() if its.spearman and its.spearman > mine]
    if better:
        notes.append(
            f"The model orders these jobs worse (rank correlation {mine:.2f}) than a control does: {', '.join(better)}."
        )
    largest = float(judged.groups["top_user"].mean())
    if not (table.user[tested] >= 0).any():
        notes.append("No user is known: the control user_last is one number for all jobs.")
    elif largest >= 0.5:
        notes.append(
            f"One user submitted {largest:.0%} of the judged jobs: rank correlation says little about the others."
        )
    if not np.isfinite(table.time_limit_s[tested]).any():
        notes.append("No time limit is known: the control time_limit is one number for all jobs.")
    untimed = int((~np.isfinite(table.run_time_s)).sum())
    if untimed:
        notes.append(in_number(untimed, "jobs without a known run time count as submissions only."))
    return notes
