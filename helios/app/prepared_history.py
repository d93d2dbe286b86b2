"""A history as predictors see it, for training, scoring and drift.

Features are computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.model import ModelRecord
from helios.ports import Progress, no_progress
from helios.predict.causal_stats import COLUMN, NEVER_S
from helios.predict.comparison import Comparison, compare_predictors
from helios.predict.duration import DurationModel, train_on
from helios.predict.job_table import JobTable, causal_features
from helios.predict.model_record import describe_provenance, to_record
from helios.predict.timeline import RecordedWalk, untrained

FEWEST_SCORED = 100
"""Jobs below which nothing is concluded from a comparison."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedHistory:
    """Jobs of a cluster with their features at submission.

    Attributes
    ----------
    history : LoadedHistory
        Its jobs have at least the columns that training reads.
    table : JobTable
        The same jobs.
    features : float32 array of shape (n_jobs, len(FEATURES))
        What was known of each at its submission.
    """

    history: LoadedHistory
    table: JobTable
    features: NDArray[np.float32]

    def train(self, *, until: datetime | None, seed: int, progress: Progress = no_progress) -> DurationModel:
        """Train on what had ended before ``until`` (all, if None).

        Raises
        ------
        NotEnoughHistory
            There are too few jobs.
        """
        return train_on(
            RecordedWalk(self.table),
            self.table,
            cluster=self.history.cluster,
            until=until,
            seed=seed,
            progress=progress,
        )

    def record(self, model: DurationModel, *, seed: int, made_at: datetime) -> ModelRecord:
        """Return the record of a model and its scores.

        ``model`` must have learned from this history.
        """
        provenance = describe_provenance(model, self.history.jobs, table=self.table, features=self.features, seed=seed)
        comparison = self.backtest(model)
        scores = (
            {"since": model.backtest.until.isoformat()} | comparison.to_json() if model.backtest and comparison else {}
        )
        return to_record(model, trained_at=made_at, scores=scores, provenance=provenance)

    def backtest(self, model: DurationModel) -> Comparison | None:
        """Score the model's backtest beside the controls.

        None where there is none, or too few jobs came after it.
        """
        backtest = model.backtest_model()
        if backtest is None:
            return None
        rows = self.scored_jobs(backtest.trained_until, model.trained_until)
        return self.comparison({"model": backtest}, rows, challenger="model") if len(rows) >= FEWEST_SCORED else None

    def scored_jobs(self, since: datetime, until: datetime) -> NDArray[np.int64]:
        """Return the rows of jobs that a model can be scored on.

        They were submitted at or after ``since`` and had ended before ``until`` with a known run time.
        """
        table = self.table
        chosen = (table.submitted_s >= _seconds(since)) & (table.ended_s < _seconds(until))
        return np.flatnonzero(chosen & np.isfinite(table.run_time_s))

    def submitted(self, since: datetime, until: datetime) -> NDArray[np.int64]:
        """Return the rows of jobs submitted in [since, until), ended or not."""
        first, end = np.searchsorted(self.table.submitted_s, [_seconds(since), _seconds(until)])
        return np.arange(first, end)

    def comparison(
        self, models: Mapping[str, DurationModel], rows: NDArray[np.int64], *, challenger: str
    ) -> Comparison:
        """Score ``models`` and the controls on the jobs ``rows``."""
        last = np.expm1(np.float64(self.features[rows, COLUMN.user_last_1]))
        mean = np.expm1(np.float64(self.features[rows, COLUMN.global_mean]))
        predictions = self.predictions({"shrinkage": None, **models}, rows)
        predictions["user_last"] = np.asarray(np.where(np.isnan(last), mean, last), dtype=np.float64)
        return compare_predictors(
            predictions,
            self.table.run_time_s[rows],
            challenger=challenger,
            table=self.table,
            rows=rows,
        )

    def predictions(
        self, models: Mapping[str, DurationModel | None], rows: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Return each model's predictions at submission.

        Each is an array of shape (n, len(RUN_TIME)) for the jobs ``rows``. None stands for shrinkage alone.
        """
        walk = RecordedWalk(self.table, pairs=False)
        first_s, last_s = (int(self.table.submitted_s[row]) for row in (rows.min(), rows.max()))
        walk.to(first_s)
        made = {}
        for name, model in models.items():
            own = walk.branch(calibration=model.calibration if model else None)
            own.to(last_s + 1, model=model.kernel if model else untrained())
            made[name] = own.predicted[rows]
        return made

    def latest(self, now: datetime) -> datetime:
        """Return the end of the known history.

        It is ``now``, or the second after the last submission if that is earlier, as in an old trace.
        """
        if self.table.n == 0:
            return now
        return min(now, datetime.fromtimestamp(int(self.table.submitted_s[-1]) + 1, UTC))

    def known_until(self, now: datetime) -> datetime | None:
        """Return ``now`` if jobs of the history end later, else None.

        None where every end lies before ``now``, so that all of the history may be used.
        """
        ends = self.table.ended_s[self.table.ended_s != NEVER_S]
        return now if len(ends) and int(ends.max()) >= _seconds(now) else None


def prepare_history(history: LoadedHistory, *, progress: Progress = no_progress) -> PreparedHistory:
    """Compute the features of every job of ``history`` at its submission."""
    progress("Reading the history of run times", 0.0)
    table = JobTable.from_frame(history.jobs, timezone=history.timezone)
    return PreparedHistory(history=history, table=table, features=causal_features(table).X)


def _seconds(moment: datetime) -> int:
    return int(np.ceil(moment.timestamp()))
