"""Jobs of a real Slurm as a ``Cluster``.

Every decision is made from what is read at that moment, never from what was written before, and every write is read
back. A change that Slurm accepted and that is not visible afterwards is a mismatch, not a success: before 26.05.3 a
backfill pass may put an old value back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pandas as pd

from helios import ownership
from helios.actions import JobSetting, Outcome, Result
from helios.changes import (
    CHANGED,
    GONE,
    SOFT_LIMIT_FLAG,
    Change,
    ChangeContext,
    Key,
    Setting,
    ValueMapping,
    check_change,
    each_job,
    slurm_value_mapping,
)
from helios.errors import AnswerNotUnderstood, HeliosError
from helios.model import Mode, Snapshot
from helios.model.targets import TargetJob
from helios.slurm import parse, translate
from helios.slurm.backend import Backend, JobUpdate, RawJob
from helios.slurm.commands import SiteFactor
from helios.slurm.target_jobs import TargetJobs, join_queue
from helios.slurm.undo_file import JobsUndo, UndoEntry, UndoNotWritten

_READY = ("Priority", "Resources")
"""Reasons of pending jobs that sprio lists, as Slurm could start them."""
MISSING_SHARE = 0.25
"""Share of these jobs that do not start between the answers of squeue and sprio."""
FEWEST_MISSING = 5
"""Fewest jobs of that share: of a short queue all may start."""
FEWEST_UNLISTED = 2
"""Fewest jobs of that share which sprio alone names: one may be submitted in between."""

UNSEEN = "it is no longer eligible: it was written, and cannot be read back"
OTHERS = "something else stands, neither that nor what was there before: somebody wrote at the same moment"
BLIND = "0 was written on demand where Slurm hides the value"

MOST_IN_BLOCK = 32
"""Most jobs written after one more look at them.

Slurm has no compare-and-set: what somebody writes between that look and the write is lost. A look takes 5 to 20 ms, and
each of four scontrol writes 8 jobs in about 25 ms (22.05.8); twice as many jobs cost a third of the time less in all.
"""
SPENT = "the writes of this cycle are spent"
UNASKED = "nobody asked for it: it changed while its array was written"
OVERRULED = "a later action of the same call asks otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """Pending jobs and the values of their settings at one moment.

    Attributes
    ----------
    jobs : mapping
        The pending jobs by id.
    factors : mapping
        Site factors from ``sprio``, by id.
    release : tuple of int
        Slurm's release.
    undo : JobsUndo
        What Helios wrote.
    mapping : ValueMapping
        SiteFactor or TimeMin of a requested value.
    soft_limits : bool
        Whether a TimeMin is a soft limit here. Otherwise it lets Slurm shorten the job.
    """

    jobs: Mapping[str, RawJob]
    factors: Mapping[str, SiteFactor]
    release: tuple[int, int]
    undo: JobsUndo
    mapping: ValueMapping[int]
    soft_limits: bool = False

    def value(self, setting: Setting, job_id: str) -> int | None:
        """Return a pending job's current SiteFactor or TimeMin.

        A TimeMin is in minutes, 0 for none. None where the value cannot be read now.
        """
        if setting is JobSetting.SOFT_LIMIT:
            return translate.to_minutes(self.jobs[job_id]["time_min_s"])
        factor = self.factors.get(job_id)
        return None if factor is None or factor.direct else factor.value

    def is_ours(self, setting: Setting, job_id: str) -> bool:
        """Return whether a job's value is Helios' own.

        It is if it has Helios' mark and a record of it exists.
        """
        value, job = self.value(setting, job_id), self.jobs[job_id]
        if value is None:
            return False
        if setting is JobSetting.ORDER:
            return translate.is_helios_site_factor(value, job, self.undo)
        return translate.is_helios_time_min(job, self.undo, release=self.release)

    def hidden(self, job_id: str) -> int:
        """Return the SiteFactor that Helios wrote where Slurm hides the current one.

        0 where there is none, or Slurm shows it.
        """
        shown = self.value(JobSetting.ORDER, job_id) is not None
        return 0 if shown else self.undo.last(JobSetting.ORDER, self.jobs[job_id])

    def suspect(self, setting: Setting, job_id: str) -> str:
        """Return why a value with Helios' mark is left unchanged.

        Empty where the value has no mark, or is proved to be Helios'.
        """
        value = self.value(setting, job_id)
        if not value or self.is_ours(setting, job_id):
            return ""
        if setting is JobSetting.ORDER:
            bears_mark = ownership.has_helios_mark(value)
        else:  # without the flag Helios writes no TimeMin, so it is a user's
            bears_mark = self.soft_limits and ownership.has_helios_time_min(value)
        return translate.no_record_remark(self.undo) if bears_mark else ""

    def is_to_revert(self, setting: JobSetting, job_id: str) -> bool:
        """Return whether reverting everything concerns a setting of a pending job.

        It does also where the value is only reported and left unchanged.
        """
        if self.is_ours(setting, job_id) or self.suspect(setting, job_id):
            return True
        return setting is JobSetting.ORDER and self.hidden(job_id) != 0

    def undo_entry(self, setting: Setting, job_id: str, value: int) -> UndoEntry:
        """Return a pending job's entry of the undo file."""
        job = self.jobs[job_id]
        return UndoEntry(setting=JobSetting(setting), job_id=job["job_id"], submitted=job["submitted"], value=value)


def has_soft_limits(configuration: Mapping[str, str]) -> bool:
    """Return whether TimeMin is a soft limit here."""
    flags = {part.partition("=")[0].strip().lower() for part in configuration.get("SchedulerParameters", "").split(",")}
    release = parse.release(configuration.get("SLURM_VERSION", ""))
    return release >= translate.SOFT_LIMITS_SINCE and SOFT_LIMIT_FLAG in flags


def check_update(change: Change[float], reading: QueueReading) -> Outcome | None:
    """Return the outcome of a change that is not written.

    It is a change that must not, cannot or need not be written. None where the change is to be written.
    """
    setting, job_id = change.setting, change.target
    if job_id not in reading.jobs:
        return change.outcome(Result.GONE, GONE)
    job = reading.jobs[job_id]
    context = ChangeContext(
        mapping=reading.mapping,
        before=reading.value(setting, job_id),
        is_set=reading.is_ours(setting, job_id),
        excluded_reason=translate.excluded_reason(job, reading.factors.get(job_id), reading.undo),
        soft_limits=reading.soft_limits,
        time_limit=translate.to_minutes(job["time_limit_s"]),
        hidden=reading.hidden(job_id) if setting is JobSetting.ORDER else 0,
        hides_site_factor=reading.value(JobSetting.ORDER, job_id) is None,
        suspect=reading.suspect(setting, job_id),
    )
    return check_change(change, context)


def size(change: Change[float], reading: QueueReading, *, most: int) -> float:
    """Return how large a change is, for the order of writes.

    Reverts come first, with 2.5 or 3. Other changes lie between 0 and 2.
    """
    before, wanted = reading.value(change.setting, change.target) or 0, reading.mapping.wanted(change)
    if change.is_revert:
        return 3.0 if before else 2.5
    if change.setting is JobSetting.ORDER:
        return abs(wanted - before) / most
    limit = translate.to_minutes(reading.jobs[change.target]["time_limit_s"])
    return abs(wanted - (before or limit)) / max(limit, wanted)


def now() -> datetime:
    """Return the time, UTC."""
    return datetime.now(UTC)


class SlurmCluster:
    """``Cluster`` over a backend for Slurm.

    Parameters
    ----------
    backend : Backend
        Slurm's commands or pyslurm.
    name : str
        The cluster's name.
    site_factor_most : int
        Largest absolute SiteFactor that is written.
    writes_per_cycle : int
        Most jobs changed by one :meth:`apply`. The largest changes come first, the others are ``POSTPONED``.
    clock : callable
        Returns the time, aware.
    sprio : callable
        Returns the site factors that can be read, of the given jobs or without any of all.
    undo : JobsUndo, optional
        The record of what Helios writes; None for one in memory.
    targets : TargetJobs, optional
        Reads which jobs have targets; None where no service asks for it.
    notes : sequence of str
        Why this backend was chosen, for a person.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        site_factor_most: int,
        writes_per_cycle: int,
        sprio: Callable[[Sequence[str]], Mapping[str, SiteFactor]],
        undo: JobsUndo | None = None,
        targets: TargetJobs | None = None,
        clock: Callable[[], datetime] = now,
        notes: Sequence[str] = (),
    ) -> None:
        self.backend = backend
        self.targets = targets
        self.name = name
        self.notes = tuple(notes)
        self._most = site_factor_most
        self._writes_per_cycle = writes_per_cycle
        self._sprio = sprio
        self._clock = clock
        self._undo = undo or JobsUndo()
        self._queue: list[RawJob] = []
        self._release: tuple[int, int] | None = None

    def snapshot(self) -> Snapshot:
        """Return the cluster's current state, without prediction columns.

        Raises
        ------
        ClusterUnavailable
            The cluster cannot be reached, or did not answer in time.
        """
        taken_at = self._clock()
        self._undo.refresh()
        jobs = self.backend.queue()
        factors, nodes = self._factors_of(jobs), self.backend.nodes()
        noted = self.targets.read() if self.targets else {}
        if self._release is None:
            self._release = parse.release(self.backend.configuration().get("SLURM_VERSION", ""))
        return Snapshot(
            taken_at=taken_at,
            cluster=self.name,
            pending=translate.pending(
                jobs, factors, most=self._most, release=self._release, undo=self._undo, nodes=nodes
            ),
            running=translate.running(jobs, release=self._release, undo=self._undo, nodes=nodes),
            nodes=translate.node_states(nodes),
            targets=join_queue(noted, jobs, self._excluded(noted, jobs, factors)) if noted else (),
        )

    def read_target(self, job_id: str) -> TargetJob | None:
        """Return a job with a target as it is now.

        None where there is no such job.

        Raises
        ------
        ClusterUnavailable
            The cluster cannot be reached.
        """
        noted = self.targets.read([job_id]) if self.targets else {}
        jobs = self.backend.queue([job_id]) if noted else []
        return next(iter(join_queue(noted, jobs, self._excluded(noted, jobs, {}))), None)

    def ask_for_checkpoint(self, job: TargetJob) -> str:
        """Send the signal that the job's owner named, and return Slurm's complaint."""
        return self.targets.signal(job.job_id, job.note.signal) if self.targets and job.note else "it has no target"

    def requeue_job(self, job: TargetJob) -> str:
        """Requeue a job that has not ended, and return Slurm's complaint."""
        return self.targets.requeue(job.job_id) if self.targets else "it has no target"

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        """Apply changes, read back, and return the outcome of each.

        Values are in the undo file before they are written. Right before a block of jobs is written, its jobs are read
        again: what somebody changed meanwhile is not written and is ``REFUSED``. A revert of ``EVERY`` job reverts the
        values that are proved to be Helios' own. It refuses, job by job, values that have the mark but no record, and
        values that Slurm hides. An array task that changed although no change requested it has the outcome
        ``MISMATCH``.

        Raises
        ------
        ClusterUnavailable
            The cluster cannot be reached. Nothing was written.
        UndoNotWritten
            The intended values cannot be recorded. Nothing was written.
        """
        if not changes:
            return []
        reading = self._read_queue()
        changes = list(each_job(changes, pending=lambda: reading.jobs, is_set=reading.is_to_revert))
        checked = {at: check_update(change, reading) for at, change in enumerate(changes)}
        outcomes = {at: outcome for at, outcome in checked.items() if outcome is not None}
        outcomes |= self._left_unwritten(
            {at: change for at, change in enumerate(changes) if at not in outcomes}, reading
        )
        writes = {at: change for at, change in enumerate(changes) if at not in outcomes}
        written, others = self._write(writes, reading) if writes else ({}, [])
        outcomes |= written
        return [*(outcomes[at] for at in range(len(changes))), *others]

    def load_applied_changes(self, applied_changes: pd.DataFrame, *, keep: bool) -> None:
        """Accept the database's applied changes as a second record.

        ``applied_changes`` has the columns of ``APPLIED_CHANGES``. It may be from another Helios that led before.

        Parameters
        ----------
        keep : bool
            Whether to add to the undo file what only the database has, for the script that has no database.
        """
        real = applied_changes[(applied_changes["mode"] != Mode.SHADOW) & ~applied_changes["overridden"].astype(bool)]
        submitted_s = real["submitted_at"].astype("int64") // 1_000_000
        entries = [
            UndoEntry(
                setting=JobSetting(setting),
                job_id=str(job_id),
                submitted=int(submitted),
                value=ownership.site_factor(value, most=self._most)
                if setting == JobSetting.ORDER
                else ownership.time_min(timedelta(seconds=value)),
            )
            for setting, job_id, submitted, value in zip(
                real["setting"], real["job_id"], submitted_s, real["value"].astype(float), strict=True
            )
        ]
        self._undo.refresh()
        self._undo.load(entries)
        if keep:
            with suppress(UndoNotWritten):  # the database still has them
                self._undo.add(entry for entry in entries if entry.value and not self._undo.contains(entry))

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()

    def _excluded(
        self, noted: Mapping[str, TargetJob], jobs: Sequence[RawJob], factors: Mapping[str, SiteFactor]
    ) -> dict[str, str]:
        return {
            job["job_id"]: translate.excluded_reason(job, factors.get(job["job_id"]), self._undo)
            for job in jobs
            if job["job_id"] in noted
        }

    def _read_queue(self) -> QueueReading:
        configuration = self.backend.configuration()
        self._release = parse.release(configuration.get("SLURM_VERSION", ""))
        self._undo.refresh()
        self._queue = self.backend.queue()
        reading = QueueReading(
            jobs=_pending(self._queue),
            factors=self._sprio(()),
            release=self._release,
            undo=self._undo,
            mapping=slurm_value_mapping(site_factor=partial(ownership.site_factor, most=self._most)),
            soft_limits=has_soft_limits(configuration),
        )
        with suppress(UndoNotWritten):  # a kill switch works with a full disk too
            self._undo.add(_undo_file_corrections(reading), queue=self._queue)
        return reading

    def _factors_of(self, jobs: Sequence[RawJob]) -> Mapping[str, SiteFactor]:
        """Return the site factors.

        Raises
        ------
        AnswerNotUnderstood
            Too many jobs that Slurm could start have none, where a missing one reads as a value that somebody took
            away; or it names many jobs that the queue read before does not have, so that this was cut.
        """
        factors = self._sprio(())
        unlisted = len(factors.keys() - {job["job_id"] for job in jobs})
        if unlisted >= max(FEWEST_UNLISTED, MISSING_SHARE * len(factors)):
            raise AnswerNotUnderstood(
                f"sprio names {unlisted} pending jobs that squeue did not list a moment before: its answer was cut.",
                hint="Run squeue by hand as the user that runs Helios.",
            )
        ready = [job["job_id"] for job in jobs if job["state"] == "PENDING" and job["reason"] in _READY]
        missing = len(ready) - len(factors.keys() & set(ready))
        if missing >= max(FEWEST_MISSING, MISSING_SHARE * len(ready)):
            raise AnswerNotUnderstood(
                f"sprio printed nothing of {missing} of {len(ready)} jobs that squeue says are ready to start.",
                hint="Run sprio by hand as the user that runs Helios.",
            )
        return factors

    def _left_unwritten(self, changes: Mapping[int, Change[float]], reading: QueueReading) -> dict[int, Outcome]:
        """Return the outcomes of changes that are not written in this call.

        They are overruled by a later change, or exceed the budget of jobs.
        """
        last = {change.key: at for at, change in changes.items()}
        sizes: dict[str, float] = {}
        for (_, job_id), at in last.items():
            sizes[job_id] = max(sizes.get(job_id, 0.0), size(changes[at], reading, most=self._most))
        first = set(sorted(sizes, key=lambda job_id: -sizes[job_id])[: self._writes_per_cycle])
        outcomes: dict[int, Outcome] = {}
        for at, change in changes.items():
            before = reading.value(change.setting, change.target)
            if last[change.key] != at:
                outcomes[at] = reading.mapping.outcome(change, Result.REFUSED, before=before, remark=OVERRULED)
            elif change.target not in first:
                outcomes[at] = reading.mapping.outcome(change, Result.POSTPONED, before=before, remark=SPENT)
        return outcomes

    def _write(
        self, changes: Mapping[int, Change[float]], reading: QueueReading
    ) -> tuple[dict[int, Outcome], list[Outcome]]:
        """Record changes, write them, read them back, and return their outcomes.

        The second value has the outcomes of jobs that changed although no change was requested for them.
        """
        last = {at: self._undo.last(JobSetting(it.setting), reading.jobs[it.target]) for at, it in changes.items()}
        meant = [reading.undo_entry(it.setting, it.target, reading.mapping.wanted(it)) for it in changes.values()]
        self._undo.add((entry for entry in meant if entry.value), queue=self._queue)
        outcomes, answers = self._write_blocks(changes, reading, last)
        written = {at: change for at, change in changes.items() if at not in outcomes}
        try:
            after = replace(reading, jobs=_pending(self.backend.queue()), factors=self._sprio(()))
        except HeliosError as reason:
            why = f"it was written, but could not be read back: {reason.message}"
            return outcomes | {
                at: reading.mapping.outcome(
                    change,
                    Result.FAILED,
                    before=reading.value(change.setting, change.target),
                    remark=answers[change.target] or why,
                )
                for at, change in written.items()
            }, []
        outcomes |= {
            at: outcome_after(change, reading, after, answers[change.target]) for at, change in written.items()
        }
        # Values that were reverted and are gone, or that were overwritten with 0 where Slurm hides the value.
        gone = [
            after.undo_entry(change.setting, change.target, 0)
            for change in written.values()
            if change.is_revert and change.target in after.jobs and not after.value(change.setting, change.target)
        ]
        with suppress(UndoNotWritten):
            self._undo.add(gone)
        return outcomes, list(_unrequested_changes(written.values(), reading, after))

    def _write_blocks(
        self, changes: Mapping[int, Change[float]], reading: QueueReading, last: Mapping[int, int]
    ) -> tuple[dict[int, Outcome], dict[str, str]]:
        """Read each block of jobs again and write what nobody has changed.

        Returns the outcomes of what was not written, and Slurm's answers by job.

        Parameters
        ----------
        last : mapping
            What Helios was known to have on each setting before these changes.
        """
        outcomes: dict[int, Outcome] = {}
        answers: dict[str, str] = {}
        blocks = list(_blocks(changes, reading))
        for place, block in enumerate(blocks):
            wrote = {it.key: reading.mapping.wanted(it) for it in changes.values() if it.target in answers}
            try:
                again = self._read_again(block.values(), reading)
                refused = {at: why for at, it in block.items() if (why := recheck(it, reading, again, wrote))}
                updates = _to_updates([it for at, it in block.items() if at not in refused], again)
                of_block = self.backend.change(updates) if updates else []
            except HeliosError as reason:
                if not answers:
                    raise
                # Something was written before, which must be read back and reported.
                return outcomes, answers | {it.target: reason.message for of in blocks[place:] for it in of.values()}
            answers |= {update.job_id: answer for update, answer in zip(updates, of_block, strict=True)}
            outcomes |= refused
            with suppress(UndoNotWritten):  # they were recorded as about to be written
                self._undo.add(_entry_of_unwritten(block[at], reading, again, last[at]) for at in refused)
        return outcomes, answers

    def _read_again(self, changes: Collection[Change[float]], reading: QueueReading) -> QueueReading:
        """Return a new reading of the changed jobs alone.

        ``squeue`` is asked only where it matters, for the tasks of an array and a TimeMin.
        """
        job_ids = list(dict.fromkeys(change.target for change in changes))
        soft = {change.target for change in changes if change.setting is JobSetting.SOFT_LIMIT}
        listed = [job_id for job_id in job_ids if job_id in soft or reading.jobs[job_id]["tasks"] > 1]
        jobs = {job_id: reading.jobs[job_id] for job_id in job_ids if job_id not in set(listed)}
        if listed:
            found = _pending(self.backend.queue(listed))
            jobs |= {job_id: found[job_id] for job_id in listed if job_id in found}
        return replace(reading, jobs=jobs, factors=self._sprio(job_ids))


def _blocks(changes: Mapping[int, Change[float]], reading: QueueReading) -> Iterator[dict[int, Change[float]]]:
    """Yield changes in blocks of jobs, arrays first.

    A write to an array also reaches its tasks that have left it.
    """
    of_job: dict[str, dict[int, Change[float]]] = {}
    for at, change in changes.items():
        of_job.setdefault(change.target, {})[at] = change
    arrays = [job_id for job_id in of_job if reading.jobs[job_id]["tasks"] > 1]
    others = [job_id for job_id in of_job if reading.jobs[job_id]["tasks"] <= 1]
    for group in (arrays, others):
        for first in range(0, len(group), MOST_IN_BLOCK):
            block = group[first : first + MOST_IN_BLOCK]
            yield {at: change for job_id in block for at, change in of_job[job_id].items()}


def recheck(
    change: Change[float], before: QueueReading, again: QueueReading, wrote: Mapping[Key, int]
) -> Outcome | None:
    """Return the outcome of a change that may no longer be written.

    None where it is to be written: nobody changed the value since it was decided on, or a revert finds a value that is
    proved to be Helios', such as an older one that a backfill pass put back.

    Parameters
    ----------
    wrote : mapping
        What this call has written already. It reaches a task that has left its array, too.
    """
    outcome = check_update(change, again)
    if change.target not in again.jobs:
        return outcome
    was, now = before.value(change.setting, change.target), again.value(change.setting, change.target)
    array = again.jobs[change.target]["array_job_id"] or ""
    is_known = now in {was, wrote.get((change.setting, array), was)}
    if is_known or now is None or (change.is_revert and again.is_ours(change.setting, change.target)):
        return outcome
    if outcome is not None and outcome.result is Result.UNCHANGED:
        return outcome
    setting, words = JobSetting(change.setting), again.mapping.words
    stood = "what Slurm hid" if was is None else words(setting, was)
    found = f"{words(setting, now)} was found instead of {stood}, and stays"
    return again.mapping.outcome(change, Result.REFUSED, before=now, remark=f"{CHANGED}: {found}")


def _entry_of_unwritten(change: Change[float], before: QueueReading, again: QueueReading, last: int) -> UndoEntry:
    """Return the undo file's last entry of a value that was not written.

    The value was recorded before, as if it had been.
    """
    value = again.value(change.setting, change.target) if change.target in again.jobs else None
    if value is not None:
        last = value if again.is_ours(change.setting, change.target) else 0
    return before.undo_entry(change.setting, change.target, last)


def _pending(jobs: Sequence[RawJob]) -> dict[str, RawJob]:
    return {job["job_id"]: job for job in jobs if job["state"] == "PENDING"}


def outcome_after(change: Change[float], before: QueueReading, after: QueueReading, answer: str) -> Outcome:
    """Return the outcome of a written change.

    It follows from the values read before and after, and from Slurm's answer.
    """
    was, outcome = before.value(change.setting, change.target), partial(before.mapping.outcome, change)
    if change.target not in after.jobs:
        return outcome(Result.GONE, before=was, remark=GONE)
    read = after.value(change.setting, change.target)
    if read == before.mapping.wanted(change):
        return outcome(Result.DONE, before=was, after=read)
    if answer:
        return outcome(Result.FAILED, before=was, after=read, remark=answer)
    if read is not None:
        stands = "what was there before stands" if read == was else OTHERS
        return outcome(Result.MISMATCH, before=was, after=read, remark=f"Slurm accepted it, and {stands}")
    if change.is_revert:
        own, now = before.jobs[change.target]["priority"], after.jobs[change.target]["priority"]
        wrote = before.mapping.words(JobSetting.ORDER, before.hidden(change.target))
        done = outcome(Result.DONE, remark=f"{BLIND}; Helios had written {wrote}")
        return replace(done, before=f"priority {own}", after=f"priority {now}")
    # It was written. With any other outcome it would not be recorded as a change to revert.
    return outcome(Result.DONE, before=was, remark=UNSEEN)


def _undo_file_corrections(reading: QueueReading) -> Iterator[UndoEntry]:
    """Yield corrections to the undo file.

    They are Helios' current values that only another record proves, and values of Helios that something else replaced.
    """
    for job_id, job in reading.jobs.items():
        for setting in JobSetting:
            value, last = reading.value(setting, job_id), reading.undo.last(setting, job)
            if not value and not last:
                continue
            if value == last and reading.undo.has(setting, job, last):
                continue
            if value and reading.is_ours(setting, job_id):
                if not reading.undo.has(setting, job, value):
                    yield reading.undo_entry(setting, job_id, value)
            elif last and value is not None:
                yield reading.undo_entry(setting, job_id, 0)
            elif last and not reading.undo.has(setting, job, last):
                yield reading.undo_entry(setting, job_id, last)


def _unrequested_changes(
    changes: Iterable[Change[float]], before: QueueReading, after: QueueReading
) -> Iterator[Outcome]:
    """Yield the outcomes of array tasks that changed although nobody requested it.

    They are tasks that had left an array before the array was written.
    """
    asked: dict[Key, Change[float]] = {change.key: change for change in changes}
    for job_id, job in before.jobs.items():
        for setting in JobSetting:
            change = asked.get((setting, job["array_job_id"] or ""))
            if change is None or (setting, job_id) in asked or job_id not in after.jobs:
                continue
            was, now = before.value(setting, job_id), after.value(setting, job_id)
            if was is not None and now is not None and was != now:
                task = replace(change, target=job_id)
                yield before.mapping.outcome(task, Result.MISMATCH, before=was, after=now, remark=UNASKED)


def _to_updates(changes: Sequence[Change[float]], reading: QueueReading) -> list[JobUpdate]:
    by_job: dict[str, dict[Setting, int]] = {}
    for change in changes:
        by_job.setdefault(change.target, {})[change.setting] = reading.mapping.wanted(change)
    updates = []
    for job_id, wanted in by_job.items():
        job = reading.jobs[job_id]
        is_master = job["array_job_id"] == job_id
        # The tasks of an array's master, without the bound on how many run at once.
        tasks = (job["array_tasks"] or "").partition("%")[0] if is_master else ""
        site_factor, time_min = wanted.get(JobSetting.ORDER), wanted.get(JobSetting.SOFT_LIMIT)
        updates.append(JobUpdate(job_id=job_id, tasks=tasks, site_factor=site_factor, time_min=time_min))
    return updates
