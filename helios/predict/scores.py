"""Scores of predictions, with intervals for chance, and bursts of similar jobs.

Jobs are not independent, since one array of a thousand is one experiment. So besides the plain rank correlation there
is the one over bursts (each reduced to its medians), and an interval that resamples users instead of jobs (cluster
bootstrap; Davison and Hinkley 1997, section 3.8). On Graham and Cedar one user has half of the test, which makes the
interval wide.

In training, the n jobs of a burst should count as much as about sqrt(n) other jobs. They could be weighted, but here
all except about sqrt(n) are left out. In the experiments the models were as good, and training was several times
faster, because there are fewer rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import cached_jit, inline_jit
from helios.ports import RUN_TIME
from helios.predict.causal_stats import COLUMN, REQUEST, USER_SIZE
from helios.predict.job_table import JobTable, job_groups

QUANTILES = (0.1, 0.5, 0.9)
DAY_S = 86_400
LARGE = 8
"""GPUs, or CPUs on a log without GPUs, above which a job is large."""
FEW_ENDED = 10
USER_BURST_GAP_S, BURST_GAP_S, UNKNOWN_USERS_GAP_S = 600, 6 * 3600, 600
"""Longest gaps within a burst, s: of one user, of one user, size and limit, and of unknown users with one request."""
# Features are logarithms in single precision, so the limits lie between two whole numbers.
LOG_FEW = np.log1p(FEW_ENDED - 0.5)
LOG_USER_GAP, LOG_BURST_GAP = np.log1p(USER_BURST_GAP_S + 0.5), np.log1p(BURST_GAP_S + 0.5)
RESAMPLES = 200
"""Resamples of the bootstrap. The ends of a 90 % interval are uncertain by a tenth of its width, which is enough."""
_INTERVAL_PERCENTILES = (5.0, 95.0)

KEPT = 2.0
"""A burst of n jobs is thinned to this times sqrt(n). 1, 2 and 4 were tried (docs/research/experiments.md)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluationSet:
    """Jobs on which predictions are evaluated, and their groups.

    There is one entry per job.

    Attributes
    ----------
    run_time_s : float64
        The true run time, finite.
    unit : int64
        Unit of resampling, numbered from 0: a user, or a day of submissions for unknown users.
    burst : int64
        Burst of the job, numbered from 0: jobs of one user, size and limit, each within six hours of the one before.
    groups : mapping of str to bool array
        Groups of jobs whose coverage is scored. ``new_user``: fewer than ten jobs of the user had ended. ``burst``:
        within ten minutes of the user's previous job, or six hours of one with the same size and limit. ``large``: more
        than 8 GPUs, or CPUs on a log without GPUs. ``top_user``: jobs of the user with most of these jobs.
    """

    run_time_s: NDArray[np.float64]
    unit: NDArray[np.int64]
    burst: NDArray[np.int64]
    groups: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoverage:
    """Coverage of the upper bound in a group.

    ``share`` is None where the group has no jobs.
    """

    jobs: int
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorScore:
    """Main scores by which predictors are compared.

    Attributes
    ----------
    spearman : float, optional
        Rank correlation of prediction (its mean in log time) and true run time. None where one of them is constant.
    median_abs_log_error : float
        Median of abs(log1p(predicted) - log1p(true)), natural logarithm; 0.69 is a factor of 2. The prediction is the
        best single guess (``RunTime.typical``).
    bias_log : float
        Mean of log1p(predicted) - log1p(true). Above 0 predictions are too long.
    coverage_p10_p90 : float, optional
        Share of jobs whose run time lies within [p10, p90], nominally .8. None without predicted quantiles.
    """

    spearman: float | None
    median_abs_log_error: float
    bias_log: float
    coverage_p10_p90: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores(PredictorScore):
    """All scores of one predictor.

    Attributes
    ----------
    spearman_90 : tuple of two floats, or None
        Interval of 90 % of the rank correlations when users (days for unknown users) are resampled. None with fewer
        than two of them, or without a correlation.
    spearman_by_burst : float or None
        Rank correlation of bursts, each reduced to its medians.
    mae_s : float
        Mean absolute error, s.
    within_10pct, within_50pct, within_100pct : float
        Share of jobs whose absolute error is at most that share of the true run time, or of 1 s for a shorter one.
    coverage_p90 : float or None
        Share of jobs whose run time is at most p90, nominally .9. None without predicted quantiles.
    coverage_p90_by_group : mapping
        The same within each group. Empty without predicted quantiles.
    pinball_log : float or None
        Mean pinball loss of p10, p50 and p90 in log time. It is small if the interval is both correct and narrow.
    log_width : float or None
        Mean of log1p(p90) - log1p(p10).
    misallocated : float or None
        Sum over tenths of the jobs, in the order of their predicted means, of the seconds by which predicted and true
        sums differ, over all true seconds. None without a predicted mean.
    """

    spearman_90: tuple[float, float] | None
    spearman_by_burst: float | None
    mae_s: float
    within_10pct: float
    within_50pct: float
    within_100pct: float
    coverage_p90: float | None = None
    coverage_p90_by_group: Mapping[str, GroupCoverage] = field(default_factory=dict)
    pinball_log: float | None = None
    log_width: float | None = None
    misallocated: float | None = None


def evaluation_set(table: JobTable, features: NDArray[np.float32], rows: NDArray[np.int64]) -> EvaluationSet:
    """Return the jobs ``rows`` of ``table`` as an evaluation set.

    Their run times must be known.

    Parameters
    ----------
    features : float32 array of shape (table.n, len(FEATURES))
        Features at submission.
    """
    return EvaluationSet(
        run_time_s=table.run_time_s[rows],
        unit=resampling_units(table.user[rows], table.submitted_s[rows]),
        burst=find_bursts(burst_groups(job_groups(table)[rows]), table.submitted_s[rows]),
        groups=_groups(table, features, rows),
    )


def resampling_units(user: NDArray[np.int32], submitted_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the unit of resampling of each job, numbered from 0.

    It is the job's user, or its day for an unknown user.
    """
    day = submitted_s // DAY_S
    unit = np.where(user >= 0, user.astype(np.int64), user.max(initial=-1) + 1 + day - day.min(initial=0))
    return np.asarray(pd.factorize(unit)[0], dtype=np.int64)


def _groups(table: JobTable, features: NDArray[np.float32], rows: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    features, user = features[rows], table.user[rows]
    user_gap, user_size_gap = features[:, COLUMN.user_submission_gap], features[:, COLUMN.user_size_submission_gap]
    size = table.gpus[rows] if (table.gpus > 0).any() else table.cpus[rows]
    counts = np.bincount(user[user >= 0], minlength=1)
    return {
        "new_user": features[:, COLUMN.user_ended] < LOG_FEW,
        "burst": (user_gap < LOG_USER_GAP) | (user_size_gap < LOG_BURST_GAP),
        "large": size > LARGE,
        "top_user": (user == counts.argmax()) & bool(counts.any()),
    }


def best_guess(predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the single best guess of each prediction, s.

    ``predicted`` has the shape (n,), or the columns of :class:`helios.ports.RunTime`.
    """
    return predicted if predicted.ndim == 1 else predicted[:, RUN_TIME.typical]


def rank_score(predicted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values by which predictions are ranked, for the input of ``best_guess``."""
    return predicted if predicted.ndim == 1 else predicted[:, RUN_TIME.log_mean]


def pinball_losses(quantiles_s: NDArray[np.float64], truth_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each job's mean pinball loss over three quantiles in log time.

    ``quantiles_s`` has the shape (n, 3).
    """
    error = np.log1p(truth_s)[:, None] - np.log1p(quantiles_s)
    return np.asarray(np.maximum(np.multiply(QUANTILES, error), np.subtract(QUANTILES, 1) * error).mean(axis=1))


def misallocated(predicted_s: NDArray[np.float64], truth_s: NDArray[np.float64]) -> float | None:
    """Return the share of seconds that predictions attribute to wrong jobs.

    It is the sum over tenths of abs(predicted - true), over all true seconds. The tenths have equally many jobs, in the
    order of the predictions. None without any true seconds.
    """
    order = np.argsort(predicted_s, kind="stable")
    sums = [(predicted_s[tenth].sum(), truth_s[tenth].sum()) for tenth in np.array_split(order, 10)]
    total = float(truth_s.sum())
    return sum(abs(predicted - true) for predicted, true in sums) / total if total > 0 else None


def scores_for(predicted: NDArray[np.float64], jobs: EvaluationSet) -> Scores:
    """Return all scores of predictions, s.

    ``predicted`` has the shape (n,), or the columns of :class:`helios.ports.RunTime`.
    """
    rank, truth = rank_score(predicted), jobs.run_time_s
    error = np.abs(best_guess(predicted) - truth)
    relative_error = error / np.maximum(truth, 1.0)
    burst_medians = pd.DataFrame({"predicted": rank, "true": truth}).groupby(jobs.burst).median()
    scores = Scores(
        **asdict(predictor_score(predicted, truth)),
        spearman_90=_spearman_90(rank, jobs),
        spearman_by_burst=spearman(*burst_medians.to_numpy().T),
        mae_s=float(error.mean()),
        within_10pct=float((relative_error <= 0.1).mean()),
        within_50pct=float((relative_error <= 0.5).mean()),
        within_100pct=float((relative_error <= 1.0).mean()),
    )
    if predicted.ndim == 1:
        return scores
    quantiles, below = predicted[:, :3], truth <= predicted[:, RUN_TIME.p90]
    return replace(
        scores,
        coverage_p90=float(below.mean()),
        coverage_p90_by_group={
            name: GroupCoverage(jobs=int(member.sum()), share=float(below[member].mean()) if member.any() else None)
            for name, member in jobs.groups.items()
        },
        pinball_log=float(pinball_losses(quantiles, truth).mean()),
        log_width=float((np.log1p(quantiles[:, 2]) - np.log1p(quantiles[:, 0])).mean()),
        misallocated=misallocated(predicted[:, RUN_TIME.mean], truth),
    )


def predictor_score(predicted: NDArray[np.float64], truth_s: NDArray[np.float64]) -> PredictorScore:
    """Return the main scores of predictions, s.

    ``predicted`` has the shape (n,), or the columns of :class:`helios.ports.RunTime`.
    """
    log_error = np.log1p(best_guess(predicted)) - np.log1p(truth_s)
    is_covered = None if predicted.ndim == 1 else (predicted[:, 0] <= truth_s) & (truth_s <= predicted[:, 2])
    return PredictorScore(
        spearman=spearman(rank_score(predicted), truth_s),
        median_abs_log_error=float(np.median(np.abs(log_error))),
        bias_log=float(log_error.mean()),
        coverage_p10_p90=None if is_covered is None else float(is_covered.mean()),
    )


def spearman(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for ties.

    None where either is constant.
    """
    correlation = float(_rank_correlation(_dense_rank(predicted), _dense_rank(truth), np.ones(len(truth))))
    return None if np.isnan(correlation) else correlation


def _spearman_90(predicted: NDArray[np.float64], jobs: EvaluationSet) -> tuple[float, float] | None:
    """Return the central 90 % interval of rank correlations with resampled units.

    The seed is fixed.
    """
    n_units = int(jobs.unit.max(initial=-1)) + 1
    if n_units < 2:
        return None
    # The values are ranked once and resampled by weight, which SciPy's spearmanr and bootstrap cannot do.
    x, y, random = _dense_rank(predicted), _dense_rank(jobs.run_time_s), np.random.default_rng(0)
    correlations = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        counts = np.bincount(random.integers(0, n_units, n_units), minlength=n_units).astype(np.float64)
        correlations[i] = _rank_correlation(x, y, counts[jobs.unit])
    if np.isnan(correlations).sum() > RESAMPLES / 2:
        return None
    low, high = np.nanpercentile(correlations, _INTERVAL_PERCENTILES)
    return float(low), float(high)


def _dense_rank(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rank of each value among the distinct ones."""
    return np.asarray(np.unique(values, return_inverse=True)[1])


@cached_jit
def _rank_correlation(x: Any, y: Any, weight: Any) -> float:
    """Return the weighted correlation of mean ranks.

    ``x`` and ``y`` are dense ranks. BLAS is not used, because its threads wait for each other.
    """
    ranks_x, ranks_y = _mean_ranks(x, weight), _mean_ranks(y, weight)
    sum_xx, sum_xy, sum_yy = 0.0, 0.0, 0.0
    for job in range(len(weight)):
        rank_x, rank_y = ranks_x[x[job]], ranks_y[y[job]]
        sum_xx += weight[job] * rank_x * rank_x
        sum_xy += weight[job] * rank_x * rank_y
        sum_yy += weight[job] * rank_y * rank_y
    return sum_xy / np.sqrt(sum_xx * sum_yy) if sum_xx * sum_yy > 0.0 else np.nan


@inline_jit
def _mean_ranks(dense_rank: Any, weight: Any) -> Any:
    """Return the mean rank of each distinct value, minus the mean of all.

    Each job counts ``weight`` times.
    """
    counts = np.bincount(dense_rank, weights=weight)
    total = counts.sum()
    return np.cumsum(counts) - counts / 2 - total / 2


def without_repeats(
    rows: NDArray[np.int64], *, groups: NDArray[np.int32], submitted_s: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows to learn from, with long bursts thinned.

    The order stays. The jobs that stay of a burst are spread evenly over it. For unknown users the gap is shorter,
    because similar jobs of many unknown users never pause for long.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        Positions of jobs in the other arrays.
    groups : int32 array of shape (n_jobs, n_levels)
        Result of :func:`helios.predict.job_table.job_groups`.
    submitted_s : int64 array of shape (n_jobs,)
        s since the epoch.
    """
    gap_s = np.where(groups[rows, USER_SIZE] < 0, UNKNOWN_USERS_GAP_S, BURST_GAP_S)
    burst, position = _burst_and_position(burst_groups(groups[rows]), submitted_s[rows], gap_s)
    length = np.bincount(burst)[burst]
    n_kept = np.minimum(np.ceil(KEPT * np.sqrt(length)), length)
    return np.asarray(rows[(position + 1) * n_kept // length > position * n_kept // length])


def burst_groups(groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the group whose jobs can be in one burst with each job.

    It is that of the same user, size and limit, or for an unknown user that of the same request.
    """
    return np.where(groups[:, USER_SIZE] >= 0, groups[:, USER_SIZE], groups[:, REQUEST])


def find_bursts(group: NDArray[np.int32], submitted_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each job's burst, numbered from 0 in order of appearance.

    A burst has jobs of one ``group``, each submitted within ``BURST_GAP_S`` of the one before.
    """
    burst, _ = _burst_and_position(group, submitted_s, np.full(len(group), BURST_GAP_S))
    return np.asarray(pd.factorize(burst)[0], dtype=np.int64)


def _burst_and_position(
    group: NDArray[np.int32], submitted_s: NDArray[np.int64], gap_s: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each job's burst and its position in it, both from 0.

    Positions are in the order of submission.
    """
    order = np.lexsort((submitted_s, group))
    is_other_group = np.diff(group[order], prepend=-1) != 0
    is_later = np.diff(submitted_s[order], prepend=submitted_s[order[:1]]) > gap_s[order]
    is_first = is_other_group | is_later
    burst, position = np.empty(len(order), dtype=np.int64), np.empty(len(order), dtype=np.int64)
    burst[order] = np.cumsum(is_first) - 1
    position[order] = np.arange(len(order)) - np.flatnonzero(is_first)[burst[order]]
    return burst, position
