"""Drift of a cluster's jobs and a model's errors since its training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from helios.app.history import LoadedHistory
from helios.app.prepared_history import PreparedHistory, prepare_history
from helios.errors import NotEnoughHistory
from helios.model import ModelRecord
from helios.ports import Progress, no_progress
from helios.predict.drift import (
    FeatureShift,
    Inputs,
    WeekOfErrors,
    new_names,
    new_users,
    shifted_features,
    weeks_of_errors,
)
from helios.predict.duration import SHRINKAGE, DurationModel
from helios.predict.model_record import from_record, inputs_in
from helios.warehouse import Warehouse

WEEKS = 8
GROWN = 1.25
"""Ratio of the last week's error to that of the weeks before, from which it counts as grown."""
DRIFTED = "drifted"
"""Name under which it stores that line where something has drifted; empty where nothing has."""


DRIFT = "drift"
"""Name under which the warehouse stores the line about drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Drift of the inputs and errors of a model since its training.

    Attributes
    ----------
    model_id : str
    as_of : datetime
        End of the stretch.
    days : float
        Length of the stretch whose inputs are compared with training.
    jobs : int
        Submitted in it.
    inputs : Inputs
        Inputs of the training.
    moved : tuple of FeatureShift
        Every feature, the farthest first. Empty where there are too few jobs.
    new_users, new_names : float, optional
        As in :class:`Inputs`, for the recent jobs.
    weeks : tuple of WeekOfErrors
        Oldest first. Only jobs that the model, or its backtest where the model had learned from them, did not know.
    """

    model_id: str
    as_of: datetime
    days: float
    jobs: int
    inputs: Inputs
    moved: tuple[FeatureShift, ...]
    new_users: float | None
    new_names: float | None
    weeks: tuple[WeekOfErrors, ...]

    @property
    def unusual(self) -> tuple[FeatureShift, ...]:
        """The features that changed more than during training."""
        return tuple(one for one in self.moved if one.is_unusual)

    @property
    def has_drifted(self) -> bool:
        """Whether inputs are unusual, or errors have grown."""
        return bool(self.unusual) or self._usual_error() is not None

    def _usual_error(self) -> float | None:
        """Return the usual error of the weeks before.

        None where the last one is not worse.
        """
        *before, last = [week.model.median_abs_log_error for week in self.weeks] or [0.0]
        usual = float(np.median(before)) if before else np.inf
        return usual if last > GROWN * usual else None

    def line(self) -> str:
        """Return inputs and errors in one line of text."""
        if not self.moved:
            inputs = f"inputs: only {self.jobs:,} jobs in {self.days:g} days, too few to compare"
        elif not self.unusual:
            inputs = f"inputs as in the weeks of training ({len(self.moved)} features)"
        else:
            named = ", ".join(f"{one.feature} {one.index:.2f}" for one in self.unusual[:3])
            inputs = f"{len(self.unusual)} of {len(self.moved)} inputs changed as in no week of training ({named})"
        *before, last = [week.model.median_abs_log_error for week in self.weeks] or [0.0]
        errors = (
            f"log error {last:.2f} in the last week" if self.weeks else "no job has ended since it stopped learning"
        )
        if before:
            grown = "before" if self._usual_error() is None else "grown from"
            errors += f", {grown} {float(np.median(before)):.2f}"
        return f"{inputs}; {errors}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain = {name: getattr(self, name) for name in ("model_id", "days", "jobs", "new_users", "new_names")}
        return plain | {
            "as_of": self.as_of.isoformat(),
            "training": {name: getattr(self.inputs, name) for name in ("jobs", "new_users", "new_names")},
            "inputs": [
                asdict(one) | {"steadiness": str(one.steadiness), "unusual": one.is_unusual} for one in self.moved
            ],
            "weeks": [asdict(week) | {"begin": week.begin.isoformat()} for week in self.weeks],
            "line": self.line(),
        }


def measure_drift(studied: PreparedHistory, record: ModelRecord, *, days: float, at: datetime) -> Drift:
    """Compare the last ``days`` before ``at`` with the training of a model.

    Raises
    ------
    ModelUnreadable
        The model cannot be read.
    NotEnoughHistory
        Its manifest does not describe its training.
    """
    model, inputs = from_record(record), inputs_in(record.manifest)
    if inputs is None:
        raise NotEnoughHistory(
            f"The manifest of {record.model_id} does not say what its training looked like.",
            hint="A model trained by this version of Helios does: helios model train",
        )
    rows = studied.submitted(at - timedelta(days=days), at)
    return Drift(
        model_id=record.model_id,
        as_of=at,
        days=days,
        jobs=len(rows),
        inputs=inputs,
        moved=shifted_features(inputs, studied.features, rows),
        new_users=new_users(studied.features, rows),
        new_names=new_names(studied.table, rows),
        weeks=_weeks(studied, model, at=at),
    )


def _weeks(studied: PreparedHistory, model: DurationModel, *, at: datetime) -> tuple[WeekOfErrors, ...]:
    """Score the model on each of the last weeks.

    Jobs that the model may have learned from are predicted by its backtest.
    """
    backtest = model.backtest_model()
    stopped = backtest.trained_until if backtest else model.trained_until
    rows = studied.scored_jobs(max(stopped, at - timedelta(weeks=WEEKS)), at)
    if not len(rows):
        return ()
    submitted_s = studied.table.submitted_s[rows]
    found = studied.predictions({"model": model, "backtest": backtest, SHRINKAGE: None}, rows)
    predicted = found["model"]
    if backtest is not None:
        unseen = submitted_s >= model.trained_until.timestamp()
        predicted = np.where(unseen[:, None], predicted, found["backtest"])
    return weeks_of_errors(
        predicted,
        found[SHRINKAGE],
        studied.table.run_time_s[rows],
        submitted_s=submitted_s,
        end_s=int(np.ceil(at.timestamp())),
    )


def drift(
    history: LoadedHistory,
    *,
    url: str,
    model_id: str | None,
    days: float,
    now: datetime,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Compare the last ``days`` before ``now`` with the training of a model.

    ``model_id`` None: the promoted model.

    Raises
    ------
    NotEnoughHistory
        There is no such model, or its manifest does not describe its training.
    ModelUnreadable
        It cannot be read.
    """
    with Warehouse.open(url) as warehouse:
        record = warehouse.model(history.cluster, model_id)
    studied = prepare_history(history, progress=progress)
    return measure_drift(studied, record, days=days, at=studied.latest(now)).to_json()


def remembered_drift(url: str, cluster: str) -> str | None:
    """Return the line about drift from the last nightly training.

    None where there is none.
    """
    with Warehouse.open(url) as warehouse:
        return warehouse.remembered(cluster, DRIFT)
