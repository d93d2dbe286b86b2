"""Comparison of predictors on the same jobs, with intervals for chance.

Jobs of one user come in campaigns, so that a thousand jobs are not a thousand observations. So whole users are
resampled (paired bootstrap over clusters: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 8). Where
few users are known, or one has most of the jobs, bursts of similar jobs are resampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import TypeAdapter

from helios.predict.job_table import JobTable, job_groups
from helios.predict.scores import PredictorScore, best_guess, burst_groups, find_bursts, predictor_score, rank_score

RESAMPLES = 400
LIKELY = 0.9
"""Share of the resamples that lie within the interval of a difference."""

NEGLIGIBLE = 0.01
"""Difference of rank correlation, or of log error (1 % of the run time), that is too small to matter.

With very many jobs even such a difference is significant.
"""
TOO_MUCH = 0.1
"""Difference that counts against a model even where it may be chance, because few jobs were evaluated."""
# Users are resampled if they are at least so many, and none has more than this share of the jobs.
FEWEST_USERS, LARGEST_USER = 10, 0.5


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
        """Whether the challenger is nowhere worse and somewhere better, beyond chance."""
        return any(loss < 0 for loss, _ in self._losses().values()) and not self.worse_in

    def _losses(self) -> dict[str, tuple[float, bool]]:
        """Return the challenger's losses, and whether they may be chance."""
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
