"""Explanation of one job's prediction.

It needs the history before the job, the model, and the live queue where the job still waits or runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from helios.app.explain import JobUnknown, find_queued, job_positions, near_ids, predictions_before, text_of
from helios.app.history import LoadedHistory
from helios.config import Settings
from helios.errors import HeliosError, NotEnoughHistory
from helios.model import Snapshot
from helios.ports import Progress, no_progress
from helios.report.prediction import Explanation, PastJob
from helios.warehouse import Warehouse

if TYPE_CHECKING:  # numba and LightGBM take a while
    from helios.predict.duration import DurationModel

Chosen = tuple["DurationModel | None", tuple[str, ...]]
"""A model, or None for shrinkage alone, with notes for the reader about it."""
Chooser = Callable[[datetime], Chosen]
"""Function that chooses the model for a prediction made at a given time."""


def explain_prediction(
    history: LoadedHistory,
    job_id: str,
    *,
    choose: Chooser,
    read_snapshot: Callable[[], Snapshot] | None = None,
    restart: int | None = None,
) -> Explanation:
    """Explain the prediction of a past, pending or running job.

    A job of the history is explained as it was known at its submission.

    Parameters
    ----------
    job_id : str
        Id as a person writes it, such as ``123`` or ``123_7`` for an array.
    choose : callable
        As returned by :func:`stored_model` or :func:`model_in_use`.
    read_snapshot : callable, optional
        Returns a snapshot of the live cluster, for a job that has not ended in the history. None without a live
        cluster.
    restart : int, optional
        Number of the run of a requeued job, from 0. The last run by default.

    Raises
    ------
    JobUnknown
        There is no such job.
    """
    rows = job_positions(history.jobs, job_id)
    if restart is not None:
        rows = rows[(history.jobs["restart"].iloc[rows] == restart).to_numpy()]
    row = int(rows[-1]) if len(rows) else None
    ended = row is not None and bool(history.jobs[["ended_at", "run_time_s"]].iloc[row].notna().any())
    snapshot, problem = None, ""
    try:
        snapshot = read_snapshot() if read_snapshot and not ended else None
    except HeliosError as reason:
        problem = f" The live queue cannot be read: {reason.message.rstrip('.')}."
    job = find_queued(snapshot, job_id) if snapshot is not None and restart is None else None
    if snapshot is not None and job is not None:
        # A pending job is explained as if it were submitted now, a running one as of its start.
        runs = pd.notna(job["started_at"])
        known_at = pd.Timestamp(job["started_at"] if runs else snapshot.taken_at).floor("s")
        elapsed_s = (pd.Timestamp(snapshot.taken_at) - known_at).total_seconds() if runs else float("nan")
        jobs = predictions_before(job, known_at, history=history.jobs, running=snapshot.running)
        return _explain_last(history, jobs, choose, job=job, known_at=known_at, elapsed_s=elapsed_s)
    if row is not None:
        jobs = history.jobs.iloc[: row + 1]
        return _explain_last(history, jobs, choose, run_time_s=float(jobs["run_time_s"].iloc[row]))
    elsewhere = (
        "Is it in another file?" if read_snapshot is None else "Is it of another cluster? Or newer: helios trace sync"
    )
    run = "" if restart is None else f", run {restart}"
    near = near_ids(history.jobs["job_id"], job_id)
    raise JobUnknown(
        f"No job {job_id}{run} is in the history of {history.cluster} ({len(history.jobs):,} jobs).{problem}",
        hint=f"It has {', '.join(near)}. {elsewhere}" if near else elsewhere,
    )


def live_snapshot_reader(settings: Settings, cluster: str) -> Callable[[], Snapshot]:
    """Return a function that takes a snapshot of the live cluster.

    The cluster is opened when the function is called.
    """

    def read_snapshot() -> Snapshot:
        from helios.app.operations import Operations  # noqa: PLC0415 - a job of the past needs no cluster

        return Operations(settings, cluster=cluster).site.cluster.snapshot()

    return read_snapshot


def stored_model(history: LoadedHistory, *, url: str, model_id: str | None) -> Chooser:
    """Return a chooser among the models in the warehouse.

    With ``model_id`` it chooses that model. Otherwise it is the newest model that was trained only on jobs ended by
    then. If there is none, it is the current model, with a note.
    """

    def choose(known_at: datetime) -> Chosen:
        from helios.predict.model_record import from_record  # noqa: PLC0415 - see above

        with Warehouse.open(url) as warehouse:
            try:
                models = warehouse.models(history.cluster)
                by_then = models[models["trained_until"] <= known_at].sort_values("trained_until", kind="stable")
                newest = None if by_then.empty else str(by_then["model_id"].iloc[-1])
                model = from_record(warehouse.model(history.cluster, model_id or newest))
            except NotEnoughHistory:
                if model_id is not None:
                    raise
                return None, ("no model is trained: shrinkage alone predicts. Train one: helios model train",)
        if model.trained_until <= known_at:
            return model, ()
        note = (
            f"model {model.model_id} learned from jobs that ended until {model.trained_until:%Y-%m-%d %H:%M} UTC, so "
            "it may know this very job; the shrinkage and the past jobs are as they were known then"
        )
        return model, (note,)

    return choose


def newly_trained_model(history: LoadedHistory, *, seed: int, progress: Progress = no_progress) -> Chooser:
    """Return a chooser that trains a model on the jobs ended by then.

    If these are too few, shrinkage alone predicts.
    """

    def choose(known_at: datetime) -> Chosen:
        from helios.predict.duration import train  # noqa: PLC0415 - see above

        before = history.jobs[history.jobs["submitted_at"] < known_at].reset_index(drop=True)
        try:
            model = train(
                before,
                cluster=history.cluster,
                until=known_at,
                seed=seed,
                timezone=history.timezone,
                progress=progress,
            )
        except NotEnoughHistory as reason:
            return None, (f"shrinkage alone predicts: {reason.message.rstrip('.')}",)
        return model, (f"a model was trained for this answer, on {model.jobs:,} jobs that had ended by then",)

    return choose


def _explain_last(
    history: LoadedHistory,
    jobs: pd.DataFrame,
    choose: Chooser,
    *,
    job: pd.Series[Any] | None = None,
    known_at: pd.Timestamp | None = None,
    run_time_s: float = float("nan"),
    elapsed_s: float = float("nan"),
) -> Explanation:
    """Explain the last of ``jobs``.

    ``job`` is its record in the queue, if it is there.
    """
    from helios.predict.explain import explain_last  # noqa: PLC0415 - see above
    from helios.predict.live_predictor import remaining_run_time  # noqa: PLC0415 - see above

    job = jobs.iloc[-1] if job is None else job
    moment = job["submitted_at"] if known_at is None else known_at
    model, notes = choose(moment.to_pydatetime())
    explained = explain_last(jobs, model=model, timezone=history.timezone)
    remaining_s = None
    if not np.isnan(elapsed_s):
        limit_s = np.array([float(job["time_limit_s"])])
        found = remaining_run_time(np.array([explained.quantiles_s]), np.array([elapsed_s]), limit_s=limit_s)[0]
        remaining_s = (float(found[0]), float(found[1]), float(found[2]))
    alike = (
        PastJob(
            **_request(jobs.iloc[past.row]),
            ended_at=pd.Timestamp(past.ended_s, unit="s", tz="UTC").to_pydatetime(),
            run_time_s=past.run_time_s,
            differs=past.differs,
            distance=past.distance,
        )
        for past in explained.resembling
    )
    return Explanation(
        cluster=history.cluster,
        **_request(job),
        state=text_of(job["state"]),
        restart=int(job["restart"]),
        submitted_at=job["submitted_at"].to_pydatetime(),
        known_at=moment.to_pydatetime(),
        explained=explained,
        alike=tuple(alike),
        run_time_s=run_time_s,
        elapsed_s=elapsed_s,
        remaining_s=remaining_s,
        notes=notes,
    )


def _request(job: pd.Series[Any]) -> dict[str, Any]:
    """Return a job's request by the names of ``Explanation``.

    :class:`PastJob` has the same names.
    """
    texts = {name: text_of(job[name]) for name in ("user", "account", "partition", "name")}
    numbers = {"gpus": int(job["gpus"]), "cpus": float(job["cpus"]), "time_limit_s": float(job["time_limit_s"])}
    return {"job_id": str(job["job_id"]), **texts, **numbers}
