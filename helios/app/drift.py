"""Whether the work of a cluster, and the errors of its model, are still as they were."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.app.study import Study
from helios.errors import NotEnoughHistory
from helios.model import ModelRecord
from helios.predict import DurationModel, HistoryPredictor, from_record
from helios.predict.drift import Inputs, Moved, WeekOfErrors, moved, new_names, new_users, weeks_of_errors
from helios.predict.registry import inputs_in

WEEKS = 8
GROWN = 1.25
"""The last week's error over that of the weeks before, from which it is said to have grown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What was found.

    Attributes
    ----------
    model_id : str
    as_of : datetime
        The stretch ends there.
    days : float
        Length of the stretch whose inputs are compared with training.
    jobs : int
        Submitted in it.
    inputs : Inputs
        Of the training.
    moved : tuple of Moved
        Every feature, the farthest first; empty: too few jobs.
    new_users, new_names : float, optional
        As of :class:`Inputs`, of the stretch.
    weeks : tuple of WeekOfErrors
        Oldest first; only jobs that the model, or where it had seen them its backtest, knew nothing of.
    """

    model_id: str
    as_of: datetime
    days: float
    jobs: int
    inputs: Inputs
    moved: tuple[Moved, ...]
    new_users: float | None
    new_names: float | None
    weeks: tuple[WeekOfErrors, ...]

    @property
    def unusual(self) -> tuple[Moved, ...]:
        """The features that changed, and by more than in the weeks of training."""
        return tuple(one for one in self.moved if one.is_unusual)

    def line(self) -> str:
        """Return inputs and errors in one line."""
        return f"{self._of_inputs()}; {self._of_errors()}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "model_id": self.model_id,
            "as_of": self.as_of.isoformat(),
            "days": self.days,
            "jobs": self.jobs,
            "training": {
                "jobs": self.inputs.jobs,
                "new_users": self.inputs.new_users,
                "new_names": self.inputs.new_names,
            },
            "new_users": self.new_users,
            "new_names": self.new_names,
            "inputs": [
                asdict(one) | {"steadiness": str(one.steadiness), "unusual": one.is_unusual} for one in self.moved
            ],
            "weeks": [asdict(week) | {"begin": week.begin.isoformat()} for week in self.weeks],
            "line": self.line(),
        }

    def _of_inputs(self) -> str:
        if not self.moved:
            return f"inputs: only {self.jobs:,} jobs in {self.days:g} days, too few to compare"
        if not self.unusual:
            return f"inputs as in the weeks of training ({len(self.moved)} features)"
        named = ", ".join(f"{one.feature} {one.index:.2f}" for one in self.unusual[:3])
        return f"{len(self.unusual)} of {len(self.moved)} inputs changed as in no week of training ({named})"

    def _of_errors(self) -> str:
        if not self.weeks:
            return "no job has ended since it stopped learning"
        *before, last = (week.model.median_abs_log_error for week in self.weeks)
        said = f"log error {last:.2f} in the last week"
        if not before:
            return said
        usual = float(np.median(before))
        grown = "grown from" if last > GROWN * usual else "before"
        return f"{said}, {grown} {usual:.2f}"


def drift_of(studied: Study, record: ModelRecord, *, days: float, at: datetime) -> Drift:
    """Compare the last ``days`` before ``at`` with the training of the model in ``record``.

    Raises
    ------
    ModelUnreadable
        The model cannot be read.
    NotEnoughHistory
        Its manifest does not say what training was like.
    """
    model, inputs = from_record(record), inputs_in(record.manifest)
    if inputs is None:
        raise NotEnoughHistory(
            f"The manifest of {record.model_id} does not say what its training looked like.",
            remedy="A model trained by this version of Helios does: helios model train",
        )
    rows = studied.submitted(at - timedelta(days=days), at)
    return Drift(
        model_id=record.model_id,
        as_of=at,
        days=days,
        jobs=len(rows),
        inputs=inputs,
        moved=moved(inputs, studied.features, rows),
        new_users=new_users(studied.features, rows),
        new_names=new_names(studied.table, rows),
        weeks=_weeks(studied, model, at=at),
    )


def _weeks(studied: Study, model: DurationModel, *, at: datetime) -> tuple[WeekOfErrors, ...]:
    judged = model.as_judged()
    stopped = judged.trained_until if judged else model.trained_until
    rows = studied.judged(max(stopped, at - timedelta(weeks=WEEKS)), at)
    features = studied.features[rows]
    return weeks_of_errors(
        _predicted(studied, model, judged, rows),
        HistoryPredictor().predict(features),
        studied.table.run_time_s[rows],
        submitted_s=studied.table.submitted_s[rows],
        end_s=int(np.ceil(at.timestamp())),
    )


def _predicted(
    studied: Study, model: DurationModel, judged: DurationModel | None, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Predict each job by the model, or by its backtest where the model may have learned from it."""
    features = studied.features[rows]
    if judged is None:
        return model.predict(features)
    unseen = studied.table.submitted_s[rows] >= model.trained_until.timestamp()
    return np.where(unseen[:, None], model.predict(features), judged.predict(features))
