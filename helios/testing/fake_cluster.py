"""A cluster in memory that keeps Slurm's rules: a fake that behaves, with hands on every knob a test needs.

It keeps of each job what Slurm keeps - a SiteFactor and a TimeMin - and what Helios wrote, and derives ``urgency``,
``soft_limit_s`` and ``excluded_reason`` from them as the Slurm room does, so that a value written by an admin looks
like one even if it bears Helios' mark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from helios import ownership
from helios.actions import JobAction, JobSetting, Outcome, Result
from helios.changes import GONE, ChangeContext, SettingChange, judge_change, setting_changes, slurm_value_mapping
from helios.errors import ClusterUnavailable, LeaseLost, WarehouseUnavailable
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES, DECISIONS, Snapshot
from helios.ports import LONGEST_LEASE, Domain
from helios.testing.builders import NOON, Row, a_node, a_pending_job, a_running_job, a_snapshot

UNPROVED = "it bears Helios' mark, and no record says that Helios wrote it"


class Crash(Exception):
    """The process died here: what was written before stays written."""


@dataclass(slots=True, kw_only=True)
class _Job:
    row: Row
    site_factor: int = 0
    time_min: int = 0  # minutes; 0: none
    touched: str = ""  # why an admin's hand is on it
    written: dict[JobSetting, list[int]] = field(
        default_factory=lambda: {setting: [] for setting in JobSetting}
    )  # by Helios


@dataclass(slots=True, kw_only=True)
class _Faults:
    unavailable: int = 0
    swallowed: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    crash_after: int | None = None


class FakeCluster:
    """A :class:`helios.ports.Cluster` in memory.

    Parameters
    ----------
    name : str
        The cluster's name.
    now : datetime
        What its clock shows; :meth:`tick` moves it.
    nodes : sequence of rows
        As :func:`~helios.testing.a_node` gives them.
    site_factor_most : int
        Bound of the SiteFactor either way: the resolution of an urgency.
    soft_limits : bool
        Whether the site has switched soft limits on; otherwise they are refused.
    writes_per_cycle : int, optional
        Most writes of one ``apply``, in the order asked; the rest is postponed. None: any number.

    Attributes
    ----------
    writes : int
        How many writes reached a job.
    looks : int
        How many snapshots were taken.
    applied : list of tuple of JobAction
        What each ``apply`` was given.
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
        self.name = name
        self.now = now
        self.nodes = [a_node()] if nodes is None else list(nodes)
        self.soft_limits = soft_limits
        self.writes_per_cycle = writes_per_cycle
        self.writes = 0
        self.looks = 0
        self.applied: list[tuple[JobAction, ...]] = []
        self._most = site_factor_most
        self._terms = slurm_value_mapping(site_factor=self.site_factor)
        self._jobs: dict[str, _Job] = {}
        self._faults = _Faults()
        self._left: float = 0

    # What users, time and the site do.

    def submit(self, **overrides: Any) -> str:
        """Queue a job, submitted now unless said otherwise, and return its id; columns as in ``a_pending_job``.

        ``urgency``, ``soft_limit_s`` and ``user_soft_limit_s`` become what Slurm would hold for them; the first two
        as if Helios' hook had written them.
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
        """Let a pending job start now."""
        job = self._jobs[job_id]
        job.row = a_running_job(**(job.row | {"state": "RUNNING", "started_at": self.now, "node_list": node_list}))

    def end(self, job_id: str) -> None:
        """Let a job end, or be cancelled: the cluster forgets it."""
        del self._jobs[job_id]

    def requeue(self, job_id: str) -> None:
        """Put a running job back in the queue; what Helios set stays, as on Slurm."""
        row = self._jobs[job_id].row
        back = {"state": "PENDING", "started_at": None, "node_list": None, "restart": row.get("restart", 0) + 1}
        self._jobs[job_id].row = row | back

    def alter(self, job_id: str, **columns: Any) -> None:
        """Let the user change a job: any columns of ``QUEUE`` but those that Helios sets."""
        self._jobs[job_id].row = a_pending_job(**(self._jobs[job_id].row | columns))

    def tick(self, passes: timedelta) -> None:
        """Let time pass."""
        self.now += passes

    # What an admin does.

    def hold(self, job_id: str) -> None:
        """Hold a job; its SiteFactor stays, as on Slurm."""
        self._jobs[job_id].touched = "held"
        self._jobs[job_id].row["priority"] = 0.0

    def unhold(self, job_id: str) -> None:
        """Release a held job."""
        self._jobs[job_id].touched = ""
        self._jobs[job_id].row["priority"] = 100_000.0

    def admin_sets_priority(self, job_id: str, priority: float) -> None:
        """Set a job's priority directly; from now on its SiteFactor has no effect, and Helios keeps off."""
        self._jobs[job_id].touched = "its priority was set directly"
        self._jobs[job_id].row["priority"] = float(priority)

    def admin_sets_site_factor(self, job_id: str, site_factor: int) -> None:
        """Set a SiteFactor past Helios; one without its mark is the admin's own, 0 takes Helios' back."""
        self._jobs[job_id].site_factor = site_factor

    def admin_sets_time_min(self, job_id: str, minutes: int) -> None:
        """Set a TimeMin past Helios; 0 clears."""
        self._jobs[job_id].time_min = minutes

    # What goes wrong.

    def fail_next(self, *, times: int = 1) -> None:
        """Answer the next ``times`` calls of ``snapshot`` or ``apply`` with ``ClusterUnavailable``."""
        self._faults.unavailable = times

    def swallow_writes(self, *, times: int = 1) -> None:
        """Accept the next ``times`` writes and change nothing, as a backfill pass that puts the old value back."""
        self._faults.swallowed = times

    def refuse_writes(self, job_id: str, *, answer: str = "Access/permission denied") -> None:
        """Answer every write to this job with ``answer``; an empty text makes it well again."""
        self._faults.refused[job_id] = answer

    def crash_after(self, *, writes: int) -> None:
        """Raise :class:`Crash` in ``apply`` when ``writes`` more writes were made; once."""
        self._faults.crash_after = writes

    # What a test wants to know.

    @property
    def queue(self) -> list[str]:
        """Ids of the pending jobs, first to start first."""
        return [str(job.row["job_id"]) for job in self._in_order()]

    def site_factor_of(self, job_id: str) -> int:
        """Return a job's SiteFactor, whoever set it."""
        return self._jobs[job_id].site_factor

    def time_min_of(self, job_id: str) -> int:
        """Return a job's TimeMin in minutes, whoever set it; 0: none."""
        return self._jobs[job_id].time_min

    def urgency_of(self, job_id: str) -> float:
        """Return the urgency that Helios has set on a job; 0 where the SiteFactor is not its own."""
        return self._urgency(self._jobs[job_id])

    def site_factor(self, urgency: float) -> int:
        """Return the SiteFactor that stands for ``urgency`` here."""
        return ownership.site_factor(urgency, most=self._most)

    # The socket.

    def snapshot(self) -> Snapshot:
        """Look."""
        self._answer()
        self.looks += 1
        running = [job for job in self._jobs.values() if not _is_pending(job)]
        return a_snapshot(
            pending=[self._seen(job) for job in self._in_order()],
            running=sorted((self._seen(job) for job in running), key=lambda row: row["started_at"]),
            nodes=self.nodes,
            taken_at=self.now,
            cluster=self.name,
        )

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, read back, and say what became of each job."""
        self._answer()
        self.applied.append(tuple(actions))
        self._left = math.inf if self.writes_per_cycle is None else self.writes_per_cycle
        return [outcome for action in actions for outcome in self._carried_out(action)]

    def _carried_out(self, action: JobAction) -> list[Outcome]:
        changes = setting_changes(action, self._terms, pending=self._pending_ids, is_set=self._is_set)
        return [self._became(change) for change in changes]

    def _became(self, change: SettingChange[int]) -> Outcome:
        job = self._pending(change.job_id)
        if job is None:
            return change.outcome(Result.GONE, remark=GONE)
        said = judge_change(change, self._ground(change, job))
        if said is not None:
            return said
        before = _value(job, change.setting)
        if self._left == 0:
            return change.outcome(Result.POSTPONED, before=before, remark="the writes of this cycle are spent")
        return self._write(change, job, before)

    def _ground(self, change: SettingChange[int], job: _Job) -> ChangeContext:
        value, limit_s = _value(job, change.setting), job.row["time_limit_s"]
        hidden = self._hides(change.setting, job)
        is_marked = not hidden and _is_marked(change.setting, value)
        return ChangeContext(
            before=None if hidden else value,
            is_set=not hidden and _is_ours(job, change.setting),
            excluded_reason=self._excluded_reason(job),
            soft_limits=self.soft_limits,
            time_limit=0 if limit_s is None or math.isinf(limit_s) else round(limit_s / 60),
            hidden=_last(job, change.setting) if hidden else 0,
            suspect=UNPROVED if is_marked and not _is_ours(job, change.setting) else "",
        )

    def _is_set(self, setting: JobSetting, job_id: str) -> bool:
        job = self._jobs[job_id]
        return bool(_last(job, setting)) if self._hides(setting, job) else _is_marked(setting, _value(job, setting))

    def _hides(self, setting: JobSetting, job: _Job) -> bool:
        # As on Slurm, whose sprio says nothing of a job that is held or not eligible.
        return setting is JobSetting.ORDER and (bool(job.touched) or not _is_eligible(job, self.now))

    def _write(self, change: SettingChange[int], job: _Job, before: int) -> Outcome:
        refusal = self._faults.refused.get(change.job_id, "")
        if refusal:
            return change.outcome(Result.FAILED, before=before, remark=refusal)
        self._count_a_write()
        job.written[change.setting].append(change.wanted)
        if self._faults.swallowed > 0:
            self._faults.swallowed -= 1
        elif change.setting is JobSetting.ORDER:
            job.site_factor = change.wanted
        else:
            job.time_min = change.wanted
        after = _value(job, change.setting)
        return change.outcome(Result.DONE if after == change.wanted else Result.MISMATCH, before=before, after=after)

    def _count_a_write(self) -> None:
        if self._faults.crash_after == 0:
            self._faults.crash_after = None
            raise Crash("told to crash at this write")
        if self._faults.crash_after is not None:
            self._faults.crash_after -= 1
        self._left -= 1
        self.writes += 1

    def _answer(self) -> None:
        if self._faults.unavailable > 0:
            self._faults.unavailable -= 1
            raise ClusterUnavailable(f"cluster {self.name} was told not to answer", hint="Call it again.")

    def _pending(self, job_id: str) -> _Job | None:
        job = self._jobs.get(job_id)
        return job if job is not None and _is_pending(job) else None

    def _pending_ids(self) -> list[str]:
        return [job_id for job_id, job in self._jobs.items() if _is_pending(job)]

    def _seen(self, job: _Job) -> Row:
        ours = _is_ours(job, JobSetting.SOFT_LIMIT)
        return job.row | {
            "priority": self._priority(job),
            "urgency": self._urgency(job),
            "soft_limit_s": job.time_min * 60.0 if ours else None,
            "user_soft_limit_s": job.time_min * 60.0 if job.time_min and not ours else None,
            "excluded_reason": self._excluded_reason(job) or None,
        }

    def _in_order(self) -> list[_Job]:
        return sorted((job for job in self._jobs.values() if _is_pending(job)), key=self._place_in_queue)

    def _excluded_reason(self, job: _Job) -> str:
        if job.touched or job.row.get("excluded_reason"):
            return job.touched or str(job.row["excluded_reason"])
        foreign = job.site_factor and not _is_ours(job, JobSetting.ORDER)
        return f"an admin set SiteFactor {job.site_factor}" if foreign else ""

    def _urgency(self, job: _Job) -> float:
        seen = not job.touched and _is_ours(job, JobSetting.ORDER)
        return ownership.urgency(job.site_factor, most=self._most) if seen else 0.0

    def _priority(self, job: _Job) -> float:
        return float(job.row["priority"]) if job.touched else float(job.row["priority"] + job.site_factor)

    def _place_in_queue(self, job: _Job) -> tuple[float, pd.Timestamp, int, str]:
        job_id = str(job.row["job_id"])
        return (-self._priority(job), job.row["submitted_at"], len(job_id), job_id)


def _is_pending(job: _Job) -> bool:
    return bool(job.row["state"] == "PENDING")


def _is_eligible(job: _Job, now: datetime) -> bool:
    eligible_at = job.row["eligible_at"]
    return eligible_at is not None and bool(eligible_at <= now)


def _is_marked(setting: JobSetting, value: int) -> bool:
    return ownership.has_helios_mark(value) if setting is JobSetting.ORDER else ownership.has_helios_time_min(value)


def _is_ours(job: _Job, setting: JobSetting) -> bool:
    value = _value(job, setting)
    return _is_marked(setting, value) and value in job.written[setting]


def _last(job: _Job, setting: JobSetting) -> int:
    """Return what Helios wrote last, unless something else was put in its place where it can be seen."""
    return job.written[setting][-1] if job.written[setting] else 0


def _value(job: _Job, setting: JobSetting) -> int:
    return job.site_factor if setting is JobSetting.ORDER else job.time_min


# A ledger in memory: leases, fencing tokens and an audit that behave, and failures when asked for.


class FakeLedger:
    """A :class:`helios.ports.Ledger` in memory.

    Parameters
    ----------
    domain : Domain
        Whose: it says what stands changed in columns of ``APPLIED_CHANGES``, or of ``APPLIED_NODE_CHANGES``.

    Attributes
    ----------
    domain : Domain
        As it was given.
    records : int
        How often :meth:`record` succeeded.
    token : int
        The current fencing token; 0 before anybody held the lease.
    holder : str or None
        Who has the lease, though it may have run out; None: nobody.
    """

    def __init__(self, *, domain: Domain = Domain.JOBS) -> None:
        self.records = 0
        self.token = 0
        self.holder: str | None = None
        self._until: datetime | None = None
        self._written: list[pd.DataFrame] = []
        self.domain = domain
        self._kind = APPLIED_NODE_CHANGES if domain is Domain.NODES else APPLIED_CHANGES
        self._applied_changes = self._kind.empty()
        self._failing = 0
        self._well_until_failing = 0

    @property
    def decisions(self) -> pd.DataFrame:
        """Everything recorded, columns of ``DECISIONS``, oldest first."""
        return _stacked(self._written)

    def fail_next(self, *, times: int = 1, after: int = 0) -> None:
        """Let ``after`` more calls pass, then answer ``times`` calls of any kind with ``WarehouseUnavailable``."""
        self._failing, self._well_until_failing = times, after

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the lease, as :class:`helios.ports.Ledger` says."""
        self._answer()
        if self.holder not in {None, holder} and self._until is not None and now < self._until:
            self._until = min(self._until, now + max(lasts, LONGEST_LEASE))
            return None
        if self.holder != holder:
            self.token += 1
        self.holder = holder
        self._until = now + lasts
        return self.token

    def release(self, *, holder: str) -> None:
        """Give the lease back, if ``holder`` has it."""
        self._answer()
        if self.holder == holder:
            self.holder = None

    def applied_changes(self) -> pd.DataFrame:
        """Return what stands changed."""
        self._answer()
        return self._applied_changes.copy()

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Append and replace in one step; nothing is kept when it raises."""
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
        self._applied_changes = (
            self._applied_changes if applied_changes is None else applied_changes.reset_index(drop=True)
        )
        self.records += 1

    def _answer(self) -> None:
        if self._well_until_failing > 0 and self._failing > 0:
            self._well_until_failing -= 1
        elif self._failing > 0:
            self._failing -= 1
            raise WarehouseUnavailable("the ledger was told to fail", hint="Call it again.")


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    # Text instead of categories: two frames with other categories do not add up to a category.
    rows = [frame[DECISIONS.names].astype(object) for frame in frames]
    return DECISIONS.conform(pd.concat(rows, ignore_index=True)) if rows else DECISIONS.empty()
