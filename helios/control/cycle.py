"""One control cycle, parametrised by a domain.

It takes the lease, observes, checks, asks the services, applies guards, reconciles, records the intent, acts, reads
back, and records the outcomes. Every failure on the way means that nothing is done, with a reason. A crash at any point
leaves a record that has at least every changed target, so that the next cycle can correct it.

A release, the part of the kill switch that all domains share, needs neither the lease nor the database, because a
person requested it. What could not be reverted is left and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from helios.actions import Action, NodeOutcome, Outcome, Result
from helios.changes import Change, Key, RequestedChanges
from helios.choices import Domain
from helios.config import Settings
from helios.control.guards import GuardResult
from helios.control.modes import ServiceMode
from helios.control.observed import AppliedByKey, AppliedChange, AppliedChanges, Observation, Undo
from helios.control.preconditions import Preconditions, why_cut_short
from helios.control.report import HELIOS, PAUSED, AuditEntry, AuditLog
from helios.control.state import ControllerState, outcome_target
from helios.errors import HeliosError, LeaseLost
from helios.model import DECISIONS, FrameKind, Mode, Snapshot
from helios.ports import Ledger, Service

READ_BACK = {Result.DONE, Result.UNCHANGED, Result.WOULD}
NOT_WRITTEN = {Result.POSTPONED, Result.REFUSED}
SETTLED = {*READ_BACK, Result.GONE}
SPENT = "the writes of this cycle are spent"
LONGEST_FAULT = 300
"""Longest part of a service's error message that is kept, in characters."""

ROUNDS = 200
"""Most calls of a cluster that postpones beyond its budget, enough for 100,000 jobs at 500 writes a call."""
LEASE = timedelta(seconds=60)
"""Length of the lease for a release, which needs it only to record the outcomes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveService:
    """A service with its name in the configuration and its mode."""

    name: str
    service: Service
    mode: ServiceMode

    @property
    def is_shadow(self) -> bool:
        """Whether it only reports what it would do."""
        return self.mode.mode is Mode.SHADOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversion:
    """An applied change that is to be reverted.

    Attributes
    ----------
    own : str
        The site's own value on a node.
    """

    key: Key
    service: str
    why: str
    own: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePlan:
    """Actions of a cycle.

    Attributes
    ----------
    send, same, refused : mapping
        Changes by service: those to send, those already applied, and those that are refused or postponed.
    reversions : tuple of Reversion
        Changes to revert on the cluster.
    shadow_reversions : tuple of Reversion
        Changes that would be reverted if shadows could act.
    intent : AppliedChanges
        Applied changes if all succeeds. Every change is recorded before it is made.
    notes : tuple of str
        Further messages for the operator.
    """

    send: Mapping[str, Sequence[Change[Any]]]
    same: Mapping[str, Sequence[Change[Any]]]
    refused: Mapping[str, Sequence[Outcome | NodeOutcome]]
    reversions: tuple[Reversion, ...]
    shadow_reversions: tuple[Reversion, ...]
    intent: AppliedChanges = field(default_factory=AppliedChanges)
    notes: tuple[str, ...] = ()


class ControlDomain(Protocol):
    """Interface of a kind of target, such as jobs or nodes.

    An object is used for one cycle.

    Attributes
    ----------
    name : Domain
    table : FrameKind
        Columns of the applied changes.
    sticky : bool
        Whether a change stays until somebody undoes it, so that observations are recorded even where nothing is done.
        Otherwise it stays while a service asks for it.
    finish : callable, optional
        Does what takes more than one cycle, after the changes of all services. None where there is no such thing.
    """

    name: Domain
    table: FrameKind
    sticky: bool
    finish: Finish | None

    def observe(self, cycle: Cycle, expectation: Callable[[Snapshot], Snapshot]) -> None:
        """Observe the cluster, add predictions, and read the applied changes.

        Raises
        ------
        HeliosError
            The cluster cannot be observed.
        """
        ...

    def check_preconditions(self, cycle: Cycle, conditions: Preconditions) -> list[str]:
        """Return why nothing may be written.

        It also records what others changed since the last cycle.
        """
        ...

    def to_changes(self, actions: Sequence[Action]) -> RequestedChanges[Any]:
        """Return the changes that actions request.

        Raises
        ------
        TypeError
            An action is of another domain.
        """
        ...

    def apply_guards(self, cycle: Cycle, requested: RequestedChanges[Any], mode: ServiceMode) -> GuardResult[Any]:
        """Apply every guard to one service's changes."""
        ...

    def allocate(
        self, cycle: Cycle, results: Mapping[str, GuardResult[Any]], services: Sequence[ActiveService]
    ) -> ReconcilePlan:
        """Return the changes to send and to revert.

        Each setting has one owner, and the budgets are respected.

        Parameters
        ----------
        results : mapping
            Results of the services that answered in this cycle.
        services : sequence of ActiveService
            In the order of configuration, without suspended ones.
        """
        ...

    def apply(
        self, cycle: Cycle, plan: ReconcilePlan, active: ActiveService | None
    ) -> list[tuple[Outcome | NodeOutcome, AppliedChange | None]]:
        """Act for one service.

        Without a service, revert what no service asks for.

        Returns
        -------
        list of (outcome, AppliedChange or None)
            The change is the one that is applied if the requested value was read back, or None.
        """
        ...

    def revert(self, cycle: Cycle, reason: str) -> ReleaseResult | None:
        """Revert everything on the cluster that Helios set.

        None where nothing of it is applied.
        """
        ...

    def summarise(self, cycle: Cycle) -> Any:
        """Return the report of the cycle."""
        ...


Finish = Callable[["Cycle", Sequence[ActiveService]], None]
"""Function that does what takes more than one cycle."""


class Suspended(Exception):
    """Signal that nothing is to be done in this cycle."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


class _Stopped(Exception):
    """Signal that nothing more may be written in this cycle."""


@dataclass(slots=True, kw_only=True)
class Cycle:
    """One control cycle on one domain of a cluster.

    Attributes
    ----------
    ledger : Ledger
        Ledger of the domain, with its own lease.
    now : datetime
        Start of the cycle, from which the lease lasts.
    holder : str
        Name of this Helios, the same in all its cycles and after a restart.
    memory : ControllerState
        State from the report of the previous cycle.
    paused : callable
        Returns why Helios is paused, or an empty text. It is called again before each write.
    ended : callable, optional
        Returns the jobs that are known to have ended since a time. None where an observation is always complete.
    accepted, doubted : Observation, optional
        The last observation that was trusted, and the last one if it was not, from the previous cycle of this process.
    undo, read_undo : callable
        Write the changes that would have to be reverted outside of the database, and read them. They are written before
        anything is done. If this raises a :class:`HeliosError`, nothing is done. None where the domain has no undo
        file.
    applied : AppliedChanges
        Applied changes as observed, on which decisions are based.
    known : AppliedChanges
        Applied changes by now.
    stored : AppliedChanges
        Applied changes in the ledger.
    held_back : str, optional
        Why some changes cannot be made in this cycle, logged when it is new. None where the domain has no such changes.
    """

    domain: ControlDomain
    ledger: Ledger
    settings: Settings
    now: datetime
    holder: str
    memory: ControllerState
    paused: Callable[[], str]
    ended: Callable[[datetime], Collection[str]] | None = None
    accepted: Observation | None = None
    doubted: Observation | None = None
    undo: Callable[[Undo], None] | None = None
    read_undo: Callable[[], Undo] = Undo
    audit: AuditLog = field(init=False)
    mode: str = Mode.OFF
    token: int | None = None
    snapshot: Snapshot | None = None
    applied: AppliedChanges = field(default_factory=AppliedChanges)
    known: AppliedChanges = field(default_factory=AppliedChanges)
    stored: AppliedChanges = field(default_factory=AppliedChanges)
    was_read: bool = False
    undo_file: Undo | None = None
    requested: Mapping[str, RequestedChanges[Any]] = field(default_factory=dict)
    held_back: str | None = None
    released: ReleaseResult | None = None
    written: int = 0
    recorded: bool = True
    suspended: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.audit = AuditLog(decided_at=self.now, digests=self.memory.said)

    def run(
        self,
        services: Sequence[ActiveService],
        *,
        expectation: Callable[[Snapshot], Snapshot],
        conditions: Callable[[Snapshot], Preconditions],
    ) -> Any:
        """Run the cycle and return the domain's report.

        If anything fails before the first write, nothing is written and ``suspended`` has the reason. A pause reverts
        everything that Helios set, with or without the database. Otherwise applied changes stay while cycles are
        suspended.

        Parameters
        ----------
        services : sequence of ActiveService
            In the order of configuration, which decides who owns a setting that two services ask for.
        expectation : callable
            Returns the snapshot with predictions.
        conditions : callable
            Returns the preconditions. It should not fail without a database, but use None for unknown values.

        Raises
        ------
        Exception
            Only for a defect of Helios itself. A service's error is recorded, and a ``HeliosError`` is a reason to do
            nothing.
        """
        try:
            snapshot = self._lead_and_observe(expectation)
            self._check(snapshot, conditions)
            self._act(snapshot, services)
        except Suspended as suspended:
            self._suspend(suspended.reasons)
        return self.domain.summarise(self)

    def report(self, *, stays: str) -> dict[str, Any]:
        """Return the fields of a report that every domain has.

        Parameters
        ----------
        stays : str
            Text about the changes that stay applied where nothing was done; empty where there are none.
        """
        return {
            "suspended": (*self.suspended, stays) if self.suspended and stays else self.suspended,
            **self.audit.report(),
            "seen": self.snapshot is not None or self.token is None,
            "recorded": self.recorded,
            "leads": self.token is not None,
            "remaining": () if self.released is None else self.released.remaining,
            "strangers": () if self.released is None else self.released.strangers,
        }

    def read_applied(self) -> AppliedChanges | None:
        """Return the applied changes in the ledger.

        None where they cannot be read, which is a fault.
        """
        try:
            applied = AppliedChanges.read(self.ledger.applied_changes(), self.domain.table)
        except HeliosError as error:
            self.faults.append(f"what stands changed could not be read: {error.message}")
            return None
        self.was_read = True
        return applied

    def check_may_write(self) -> None:
        """Raise if Helios was paused or lost the lease."""
        try:
            why = self.paused()
            why = f"paused: {why}" if why else ""
            if not why:  # an empty record, which checks that we still hold the lease
                self.ledger.record(token=self.token or 0, decisions=DECISIONS.empty(), applied_changes=None)
        except HeliosError as error:
            why = error.message
        if why:
            raise _Stopped(why)

    def record_entries(self) -> bool:
        """Write the audit entries so far, and return whether that succeeded."""
        return self._write(None)

    def _lead_and_observe(self, expectation: Callable[[Snapshot], Snapshot]) -> Snapshot:
        """Take the lease, and return the snapshot that the domain observed."""
        lasts = timedelta(seconds=self.settings.control.lease_s)
        try:
            self.token = self.ledger.acquire(holder=self.holder, now=self.now, lasts=lasts)
            if self.token is None:
                whose = "'s nodes" if self.domain.name is Domain.NODES else ""
                raise Suspended(f"another Helios holds the lease of this cluster{whose}: standing by")
        except HeliosError as error:
            # The cycle goes on, because a pause must be able to revert everything without a database.
            self.faults.append(f"the lease could not be taken: {error.message}")
        try:
            self.domain.observe(self, expectation)
        except HeliosError as error:
            raise Suspended(*self.faults, f"the cluster could not be read: {error.message}") from error
        if self.snapshot is None:
            raise RuntimeError(f"the domain of {self.domain.name} left no snapshot")
        return self.snapshot

    def _check(self, snapshot: Snapshot, conditions: Callable[[Snapshot], Preconditions]) -> None:
        try:
            world = conditions(snapshot)
        except HeliosError as error:
            raise Suspended(*self.faults, f"the conditions are not known: {error.message}") from error
        seen = Observation(
            at=snapshot.taken_at,
            pending=frozenset(snapshot.pending["job_id"]),
            running=frozenset(snapshot.running["job_id"]),
            nodes=frozenset(snapshot.nodes["name"]),
        )
        ended = None if world.paused else self.ended  # a pause reverts whatever is observed
        why = why_cut_short(seen, self.memory, accepted=self.accepted, doubted=self.doubted, ended=ended)
        world = replace(world, cut_short=why)
        reasons = self.domain.check_preconditions(self, world)
        self.memory = replace(self.memory, controller=world.controller or self.memory.controller)
        if why:
            self.doubted = seen
        else:
            self.accepted, self.doubted = seen if self.ended else None, None
            self.memory = replace(self.memory, pending=len(snapshot.pending), nodes=len(seen.nodes))
        if world.paused:
            self.mode = PAUSED
            self._revert_everything(world.paused)
        if self.faults or reasons:
            raise Suspended(*self.faults, *reasons)

    def _revert_everything(self, reason: str) -> None:
        self.released = self.domain.revert(self, reason)
        if self.released is None:
            return
        lines, notes = self.audit.lines, self.audit.notes
        self.audit = release_entries(self.released, now=self.now, reason=reason)
        if self.memory.suspended and not self.audit.changed:
            self.audit.lines.clear()  # what cannot be reverted yet is logged once, not in every cycle
        self.audit.lines[:0], self.audit.notes[:0] = lines, notes
        self.known = self.released.left
        self._write(self.known)
        self._write_undo(self.known)

    def _act(self, snapshot: Snapshot, services: Sequence[ActiveService]) -> None:
        domain = self.domain
        self.requested, memory = self._request_changes(services, snapshot)
        if self.held_back is not None and self.audit.is_news(HELIOS, self.held_back):
            self._log_summary(
                self.mode, reason=f"the use of nodes is not known: {self.held_back}", outcome="no node is put to sleep"
            )
        active_services = []  # those that are neither off nor suspended, asked or not
        for active in services:
            failures = self.settings.control.failures_to_suspend
            if why := memory.suspension.why_not(active.name, now=self.now, failures=failures):
                self.audit.notes.append(why)
            elif active.mode.mode is not Mode.OFF:
                active_services.append(active)
        results = {
            active.name: domain.apply_guards(self, self.requested[active.name], active.mode)
            for active in active_services
            if active.name in self.requested
        }
        plan = domain.allocate(self, results, active_services)
        for active in active_services:
            self.audit.record_outcomes(active.name, active.mode.mode, plan.refused.get(active.name, ()))
            self.audit.count(active.name, Result.UNCHANGED, len(plan.same.get(active.name, ())))
        self.audit.notes.extend(plan.notes)
        writers = [active for active in active_services if active.mode.writes and plan.send.get(active.name)]
        if writers or plan.reversions:
            self._record_intent(plan, writers)
        settled = self._execute(plan, active_services)
        if settled != self.known or self.known != self.stored or self.audit.lines[self.written :]:
            self._write(settled)
            self._write_undo(settled)
        self._write_undo(settled, if_it_differs=True)
        breaker = memory.breaker
        if self.audit.bad:
            breaker = breaker.after_a_bad_cycle(now=self.now, settings=self.settings.control)
        elif self.audit.changed:
            breaker = breaker.after_a_good_cycle()
        self.memory = replace(memory, breaker=breaker, said=self.audit.digests, suspended=())

    def _request_changes(
        self, services: Sequence[ActiveService], snapshot: Snapshot
    ) -> tuple[dict[str, RequestedChanges[Any]], ControllerState]:
        """Ask each service that is due, all with the same snapshot.

        A failing service is logged and skipped.
        """
        requested: dict[str, RequestedChanges[Any]] = {}
        suspension, asked_at = self.memory.suspension, dict(self.memory.asked_at)
        failures = self.settings.control.failures_to_suspend
        for active in services:
            absent = active.mode.mode is Mode.OFF or suspension.why_not(active.name, now=self.now, failures=failures)
            if absent or not self.memory.is_due(active.name, every=active.service.every, now=snapshot.taken_at):
                continue
            asked_at[active.name] = snapshot.taken_at
            self.audit.record_request(active.name)
            # pandas copies on write, so this costs nothing, and a service that writes changes only its own copy.
            own_copy = replace(
                snapshot,
                pending=snapshot.pending.copy(deep=False),
                running=snapshot.running.copy(deep=False),
                nodes=snapshot.nodes.copy(deep=False),
            )
            try:
                requested[active.name] = self.domain.to_changes(list(active.service.decide(own_copy)))
                suspension = suspension.without(active.name)
                if not requested[active.name].changes and (why := getattr(active.service, "why_nothing", "")):
                    self.audit.notes.append(f"{active.name} asks for nothing: {why}")
            except Exception as raised:
                # A service may raise anything. The others and the cycle must go on, and the reason is kept.
                fault = f"{type(raised).__name__}: {' '.join(str(raised).split())}"[:LONGEST_FAULT]
                suspension = suspension.after_a_failure(active.name, what=fault, now=self.now)
                reason, outcome = "the service was asked and failed", f"{Result.FAILED}: {fault}"
                self._log_summary(active.mode.mode, service=active.name, reason=reason, outcome=outcome)
                self.audit.count(active.name, Result.FAILED)
        return requested, replace(self.memory, suspension=suspension, asked_at=asked_at)

    def _record_intent(self, plan: ReconcilePlan, writers: Sequence[ActiveService]) -> None:
        kept = len(self.audit.lines) if self.domain.sticky else self.written
        for active in writers:
            reason = f"will change {len(plan.send[active.name])} {self.domain.name}"
            self._log_summary(active.mode.mode, service=active.name, reason=reason, outcome="meant")
        if plan.reversions:
            self._log_summary(Mode.ACTIVE, reason=f"will revert {len(plan.reversions)} changes", outcome="meant")
        try:
            if self.undo is not None:
                self.undo(Undo.of(plan.intent))
        except HeliosError as error:
            del self.audit.lines[kept:]
            raise Suspended(f"the undo file could not be written, so nothing was done: {error.message}") from error
        if not self._write(plan.intent):
            del self.audit.lines[kept:]
            raise Suspended("what was meant could not be written down, so it was not done")

    def _execute(self, plan: ReconcilePlan, services: Sequence[ActiveService]) -> AppliedChanges:
        """Act and return the applied changes.

        An unreachable cluster, a pause, or the loss of the lease ends it. Changes that were recorded before stay
        recorded, and so does, as it was intended, a change that failed or was misread.
        """
        settled = AppliedChanges(real=dict(plan.intent.real), shadow=dict(plan.intent.shadow))
        try:
            for active in (None, *services):
                name, mode = (HELIOS, Mode.ACTIVE) if active is None else (active.name, active.mode.mode)
                asked = set() if active is None else {change.key for change in plan.send.get(name, ())}
                rows, before = settled.of(mode), self.applied.of(mode)
                pairs = self.domain.apply(self, plan, active)
                self.audit.record_outcomes(name, mode, [outcome for outcome, _ in pairs])
                for outcome, row in pairs:
                    key: Key = (outcome.setting, outcome_target(outcome))
                    if key not in asked:
                        if outcome.result in SETTLED and (active is None or active.is_shadow):
                            rows.pop(key, None)
                    elif outcome.result in READ_BACK and row is not None:
                        rows[key] = row
                    elif outcome.result in NOT_WRITTEN and key in before:
                        rows[key] = before[key]
                    elif outcome.result in NOT_WRITTEN | SETTLED:
                        rows.pop(key, None)
            if self.domain.finish is not None:
                self.domain.finish(self, services)
        except _Stopped as stopped:
            self.audit.notes.append(f"acting was broken off: {stopped}")
        except HeliosError as error:
            self.audit.bad = True
            self.audit.notes.append(f"acting was broken off: {error.message}")
        return settled

    def _suspend(self, reasons: tuple[str, ...]) -> None:
        self.suspended = reasons
        if self.token is None:
            return  # a standby's state must not be stored
        news = reasons != self.memory.suspended  # a lasting reason is logged once
        if news and self.released is None:
            self._log_summary(self.mode, reason="; ".join(reasons), outcome="nothing was done")
        if not self.domain.sticky:
            remember = news and self._write(None)
        else:
            if self.audit.lines[self.written :] or self.known != self.stored:
                if self.was_read:
                    self._write_undo(self.known)
                self._write(self.known if self.was_read else None)
            if self.was_read:
                self._write_undo(self.known, if_it_differs=True)
            remember = self.recorded
        if remember:
            self.memory = replace(self.memory, suspended=reasons)

    def _write_undo(self, applied: AppliedChanges, *, if_it_differs: bool = False) -> None:
        """Write what to revert into the domain's undo file.

        Also where this cycle changed nothing: a process that takes over the lease may have an older file.
        """
        if self.undo is None or (if_it_differs and self.undo_file == Undo.of(applied)):
            return
        try:
            self.undo(Undo.of(applied))
            self.undo_file = Undo.of(applied)
        except HeliosError as error:
            self.audit.notes.append(f"the undo file could not be written: {error.message}")

    def _log_summary(self, mode: str, *, reason: str, outcome: str, service: str = HELIOS) -> None:
        cluster = "" if self.snapshot is None else self.snapshot.cluster
        self.audit.lines.append(
            AuditEntry(service=service, mode=mode, action="Cycle", target=cluster, reason=reason, outcome=outcome)
        )

    def _write(self, applied: AppliedChanges | None) -> bool:
        try:
            if self.token is None:
                raise LeaseLost("there is no lease to write under")
            decisions = self.audit.frame(self.audit.lines[self.written :])
            applied_changes = None if applied is None else applied.frame(self.domain.table)
            self.ledger.record(token=self.token, decisions=decisions, applied_changes=applied_changes)
        except HeliosError as error:
            self.recorded = False
            self.audit.notes.append(f"the audit could not be written: {error.message}")
            return False
        self.written = len(self.audit.lines)
        if applied is not None:
            self.stored = self.known = applied
        return True


def postpone_beyond(
    left: int,
    send: dict[str, list[Change[Any]]],
    refused: dict[str, list[Outcome | NodeOutcome]],
    writers: Sequence[ActiveService],
    *,
    rank: Callable[[Change[Any]], float],
) -> None:
    """Postpone changes beyond the writes that are left, the last in rank.

    Services come in the order of ``writers``. ``send`` and ``refused`` are changed.
    """
    for active in writers:
        changes = sorted(send[active.name], key=rank)
        send[active.name], late = changes[: max(left, 0)], changes[max(left, 0) :]
        refused.setdefault(active.name, []).extend(change.outcome(Result.POSTPONED, SPENT) for change in late)
        left -= len(send[active.name])


def shadow_intent(
    applied: AppliedChanges, ends: Sequence[Reversion], services: Sequence[ActiveService]
) -> AppliedByKey:
    """Return the shadow changes of services still in shadow."""
    shadows = {active.name for active in services if active.is_shadow}
    gone = {reversion.key for reversion in ends if reversion.service not in shadows}
    return {key: row for key, row in applied.shadow.items() if key not in gone}


SomeOutcome = TypeVar("SomeOutcome", Outcome, NodeOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseResult:
    """Result of reverting everything.

    Attributes
    ----------
    outcomes : sequence of Outcome or NodeOutcome
        Last outcome of each setting of each target.
    message : str
        Summary in a sentence.
    notes : tuple of str
        Further messages for the operator.
    remaining : tuple of str, optional
        Targets with changes that are still applied or were left. None where they could not be observed.
    keys : frozenset of Key
        Settings of these targets.
    strangers : tuple of str
        Targets with values that somebody else wrote, although they look like Helios' own.
    snapshot : Snapshot, optional
        The snapshot that verified it.
    failure : str
        The cluster's error, for a person; empty where there was none.
    left : AppliedChanges
        Applied changes after it.
    sources : mapping
        Source of each job's prediction.
    """

    outcomes: Sequence[Outcome | NodeOutcome]
    message: str
    notes: tuple[str, ...] = ()
    remaining: tuple[str, ...] | None = None
    keys: frozenset[Key] = frozenset()
    strangers: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
    failure: str = ""
    left: AppliedChanges = field(default_factory=AppliedChanges)
    sources: Mapping[str, str] = field(default_factory=dict)

    def report(self, audit: AuditLog, *, reason: str, recorded: bool) -> dict[str, Any]:
        """Return the fields of a report that every domain has."""
        return {
            "suspended": (f"released: {reason}", *([self.failure] if self.failure else [])),
            **audit.report(),
            "seen": self.snapshot is not None,
            "recorded": recorded,
            "leads": recorded,
            "remaining": self.remaining,
            "strangers": self.strangers,
        }


def add_round(outcomes: dict[Key, SomeOutcome], answer: Sequence[SomeOutcome]) -> bool:
    """Add the outcomes of one round of reverting.

    Returns whether another round may revert more. A later round finds unchanged what an earlier one has reverted.
    """
    for outcome in answer:
        key: Key = (outcome.setting, outcome_target(outcome))
        if outcome.result is not Result.UNCHANGED or key not in outcomes:
            outcomes[key] = outcome
    return {Result.DONE, Result.POSTPONED} <= {outcome.result for outcome in answer}


def release_entries(result: ReleaseResult, *, now: datetime, reason: str) -> AuditLog:
    """Return the audit of reverting everything."""
    audit = AuditLog(decided_at=now, sources=result.sources)
    audit.record_outcomes(HELIOS, PAUSED, result.outcomes)
    target = "" if result.snapshot is None else result.snapshot.cluster
    audit.lines.append(
        AuditEntry(service=HELIOS, mode=PAUSED, action="Cycle", target=target, reason=reason, outcome=result.message)
    )
    audit.notes += [result.message, *result.notes]
    return audit


def record_release(
    ledger: Ledger, audit: AuditLog, left: Callable[[], AppliedChanges], *, table: FrameKind, now: datetime, holder: str
) -> bool:
    """Record a release in the ledger.

    The lease is taken for it if it is free, and released. Returns whether it was recorded.
    """
    try:
        token = ledger.acquire(holder=holder, now=now, lasts=LEASE)
        if token is None:
            audit.notes.append("the audit has no line of this: another Helios holds the lease, and may set it again")
            return False
        ledger.record(token=token, decisions=audit.frame(), applied_changes=left().frame(table))
        ledger.release(holder=holder)
    except HeliosError as error:
        audit.notes.append(f"the audit failed: {error.message}")
        return False
    return True
