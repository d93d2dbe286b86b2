"""Explanations of one job, its prediction and the nodes of a cluster.

They use the live queue, the history and the audit log. The explanation of a prediction needs the history before the
job, the model, and the live queue where the job still waits or runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.clusters import NOT_LIVE, choose_cluster, history_alone
from helios.app.controllers import JobController, NodeController
from helios.app.history import LoadedHistory
from helios.choices import Domain
from helios.config import Settings
from helios.control import AppliedChanges, NodeControllerState
from helios.control.observed import observed_nodes
from helios.control.report import count_asleep_by_helios, service_tallies
from helios.errors import ConfigurationInvalid, HeliosError, NoSuchCluster, NotEnoughHistory, UsageError
from helios.model import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    DECISIONS,
    JOBS,
    PREDICTIONS,
    QUEUE,
    FrameKind,
    Mode,
    Snapshot,
    columns_of_id,
)
from helios.ports import Progress, no_progress
from helios.report.job import JobExplanation, JobRuns, StartForecast, places
from helios.report.nodes import NodeExplanation, NodeStatus
from helios.report.prediction import Explanation, PastJob, rests_on
from helios.units import as_count
from helios.warehouse import Warehouse

if TYPE_CHECKING:  # numba and LightGBM take a while
    from helios.predict.duration import DurationModel


# One job by the id that a person writes: its row of the queue, and the jobs that were known before it.

_SHARED = [name for name in JOBS.names if name in QUEUE.by_name]

NEAR = 3
"""Number of similar ids in the error about an unknown one."""

LOOK_BACK = timedelta(days=60)

ID_USED_BEFORE = "Its id was used before"
"""Begin of a remark on the job of somebody, perhaps another user."""
_STEP = re.compile(r"(\d+(?:[_+]\d+)?)\.\w+", re.ASCII)
_SEVERAL = re.compile(r"(\d+)_\[(\d+).*", re.ASCII)

NODE_LOOK_BACK = timedelta(days=30)


class JobUnknown(UsageError):
    """Neither the cluster nor the history knows the job."""


def job_positions(jobs: pd.DataFrame, job_id: str) -> NDArray[np.int64]:
    """Return the positions of the jobs that have an id.

    The id is as a person writes it, such as ``123_7`` for an array.
    """
    return np.flatnonzero(_has_id(jobs, job_id))


def _has_id(jobs: pd.DataFrame, job_id: str) -> NDArray[np.bool_]:
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


def find_queued(snapshot: Snapshot, job_id: str) -> pd.Series[Any] | None:
    """Return the queued job with an id as a person writes it.

    Parameters
    ----------
    job_id : str
        Id of a job, of an array as ``123``, or of some of its tasks as ``123_7`` or ``123_[1-4]``.

    Returns
    -------
    Series or None
        A row of ``QUEUE``. None where there is no such job.
    """
    queues = (snapshot.pending, snapshot.running)
    for queue in queues:
        if (matches := _has_id(queue, job_id)).any():
            return queue[matches].iloc[0]
    master, _, tasks = job_id.partition("_")
    pending = snapshot.pending[(snapshot.pending["job_id"] == master) & (snapshot.pending["tasks"] > 1)]
    if len(pending) and _holds_task(text_of(pending.iloc[0]["array_task_id"]), tasks):
        return pending.iloc[0]
    of_array = [] if tasks else [queue[queue["array_job_id"] == master] for queue in queues]
    return next((queue.iloc[0] for queue in of_array if len(queue)), None)


def _holds_task(pending: str, task: str) -> bool:
    """Return whether the pending tasks of an array hold one.

    They are written ``0-9:2,12%2``. Slurm cuts a long list, which may then hold it.
    """
    if not task.isdecimal() or not pending or "..." in pending:
        return True
    for part in pending.strip("[]").partition("%")[0].split(","):
        first, _, last = part.partition(":")[0].partition("-")
        step = part.partition(":")[2] or "1"
        if int(task) in range(int(first), int(last or first) + 1, int(step)):
            return True
    return False


def predictions_before(
    job: pd.Series[Any], known_at: pd.Timestamp, *, history: pd.DataFrame, running: pd.DataFrame
) -> pd.DataFrame:
    """Return the jobs known at a moment, with ``job`` as submitted then.

    These are jobs that had been submitted by that moment and have ended or run now. They are what the prediction of
    ``job`` can use.

    Parameters
    ----------
    job : Series
        A row of ``QUEUE``.
    known_at : Timestamp
        The moment, aware.
    history : DataFrame
        Columns of ``JOBS``, in submission order.
    running : DataFrame
        Columns of ``QUEUE``.

    Returns
    -------
    DataFrame
        Columns of ``JOBS``, in submission order; ``job`` is the last row.
    """
    ended = history[history["ended_at"].notna() & (history["submitted_at"] < known_at)]
    others = running[(running["job_id"] != job["job_id"]) & (running["started_at"] < known_at)]
    parts = [part for part in (ended, _as_jobs(others), _as_jobs(job.to_frame().T, known_at)) if len(part)]
    together = pd.concat(parts, ignore_index=True)
    return JOBS.conform(together.sort_values("submitted_at", kind="stable", ignore_index=True))


def _as_jobs(queue: pd.DataFrame, submitted_at: pd.Timestamp | None = None) -> pd.DataFrame:
    asked = queue[_SHARED].reset_index(drop=True)
    moment = asked["submitted_at"] if submitted_at is None else submitted_at
    return JOBS.conform(asked.assign(submitted_at=moment)).assign(run_time_s=np.nan)


class NothingKept(UsageError):
    """No Helios has run with these settings, so nothing is recorded."""


def explain(cycles: JobController, job_id: str) -> JobExplanation:
    """Return everything Helios knows about a job, pending, running or over.

    Parameters
    ----------
    job_id : str
        Id as a person writes it, such as ``123`` or ``123_7`` for an array.

    Raises
    ------
    ClusterUnavailable
        The cluster cannot be read.
    JobUnknown
        There is no such job in the queue, nor in the history.
    NothingKept
        There is no warehouse. Creating one and reporting that Helios did nothing would mislead.
    """
    if not Warehouse.exists(cycles.settings.database.url):
        raise NothingKept(
            "There is no warehouse under these settings, so nothing is known of what Helios did.",
            hint="Ask as the Helios that runs here: sudo helios why JOB. helios config names the settings",
        )
    if step := _STEP.fullmatch(job_id):
        raise UsageError(f"{job_id} is a step of a job.", hint=f"Ask for the job: helios why {step[1]}")
    snapshot = cycles.site.cluster.snapshot()
    name, url = cycles.site.name, cycles.settings.database.url
    if find_queued(snapshot, job_id) is None:
        return explain_past(url, name, job_id, now=snapshot.taken_at, looked="in the queue, nor ")
    with Warehouse.open(url) as warehouse:
        since = snapshot.taken_at - LOOK_BACK
        predicted = cycles.predictions(snapshot)
        job = find_queued(predicted, job_id)
        assert job is not None
        decisions = _audit_entries(warehouse, name, job, since)
        applied_changes = read_or_empty(lambda: warehouse.ledger(name).applied_changes(), APPLIED_CHANGES)
        remaining_s = _remaining(predicted, job)
        runs = _live_runs(warehouse, name, job, now=snapshot.taken_at)
        if pd.notna(job["started_at"]):  # it runs: what was predicted while it waited
            prediction = _first_prediction(warehouse, name, job)
            job = job if np.isnan(prediction["p50_s"]) else pd.Series(job.to_dict() | prediction)
    found = _explain_queued(cycles, predicted, job, applied_changes, decisions)
    start = _start(cycles, predicted, job, job_id) if found.rank else None
    return replace(found, remaining_s=remaining_s, start=start, runs=runs)


def explain_past(url: str, cluster: str, job_id: str, *, now: datetime, looked: str = "") -> JobExplanation:
    """Return what is known of a job that is not in the queue.

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
        rows = pd.concat([past[past["job_id"] == over["job_id"]], listed], ignore_index=True)
        rows = rows.drop_duplicates(["submitted_at", "restart"]).sort_values(["submitted_at", "restart"])
        runs = _last_job(rows.reset_index(drop=True))
        other = rows.iloc[len(rows) - len(runs) - 1] if len(runs) < len(rows) else None
        return explanation(
            over,
            over["started_at"],
            _audit_entries(warehouse, cluster, over, over["submitted_at"].to_pydatetime()),
            tasks=1,
            run_time_s=float(over["run_time_s"]),
            runs=JobRuns.of(runs, now=now),
            remarks=() if other is None else (_other_job(other),),
            **_first_prediction(warehouse, cluster, over),
        )


def split_federated(url: str, job_id: str) -> tuple[str, str | None]:
    """Return the id and the cluster of ``ID@CLUSTER``.

    The cluster is None where the warehouse does not know it: an id may have such an end itself, where several clusters
    were read as one.
    """
    name, _, cluster = job_id.partition("@")
    with Warehouse.open(url) as warehouse:
        known = cluster in set(warehouse.clusters()["name"])
    return (name, cluster) if known else (job_id, None)


def explain_job(
    settings: Settings, job_id: str, *, cluster: str | None, cycles: Callable[[], JobController], now: datetime
) -> JobExplanation:
    """Return what the live cluster, or else the history, knows of a job.

    Parameters
    ----------
    cycles : callable
        Opens the live cluster.

    Raises
    ------
    JobUnknown
        Neither knows the job.
    HeliosError
        The live cluster cannot be read, and no history that was named knows the job.
    """
    url, problem = settings.database.url, None
    name = history_alone(settings, cluster, now=now)
    if name is None:
        try:
            return explain(cycles(), job_id)
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
    except UsageError as unknown:
        if problem is None or cluster:
            raise
        raise problem from unknown
    remark = f"{name} is {NOT_LIVE}." if problem is None else f"This is from the history alone: {problem.message}"
    return replace(found, remarks=(*found.remarks, remark))


def _live_runs(warehouse: Warehouse, cluster: str, job: pd.Series[Any], *, now: datetime) -> JobRuns | None:
    """Return the runs of a job in the queue, or None for the first."""
    if not job["restart"]:
        return None
    stored = read_or_empty(lambda: warehouse.requeued_runs(cluster, str(job["job_id"])), JOBS)
    earlier = _last_job(stored[stored["submitted_at"] < job["submitted_at"]].reset_index(drop=True))
    earlier = earlier[(earlier["restart"] < job["restart"]) & (earlier["user"] == job["user"])]
    runs = [part.astype({"user": "object"}) for part in (earlier, _as_jobs(job.to_frame().T)) if len(part)]
    return JobRuns.of(pd.concat(runs, ignore_index=True), now=now)


def _last_job(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the last of the jobs with one id."""
    begins = np.flatnonzero(rows["restart"].diff().fillna(0) <= 0)
    return rows.iloc[begins[-1] if len(begins) else 0 :]


def _other_job(run: pd.Series[Any]) -> str:
    of_user = f" of {run['user']}" if text_of(run["user"]) else ""
    return f"{ID_USED_BEFORE}: the job{of_user} submitted {run['submitted_at']:%Y-%m-%d %H:%M} UTC is another one."


def _start(cycles: JobController, snapshot: Snapshot, job: pd.Series[Any], job_id: str) -> StartForecast:
    """Return when a pending job starts, or why that is not forecast."""
    from helios.app.start_forecast import forecast_start, stored_widening  # noqa: PLC0415 - it compiles

    try:
        site = cycles.site.rules()
        history = cycles.predictions.knowledge.history
        task = job_id.partition("_")[2]
        with Warehouse.open(cycles.settings.database.url) as warehouse:
            wider = stored_widening(warehouse, cycles.site.name, snapshot.taken_at)
        return forecast_start(snapshot, site, history, job, task=task, wider=wider)
    except HeliosError as reason:
        problem = reason.message[:1].lower() + reason.message[1:].rstrip(".")
    except Exception as reason:  # all the rest of the answer must not be lost with the forecast
        problem = f"it failed ({type(reason).__name__}: {reason})"
    return StartForecast(taken_at=snapshot.taken_at, horizon_at=snapshot.taken_at, problem=problem)


def read_or_empty(read: Callable[[], pd.DataFrame], table: FrameKind) -> pd.DataFrame:
    """Return what ``read`` reads from the warehouse.

    The table is empty if the warehouse does not know the cluster.
    """
    try:
        return read()
    except NoSuchCluster:
        return table.empty()


def _first_prediction(warehouse: Warehouse, cluster: str, job: pd.Series[Any]) -> dict[str, Any]:
    """Return quantiles and source of the first prediction of a job."""
    submitted = pd.Series([job["submitted_at"]])
    made = read_or_empty(lambda: warehouse.predictions_of(cluster, submitted), PREDICTIONS)
    if len(made):
        made = made[(made["job_id"] == job["job_id"]) & (made["submitted_at"] == job["submitted_at"])]
    if made.empty:
        return dict.fromkeys(PREDICTIONS.names[:3], np.nan) | {"source": ""}
    return {name: made.iloc[0][name] for name in (*PREDICTIONS.names[:3], "source")}


def _audit_entries(warehouse: Warehouse, cluster: str, job: pd.Series[Any], since: datetime) -> pd.DataFrame:
    """Return the audit entries of a job since its submission.

    Entries before ``since`` are left out.
    """
    first = max(since, job["submitted_at"].to_pydatetime())
    return read_or_empty(lambda: warehouse.decisions_about(cluster, str(job["job_id"]), since=first), DECISIONS)


def _remaining(snapshot: Snapshot, job: pd.Series[Any]) -> tuple[float, float, float] | None:
    """Return p10, p50 and p90 of a running job's remaining run time.

    In seconds. None where the job waits or has no prediction.
    """
    if pd.isna(job["started_at"]) or np.isnan(job["p50_s"]):
        return None
    elapsed_s = (pd.Timestamp(snapshot.taken_at) - job["started_at"]).total_seconds()
    low, middle, high = (max(float(job[name]) - elapsed_s, 0.0) for name in PREDICTIONS.names[:3])
    return low, middle, high


def _explain_queued(
    cycles: JobController,
    snapshot: Snapshot,
    job: pd.Series[Any],
    applied_changes: pd.DataFrame,
    decisions: pd.DataFrame,
) -> JobExplanation:
    mine = applied_changes[
        (applied_changes["job_id"] == job["job_id"]) & (applied_changes["submitted_at"] == job["submitted_at"])
    ]
    real, shadow = mine[mine["mode"] != Mode.SHADOW], mine[mine["mode"] == Mode.SHADOW]
    pending = bool((snapshot.pending["job_id"] == job["job_id"]).any())
    ranks = places(snapshot, job, without=cycles.site.without_helios) if pending else (0, 0, 0)
    until = pd.Timestamp(snapshot.taken_at) if pending else job["started_at"]
    theirs = "somebody changed it after Helios did: it is theirs" if real["overridden"].eq(1).any() else ""
    stands = tuple(real.loc[real["overridden"] == 0, "after"].dropna())
    if not stands and pending and job["urgency"]:  # no cycle has written this value
        factor = cycles.site.site_factor(float(job["urgency"]))
        stands = (f"SiteFactor {factor} at its submission (the priority hook)",)
    return explanation(
        job,
        until,
        decisions,
        tasks=int(job["tasks"]),
        p10_s=float(job["p10_s"]),
        p50_s=float(job["p50_s"]),
        p90_s=float(job["p90_s"]),
        source=text_of(job["source"]),
        rests_on=_rests_on(cycles, snapshot, job) if pending else "",
        reason=text_of(job["reason"]),
        planned_start_at=job["planned_start_at"].to_pydatetime() if pd.notna(job["planned_start_at"]) else None,
        rank=ranks[0],
        rank_without=ranks[1],
        queued=ranks[2],
        excluded_reason=text_of(job["excluded_reason"]) or theirs,
        stands=stands,
        would_stand=tuple(shadow["after"].dropna()),
        remarks=tuple(_remarks(cycles)),
    )


def _rests_on(cycles: JobController, snapshot: Snapshot, job: pd.Series[Any]) -> str:
    """Return which past jobs support the prediction of a pending job.

    The text says whose jobs they are and how long the last of them took.
    """
    from helios.predict.job_table import JobTable  # noqa: PLC0415 - numba takes a while
    from helios.predict.similar_jobs import narrowest_group  # noqa: PLC0415 - as above

    history, now = cycles.predictions.knowledge.history, pd.Timestamp(snapshot.taken_at).floor("s")
    if history.empty or np.isnan(job["p50_s"]):
        return ""
    known = predictions_before(job, now, history=history, running=snapshot.running)
    basis, recent = narrowest_group(JobTable.from_frame(known))
    return rests_on(basis, recent, user=text_of(job["user"]), account=text_of(job["account"]))


def explanation(job: pd.Series[Any], until: pd.Timestamp, decisions: pd.DataFrame, **rest: Any) -> JobExplanation:
    """Return the explanation of a job from a row of ``QUEUE`` or ``JOBS``.

    It waited until ``until``, which is NaT if it never started.
    """
    began = job["eligible_at"] if pd.notna(job["eligible_at"]) else job["submitted_at"]
    return JobExplanation(
        job_id=str(job["job_id"]),
        state=text_of(job["state"]),
        user=text_of(job["user"]),
        partition=text_of(job["partition"]),
        waited_s=max(0.0, (until - began).total_seconds()) if pd.notna(until) else float("nan"),
        gpus=as_count(float(job["gpus"])),
        time_limit_s=float(job["time_limit_s"]),
        decisions=decisions,
        **rest,
    )


def _remarks(cycles: JobController) -> Iterator[str]:
    try:
        pause, modes = cycles.pause(), cycles.modes()
    except HeliosError as problem:
        yield problem.message
        return
    if pause:
        yield f"Helios is paused {pause}."
    if not any(mode.writes for mode in modes.values()):
        yield f"No service may change anything now: {', '.join(f'{n} is {modes[n].mode.value}' for n in modes)}."


def text_of(value: object) -> str:
    """Return a cell as text, empty where it has no value."""
    return "" if pd.isna(value) else str(value)  # type: ignore[call-overload]  # because a cell may be anything


class NodeUnknown(UsageError):
    """The cluster has no such node."""


def node_status(cycles: NodeController) -> NodeStatus:
    """Return the current state of the nodes.

    Raises
    ------
    ClusterUnavailable, WarehouseUnavailable, MemoryDamaged
        The nodes or the controller's stored state cannot be read.
    """
    snapshot, applied_changes, memory = cycles.nodes.snapshot(), _applied_changes(cycles), cycles.remembered()
    nodes, applied = observed_nodes(snapshot), AppliedChanges.read(applied_changes, APPLIED_NODE_CHANGES)
    use_unknown = ""
    if cycles.services:
        try:
            expected = cycles.expect(snapshot)
            for service in cycles.services.values():
                service.decide(expected)
        except HeliosError as error:
            use_unknown = " ".join(filter(None, [error.message, error.hint]))
    return NodeStatus(
        taken_at=snapshot.taken_at,
        pools=service_tallies(nodes, at=snapshot.taken_at, by_helios=count_asleep_by_helios(nodes, applied), wanted={}),
        applied_changes=applied_changes,
        protected=memory.protected,
        quarantined={node: failure.what for node, failure in memory.quarantined.items()},
        cannot="" if snapshot.power is None else snapshot.power.why_not,
        kept_awake="" if snapshot.power is None else snapshot.power.keep_awake_meaning,
        paused=str(cycles.pause() or ""),
        spare=cycles.spare_nodes(memory),
        use_unknown=use_unknown,
    )


def explain_node(cycles: NodeController, node: str) -> NodeExplanation:
    """Return what Helios knows about one node.

    Raises
    ------
    NodeUnknown
        The cluster has no such node.
    ClusterUnavailable, WarehouseUnavailable, MemoryDamaged
        As :func:`node_status`.
    """
    snapshot = cycles.nodes.snapshot()
    if node not in set(snapshot.nodes["name"]):
        raise NodeUnknown(f"The cluster has no node {node!r}.", hint="See all: sinfo --Node, or helios power")
    applied_changes, memory = _applied_changes(cycles), cycles.remembered()
    since = snapshot.taken_at - NODE_LOOK_BACK
    with Warehouse.open(cycles.settings.database.url) as warehouse:
        made = read_or_empty(lambda: warehouse.decisions_about(cycles.site.name, node, since=since), DECISIONS)
    return NodeExplanation(
        node=node,
        facts=tuple(_facts(snapshot, node, applied_changes[applied_changes["node"] == node], memory)),
        decisions=made.sort_values("decided_at", ascending=False, kind="stable", ignore_index=True),
    )


def _facts(snapshot: Snapshot, node: str, applied_changes: pd.DataFrame, memory: NodeControllerState) -> Iterator[str]:
    observed = observed_nodes(snapshot)[node]
    state = snapshot.nodes.set_index("name").loc[node]
    words = [str(word) for word in (state["state"], state["flags"]) if isinstance(word, str)]
    yield f"{node} ({observed.pool}) is {observed.power or 'down, or does not answer'}; Slurm says {'+'.join(words)}."
    if observed.excluded_reason:
        yield f"Helios leaves it alone: {observed.excluded_reason}."
    if node in memory.quarantined:
        failure = memory.quarantined[node]
        when = f"{failure.at:%Y-%m-%d %H:%M} UTC"
        yield f"It failed to wake at {when} ({failure.what}). To trust it again: helios power --clear {node}"
    if node in memory.keep_off:
        until = f"{memory.keep_off[node]:%m-%d %H:%M} UTC"
        yield f"Somebody woke it soon after Helios had put it to sleep: left awake until {until}."
    if memory.protected:
        yield f"{memory.protected[:1].upper()}{memory.protected[1:]}."
    for row in applied_changes.to_dict("records"):
        own = f"; the site's own is {row['own']}" if isinstance(row["own"], str) and row["own"] else ""
        verb = "would have set" if row["mode"] == "shadow" else "set"
        shadow = " (it is in shadow: nothing was set)" if row["mode"] == "shadow" else ""
        since = f"{row['written_at']:%m-%d %H:%M} UTC"
        what = f"{row['setting']} {row['value']}{own}{shadow}"
        yield f"Since {since} stands what service {row['service']} {verb}: {what}."
    cycles = len(memory.slept.get(node, ()))
    times = "once" if cycles == 1 else f"{cycles} times"
    yield f"Helios put it to sleep {times if cycles else 'not once'} in the last 24 hours."


def _applied_changes(cycles: NodeController) -> pd.DataFrame:
    with Warehouse.open(cycles.settings.database.url) as warehouse:
        ledger = warehouse.ledger(cycles.site.name, domain=Domain.NODES)
        return read_or_empty(ledger.applied_changes, APPLIED_NODE_CHANGES)


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


Chosen = tuple["DurationModel | None", tuple[str, ...]]
"""A model, or None for shrinkage alone, with notes for the reader about it."""
Chooser = Callable[[datetime], Chosen]
"""Function that chooses the model for a prediction made at a given time."""


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
    from helios.predict.remaining_time import remaining_run_time  # noqa: PLC0415 - see above

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
    numbers = {"cpus": float(job["cpus"]), "time_limit_s": float(job["time_limit_s"])}
    return {"job_id": str(job["job_id"]), **texts, **numbers, "gpus": as_count(float(job["gpus"]))}
