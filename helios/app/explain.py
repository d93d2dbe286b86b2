"""Explanations of a job and of the nodes of a live cluster.

They use the live queue, the history and the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from helios.app.controllers import JobController, NodeController
from helios.app.explain_past import (
    LOOK_BACK,
    audit_entries,
    explain_past,
    explanation,
    first_prediction,
    has_id,
    jobs_of_user,
    last_job,
    made_predictions,
    read_or_empty,
    text_of,
    with_estimates,
    with_job_use,
)
from helios.app.start_estimates import keep_estimate, keep_estimates
from helios.choices import Domain
from helios.control import AppliedChanges, NodeControllerState
from helios.control.observed import observed_nodes
from helios.control.report import count_asleep_by_helios, service_tallies
from helios.control.yields import describe_target
from helios.errors import HeliosError, UsageError
from helios.model import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    DECISIONS,
    JOBS,
    PREDICTIONS,
    QUEUE,
    Mode,
    Snapshot,
)
from helios.model.slurm_site import SlurmSite
from helios.report.job import JobExplanation, JobRuns, StartForecast, places
from helios.report.nodes import NodeExplanation, NodeStatus
from helios.report.prediction import rests_on
from helios.warehouse import Warehouse

T = TypeVar("T")

_SHARED = [name for name in JOBS.names if name in QUEUE.by_name]

NO_LOCK: AbstractContextManager[Any] = nullcontext()
"""For a controller that one thread uses."""

NEW_JOB = "new"
"""Id of a job that nobody has submitted."""
LIKE = (
    *("user", "account", "qos", "partition", "name"),
    *("time_limit_s", "nodes", "cpus", "gpus", "gpu_type", "memory_mib"),
)
"""Columns in which a job is like another one."""

_STEP = re.compile(r"(\d+(?:[_+]\d+)?)\.\w+", re.ASCII)

NODE_LOOK_BACK = timedelta(days=30)


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
        if (matches := has_id(queue, job_id)).any():
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


def explain(cycles: JobController, job_id: str, *, lock: AbstractContextManager[Any] = NO_LOCK) -> JobExplanation:
    """Return everything Helios knows about a job, pending, running or over.

    The estimate of its start is kept.

    Parameters
    ----------
    job_id : str
        Id as a person writes it, such as ``123`` or ``123_7`` for an array.
    lock : context manager
        Held while the controller is used, and not while the queue is simulated.

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
    with lock:
        found, waiting = _explain_now(cycles, job_id)
    if waiting is None:
        return found
    found = replace(found, start=waiting.forecast_one(waiting.jobs.iloc[0], task=job_id.partition("_")[2]))
    keep_estimate(cycles.settings.database.url, cycles.site.name, found)
    return found


def _explain_now(cycles: JobController, job_id: str) -> tuple[JobExplanation, WaitingJobs | None]:
    """Return what is known of a job but its start.

    Where it waits, what its start is forecast from is returned with it.
    """
    snapshot = cycles.site.cluster.snapshot()
    name, url = cycles.site.name, cycles.settings.database.url
    if find_queued(snapshot, job_id) is None:
        return explain_past(url, name, job_id, now=snapshot.taken_at, looked="in the queue, nor "), None
    with Warehouse.open(url) as warehouse:
        since = snapshot.taken_at - LOOK_BACK
        predicted = cycles.predictions(snapshot)
        job = find_queued(predicted, job_id)
        assert job is not None
        decisions = audit_entries(warehouse, name, job, since)
        applied_changes = read_or_empty(lambda: warehouse.ledger(name).applied_changes(), APPLIED_CHANGES)
        remaining_s = _remaining(predicted, job)
        runs = _live_runs(warehouse, name, job, now=snapshot.taken_at)
        yielded = cycles.yield_store(warehouse).read() if snapshot.targets else []
        target = describe_target(snapshot, str(job["job_id"]), yielded, cycles.settings.control)
        made, compared_with = made_predictions(warehouse, name, job), jobs_of_user(warehouse, name, job)
        if pd.notna(job["started_at"]):  # it runs: what was predicted while it waited
            prediction = first_prediction(made)
            job = job if np.isnan(prediction["p50_s"]) else pd.Series(job.to_dict() | prediction)
    found = _explain_queued(cycles, predicted, job, applied_changes, decisions, compared_with=compared_with)
    found = replace(found, remaining_s=remaining_s, runs=runs, target=target, predictions=made)
    with Warehouse.open(url) as warehouse:
        found = with_estimates(warehouse, name, with_job_use(warehouse, name, found))
    return found, WaitingJobs.read(cycles, predicted, job.to_frame().T) if found.rank else None


def _live_runs(warehouse: Warehouse, cluster: str, job: pd.Series[Any], *, now: datetime) -> JobRuns:
    """Return the runs of a queued job."""
    stored = JOBS.empty()
    if job["restart"]:
        stored = read_or_empty(lambda: warehouse.requeued_runs(cluster, str(job["job_id"])), JOBS)
    earlier = last_job(stored[stored["submitted_at"] < job["submitted_at"]].reset_index(drop=True))
    earlier = earlier[(earlier["restart"] < job["restart"]) & (earlier["user"] == job["user"])]
    runs = [part.astype({"user": "object"}) for part in (earlier, _as_jobs(job.to_frame().T)) if len(part)]
    return JobRuns.of(pd.concat(runs, ignore_index=True), now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJobs:
    """Jobs of a queue, with what their starts are forecast from.

    Attributes
    ----------
    snapshot : Snapshot
        With predictions.
    jobs : DataFrame
        Rows of ``snapshot.pending``.
    site : SlurmSite, optional
        None where ``problem`` says why there is no forecast.
    history : DataFrame
        Columns of ``JOBS``.
    wider : float
        Factor by which intervals are widened.
    problem : str
    """

    snapshot: Snapshot
    jobs: pd.DataFrame
    site: SlurmSite | None = None
    history: pd.DataFrame = field(default_factory=JOBS.empty)
    wider: float = float("nan")
    problem: str = ""

    @classmethod
    def read(cls, cycles: JobController, snapshot: Snapshot, jobs: pd.DataFrame) -> WaitingJobs:
        """Read the rules of the cluster and the history."""
        from helios.app.start_forecast import stored_widening  # noqa: PLC0415 - it compiles

        found = cls(snapshot=snapshot, jobs=jobs)
        try:
            site, history = cycles.site.rules(), cycles.predictions.knowledge.history
            with Warehouse.open(cycles.settings.database.url) as warehouse:
                wider = stored_widening(warehouse, cycles.site.name, snapshot.taken_at)
        except Exception as reason:  # all the rest of an answer must not be lost with the forecast
            return replace(found, problem=_problem(reason))
        return replace(found, site=site, history=history, wider=wider)

    def forecast(self) -> list[StartForecast]:
        """Return when each starts, or why that is not forecast."""
        from helios.app.start_forecast import forecast_starts  # noqa: PLC0415 - it compiles

        found = self._forecast_or_why(
            lambda site: forecast_starts(self.snapshot, site, self.history, self.jobs, wider=self.wider)
        )
        return [found] * len(self.jobs) if isinstance(found, StartForecast) else found

    def forecast_one(self, job: pd.Series[Any], *, task: str) -> StartForecast:
        """Return when one of them starts, and with what changes earlier."""
        from helios.app.start_forecast import forecast_start  # noqa: PLC0415 - it compiles

        return self._forecast_or_why(
            lambda site: forecast_start(self.snapshot, site, self.history, job, task=task, wider=self.wider)
        )

    def _forecast_or_why(self, forecast: Callable[[SlurmSite], T]) -> T | StartForecast:
        problem = self.problem
        if self.site is not None:
            try:
                return forecast(self.site)
            except Exception as reason:  # as above
                problem = _problem(reason)
        return StartForecast(taken_at=self.snapshot.taken_at, horizon_at=self.snapshot.taken_at, problem=problem)


def _problem(reason: Exception) -> str:
    if isinstance(reason, HeliosError):
        return reason.message[:1].lower() + reason.message[1:].rstrip(".")
    return f"it failed ({type(reason).__name__}: {reason})"


def starts_of(
    cycles: JobController, snapshot: Snapshot, jobs: pd.DataFrame, *, lock: AbstractContextManager[Any] = NO_LOCK
) -> list[StartForecast]:
    """Return when some pending jobs start, or why that is not forecast.

    The estimates are kept.

    Parameters
    ----------
    snapshot : Snapshot
        With predictions.
    jobs : DataFrame
        Rows of ``snapshot.pending``.
    lock : context manager
        As of :func:`explain`.
    """
    with lock:
        waiting = WaitingJobs.read(cycles, snapshot, jobs)
    starts = waiting.forecast()
    keep_estimates(cycles.settings.database.url, cycles.site.name, jobs, starts)
    return starts


def start_of_like(
    cycles: JobController, snapshot: Snapshot, last: pd.Series[Any], *, lock: AbstractContextManager[Any] = NO_LOCK
) -> StartForecast:
    """Return when a job like another one would start now.

    Parameters
    ----------
    snapshot : Snapshot
        With predictions.
    last : Series
        Row of ``JOBS`` or ``QUEUE`` with what the job asks for.
    lock : context manager
        As of :func:`explain`.
    """
    now = pd.Timestamp(snapshot.taken_at)
    asked = {name: last[name] for name in LIKE if name in last.index}
    new = {"job_id": NEW_JOB, "restart": 0, "tasks": 1, "state": "PENDING", "submitted_at": now, "eligible_at": now}
    row = QUEUE.conform(pd.DataFrame([asked | new]))
    with lock:
        try:
            predicted = cycles.predictions.knowledge.predict(row, now=snapshot.taken_at, running=snapshot.running)
            row = row.assign(**predicted)
        except HeliosError:
            pass  # its time limit counts
        queue = replace(snapshot, pending=QUEUE.conform(pd.concat([snapshot.pending, row], ignore_index=True)))
        waiting = WaitingJobs.read(cycles, queue, queue.pending.tail(1))
    return waiting.forecast()[0]


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
    *,
    compared_with: pd.DataFrame,
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
        compared_with=compared_with,
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
    if cycles := len(memory.slept.get(node, ())):
        yield f"Helios put it to sleep {'once' if cycles == 1 else f'{cycles} times'} in the last 24 hours."
    else:
        yield "Helios did not put it to sleep in the last 24 hours."


def _applied_changes(cycles: NodeController) -> pd.DataFrame:
    with Warehouse.open(cycles.settings.database.url) as warehouse:
        ledger = warehouse.ledger(cycles.site.name, domain=Domain.NODES)
        return read_or_empty(ledger.applied_changes, APPLIED_NODE_CHANGES)
