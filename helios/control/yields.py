"""Running jobs that yield their GPUs to jobs before their first targets.

It takes several cycles: ask for a checkpoint by the signal that the owner named, wait until the program confirms one,
requeue, and see that it happened. What was asked is stored before it is done. A request that the next cycle does not
carry on is dropped, so that a pause, a release, another leader or a service that is off end it by doing nothing. That
no guard can be switched off holds here as in ``guards``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from helios.actions import Result, Yield
from helios.config import Control
from helios.control.cycle import ActiveService, Cycle
from helios.control.modes import OUTSIDE
from helios.control.report import AuditEntry
from helios.errors import HeliosError
from helios.model import Snapshot
from helios.model.targets import READY_REASONS, UNCONSIDERED, TargetJob
from helios.ports import YieldCluster

HOUR_S = 3_600
"""A job that was asked is not asked again so long, and the budget of the cluster counts so far back, s."""
SERVED_S = 600
"""Nobody else is asked for a waiting job so long after a job was requeued for it, s."""
CONFIRM_S = 120
"""Time in which Slurm must show that an accepted requeue happened, s; it took 1 s (22.05.8)."""
KEPT_S = 30 * 86_400
"""Time for which it is remembered how often a job yielded, s."""
NOT_UP = ("DOWN", "UNKNOWN", "FUTURE", "ERROR")
"""States of nodes whose GPUs are not free."""
ENDED = "it has ended, or changes its state just now"
CANNOT = "this cluster cannot ask a running job to yield"
DROPPED = "Helios was paused, stopped or suspended, or its service may not act"


class Stage(StrEnum):
    """Stage of a request to yield."""

    ASKED = "asked for a checkpoint"
    SENT = "requeue was sent"
    DONE = "requeued"
    NOTHING = "nothing was done"


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldRecord:
    """A request to yield, and what became of it.

    Attributes
    ----------
    job_id, for_job : str
        The job that is asked, and the one that waits.
    restart, started_s : int
        The run that is asked.
    checkpoint_s : int
        The last checkpoint that was reported before.
    asked_s, changed_s : int
        When it was asked, and when its stage changed last, s since the epoch.
    service, mode : str
        The service that asks, and its mode.
    why : str
        Why nothing was done; empty otherwise.
    """

    job_id: str
    for_job: str
    restart: int
    started_s: int
    checkpoint_s: int
    asked_s: int
    changed_s: int
    service: str
    mode: str
    stage: Stage = Stage.ASKED
    why: str = ""


@dataclass(slots=True, kw_only=True)
class YieldStore:
    """Storage of the requests, which outlives the process.

    Attributes
    ----------
    load, save : callable
        Read and replace the stored text. They raise a :class:`HeliosError` where they cannot.
    interrupted : bool
        Whether there may be requests that the last cycle did not carry on: after a start, or a cycle without a lease or
        without this storage. The next cycle drops them and does no more.
    """

    load: Callable[[], str]
    save: Callable[[str], None]
    interrupted: bool = True

    def read(self) -> list[YieldRecord]:
        """Return the requests, oldest first.

        Raises
        ------
        HeliosError
            They cannot be read: then nobody is asked.
        """
        try:
            rows = json.loads(self.load() or "[]")
            return [YieldRecord(**(row | {"stage": Stage(row["stage"])})) for row in rows]
        except (ValueError, TypeError, KeyError) as reason:
            raise HeliosError(
                f"who was asked to yield cannot be read: {reason}", hint="Switch the service targets off: helios mode"
            ) from reason

    def write(self, records: Sequence[YieldRecord], *, now_s: int) -> None:
        """Replace the requests, without those of long ago."""
        self.save(json.dumps([asdict(one) for one in records if one.changed_s > now_s - KEPT_S]))

    def drop(self, why: str, *, now: datetime) -> None:
        """End all requests that were not carried out."""
        records, now_s = self.read(), _seconds(now)
        if any(one.stage is Stage.ASKED for one in records):
            self.write([_ended(one, why, now_s) if one.stage is Stage.ASKED else one for one in records], now_s=now_s)


def _ended(record: YieldRecord, why: str, now_s: int) -> YieldRecord:
    return replace(record, stage=Stage.NOTHING, why=why, changed_s=now_s)


def in_memory() -> YieldStore:
    """Return a store that ends with the process."""
    held = [""]
    return YieldStore(load=lambda: held[0], save=lambda text: held.__setitem__(0, text))


class Yields:
    """The requests to yield within one control cycle.

    Parameters
    ----------
    cluster : object
        The cluster; one that is no :class:`YieldCluster` refuses.
    settings : Control
        Bounds of the requests.
    store : YieldStore
        What was asked before.
    acts : bool
        Whether anything may be asked. Otherwise it is only told what would be.

    Attributes
    ----------
    stopped : bool
        Whether a kill switch was used since the last cycle, so that nothing is carried on or asked in this one.
    """

    def __init__(self, cluster: object, settings: Control, store: YieldStore, *, acts: bool = True) -> None:
        self.cluster = cluster if isinstance(cluster, YieldCluster) else None
        self.settings, self.store, self.acts, self.stopped = settings, store, acts, False
        self.carried_on: set[str] = set()
        self._records: list[YieldRecord] | None = None

    @property
    def records(self) -> list[YieldRecord]:
        """The requests, read once in a cycle."""
        if self._records is None:
            self._records = self.store.read()
        return self._records

    def advance(self, cycle: Cycle, services: Sequence[ActiveService]) -> None:
        """Carry on requests, make those that services propose, and confirm requeues.

        A proposal that a guard refuses is logged where that is new.

        Raises
        ------
        HeliosError
            The requests cannot be read or stored, or the cluster cannot be reached; nothing more is done.
        """
        if self.stopped or (self.acts and self.store.interrupted):
            return
        for active in services:
            requested = cycle.requested.get(active.name)
            self._advance_service(cycle, active, () if requested is None else requested.yields)
        for record in [one for one in (self.records if self.acts else ()) if one.stage is Stage.SENT]:
            self._confirm(cycle, record, None if cycle.snapshot is None else _found(cycle.snapshot, record.job_id))

    def _advance_service(self, cycle: Cycle, active: ActiveService, proposals: Sequence[Yield]) -> None:
        writes = active.mode.writes and self.acts
        if not (writes or proposals):
            return
        for record in [one for one in self.records if writes and one.stage is Stage.ASKED]:
            if record.service == active.name:
                self._carry_on(cycle, active, record)
        for proposal in proposals:
            if self._is_served(proposal, now_s=_seconds(cycle.now)):
                continue
            why = self.refusal(cycle, active, proposal)
            if why or not writes:
                self._tell(cycle, active, proposal, why)
            else:
                self._ask(cycle, active, proposal)

    def settle(self, cycle: Cycle) -> None:
        """Drop requests that were not carried on.

        A failure is a note: the next cycle does it.
        """
        if not self.acts:
            return
        self.store.interrupted = self.store.interrupted or cycle.token is None
        if cycle.token is None:
            return  # where another Helios leads, they are its own
        try:
            for record in list(self.records):
                if record.stage is Stage.ASKED and record.job_id not in self.carried_on:
                    self._end(cycle, record, DROPPED)
            self.store.interrupted = False
        except HeliosError as error:
            self.store.interrupted = True
            cycle.audit.notes.append(f"requests to yield: {error.message}")

    def refusal(self, cycle: Cycle, active: ActiveService, proposal: Yield) -> str:
        """Return why a job may not be asked now.

        The text is for a person, and empty where it may.
        """
        snapshot = cycle.snapshot
        job = None if snapshot is None else _found(snapshot, proposal.job_id)
        if self.cluster is None:
            return CANNOT
        if snapshot is None or job is None:
            return ENDED
        return (
            _why_outside(active, job)
            or why_not_yield(job, self.records, self.settings, now_s=_seconds(cycle.now))
            or why_no_use(snapshot, job, _found(snapshot, proposal.for_job))
        )

    def _is_served(self, proposal: Yield, *, now_s: int) -> bool:
        """Return whether one of the two jobs has such a request already."""
        return proposal.job_id in self.carried_on or any(
            one.stage in {Stage.ASKED, Stage.SENT}
            or (one.stage is Stage.DONE and one.for_job == proposal.for_job and one.changed_s > now_s - SERVED_S)
            for one in self.records
            if proposal.job_id == one.job_id or proposal.for_job == one.for_job
        )

    def _ask(self, cycle: Cycle, active: ActiveService, proposal: Yield) -> None:
        now_s = _seconds(cycle.now)
        job = self._read_again(cycle, active, proposal.job_id, proposal.for_job)
        if isinstance(job, str):
            self._tell(cycle, active, proposal, job)
            return
        assert self.cluster is not None and job.note is not None  # _read_again refuses without them
        record = YieldRecord(
            job_id=job.job_id,
            for_job=proposal.for_job,
            restart=job.restart,
            started_s=job.started_s,
            checkpoint_s=job.note.checkpoint_s,
            asked_s=now_s,
            changed_s=now_s,
            service=active.name,
            mode=active.mode.mode,
        )
        self._record_intent(cycle, record, f"will send {job.note.signal}")
        self.carried_on.add(job.job_id)
        if complaint := self.cluster.ask_for_checkpoint(job):
            self._end(cycle, record, f"Slurm did not send the signal: {complaint}", bad=True)
            return
        within = f"{self.settings.yield_checkpoint_s / 60:g} min"
        asked = f"asked for a checkpoint by {job.note.signal}; requeued only if it confirms one within {within}"
        self._log(cycle, record, Result.DONE, asked, reason=proposal.reason, before=_state(job))

    def _carry_on(self, cycle: Cycle, active: ActiveService, record: YieldRecord) -> None:
        """Requeue a job that was asked, if everything still speaks for it."""
        now_s = _seconds(cycle.now)
        self.carried_on.add(record.job_id)
        try:
            job = self._read_again(cycle, active, record.job_id, record.for_job, asked=record)
            if not isinstance(job, str) and not _has_saved(job, record):
                late = now_s - record.asked_s > self.settings.yield_checkpoint_s
                job = "it confirmed no checkpoint in time" if late else ""
            if isinstance(job, str):
                if job:
                    self._end(cycle, record, job)
                return
            sent = replace(record, stage=Stage.SENT, changed_s=now_s)
            self._record_intent(cycle, sent, "will requeue it")
            job = self._read_again(
                cycle, active, record.job_id, record.for_job, asked=record
            )  # right before it is done
        except Exception:
            self.carried_on.discard(record.job_id)
            self._save(record, now_s)  # it was not sent
            raise
        assert self.cluster is not None
        if isinstance(job, str):
            self._end(cycle, sent, job)
        elif complaint := self.cluster.requeue_job(job):
            self._end(cycle, sent, f"Slurm refused the requeue: {complaint}", bad=True)
        else:
            self._confirm(cycle, sent, self.cluster.read_target(record.job_id), before=_state(job))

    def _read_again(
        self, cycle: Cycle, active: ActiveService, job_id: str, for_job: str, *, asked: YieldRecord | None = None
    ) -> TargetJob | str:
        """Return a job as it is now, or why it must be left."""
        cycle.check_may_write()
        if self.cluster is None or cycle.snapshot is None:
            return CANNOT
        job = self.cluster.read_target(job_id)
        if job is None:
            return ENDED
        if asked is not None and (job.restart, job.started_s) != (asked.restart, asked.started_s):
            return "it was requeued or started again meanwhile"
        others = [one for one in self.records if asked is None or one.asked_s != asked.asked_s]
        why = _why_outside(active, job) or why_not_yield(
            job, others, self.settings, now_s=_seconds(cycle.now), begun=asked is not None
        )
        why = why or why_no_use(cycle.snapshot, job, self.cluster.read_target(for_job), begun=asked is not None)
        return why or job

    def _confirm(self, cycle: Cycle, record: YieldRecord, job: TargetJob | None, *, before: str = "") -> None:
        """Look whether a requeue happened."""
        now_s = _seconds(cycle.now)
        if job is not None and job.restart > record.restart:
            self._save(replace(record, stage=Stage.DONE, changed_s=now_s), now_s)
            cycle.audit.changed.add(record.job_id)
            reason = "its checkpoint is confirmed"
            self._log(
                cycle, record, Result.DONE, "requeued, and read back", reason=reason, before=before, after=_state(job)
            )
            cycle.record_entries()
        elif now_s - record.changed_s > CONFIRM_S:
            self._end(cycle, record, "a requeue was meant, and none was seen", bad=True)

    def _end(self, cycle: Cycle, record: YieldRecord, why: str, *, bad: bool = False) -> None:
        now_s = _seconds(cycle.now)
        self._save(_ended(record, why, now_s), now_s)
        cycle.audit.bad |= bad
        what = f"{why}; nothing was done; not asked again before {_clock(record.asked_s + HOUR_S)}"
        self._log(cycle, record, Result.FAILED if bad else Result.REFUSED, what, reason="it was asked to yield")
        cycle.record_entries()

    def _record_intent(self, cycle: Cycle, record: YieldRecord, what: str) -> None:
        """Store what is to be done before it is done.

        Raises
        ------
        HeliosError
            It could not be stored.
        """
        self._save(record, _seconds(cycle.now))
        cycle.audit.lines.append(_entry(record, "meant", reason=what))
        if not cycle.record_entries():
            raise HeliosError("a request to yield could not be written down, so it was not made")
        cycle.check_may_write()

    def _save(self, record: YieldRecord, now_s: int) -> None:
        others = [one for one in self.records if (one.job_id, one.asked_s) != (record.job_id, record.asked_s)]
        self._records = [*others, record]
        self.store.write(self._records, now_s=now_s)

    def _tell(self, cycle: Cycle, active: ActiveService, proposal: Yield, why: str) -> None:
        """Log a new refusal, or in shadow what would be done."""
        result = Result.REFUSED if why else Result.WOULD
        cycle.audit.count(active.name, result)
        if cycle.audit.is_news(active.name, f"{Yield.__name__} {proposal.job_id} {why}"):
            outcome = f"{result}: {why or 'ask it for a checkpoint, and requeue it then'}"
            entry = AuditEntry(
                service=active.name,
                mode=active.mode.mode,
                action=Yield.__name__,
                target=proposal.job_id,
                reason=proposal.reason,
                outcome=outcome,
            )
            cycle.audit.lines.append(entry)

    def _log(
        self,
        cycle: Cycle,
        record: YieldRecord,
        result: Result,
        what: str,
        *,
        reason: str,
        before: str = "",
        after: str = "",
    ) -> None:
        cycle.audit.count(record.service, result)
        cycle.audit.lines.append(
            replace(_entry(record, f"{result}: {what}", reason=reason), before=before or None, after=after or None)
        )


def _entry(record: YieldRecord, outcome: str, *, reason: str) -> AuditEntry:
    return AuditEntry(
        service=record.service,
        mode=record.mode,
        action=Yield.__name__,
        target=record.job_id,
        reason=reason,
        outcome=outcome,
    )


def _found(snapshot: Snapshot, job_id: str) -> TargetJob | None:
    return next((job for job in snapshot.targets if job.job_id == job_id), None)


def _why_outside(active: ActiveService, job: TargetJob) -> str:
    return "" if active.mode.reaches(job.job_id, partitions=job.partition.split(",")) else OUTSIDE


def _has_saved(job: TargetJob, record: YieldRecord) -> bool:
    """Return whether a job has saved a checkpoint since it was asked.

    Not by clocks alone: the report must have changed, too.
    """
    saved_s = 0 if job.note is None else job.note.checkpoint_s
    return saved_s > record.checkpoint_s and saved_s >= record.asked_s


def why_not_yield(
    job: TargetJob, records: Sequence[YieldRecord], settings: Control, *, now_s: int, begun: bool = False
) -> str:
    """Return why a job may not be asked to yield now.

    The text is for a person, and empty where it may.

    Parameters
    ----------
    records : sequence of YieldRecord
        Other requests.
    begun : bool
        Whether it was asked already, so that its run and the budget were looked at.
    """
    if why := job.why_not_asked():
        return why
    mine = [one for one in records if one.job_id == job.job_id]
    requeued = sum(one.stage in {Stage.SENT, Stage.DONE} for one in mine)
    if requeued >= settings.yield_most_per_job:
        return f"it has yielded {requeued} times, and may {settings.yield_most_per_job} times"
    return "" if begun else _why_too_soon(job, mine, settings, now_s) or _why_over_budget(records, settings, now_s)


def _why_too_soon(job: TargetJob, mine: Sequence[YieldRecord], settings: Control, now_s: int) -> str:
    if not job.started_s or now_s - job.started_s < settings.yield_least_run_s:
        least = f"{settings.yield_least_run_s / 60:g} min"
        return f"it has run less than {least} since its start at {_clock(job.started_s)}"
    again_s = max((one.asked_s for one in mine), default=0) + HOUR_S
    if now_s < again_s:
        return f"it was asked less than an hour ago, and may be again after {_clock(again_s)}"
    return ""


def _why_over_budget(records: Sequence[YieldRecord], settings: Control, now_s: int) -> str:
    asked = sum(one.asked_s > now_s - HOUR_S for one in records)
    return (
        f"{asked} jobs were asked to yield within an hour, the budget" if asked >= settings.yield_most_per_hour else ""
    )


def why_no_use(snapshot: Snapshot, job: TargetJob, other: TargetJob | None, *, begun: bool = False) -> str:
    """Return why the GPUs of a job would not help another one.

    The text is for a person, and empty where they would.

    Parameters
    ----------
    begun : bool
        Whether the job was asked already. Then it is enough that Slurm has not looked at the other one yet: it forgets
        why a job waits whenever its priority is changed (22.05.8).
    """
    if other is None or not other.wants_first:
        return "the job that waited for a first target does not wait any more"
    if not other.waits_for_first and not (begun and other.reason in UNCONSIDERED):
        return f"the job that waits for a first target could not start now (Slurm says {other.reason or 'nothing'})"
    if not job.can_free(other):
        return "its GPUs are not what the waiting job asks for"
    nodes = snapshot.nodes[[job.partition in str(names).split(",") for names in snapshot.nodes["partitions"]]]
    free = (nodes["gpus"] - nodes["gpus_held"])[~nodes["state"].isin(NOT_UP)]
    if len(free) and (free.max() if other.nodes <= 1 else free.sum()) >= other.gpus:
        return "GPUs are free for the waiting job without it"
    first = {one.job_id for one in snapshot.targets if one.wants_first}
    pending = (snapshot.pending[name] for name in ("job_id", "partition", "reason"))
    for job_id, partitions, reason in zip(*pending, strict=True):
        if job_id == other.job_id:
            break
        ready = reason in READY_REASONS or reason in UNCONSIDERED or not isinstance(reason, str)  # NaN is unknown
        if ready and job_id not in first and job.partition in str(partitions).split(","):
            return "somebody without a first target to reach comes before the waiting job, and would get the GPUs"
    return ""


def describe_target(
    snapshot: Snapshot, job_id: str, records: Sequence[YieldRecord], settings: Control
) -> tuple[str, ...]:
    """Return where a job stands, and what became of requests to yield."""
    if (job := _found(snapshot, job_id)) is None:
        return ()
    if job.note is None:
        return (f"Its comment names a target that is not understood: {job.problem}.",)
    now_s = int(snapshot.taken_at.timestamp())
    mine = [one for one in records if one.job_id == job_id]
    lines = [f"Target: {job.note}."]
    for one in mine[-3:]:
        what = f"{one.stage}" + (f" at {_clock(one.changed_s)}" if one.stage is not Stage.ASKED else "")
        lines.append(
            f"At {_clock(one.asked_s)} it was asked to yield to job {one.for_job}: "
            f"{what}{f' ({one.why})' if one.why else ''}."
        )
    lines += [
        f"At {_clock(one.changed_s)} job {one.job_id} yielded to it."
        for one in records
        if one.for_job == job_id and one.stage is Stage.DONE
    ]
    if job.state == "RUNNING":
        why = why_not_yield(job, [one for one in records if one.stage is not Stage.ASKED], settings, now_s=now_s)
        lines.append(f"It may not be asked to yield now: {why}." if why else "It may be asked to yield.")
    return tuple(lines)


def _state(job: TargetJob) -> str:
    return f"{job.state}, restart {job.restart}"


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _clock(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
