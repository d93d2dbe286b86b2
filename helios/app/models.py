"""Which model is in charge: promoted, kept or rolled back, each time with a reason that is written down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

from helios.app.expectation import learner_at
from helios.app.history import History, recall
from helios.app.outcome import SHRINKAGE, Outcome
from helios.errors import HeliosError, Misuse, NotEnoughHistory
from helios.model import ModelRecord, Step
from helios.ports import Progress, in_silence
from helios.warehouse import Warehouse
from helios.warehouse.shelf import before_this

if TYPE_CHECKING:  # numba and LightGBM take half a second, and a rollback predicts nothing
    from helios.app.study import Study
    from helios.predict.contest import Contest

NIGHTLY = "nightly"
"""Who decides at night."""
DRIFT = "drift"
"""Name under which the warehouse remembers the line about drift."""


def listing(url: str, cluster: str) -> list[dict[str, Any]]:
    """Return the models of a cluster, newest first, each with its manifest and whether it is in charge.

    Of the one in charge ``trouble`` says why it cannot be read; empty: it can.
    """
    with Warehouse.open(url) as warehouse:
        models = warehouse.models(cluster)
        trouble = _trouble(warehouse, cluster) if models["in_charge"].any() else ""
    return [
        {
            "model_id": row["model_id"],
            "in_charge": bool(row["in_charge"]),
            "trouble": trouble if row["in_charge"] else "",
            "trained_at": str(row["trained_at"]),
            "trained_until": str(row["trained_until"]),
            "jobs": int(row["jobs"]),
            "scores": row["scores"],
            "manifest": row["manifest"],
        }
        for row in models.to_dict(orient="records")
    ]


def told_decisions(url: str, cluster: str) -> list[dict[str, Any]]:
    """Return every decision about the model in charge, oldest first, as plain values."""
    with Warehouse.open(url) as warehouse:
        found = warehouse.promotions(cluster)
    texts = found.assign(promoted_at=[moment.isoformat() for moment in found["promoted_at"]]).astype(object)
    rows = texts.where(found.notna(), None).to_dict(orient="records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def training_history(url: str, cluster: str | None, *, progress: Progress = in_silence) -> History:
    """Read of a cluster's jobs what training needs, and no more; None: of the only cluster."""
    from helios.predict.registry import TRAINED_ON  # noqa: PLC0415 - as above

    progress("Reading the warehouse", 0.0)
    history = _of(url, cluster, TRAINED_ON) if cluster else recall(url=url, cluster=None, columns=TRAINED_ON)
    progress("Reading the warehouse", 1.0)
    return history


def _of(url: str, cluster: str, columns: Sequence[str]) -> History:
    """Read a cluster that is named: choosing among all would count the jobs of each, seconds for a million."""
    with Warehouse.open(url) as warehouse:
        jobs = warehouse.jobs(cluster, columns=columns)
        return History(cluster=cluster, jobs=jobs, timezone=warehouse.timezone(cluster) or "UTC")


def until(history: History, moment: datetime) -> History:
    """Return the part of ``history`` that was submitted before ``moment``."""
    jobs = history.jobs
    later = int((jobs["submitted_at"] >= pd.Timestamp(moment)).sum())  # in submission order: they come last
    return replace(history, jobs=jobs.iloc[: len(jobs) - later]) if later else history


def drift(
    history: History,
    *,
    url: str,
    model_id: str | None,
    days: float,
    now: datetime,
    progress: Progress = in_silence,
) -> dict[str, Any]:
    """Compare the last ``days`` before ``now`` with the training of a model; None: the one in charge.

    Raises
    ------
    NotEnoughHistory
        There is no such model, or it does not say what its training looked like.
    ModelUnreadable
        It cannot be read.
    """
    from helios.app.drift import drift_of  # noqa: PLC0415 - as above
    from helios.app.study import study  # noqa: PLC0415 - as above

    with Warehouse.open(url) as warehouse:
        record = warehouse.model(history.cluster, model_id)
    studied = study(history, progress=progress)
    return drift_of(studied, record, days=days, at=studied.latest(now)).to_json()


def remembered_drift(url: str, cluster: str) -> str | None:
    """Return the line that the last night wrote about drift; None: none did."""
    with Warehouse.open(url) as warehouse:
        return warehouse.remembered(cluster, DRIFT)


def promote(url: str, cluster: str, model_id: str, *, by: str, why: str, now: datetime) -> Outcome:
    """Put a model in charge, or ``SHRINKAGE``.

    Raises
    ------
    NotEnoughHistory
        There is no such model.
    ModelUnreadable
        It cannot be read; nothing was changed.
    """
    from helios.predict import from_record  # noqa: PLC0415 - as above

    with Warehouse.open(url) as warehouse:
        if model_id != SHRINKAGE:
            from_record(warehouse.model(cluster, model_id))
        previous = _in_charge(warehouse, cluster)
        chosen = None if model_id == SHRINKAGE else model_id
        warehouse.decide(cluster, step=Step.PROMOTED, model_id=chosen, by=by, why=why, at=now)
    return Outcome(step=Step.PROMOTED, model_id=model_id, in_charge=model_id, previous=previous, why=why)


def roll_back(url: str, cluster: str, *, by: str, why: str, now: datetime) -> Outcome:
    """Put back in charge what was so before; a model that is gone or cannot be read is passed over.

    Raises
    ------
    Misuse
        Nothing was in charge before.
    """
    with Warehouse.open(url) as warehouse:
        previous = _in_charge(warehouse, cluster)
        before = before_this(warehouse.promotions(cluster))
        passed, chosen = _first_that_serves(warehouse, cluster, before)
        said = "; ".join([why, *passed])
        warehouse.decide(cluster, step=Step.ROLLED_BACK, model_id=chosen, by=by, why=said, at=now)
    in_charge = chosen or SHRINKAGE
    return Outcome(step=Step.ROLLED_BACK, model_id=in_charge, in_charge=in_charge, previous=previous, why=said)


def settle(url: str, record: ModelRecord, *, promote_it: bool, by: str, now: datetime) -> Outcome:
    """Decide about a model that was just trained by hand and kept.

    Where something was decided before, all stays as it was unless ``promote_it``. The very first model takes charge if
    its backtest is ahead of the controls, else shrinkage does.
    """
    from helios.app.promotion import settled  # noqa: PLC0415 - as above

    with Warehouse.open(url) as warehouse:
        decided = not warehouse.promotions(record.cluster).empty
        rival = _rival(warehouse, record.cluster, besides=record.model_id)
        outcome = settled(record, rival, decided=decided, promote_it=promote_it)
        _write(warehouse, record.cluster, outcome, by=by, now=now)
    return outcome


def nightly(
    *,
    url: str,
    history: History,
    seed: int,
    days: float,
    now: datetime,
    keep: int,
    dask: str = "",
    dry_run: bool = False,
    progress: Progress = in_silence,
) -> tuple[Outcome, str]:
    """Train on what had ended by ``now``, and promote the model if it is better; else keep what is in charge, say why.

    It is promoted if, on the jobs of the last ``days``, the same recipe stopped before them is not worse beyond chance
    than the model in charge and than shrinkage, neither in median log error nor in rank correlation; with nothing but
    shrinkage in charge, if it is ahead of the controls.

    Parameters
    ----------
    history : History
        What was submitted before ``now``.
    keep : int
        Newest models that are kept; those in charge now and before are, whatever their age.
    dask : str
        Scheduler on whose workers the trees are grown; empty: here.
    dry_run : bool
        Write nothing.

    Returns
    -------
    outcome : Outcome
    drift : str
        What has drifted since the model in charge until now learned, in a line.

    Raises
    ------
    NotEnoughHistory
        Too few jobs had ended to train on; nothing was written.
    """
    from helios.app.promotion import judged  # noqa: PLC0415 - as above
    from helios.app.study import study  # noqa: PLC0415 - as above

    studied = study(history, progress=progress)
    at = studied.latest(now)
    learner = learner_at(dask)
    candidate = studied.train(until=studied.known_until(now), seed=seed, progress=progress, learner=learner)
    record = studied.record(candidate, seed=seed, made_at=now)
    with Warehouse.open(url) as warehouse:
        rival = _rival(warehouse, history.cluster, besides=None)
        outcome = judged(studied, record, candidate, rival, seed=seed, days=days, at=at, progress=progress)
        line = _drift_line(studied, rival or record, days=days, at=at)
        if dry_run:
            return replace(outcome, written=False), line
        warehouse.add_model(record)
        _write(warehouse, history.cluster, outcome, by=NIGHTLY, now=now)
        warehouse.remember(history.cluster, DRIFT, line, at=now)
        warehouse.forget_models(history.cluster, keep=keep)
    return outcome, line


def compare(history: History, *, url: str, first: str, second: str, now: datetime) -> tuple[Contest, tuple[str, ...]]:
    """Judge two models on the same jobs, those submitted after both had stopped learning, beside the controls.

    Returns
    -------
    contest : Contest
        The challenger is ``second``.
    notes : tuple of str
        Where a model had seen too much and its backtest was judged in its place.

    Raises
    ------
    NotEnoughHistory
        A model is not there, or too few jobs were submitted since.
    ModelUnreadable
        One of them cannot be read.
    """
    from helios.app.promotion import common_ground  # noqa: PLC0415 - as above
    from helios.app.study import study  # noqa: PLC0415 - as above
    from helios.predict import from_record  # noqa: PLC0415 - as above

    if first == second:
        raise Misuse(f"{first} is the same model twice.", remedy="See what there is: helios model list")
    with Warehouse.open(url) as warehouse:
        models = {name: from_record(warehouse.model(history.cluster, name)) for name in (first, second)}
    studied = study(history)
    chosen, notes, rows = common_ground(studied, models, now=now)
    return studied.contest(chosen, rows, challenger=second), notes


def _drift_line(studied: Study, record: ModelRecord, *, days: float, at: datetime) -> str:
    from helios.app.drift import drift_of  # noqa: PLC0415 - as above

    try:
        return drift_of(studied, record, days=days, at=at).line()
    except HeliosError as reason:
        return f"not measured: {reason.fact}"


def _trouble(warehouse: Warehouse, cluster: str) -> str:
    from helios.predict import from_record  # noqa: PLC0415 - as above

    try:
        from_record(warehouse.model(cluster))
    except HeliosError as reason:
        return reason.fact
    return ""


def _in_charge(warehouse: Warehouse, cluster: str) -> str:
    try:
        return warehouse.model(cluster).model_id
    except NotEnoughHistory:
        return SHRINKAGE


def _first_that_serves(
    warehouse: Warehouse, cluster: str, before: Iterable[str | None]
) -> tuple[list[str], str | None]:
    from helios.predict import from_record  # noqa: PLC0415 - as above

    passed: list[str] = []
    for model_id in before:
        if model_id is None:
            return passed, None
        try:
            from_record(warehouse.model(cluster, model_id))
        except HeliosError as reason:
            passed.append(f"passed over {model_id}: {reason.fact}")
        else:
            return passed, model_id
    raise Misuse(
        "Nothing else was in charge before.", remedy="Choose what is to be: helios model promote ID (or shrinkage)"
    )


def _rival(warehouse: Warehouse, cluster: str, *, besides: str | None) -> ModelRecord | None:
    """Return the model in charge, where nothing was ever decided the newest but ``besides``; None: shrinkage."""
    try:
        if besides is None or not warehouse.promotions(cluster).empty:
            return warehouse.model(cluster)
        others = warehouse.models(cluster)["model_id"]
        newest = others[others != besides].head(1).tolist()
        return warehouse.model(cluster, newest[0]) if newest else None
    except HeliosError:  # no such cluster yet, or no model
        return None


def _write(warehouse: Warehouse, cluster: str, outcome: Outcome, *, by: str, now: datetime) -> None:
    if outcome.step is None:
        return
    chosen = None if outcome.in_charge == SHRINKAGE else outcome.in_charge
    warehouse.decide(
        cluster, step=outcome.step, model_id=chosen, by=by, why=outcome.why, at=now, candidate=outcome.model_id
    )
