"""Evaluation of a model on later jobs, beside simple baselines (controls).

Its intervals are calibrated as they would have been at each submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import NotEnoughHistory, UsageError
from helios.ports import Progress, no_progress
from helios.predict.causal_stats import COLUMN, NEVER_S
from helios.predict.duration import DurationModel, refuse_too_few, train_on
from helios.predict.job_table import JobTable
from helios.predict.scores import EvaluationSet, Scores, evaluation_set, scores_for
from helios.predict.timeline import RecordedWalk, empty_calibration, untrained
from helios.units import in_number

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

    Raises
    ------
    UsageError
        Not exactly one of ``train_until`` and ``test_fraction`` is given, or the fraction is not within (0, 1).
    NotEnoughHistory
        Too few jobs ended before the split, or none with a known run time was submitted after it.
    """
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(jobs, timezone=timezone)
    first_test, split_s = _split(table, train_until, test_fraction)
    split = datetime.fromtimestamp(split_s, UTC)
    is_training = (table.ended_s < split_s) & np.isfinite(table.run_time_s)
    refuse_too_few(int(is_training.sum()), split)
    is_test = np.isfinite(table.run_time_s) & (np.arange(table.n) >= first_test)
    if not is_test.any():
        raise NotEnoughHistory(
            f"No job with a known run time was submitted at or after {split:%Y-%m-%d %H:%M}.",
            hint="Choose an earlier moment, or a larger fraction to test on.",
        )
    test_rows = np.flatnonzero(is_test)
    walk = RecordedWalk(table, at_start=True)
    model = train_on(walk, table, cluster=cluster, until=split, seed=seed, progress=progress)
    shrinkage = walk.branch(calibration=empty_calibration())
    progress("Judging predictions", 0.0)
    walk.to(_end_s(table), model=model.kernel)
    shrinkage.to(_end_s(table), model=untrained())
    test = evaluation_set(table, walk.timeline.state.features, test_rows)
    figures = scores_for(walk.predicted[test_rows], test)
    waited = np.isfinite(walk.at_start[test_rows, :1])
    at_start = np.where(waited, walk.at_start[test_rows], walk.predicted[test_rows])
    controls = _controls(table, walk.timeline.state.features, is_training, test_rows, test)
    controls["shrinkage"] = scores_for(shrinkage.predicted[test_rows], test)
    notes = [] if model.trained else [SHRINKAGE_PREDICTS]
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
            hint="Give --from 2020-09-01 or --test-fraction 0.3.",
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
