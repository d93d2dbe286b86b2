"""Explanation of a prediction.

It has the steps of the shrinkage, the corrections by the trees, and the past jobs most similar to the job.

Shrinkage and trees work on the logarithm of run time. So each step is a factor, and the product of the factors is the
prediction. The contributions of features to the trees are those of LightGBM (TreeSHAP; Lundberg et al. 2020,
doi 10.1038/s42256-019-0138-9).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.ports import RUN_TIME
from helios.predict.causal_stats import (
    COLUMN,
    FEATURES,
    GLOBAL,
    IN_CHAIN,
    LEVELS,
    N_ENDED,
    NEIGHBOURS,
    PRIOR_LOG_RUN,
    PSEUDO_JOBS,
    RUN_SUM,
    RUN_WEIGHT,
    USER,
    CausalStats,
    Events,
)
from helios.predict.distribution import PAIR_FEATURES
from helios.predict.duration import SHRINKAGE, DurationModel
from helios.predict.job_table import JobTable, job_groups, job_traits
from helios.predict.timeline import RecordedWalk, Timeline, untrained
from helios.predict.trees import trees_alone

# The basis of a prediction is the narrowest group of past jobs in which a job has ended.
#
# It follows from a row of features alone, so that a live prediction, a replay and an explanation cannot disagree. It
# shows which jobs were available. The weight of each group follows from the shrinkage
# (:mod:`helios.predict.causal_stats`) and the model.

BASES = ("user+size", "user", "group", "size", "all")
"""Groups of past jobs, from the narrowest to the widest.

They are jobs of the user with the same size and limit, all jobs of the user, of the account, with the same request by
anyone, and all jobs.
"""

BASIS_LEVELS = {"user+size": "user_size", "user": "user", "group": "account", "size": "request", "all": "global"}
"""The level in ``LEVELS`` of each of ``BASES``."""
LAST = 12
"""Number of last ended jobs that are shown for the basis of a prediction."""

AGE = 0.1
"""Distance for each factor e in the number of jobs with the same request and user that ended since."""

OTHER_PARTITION, OTHER_STEM, OTHER_NAME, OTHER_USER, OTHER_ACCOUNT = 1.0, 2.0, 0.3, 1.5, 1.0
"""Distances for other values, where 0.69 is a size or limit twice as large.

Those for partition and stem are as in the features. The others were chosen.
"""

PRIOR, NEIGHBOURHOOD, DISTRIBUTION = "prior", "neighbours", "distribution"
"""Steps that are no level: the prior, the user's last jobs weighted by similarity, and the change from the mean of past
runs to the median of their distribution."""
_LEAST_ODDS, _LEAST_SLOPE = 1e-9, 0.05
EVERY_JOB, AFTERWARDS = "every_job", "afterwards"
"""Corrections that belong to no feature: the constant of the trees, and what is applied after the trees."""


def fallback_level(features: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the position in ``BASES`` of the basis of each prediction.

    Parameters
    ----------
    features : float32 array of shape (n, len(FEATURES))
        Result of :func:`helios.predict.job_table.causal_features`.

    Returns
    -------
    int8 array of shape (n,)
        For an unknown user, never the position of jobs of the user.
    """
    # log1p of the number of ended jobs. For an unknown user it is NaN, which is not above 0.
    user_size, user = features[:, COLUMN.user_size_ended] > 0, features[:, COLUMN.user_ended] > 0
    group, size = (~np.isnan(features[:, column]) for column in (COLUMN.account_mean, COLUMN.request_last_1))
    return np.asarray(np.select([user_size, user, group, size], range(4), len(BASES) - 1), dtype=np.int8)


# Past jobs that had ended by the submission of a job: the most similar ones, and the last ones of the basis.
#
# The distance is that of the features (:mod:`helios.predict.causal_stats`), but over the whole past instead of the
# user's last jobs. Size and limit count by their ratio, partition and name by whether they are equal.


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarJob:
    """Past job that is similar to the explained one.

    Attributes
    ----------
    row : int
        Position in the history.
    ended_s : int
        s since the epoch.
    run_time_s : float
    distance : float
        0 for the same request and user, if no other such job has ended since.
    differs : tuple of str
        Properties that differ, of "size", "limit", "partition", "name", "user" and "account".
    """

    row: int
    ended_s: int
    run_time_s: float
    distance: float
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentInGroup:
    """Last ended jobs of the basis of a prediction.

    Attributes
    ----------
    jobs : int
        Number of all ended jobs of the group.
    last : int
        Number of the last of them, at most ``LAST``.
    shortest_s, longest_s : float
        Shortest and longest run time of the last ones.
    """

    jobs: int
    last: int
    shortest_s: float
    longest_s: float


def narrowest_group(table: JobTable) -> tuple[str, RecentInGroup | None]:
    """Return the narrowest basis in which a job had ended by the last submission.

    The other value has its last jobs, or is None without an ended job.
    """
    groups = job_groups(table)
    for basis in BASES:
        if recent := _recent_in_group(table, groups, basis):
            return basis, recent
    return BASES[-1], None


def similar_jobs(table: JobTable, *, most: int = 5) -> tuple[SimilarJob, ...]:
    """Return the past jobs most similar to the last job, nearest first.

    Those of the same user come first, whatever their distance. If there are fewer than ``most``, jobs of other users
    with the same account, size or name stem follow. O(n log n) in the number of jobs.
    """
    ended = _ended_before_last(table)
    same_user = (table.user[ended] == table.user[-1]) & (table.user[-1] >= 0)
    nearest = _nearest(table, ended[same_user], most)
    if len(nearest) < most:
        others = ended[~same_user]
        same_account = (table.account[others] == table.account[-1]) & (table.account[-1] >= 0)
        same_stem = (table.stem[others] == table.stem[-1]) & (table.stem[-1] >= 0)
        size = job_traits(table)[:, 0]
        candidates = others[same_account | same_stem | (size[others] == size[-1])]
        nearest += _nearest(table, candidates, most - len(nearest))
    return tuple(nearest)


def _recent_in_group(table: JobTable, groups: NDArray[np.int32], basis: str) -> RecentInGroup | None:
    group = groups[:, LEVELS.index(BASIS_LEVELS[basis])]
    ended = _ended_before_last(table)
    members = ended[(group[ended] == group[-1]) & (group[-1] >= 0)]
    if not len(members):
        return None
    last = members[np.argsort(table.ended_s[members], kind="stable")][-LAST:]
    run_s = table.run_time_s[last]
    return RecentInGroup(jobs=len(members), last=len(last), shortest_s=float(run_s.min()), longest_s=float(run_s.max()))


def _ended_before_last(table: JobTable) -> NDArray[np.int64]:
    """Return the jobs of known run time that had ended by the last submission."""
    return np.flatnonzero((table.ended_s < table.submitted_s[-1]) & np.isfinite(table.run_time_s))


def _nearest(table: JobTable, rows: NDArray[np.int64], most: int) -> list[SimilarJob]:
    rows = rows[np.argsort(-table.ended_s[rows], kind="stable")]
    distances = _distances(table, rows)
    distance = sum(distances.values()) + AGE * np.log1p(_n_newer_similar(table, rows))
    return [
        SimilarJob(
            row=int(rows[i]),
            ended_s=int(table.ended_s[rows[i]]),
            run_time_s=float(table.run_time_s[rows[i]]),
            distance=float(distance[i]),
            differs=tuple(name for name, values in distances.items() if values[i] > 0),
        )
        for i in np.argsort(distance, kind="stable")[:most]
    ]


def _n_newer_similar(table: JobTable, newest_first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many jobs with the same request and user ended after each job.

    By this age, an old job with a rare request is not displaced by many newer jobs with a common one.
    """
    same_stem = table.stem == table.stem[-1]  # not the stem: if all names differed, all jobs would have age 0
    columns = (*job_traits(table)[:, :3].T, same_stem, table.user)
    group = np.zeros(len(newest_first), dtype=np.int64)
    for column in columns:
        codes, values = pd.factorize(column[newest_first])
        group = pd.factorize(group * (len(values) + 1) + codes)[0]
    return np.asarray(pd.Series(group).groupby(group).cumcount(), dtype=np.int64)


def _distances(table: JobTable, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return the distances of ``rows`` from the last job, by property."""
    size, limit = job_traits(table)[:, :2].T
    other_unit = (table.gpus[rows] > 0) != (table.gpus[-1] > 0)  # size in GPUs or in CPUs
    other_stem = table.stem[rows] != table.stem[-1]
    other_name = table.name[rows] != table.name[-1]
    return {
        "size": np.abs(size[rows] - size[-1]) + other_unit,
        "limit": np.abs(limit[rows] - limit[-1]),
        "partition": OTHER_PARTITION * (table.partition[rows] != table.partition[-1]),
        "name": np.where(other_stem, OTHER_STEM, OTHER_NAME * other_name),
        "user": OTHER_USER * ((table.user[rows] != table.user[-1]) & (table.user[-1] >= 0)),
        "account": OTHER_ACCOUNT * (table.account[rows] != table.account[-1]),
    }


# Steps of the shrinkage and corrections by the trees.


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One step of the shrinkage.

    Steps go from the widest group of jobs to the narrowest.

    Attributes
    ----------
    level : str
        One of ``LEVELS``, ``PRIOR`` for the first, ``NEIGHBOURHOOD`` and ``DISTRIBUTION`` for the last two.
    jobs : int
        Number of ended jobs of the group.
    weight : float
        Sum of their weights, which are smaller for older jobs.
    run_time_s : float
        Expected run time after this step.
    factor : float
        Factor by which this step changed it; 1 for the first.
    """

    level: str
    jobs: int
    weight: float
    run_time_s: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A prediction and its explanation.

    (1 + ``steps[0].run_time_s``) times all factors, of ``steps`` and of ``corrections``, is 1 + ``quantiles_s[1]``.

    Attributes
    ----------
    quantiles_s : tuple of float
        p10, p50 and p90 of the run time, s.
    source : str
        Id of the predictor.
    basis : str
        Basis of the prediction, one of ``BASES``.
    steps : tuple of Contribution
        Steps of the shrinkage.
    corrections : dict of str to float
        Factor of each feature in the trees, and of ``EVERY_JOB`` and ``AFTERWARDS``. Without trees only the last.
    features : dict of str to float
        Features at submission, by name; NaN where unknown.
    recent : RecentInGroup, optional
        The last ended jobs of the basis. None where nothing had ended.
    resembling : tuple of SimilarJob
        Most similar past jobs, the most similar first.
    """

    quantiles_s: tuple[float, float, float]
    source: str
    basis: str
    steps: tuple[Contribution, ...]
    corrections: dict[str, float]
    features: dict[str, float]
    recent: RecentInGroup | None
    resembling: tuple[SimilarJob, ...]


def explain_last(
    jobs: pd.DataFrame, *, model: DurationModel | None = None, timezone: str = "UTC", alike: int = 5
) -> Explained:
    """Explain the prediction of the last job at its submission.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order. Ends after the last submission are not used.
    model : DurationModel, optional
        None for shrinkage alone.
    alike : int
        Number of similar past jobs to return.

    Raises
    ------
    FrameInvalid
        ``jobs`` is empty or not in submission order.
    """
    table = JobTable.from_frame(jobs, timezone=timezone)
    walk, last, now_s = RecordedWalk(table, pairs=False), np.array([table.n - 1]), int(table.submitted_s[-1])
    timeline = walk.timeline
    if model and model.calibration:
        walk.set_calibration(replace(model.calibration, outlived=timeline.state.calibration.outlived))
    walk.to(now_s)
    untrained_prediction = timeline.submitted(np.arange(timeline.submissions, table.n), now_s)[-1]
    timeline.model = model.kernel if model else untrained()
    prediction = timeline.waiting(last, now_s)[0]
    features, events = timeline.state.features[-1:], timeline.events
    basis = BASES[int(fallback_level(features)[0])]
    steps = _steps(timeline.state.history, events, features[0], float(untrained_prediction[RUN_TIME.p50]))
    p10, p50, p90 = (float(prediction[column]) for column in (RUN_TIME.p10, RUN_TIME.p50, RUN_TIME.p90))
    return Explained(
        quantiles_s=(p10, p50, p90),
        source=model.model_id if model and model.trained else SHRINKAGE,
        basis=basis,
        steps=steps,
        corrections=_corrections(model, timeline, steps[-1].run_time_s, p50),
        features={name: float(value) for name, value in zip(FEATURES, features[0], strict=True)},
        recent=_recent_in_group(table, events.groups, basis),
        resembling=similar_jobs(table, most=alike),
    )


def _steps(
    history: CausalStats, events: Events, features: NDArray[np.float32], median_s: float
) -> tuple[Contribution, ...]:
    """Return the steps from the prior to the median of the distribution of past runs."""
    groups, log_run = events.groups[-1], float(PRIOR_LOG_RUN)
    steps = [Contribution(level=PRIOR, jobs=0, weight=0.0, run_time_s=float(np.expm1(log_run)), factor=1.0)]

    def add(level: str, jobs: int, weight: float, log_after: float) -> None:
        nonlocal log_run
        run_time_s, factor = float(np.expm1(log_after)), float(np.exp(log_after - log_run))
        steps.append(Contribution(level=level, jobs=jobs, weight=weight, run_time_s=run_time_s, factor=factor))
        log_run = log_after

    for level, name in enumerate(LEVELS):
        if groups[level] >= 0 and IN_CHAIN[level]:
            sums, n_ended = history.sums[groups[level]], history.counts[groups[level], N_ENDED]
            shrunk_mean = (sums[RUN_SUM] + PSEUDO_JOBS[level] * log_run) / (sums[RUN_WEIGHT] + PSEUDO_JOBS[level])
            add(name, int(n_ended), float(sums[RUN_WEIGHT]), float(shrunk_mean))
    n_neighbours = history.ring_length[history.ring_index[groups[USER]]] if groups[USER] >= 0 else 0
    weight = float(np.nan_to_num(features[COLUMN.neighbour_weight]))
    add(NEIGHBOURHOOD, int(min(n_neighbours, NEIGHBOURS)), weight, float(features[COLUMN.anchor]))
    n_ended = history.counts[groups[GLOBAL], N_ENDED]
    add(DISTRIBUTION, int(n_ended), float(n_ended), float(np.log1p(median_s)))
    return tuple(steps)


def _corrections(model: DurationModel | None, timeline: Timeline, before_s: float, after_s: float) -> dict[str, float]:
    """Return the factor of each feature in the trees.

    The trees give the log-odds that the run has ended by the median of past runs, as a sum over features. The slope
    with which they fall to 0 at the median of the trees turns each summand into a factor. The last factor makes the
    product exact.
    """
    log_before, log_after = np.log1p(before_s), np.log1p(after_s)
    log_factors: dict[str, float] = {}
    if model is not None and model.trained:
        features = timeline.pair_features(len(timeline.events.submitted_s) - 1, float(log_before))
        booster: Any = lightgbm.Booster(model_str=trees_alone(model.trees.text))
        contributions = booster.predict(features[None], pred_contrib=True)[0]
        log_odds = float(contributions.sum())
        slope = log_odds / (log_before - log_after) if abs(log_odds) > _LEAST_ODDS else np.inf
        slope = slope if slope > _LEAST_SLOPE else np.inf  # the limit or the tail decided, not the trees
        log_factors = dict(zip((*PAIR_FEATURES, EVERY_JOB), (-contributions / slope).tolist(), strict=True))
    remainder = float(log_after - log_before - sum(log_factors.values()))
    return {name: float(np.exp(value)) for name, value in (log_factors | {AFTERWARDS: remainder}).items()}
