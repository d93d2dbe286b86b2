"""Evaluation of predictions on jobs submitted after the training.

A model is compared with simple baselines (controls). Its intervals are calibrated as they would have been at each
submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import NotEnoughHistory, UsageError
from helios.ports import Progress, no_progress
from helios.predict.causal_stats import COLUMN, NEVER_S
from helios.predict.duration import DurationModel, refit, refuse_too_few, train_on
from helios.predict.job_table import JobTable
from helios.predict.scores import EvaluationSet, Scores, evaluation_set, scores_for
from helios.predict.timeline import RecordedWalk, empty_levels, untrained
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
    shrinkage = walk.branch(levels=empty_levels())
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
