"""Explanation of a prediction.

It has the steps of the shrinkage, the corrections by the trees, and the past jobs most similar to the job.

Both parts work on the logarithm of run time, so each step is a factor, and the product of the factors is the
prediction. The trees' part is LightGBM's own (TreeSHAP; Lundberg et al. 2020, doi 10.1038/s42256-019-0138-9).
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
    IN_CHAIN,
    LEVELS,
    NEIGHBOURS,
    PRIOR_LOG_RUN,
    PSEUDO_JOBS,
    USER,
    CausalStats,
    Events,
)
from helios.predict.distribution import PAIR_FEATURES
from helios.predict.duration import SHRINKAGE, DurationModel
from helios.predict.job_table import JobTable, group_columns, nearness
from helios.predict.timeline import RecordedWalk, Timeline, untrained
from helios.predict.trees import trees_alone

# The basis of a prediction: the narrowest group of past jobs in which one has ended.
#
# The order is fixed: jobs of the user like this one, the user's other jobs, those of the account, those of anyone with
# the same request, all. It is derived from a row of features alone, so that a live prediction, a replayed one and an
# explanation cannot disagree. It shows which jobs were available. The weight of each group follows from the shrinkage
# (:mod:`helios.predict.causal_stats`) and the model.

BASES = ("user+size", "user", "group", "size", "all")
"""Codes of :func:`fallback_level` by position, from the narrowest group to the widest."""


def fallback_level(features: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return which of ``BASES`` each prediction rests on.

    Parameters
    ----------
    features : float32 array of shape (n, len(FEATURES))
        As :func:`helios.predict.job_table.causal_features` makes them.

    Returns
    -------
    int8 array of shape (n,)
        Positions in ``BASES``. The prediction of an unknown user's job never rests on jobs of a user.
    """
    # log1p of the number of ended jobs. For an unknown user it is NaN, which is not above 0.
    own, users = features[:, COLUMN.user_size_ended] > 0, features[:, COLUMN.user_ended] > 0
    group, size = (~np.isnan(features[:, column]) for column in (COLUMN.account_mean, COLUMN.request_last_1))
    return np.asarray(np.select([own, users, group, size], range(4), len(BASES) - 1), dtype=np.int8)


# Past jobs that had ended by a job's submission: the most similar ones, and the last ones of the prediction's basis.
#
# The distance is that of the features (:mod:`helios.predict.causal_stats`), over the whole past instead of the user's
# last few jobs: size and limit count by their ratio, partition and name by being the same or not.

LEVEL_OF = {"user+size": "user_size", "user": "user", "group": "account", "size": "request", "all": "global"}
"""The level in ``LEVELS`` of each of ``BASES``."""
LAST = 12
"""Number of last ended jobs that are shown for the basis of a prediction."""

OTHER_PARTITION, OTHER_STEM, OTHER_NAME, OTHER_USER, OTHER_ACCOUNT = 1.0, 2.0, 0.3, 1.5, 1.0
"""Distances, where 0.69 is a size or limit twice as large. Partition and stem count as in the features, the other
values were chosen."""
AGE = 0.1
"""Distance for each factor e in the number of jobs of the same kind (same request and user) that ended since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarJob:
    """Past job that is similar to the explained one.

    Attributes
    ----------
    row : int
        Its row in the jobs given.
    ended_s : int
        s since the epoch.
    run_time_s : float
    distance : float
        0 for the same request, if no job like it has ended since.
    differs : tuple of str
        What differs, of "size", "limit", "partition", "name", "user" and "account".
    """

    row: int
    ended_s: int
    run_time_s: float
    distance: float
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentInGroup:
    """Last ended jobs of the group that a prediction rests on.

    Attributes
    ----------
    jobs : int
        Number of jobs of the group that had ended at any time.
    last : int
        Number of last jobs that the run times are of, at most ``LAST``.
    shortest_s, longest_s : float
        Shortest and longest run time of these last jobs.
    """

    jobs: int
    last: int
    shortest_s: float
    longest_s: float


def narrowest_group(table: JobTable) -> tuple[str, RecentInGroup | None]:
    """Return the narrowest basis with an ended job, and its last jobs.

    A job counts as ended if it had ended by the last job's submission.
    """
    groups = group_columns(table)
    found = ((basis, _recent(table, groups, basis)) for basis in BASES)
    return next(((basis, there) for basis, there in found if there), (BASES[-1], None))


def similar_jobs(table: JobTable, *, most: int = 5) -> tuple[SimilarJob, ...]:
    """Return the past jobs most similar to the last, nearest first.

    The user's own come first, whatever their distance. If they are fewer than ``most``, others' jobs of the same
    account, size or name stem follow. O(n log n) in the number of jobs.
    """
    ended = _ended_before_the_last(table)
    own = (table.user[ended] == table.user[-1]) & (table.user[-1] >= 0)
    chosen = _nearest(table, ended[own], most)
    if len(chosen) < most:
        others = ended[~own]
        account = (table.account[others] == table.account[-1]) & (table.account[-1] >= 0)
        stem = (table.stem[others] == table.stem[-1]) & (table.stem[-1] >= 0)
        size = nearness(table)[:, 0]
        kin = others[account | stem | (size[others] == size[-1])]
        chosen += _nearest(table, kin, most - len(chosen))
    return tuple(chosen)


def _recent(table: JobTable, groups: NDArray[np.int32], basis: str) -> RecentInGroup | None:
    group = groups[:, LEVELS.index(LEVEL_OF[basis])]
    ended = _ended_before_the_last(table)
    alike = ended[(group[ended] == group[-1]) & (group[-1] >= 0)]
    if not len(alike):
        return None
    last = alike[np.argsort(table.ended_s[alike], kind="stable")][-LAST:]
    run_s = table.run_time_s[last]
    return RecentInGroup(jobs=len(alike), last=len(last), shortest_s=float(run_s.min()), longest_s=float(run_s.max()))


def _ended_before_the_last(table: JobTable) -> NDArray[np.int64]:
    """Return the rows that had ended by the last job's submission.

    Their run time is known.
    """
    return np.flatnonzero((table.ended_s < table.submitted_s[-1]) & np.isfinite(table.run_time_s))


def _nearest(table: JobTable, rows: NDArray[np.int64], most: int) -> list[SimilarJob]:
    newest_first = rows[np.argsort(-table.ended_s[rows], kind="stable")]
    apart = _apart(table, newest_first)
    distance = sum(apart.values()) + AGE * np.log1p(_newer_alike(table, newest_first))
    near = np.argsort(distance, kind="stable")[:most]
    return [
        SimilarJob(
            row=int(newest_first[place]),
            ended_s=int(table.ended_s[newest_first[place]]),
            run_time_s=float(table.run_time_s[newest_first[place]]),
            distance=float(distance[place]),
            differs=tuple(what for what, far in apart.items() if far[place] > 0),
        )
        for place in near
    ]


def _newer_alike(table: JobTable, newest_first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many jobs of each job's kind ended after it.

    So an old job of a rare kind is not displaced by many newer jobs of a common kind.
    """
    same_stem = table.stem == table.stem[-1]  # not the stem itself: if all names differed, all jobs would have age 0
    columns = (*nearness(table)[:, :3].T, same_stem, table.user)
    kind = np.zeros(len(newest_first), dtype=np.int64)
    for column in columns:
        codes, values = pd.factorize(column[newest_first])
        kind = pd.factorize(kind * (len(values) + 1) + codes)[0]
    return np.asarray(pd.Series(kind).groupby(kind).cumcount(), dtype=np.int64)


def _apart(table: JobTable, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return the distances of ``rows`` from the last job, by property."""
    size, limit = nearness(table)[:, :2].T
    cpu_or_gpu = (table.gpus[rows] > 0) != (table.gpus[-1] > 0)
    other_stem = table.stem[rows] != table.stem[-1]
    other_name = table.name[rows] != table.name[-1]
    return {
        "size": np.abs(size[rows] - size[-1]) + cpu_or_gpu,
        "limit": np.abs(limit[rows] - limit[-1]),
        "partition": OTHER_PARTITION * (table.partition[rows] != table.partition[-1]),
        "name": np.where(other_stem, OTHER_STEM, OTHER_NAME * other_name),
        "user": OTHER_USER * ((table.user[rows] != table.user[-1]) & (table.user[-1] >= 0)),
        "account": OTHER_ACCOUNT * (table.account[rows] != table.account[-1]),
    }


PRIOR, NEIGHBOURHOOD, DISTRIBUTION = "prior", "neighbours", "distribution"
"""Steps besides ``LEVELS``: the prior before anything has ended, the user's last jobs, weighted by similarity, and from
the mean of past runs to the median of their distribution."""
_LEAST_ODDS, _LEAST_SLOPE = 1e-9, 0.05
EVERY_JOB, AFTERWARDS = "every_job", "afterwards"
"""Corrections by no feature: the trees' constant for every job, and what is applied after the trees."""

# Columns of CausalStats.sums and CausalStats.counts.
_WEIGHT, _SUM, _ENDED = 0, 1, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One step of the shrinkage.

    Steps go from the widest group of jobs to the narrowest.

    Attributes
    ----------
    level : str
        One of ``LEVELS``, ``PRIOR`` for the first, ``NEIGHBOURHOOD`` and ``DISTRIBUTION`` for the last two.
    jobs : int
        Number of jobs of the group that had ended.
    weight : float
        Sum of their weights, which are smaller for older ones.
    run_time_s : float
        Expected run time after this step.
    factor : float
        Factor by which the step changed it; 1 for the first.
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
        One of ``BASES``, the jobs that the prediction rests on.
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
    """Explain the prediction of the last of ``jobs`` at its submission.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order. Ends after the last job's submission are not used.
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
    if model and model.levels:
        walk.set_levels(replace(model.levels, outlived=timeline.state.levels.outlived))
    walk.to(now_s)
    by_shrinkage = timeline.submitted(np.arange(timeline.submissions, table.n), now_s)[-1]
    timeline.model = model.kernel if model else untrained()
    found = timeline.waiting(last, now_s)[0]
    row, events = timeline.state.features[-1:], timeline.events
    basis = BASES[int(fallback_level(row)[0])]
    steps = _steps(timeline.state.history, events, row[0], float(by_shrinkage[RUN_TIME.p50]))
    return Explained(
        quantiles_s=(float(found[RUN_TIME.p10]), float(found[RUN_TIME.p50]), float(found[RUN_TIME.p90])),
        source=model.model_id if model and model.trained else SHRINKAGE,
        basis=basis,
        steps=steps,
        corrections=_corrections(model, timeline, steps[-1].run_time_s, float(found[RUN_TIME.p50])),
        features={name: float(value) for name, value in zip(FEATURES, row[0], strict=True)},
        recent=_recent(table, events.groups, basis),
        resembling=similar_jobs(table, most=alike),
    )


def _steps(history: CausalStats, events: Events, row: NDArray[np.float32], median_s: float) -> tuple[Contribution, ...]:
    groups, log_run = events.groups[-1], float(PRIOR_LOG_RUN)
    steps = [Contribution(level=PRIOR, jobs=0, weight=0.0, run_time_s=float(np.expm1(log_run)), factor=1.0)]

    def add(level: str, jobs: int, weight: float, log_after: float) -> None:
        nonlocal log_run
        run_time_s, factor = float(np.expm1(log_after)), float(np.exp(log_after - log_run))
        steps.append(Contribution(level=level, jobs=jobs, weight=weight, run_time_s=run_time_s, factor=factor))
        log_run = log_after

    for level, name in enumerate(LEVELS):
        if groups[level] >= 0 and IN_CHAIN[level]:
            sums, ended = history.sums[groups[level]], history.counts[groups[level], _ENDED]
            drawn = (sums[_SUM] + PSEUDO_JOBS[level] * log_run) / (sums[_WEIGHT] + PSEUDO_JOBS[level])
            add(name, int(ended), float(sums[_WEIGHT]), float(drawn))
    near = history.ring_length[history.ring_of[groups[USER]]] if groups[USER] >= 0 else 0
    weight = float(np.nan_to_num(row[COLUMN.neighbour_weight]))
    add(NEIGHBOURHOOD, int(min(near, NEIGHBOURS)), weight, float(row[COLUMN.anchor]))
    ended = history.counts[groups[0], _ENDED]
    add(DISTRIBUTION, int(ended), float(ended), float(np.log1p(median_s)))
    return tuple(steps)


def _corrections(model: DurationModel | None, timeline: Timeline, before_s: float, after_s: float) -> dict[str, float]:
    """Return the factor of each feature of the trees.

    The trees give log-odds of having ended by the median of the past runs, and each feature's share in them. They are
    turned into factors by the slope with which the log-odds fall to 0 at the trees' own median. The last factor makes
    the product exact.
    """
    log_before, log_after = np.log1p(before_s), np.log1p(after_s)
    parts: dict[str, float] = {}
    if model is not None and model.trained:
        row = timeline.pair_features(len(timeline.events.submitted_s) - 1, float(log_before))
        booster: Any = lightgbm.Booster(model_str=trees_alone(model.trees.text))
        shares = booster.predict(row[None], pred_contrib=True)[0]
        odds = float(shares.sum())
        slope = odds / (log_before - log_after) if abs(odds) > _LEAST_ODDS else np.inf
        slope = slope if slope > _LEAST_SLOPE else np.inf  # the limit or the tail decided, not the trees
        parts = dict(zip((*PAIR_FEATURES, EVERY_JOB), (-shares / slope).tolist(), strict=True))
    left = float(log_after - log_before - sum(parts.values()))
    return {name: float(np.exp(part)) for name, part in (parts | {AFTERWARDS: left}).items()}
