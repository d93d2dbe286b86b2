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
from helios.predict.job_table import JobTable
from helios.predict.similar_jobs import BASES, RecentInGroup, SimilarJob, fallback_level, recent_in_group, similar_jobs
from helios.predict.timeline import RecordedWalk, Timeline, untrained
from helios.predict.trees import trees_alone

PRIOR, NEIGHBOURHOOD, DISTRIBUTION = "prior", "neighbours", "distribution"
"""Steps that are no level: the prior, the user's last jobs weighted by similarity, and the change from the mean of past
runs to the median of their distribution."""
_LEAST_ODDS, _LEAST_SLOPE = 1e-9, 0.05
EVERY_JOB, AFTERWARDS = "every_job", "afterwards"
"""Corrections that belong to no feature: the constant of the trees, and what is applied after the trees."""


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
        recent=recent_in_group(table, events.groups, basis),
        resembling=similar_jobs(table, most=alike),
    )


def _steps(
    history: CausalStats, events: Events, features: NDArray[np.float32], median_s: float
) -> tuple[Contribution, ...]:
    """Return the steps from the prior to the median of past runs."""
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
