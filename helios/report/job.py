"""Explanation of why a job waits.

What is predicted of it, its place in the queue, what Helios did, and the place it would have without Helios.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import Mode, Snapshot
from helios.report.plain import plain
from helios.report.start import StartForecast
from helios.units import duration_in_words

# Slurm's reasons why a job is pending (slurm.h, enum job_state_reason; squeue(1), JOB REASON CODES), for a user.
REASONS = {
    "None": "Slurm has not considered it yet",
    "Priority": "other jobs come before it",
    "Resources": "it is next in line and waits for free nodes",
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
# What became of a change, by helios.actions.Result.
ACTIVITY = {
    "done": "set {after}",
    "would": "would have set {after}",
    "refused": "requested {after} and was refused",
    "mismatch": "set {after}, and something else was read back",
    "failed": "could not set {after}",
}
UNDONE = "reverted what Helios had set, if anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplanation:
    """Everything that Helios knows about one job.

    Attributes
    ----------
    job_id, state, user, partition : str
        The job; ``state`` is a JobState.
    waited_s : float
        Time since it could have started, or from then to its start. NaN where unknown.
    gpus, tasks : int
        GPUs of a task, and pending tasks of an array (else 1).
    time_limit_s : float
        inf for unlimited. NaN where unknown.
    p10_s, p50_s, p90_s : float
        Predicted run time. NaN for no prediction.
    source : str
        What predicted.
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
        Place among the pending jobs of its partition; the place it would have if Helios had set nothing; how many
        there are. 0 where it is not pending.
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
    """

    job_id: str
    state: str
    user: str
    partition: str
    waited_s: float
    gpus: int
    tasks: int
    time_limit_s: float
    p10_s: float
    p50_s: float
    p90_s: float
    source: str
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

    def to_json(self) -> dict[str, Any]:
        """Return plain values.

        Unknown and unlimited numbers are null.
        """
        found: dict[str, Any] = plain(self)
        return found

    def lines(self) -> list[str]:
        """Return the explanation as sentences."""
        lines = [
            self._headline(),
            *self._start(),
            self._prediction(),
            self._remaining(),
            self.rests_on,
            *self._place(),
        ]
        return [line for line in (*lines, *self._activity(), *self.remarks) if line]

    def _headline(self) -> str:
        size = f"{self.gpus} GPUs" if self.gpus != 1 else "1 GPU"
        array = f", {self.tasks} tasks pending" if self.tasks > 1 else ""
        waited = "" if np.isnan(self.waited_s) else f", waited {duration_in_words(self.waited_s)}"
        return f"Job {self.job_id} of {self.user} in {self.partition}: {self.state}, {size}{array}{waited}."

    def _prediction(self) -> str:
        limit = f" Its limit is {duration_in_words(self.time_limit_s)}." if np.isfinite(self.time_limit_s) else ""
        ran = "" if np.isnan(self.run_time_s) else f" It ran {duration_in_words(self.run_time_s)}."
        if np.isnan(self.p50_s):
            return f"Its run time was not predicted.{ran}{limit}"
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
        # Slurm adds to some reasons after a comma: "ReqNodeNotAvail, May be reserved for other job".
        known = REASONS.get(self.reason.partition(",")[0], f"Slurm says {self.reason}")
        why = known if self.reason else "Slurm gives no reason"
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
        return lines + [_last_decision(row) for row in self.decisions.tail(1).fillna("").to_dict("records")]


def places(
    snapshot: Snapshot, job: pd.Series[Any], *, without: Callable[[pd.DataFrame], NDArray[np.float64]]
) -> tuple[int, int, int]:
    """Return a job's place with and without Helios.

    It is the place among the pending jobs of its partition, or of all partitions that it names. The third value is
    their number.

    Parameters
    ----------
    without : callable
        Gives, for a ``QUEUE`` frame, the priorities that the cluster would have computed without Helios.
    """
    shared = set(str(job["partition"]).split(","))
    partitions = snapshot.pending["partition"].astype("str").fillna("")
    mates = snapshot.pending[[bool(shared & set(names.split(","))) for names in partitions]]
    here = mates["job_id"] == job["job_id"]
    # Slurm's order: priority, submission, id.
    otherwise = mates.assign(priority=without(mates), number=pd.to_numeric(mates["job_id"], errors="coerce"))
    otherwise = otherwise.sort_values(
        ["priority", "submitted_at", "number"], ascending=[False, True, True], kind="stable"
    )
    rank = int(np.flatnonzero(here.to_numpy())[0]) + 1
    rank_without = int(np.flatnonzero((otherwise["job_id"] == job["job_id"]).to_numpy())[0]) + 1
    return rank, rank_without, len(mates)


def _last_decision(entry: dict[Hashable, Any]) -> str:
    """Describe an audit entry in one sentence.

    When, who, what came of it, and why.
    """
    result, what = str(entry["outcome"]).partition(":")[0], entry["after"] or "its place"
    activity = UNDONE if entry["action"] == "Revert" else ACTIVITY.get(result, "{result} {after}")
    did = activity.format(result=result, after=what).strip()
    who = f"{entry['service']} ({entry['mode']})" if entry["mode"] in set(Mode) else str(entry["service"])
    return f"Last decision, {pd.Timestamp(entry['decided_at']):%Y-%m-%d %H:%M} UTC: {who} {did}: {entry['reason']}"
