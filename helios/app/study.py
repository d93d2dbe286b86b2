"""A history as predictors see it: described once, then trained on, judged on and watched for drift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from helios.app.history import History
from helios.model import ModelRecord
from helios.ports import Progress, in_silence
from helios.predict.again import Known, known_of
from helios.predict.contest import Contest, hold_contest
from helios.predict.duration import DurationModel, HistoryPredictor, train_on
from helios.predict.features import JobTable
from helios.predict.history import FEATURES, NEVER_S
from helios.predict.learner import Learner, learn_here
from helios.predict.registry import provenance_of, to_record

FEWEST_JUDGED = 100
"""Jobs below which nothing is concluded from a comparison."""
CONTROLS = ("shrinkage", "user_last")
_USER_LAST, _GLOBAL_MEAN = (FEATURES.index(name) for name in ("user_last_1", "global_mean"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Study:
    """The jobs of a cluster, and what was known of each at its submission.

    Attributes
    ----------
    history : History
        Its jobs have at least the columns that training reads.
    table : JobTable
        The same jobs.
    known : Known
        What was known of each at its submission, and of those that waited at their start.
    """

    history: History
    table: JobTable
    known: Known

    @property
    def features(self) -> NDArray[np.float32]:
        """Each job as it was known at its submission, of shape (n_jobs, len(FEATURES))."""
        return self.known.at_submission

    def train(
        self,
        *,
        until: datetime | None,
        seed: int,
        progress: Progress = in_silence,
        learner: Learner = learn_here,
    ) -> DurationModel:
        """Learn from what had ended before ``until`` (all, if None).

        Raises
        ------
        NotEnoughHistory
            That is too little.
        """
        return train_on(
            self.table,
            self.known,
            cluster=self.history.cluster,
            until=until,
            seed=seed,
            progress=progress,
            learner=learner,
        )

    def record(self, model: DurationModel, *, seed: int, made_at: datetime) -> ModelRecord:
        """Return ``model``, which learned from this history, with its manifest and the scores of its backtest."""
        provenance = provenance_of(model, self.history.jobs, table=self.table, features=self.features, seed=seed)
        contest = self.backtest(model)
        scores = {"since": model.backtest.until.isoformat()} | contest.to_json() if model.backtest and contest else {}
        return to_record(model, trained_at=made_at, scores=scores, provenance=provenance)

    def backtest(self, model: DurationModel) -> Contest | None:
        """Judge the model's backtest beside the controls; None: there is none, or too few jobs came after it."""
        judged = model.as_judged()
        if judged is None:
            return None
        rows = self.judged(judged.trained_until, model.trained_until)
        return self.contest({"model": judged}, rows, challenger="model") if len(rows) >= FEWEST_JUDGED else None

    def judged(self, since: datetime, until: datetime) -> NDArray[np.int64]:
        """Return the jobs submitted at or after ``since`` that had ended before ``until`` with a known run time."""
        table = self.table
        chosen = (table.submitted_s >= _seconds(since)) & (table.ended_s < _seconds(until))
        return np.flatnonzero(chosen & np.isfinite(table.run_time_s))

    def submitted(self, since: datetime, until: datetime) -> NDArray[np.int64]:
        """Return the jobs submitted in [since, until), ended or not."""
        first, end = np.searchsorted(self.table.submitted_s, [_seconds(since), _seconds(until)])
        return np.arange(first, end)

    def contest(self, models: Mapping[str, DurationModel], rows: NDArray[np.int64], *, challenger: str) -> Contest:
        """Judge ``models`` and the controls on the jobs ``rows``."""
        features = self.features[rows]
        predictions = {name: model.predict(features) for name, model in models.items()}
        return hold_contest(
            predictions | _controls(features),
            self.table.run_time_s[rows],
            challenger=challenger,
            table=self.table,
            rows=rows,
        )

    def latest(self, now: datetime) -> datetime:
        """Return ``now``, or the second after the last submission where that is earlier: a trace of long ago."""
        if self.table.n == 0:
            return now
        return min(now, datetime.fromtimestamp(int(self.table.submitted_s[-1]) + 1, UTC))

    def known_until(self, now: datetime) -> datetime | None:
        """Return ``now`` if jobs of the history end later, else None: all of it is known."""
        ends = self.table.ended_s[self.table.ended_s != NEVER_S]
        return now if len(ends) and int(ends.max()) >= _seconds(now) else None


def study(history: History, *, progress: Progress = in_silence) -> Study:
    """Describe every job of ``history`` as it was known at its submission."""
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(history.jobs, timezone=history.timezone)
    return Study(history=history, table=table, known=known_of(table))


def _controls(features: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    last = features[:, _USER_LAST].astype(np.float64)
    return {
        "shrinkage": HistoryPredictor().predict(features),
        "user_last": np.expm1(np.where(np.isnan(last), features[:, _GLOBAL_MEAN], last)),
    }


def _seconds(moment: datetime) -> int:
    return int(np.ceil(moment.timestamp()))
