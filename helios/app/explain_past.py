"""Explanation of one job, with or without a live cluster.

What is recorded of it comes from the warehouse or a file. The steps of its prediction need the history before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.clusters import NOT_LIVE, choose_cluster, history_alone
from helios.app.history import LoadedHistory
from helios.config import Settings
from helios.errors import (
    ClusterUnavailable,
    ConfigurationInvalid,
    HeliosError,
    NoSuchCluster,
    NotEnoughHistory,
    UsageError,
)
from helios.model import (
    DECISIONS,
    GPU_USE,
    JOB_USE,
    JOBS,
    PREDICTIONS,
    START_ESTIMATES,
    TIME,
    FrameKind,
    JobState,
    columns_of_id,
)
from helios.ports import Progress, no_progress
from helios.report.alike import ALIKE_WITHIN, compare_alike
from helios.report.alike import COLUMNS as ALIKE_COLUMNS
from helios.report.job import JobExplanation, JobRuns
from helios.report.job_life import NOT_ESTIMATED, NOT_MEASURED, NOT_RECORDED
from helios.report.job_use import PREDICTED_USE
from helios.report.prediction import PastJob, PredictionSteps
from helios.units import as_count, count_in_words, duration_in_words, in_number
from helios.warehouse import Warehouse

if TYPE_CHECKING:  # numba and LightGBM take a while
    from helios.predict.duration import DurationModel

NEAR = 3
"""Number of similar ids in the error about an unknown one."""
LOOK_BACK = timedelta(days=60)
WORTH_EXPLAINING = timedelta(minutes=1)
"""Shortest wait of which is told what other jobs did meanwhile."""
HOLDERS = 3
ID_USED_BEFORE = "Its id was used before"
"""Begin of a remark on the job of somebody, perhaps another user."""
_SEVERAL = re.compile(r"(\d+)_\[(\d+).*", re.ASCII)

_BESIDE = ["job_id", "partition", "submitted_at", "started_at", "ended_at", "gpus", "cpus"]
"""Columns by which is told what other jobs did while one waited."""

NOTHING_MADE = PREDICTIONS.empty().assign(made_at=pd.Series(dtype=TIME))[["made_at", *PREDICTIONS.names]]
"""Frame of a job that was never predicted."""

Chosen = tuple["DurationModel | None", tuple[str, ...]]
"""A model, or None for shrinkage alone, with notes for the reader about it."""
Chooser = Callable[[datetime], Chosen]
"""Function that chooses the model for a prediction made at a given time."""


class JobUnknown(UsageError):
    """Neither the cluster nor the history knows the job."""


def explain_job(
    settings: Settings, job_id: str, *, cluster: str | None, live: Callable[[], JobExplanation], now: datetime
) -> JobExplanation:
    """Return what the live cluster, or else the history, knows of a job.

    Parameters
    ----------
    live : callable
        Explains it by the live cluster.

    Raises
    ------
    JobUnknown
        Neither knows the job.
    ClusterUnavailable
        The live cluster cannot be read, and the history does not know the job.
    NoSuchCluster
        It cannot be read, and none or several histories are loaded, and none was named.
    """
    url, problem = settings.database.url, None
    name = history_alone(settings, cluster, now=now)
    if name is None:
        try:
            return live()
        except HeliosError as reason:
            # ConfigurationInvalid: another cluster than the live one is named.
            if not Warehouse.exists(url) or (
                isinstance(reason, UsageError) and not isinstance(reason, ConfigurationInvalid)
            ):
                raise
            problem = reason
    try:
        with Warehouse.open(url) as warehouse:
            name = name or str(choose_cluster(warehouse, cluster or settings.database.cluster or None)["name"])
        found = explain_past(url, name, job_id, now=now)
    except (JobUnknown, NoSuchCluster) as unknown:
        if problem is None or cluster:
            raise
        if isinstance(unknown, NoSuchCluster):  # several are loaded, or none
            raise NoSuchCluster(f"{problem.message} {unknown.message}", hint=unknown.hint) from problem
        message = f"{unknown.message} It may be in the queue, which cannot be read: {problem.message}"
        raise ClusterUnavailable(message, hint=problem.hint) from problem
    remark = f"{name} is {NOT_LIVE}." if problem is None else f"This is from the history alone: {problem.message}"
    return replace(found, remarks=(*found.remarks, remark))


def explain_past(url: str, cluster: str, job_id: str, *, now: datetime, looked: str = "") -> JobExplanation:
    """Return what the warehouse knows of a job outside the queue.

    Raises
    ------
    JobUnknown
        There is no such job in the history.
    """
    with Warehouse.open(url) as warehouse:
        for since in (now - LOOK_BACK, None):  # most are found without a look at every job
            past = read_or_empty(lambda: warehouse.jobs_named(cluster, job_id, since=since), JOBS)  # noqa: B023
            if len(past):
                break
        if past.empty:
            several = _SEVERAL.fullmatch(job_id)
            one = f"Ask for one task: helios why {several[1]}_{several[2]}. " if several else ""
            raise JobUnknown(
                f"No job {job_id} is {looked}in the history of {cluster}.",
                hint=f"{one}Was it submitted on this cluster? Read the newest history: helios trace sync",
            )
        over = past.iloc[-1]
        listed = warehouse.requeued_runs(cluster, str(over["job_id"]))
        decisions = audit_entries(warehouse, cluster, over, over["submitted_at"].to_pydatetime())
        alike, made = jobs_of_user(warehouse, cluster, over), made_predictions(warehouse, cluster, over)
        beside, began = JOBS.empty(), _could_start(over)
        if over["started_at"] - began >= WORTH_EXPLAINING:
            until = over["started_at"]
            beside = warehouse.jobs(cluster, since=began - LOOK_BACK, until=until, unended_at=began, columns=_BESIDE)
        found = _explain_rows(past, listed, beside, decisions, alike=alike, predictions=made, now=now)
        found = with_estimates(warehouse, cluster, with_job_use(warehouse, cluster, found))
    return _with_gaps(found)


def explain_read(history: LoadedHistory, job_id: str) -> JobExplanation:
    """Return what a history read from a file knows of a job.

    Raises
    ------
    JobUnknown
        There is no such job in it.
    """
    rows = history.jobs.iloc[_known_positions(history, job_id)]
    now = history.jobs["submitted_at"].max()
    beside, alike = history.jobs[_BESIDE], history.jobs[ALIKE_COLUMNS]
    found = _explain_rows(rows, JOBS.empty(), beside, DECISIONS.empty(), alike=alike, predictions=NOTHING_MADE, now=now)
    return _with_gaps(found)


def _with_gaps(found: JobExplanation) -> JobExplanation:
    """Return the explanation with remarks on what is not known."""
    missing = ((found.estimates, NOT_ESTIMATED), (found.use, NOT_MEASURED))
    return replace(found, remarks=(*found.remarks, *(remark for rows, remark in missing if rows.empty)))


def _explain_rows(
    past: pd.DataFrame,
    listed: pd.DataFrame,
    beside: pd.DataFrame,
    decisions: pd.DataFrame,
    *,
    alike: pd.DataFrame,
    predictions: pd.DataFrame,
    now: datetime,
) -> JobExplanation:
    """Explain the last job in rows of one id.

    Its runs are in these and the ``listed`` rows, and what held it is told by the rows ``beside``. It is compared with
    the rows ``alike``, of which those like it count.
    """
    over = past.iloc[-1]
    parts = [part for part in (past[past["job_id"] == over["job_id"]], listed) if len(part)]
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.drop_duplicates(["submitted_at", "restart"]).sort_values(["submitted_at", "restart"])
    runs = last_job(rows.reset_index(drop=True))
    other = rows.iloc[len(rows) - len(runs) - 1] if len(runs) < len(rows) else None
    return explanation(
        over,
        over["started_at"],
        decisions,
        tasks=1,
        run_time_s=float(over["run_time_s"]),
        held_by=tuple(_held_by(over, beside)),
        runs=JobRuns.of(runs, now=now),
        compared_with=alike,
        predictions=predictions,
        remarks=(NOT_RECORDED, *(() if other is None else (_other_job(other),))),
        **first_prediction(predictions),
    )


def _could_start(job: pd.Series[Any]) -> pd.Timestamp:
    began: pd.Timestamp = job["eligible_at"] if pd.notna(job["eligible_at"]) else job["submitted_at"]
    return began


def _held_by(job: pd.Series[Any], beside: pd.DataFrame) -> Iterator[str]:
    """Yield what other jobs of its partition did while it waited."""
    began, started = _could_start(job), job["started_at"]
    if pd.isna(job["partition"]) or not started - began >= WORTH_EXPLAINING:
        return
    others = beside[(beside["partition"] == job["partition"]) & (beside["job_id"] != job["job_id"])]
    unended = ~(others["ended_at"] <= began)
    waited = (others["submitted_at"] < job["submitted_at"]) & ~(others["started_at"] <= began) & unended
    passed = (others["submitted_at"] > job["submitted_at"]) & (others["started_at"] < started)
    ahead, passed_by = in_number(int(waited.sum()), "jobs"), int(passed.sum())
    yield (
        f"Of its partition, the history has {ahead} submitted before it that waited when it could have started, and "
        f"{passed_by:,} submitted later that started earlier."
    )
    unit = "GPU" if job["gpus"] > 0 else "CPU"
    held = others["ended_at"].fillna(started).clip(upper=started) - others["started_at"].clip(lower=began)
    held_s, units = held.dt.total_seconds().clip(lower=0), others[f"{unit.lower()}s"]
    largest = (held_s * units).nlargest(HOLDERS)
    names = (
        f"job {others.at[row, 'job_id']} ({count_in_words(as_count(float(units[row])), unit)}) for "
        f"{duration_in_words(held_s[row])}"
        for row in largest[largest > 0].index
    )
    if largest.gt(0).any():
        yield f"Most {unit} time was held meanwhile by {', '.join(names)}."


def explain_prediction(history: LoadedHistory, job_id: str, *, choose: Chooser) -> PredictionSteps:
    """Explain the prediction of a job as it was known at its submission.

    Of a requeued job the last run is meant.

    Parameters
    ----------
    job_id : str
        Id as a person writes it, such as ``123`` or ``123_7`` for an array.
    choose : callable
        As returned by :func:`stored_model` or :func:`newly_trained_model`.

    Raises
    ------
    JobUnknown
        There is no such job.
    """
    from helios.predict.explain import explain_last  # noqa: PLC0415 - see above

    jobs = history.jobs.iloc[: int(_known_positions(history, job_id)[-1]) + 1]
    job = jobs.iloc[-1]
    model, notes = choose(job["submitted_at"].to_pydatetime())
    explained = explain_last(jobs, model=model, timezone=history.timezone)
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
    return PredictionSteps(
        user=text_of(job["user"]),
        account=text_of(job["account"]),
        explained=explained,
        alike=tuple(alike),
        run_time_s=float(job["run_time_s"]),
        notes=notes,
    )


def _known_positions(history: LoadedHistory, job_id: str) -> NDArray[np.int64]:
    rows = job_positions(history.jobs, job_id)
    if not len(rows):
        near = near_ids(history.jobs["job_id"], job_id)
        raise JobUnknown(
            f"No job {job_id} is in the history of {history.cluster} ({len(history.jobs):,} jobs).",
            hint=f"It has {', '.join(near)}. Is it in another history?" if near else "Is it in another history?",
        )
    return rows


def stored_model(history: LoadedHistory, *, url: str) -> Chooser:
    """Return a chooser among the models in the warehouse.

    It chooses the newest model that was trained only on jobs ended by then. If there is none, it is the current model,
    with a note.
    """

    def choose(known_at: datetime) -> Chosen:
        from helios.predict.model_record import from_record  # noqa: PLC0415 - see above

        with Warehouse.open(url) as warehouse:
            try:
                models = warehouse.models(history.cluster)
                by_then = models[models["trained_until"] <= known_at].sort_values("trained_until", kind="stable")
                newest = None if by_then.empty else str(by_then["model_id"].iloc[-1])
                model = from_record(warehouse.model(history.cluster, newest))
            except NotEnoughHistory:
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


def split_federated(url: str, job_id: str) -> tuple[str, str | None]:
    """Return the id and the cluster of ``ID@CLUSTER``.

    The cluster is None where the warehouse does not know it: an id may have such an end itself, where several clusters
    were read as one.
    """
    name, _, cluster = job_id.partition("@")
    with Warehouse.open(url) as warehouse:
        known = cluster in set(warehouse.clusters()["name"])
    return (name, cluster) if known else (job_id, None)


def explanation(
    job: pd.Series[Any],
    until: pd.Timestamp,
    decisions: pd.DataFrame,
    *,
    compared_with: pd.DataFrame | None = None,
    **rest: Any,
) -> JobExplanation:
    """Return the explanation of a job from a row of ``QUEUE`` or ``JOBS``.

    It waited until ``until``, which is NaT if it never started. Of ``compared_with`` jobs like it count.
    """
    began = _could_start(job)
    waited_s = max(0.0, (until - began).total_seconds()) if pd.notna(until) else float("nan")
    return JobExplanation(
        job_id=str(job["job_id"]),
        state=text_of(job["state"]),
        user=text_of(job["user"]),
        account=text_of(job["account"]),
        partition=text_of(job["partition"]),
        waited_s=waited_s,
        alike=None if compared_with is None else compare_alike(compared_with, job, waited_s=waited_s),
        gpus=as_count(float(job["gpus"])),
        cpus=float(job["cpus"]),
        time_limit_s=float(job["time_limit_s"]),
        decisions=decisions,
        **rest,
    )


def job_positions(jobs: pd.DataFrame, job_id: str) -> NDArray[np.int64]:
    """Return the positions of the jobs that have an id.

    The id is as a person writes it, such as ``123_7`` for an array.
    """
    return np.flatnonzero(has_id(jobs, job_id))


def has_id(jobs: pd.DataFrame, job_id: str) -> NDArray[np.bool_]:
    """Return which jobs have an id as a person writes it."""
    parts = columns_of_id(job_id)
    of_part = np.logical_and.reduce([(jobs[name] == value).fillna(False) for name, value in parts.items()])
    found: NDArray[np.bool_] = (jobs["job_id"] == job_id).to_numpy(dtype=bool, na_value=False) | (of_part & bool(parts))
    return found


def near_ids(ids: pd.Series, job_id: str) -> list[str]:
    """Return the known ids that are most like this one."""
    known = ids.drop_duplicates()
    numbers = pd.to_numeric(known, errors="coerce")
    digits = job_id.partition("_")[0].partition("-")[0]
    if digits.isdecimal() and numbers.notna().any():
        # As a float, for which no number of digits is too many.
        apart = (numbers - float(digits)).abs().nsmallest(NEAR)
        return [str(known[row]) for row in sorted(apart.index)]
    return get_close_matches(job_id, list(known.astype(str)), n=NEAR)


def last_job(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the last of the jobs with one id."""
    begins = np.flatnonzero(rows["restart"].diff().fillna(0) <= 0)
    return rows.iloc[begins[-1] if len(begins) else 0 :]


def _other_job(run: pd.Series[Any]) -> str:
    of_user = f" of {run['user']}" if text_of(run["user"]) else ""
    return f"{ID_USED_BEFORE}: the job{of_user} submitted {run['submitted_at']:%Y-%m-%d %H:%M} UTC is another one."


def read_or_empty(read: Callable[[], pd.DataFrame], table: FrameKind) -> pd.DataFrame:
    """Return what ``read`` reads from the warehouse.

    The table is empty if the warehouse does not know the cluster.
    """
    try:
        return read()
    except NoSuchCluster:
        return table.empty()


def made_predictions(warehouse: Warehouse, cluster: str, job: pd.Series[Any]) -> pd.DataFrame:
    """Return the predictions of a job as they were made, oldest first."""
    submitted = pd.Series([job["submitted_at"]])
    try:
        made = warehouse.predictions_of(cluster, submitted)
    except NoSuchCluster:
        return NOTHING_MADE
    of_job = (made["job_id"] == job["job_id"]) & (made["submitted_at"] == job["submitted_at"])
    return made.loc[of_job, NOTHING_MADE.columns].reset_index(drop=True)


def first_prediction(made: pd.DataFrame) -> dict[str, Any]:
    """Return quantiles and source of the first of a job's predictions."""
    if made.empty:
        return dict.fromkeys(PREDICTIONS.names[:3], np.nan) | {"source": ""}
    return {name: made.iloc[0][name] for name in (*PREDICTIONS.names[:3], "source")}


def with_job_use(warehouse: Warehouse, cluster: str, found: JobExplanation) -> JobExplanation:
    """Return the explanation with what the runs of the job used."""
    if found.runs is None or found.runs.runs.empty:
        return found
    submitted = found.runs.runs["submitted_at"]
    since, until = submitted.min().to_pydatetime(), submitted.max().to_pydatetime() + timedelta(seconds=1)
    use, gpu_use = (
        read_or_empty(partial(warehouse.job_use, cluster, since=since, until=until, by_gpu=by_gpu), kind)
        for by_gpu, kind in ((False, JOB_USE), (True, GPU_USE))
    )
    use, gpu_use = (
        rows[(rows["job_id"] == found.job_id) & rows["submitted_at"].isin(submitted)].reset_index(drop=True)
        for rows in (use, gpu_use)
    )
    found = replace(found, use=use, gpu_use=gpu_use)
    if found.state != JobState.RUNNING:
        return found
    try:
        predicted = json.loads(warehouse.remembered(cluster, PREDICTED_USE) or "{}").get(found.job_id)
    except NoSuchCluster:  # before the first reading
        return found
    is_of_job = predicted and pd.Timestamp(predicted["submitted_at"]) == submitted.max()
    return replace(found, predicted_use=predicted) if is_of_job else found


def with_estimates(warehouse: Warehouse, cluster: str, found: JobExplanation) -> JobExplanation:
    """Return the explanation with the estimates of its start that were kept."""
    if found.runs is None or found.runs.runs.empty:
        return found
    runs = found.runs.runs
    made = read_or_empty(
        lambda: warehouse.start_estimates(cluster, job_id=found.job_id, submitted_at=runs["submitted_at"]),
        START_ESTIMATES,
    )
    # The queue knows a start before the history does.
    came = runs.rename(columns={"number": "restart"})[["submitted_at", "restart", "started_at", "ended_at"]]
    return replace(found, estimates=made[START_ESTIMATES.names].merge(came, on=["submitted_at", "restart"]))


def jobs_of_user(warehouse: Warehouse, cluster: str, job: pd.Series[Any]) -> pd.DataFrame:
    """Return the jobs of a job's user and partition around its submission."""
    if pd.isna(job["user"]):
        return JOBS.empty()
    at = job["submitted_at"].to_pydatetime()
    partitions = text_of(job["partition"])
    only = {"user": [str(job["user"])], "partition": partitions.split(",") if partitions else []}
    since, until = at - ALIKE_WITHIN, at + ALIKE_WITHIN
    return read_or_empty(
        lambda: warehouse.jobs(cluster, since=since, until=until, columns=ALIKE_COLUMNS, only=only), JOBS
    )


def audit_entries(warehouse: Warehouse, cluster: str, job: pd.Series[Any], since: datetime) -> pd.DataFrame:
    """Return the audit entries of a job since its submission.

    Entries before ``since`` are left out.
    """
    first = max(since, job["submitted_at"].to_pydatetime())
    return read_or_empty(lambda: warehouse.decisions_about(cluster, str(job["job_id"]), since=first), DECISIONS)


def _request(job: pd.Series[Any]) -> dict[str, Any]:
    """Return a job's request by the names of ``Explanation``.

    :class:`PastJob` has the same names.
    """
    texts = {name: text_of(job[name]) for name in ("user", "account", "partition", "name")}
    numbers = {"cpus": float(job["cpus"]), "time_limit_s": float(job["time_limit_s"])}
    return {"job_id": str(job["job_id"]), **texts, **numbers, "gpus": as_count(float(job["gpus"]))}


def text_of(value: object) -> str:
    """Return a cell as text, empty where it has no value."""
    return "" if pd.isna(value) else str(value)  # type: ignore[call-overload]  # because a cell may be anything
