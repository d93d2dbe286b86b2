"""How good predictions are, on jobs submitted after the training ended, beside naive controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import Misuse, NotEnoughHistory
from helios.ports import Progress, in_silence
from helios.predict.duration import HistoryPredictor, refuse_too_few, train_on
from helios.predict.features import JobTable, causal_features
from helios.predict.history import FEATURES

_USER_LAST = FEATURES.index("user_last_1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How well one predictor did.

    Attributes
    ----------
    spearman : float or None
        Rank correlation of predicted median and true run time; None where either is constant.
    median_abs_log_error : float
        Median of abs(log1p(predicted) - log1p(true)), natural logarithm.
    mae_s : float
        Mean absolute error, s.
    within_10pct, within_50pct, within_100pct : float
        Share of jobs whose absolute error is at most that share of the true run time (of 1 s, if shorter).
    coverage_p10_p90 : float or None
        Share of jobs whose run time lies within [p10, p90], nominally .8; None: predicts no quantiles.
    bias_log : float
        Mean of log1p(predicted) - log1p(true).
    """

    spearman: float | None
    median_abs_log_error: float
    mae_s: float
    within_10pct: float
    within_50pct: float
    within_100pct: float
    coverage_p10_p90: float | None
    bias_log: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A model's figures and its controls' on the same jobs.

    Attributes
    ----------
    train_until : datetime
        Trained on jobs that ended before; judged on jobs submitted at or after this.
    train_jobs, jobs : int
        Number of jobs learned from, and judged on.
    notes : tuple of str
        What a person should know before believing the figures.
    """

    cluster: str
    train_until: datetime
    train_jobs: int
    jobs: int
    model_id: str
    figures: Figures
    controls: Mapping[str, Figures]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values, the model's at the top level."""
        return {
            "cluster": self.cluster,
            "train_until": self.train_until.isoformat(),
            "train_jobs": self.train_jobs,
            "jobs": self.jobs,
            **asdict(self.figures),
            "model": self.model_id,
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
    seed: int = 0,
    progress: Progress = in_silence,
    timezone: str = "UTC",
) -> Evaluation:
    """Train on what ended before a moment, and judge on the jobs submitted from then on.

    During the test the features go on learning from what has ended; the model stays as it is.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.
    train_until : datetime, optional
        The moment, aware.
    test_fraction : float, optional
        In its place: the share of jobs, last in submission order, to judge on.
    gpu_only : bool
        Judge on GPU jobs alone; training takes all.

    Raises
    ------
    Misuse
        Not exactly one of ``train_until`` and ``test_fraction`` is given, or the fraction is not within (0, 1).
    NotEnoughHistory
        Too few jobs ended before the moment, or none with a known run time was submitted after it.
    """
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(jobs, timezone=timezone)
    first_test, split_s = _split(table, train_until, test_fraction)
    moment = datetime.fromtimestamp(split_s, UTC)
    taught = (table.ended_s < split_s) & np.isfinite(table.run_time_s)
    refuse_too_few(int(taught.sum()), moment)
    tested = _tested(table, first_test, moment, gpu_only=gpu_only)
    features = causal_features(table).X
    model = train_on(table, features, cluster=cluster, until=moment, seed=seed, progress=progress)
    figures = _judge(model.predict(features[tested]), table.run_time_s[tested])
    controls = _controls(table, features, taught, tested)
    return Evaluation(
        cluster=cluster,
        train_until=moment,
        train_jobs=model.jobs,
        jobs=len(tested),
        model_id=model.model_id,
        figures=figures,
        controls=controls,
        notes=(*_better_controls(figures, controls), *_notes(table, tested)),
    )


def _split(table: JobTable, moment: datetime | None, fraction: float | None) -> tuple[int, int]:
    """Return the first job to judge on and the moment of the split, s."""
    if (moment is None) == (fraction is None):
        raise Misuse("Say either a moment to train until or a fraction of the jobs to test on.")
    if table.n == 0:
        raise NotEnoughHistory("There are no jobs.", remedy="Load a trace first: helios trace load FILE.")
    if moment is not None:
        split_s = int(np.ceil(moment.timestamp()))
        return int(np.searchsorted(table.submitted_s, split_s)), split_s
    if fraction is None or not 0 < fraction < 1:
        raise Misuse(f"The fraction of jobs to test on must lie between 0 and 1, not at {fraction}.")
    first_test = min(int(table.n * (1 - fraction)), table.n - 1)
    return first_test, int(table.submitted_s[first_test])


def _tested(table: JobTable, first_test: int, moment: datetime, *, gpu_only: bool) -> NDArray[np.int64]:
    eligible = np.isfinite(table.run_time_s) & (np.arange(table.n) >= first_test)
    if gpu_only:
        eligible &= table.gpus > 0
    if not eligible.any():
        kind = "GPU job" if gpu_only else "job"
        raise NotEnoughHistory(
            f"No {kind} with a known run time was submitted at or after {moment:%Y-%m-%d %H:%M}.",
            remedy="Choose an earlier moment, or a larger fraction to test on.",
        )
    return np.flatnonzero(eligible)


def _controls(
    table: JobTable, features: NDArray[np.float32], taught: NDArray[np.bool_], tested: NDArray[np.int64]
) -> dict[str, Figures]:
    truth = table.run_time_s[tested]
    median_s = float(np.median(table.run_time_s[taught]))
    last_s = np.expm1(features[tested, _USER_LAST].astype(np.float64))
    limit_s = table.time_limit_s[tested]
    return {
        "user_last": _judge(np.where(np.isnan(last_s), median_s, last_s), truth),
        "time_limit": _judge(np.where(np.isfinite(limit_s), limit_s, median_s), truth),
        "size_only": _judge(_median_of_size(table, taught, tested, median_s), truth),
        "shrinkage": _judge(HistoryPredictor().predict(features[tested]), truth),
    }


def _median_of_size(
    table: JobTable, taught: NDArray[np.bool_], tested: NDArray[np.int64], median_s: float
) -> NDArray[np.float64]:
    size = pd.Series(table.gpus.astype(np.float64) if table.gpus.any() else table.cpus)
    medians = pd.Series(table.run_time_s)[taught].groupby(size[taught]).median()
    return np.asarray(size[tested].map(medians).fillna(median_s), dtype=np.float64)


def _judge(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> Figures:
    """Return the figures of ``predicted``: medians of shape (n,), or quantiles of shape (n, 3)."""
    quantiles = predicted if predicted.ndim == 2 else None
    median = predicted if quantiles is None else quantiles[:, 1]
    log_error = np.log1p(median) - np.log1p(truth)
    error = np.abs(median - truth)
    relative = error / np.maximum(truth, 1.0)
    return Figures(
        spearman=spearman(median, truth),
        median_abs_log_error=float(np.median(np.abs(log_error))),
        mae_s=float(error.mean()),
        within_10pct=float((relative <= 0.1).mean()),
        within_50pct=float((relative <= 0.5).mean()),
        within_100pct=float((relative <= 1.0).mean()),
        coverage_p10_p90=None
        if quantiles is None
        else float(((quantiles[:, 0] <= truth) & (truth <= quantiles[:, 2])).mean()),
        bias_log=float(log_error.mean()),
    )


def spearman(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; None where either is constant."""
    a, b = pd.Series(predicted).rank().to_numpy(), pd.Series(truth).rank().to_numpy()
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _better_controls(figures: Figures, controls: Mapping[str, Figures]) -> list[str]:
    """Say which controls, if any, order jobs better than the model does."""
    mine = figures.spearman or 0.0
    better = [f"{name} ({its.spearman:.2f})" for name, its in controls.items() if its.spearman and its.spearman > mine]
    if not better:
        return []
    return [
        f"The model orders these jobs worse (rank correlation {mine:.2f}) than a control does: {', '.join(better)}."
    ]


def _notes(table: JobTable, tested: NDArray[np.int64]) -> tuple[str, ...]:
    notes = []
    users = table.user[tested]
    known = users[users >= 0]
    if len(known) == 0:
        notes.append("No user is known: the control user_last is one number for all jobs.")
    elif (largest := np.bincount(known).max() / len(users)) >= 0.5:
        notes.append(
            f"One user submitted {largest:.0%} of the judged jobs: rank correlation says little about the others."
        )
    if not np.isfinite(table.time_limit_s[tested]).any():
        notes.append("No time limit is known: the control time_limit is one number for all jobs.")
    untimed = int((~np.isfinite(table.run_time_s)).sum())
    if untimed:
        notes.append(f"{untimed:,} jobs without a known run time count as submissions only.")
    return tuple(notes)
