"""Drift of a model's inputs and errors since its training.

Inputs are compared by the population stability index,
the sum over bins of (p - q) ln(p / q), between training and a later period. A value below .1 is commonly taken as
stable and above .25 as another population (Siddiqi, "Credit Risk Scorecards", 2006). Single weeks of a cluster always
differ from its long-term mean. So each index comes with its usual value in the weeks of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from helios.predict.causal_stats import COLUMN, FEATURES
from helios.predict.job_table import JobTable
from helios.predict.scores import PredictorScore, predictor_score

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
MOVED, CHANGED = 0.1, 0.25


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
