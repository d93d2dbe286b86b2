"""Jobs of a real Slurm as a :class:`helios.ports.Cluster`.

What to do is judged from what is read at that moment, never from what was written before; whatever is written is read
back. A change that Slurm accepted and that does not show is a mismatch, not a success: before 26.05.3 a backfill pass
may put an old value back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pandas as pd

from helios import ownership
from helios.actions import JobAction, JobSetting, Outcome, Result
from helios.changes import (
    GONE,
    SOFT_LIMIT_FLAG,
    ChangeContext,
    SettingChange,
    judge_change,
    setting_changes,
    slurm_value_mapping,
)
from helios.errors import HeliosError
from helios.model import Mode, Snapshot
from helios.slurm import parse, translate
from helios.slurm.backend import Backend, JobUpdate, RawJob
from helios.slurm.commands import SiteFactor
from helios.slurm.jobs_undo import JobsUndo, Written
from helios.slurm.undo_file import UndoNotWritten

# What was read of a queue at one moment, by setting: the ground that every change is judged on.


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReading:
    """Pending jobs and what stands on them.

    Attributes
    ----------
    jobs : mapping
        The pending jobs by id.
    factors : mapping
        What ``sprio`` says, by id.
    release : tuple of int
        Slurm's release.
    undo : JobsUndo
        What Helios wrote.
    soft_limits : bool
        Whether a TimeMin is a soft limit here; else it lets Slurm shorten the job.
    """

    jobs: Mapping[str, RawJob]
    factors: Mapping[str, SiteFactor]
    release: tuple[int, int]
    undo: JobsUndo
    soft_limits: bool = False

    def value(self, setting: JobSetting, job_id: str) -> int | None:
        """Return a pending job's SiteFactor, or its TimeMin in minutes (0: none); None: it cannot be read now."""
        if setting is JobSetting.SOFT_LIMIT:
            return translate.minutes(self.jobs[job_id]["time_min_s"])
        factor = self.factors.get(job_id)
        return None if factor is None or factor.direct else factor.value

    def is_ours(self, setting: JobSetting, job_id: str) -> bool:
        """Return whether what stands on a pending job is proved to be Helios': its mark, and a record of it."""
        value, job = self.value(setting, job_id), self.jobs[job_id]
        if value is None:
            return False
        if setting is JobSetting.ORDER:
            return translate.is_our_site_factor(value, job, self.undo)
        return translate.is_our_time_min(job, self.undo, release=self.release)

    def hidden(self, job_id: str) -> int:
        """Return the SiteFactor that Helios wrote to a pending job where Slurm hides what stands; 0: none."""
        shown = self.value(JobSetting.ORDER, job_id) is not None
        return 0 if shown else self.undo.last(JobSetting.ORDER, self.jobs[job_id])

    def suspect(self, setting: JobSetting, job_id: str) -> str:
        """Return why a value that bears the mark is left as it is; empty: it bears none, or is proved."""
        value = self.value(setting, job_id)
        if not value or self.is_ours(setting, job_id):
            return ""
        if setting is JobSetting.ORDER:
            bears_mark = ownership.has_helios_mark(value)
        else:  # without the flag Helios writes no TimeMin: there it is a user's
            bears_mark = self.soft_limits and ownership.has_helios_time_min(value)
        return translate.unproved(self.undo) if bears_mark else ""

    def is_to_revert(self, setting: JobSetting, job_id: str) -> bool:
        """Return whether a revert of everything has something to do, or to say, about a setting of a pending job."""
        if self.is_ours(setting, job_id) or self.suspect(setting, job_id):
            return True
        return setting is JobSetting.ORDER and self.hidden(job_id) != 0

    def written(self, setting: JobSetting, job_id: str, value: int) -> Written:
        """Return the entry of the undo file for a value of a pending job."""
        job = self.jobs[job_id]
        return Written(setting=setting, job_id=job["job_id"], submitted=job["submitted"], value=value)


def has_soft_limits(configuration: Mapping[str, str]) -> bool:
    """Return whether a TimeMin is a soft limit on a cluster of this configuration."""
    flags = {part.partition("=")[0].strip().lower() for part in configuration.get("SchedulerParameters", "").split(",")}
    release = parse.release(configuration.get("SLURM_VERSION", ""))
    return release >= translate.SOFT_LIMITS_SINCE and SOFT_LIMIT_FLAG in flags


# What actions ask of Slurm's jobs, on the ground of what was read of them.

UNSEEN = "it is no longer eligible: it was written, and cannot be read back"
BLIND = "0 was written on demand where Slurm hides the value"


def judge_update(change: SettingChange[int], look: QueueReading) -> Outcome | None:
    """Return the outcome of a change that must not, cannot or need not be written; None: it is to be written."""
    setting, job_id = change.setting, change.job_id
    if job_id not in look.jobs:
        return change.outcome(Result.GONE, remark=GONE)
    job = look.jobs[job_id]
    context = ChangeContext(
        before=look.value(setting, job_id),
        is_set=look.is_ours(setting, job_id),
        excluded_reason=translate.excluded_reason(job, look.factors.get(job_id), look.undo),
        soft_limits=look.soft_limits,
        time_limit=translate.minutes(job["time_limit_s"]),
        hidden=look.hidden(job_id) if setting is JobSetting.ORDER else 0,
        suspect=look.suspect(setting, job_id),
    )
    return judge_change(change, context)


def size(change: SettingChange[int], look: QueueReading, *, most: int) -> float:
    """Return how much a change that is to be written changes: what is reverted first, then 2 to 0."""
    before = look.value(change.setting, change.job_id) or 0
    if change.takes_back:
        return 3.0 if before else 2.5
    if change.setting is JobSetting.ORDER:
        return abs(change.wanted - before) / most
    limit = translate.minutes(look.jobs[change.job_id]["time_limit_s"])
    return abs(change.wanted - (before or limit)) / max(limit, change.wanted)


SPENT = "the writes of this cycle are spent"
UNASKED = "nobody asked for it: it changed while its array was written"
OVERRULED = "a later action of the same call asks otherwise"


def now() -> datetime:
    """Return the time, UTC."""
    return datetime.now(UTC)


class SlurmCluster:
    """A :class:`helios.ports.Cluster` over a way into Slurm.

    Parameters
    ----------
    backend : Backend
        The way in.
    name : str
        The cluster's name.
    site_factor_most : int
        Bound of the SiteFactor that is written, either way.
    writes_per_cycle : int
        Most jobs changed by one :meth:`apply`; the largest changes come first, the rest is ``POSTPONED``.
    clock : callable
        Returns the time, aware.
    sprio : callable
        Returns the site factor of every job that has one to read.
    undo : JobsUndo, optional
        The record of what Helios writes; None: one in memory.
    notes : sequence of str
        What a person should be told about the way in.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        site_factor_most: int,
        writes_per_cycle: int,
        sprio: Callable[[], Mapping[str, SiteFactor]],
        undo: JobsUndo | None = None,
        clock: Callable[[], datetime] = now,
        notes: Sequence[str] = (),
    ) -> None:
        self.backend = backend
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
        """Look; prediction columns are missing.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached, or did not answer in time.
        """
        taken_at = self._clock()
        self._undo.refresh()
        jobs, factors, release = self.backend.queue(), self._sprio(), self._known_release()
        return Snapshot(
            taken_at=taken_at,
            cluster=self.name,
            pending=translate.pending(jobs, factors, most=self._most, release=release, undo=self._undo),
            running=translate.running(jobs, release=release, undo=self._undo),
            nodes=translate.node_states(self.backend.nodes()),
        )

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, read back, and say what became of each job that an action names.

        What is written stands in the undo file before. A ``Revert`` that names no jobs reverts what is proved to be
        Helios' own; it refuses, job by job, what bears the mark and is in no record, and what Slurm hides. A task of an
        array that changed though nobody asked for it is told as a mismatch.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached; nothing was written.
        UndoNotWritten
            What is meant cannot be written down; nothing was written.
        """
        if not actions:
            return []
        look = self._look()
        terms = slurm_value_mapping(site_factor=partial(ownership.site_factor, most=self._most))
        changes = [
            change
            for action in actions
            for change in setting_changes(action, terms, pending=lambda: look.jobs, is_set=look.is_to_revert)
        ]
        judged = {at: judge_update(change, look) for at, change in enumerate(changes)}
        outcomes = {at: outcome for at, outcome in judged.items() if outcome is not None}
        outcomes |= self._left_out({at: change for at, change in enumerate(changes) if at not in outcomes}, look)
        writes = {at: change for at, change in enumerate(changes) if at not in outcomes}
        meant = [look.written(it.setting, it.job_id, it.wanted) for it in writes.values() if it.wanted]
        self._undo.add(meant, queue=self._queue)
        written, others = self._write(writes, look) if writes else ({}, [])
        outcomes |= written
        return [*(outcomes[at] for at in range(len(changes))), *others]

    def know(self, applied_changes: pd.DataFrame, *, keep: bool) -> None:
        """Take the database's book (``APPLIED_CHANGES``) as a record too, of another Helios that led as well.

        Parameters
        ----------
        keep : bool
            Whether to write into the undo file what only the book has, for the script that has no database.
        """
        real = applied_changes[(applied_changes["mode"] != Mode.SHADOW) & ~applied_changes["overridden"].astype(bool)]
        submitted_s = real["submitted_at"].astype("int64") // 1_000_000
        entries = [
            Written(
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
        self._undo.know(entries)
        if keep:
            with suppress(UndoNotWritten):  # the book knows them still
                self._undo.add(entry for entry in entries if entry.value and not self._undo.names(entry))

    def close(self) -> None:
        """Let go of the way in."""
        self.backend.close()

    def _look(self) -> QueueReading:
        configuration = self.backend.configuration()
        self._release = parse.release(configuration.get("SLURM_VERSION", ""))
        self._undo.refresh()
        self._queue = self.backend.queue()
        look = QueueReading(
            jobs=_pending(self._queue),
            factors=self._sprio(),
            release=self._release,
            undo=self._undo,
            soft_limits=has_soft_limits(configuration),
        )
        with suppress(UndoNotWritten):  # a kill switch works with a full disk too
            self._undo.add(_found(look), queue=self._queue)
        return look

    def _left_out(self, changes: Mapping[int, SettingChange[int]], look: QueueReading) -> dict[int, Outcome]:
        """Return what is not written now, overruled by a later change or beyond the budget of jobs."""
        last = {(change.setting, change.job_id): at for at, change in changes.items()}
        sizes: dict[str, float] = {}
        for (_, job_id), at in last.items():
            sizes[job_id] = max(sizes.get(job_id, 0.0), size(changes[at], look, most=self._most))
        first = set(sorted(sizes, key=lambda job_id: -sizes[job_id])[: self._writes_per_cycle])
        outcomes: dict[int, Outcome] = {}
        for at, change in changes.items():
            before = look.value(change.setting, change.job_id)
            if last[change.setting, change.job_id] != at:
                outcomes[at] = change.outcome(Result.REFUSED, before=before, remark=OVERRULED)
            elif change.job_id not in first:
                outcomes[at] = change.outcome(Result.POSTPONED, before=before, remark=SPENT)
        return outcomes

    def _write(
        self, changes: Mapping[int, SettingChange[int]], look: QueueReading
    ) -> tuple[dict[int, Outcome], list[Outcome]]:
        """Write and read back; return what became of each change, and of jobs that changed without one."""
        answers = self._answers(list(changes.values()), look)
        try:
            after = replace(look, jobs=_pending(self.backend.queue()), factors=self._sprio())
        except HeliosError as reason:
            why = f"it was written, but could not be read back: {reason.message}"
            return {
                at: change.outcome(Result.FAILED, before=look.value(change.setting, change.job_id), remark=why)
                for at, change in changes.items()
            }, []
        outcomes = {at: outcome_after(change, look, after, answers[change.job_id]) for at, change in changes.items()}
        # What was reverted and is seen to be gone, or was written away where nobody sees it.
        gone = [
            after.written(change.setting, change.job_id, 0)
            for change in changes.values()
            if change.takes_back and change.job_id in after.jobs and not after.value(change.setting, change.job_id)
        ]
        with suppress(UndoNotWritten):
            self._undo.add(gone)
        return outcomes, list(_changed_unasked(changes.values(), look, after))

    def _answers(self, changes: Sequence[SettingChange[int]], look: QueueReading) -> dict[str, str]:
        """Write one change for each job, arrays first: a write to an array also reaches its tasks that have left it."""
        updates = _to_updates(changes, look)
        arrays = [update for update in updates if look.jobs[update.job_id]["tasks"] > 1]
        others = [update for update in updates if look.jobs[update.job_id]["tasks"] <= 1]
        answers: dict[str, str] = {}
        for group in filter(None, (arrays, others)):
            try:
                said = self.backend.change(group)
            except HeliosError as reason:
                if not answers:
                    raise
                # Something was written before: that must be read back and told.
                said = [reason.message] * len(group)
            answers |= {update.job_id: answer for update, answer in zip(group, said, strict=True)}
        return answers

    def _known_release(self) -> tuple[int, int]:
        if self._release is None:
            self._release = parse.release(self.backend.configuration().get("SLURM_VERSION", ""))
        return self._release


def _pending(jobs: Sequence[RawJob]) -> dict[str, RawJob]:
    return {job["job_id"]: job for job in jobs if job["state"] == "PENDING"}


def outcome_after(change: SettingChange[int], before: QueueReading, after: QueueReading, answer: str) -> Outcome:
    """Return what became of a change that was written, from what was read before and after and what Slurm answered."""
    was = before.value(change.setting, change.job_id)
    if change.job_id not in after.jobs:
        return change.outcome(Result.GONE, before=was, remark=GONE)
    seen = after.value(change.setting, change.job_id)
    if seen == change.wanted:
        return change.outcome(Result.DONE, before=was, after=seen)
    if answer:
        return change.outcome(Result.FAILED, before=was, after=seen, remark=answer)
    if seen is not None:
        return change.outcome(
            Result.MISMATCH, before=was, after=seen, remark="Slurm accepted it, and something else stands"
        )
    if change.takes_back:
        own, now = before.jobs[change.job_id]["priority"], after.jobs[change.job_id]["priority"]
        wrote = change.terms.words(change.setting, before.hidden(change.job_id))
        said = change.outcome(Result.DONE, remark=f"{BLIND}; Helios had written {wrote}")
        return replace(said, before=f"priority {own}", after=f"priority {now}")
    # It was written: said otherwise, nobody would remember that it is to be reverted.
    return change.outcome(Result.DONE, before=was, remark=UNSEEN)


def _found(look: QueueReading) -> Iterator[Written]:
    """Return what stands and only another record proves, and what Helios wrote and something else replaced."""
    for job_id, job in look.jobs.items():
        for setting in JobSetting:
            value, last = look.value(setting, job_id), look.undo.last(setting, job)
            if not value and not last:
                continue
            if value == last and look.undo.has(setting, job, last):
                continue
            if value and look.is_ours(setting, job_id):
                if not look.undo.has(setting, job, value):
                    yield look.written(setting, job_id, value)
            elif last and value is not None:
                yield look.written(setting, job_id, 0)
            elif last and not look.undo.has(setting, job, last):
                yield look.written(setting, job_id, last)


def _changed_unasked(
    changes: Iterable[SettingChange[int]], before: QueueReading, after: QueueReading
) -> Iterator[Outcome]:
    """Return tasks that left an array which was written, and that read otherwise since: nobody had asked for it."""
    asked = {(change.setting, change.job_id): change for change in changes}
    for job_id, job in before.jobs.items():
        for setting in JobSetting:
            change = asked.get((setting, job["array_job_id"] or ""))
            if change is None or (setting, job_id) in asked or job_id not in after.jobs:
                continue
            was, now = before.value(setting, job_id), after.value(setting, job_id)
            if was is not None and now is not None and was != now:
                own = replace(change, job_id=job_id)
                yield own.outcome(Result.MISMATCH, before=was, after=now, remark=UNASKED)


def _to_updates(changes: Sequence[SettingChange[int]], look: QueueReading) -> list[JobUpdate]:
    by_job: dict[str, dict[JobSetting, int]] = {}
    for change in changes:
        by_job.setdefault(change.job_id, {})[change.setting] = change.wanted
    updates = []
    for job_id, wanted in by_job.items():
        job = look.jobs[job_id]
        is_master = job["array_job_id"] == job_id
        # Of an array's master its tasks, without the bound on how many run at once.
        tasks = (job["array_tasks"] or "").partition("%")[0] if is_master else ""
        site_factor, time_min = wanted.get(JobSetting.ORDER), wanted.get(JobSetting.SOFT_LIMIT)
        updates.append(JobUpdate(job_id=job_id, tasks=tasks, site_factor=site_factor, time_min=time_min))
    return updates
