"""Training and registry of run-time models.

Every decision is stored with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory, load_history
from helios.errors import HeliosError, ModelUnreadable, NotEnoughHistory, UsageError
from helios.model import AuditStep, ModelRecord
from helios.ports import Progress, no_progress
from helios.predict.causal_stats import COLUMN, NEVER_S
from helios.predict.duration import SHRINKAGE, DurationModel, Trainer, train_locally, train_on
from helios.predict.evaluation import (
    Comparison,
    Evaluation,
    FeatureShift,
    Inputs,
    WeekOfErrors,
    compare_predictors,
    evaluate,
    new_names,
    new_users,
    shifted_features,
    weeks_of_errors,
)
from helios.predict.job_table import JobTable, causal_features
from helios.predict.model_record import TRAINED_ON, describe_provenance, from_record, inputs_in, to_record
from helios.predict.timeline import RecordedWalk, untrained
from helios.warehouse import Warehouse
from helios.warehouse.models import previous_incumbents

FEWEST_SCORED = 100
"""Jobs below which nothing is concluded from a comparison."""

WEEKS = 8
GROWN = 1.25
"""Ratio of the last week's error to that of the weeks before, from which it counts as grown."""

NIGHTLY = "nightly"
"""Author of a nightly decision."""
DRIFT = "drift"
"""Name under which the warehouse stores the line about drift."""
DRIFTED = "drifted"
"""Name under which it stores that line where something has drifted; empty where nothing has."""

INCUMBENT = "active"
"""Name of the promoted model in a nightly comparison; the new one is ``model``."""
WIDER = (1, 4, 12)
"""Multiples of the days to score on, tried in order until enough jobs ended in them."""


def learn(
    history: LoadedHistory,
    *,
    url: str,
    until: datetime | None,
    seed: int,
    made_at: datetime,
    dask: str = "",
    progress: Progress = no_progress,
) -> ModelRecord:
    """Train a model on what had ended before ``until`` and store it.

    It is stored in the warehouse but not promoted.

    Parameters
    ----------
    dask : str
        Address of the Dask scheduler on whose workers the trees are grown. Empty for this machine.

    Raises
    ------
    NotEnoughHistory
        Too few jobs had ended; nothing was written.
    DaskUnavailable, DaskMismatch, TrainingBroken
        The training did not come to its end on the workers of ``dask``; nothing was written.
    """
    studied = prepare_history(history, progress=progress)
    model = studied.train(until=until, seed=seed, progress=progress, trainer=trainer_at(dask))
    record = studied.record(model, seed=seed, made_at=made_at)
    with Warehouse.open(url) as warehouse:
        warehouse.add_model(record)
    return record


def trainer_at(dask: str) -> Trainer:
    """Return a trainer on the workers of a Dask scheduler.

    With an empty address trees are grown in this process.
    """
    from helios.predict.dask_training import DaskTrainer  # noqa: PLC0415 - Dask is optional

    return DaskTrainer(address=dask) if dask else train_locally


def judge(
    history: LoadedHistory, *, train_until: datetime | None = None, test_fraction: float | None = None, **options: Any
) -> Evaluation:
    """Train on early jobs and score on later ones.

    The naive controls are scored beside the model. The parameters are those of
    :func:`helios.predict.evaluation.evaluate`; with ``train_until`` the fraction is ignored.
    """
    return evaluate(
        history.jobs,
        cluster=history.cluster,
        timezone=history.timezone,
        train_until=train_until,
        test_fraction=None if train_until else test_fraction,
        **options,
    )


# A history as predictors see it: features are computed once, then used for training, scoring and drift.


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

    def train(
        self,
        *,
        until: datetime | None,
        seed: int,
        progress: Progress = no_progress,
        trainer: Trainer = train_locally,
    ) -> DurationModel:
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
            trainer=trainer,
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


# Drift: whether the jobs of a cluster, and the errors of its model, are still as they were at training.


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


# Outcome of a training: promoted or not, and why.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """Decision about a model that was trained or named by a person.

    Attributes
    ----------
    step : AuditStep, optional
        None where nothing was decided and all stays as it was.
    model_id : str
        The model that the decision is about.
    promoted, previous : str
        The model that predicts from now on, and until now; ``SHRINKAGE`` where no model does.
    why : str
        For a person.
    comparison : Comparison, optional
        The scores that it rests on. None where nothing was scored.
    days : float, optional
        Length of the stretch that was scored.
    written : bool
        False for a dry run.
    """

    step: AuditStep | None
    model_id: str
    promoted: str
    previous: str
    why: str
    comparison: Comparison | None = None
    days: float | None = None
    written: bool = True

    @property
    def did(self) -> str:
        """The outcome in a word or two."""
        return "kept, not promoted" if self.promoted != self.model_id else "promoted" if self.step else "kept"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"comparison": None if self.comparison is None else self.comparison.to_json()}


def list_models(url: str, cluster: str) -> list[dict[str, Any]]:
    """Return the models of a cluster, newest first.

    Each has its manifest and whether it is promoted. For the promoted one ``problem`` says why it cannot be read;
    empty: it can.
    """
    with Warehouse.open(url) as warehouse:
        models = warehouse.models(cluster)
        problem = ""
        if models["promoted"].any():
            try:
                from_record(warehouse.model(cluster))
            except HeliosError as reason:
                problem = reason.message
    return [
        {
            "model_id": row["model_id"],
            "promoted": bool(row["promoted"]),
            "problem": problem if row["promoted"] else "",
            "trained_at": str(row["trained_at"]),
            "trained_until": str(row["trained_until"]),
            "jobs": int(row["jobs"]),
            "scores": row["scores"],
            "manifest": row["manifest"],
        }
        for row in models.to_dict(orient="records")
    ]


def describe_decisions(url: str, cluster: str) -> list[dict[str, Any]]:
    """Return every decision about the promoted model, oldest first.

    As plain values.
    """
    with Warehouse.open(url) as warehouse:
        found = warehouse.promotions(cluster)
    texts = found.assign(promoted_at=[moment.isoformat() for moment in found["promoted_at"]]).astype(object)
    rows = texts.where(found.notna(), None).to_dict(orient="records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def training_history(url: str, cluster: str | None, *, progress: Progress = no_progress) -> LoadedHistory:
    """Read the columns of a cluster's jobs that training needs.

    ``cluster`` None: the only cluster.
    """
    progress("Reading the warehouse", 0.0)
    if cluster:  # choosing among all clusters would count the jobs of each, seconds for a million
        with Warehouse.open(url) as warehouse:
            jobs = warehouse.jobs(cluster, columns=TRAINED_ON)
            history = LoadedHistory(cluster=cluster, jobs=jobs, timezone=warehouse.timezone(cluster) or "UTC")
    else:
        history = load_history(url=url, cluster=None, columns=TRAINED_ON)
    progress("Reading the warehouse", 1.0)
    return history


def history_before(history: LoadedHistory, moment: datetime) -> LoadedHistory:
    """Return the part of ``history`` that was submitted before ``moment``."""
    jobs = history.jobs
    later = int((jobs["submitted_at"] >= pd.Timestamp(moment)).sum())  # in submission order: they come last
    return replace(history, jobs=jobs.iloc[: len(jobs) - later]) if later else history


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


def promote(url: str, cluster: str, model_id: str, *, by: str, why: str, now: datetime) -> TrainingOutcome:
    """Promote a model, or ``SHRINKAGE``.

    Raises
    ------
    NotEnoughHistory
        There is no such model.
    ModelUnreadable
        It cannot be read; nothing was changed.
    """
    with Warehouse.open(url) as warehouse:
        if model_id != SHRINKAGE:
            from_record(warehouse.model(cluster, model_id))
        previous = _promoted(warehouse, cluster)
        chosen = None if model_id == SHRINKAGE else model_id
        warehouse.decide(cluster, step=AuditStep.PROMOTED, model_id=chosen, by=by, why=why, at=now)
    return TrainingOutcome(step=AuditStep.PROMOTED, model_id=model_id, promoted=model_id, previous=previous, why=why)


def roll_back(url: str, cluster: str, *, by: str, why: str, now: datetime) -> TrainingOutcome:
    """Promote again the model that was promoted before.

    A model that is gone or cannot be read is skipped.

    Raises
    ------
    UsageError
        Nothing was promoted before.
    """
    with Warehouse.open(url) as warehouse:
        previous = _promoted(warehouse, cluster)
        passed: list[str] = []
        for chosen in previous_incumbents(warehouse.promotions(cluster)):
            try:
                if chosen is not None:
                    from_record(warehouse.model(cluster, chosen))
                break
            except HeliosError as reason:
                passed.append(f"skipped {chosen}: {reason.message}")
        else:
            raise UsageError(
                "No other model was active before, so there is nothing to go back to.",
                hint="List the models: helios model list. Then promote one: helios model promote ID (or shrinkage)",
            )
        why_all = "; ".join([why, *passed])
        warehouse.decide(cluster, step=AuditStep.ROLLED_BACK, model_id=chosen, by=by, why=why_all, at=now)
    promoted = chosen or SHRINKAGE
    return TrainingOutcome(
        step=AuditStep.ROLLED_BACK, model_id=promoted, promoted=promoted, previous=previous, why=why_all
    )


def decide_by_hand(url: str, record: ModelRecord, *, promote_it: bool, by: str, now: datetime) -> TrainingOutcome:
    """Decide about a model that was just trained by hand and stored.

    Where something was decided before, all stays as it was unless ``promote_it``. The very first model is promoted if
    its backtest is ahead of the controls; otherwise shrinkage predicts.
    """
    with Warehouse.open(url) as warehouse:
        incumbent = _incumbent(warehouse, record.cluster, besides=record.model_id)
        opponent, unreadable = _load_incumbent(incumbent)
        previous = incumbent.model_id if incumbent and opponent else SHRINKAGE
        same = TrainingOutcome(step=None, model_id=record.model_id, promoted=previous, previous=previous, why="")
        if promote_it:
            why = "promoted as it was trained"
            outcome = replace(same, step=AuditStep.PROMOTED, promoted=record.model_id, why=why)
        elif previous == record.model_id:
            outcome = replace(same, why="it is the active model, trained again with the same result")
        elif previous != SHRINKAGE:
            decided = not warehouse.promotions(record.cluster).empty  # if nothing was, the newest model would predict
            outcome = replace(same, step=None if decided else AuditStep.KEPT, why=f"{previous} is active")
        else:
            outcome = decide_against_controls(same, backtest_in(record))
            outcome = replace(outcome, why=f"{unreadable}{outcome.why}")
        _write(warehouse, record.cluster, outcome, by=by, now=now)
    return outcome


def nightly(
    *,
    url: str,
    history: LoadedHistory,
    seed: int,
    days: float,
    now: datetime,
    keep: int,
    dask: str = "",
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> tuple[TrainingOutcome, str]:
    """Train on what had ended by ``now`` and promote a better model.

    Otherwise the present model stays, with the reason.

    The new model is promoted if, on the jobs of the last ``days``, the same recipe stopped before them is not worse
    beyond chance than the present model and than shrinkage, neither in median log error nor in rank correlation. Where
    only shrinkage predicts so far, it is promoted if it is ahead of the controls.

    Parameters
    ----------
    history : LoadedHistory
        What was submitted before ``now``.
    keep : int
        Newest models that are kept; those promoted now and before are kept whatever their age.
    dask : str
        Scheduler on whose workers the trees are grown. Empty for this machine.
    dry_run : bool
        Write nothing.

    Returns
    -------
    outcome : TrainingOutcome
    drift : str
        What has drifted since the present model was trained, in a line.

    Raises
    ------
    NotEnoughHistory
        Too few jobs had ended to train on; nothing was written.
    """
    studied = prepare_history(history, progress=progress)
    at = studied.latest(now)
    trainer = trainer_at(dask)
    candidate = studied.train(until=studied.known_until(now), seed=seed, progress=progress, trainer=trainer)
    record = studied.record(candidate, seed=seed, made_at=now)
    with Warehouse.open(url) as warehouse:
        incumbent = _incumbent(warehouse, history.cluster, besides=None)
        outcome = compare_with_incumbent(
            studied, record, candidate, incumbent, seed=seed, days=days, at=at, progress=progress
        )
        drifted: bool | None = None
        try:
            found = measure_drift(studied, incumbent or record, days=days, at=at)
            line, drifted = found.line(), found.has_drifted
        except HeliosError as reason:
            line = f"not measured: {reason.message}"
        if dry_run:
            return replace(outcome, written=False), line
        warehouse.add_model(record)
        _write(warehouse, history.cluster, outcome, by=NIGHTLY, now=now)
        warehouse.remember(history.cluster, DRIFT, line, at=now)
        if drifted is not None:
            warehouse.remember(history.cluster, DRIFTED, line if drifted else "", at=now)
        warehouse.forget_models(history.cluster, keep=keep)
    return outcome, line


def compare(
    history: LoadedHistory, *, url: str, first: str, second: str, now: datetime
) -> tuple[Comparison, tuple[str, ...]]:
    """Score two models and the controls on the same jobs.

    The jobs are those submitted after both models had stopped learning.

    Returns
    -------
    comparison : Comparison
        The challenger is ``second``.
    notes : tuple of str
        Where a model had learned from these jobs and its backtest was scored in its place.

    Raises
    ------
    UsageError
        Both are the same model.
    NotEnoughHistory
        A model is missing, or too few jobs were submitted since.
    ModelUnreadable
        One of them cannot be read.
    """
    if first == second:
        raise UsageError(f"{first} is the same model twice.", hint="See what there is: helios model list")
    with Warehouse.open(url) as warehouse:
        models = {name: from_record(warehouse.model(history.cluster, name)) for name in (first, second)}
    studied = prepare_history(history)
    chosen, notes, rows = common_jobs(studied, models, now=now)
    return studied.comparison(chosen, rows, challenger=second), notes


def _promoted(warehouse: Warehouse, cluster: str) -> str:
    try:
        return warehouse.model(cluster).model_id
    except NotEnoughHistory:
        return SHRINKAGE


def _incumbent(warehouse: Warehouse, cluster: str, *, besides: str | None) -> ModelRecord | None:
    """Return the promoted model.

    Where nothing was ever decided and ``besides`` is given, the newest other model. None where shrinkage predicts.
    """
    try:
        if besides is None or not warehouse.promotions(cluster).empty:
            return warehouse.model(cluster)
        others = warehouse.models(cluster)["model_id"]
        newest = others[others != besides].head(1).tolist()
        return warehouse.model(cluster, newest[0]) if newest else None
    except HeliosError:  # no such cluster yet, or no model
        return None


def _write(warehouse: Warehouse, cluster: str, outcome: TrainingOutcome, *, by: str, now: datetime) -> None:
    if outcome.step is None:
        return
    chosen = None if outcome.promoted == SHRINKAGE else outcome.promoted
    warehouse.decide(
        cluster, step=outcome.step, model_id=chosen, by=by, why=outcome.why, at=now, candidate=outcome.model_id
    )


# A new model against the promoted one: on which jobs both are scored, and what follows.
#
# No model is scored on jobs that it learned from: the same recipe, stopped earlier, is scored in its place.


def decide_against_controls(same: TrainingOutcome, comparison: Comparison | None) -> TrainingOutcome:
    """Decide where only shrinkage predicts so far."""
    kept = replace(same, step=AuditStep.KEPT, comparison=comparison)
    if comparison is None:
        return replace(kept, why="its history is too short to judge it on")
    behind = [name for name in comparison.against if not comparison.against[name].ahead]
    if behind:
        return replace(kept, why=f"it is not ahead of {' and '.join(behind)}: {_figures(comparison)}")
    return replace(
        kept,
        step=AuditStep.PROMOTED,
        promoted=same.model_id,
        why=f"it is ahead of the controls: {_figures(comparison)}",
    )


def backtest_in(record: ModelRecord) -> Comparison | None:
    """Return the comparison stored in a record's scores.

    None where the history was too short for one.
    """
    return Comparison.from_json(record.scores) if record.scores.get("against") else None


def compare_with_incumbent(
    studied: PreparedHistory,
    record: ModelRecord,
    candidate: DurationModel,
    incumbent: ModelRecord | None,
    *,
    seed: int,
    days: float,
    at: datetime,
    progress: Progress,
) -> TrainingOutcome:
    """Decide about ``candidate``, stored as ``record``, on the last days before ``at``.

    Parameters
    ----------
    incumbent : ModelRecord, optional
        The promoted model. None where shrinkage predicts. One that cannot be read is not scored, and the decision is
        the same as without one.
    days : float
        Length of the stretch to score on; four and twelve times that where too few jobs ended in it.
    """
    previous = incumbent.model_id if incumbent else SHRINKAGE
    same = TrainingOutcome(step=AuditStep.KEPT, model_id=record.model_id, promoted=previous, previous=previous, why="")
    opponent, unreadable = _load_incumbent(incumbent)
    if opponent is not None and previous == record.model_id:
        return replace(same, why="nothing new has ended since it was trained")
    stretches = (days * factor for factor in WIDER)
    interval = next(
        (one for one in stretches if len(studied.scored_jobs(at - timedelta(one), at)) >= FEWEST_SCORED), None
    )
    comparison = None
    if interval is not None:
        since = at - timedelta(days=interval)
        comparison = _compare_unseen(studied, candidate, opponent, since=since, at=at, seed=seed, progress=progress)
    if opponent is None:
        alone = replace(same, promoted=SHRINKAGE, days=interval if comparison else None)
        decided = decide_against_controls(alone, comparison or backtest_in(record))
        return replace(decided, why=f"{unreadable}{decided.why}")
    if interval is None:
        why = f"fewer than {FEWEST_SCORED} jobs ended in {days * WIDER[-1]:g} days: too few to judge"
        return replace(same, why=why)
    if comparison is None:
        return replace(same, why="too few jobs ended that neither of the two had learned from")
    return _decide_against_incumbent(replace(same, comparison=comparison, days=interval), comparison)


def common_jobs(
    studied: PreparedHistory, models: Mapping[str, DurationModel], *, now: datetime
) -> tuple[dict[str, DurationModel], tuple[str, ...], NDArray[np.int64]]:
    """Return jobs that two models can both be scored on.

    These were submitted after both had stopped learning. Where they are too few, the backtest of the later model
    replaces it, then both backtests do.

    Returns
    -------
    models : dict of DurationModel
    notes : tuple of str
        Notes on the models that are replaced by their backtests.
    rows : array
        Rows of the jobs.

    Raises
    ------
    NotEnoughHistory
        There are too few all the same.
    """
    backtests = {name: model.backtest_model() for name, model in models.items()}
    latest = max(models, key=lambda name: models[name].trained_until)
    for replaced in ((), (latest,), tuple(models)):
        chosen = {name: backtests[name] if name in replaced else model for name, model in models.items()}
        known = {name: model for name, model in chosen.items() if model is not None}
        if len(known) < len(models):
            continue
        rows = studied.scored_jobs(max(model.trained_until for model in known.values()), now)
        if len(rows) >= FEWEST_SCORED:
            stopped = {name: f"{known[name].trained_until:%Y-%m-%d}" for name in replaced}
            notes = (
                f"{name} has seen these jobs: judged is its recipe stopped at {day}." for name, day in stopped.items()
            )
            return known, tuple(notes), rows
    raise NotEnoughHistory(
        f"Fewer than {FEWEST_SCORED} jobs ended that neither model had learned from.",
        hint="Wait until more have ended, or train both until an earlier day: helios model train --until",
    )


def _decide_against_incumbent(same: TrainingOutcome, comparison: Comparison) -> TrainingOutcome:
    worse = [
        f"worse than {'the active model' if name == INCUMBENT else name} in {' and '.join(against.worse_in)}"
        for name, against in comparison.against.items()
        if name in {INCUMBENT, SHRINKAGE} and against.worse_in
    ]
    if worse:
        return replace(same, why=f"the new model is {' and '.join(worse)}: {_figures(comparison)}")
    return replace(
        same,
        step=AuditStep.PROMOTED,
        promoted=same.model_id,
        why=f"the new model is no worse than the active one and than shrinkage: {_figures(comparison)}",
    )


def _load_incumbent(incumbent: ModelRecord | None) -> tuple[DurationModel | None, str]:
    if incumbent is None:
        return None, ""
    try:
        return from_record(incumbent), ""
    except ModelUnreadable as reason:
        return None, f"{reason.message}; "


def _compare_unseen(
    studied: PreparedHistory,
    candidate: DurationModel,
    opponent: DurationModel | None,
    *,
    since: datetime,
    at: datetime,
    seed: int,
    progress: Progress,
) -> Comparison | None:
    """Compare models that learned nothing from the stretch.

    None where there are none, or too few jobs came after them.
    """
    # A model that had not stopped learning by then is scored by its backtest, which stopped earlier, if it has one.
    is_newer = opponent is not None and opponent.trained_until > since
    backtest = opponent.backtest_model() if opponent is not None and is_newer else None
    incumbent = backtest or opponent
    begin = since if incumbent is None else max(since, incumbent.trained_until)
    # A backtest is scored beside a backtest: otherwise the one that stopped later would win by that.
    challenger = candidate.backtest_model() if backtest else None
    try:
        challenger = challenger or studied.train(until=begin, seed=seed, progress=progress)
    except NotEnoughHistory:
        challenger = candidate.backtest_model()
    if challenger is None:
        return None
    models = {"model": challenger} | ({INCUMBENT: incumbent} if incumbent else {})
    rows = studied.scored_jobs(max(begin, challenger.trained_until), at)
    return studied.comparison(models, rows, challenger="model") if len(rows) >= FEWEST_SCORED else None


def _figures(comparison: Comparison) -> str:
    """Return a comparison's figures in words.

    These are the log error and the rank correlation of each.
    """
    scores, errors, ranks = comparison.scores, [], []
    for name in (comparison.challenger, *comparison.against):
        called = {"model": "new", "user_last": "user's last"}.get(name, name)
        rank = scores[name].spearman
        errors.append(f"{called} {scores[name].median_abs_log_error:.2f}")
        ranks.append(f"{called} {'-' if rank is None else f'{rank:.2f}'}")
    return f"on {comparison.jobs:,} jobs, log error {', '.join(errors)}; rank correlation {', '.join(ranks)}"
