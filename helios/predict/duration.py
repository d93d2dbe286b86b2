"""Run times: shrinkage that serves from the first job, and boosted trees that learn what it misses.

The trees (LightGBM, quantile loss) predict the *difference* of log run time from the shrinkage anchor,
which travels better to sites with few users or one dominating array than predicting the level does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from numba import njit
from numpy.typing import NDArray

from helios.errors import NotEnoughHistory
from helios.ports import Progress, in_silence
from helios.predict.features import JobTable, causal_features, groups_of
from helios.predict.forest import Forest, grow, plant
from helios.predict.history import FEATURES, NEVER_S, REQUEST, USER_SIZE

QUANTILES = (0.1, 0.5, 0.9)
ROUNDS = 250
FEWEST_JOBS = 200
# A bound on training time and memory; longer than every trace we have, so what it costs is not known.
MOST_JOBS = 300_000
# A campaign's jobs are one experiment many times over: n of them weigh as much as sqrt(n) others. Weighting
# by 1/sqrt(user's jobs) too moved rank correlation on Graham from .518 to .658 and on SDSC-BLUE from .735 to
# .714 (one run each): left out for the latter's target.
BURST_GAP_S = 6 * 3600
BURST_POWER = -0.5

_ANCHOR, _ANCHOR_SD, _LOG_LIMIT = (FEATURES.index(name) for name in ("anchor", "anchor_sd", "log_limit"))
_Z90 = 1.2815515655446004  # the normal distribution's .9 quantile
_PARAMETERS = {
    "objective": "quantile",
    # Size chosen on the 50-70 % stretch of KTH, SDSC-BLUE and Philly, trained on the half before: 15 leaves and 250
    # rounds order Philly better (.471) than 31 and 150 (.444) and the other two alike (.801, .766 against .767).
    "num_leaves": 15,
    "learning_rate": 0.08,
    "min_data_in_leaf": 40,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
    "max_bin": 127,
    # The three quantiles learn side by side, one thread each: same trees on every machine, and no
    # OpenMP barrier to wait at when the machine is busy with something else.
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
}


@dataclass(frozen=True, slots=True)
class HistoryPredictor:
    """Hierarchical shrinkage alone: no training, works from the first job.

    Quantiles come from the spread of the same groups, taken as normal in log time, and are cut at the
    job's time limit.
    """

    model_id: str = "shrinkage"

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return p10, p50, p90 of the run time in s, of shape (n, 3), from causal ``features``."""
        return np.asarray(_shrinkage_quantiles(features))


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationModel:
    """A trained predictor of run times.

    Attributes
    ----------
    model_id : str
        Named after its cluster, its last day, and a digest of its trees: equal ids predict alike.
    trained_until : datetime
        No job that ended at or after this was used.
    jobs : int
        Number of jobs it learned from.
    features : tuple of str
        Names of the columns of the matrix it takes.
    texts : tuple of str
        LightGBM's text of the trees for p10, p50 and p90.
    """

    cluster: str
    trained_until: datetime
    jobs: int
    features: tuple[str, ...]
    texts: tuple[str, ...]
    model_id: str = field(init=False)
    forest: Forest = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256("\n".join(self.texts).encode()).hexdigest()[:8]
        object.__setattr__(self, "model_id", f"{self.cluster}-{self.trained_until:%Y%m%d}-{digest}")
        object.__setattr__(self, "forest", plant(self.texts))

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return p10, p50, p90 of the run time in s.

        Parameters
        ----------
        features : float32 array of shape (n, len(self.features))
            As :func:`helios.predict.causal_features` makes them.

        Returns
        -------
        float64 array of shape (n, 3)
            Ascending in each row.
        """
        return np.asarray(_forest_quantiles(self.forest, features))


def train(
    jobs: pd.DataFrame,
    *,
    cluster: str,
    until: datetime | None = None,
    seed: int = 0,
    progress: Progress = in_silence,
    timezone: str = "UTC",
) -> DurationModel:
    """Learn run times from the jobs of ``cluster`` that ended before ``until`` (all, if None).

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.

    Raises
    ------
    NotEnoughHistory
        Fewer than ``FEWEST_JOBS`` jobs with a known run time ended before ``until``.
    """
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(jobs, timezone=timezone)
    return train_on(table, causal_features(table).X, cluster=cluster, until=until, seed=seed, progress=progress)


def train_on(
    table: JobTable,
    features: NDArray[np.float32],
    *,
    cluster: str,
    until: datetime | None,
    seed: int,
    progress: Progress = in_silence,
) -> DurationModel:
    """Do as :func:`train` does, with the features at hand."""
    until_s = NEVER_S if until is None else int(np.ceil(until.timestamp()))
    rows = np.flatnonzero((table.ended_s < until_s) & np.isfinite(table.run_time_s))
    refuse_too_few(len(rows), until)
    return fit(
        rows[np.argsort(table.ended_s[rows], kind="stable")],
        features=features,
        groups=groups_of(table),
        submitted_s=table.submitted_s,
        log_run=np.log1p(table.run_time_s),
        cluster=cluster,
        trained_until=until or datetime.fromtimestamp(int(table.ended_s[rows].max()) + 1, UTC),
        seed=seed,
        progress=progress,
    )


def refuse_too_few(ended: int, until: datetime | None) -> None:
    """Raise NotEnoughHistory if ``ended`` jobs are too few to train on."""
    if ended >= FEWEST_JOBS:
        return
    before = "" if until is None else f" ended before {until:%Y-%m-%d %H:%M} and"
    raise NotEnoughHistory(
        f"{ended:,} jobs{before} have a known run time; to train a model takes at least {FEWEST_JOBS:,}.",
        remedy="Load a longer history, or choose a later moment. Without a model, predictions come from shrinkage.",
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
    progress: Progress = in_silence,
) -> DurationModel:
    """Learn from the rows ``ended`` (ordered by end; the last ``MOST_JOBS``) of the other arrays."""
    rows = ended[-MOST_JOBS:]
    known = features[rows]
    residual = log_run[rows] - known[:, _ANCHOR]
    weight = _weights(groups[rows], submitted_s[rows])
    learn = _learner(known, residual, weight, seed, progress)
    with ThreadPoolExecutor(len(QUANTILES)) as side_by_side:
        texts = tuple(side_by_side.map(learn, QUANTILES))
    return DurationModel(cluster=cluster, trained_until=trained_until, jobs=len(rows), features=FEATURES, texts=texts)


def _learner(
    features: NDArray[np.float32],
    residual: NDArray[np.float64],
    weight: NDArray[np.float64],
    seed: int,
    progress: Progress,
) -> Callable[[float], str]:
    binned = lightgbm.Dataset(
        features, residual, weight=weight, feature_name=list(FEATURES), params=_PARAMETERS, free_raw_data=True
    ).construct()
    rounds_done, lock = 0, Lock()

    def tell(_: Any) -> None:
        nonlocal rounds_done
        with lock:
            rounds_done += 1
            progress("Learning run times", rounds_done / (ROUNDS * len(QUANTILES)))

    def learn(quantile: float) -> str:
        parameters = _PARAMETERS | {"alpha": quantile, "seed": seed}
        booster = lightgbm.train(parameters, binned, ROUNDS, callbacks=[tell])
        return str(booster.model_to_string())

    return learn


def _weights(groups: NDArray[np.int32], submitted_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return weights of mean 1: less for the jobs of a long burst."""
    alike = np.where(groups[:, USER_SIZE] >= 0, groups[:, USER_SIZE], groups[:, REQUEST])
    order = np.lexsort((submitted_s, alike))
    another = np.diff(alike[order], prepend=-1) != 0
    apart = np.diff(submitted_s[order], prepend=submitted_s[order[0]]) > BURST_GAP_S
    burst = np.empty(len(order), dtype=np.int64)
    burst[order] = np.cumsum(another | apart)
    weight = np.bincount(burst)[burst] ** BURST_POWER
    return np.asarray(weight / weight.mean())


@njit(cache=True)
def _forest_quantiles(forest: Any, features: Any) -> Any:
    quantiles = grow(forest, features)
    for row in range(len(features)):
        for column in range(3):
            quantiles[row, column] = max(np.expm1(quantiles[row, column] + features[row, _ANCHOR]), 0.0)
        quantiles[row].sort()
    return quantiles


@njit(cache=True)
def _shrinkage_quantiles(features: Any) -> Any:
    quantiles = np.empty((len(features), 3))
    for row in range(len(features)):
        anchor, spread = float(features[row, _ANCHOR]), _Z90 * float(features[row, _ANCHOR_SD])
        limit = float(features[row, _LOG_LIMIT])
        for column in range(3):
            log_run = anchor + (column - 1) * spread
            if log_run > limit:  # noqa: PLR1730 - min() would let an unknown limit's NaN through
                log_run = limit
            quantiles[row, column] = max(np.expm1(log_run), 0.0)
    return quantiles
