"""Fake cluster in memory that follows Slurm's rules, and a fake ledger.

For each job the cluster keeps what Slurm keeps (a SiteFactor and a TimeMin) and what Helios wrote. It derives
``urgency``, ``soft_limit_s`` and ``excluded_reason`` from them as :mod:`helios.slurm` does. So a value that an admin
wrote is recognised as the admin's, even if it has Helios' mark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from helios import ownership
from helios.actions import JobSetting, Outcome, Result
from helios.changes import GONE, NO_RECORD, Change, ChangeContext, check_change, each_job, slurm_value_mapping
from helios.choices import Domain
from helios.errors import ClusterUnavailable, LeaseLost, WarehouseUnavailable
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES, DECISIONS, Snapshot
from helios.ports import LONGEST_LEASE
from helios.testing.builders import NOON, Row, a_node, a_pending_job, a_running_job, a_snapshot


class Crash(Exception):
    """Simulated death of the process.

    What was written before stays written.
    """


@dataclass(slots=True, kw_only=True)
class _Job:
    row: Row
    site_factor: int = 0
    time_min: int = 0  # minutes; 0: none
    admin_action: str = ""  # an admin's action that excludes it; empty: none
    written: dict[JobSetting, list[int]] = field(
        default_factory=lambda: {setting: [] for setting in JobSetting}
    )  # values that Helios wrote, the latest last


class Faults:
    """Failures on demand, which the fake clusters share.

    Attributes
    ----------
    writes : int
        Number of writes that reached the cluster.
    """

    name: str

    def __init__(self) -> None:
        self.writes = 0
        self._unavailable = self._swallowed = 0
        self._refused: dict[str, str] = {}
        self._crash_after: int | None = None

    def fail_next(self, *, times: int = 1) -> None:
        """Raise ``ClusterUnavailable`` in the next ``times`` calls that look or change something."""
        self._unavailable = times

    def swallow_writes(self, *, times: int = 1) -> None:
        """Accept the next ``times`` writes without any effect.

        A backfill pass of Slurm that restores the old values looks the same.
        """
        self._swallowed = times

    def crash_after(self, *, writes: int | None) -> None:
        """Raise ``Crash`` after ``writes`` more writes.

        It is raised once, at the write that follows them. None cancels it.
        """
        self._crash_after = writes

    def _answer(self) -> None:
        if self._unavailable > 0:
            self._unavailable -= 1
            raise ClusterUnavailable(f"cluster {self.name} was told not to answer", hint="Call it again.")

    def _refusal(self, target: str) -> str:
        """Count a write, or return why it fails."""
        if refusal := self._refused.get(target, ""):
            return refusal
        if self._crash_after == 0:
            self._crash_after = None
            raise Crash("told to crash at this write")
        if self._crash_after is not None:
            self._crash_after -= 1
        self.writes += 1
        return ""

    def _is_swallowed(self) -> bool:
        is_swallowed = self._swallowed > 0
        self._swallowed -= is_swallowed
        return is_swallowed


class FakeCluster(Faults):
    """Fake ``Cluster`` in memory.

    Parameters
    ----------
    name : str
        Name of the cluster.
    now : datetime
        Time of its clock, which only :meth:`tick` moves.
    nodes : sequence of rows, optional
        As :func:`~helios.testing.a_node` returns them. None means one ordinary node.
    site_factor_most : int
        Largest SiteFactor in both directions. It sets the resolution of an urgency.
    soft_limits : bool
        Whether the site has enabled soft limits. Otherwise they are refused.
    writes_per_cycle : int, optional
        Most writes of one :meth:`apply`, in the order of the changes; the others are postponed. None means no limit.

    Attributes
    ----------
    writes : int
        Number of writes that reached a job.
    looks : int
        Number of snapshots taken.
    applied : list of tuple of Change
        The changes of each :meth:`apply`.
    """

    def __init__(
        self,
        *,
        name: str = "venus",
        now: datetime = NOON,
        nodes: Sequence[Mapping[str, Any]] | None = None,
        site_factor_most: int = 10_000,
        soft_limits: bool = True,
        writes_per_cycle: int | None = None,
    ) -> None:
        super().__init__()
        self.name, self.now = name, now
        self.nodes = [a_node()] if nodes is None else list(nodes)
        self.soft_limits = soft_limits
        self.writes_per_cycle = writes_per_cycle
        self.looks = 0
        self.applied: list[tuple[Change[float], ...]] = []
        self._site_factor_most = site_factor_most
        self._mapping = slurm_value_mapping(site_factor=self.site_factor)
        self._jobs: dict[str, _Job] = {}
        self._writes_left: float = 0

    # Events by users, by the scheduler and by time.

    def submit(self, **overrides: Any) -> str:
        """Queue a job and return its id.

        It is submitted now by default. ``urgency``, ``soft_limit_s`` and ``user_soft_limit_s`` become the SiteFactor
        and the TimeMin that Slurm would hold for them. The first two count as written by Helios.

        Parameters
        ----------
        **overrides
            Columns of ``QUEUE``, as in :func:`~helios.testing.a_pending_job`.
        """
        row = a_pending_job(**({"submitted_at": self.now} | overrides))
        job = _Job(row=row, site_factor=self.site_factor(row["urgency"]))
        for column in ("user_soft_limit_s", "soft_limit_s"):
            if row.get(column) is not None:
                job.time_min = math.ceil(row[column] / 60)
        job.written[JobSetting.ORDER].append(job.site_factor)
        if row.get("soft_limit_s") is not None:
            job.written[JobSetting.SOFT_LIMIT].append(job.time_min)
        self._jobs[row["job_id"]] = job
        return str(row["job_id"])

    def start(self, job_id: str, *, node_list: str = "node1") -> None:
        """Start a pending job now."""
        job = self._jobs[job_id]
        job.row = a_running_job(**(job.row | {"state": "RUNNING", "started_at": self.now, "node_list": node_list}))

    def end(self, job_id: str) -> None:
        """End or cancel a job, which then leaves the cluster."""
        del self._jobs[job_id]

    def requeue(self, job_id: str) -> None:
        """Put a running job back into the queue.

        Values that Helios set stay, as on Slurm.
        """
        row = self._jobs[job_id].row
        columns = {"state": "PENDING", "started_at": None, "node_list": None, "restart": row.get("restart", 0) + 1}
        self._jobs[job_id].row = row | columns

    def alter(self, job_id: str, **columns: Any) -> None:
        """Change a job as its user.

        Parameters
        ----------
        job_id : str
            The job.
        **columns
            Columns of ``QUEUE``, except those that Helios sets.
        """
        self._jobs[job_id].row = a_pending_job(**(self._jobs[job_id].row | columns))

    def tick(self, passes: timedelta) -> None:
        """Advance the clock by ``passes``."""
        self.now += passes

    # Actions of an admin.

    def hold(self, job_id: str) -> None:
        """Hold a job.

        Its SiteFactor stays, as on Slurm.
        """
        self._jobs[job_id].admin_action = "held"
        self._jobs[job_id].row["priority"] = 0.0

    def unhold(self, job_id: str) -> None:
        """Release a held job."""
        self._jobs[job_id].admin_action = ""
        self._jobs[job_id].row["priority"] = 100_000.0

    def admin_sets_priority(self, job_id: str, priority: float) -> None:
        """Set a job's priority directly, as an admin.

        From then on its SiteFactor has no effect, and Helios excludes the job.
        """
        self._jobs[job_id].admin_action = "its priority was set directly"
        self._jobs[job_id].row["priority"] = float(priority)

    def admin_sets_site_factor(self, job_id: str, site_factor: int) -> None:
        """Set a job's SiteFactor as an admin.

        A value that Helios did not write excludes the job. 0 removes the value that Helios wrote.
        """
        self._jobs[job_id].site_factor = site_factor

    def admin_sets_time_min(self, job_id: str, minutes: int) -> None:
        """Set a job's TimeMin as an admin.

        0 removes it.
        """
        self._jobs[job_id].time_min = minutes

    # Failures.

    def refuse_writes(self, job_id: str, *, answer: str = "Access/permission denied") -> None:
        """Fail every write to this job with the message ``answer``.

        An empty ``answer`` ends the failure.
        """
        self._refused[job_id] = answer

    # Queries for tests.

    @property
    def queue(self) -> list[str]:
        """Ids of the pending jobs, in starting order."""
        return [str(job.row["job_id"]) for job in self._in_order()]

    def site_factor_of(self, job_id: str) -> int:
        """Return a job's SiteFactor, whoever set it."""
        return self._jobs[job_id].site_factor

    def time_min_of(self, job_id: str) -> int:
        """Return a job's TimeMin in minutes, whoever set it.

        0 means that it has none.
        """
        return self._jobs[job_id].time_min

    def urgency_of(self, job_id: str) -> float:
        """Return the urgency that Helios set on a job.

        0 where the SiteFactor was not written by Helios, or where an admin holds the job or set its priority.
        """
        return self._urgency(self._jobs[job_id])

    def site_factor(self, urgency: float) -> int:
        """Return the SiteFactor that encodes ``urgency`` on this cluster."""
        return ownership.site_factor(urgency, most=self._site_factor_most)

    # Methods of helios.ports.Cluster.

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster.

        Raises
        ------
        ClusterUnavailable
            :meth:`fail_next` asked for it.
        """
        self._answer()
        self.looks += 1
        running = [job for job in self._jobs.values() if not _is_pending(job)]
        return a_snapshot(
            pending=[self._row(job) for job in self._in_order()],
            running=sorted((self._row(job) for job in running), key=lambda row: row["started_at"]),
            nodes=self.nodes,
            taken_at=self.now,
            cluster=self.name,
        )

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        """Apply ``changes`` and return their outcomes.

        Raises
        ------
        ClusterUnavailable
            :meth:`fail_next` asked for it.
        Crash
            :meth:`crash_after` asked for it.
        """
        self._answer()
        self.applied.append(tuple(changes))
        self._writes_left = math.inf if self.writes_per_cycle is None else self.writes_per_cycle
        return [
            self._apply_change(change) for change in each_job(changes, pending=self._pending_ids, is_set=self._is_set)
        ]

    def _apply_change(self, change: Change[float]) -> Outcome:
        job, setting = self._pending(change.target), JobSetting(change.setting)
        if job is None:
            return change.outcome(Result.GONE, GONE)
        outcome = check_change(change, self._change_context(setting, job))
        if outcome is not None:
            return outcome
        before = _value(job, setting)
        if self._writes_left == 0:
            remark = "the writes of this cycle are spent"
            return self._mapping.outcome(change, Result.POSTPONED, before=before, remark=remark)
        return self._write(change, job, before)

    def _change_context(self, setting: JobSetting, job: _Job) -> ChangeContext:
        value, limit_s = _value(job, setting), job.row["time_limit_s"]
        hidden = self._hides(setting, job)
        is_marked = not hidden and _is_marked(setting, value)
        return ChangeContext(
            mapping=self._mapping,
            before=None if hidden else value,
            is_set=not hidden and _is_recorded(job, setting),
            excluded_reason=self._excluded_reason(job),
            soft_limits=self.soft_limits,
            time_limit=0 if limit_s is None or math.isinf(limit_s) else round(limit_s / 60),
            hidden=_last_written(job, setting) if hidden else 0,
            hides_site_factor=self._hides(JobSetting.ORDER, job),
            suspect=NO_RECORD if is_marked and not _is_recorded(job, setting) else "",
        )

    def _is_set(self, setting: JobSetting, job_id: str) -> bool:
        job = self._jobs[job_id]
        return (
            bool(_last_written(job, setting))
            if self._hides(setting, job)
            else _is_marked(setting, _value(job, setting))
        )

    def _hides(self, setting: JobSetting, job: _Job) -> bool:
        # As on Slurm, whose sprio does not list a job that is held or not eligible.
        eligible_at = job.row["eligible_at"]
        is_eligible = eligible_at is not None and bool(eligible_at <= self.now)
        return setting is JobSetting.ORDER and (bool(job.admin_action) or not is_eligible)

    def _write(self, change: Change[float], job: _Job, before: int) -> Outcome:
        if refusal := self._refusal(change.target):
            return self._mapping.outcome(change, Result.FAILED, before=before, remark=refusal)
        self._writes_left -= 1
        setting, wanted = JobSetting(change.setting), self._mapping.wanted(change)
        job.written[setting].append(wanted)
        if not self._is_swallowed():
            setattr(job, "site_factor" if setting is JobSetting.ORDER else "time_min", wanted)
        after = _value(job, setting)
        result = Result.DONE if after == wanted else Result.MISMATCH
        return self._mapping.outcome(change, result, before=before, after=after)

    def _pending(self, job_id: str) -> _Job | None:
        job = self._jobs.get(job_id)
        return job if job is not None and _is_pending(job) else None

    def _pending_ids(self) -> list[str]:
        return [job_id for job_id, job in self._jobs.items() if _is_pending(job)]

    def _row(self, job: _Job) -> Row:
        is_recorded = _is_recorded(job, JobSetting.SOFT_LIMIT)
        return job.row | {
            "priority": self._priority(job),
            "urgency": self._urgency(job),
            "soft_limit_s": job.time_min * 60.0 if is_recorded else None,
            "user_soft_limit_s": job.time_min * 60.0 if job.time_min and not is_recorded else None,
            "excluded_reason": self._excluded_reason(job) or None,
        }

    def _in_order(self) -> list[_Job]:
        return sorted((job for job in self._jobs.values() if _is_pending(job)), key=self._place_in_queue)

    def _excluded_reason(self, job: _Job) -> str:
        if job.admin_action or job.row.get("excluded_reason"):
            return job.admin_action or str(job.row["excluded_reason"])
        foreign = job.site_factor and not _is_recorded(job, JobSetting.ORDER)
        return f"an admin set SiteFactor {job.site_factor}" if foreign else ""

    def _urgency(self, job: _Job) -> float:
        is_visible = not job.admin_action and _is_recorded(job, JobSetting.ORDER)
        return ownership.urgency(job.site_factor, most=self._site_factor_most) if is_visible else 0.0

    def _priority(self, job: _Job) -> float:
        return float(job.row["priority"]) if job.admin_action else float(job.row["priority"] + job.site_factor)

    def _place_in_queue(self, job: _Job) -> tuple[float, pd.Timestamp, int, str]:
        job_id = str(job.row["job_id"])
        return (-self._priority(job), job.row["submitted_at"], len(job_id), job_id)


def _is_pending(job: _Job) -> bool:
    return bool(job.row["state"] == "PENDING")


def _is_marked(setting: JobSetting, value: int) -> bool:
    return ownership.has_helios_mark(value) if setting is JobSetting.ORDER else ownership.has_helios_time_min(value)


def _is_recorded(job: _Job, setting: JobSetting) -> bool:
    value = _value(job, setting)
    return _is_marked(setting, value) and value in job.written[setting]


def _last_written(job: _Job, setting: JobSetting) -> int:
    """Return the value that Helios wrote last, 0 if none.

    The cluster may hold another value by now.
    """
    return job.written[setting][-1] if job.written[setting] else 0


def _value(job: _Job, setting: JobSetting) -> int:
    return job.site_factor if setting is JobSetting.ORDER else job.time_min


class FakeLedger:
    """Fake ``Ledger`` in memory.

    Parameters
    ----------
    domain : Domain
        Domain of the applied changes. Their columns are those of ``APPLIED_CHANGES``, for nodes of
        ``APPLIED_NODE_CHANGES``.

    Attributes
    ----------
    domain : Domain
        As given.
    records : int
        Number of successful calls of :meth:`record`.
    token : int
        The current fencing token; 0 before the first lease.
    holder : str or None
        Holder of the lease, which may have expired. None if nobody holds it.
    """

    def __init__(self, *, domain: Domain = Domain.JOBS) -> None:
        self.records = self.token = 0
        self.holder: str | None = None
        self._expires_at: datetime | None = None
        self._written: list[pd.DataFrame] = []
        self.domain = domain
        self._kind = APPLIED_NODE_CHANGES if domain is Domain.NODES else APPLIED_CHANGES
        self._applied_changes = self._kind.empty()
        self._failing = self._calls_before_failing = 0

    @property
    def decisions(self) -> pd.DataFrame:
        """All recorded decisions as a ``DECISIONS`` frame, oldest first."""
        # As objects, since frames with different categories cannot be joined.
        rows = [frame[DECISIONS.names].astype(object) for frame in self._written]
        return DECISIONS.conform(pd.concat(rows, ignore_index=True)) if rows else DECISIONS.empty()

    def fail_next(self, *, times: int = 1, after: int = 0) -> None:
        """Raise ``WarehouseUnavailable`` in the next ``times`` calls.

        ``after`` calls succeed before that. Calls of every method count.
        """
        self._failing, self._calls_before_failing = times, after

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the lease, as ``Ledger`` says."""
        self._answer()
        if self.holder not in {None, holder} and self._expires_at is not None and now < self._expires_at:
            self._expires_at = min(self._expires_at, now + max(lasts, LONGEST_LEASE))
            return None
        if self.holder != holder:
            self.token += 1
        self.holder = holder
        self._expires_at = now + lasts
        return self.token

    def release(self, *, holder: str) -> None:
        """Give up the lease if ``holder`` has it."""
        self._answer()
        if self.holder == holder:
            self.holder = None

    def applied_changes(self) -> pd.DataFrame:
        """Return a copy of the applied changes."""
        self._answer()
        return self._applied_changes.copy()

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Append ``decisions`` to the audit log and replace the applied changes.

        With ``applied_changes`` None, the stored ones stay. If it raises, nothing is stored.

        Raises
        ------
        FrameInvalid
            A frame lacks a declared column.
        LeaseLost
            ``token`` is not the current one.
        WarehouseUnavailable
            :meth:`fail_next` asked for it.
        """
        self._answer()
        DECISIONS.check(decisions)
        if applied_changes is not None:
            self._kind.check(applied_changes)
        if token != self.token:
            raise LeaseLost(
                f"fencing token {token} is not the current one, {self.token}",
                hint="Another Helios took the lease; this one must not write.",
            )
        self._written += [decisions.copy()] if len(decisions) else []
        if applied_changes is not None:
            self._applied_changes = applied_changes.reset_index(drop=True)
        self.records += 1

    def _answer(self) -> None:
        if self._calls_before_failing > 0 and self._failing > 0:
            self._calls_before_failing -= 1
        elif self._failing > 0:
            self._failing -= 1
            raise WarehouseUnavailable("the ledger was told to fail", hint="Call it again.")
