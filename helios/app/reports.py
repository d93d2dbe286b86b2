"""Reports for administrators, from data in the warehouse.

Each one reads its frames and passes them to the pure functions in :mod:`helios.report.admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.clusters import LAST_WEEKS, NOT_LIVE, choose_cluster, complete_part, is_live
from helios.config import SlurmSettings
from helios.dates import local_day, parse_date
from helios.errors import JobLargerThanPartition, PartitionUnknown, UsageError
from helios.model import GPU_USE, JOB_USE, JOBS, size_class
from helios.report.admin.decisions import (
    MOVED_S,
    SHADOW_LIMITS,
    ShadowDay,
    ShadowWaits,
    decided_urgencies,
    decision_rows,
    moved_jobs,
    replayed_urgencies,
    service_days,
)
from helios.report.admin.predictions import OF_JOBS, prediction_accuracy
from helios.report.admin.sacct_format import ReportTable
from helios.report.admin.usage import queue_at, queue_over_time, usage_by, usage_of_sums, wait_s
from helios.units import best_unit, in_number
from helios.warehouse import JobFilter, Warehouse
from helios.warehouse.revisions import LIVE_SOURCE
from helios.warehouse.use import Group, Use, UseQuery

if TYPE_CHECKING:
    from helios.app.replay_cluster import ReplayCluster

Seconds = NDArray[np.int64]

DEFAULT_LENGTH = timedelta(days=7)
"""Length of a live cluster's window without a start."""
LONGEST_HELD = timedelta(days=60)
"""Time before a window from which jobs are read. A job submitted earlier that is still in the window is missed."""
CLOCK_SKEW = timedelta(days=1)
"""Time after a window up to which jobs are read: a recorded start may be before the submission."""
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
WARM_UP = timedelta(days=3)
"""Time before the day that is replayed too, so that the day's jobs do not start on an empty cluster."""
_COLUMNS = [
    name
    for name in JOBS.names
    if name not in {"name", "group", "exit_code", "het_job_id", "het_job_offset", "tres_requested", "tres_allocated"}
    and name not in {"node_list", "memory_mib", "gpu_type", "qos"}
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """Query of a report, as typed.

    Attributes
    ----------
    url : str
        URL of the warehouse.
    now : datetime
        Current time, aware.
    cluster : str, optional
        None for the only one in the warehouse.
    start, end : str, optional
        As :mod:`helios.dates` reads them. Defaults are ``length`` before the end, and ``now``.
    length : timedelta
        Length of a live cluster's window without a start.
    users, accounts, partitions : collections of str
        Only jobs of these; empty for all.
    hides_others : bool
        Whether a report says nothing that depends on other users' jobs, such as the span of the history.
    slurm : SlurmSettings
        Where Slurm's commands are, if they are here.
    exempt : mapping of str to collection of str
        Users, accounts and partitions of whose GPUs advice says nothing, by column of the jobs.
    """

    url: str
    now: datetime
    cluster: str | None = None
    start: str | None = None
    end: str | None = None
    length: timedelta = DEFAULT_LENGTH
    users: Collection[str] = ()
    accounts: Collection[str] = ()
    partitions: Collection[str] = ()
    hides_others: bool = False
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    exempt: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def only(self) -> dict[str, Collection[str]]:
        """Texts that the jobs must have, by column."""
        return {"user": self.users, "account": self.accounts, "partition": self.partitions}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobUse:
    """What jobs used.

    Attributes
    ----------
    runs, gpus : DataFrame
        Columns of ``JOB_USE`` and of ``GPU_USE``.
    """

    runs: pd.DataFrame = field(default_factory=JOB_USE.empty)
    gpus: pd.DataFrame = field(default_factory=GPU_USE.empty)


@contextmanager
def open_context(query: ReportQuery) -> Iterator[ReportContext]:
    """Open the warehouse and resolve the cluster and window of a query.

    Of a history without a live Slurm the default is its last weeks, and its end is ``now``.

    Raises
    ------
    UsageError
        The window ends before it begins.
    """
    with Warehouse.open(query.url) as warehouse:
        row = choose_cluster(warehouse, query.cluster)
        name, timezone = str(row["name"]), str(row["timezone"] or "UTC")
        live = is_live(warehouse, name, slurm=query.slurm, now=query.now)
        complete = None if live else complete_part(warehouse, name)
        now = query.now if complete is None else complete[1]
        until = parse_date(query.end or "now", now=now, timezone=timezone, is_end=True)
        if query.start is not None:
            since = parse_date(query.start, now=now, timezone=timezone)
        elif complete is None:
            since = until - query.length
        else:
            since = max(complete[0], until - LAST_WEEKS) if until == now else until - LAST_WEEKS
        if since >= until:
            raise UsageError(
                f"The window begins at {since:%Y-%m-%d %H:%M} and ends at {until:%Y-%m-%d %H:%M} UTC.",
                hint="Give a start (-S) before the end (-E).",
            )
        unknown = pd.Timestamp("NaT")
        yield ReportContext(
            warehouse=warehouse,
            query=replace(query, now=now),
            cluster=name,
            live=live,
            timezone=timezone,
            since=since,
            until=until,
            spans=(unknown, unknown) if query.hides_others else (row["first_submitted_at"], row["last_submitted_at"]),
            complete_from=None if complete is None or query.hides_others else complete[0],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContext:
    """One cluster of an open warehouse, with the query and its window.

    ``query.now`` is the end of a history that is not ``live``. ``complete_from`` is where its complete part begins.
    """

    warehouse: Warehouse
    query: ReportQuery
    cluster: str
    live: bool
    timezone: str
    since: datetime
    until: datetime
    spans: tuple[pd.Timestamp, pd.Timestamp]
    complete_from: datetime | None
    _looked_up: dict[str, datetime | None] = field(default_factory=dict, repr=False)

    def known_from(self) -> datetime | None:
        """Return from when on the jobs of the query are recorded.

        Of a history that is not live it is the begin of its complete part, else the first submission or reading. Where
        others' jobs are hidden it is the first submission of the query's users. None where there is none.
        """
        if self.complete_from is not None:
            return self.complete_from
        if "known_from" not in self._looked_up:
            self._looked_up["known_from"] = self._first_known()
        return self._looked_up["known_from"]

    def _first_known(self) -> datetime | None:
        first = self.spans[0]
        if self.query.hides_others:
            own = JobFilter(since=EARLIEST, until=self.query.now, only={"user": self.query.users})
            name = "submitted_at"
            found = self.warehouse.list_jobs(self.cluster, own, columns=[name], sort=name, first=0, most=1)
            first = next((jobs[name].min() for jobs in found), first)
        moments = [moment for moment in (first, self._readings()["started_at"].min()) if pd.notna(moment)]
        return min(moments).to_pydatetime() if moments else None

    def known_steps(self, begins_s: Seconds, ends_s: Seconds) -> NDArray[np.bool_]:
        """Return in which steps the jobs of the query are recorded.

        Nothing is known before :meth:`known_from`, of what is to come, and where no reading of a live accounting was.

        Parameters
        ----------
        begins_s, ends_s : int64 array of shape (n_steps,)
            s since the epoch.
        """
        known: NDArray[np.bool_] = begins_s < int(self.query.now.timestamp())
        if (first := self.known_from()) is not None:
            known &= ends_s > first.timestamp()
        read = self._readings()
        if read.empty:
            return known
        met = np.zeros(len(known), dtype=np.bool_)
        for begin, end in zip(read["started_at"], read["ended_at"], strict=True):
            met |= (begins_s < end.timestamp()) & (ends_s > begin.timestamp())
        # What was loaded from files before the first reading has no record of its span.
        known &= met | (begins_s < read["started_at"].min().timestamp())
        return known

    def _readings(self) -> pd.DataFrame:
        """Return the readings of a live accounting, none where it is a history alone."""
        read = self.warehouse.coverage(self.cluster)
        return read[(read["source"] == LIVE_SOURCE) & self.live]

    def jobs(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        *,
        unended_at: datetime | None = None,
        columns: Sequence[str] = _COLUMNS,
    ) -> pd.DataFrame:
        """Return the jobs of the query that were submitted in [since, until).

        By default that is the window. With ``unended_at``, only those that had not ended before that time.
        Only ``columns``, by default those that reports use, have values.
        """
        return self._select(since or self.since, until or self.until, unended_at, columns)

    def count_jobs(self) -> int:
        """Return the number of jobs of the query that were submitted in the window."""
        wanted = JobFilter(since=self.since, until=self.until, only=self.query.only)
        return self.warehouse.count_jobs(self.cluster, wanted)

    def jobs_of_window(self) -> pd.DataFrame:
        """Return the jobs submitted or running in the window.

        A few others are among them: those submitted up to ``CLOCK_SKEW`` after it.
        """
        return self._select(None, self.until + CLOCK_SKEW, self.since, _COLUMNS)

    def _select(
        self, since: datetime | None, until: datetime, unended_at: datetime | None, columns: Sequence[str]
    ) -> pd.DataFrame:
        jobs = self.warehouse.jobs(
            self.cluster, since=since, until=until, columns=columns, unended_at=unended_at, only=self.query.only
        )
        return JOBS.conform(jobs)

    def use(self, by: Sequence[Group], edges: Sequence[datetime], *, all_distributions: bool = False) -> list[Use]:
        """Return the use by the jobs of the query, for each way to group."""
        question = UseQuery(
            by=by, edges=edges, now=self.query.now, chosen=self.query.only, all_distributions=all_distributions
        )
        return self.warehouse.use(self.cluster, question)

    def job_use(self, jobs: pd.DataFrame) -> JobUse:
        """Return what some of the jobs of the query used."""
        if jobs.empty:
            return JobUse()
        first, last = (moment.to_pydatetime() for moment in jobs["submitted_at"].agg(["min", "max"]))
        until = last + timedelta(seconds=1)
        runs, gpus = (
            self.warehouse.job_use(self.cluster, since=first, until=until, only=self.query.only, by_gpu=by_gpu)
            for by_gpu in (False, True)
        )
        return JobUse(runs=runs, gpus=gpus)

    def has_whole_day(self) -> bool:
        """Return whether the window has a day from midnight to midnight."""
        _, midnight = local_day(self.since - timedelta(microseconds=1), timezone=self.timezone)
        return local_day(midnight, timezone=self.timezone)[1] <= self.until

    def predictions(self) -> pd.DataFrame:
        """Return the predictions for jobs submitted in the window."""
        return self.warehouse.predictions(self.cluster, since=self.since, until=self.until)

    def decisions(self) -> pd.DataFrame:
        """Return the audit entries of the window."""
        return self.warehouse.decisions(self.cluster, since=self.since, until=self.until)

    def with_coverage(self, answer: ReportTable) -> ReportTable:
        """Return the report with what is unknown of its window."""
        first, last = self.spans
        empty = answer.empty
        if answer.rows.empty and pd.notna(first):
            empty += f" The history spans {self.format_time(first)} to {self.format_time(last)}."
        notes = () if answer.rows.empty else tuple(self._unknown_parts())
        return replace(answer, empty=empty, notes=(*answer.notes, *notes))

    def _unknown_parts(self) -> Iterator[str]:
        """Yield which part of the window is not recorded."""
        begin, now = self.known_from(), self.query.now
        if begin is not None and self.since < begin:
            yield f"The record is complete from {self.format_time(begin)} on: what was before is not known."
        if self.until > now and not self.live:
            yield f"The record ends at {self.format_time(now)}."

    @property
    def label(self) -> str:
        """Name of the cluster, with a remark where it is not live."""
        return self.cluster if self.live else f"{self.cluster} ({NOT_LIVE})"

    def title(self, subject: str) -> str:
        """Return the heading of a report over the window."""
        since, until = self.format_time(self.since), self.format_time(self.until)
        return f"{self.label}: {subject}, {since} to {until} ({self.timezone})"

    def format_time(self, moment: datetime) -> str:
        """Return a time as text in the cluster's time zone."""
        return f"{pd.Timestamp(moment).tz_convert(self.timezone):%Y-%m-%d %H:%M}"

    def day(self, day: str) -> tuple[datetime, datetime]:
        """Return begin and end of a day.

        Today ends now, because the waits until midnight are not known yet.
        """
        now = self.query.now
        begin, end = local_day(parse_date(day, now=now, timezone=self.timezone), timezone=self.timezone)
        return begin, min(end, now) if self.live and begin < now else end

    def shadow(
        self,
        begin: datetime,
        end: datetime,
        *,
        nodes: Mapping[str, int] | None,
        gpus_per_node: int,
        default_time_limit_s: int,
    ) -> ShadowDay:
        """Return the effect that a day's shadow decisions would have had.

        Where ``nodes`` is None, the nodes known to the warehouse are used.
        """
        nodes, per_node = known_nodes(self.warehouse, self.cluster) if nodes is None else (nodes, None)
        return shadow_day(
            self.jobs(begin - WARM_UP, end),
            self.warehouse.decisions(self.cluster, since=begin, until=end),
            begin=begin,
            end=end,
            nodes=nodes,
            gpus_per_node=per_node or gpus_per_node,
            default_time_limit_s=default_time_limit_s,
            timezone=self.timezone,
        )


def known_nodes(warehouse: Warehouse, cluster: str) -> tuple[dict[str, int] | None, int | None]:
    """Return the GPU nodes by partition, and GPUs per node.

    Both are None where no node with GPUs is known.
    """
    nodes = warehouse.nodes(cluster)
    with_gpus = nodes[(nodes["gpus"] > 0) & nodes["partition"].notna()]
    if with_gpus.empty:
        return None, None
    counts = with_gpus.groupby("partition", observed=True)["name"].nunique()
    return {str(name): int(count) for name, count in counts.items()}, int(with_gpus["gpus"].mode().iloc[0])


def usage_report(
    query: ReportQuery, *, group: Literal["user", "account", "partition"], with_predictions: bool = False
) -> ReportTable:
    """Report hours, jobs, waits and failures by user, account or partition.

    Hours are those held in the window; all else is of the jobs submitted in it. Whole days come from the sums that the
    warehouse keeps. Only ``with_predictions``, the fields of predictions, need every job of the window.
    """
    title = f"Hours held and jobs submitted by {group}"
    with open_context(query) as context:
        if not with_predictions and context.has_whole_day():
            (use,) = context.use((group,), (context.since, context.until), all_distributions=True)
            return context.with_coverage(
                usage_of_sums(group, use, title=context.title(title), timezone=context.timezone)
            )
        return context.with_coverage(
            usage_by(
                group,
                context.jobs_of_window(),
                predictions=context.predictions(),
                since=context.since,
                until=context.until,
                now=context.query.now,
                title=context.title(title),
                timezone=context.timezone,
            )
        )


def queue_report(query: ReportQuery) -> ReportTable:
    """Report the queue at the window's end.

    If a start is given, report the queue over the window.
    """
    with open_context(query) as context:
        until, timezone = context.until, context.timezone
        if query.start is None:
            jobs = context.jobs(until - LONGEST_HELD, unended_at=until)
            predictions = context.warehouse.predictions_of(context.cluster, jobs["submitted_at"])
            title = f"{context.label}: the queue at {context.format_time(until)} ({timezone})"
            table = queue_at(
                jobs,
                predictions=predictions,
                at=until,
                title=title,
                timezone=timezone,
                last_submitted_at=context.spans[1],
            )
            return context.with_coverage(table)
        jobs, title = context.jobs(context.since - LONGEST_HELD), context.title("The queue")
        cuts = [moment for moment in (context.known_from(), context.query.now) if moment is not None]
        table = queue_over_time(
            jobs, since=context.since, until=until, title=title, timezone=timezone, cuts=cuts, known=context.known_steps
        )
        return context.with_coverage(table)


def prediction_report(query: ReportQuery, *, by: str | None = None, looks_back: timedelta | None = None) -> ReportTable:
    """Report the errors of predictions for jobs submitted in the window.

    It also has the errors of a simple predictor, which is the user's last ended run.

    Parameters
    ----------
    looks_back : timedelta, optional
        Longest time before the window at which that run was submitted. None for any time.
    """
    with open_context(query) as context:
        predictions, submitted = context.predictions(), context.count_jobs()
        jobs = past = JOBS.empty()
        if len(predictions):
            jobs = context.jobs(columns=OF_JOBS)
            past = context.warehouse.jobs(
                context.cluster,
                since=None if looks_back is None else context.since - looks_back,
                until=context.until,
                columns=["user", "ended_at", "run_time_s"],
            )
        return context.with_coverage(
            prediction_accuracy(
                jobs,
                predictions=predictions,
                past=past,
                submitted=submitted,
                title=context.title("Predicted and true run times"),
                by=by,
                timezone=context.timezone,
            )
        )


def decision_report(
    query: ReportQuery,
    *,
    services: Collection[str] = (),
    job_ids: Collection[str] = (),
    results: Collection[str] = (),
) -> ReportTable:
    """Report the audit entries of the window.

    Users, accounts and partitions select the jobs that entries are about.
    """
    with open_context(query) as context:
        decisions = context.decisions()
        if query.users or query.accounts or query.partitions:
            jobs = context.jobs(context.since - LONGEST_HELD)
            ids = {*jobs["job_id"].dropna(), *jobs["array_job_id"].dropna(), *query.partitions}
            decisions = decisions[decisions["target"].isin(list(ids))]
        return decision_rows(
            decisions,
            title=context.title("Decisions"),
            services=services,
            targets=job_ids,
            results=results,
            timezone=context.timezone,
        )


def service_report(query: ReportQuery, *, services: Collection[str] = ()) -> ReportTable:
    """Report changes by day, service and result, and when Helios was suspended."""
    with open_context(query) as context:
        return service_days(
            context.decisions(),
            title=context.title("Services"),
            cycles=context.warehouse.cycles(context.cluster, since=context.since, until=context.until),
            services=services,
            timezone=context.timezone,
        )


def shadow_report(
    query: ReportQuery,
    *,
    day: str,
    nodes: Mapping[str, int] | None = None,
    gpus_per_node: int = 8,
    default_time_limit_s: int = 7 * 86_400,
) -> tuple[str, ShadowDay]:
    """Report the effect that a day's shadow decisions would have had.

    Returns the cluster's name and the report. ``day`` is written as for sacct. Without ``nodes`` those known to the
    warehouse are used; where it knows none, the cluster is as large as what jobs held at once.
    """
    with open_context(query) as context:
        begin, end = context.day(day)
        return context.cluster, context.shadow(
            begin, end, nodes=nodes, gpus_per_node=gpus_per_node, default_time_limit_s=default_time_limit_s
        )


def shadow_day(
    jobs: pd.DataFrame,
    decisions: pd.DataFrame,
    *,
    begin: datetime,
    end: datetime,
    nodes: Mapping[str, int] | None,
    gpus_per_node: int,
    default_time_limit_s: int,
    timezone: str = "UTC",
) -> ShadowDay:
    """Replay a day without and with its shadow decisions.

    The baseline is FIFO with EASY backfill by time limits.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order: those of the day and of the warm-up before it.
    decisions : DataFrame
        Columns of ``DECISIONS`` of the day, oldest first.
    begin, end : datetime
        The day, aware.
    nodes : mapping, optional
        Nodes of each partition. By default as many as jobs held at once.
    default_time_limit_s : int
        For jobs that have none.
    """
    urgencies = decided_urgencies(decisions)
    machine, notes = _machine(jobs, nodes, gpus_per_node)
    of_day = jobs[_within(jobs, begin, end)]
    recorded = wait_s(of_day)
    known = ~np.isnan(recorded)
    sizes = of_day["gpus" if machine is None else machine.resource].to_numpy(dtype=np.float64)
    day = ShadowDay(
        begin=begin,
        timezone=timezone,
        decided=len(urgencies),
        recorded=ShadowWaits.of(recorded[known], size_class(sizes[known], gpus_per_node)) if known.any() else None,
        notes=tuple(notes),
    )
    if machine is None or not (is_counted := _within(machine.jobs, begin, end)).any():
        return day
    from helios.simulate import ORDERS  # noqa: PLC0415 - it compiles

    urgency = replayed_urgencies(machine.jobs, urgencies)

    def by_urgency(**_: Any) -> NDArray[np.float64]:
        return -urgency  # the replay calls it once, for all jobs

    without = machine.replay(ORDERS["fifo"], default_limit_s=default_time_limit_s).wait_s[is_counted]
    with_them = without
    if urgencies:
        with_them = machine.replay(by_urgency, default_limit_s=default_time_limit_s).wait_s[is_counted]
    classes = size_class(machine.size[is_counted], gpus_per_node)
    return replace(
        day,
        earlier=int(np.count_nonzero(with_them - without < -MOVED_S)),
        later=int(np.count_nonzero(with_them - without > MOVED_S)),
        without=ShadowWaits.of(without, classes),
        with_decisions=ShadowWaits.of(with_them, classes),
        moved=moved_jobs(
            machine.jobs[is_counted],
            size=machine.size[is_counted],
            urgency=urgency[is_counted],
            wait_s=without,
            would_wait_s=with_them,
        ),
        notes=(*day.notes, *SHADOW_LIMITS),
    )


def _machine(
    jobs: pd.DataFrame, nodes: Mapping[str, int] | None, gpus_per_node: int
) -> tuple[ReplayCluster | None, list[str]]:
    """Return the replayable jobs on their cluster, and notes.

    None where no job can be replayed.
    """
    from helios.app.replay_cluster import replay_cluster_for  # noqa: PLC0415 - as above
    from helios.metrics.capacity import choose_resource  # noqa: PLC0415 - as above

    resource, resource_notes = choose_resource(jobs)
    replayable = jobs[(jobs["run_time_s"].notna() & (jobs[resource] > 0)).to_numpy()]
    notes = list(resource_notes)
    if left_out := len(jobs) - len(replayable):
        reasons = f"hold no {best_unit(resource)}, or an unknown number, or have not ended"
        notes.append(in_number(left_out, f"jobs that {reasons} were not replayed."))
    if replayable.empty:
        return None, notes
    try:
        machine = replay_cluster_for(
            replayable, resource=resource, nodes=nodes, gpus_per_node=gpus_per_node, skip_oversized=True
        )
    except (PartitionUnknown, JobLargerThanPartition) as reason:
        return None, [*notes, f"The day was not replayed: {reason.message}"]
    return machine, [*notes, *machine.notes]


def _within(jobs: pd.DataFrame, begin: datetime, end: datetime) -> NDArray[np.bool_]:
    submitted = jobs["submitted_at"]
    is_within: NDArray[np.bool_] = ((submitted >= pd.Timestamp(begin)) & (submitted < pd.Timestamp(end))).to_numpy()
    return is_within
