"""Why a job waits or waited, and when it starts.

A live job is explained by its prediction, its place in the queue, what Helios did, and its place without Helios. A
replay adds what held it there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.markup import escape

from helios.model import GPU_USE, JOB_USE, JobState, Snapshot
from helios.model.frames import plain
from helios.report.admin.usage import held_s, is_in, running_at
from helios.report.alike import AlikeJobs
from helios.report.job_life import JobEvent, decision_words, estimate_lines, job_events
from helios.report.job_use import predicted_line, use_lines
from helios.report.prediction import PredictionSteps
from helios.report.tables import plain_table
from helios.units import HOUR_S, count_in_words, duration, duration_in_words

# Slurm's reasons why a job is pending (slurm.h, enum job_state_reason; squeue(1), JOB REASON CODES), for a user.
REASONS = {
    "None": "Slurm has not considered it yet",
    "Priority": "other jobs come before it",
    "Resources": "Slurm tried to start it, and the nodes that it needs are not free",
    "Dependency": "it waits for another job that it depends on",
    "DependencyNeverSatisfied": "the job it depends on failed: it will never start; cancel it",
    "BeginTime": "its begin time has not come",
    "JobHeldUser": "its user holds it; release it with scontrol release",
    "JobHeldAdmin": "an admin holds it",
    "QOSMaxJobsPerUserLimit": "its user already runs as many jobs as the QOS allows",
    "QOSMaxGRESPerUser": "its user already holds as many GPUs as the QOS allows",
    "QOSMaxCpuPerUserLimit": "its user already holds as many CPUs as the QOS allows",
    "AssocGrpGRES": "its account already holds as many GPUs as it may",
    "AssocGrpCpuLimit": "its account already holds as many CPUs as it may",
    "AssocMaxJobsLimit": "its account already runs as many jobs as it may",
    "PartitionTimeLimit": "its time limit exceeds the partition's: it will never start; shorten it",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows: it will never start",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "Licenses": "it waits for a licence",
    "JobArrayTaskLimit": "as many tasks of its array run as it allows itself",
}
LATER = "later than"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNTIMED = frozenset(set(JobState) - {JobState.PENDING, JobState.CANCELLED, JobState.REVOKED, JobState.DEADLINE})
"""States of jobs that have run, so that a run without times is one of unknown length."""
NAMED_BLOCKERS = 3
"""Jobs that a row names, those that blocked it longest."""
PLANNED_BY = {
    "limit": " (its time limit)",
    "predicted": " (predicted)",
    "expected": " (expected)",
    "true": " (the truth)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRuns:
    """Runs of one job, and their sum.

    Attributes
    ----------
    runs : DataFrame
        ``number``, ``submitted_at``, ``eligible_at``, ``started_at``, ``ended_at``, ``state``, ``nodes``,
        ``node_list``, ``run_time_s``, ``gpu_hours``, ``cpu_hours``, NaN where unknown, and ``lost``: whether the job
        was started again after it. A run that goes on counts until now.
    total : dict of str to float
        ``run_time_s``, ``gpu_hours`` and ``cpu_hours`` of all runs, and ``lost_gpu_hours`` and ``lost_cpu_hours`` of
        those that are lost. Runs where it is unknown are left out.
    unknown : int
        Runs whose hours are unknown, or that the history lacks.
    """

    runs: pd.DataFrame
    total: dict[str, float]
    unknown: int

    @classmethod
    def of(cls, jobs: pd.DataFrame, *, now: datetime) -> JobRuns:
        """Return the runs in rows of ``JOBS``, in their order.

        All rows are of one job.
        """
        held, worked = (seconds / HOUR_S for seconds in held_s(jobs, since=EPOCH, until=now, now=now))
        goes_on = running_at(jobs, now)
        never_ran = jobs["started_at"].isna() & jobs["run_time_s"].isna() & ~is_in(jobs, UNTIMED)
        timed = goes_on | (jobs["ended_at"].notna() & jobs["started_at"].notna()) | jobs["run_time_s"].notna()
        known = timed | never_ran
        runs = pd.DataFrame(
            {
                "number": jobs["restart"],
                **{name: jobs[name] for name in ("submitted_at", "eligible_at", "started_at", "ended_at", "state")},
                **{name: jobs[name] for name in ("nodes", "node_list")},
                "run_time_s": jobs["run_time_s"].where(~goes_on, worked * HOUR_S),
                "gpu_hours": (jobs["gpus"] * held).where(known),
                "cpu_hours": (jobs["cpus"] * worked).where(known),
                "lost": (jobs["state"] != JobState.RESIZING) & (np.arange(len(jobs)) < len(jobs) - 1),
            }
        )
        names = ("run_time_s", "gpu_hours", "cpu_hours")
        total = {name: _known_sum(runs[name]) for name in names}
        total |= {f"lost_{name}": _known_sum(runs.loc[runs["lost"], name]) for name in names[1:]}
        missing = max(int(runs["number"].max()) + 1 - len(runs), 0)
        unknown = int((~known).sum()) + missing
        return cls(runs=runs, total=total, unknown=unknown)

    def lines(self) -> Iterator[str]:
        """Yield the runs as sentences, where there are several."""
        last = int(self.runs["number"].max())
        if not last:
            return
        total = self.total
        at_least = f", at least, since {self.unknown} of its runs are not known" if self.unknown else ""
        run_s = total["run_time_s"]  # NaN of a job that was requeued a moment ago, and whose runs were not read yet
        in_all = "for an unknown time" if np.isnan(run_s) else f"{duration_in_words(run_s)} in all"
        yield (
            f"It was run {last + 1} times, {in_all}: {_hours(total)}{at_least}. "
            f"Lost to requeues: {_hours(total, 'lost_')}, in runs after which it began again."
        )
        for run in self.runs.to_dict("records"):
            yield f"Run {run['number']}: {', '.join(_run_words(run))}."


def _known_sum(values: pd.Series[Any]) -> float:
    """Return the sum of the known values, NaN if none is."""
    return float(values.sum(min_count=min(1, len(values))))


def _hours(amounts: Mapping[Any, Any], prefix: str = "") -> str:
    """Write GPU and CPU hours, those that are known."""
    known = {unit: amounts[f"{prefix}{unit.lower()}_hours"] for unit in ("GPU", "CPU")}
    return " and ".join(f"{'unknown' if np.isnan(hours) else f'{hours:,.2f}'} {u} hours" for u, hours in known.items())


def _run_words(run: Mapping[Hashable, Any]) -> Iterator[str]:
    """Yield what is known of a run."""
    for word in ("submitted", "started", "ended"):
        moment = run[f"{word}_at"]
        yield f"not {word}" if pd.isna(moment) else f"{word} {moment:%Y-%m-%d %H:%M:%S} UTC"
    yield str(run["state"]) if isinstance(run["state"], str) else "state unknown"
    if isinstance(run["node_list"], str):
        yield f"on {run['node_list']}"
    if not np.isnan(run["run_time_s"]):
        yield f"ran {duration_in_words(run['run_time_s'])}"
    yield _hours(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation:
    """Everything that Helios knows about one job.

    Attributes
    ----------
    job_id, state, user, account, partition : str
        The job; ``state`` is a JobState.
    waited_s : float
        Time since it could have started, or from then to its start. NaN where unknown.
    gpus, cpus : float
        GPUs and CPUs of a task. NaN where unknown.
    tasks : int
        Pending tasks of an array (else 1).
    time_limit_s : float
        inf for unlimited. NaN where unknown.
    p10_s, p50_s, p90_s : float
        Predicted run time. NaN for no prediction.
    source : str
        Name of the predictor.
    run_time_s : float
        How long it really ran. NaN where it has not ended.
    remaining_s : tuple of float, optional
        p10, p50 and p90 of what remains of its run. None where it does not run, or nothing is predicted.
    reason : str
        Why the cluster has not started it, as Slurm calls it.
    planned_start_at : datetime, optional
        Start that the cluster itself plans.
    start : StartForecast, optional
        When it starts, by simulations of the queue. None where it does not wait.
    rests_on : str
        Sentence about the past jobs behind the prediction. Empty where it does not wait, or nothing is known.
    rank, rank_without, queued : int
        Place among the pending jobs of its partition; the place it would have if Helios had set nothing; number of
        these jobs. 0 where it is not pending.
    excluded_reason : str
        Why Helios leaves it alone. Empty where it may act.
    stands : tuple of str
        What Helios has set on it, as the cluster writes it.
    would_stand : tuple of str
        What its shadows would have set.
    decisions : DataFrame
        Audit entries of this job, oldest first, columns of ``DECISIONS``.
    remarks : tuple of str
        Remarks on the whole cluster, such as a pause, the mode of a service, or an old history.
    target : tuple of str
        Where it stands with its target, and what became of requests to yield.
    held_by : tuple of str
        Sentences on the other jobs of its partition while it waited, of a job that has started.
    runs : JobRuns, optional
        All runs of the job.
    predictions : DataFrame
        Predictions of its run time as they were made, oldest first: ``PREDICTIONS`` and ``made_at``.
    estimates : DataFrame
        Estimates of its start as they were made, oldest first: ``START_ESTIMATES``, ``started_at``, ``ended_at``.
    alike : AlikeJobs, optional
        Where it lies among alike jobs. None where its user is not known.
    use, gpu_use : DataFrame
        What its runs used, columns of ``JOB_USE`` and ``GPU_USE``.
    predicted_use : dict, optional
        What it will likely use, as its first 15 minutes tell. None where it does not run, or these are not known.
    replay : ReplayedWait, optional
        What held it in a replay of the history.
    steps : PredictionSteps, optional
        How its prediction came about.
    """

    job_id: str
    state: str
    user: str
    partition: str
    waited_s: float
    gpus: float
    tasks: int
    time_limit_s: float
    account: str = ""
    cpus: float = float("nan")
    p10_s: float = float("nan")
    p50_s: float = float("nan")
    p90_s: float = float("nan")
    source: str = ""
    run_time_s: float = float("nan")
    remaining_s: tuple[float, float, float] | None = None
    reason: str = ""
    planned_start_at: datetime | None = None
    start: StartForecast | None = None
    rests_on: str = ""
    rank: int = 0
    rank_without: int = 0
    queued: int = 0
    excluded_reason: str = ""
    stands: tuple[str, ...] = ()
    would_stand: tuple[str, ...] = ()
    decisions: pd.DataFrame = field(default_factory=pd.DataFrame)
    remarks: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    held_by: tuple[str, ...] = ()
    runs: JobRuns | None = None
    predictions: pd.DataFrame = field(default_factory=pd.DataFrame)
    estimates: pd.DataFrame = field(default_factory=pd.DataFrame)
    alike: AlikeJobs | None = None
    use: pd.DataFrame = field(default_factory=JOB_USE.empty)
    gpu_use: pd.DataFrame = field(default_factory=GPU_USE.empty)
    predicted_use: Mapping[str, Any] | None = None
    replay: ReplayedWait | None = None
    steps: PredictionSteps | None = None

    def with_steps(self, steps: PredictionSteps) -> JobExplanation:
        """Return the explanation with a prediction that was made for it."""
        p10_s, p50_s, p90_s = steps.explained.quantiles_s
        return replace(self, p10_s=p10_s, p50_s=p50_s, p90_s=p90_s, source=steps.explained.source, steps=steps)

    def to_json(self) -> dict[str, Any]:
        """Return plain values.

        Unknown and unlimited numbers are null.
        """
        values: dict[str, Any] = plain(self)
        return values | {"events": plain(self.events())}

    def events(self) -> list[JobEvent]:
        """Return the events of its life, oldest first."""
        runs = pd.DataFrame() if self.runs is None else self.runs.runs
        return job_events(runs, self.predictions, self.decisions, self.estimates)

    def lines(self) -> list[str]:
        """Return the explanation as sentences."""
        lines = [self._headline(), *self._start(), self._prediction(), self._remaining(), self.rests_on, *self._place()]
        if self.steps:
            place = lines.index(self._prediction()) + 1
            lines[place:place] = self.steps.lines()
        runs = self.runs.lines() if self.runs else ()
        replay = self.replay.lines() if self.replay else ()
        alike = self.alike.lines() if self.alike else ()
        more = (
            *estimate_lines(self.estimates),
            *self.held_by,
            *replay,
            *alike,
            *runs,
            *self.use_lines(),
            *self.target,
            *self._activity(),
            *self.remarks,
        )
        return [line for line in (*lines, *more) if line]

    def use_lines(self) -> list[str]:
        """Return what it used as sentences, with who measured it."""
        runs = pd.DataFrame({"number": [], "run_time_s": []}) if self.runs is None else self.runs.runs
        predicted = [predicted_line(self.predicted_use)] if self.predicted_use else []
        return [*use_lines(self.use, self.gpu_use, runs, cpus=self.cpus), *predicted]

    def parts(self) -> list[RenderableType]:
        """Return the sentences for a terminal, with the tables below the first."""
        head, *rest = map(escape, self.lines())
        shown = [table for part in (self.replay, self.steps) if part for table in part.tables()]
        tables = [part for table in shown for part in (table, "")]
        return [head, "", *tables, *rest] if tables else [head, *rest]

    def _headline(self) -> str:
        whose = f" of {self.user}" if self.user else ""
        tasks = f"{self.tasks} tasks pending" if self.tasks > 1 else ""
        waited = "" if np.isnan(self.waited_s) else f"waited {duration_in_words(self.waited_s)}"
        size = count_in_words(self.gpus, "GPU")
        if not self.gpus > 0 and self.cpus > 0:
            size = count_in_words(self.cpus, "CPU") + (", GPUs unknown" if np.isnan(self.gpus) else "")
        facts = ", ".join(filter(None, (self.state, size, tasks, waited)))
        where = f" in {self.partition}" if self.partition else ""
        return f"Job {self.job_id}{whose}{where}: {facts}."

    def _prediction(self) -> str:
        limit = f" Its limit is {duration_in_words(self.time_limit_s)}." if np.isfinite(self.time_limit_s) else ""
        ran = "" if np.isnan(self.run_time_s) else f" It ran {duration_in_words(self.run_time_s)}."
        if np.isnan(self.p50_s):
            return f"{'' if self.replay else 'Its run time was not predicted.'}{ran}{limit}".strip()
        return (
            f"Predicted run time: {duration_in_words(self.p50_s)}; 8 of 10 such jobs take "
            f"{duration_in_words(self.p10_s)} to {duration_in_words(self.p90_s)} (by {self.source}).{ran}{limit}"
        )

    def _remaining(self) -> str:
        if self.remaining_s is None:
            return ""
        low, middle, high = (duration_in_words(part_s) for part_s in self.remaining_s)
        return f"It has not ended yet; by now {middle} remain, in 8 of 10 such cases {low} to {high}."

    def _start(self) -> list[str]:
        if self.start is None:
            return []
        lines, limit_s = list(self.start.lines()), self.start.fitting_limit_s
        if limit_s < 0.5 * self.time_limit_s:
            lines.append(f"95 % of such jobs would fit into a time limit of {duration_in_words(limit_s)}.")
        return lines

    def _place(self) -> list[str]:
        if not self.rank:
            return []
        # Slurm adds details to some reasons after a comma: "ReqNodeNotAvail, May be reserved for other job".
        meaning = REASONS.get(self.reason.partition(",")[0], f"Slurm says {self.reason}")
        why = meaning if self.reason else "Slurm gives no reason"
        lines = [f"It is number {self.rank} of {self.queued} in its partition: {why}."]
        if self.rank_without != self.rank:
            lines.append(f"Without Helios it would be number {self.rank_without}.")
        elif self.stands:
            lines.append("Without Helios it would have the same place.")
        if self.planned_start_at is not None:
            lines.append(f"Slurm plans its start for {self.planned_start_at:%Y-%m-%d %H:%M} UTC; plans change.")
        return lines

    def _activity(self) -> list[str]:
        lines = [f"Helios leaves it alone: {self.excluded_reason}."] if self.excluded_reason else []
        if self.stands:
            lines.append(f"Helios has set {', '.join(self.stands)}.")
        elif self.rank and not self.excluded_reason:
            lines.append("Helios has set nothing on it.")
        if self.would_stand:
            lines.append(f"In shadow it would have set {', '.join(self.would_stand)}.")
        last = self.decisions.tail(1).fillna("").to_dict("records")
        return lines + [f"Last decision, {row['decided_at']:%Y-%m-%d %H:%M} UTC: {decision_words(row)}" for row in last]


def places(
    snapshot: Snapshot, job: pd.Series[Any], *, without: Callable[[pd.DataFrame], NDArray[np.float64]]
) -> tuple[int, int, int]:
    """Return a job's place with and without Helios, and its queue's length.

    The queue are the pending jobs of its partition, or of all partitions that it names.

    Parameters
    ----------
    without : callable
        Returns, for a ``QUEUE`` frame, the priorities that the cluster would have computed without Helios.
    """
    shared = set(str(job["partition"]).split(","))
    partitions = snapshot.pending["partition"].astype("str").fillna("")
    competitors = snapshot.pending[[bool(shared & set(names.split(","))) for names in partitions]]
    is_job = competitors["job_id"] == job["job_id"]
    # Slurm's order: priority, submission, id.
    without_helios = competitors.assign(
        priority=without(competitors), number=pd.to_numeric(competitors["job_id"], errors="coerce")
    )
    without_helios = without_helios.sort_values(
        ["priority", "submitted_at", "number"], ascending=[False, True, True], kind="stable"
    )
    rank = int(np.flatnonzero(is_job.to_numpy())[0]) + 1
    rank_without = int(np.flatnonzero((without_helios["job_id"] == job["job_id"]).to_numpy())[0]) + 1
    return rank, rank_without, len(competitors)


class Cause(StrEnum):
    """Cause for which a pending job waits, with its words."""

    PRIORITY = "priority"
    """Another job comes before it and cannot start."""
    RESOURCES = "resources"
    """It is next in line, and fewer GPUs are free than it requests."""
    PIECES = "pieces"
    """It is next in line, and enough GPUs are free, but scattered over too many nodes."""
    RESERVED = "reserved"
    """It would fit, but starting it could delay the job at the head of the queue, for which backfill reserves."""


CAUSES = {
    Cause.PRIORITY: "Jobs before it in the order",
    Cause.RESOURCES: "Next in line: too few {unit}s free",
    Cause.PIECES: "Next in line: enough {unit}s free, in pieces",
    Cause.RESERVED: "It fits, but backfill keeps the place",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A job that another one waits for.

    Attributes
    ----------
    job_id, user : str
        ``user`` is empty where it is unknown.
    gpus : float
    """

    job_id: str
    user: str
    gpus: float

    def in_words(self, unit: str) -> str:
        """Return it as ``job 17 of alice (4 GPUs)``."""
        of_user = f" of {self.user}" if self.user else ""
        return f"job {self.job_id}{of_user} ({count_in_words(self.gpus, unit)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInterval:
    """A part of a job's wait with one cause and one blocker.

    Attributes
    ----------
    began_at, ended_at : datetime
        UTC; the end is not part of it.
    length_s : int
    cause : Cause
    blocker : Blocker, optional
        With PRIORITY and RESERVED, the job before it.
    free, largest_that_fits : pair of float
        Fewest and most GPUs free in its partition, and of the largest job that could have been placed.
    fitted_s : int
        Time in which the job would have fitted, s.
    scattered_s : int
        Time in which enough GPUs were free for the blocker, or without one for the job itself, but scattered, s.
    reserved_at : datetime, optional
        With RESERVED, when the blocker was last expected to start. None where unknown.
    """

    began_at: datetime
    ended_at: datetime
    length_s: int
    cause: Cause
    blocker: Blocker | None
    free: tuple[float, float]
    largest_that_fits: tuple[float, float]
    fitted_s: int
    scattered_s: int
    reserved_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder(Blocker):
    """A job that held GPUs while another one waited for them.

    Attributes
    ----------
    held_s : int
        Time in that wait for which it held them, s.
    until : datetime
        End of that, UTC.
    """

    held_s: int
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStart:
    """When a job starts in one replay, ``started_at`` in UTC."""

    label: str
    started_at: datetime
    wait_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShorterLimit:
    """A planned run time with which the job would have started earlier.

    Attributes
    ----------
    planned_s : int
        Run time for backfill to plan with, s.
    started_at : datetime
        Latest time at which backfill would have started the job.
    """

    planned_s: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedWait:
    """What held a job in a replay.

    Attributes
    ----------
    unit : str
        GPU or CPU.
    starts : tuple of ReplayedStart
        Of the replay that is explained, and of the same job in others.
    believed_s, planned_s : float, optional
        Run times that the order and backfill used, s. None where it used none.
    planned_by : str
        Source of ``planned_s``: limit, predicted, true, or a number of seconds. Empty for no backfill.
    rank, queued : int
        Place in its partition's queue when it was submitted, and the queue's length. 0 where it did not wait.
    intervals : tuple of WaitInterval
        They follow each other from submission to start.
    holders : tuple of Holder
        Jobs that held most GPUs while it was next in line, or, if that is less than half of its wait, while it waited.
    overtaken_by_order, overtaken_by_backfill : int
        Jobs submitted later that started earlier: that the order puts first, without promotions for long waits, and
        that backfill let pass.
    shorter : ShorterLimit, optional
        A limit with which the user could have had an earlier start.
    """

    unit: str
    starts: tuple[ReplayedStart, ...]
    believed_s: float | None
    planned_s: float | None
    planned_by: str
    rank: int
    queued: int
    intervals: tuple[WaitInterval, ...]
    holders: tuple[Holder, ...]
    overtaken_by_order: int
    overtaken_by_backfill: int
    shorter: ShorterLimit | None

    def lines(self) -> Iterator[str]:
        """Yield the wait as sentences."""
        if self.believed_s is not None:
            yield f"The order expected it to run {duration_in_words(self.believed_s)}."
        if self.planned_s is not None:
            source = PLANNED_BY.get(self.planned_by, "")
            yield f"Backfill planned with {duration_in_words(self.planned_s)}{source}."
        if not self.intervals:
            yield "In the replay it did not wait."
            return
        yield f"In the replay it was number {self.rank:,} of {self.queued:,} in its partition at first."
        if self.holders:
            holders = (
                f"{holder.in_words(self.unit)} for {duration_in_words(holder.held_s)}" for holder in self.holders
            )
            yield f"Most was held meanwhile by {', '.join(holders)}."
        yield (
            f"Jobs submitted later that started earlier: {self.overtaken_by_order:,} by the order, "
            f"{self.overtaken_by_backfill:,} let past by backfill."
        )
        if self.shorter is not None:
            earlier_s = (self.starts[0].started_at - self.shorter.started_at).total_seconds()
            yield (
                f"With a time limit of {duration_in_words(self.shorter.planned_s)} it would start "
                f"{duration_in_words(earlier_s)} earlier: by {self.shorter.started_at:%Y-%m-%d %H:%M} UTC."
            )

    def tables(self) -> Iterator[RenderableType]:
        """Yield tables of starts and of causes, the longest first."""
        starts = plain_table("Replayed, without fair share, limits and drained nodes", "Waited", "Started (UTC)")
        for start in self.starts:
            starts.add_row(escape(start.label), duration(start.wait_s), f"{start.started_at:%Y-%m-%d %H:%M:%S}")
        yield starts
        table = plain_table("What held it", "For", f"{self.unit}s free", "Largest that fits")
        table.add_column("Behind", overflow="fold")
        by_cause = {cause: [part for part in self.intervals if part.cause is cause] for cause in Cause}
        for cause, intervals in sorted(by_cause.items(), key=lambda item: -total_s(item[1])):
            if intervals:
                table.add_row(
                    CAUSES[cause].format(unit=self.unit),
                    duration(total_s(intervals)),
                    _span([interval.free for interval in intervals]),
                    _span([interval.largest_that_fits for interval in intervals]),
                    escape(_blockers(intervals, self.unit)),
                )
        if self.intervals:
            yield table


def total_s(intervals: Sequence[WaitInterval]) -> int:
    """Return the total length of the intervals, s."""
    return sum(interval.length_s for interval in intervals)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStart:
    """A changed request that starts earlier in the same simulations.

    Attributes
    ----------
    change : str
        What to request instead, for a person.
    p50_at : datetime
        Median start with it.
    gain_s : float
        Median gain, s.
    """

    change: str
    p50_at: datetime
    gain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """When a pending job starts, by simulations of the queue.

    Attributes
    ----------
    taken_at : datetime
        Time of the queue, aware, UTC.
    horizon_at : datetime
        End of the simulations.
    draws : int
        Number of simulations. 0 where there is no forecast, and ``problem`` says why.
    p10_at, p50_at, p90_at : datetime, optional
        Quantiles of the start. None for a time after ``horizon_at``.
    end_p10_at, end_p50_at, end_p90_at : datetime, optional
        Quantiles of the end. None where it starts after ``horizon_at``.
    by_limits : bool
        Whether run times were taken from time limits, because too few jobs have ended to predict.
    fitting_limit_s : float
        Time limit that 95 % of such jobs fit into. NaN where not known.
    earlier : tuple of EarlierStart
        What would make it start earlier, largest gain first.
    notes : tuple of str
        Basis and limits of the forecast, for a person.
    not_simulated : tuple of str
        Settings of the cluster that are not simulated. They are the same for every job, so only JSON has them.
    problem : str
        Why there is no forecast, for a person.
    """

    taken_at: datetime
    horizon_at: datetime
    draws: int = 0
    p10_at: datetime | None = None
    p50_at: datetime | None = None
    p90_at: datetime | None = None
    end_p10_at: datetime | None = None
    end_p50_at: datetime | None = None
    end_p90_at: datetime | None = None
    by_limits: bool = False
    fitting_limit_s: float = float("nan")
    earlier: tuple[EarlierStart, ...] = ()
    notes: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with times in ISO 8601.

        Unknown numbers and times are null.
        """
        values: dict[str, Any] = plain(self)
        return values

    def lines(self) -> Iterator[str]:
        """Yield the forecast as sentences."""
        if self.problem:
            yield f"When it starts is not forecast: {self.problem}."
            return
        if self.p10_at is None:
            yield f"Starts {LATER} {self._text(self.horizon_at)}, in 9 of 10 simulations of the queue."
        elif self.p50_at is None:
            first, end = self._text(self.p10_at), self._text(self.horizon_at)
            yield f"Starts after {first}; in half of the simulations {LATER} {end}."
        else:
            yield (
                f"Starts {self._interval_text(self.p10_at, self.p90_at)} "
                f"(half of the simulations: before {self._text(self.p50_at)})."
            )
            if self.end_p50_at is not None:
                yield (
                    f"Ends {self._interval_text(self.end_p10_at, self.end_p90_at)} "
                    f"(half of the simulations: before {self._text(self.end_p50_at)})."
                )
        for earlier in self.earlier:
            yield (
                f"With {earlier.change} it would start {duration_in_words(earlier.gain_s)} earlier: "
                f"half of the simulations before {self._text(earlier.p50_at)}."
            )
        yield from self.notes

    def in_short(self) -> str:
        """Return when it starts as a cell of a table."""
        if self.problem:
            return f"not forecast: {self.problem}"
        return (
            self._interval_text(self.p10_at, self.p90_at) if self.p10_at else f"{LATER} {self._text(self.horizon_at)}"
        )

    def _interval_text(self, first: datetime | None, last: datetime | None) -> str:
        begins = "now" if first is None or first <= self.taken_at else self._text(first)
        if last is None:
            return f"after {begins}, perhaps {LATER} {self._text(self.horizon_at)}"
        if self._text(last) == begins:
            return f"at {begins}"
        return f"between {begins} and {self._text(last)}"

    def _text(self, moment: datetime) -> str:
        """Return a time, with its date where it is of another day."""
        style = "%H:%M" if moment.date() == self.taken_at.date() else "%Y-%m-%d %H:%M"
        return f"{moment:{style}} UTC"


def _blockers(intervals: Sequence[WaitInterval], unit: str) -> str:
    """Name the jobs that blocked it longest, and count the others."""
    length_s_by_job: Counter[Blocker] = Counter()
    for interval in intervals:
        if interval.blocker is not None:
            length_s_by_job[interval.blocker] += interval.length_s
    named = length_s_by_job.most_common(NAMED_BLOCKERS)
    blockers = [f"{job.in_words(unit)} {duration(length_s)}" for job, length_s in named]
    if others := len(length_s_by_job) - len(named):
        others_s = length_s_by_job.total() - sum(length_s for _, length_s in named)
        blockers.append(f"{others:,} more {duration(others_s)}")
    return ", ".join(blockers)


def _span(pairs: list[tuple[float, float]]) -> str:
    """Write the smallest and the largest number, as ``4-12``."""
    smallest, largest = min(low for low, _ in pairs), max(high for _, high in pairs)
    return f"{smallest:,}" if smallest == largest else f"{smallest:,}-{largest:,}"
