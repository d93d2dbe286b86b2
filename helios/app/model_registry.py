"""Training and registry of run-time models.

Every decision is stored with its reason.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pandas as pd

from helios.app.history import LoadedHistory, load_history
from helios.app.model_comparison import (
    TrainingOutcome,
    backtest_in,
    common_jobs,
    compare_with_incumbent,
    decide_against_controls,
    load_incumbent,
)
from helios.app.model_drift import DRIFT, DRIFTED, measure_drift
from helios.app.prepared_history import prepare_history
from helios.errors import HeliosError, NotEnoughHistory, UsageError
from helios.model import AuditStep, ModelRecord
from helios.ports import Progress, no_progress
from helios.predict.comparison import Comparison
from helios.predict.duration import SHRINKAGE
from helios.predict.evaluation import Evaluation, evaluate
from helios.predict.model_record import TRAINED_ON, from_record
from helios.warehouse import Warehouse
from helios.warehouse.models import previous_incumbents

NIGHTLY = "nightly"
"""Author of a nightly decision."""


def learn(
    history: LoadedHistory,
    *,
    url: str,
    until: datetime | None,
    seed: int,
    made_at: datetime,
    progress: Progress = no_progress,
) -> ModelRecord:
    """Train a model on what had ended before ``until`` and store it.

    It is stored in the warehouse but not promoted.

    Raises
    ------
    NotEnoughHistory
        Too few jobs had ended; nothing was written.
    """
    studied = prepare_history(history, progress=progress)
    model = studied.train(until=until, seed=seed, progress=progress)
    record = studied.record(model, seed=seed, made_at=made_at)
    with Warehouse.open(url) as warehouse:
        warehouse.add_model(record)
    return record


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
        opponent, unreadable = load_incumbent(incumbent)
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
    candidate = studied.train(until=studied.known_until(now), seed=seed, progress=progress)
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
