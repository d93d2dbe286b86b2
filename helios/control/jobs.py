"""The domain of pending jobs.

Their changes are desired state: an applied change that no service with write access asks for any more is reverted.
Changes of Helios are recognised by their mark on the job together with a record of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from helios.actions import JobSetting, NodeOutcome, Outcome, Result
from helios.changes import (
    CHANGED,
    HIDDEN,
    NO_RECORD,
    NOTHING,
    Change,
    Key,
    RequestedChanges,
    revert_job,
    to_job_changes,
)
from helios.choices import Domain
from helios.config import Settings
from helios.control.cycle import (
    ROUNDS,
    ActiveService,
    Cycle,
    Finish,
    ReconcilePlan,
    ReleaseResult,
    Reversion,
    add_round,
    postpone_beyond,
    record_release,
    release_entries,
    shadow_intent,
)
from helios.control.guards import GuardResult, apply_guards, keep_one_owner
from helios.control.modes import ServiceMode, cluster_for_mode, describe_mode
from helios.control.observed import (
    SET_AGAIN,
    AppliedChange,
    AppliedChanges,
    PendingJob,
    Tolerance,
    cycle_counts,
    helios_values,
    pending_jobs,
)
from helios.control.preconditions import Preconditions, suspension_reasons
from helios.control.report import HELIOS, AuditEntry, CycleReport
from helios.control.yields import Yields
from helios.errors import HeliosError
from helios.model import APPLIED_CHANGES, Mode, Snapshot
from helios.ports import Cluster, Ledger

NOBODY = "it bears Helios' mark and nobody asks for it"
OF_THE_HIDDEN = (
    "A paused daemon takes it back once it can be read; at once: scontrol update jobid=N SiteFactor=0, or for all of "
    "them helios pause --hidden"
)
UNPROVED_HINT = "If they are Helios' own, its database and state folder lost: helios-release.sh --by-mark"


class JobDomain:
    """Domain of pending jobs, with their order and their soft limits."""

    name = Domain.JOBS
    table = APPLIED_CHANGES
    sticky = False
    to_changes = staticmethod(to_job_changes)

    def __init__(self, cluster: Cluster, settings: Settings, yields: Yields | None = None) -> None:
        self.cluster, self.settings = cluster, settings
        self.yields = yields
        self.finish: Finish | None = None if yields is None else yields.advance
        self.tolerance = Tolerance.of(settings.slurm)
        self.jobs: dict[str, PendingJob] = {}
        self.disputed: frozenset[Key] = frozenset()
        """Settings that somebody else changed since they were read back. They are set again once, never twice."""

    def observe(self, cycle: Cycle, expectation: Callable[[Snapshot], Snapshot]) -> None:
        """Observe the queue, add predictions, and read the applied changes.

        Only changes of jobs that are still there are kept.
        """
        cycle.snapshot = self.cluster.snapshot()
        try:
            cycle.snapshot = expectation(cycle.snapshot)
        except HeliosError as error:
            cycle.faults.append(f"there are no predictions: {error.message}")
        self.jobs = pending_jobs(cycle.snapshot)
        cycle.audit.sources = {job_id: job.source for job_id, job in self.jobs.items()}
        running = set(cycle.snapshot.running["job_id"])
        read = cycle.read_applied() or AppliedChanges()
        cycle.applied = cycle.known = cycle.stored = AppliedChanges(
            # An admin's change is remembered while the job runs, because a requeue makes it pending again.
            real={
                key: row
                for key, row in read.real.items()
                if self._is_pending(row) or (row.overridden and row.target in running)
            },
            shadow={key: row for key, row in read.shadow.items() if self._is_pending(row)},
        )

    def check_preconditions(self, cycle: Cycle, conditions: Preconditions) -> list[str]:
        """Return why nothing may be written.

        If something may, confirmed changes that now have another value are found. The first time they are to be set
        again, the second time they are marked as overridden.
        """
        assert cycle.snapshot is not None
        if self.yields is not None and conditions.released:
            self.yields.stopped = True
        reasons = suspension_reasons(
            conditions,
            cycle.settings.control,
            snapshot=cycle.snapshot,
            jobs=self.jobs,
            memory=cycle.memory,
            now=cycle.now,
        )
        if reasons or cycle.faults:
            return reasons
        real, disputed = dict(cycle.known.real), set()
        if conditions.released:  # a value that a kill switch reverted was not overridden by a person
            real = {key: row for key, row in real.items() if row.overridden or self._may_stay_after_release(row)}
        for row in tuple(real.values()):
            if row.overridden or not row.confirmed or not self._is_pending(row):
                continue
            job = self.jobs[row.target]
            if job.excluded_reason or not job.readable(row.setting):
                continue  # it cannot be read, or must be left alone anyway
            read = job.value(row.setting)
            if self.tolerance.same(row.setting, asked=row.value, read=read):
                continue
            if not row.set_again:
                disputed.add(row.key)
                continue
            real[row.key] = replace(row, overridden=True)
            cycle.audit.lines.append(
                AuditEntry(
                    service=HELIOS,
                    mode=row.mode,
                    action="HandsOff",
                    target=row.target,
                    reason=f"somebody changed twice what service {row.service} had set",
                    before=row.after,
                    after=describe_mode(row.setting, read),
                    outcome=f"{Result.REFUSED}: {row.setting} of this job is theirs from now on",
                )
            )
        cycle.applied = replace(cycle.known, real=real)
        self.disputed = frozenset(disputed)
        return reasons

    def apply_guards(self, cycle: Cycle, requested: RequestedChanges[float], mode: ServiceMode) -> GuardResult[float]:
        """Apply every guard to one service's changes."""
        return apply_guards(
            requested.changes,
            jobs=self.jobs,
            mode=mode,
            overridden=frozenset(key for key, row in cycle.applied.real.items() if row.overridden),
            most_of_one_user=cycle.settings.control.most_of_one_user,
        )

    def allocate(
        self, cycle: Cycle, results: Mapping[str, GuardResult[float]], services: Sequence[ActiveService]
    ) -> ReconcilePlan:
        """Return the changes to send and to revert within the budget.

        Changes are sent where they differ from the applied value, and reverted where no service asks for them any more.
        """
        groups = {
            Mode.ACTIVE: [active for active in services if active.mode.writes],
            Mode.SHADOW: [active for active in services if active.is_shadow],
        }
        waiting = {
            (outcome.setting, outcome.job_id)
            for result in results.values()
            for outcome in result.refused
            if isinstance(outcome, Outcome) and outcome.result is Result.POSTPONED
        }
        send: dict[str, list[Change[float]]] = {}
        same: dict[str, list[Change[float]]] = {}
        refused = {name: list(result.refused) for name, result in results.items()}
        unwanted: dict[Mode, list[Reversion]] = {}
        for mode, group in groups.items():
            rows = cycle.applied.of(mode)
            silent = {active.name for active in group} - set(results)
            allowed, not_owned = keep_one_owner(
                {active.name: results[active.name].allowed if active.name in results else () for active in group},
                held={key: row.service for key, row in rows.items() if row.service in silent},
            )
            for name, changes in allowed.items():
                send[name], same[name] = [], []
                for change in changes:
                    read = self.jobs[change.target].value(change.setting)
                    if mode is Mode.SHADOW:
                        read = rows[change.key].value if change.key in rows else NOTHING[change.setting]
                    agrees = self.tolerance.same(change.setting, asked=change.value, read=read)
                    (same if agrees else send)[name].append(change)
                if name in results:
                    refused[name] += not_owned[name]
            keep = {change.key for changes in allowed.values() for change in changes} | waiting
            unwanted[mode] = self._unwanted_changes(cycle, mode, group, keep=keep)
        writers, most = groups[Mode.ACTIVE], self.settings.slurm.writes_per_cycle
        # A value that cannot be read is neither overwritten nor forgotten. A later cycle that can read it reverts it.
        forget = {reversion.key for reversion in unwanted[Mode.ACTIVE] if not self._may_stay_applied(reversion.key)}
        reversions = [
            reversion
            for reversion in unwanted[Mode.ACTIVE]
            if self.jobs[reversion.key[1]].has_helios_value(reversion.key[0])
        ]
        left = most - len(reversions)
        if sum(len(send[active.name]) for active in writers) > left:
            # The largest changes of the order are sent first, then the soft limits in the order of the queue.
            postpone_beyond(
                left,
                send,
                refused,
                writers,
                rank=lambda change: (
                    -abs(change.value - self.jobs[change.target].urgency) if change.setting is JobSetting.ORDER else 0.0
                ),
            )
        # They come from the hook or a lost database. A shadow alone on a cluster must not revert them.
        untracked = [self.jobs[job_id] for _, job_id in self._unrecorded_values(cycle)]
        out_of_reach = sum(not any(active.mode.covers(job) for active in writers) for job in untracked)
        plan = ReconcilePlan(
            send=send,
            same=same,
            refused=refused,
            reversions=tuple(reversions[:most]),
            shadow_reversions=tuple(unwanted[Mode.SHADOW]),
            notes=(
                f"{out_of_reach} changes bear Helios' mark, and no service may write to those jobs now; to take them "
                "back: helios pause, then helios resume",
            )
            if out_of_reach
            else (),
        )
        return replace(plan, intent=self._intent(cycle, plan, services, forget=forget))

    def apply(
        self, cycle: Cycle, plan: ReconcilePlan, active: ActiveService | None
    ) -> list[tuple[Outcome | NodeOutcome, AppliedChange | None]]:
        """Change jobs for one service, or revert what no service asks for."""
        cluster: Cluster | None = self.cluster
        changes: dict[Key, Change[float]] = {}
        reversions: Iterable[Reversion] = plan.reversions
        if active is not None:
            changes = {change.key: change for change in plan.send.get(active.name, ())}
            reversions = [
                reversion
                for reversion in plan.shadow_reversions
                if active.is_shadow and reversion.service == active.name
            ]
            snapshot = cycle.snapshot
            assert snapshot is not None
            cluster = cluster_for_mode(
                active.mode,
                self.cluster,
                read_snapshot=lambda: snapshot,
                applied={key: row.value for key, row in cycle.applied.shadow.items()},
                tolerance=self.tolerance,
            )
        orders = [change for change in changes.values() if change.setting is JobSetting.ORDER]
        limits = [change for change in changes.values() if change.setting is JobSetting.SOFT_LIMIT]
        asked = [*sorted(orders, key=lambda change: (change.partition, -change.value)), *limits]
        for place, change in enumerate(asked):
            if change.key in self.disputed:
                read = self.jobs[change.target].value(change.setting)
                found = f"{describe_mode(change.setting, read)} was found instead of what Helios had set"
                asked[place] = replace(change, reason=f"{change.reason}; set again, once: {found}")
        asked += _reverts(reversions)
        if not asked or cluster is None:
            return []
        if active is None or active.mode.writes:
            cycle.check_may_write()
        applied: list[tuple[Outcome | NodeOutcome, AppliedChange | None]] = []
        for outcome in cluster.apply(asked):
            sent, row = changes.get((outcome.setting, outcome.job_id)), None
            if active is not None and sent and not self.tolerance.is_nothing(sent.setting, sent.value):
                after = outcome.after or describe_mode(sent.setting, sent.value)
                row = self._row(cycle, sent, active, after=after + self._note_set_again(cycle, sent.key))
            applied.append((outcome, row))
        return applied

    def revert(self, cycle: Cycle, reason: str) -> ReleaseResult | None:
        """Revert everything that Helios set.

        None where nothing of it is applied.
        """
        is_applied = any(not row.overridden for row in cycle.known.real.values())
        if not is_applied and not helios_values(list(self.jobs.values())):
            return None
        result = revert_jobs(self.cluster, reason)
        return replace(result, left=applied_after(cycle.known, result))

    def summarise(self, cycle: Cycle) -> CycleReport:
        """Return the report of the cycle."""
        if self.yields is not None:
            self.yields.settle(cycle)
        return CycleReport(
            taken_at=cycle.now if cycle.snapshot is None else cycle.snapshot.taken_at,
            acted=len(cycle.audit.changed),
            memory=cycle.memory,
            **cycle.report(stays=self._describe_remaining(cycle) if cycle.suspended else ""),
            **cycle_counts(cycle.snapshot),
        )

    def _is_pending(self, row: AppliedChange) -> bool:
        """Return whether the changed job is still pending.

        A later job of the same id does not count.
        """
        job = self.jobs.get(row.target)
        return job is not None and job.submitted_us == row.submitted_us

    def _may_stay_after_release(self, row: AppliedChange) -> bool:
        # Slurm hides the value of a job that is held, or whose priority was set. Such jobs are excluded anyway.
        job = self.jobs.get(row.target)
        return job is None or self._may_stay_applied(row.key) or bool(job.excluded_reason)

    def _may_stay_applied(self, key: Key) -> bool:
        job = self.jobs[key[1]]
        return job.has_helios_value(key[0]) or not job.readable(key[0])

    def _unwanted_changes(
        self, cycle: Cycle, mode: Mode, group: Sequence[ActiveService], *, keep: set[Key]
    ) -> list[Reversion]:
        """Return the changes that services in ``mode`` no longer want."""
        modes = {active.name: active.mode for active in group}
        none_now = "is no shadow now" if mode is Mode.SHADOW else "may not write now"
        unwanted = []
        for key, row in cycle.applied.of(mode).items():
            if key in keep or row.overridden or self.jobs[row.target].excluded_reason:
                continue
            if row.service not in modes:
                why = f"service {row.service} {none_now}"
            elif not modes[row.service].covers(self.jobs[row.target]):
                why = f"it is outside the canary of service {row.service} now"
            elif row.service in cycle.requested:
                why = f"service {row.service} no longer asks for it"
            else:
                continue
            unwanted.append(Reversion(key=key, service=row.service, why=why))
        for key in self._unrecorded_values(cycle) if mode is not Mode.SHADOW else ():
            job = self.jobs[key[1]]
            for name, its_mode in modes.items():
                if key not in keep and its_mode.covers(job) and _implies_no_change(cycle.requested.get(name), key, job):
                    unwanted.append(Reversion(key=key, service=name, why=NOBODY))
                    break
        return unwanted

    def _unrecorded_values(self, cycle: Cycle) -> list[Key]:
        """Return Helios' values without a record, on jobs that may be changed."""
        return [
            key
            for key in helios_values(list(self.jobs.values()))
            if key not in cycle.applied.real and not self.jobs[key[1]].excluded_reason
        ]

    def _intent(
        self, cycle: Cycle, plan: ReconcilePlan, services: Sequence[ActiveService], *, forget: set[Key]
    ) -> AppliedChanges:
        """Return the applied changes with all changes to be made.

        Values that are already as requested are adopted.
        """
        real = {key: row for key, row in cycle.applied.real.items() if key not in forget}
        for active in services:
            if not active.mode.writes:
                continue
            for change in plan.send.get(active.name, ()):
                real[change.key] = self._row(cycle, change, active, after=self._note_set_again(cycle, change.key))
            for change in plan.same.get(active.name, ()):
                if self.tolerance.is_nothing(change.setting, change.value):
                    real.pop(change.key, None)
                    continue
                row, read = real.get(change.key), self.jobs[change.target].value(change.setting)
                known = row is not None and row.confirmed and row.service == active.name
                if row is None or not known or not self.tolerance.same(change.setting, asked=row.value, read=read):
                    again = SET_AGAIN if row is not None and row.set_again else ""
                    after = describe_mode(change.setting, read) + again
                    real[change.key] = self._row(cycle, change, active, after=after)
        return AppliedChanges(real=real, shadow=shadow_intent(cycle.applied, plan.shadow_reversions, services))

    def _row(self, cycle: Cycle, change: Change[float], active: ActiveService, *, after: str) -> AppliedChange:
        return AppliedChange(
            setting=change.setting,
            target=change.target,
            submitted_us=self.jobs[change.target].submitted_us,
            service=active.name,
            mode=active.mode.mode,
            value=change.value,
            after=after,
            written_at=cycle.now,
        )

    def _note_set_again(self, cycle: Cycle, key: Key) -> str:
        row = cycle.applied.real.get(key)
        return SET_AGAIN if key in self.disputed or (row is not None and row.set_again) else ""

    def _describe_remaining(self, cycle: Cycle) -> str:
        """Return a text about the changes that stay applied.

        Only observed values are known to be applied.
        """
        if cycle.released is not None or cycle.snapshot is None:
            return ""  # the rest has been reported job by job, or nothing could be observed
        carried = helios_values(list(self.jobs.values()))
        hidden = 0
        for key in (key for key, row in cycle.known.real.items() if not row.overridden):
            job, setting = self.jobs[key[1]], key[0]
            hidden += not job.has_helios_value(setting) and (not job.readable(setting) or bool(job.excluded_reason))
        parts = [
            f"{len(carried)} changes of Helios stand on the cluster and stay as they are" if carried else "",
            f"of {hidden} the cluster does not show whether they stand" if hidden else "",
        ]
        return "; ".join(filter(None, parts))


def release(
    *, cluster: Cluster, ledger: Ledger, now: datetime, holder: str, reason: str, hidden: bool = False
) -> CycleReport:
    """Revert everything, verify it, record it, and clear the record of it.

    Never raises a :class:`HeliosError`: ``clean``, ``suspended`` and ``notes`` of the report have what could not be
    done. Changes that somebody else made stay in the record as overridden.

    Parameters
    ----------
    holder : str
        Name of the caller. The lease is taken for the audit if it is free, and released.
    hidden : bool
        Whether to revert also what the cluster hides, as ``unseen`` of a ``Change``.
    """
    result = revert_jobs(cluster, reason, hidden=hidden)
    audit = release_entries(result, now=now, reason=reason)

    def left() -> AppliedChanges:
        return applied_after(AppliedChanges.read(ledger.applied_changes(), APPLIED_CHANGES), result)

    recorded = record_release(ledger, audit, left, table=APPLIED_CHANGES, now=now, holder=holder)
    return CycleReport(
        taken_at=now if result.snapshot is None else result.snapshot.taken_at,
        acted=len(audit.changed),
        **result.report(audit, reason=reason, recorded=recorded),
        **cycle_counts(result.snapshot),
    )


def revert_jobs(cluster: Cluster, reason: str, *, hidden: bool = False) -> ReleaseResult:
    """Revert every job that Helios set, and observe whether any is left.

    Values with Helios' mark but no record, and values that the cluster hides, are left and reported. A value that
    somebody changed meanwhile is no longer Helios' own.
    """
    outcomes: dict[Key, Outcome] = {}
    try:
        for _ in range(ROUNDS):
            everything = [revert_job(setting, reason=reason, unseen=hidden) for setting in JobSetting]
            if not add_round(outcomes, cluster.apply(everything)):
                break
        snapshot = cluster.snapshot()
    except HeliosError as error:
        failure = f"taking everything back was broken off: {error.message}"
        return ReleaseResult(outcomes=list(outcomes.values()), message=f"{Result.FAILED}: {failure}", failure=failure)
    jobs = pending_jobs(snapshot)
    refused = [
        one
        for one in outcomes.values()
        if one.result is Result.REFUSED and one.job_id in jobs and not one.remark.startswith(CHANGED)
    ]
    unproved = [one for one in refused if one.remark.startswith(NO_RECORD)]
    own = [(one.setting, one.job_id) for one in refused if one not in unproved]
    left = [*helios_values(list(jobs.values())), *own]
    remaining = tuple(dict.fromkeys(job_id for _, job_id in left))
    strangers = tuple(dict.fromkeys(one.job_id for one in unproved))
    return ReleaseResult(
        outcomes=list(outcomes.values()),
        message=_describe_release(remaining, refused, strangers),
        remaining=remaining,
        keys=frozenset(left),
        strangers=strangers,
        snapshot=snapshot,
        sources={job_id: job.source for job_id, job in jobs.items()},
    )


def _describe_release(remaining: tuple[str, ...], refused: Sequence[Outcome], strangers: tuple[str, ...]) -> str:
    hidden = list(dict.fromkeys(one.job_id for one in refused if one.remark.startswith(HIDDEN)))
    unknown = [one for one in refused if not one.remark.startswith((HIDDEN, NO_RECORD))]
    unread = list(dict.fromkeys(one.job_id for one in unknown))
    others = [job_id for job_id in remaining if job_id not in {*hidden, *unread}]
    parts = []
    if others:
        parts.append(f"{len(others)} jobs still carry what Helios set: {_list_jobs(others)}")
    if hidden:
        carry = "jobs Slurm hides whether they still carry what Helios set"
        parts.append(f"of {len(hidden)} {carry}: {_list_jobs(hidden)}. {OF_THE_HIDDEN}")
    if unread:
        parts.append(f"{len(unread)} jobs were left: {_list_jobs(unread)}; {unknown[0].remark}")
    if not parts:
        parts.append("looked again, no job carries anything that Helios is known to have set")
    if strangers:
        bear = f"{len(strangers)} jobs bear Helios' mark and are in no record: {_list_jobs(strangers)}"
        parts.append(f"{bear}; not touched. {UNPROVED_HINT}")
    return f"{Result.MISMATCH if remaining else Result.DONE}: {'; '.join(parts)}"


def applied_after(applied: AppliedChanges, result: ReleaseResult) -> AppliedChanges:
    """Return the applied changes after a release.

    They are those that are left or could not be observed, and overridden ones.
    """
    left = set(applied.real) if result.remaining is None else result.keys
    return AppliedChanges(real={key: row for key, row in applied.real.items() if row.overridden or key in left})


def _list_jobs(job_ids: Sequence[str]) -> str:
    return ", ".join(job_ids[:20]) + (", ..." if len(job_ids) > 20 else "")


def _implies_no_change(requested: RequestedChanges[float] | None, key: Key, job: PendingJob) -> bool:
    """Return whether a service's request implies no change on an unnamed job.

    It does where the request has an order of the job's partition, or soft limits.
    """
    if requested is None:
        return False
    return job.partition in requested.partitions if key[0] is JobSetting.ORDER else "SoftLimit" in requested.kinds


def _reverts(reversions: Iterable[Reversion]) -> list[Change[float]]:
    """Return the changes that revert.

    Those with the same setting and reason stand side by side.
    """
    grouped: dict[tuple[JobSetting, str], list[str]] = {}
    for reversion in reversions:
        grouped.setdefault((JobSetting(reversion.key[0]), reversion.why), []).append(reversion.key[1])
    return [
        revert_job(setting, job_id, reason=why) for (setting, why), job_ids in grouped.items() for job_id in job_ids
    ]
