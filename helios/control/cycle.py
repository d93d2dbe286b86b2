"""One cycle: take the lease, look, ask, check, write down what is meant, act, read back, write down what became of it.

Every failure on the way means that nothing is done, and says so. A crash at any point leaves a book that names at
least every job that was touched, so that the next cycle can put it right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from helios.actions import Action, NodeSetting, Result
from helios.changes import Key, to_changes, to_node_changes
from helios.config import Control, Settings
from helios.control.applied import (
    AppliedChange,
    AppliedChanges,
    AppliedNodeChanges,
    Tolerance,
    Undo,
    drop_gone_jobs,
    drop_released,
    find_overridden,
    mark_overridden,
    read_applied,
    read_applied_nodes,
)
from helios.control.audit import HELIOS, PAUSED, AuditEntry, AuditLog
from helios.control.circuit_breaker import CircuitBreaker, ServiceSuspension
from helios.control.execute import (
    Execution,
    NodeActivity,
    NodeExecution,
    execute,
    execute_nodes,
    record_intent,
    record_node_intent,
)
from helios.control.modes import describe_mode
from helios.control.node_guards import NodeCycleContext
from helios.control.node_watch import NodeObservation, shadow_entries, update_nodes
from helios.control.observed import carried_values, observed_nodes, partitions_wanted, pending_jobs
from helios.control.preconditions import Preconditions, cluster_suspension_reasons, is_cut_short, suspension_reasons
from helios.control.reconcile import ActiveService, CycleContext, NodeReconcilePlan, plan_jobs, plan_nodes
from helios.control.release import (
    NodeReleaseResult,
    ReleaseResult,
    all_awake,
    applied_after,
    applied_nodes_after,
    applied_on,
    jobs_in,
    node_release_entries,
    release_entries,
    revert_everything,
    suspended_applied,
    with_undo_records,
)
from helios.control.report import CycleReport, NodeCycleReport, cycle_counts, node_cycle_counts, wanted_awake
from helios.control.state import ControllerState, NodeControllerState
from helios.errors import HeliosError, LeaseLost
from helios.model import DECISIONS, Mode, Snapshot
from helios.model.hostlist import expand
from helios.ports import Cluster, Ledger, NodeCluster

# Asking the services: each gets the same snapshot, and one that fails is written down and skipped.

LONGEST_FAULT = 300
"""Characters of a service's own words that are kept."""


Asked = TypeVar("Asked")
"""All that a service asked for, in the form of its domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswers(Generic[Asked]):
    """What the services said.

    Attributes
    ----------
    proposals : mapping
        Of those that were asked and answered.
    playing : tuple of Seat
        All that are not off and do not sit out, asked or not.
    memory : TurnMemory
        With who was asked, and the bench.
    """

    proposals: Mapping[str, Asked]
    playing: tuple[ActiveService, ...]
    memory: ControllerState


def ask(
    active_services: Sequence[ActiveService],
    *,
    snapshot: Snapshot,
    memory: ControllerState,
    minutes: AuditLog,
    settings: Control,
    now: datetime,
    understand: Callable[[Sequence[Action]], Asked],
) -> ServiceAnswers[Asked]:
    """Ask each service that is due, and take down who failed or sits out.

    Parameters
    ----------
    understand : callable
        Takes the actions of a service apart; what it raises is the service's fault.
    """
    proposals: dict[str, Asked] = {}
    suspension, asked_at = memory.suspension, dict(memory.asked_at)
    for active in active_services:
        absent = active.mode.mode is Mode.OFF or suspension.why_not(
            active.name, now=now, failures=settings.failures_to_suspend
        )
        if absent or not memory.is_due(active.name, every=active.service.every, now=snapshot.taken_at):
            continue
        asked_at[active.name] = snapshot.taken_at
        minutes.asks(active.name)
        try:
            proposals[active.name] = understand(list(active.service.decide(_own_copy(snapshot))))
            suspension = suspension.without(active.name)
        except Exception as raised:
            # Whatever a service may raise: the others and the cycle must go on, and the reason is kept.
            fault = f"{type(raised).__name__}: {' '.join(str(raised).split())}"[:LONGEST_FAULT]
            suspension = suspension.after_a_failure(active.name, what=fault, now=now)
            minutes.say(_failed(active, snapshot, fault))
            minutes.count(active.name, Result.FAILED)
    return ServiceAnswers(
        proposals=proposals,
        playing=_playing(active_services, suspension, minutes, settings, now),
        memory=replace(memory, suspension=suspension, asked_at=asked_at),
    )


def _own_copy(snapshot: Snapshot) -> Snapshot:
    # pandas copies on write, so that this costs nothing, and a service that writes changes only its own.
    return replace(
        snapshot,
        pending=snapshot.pending.copy(deep=False),
        running=snapshot.running.copy(deep=False),
        nodes=snapshot.nodes.copy(deep=False),
    )


def _failed(active: ActiveService, snapshot: Snapshot, what: str) -> AuditEntry:
    return AuditEntry(
        service=active.name,
        mode=active.mode.mode,
        action="Cycle",
        target=snapshot.cluster,
        reason="the service was asked and failed",
        outcome=f"{Result.FAILED}: {what}",
    )


def _playing(
    active_services: Sequence[ActiveService],
    suspension: ServiceSuspension,
    minutes: AuditLog,
    settings: Control,
    now: datetime,
) -> tuple[ActiveService, ...]:
    why = {
        active.name: suspension.why_not(active.name, now=now, failures=settings.failures_to_suspend)
        for active in active_services
    }
    minutes.notes.extend(reason for reason in why.values() if reason)
    return tuple(active for active in active_services if not why[active.name] and active.mode.mode is not Mode.OFF)


NO_APPLIED = AppliedChanges(real={}, shadow={})


def run_cycle(
    *,
    active_services: Sequence[ActiveService],
    cluster: Cluster,
    expectation: Callable[[Snapshot], Snapshot],
    ledger: Ledger,
    conditions: Callable[[Snapshot], Preconditions],
    settings: Settings,
    now: datetime,
    holder: str,
    memory: ControllerState,
    paused: Callable[[], str] = lambda: "",
) -> CycleReport:
    """Take one turn of all services on one cluster.

    Fails still: whatever goes wrong before the first write, nothing is written and ``suspended`` says why. A pause
    takes back everything that Helios set, with or without the database; all other stillness leaves what stands.

    Parameters
    ----------
    seats : sequence of Seat
        In the order of configuration, which settles who has a setting that two services want.
    expectation : callable
        Returns the snapshot with predictions.
    conditions : callable
        What the caller knows of the world. It should not fail for want of a database: None says that.
    now : datetime
        Start of the cycle; the lease lasts from it.
    holder : str
        Name of this Helios, the same in all its cycles, and after a restart.
    memory : TurnMemory
        Of the report of the cycle before.
    paused : callable
        Why Helios is paused, empty: it is not; asked again before each door that writes, as a cycle takes its time.

    Raises
    ------
    Exception
        Only what is a defect of Helios itself; a service's are kept on the bench, and a ``HeliosError`` is a reason to
        be still.
    """
    cycle = _Cycle(
        cluster=cluster, ledger=ledger, settings=settings, now=now, holder=holder, memory=memory, paused=paused
    )
    try:
        cycle.take_the_lease()
        context = cycle.look(expectation)
        cycle.check(context, conditions)
        cycle.act(context, active_services)
    except _Suspended as suspended:
        cycle.suspend(suspended.reasons)
    return cycle.report()


class _Suspended(Exception):
    """Nothing is to be done in this cycle."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


@dataclass(slots=True, kw_only=True)
class _Cycle:
    """A cycle while it goes on: each method is a step, in this order."""

    cluster: Cluster
    ledger: Ledger
    settings: Settings
    now: datetime
    holder: str
    memory: ControllerState
    paused: Callable[[], str]
    minutes: AuditLog = field(init=False)
    mode: str = Mode.OFF
    token: int | None = None
    snapshot: Snapshot | None = None
    context: CycleContext | None = None
    known: AppliedChanges = NO_APPLIED
    written: int = 0
    recorded: bool = True
    suspended: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    everything: ReleaseResult | None = None
    released: bool = False

    def __post_init__(self) -> None:
        self.minutes = AuditLog(decided_at=self.now, said=self.memory.said)

    def take_the_lease(self) -> None:
        lasts = timedelta(seconds=self.settings.control.lease_s)
        try:
            self.token = self.ledger.acquire(holder=self.holder, now=self.now, lasts=lasts)
        except HeliosError as error:
            # Not the end yet: a pause must be able to revert everything without a database.
            self.faults += (f"the lease could not be taken: {error.message}",)
            return
        if self.token is None:
            raise _Suspended("another Helios holds the lease of this cluster: standing by")

    def look(self, expectation: Callable[[Snapshot], Snapshot]) -> CycleContext:
        try:
            self.snapshot = self.cluster.snapshot()
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the cluster could not be looked at: {error.message}") from error
        try:
            self.snapshot = expectation(self.snapshot)
        except HeliosError as error:
            self.faults += (f"there are no predictions: {error.message}",)
        jobs = pending_jobs(self.snapshot)
        self.known = drop_gone_jobs(self._applied(), jobs=jobs, snapshot=self.snapshot)
        return CycleContext(
            snapshot=self.snapshot,
            jobs=jobs,
            applied=self.known,
            tolerance=Tolerance.of(self.settings.slurm),
            settings=self.settings,
        )

    def check(self, context: CycleContext, conditions: Callable[[Snapshot], Preconditions]) -> None:
        try:
            world = conditions(context.snapshot)
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the conditions are not known: {error.message}") from error
        reasons = suspension_reasons(
            world,
            self.settings.control,
            snapshot=context.snapshot,
            jobs=context.jobs,
            memory=self.memory,
            now=self.now,
        )
        self._remember(world, context.snapshot)
        self.released = bool(world.released)
        if world.paused:
            self.mode = PAUSED
            self._take_everything_back(context, world.paused)
        if self.faults or reasons:
            raise _Suspended(*self.faults, *reasons)

    def act(self, context: CycleContext, active_services: Sequence[ActiveService]) -> None:
        context, disputed = self._disputed(context)
        answers = ask(
            active_services,
            snapshot=context.snapshot,
            memory=self.memory,
            minutes=self.minutes,
            settings=self.settings.control,
            now=self.now,
            understand=to_changes,
        )
        plan = plan_jobs(answers.proposals, active_services=answers.playing, context=context)
        execution = Execution(
            plan=plan,
            active_services=answers.playing,
            context=context,
            disputed=disputed,
            now=self.now,
            why_stop=self._why_stop,
        )
        self._take_down(execution)
        self._tell_of_untracked(plan.untracked)
        applied = record_intent(execution)
        if execution.writes:
            self._mean(execution, applied)
        settled = execute(execution, cluster=self.cluster, applied=applied, minutes=self.minutes)
        if settled != self.known or self._unwritten():
            self._write(settled)
        self.memory = replace(answers.memory, breaker=self._breaker(), said=self.minutes.said, suspended=())

    def suspend(self, reasons: tuple[str, ...]) -> None:
        stays = self._what_stays()
        self.suspended = (*reasons, stays) if stays else reasons
        if self.token is None or reasons == self.memory.suspended:
            return  # a standby's memory is not the one that counts; and what lasts is said once
        if self.everything is None:
            self._say_cycle(self.mode, reason="; ".join(reasons), outcome="nothing was done")
        if self._write(None):
            self.memory = replace(self.memory, suspended=reasons)

    def _what_stays(self) -> str:
        """Say what of Helios stands and stays: of what is in the book only what was seen just now is known to stand."""
        if self.everything is not None or self.snapshot is None:
            return ""  # what is left has been said, job by job; or nobody could look
        jobs = pending_jobs(self.snapshot)
        seen = carried_values(list(jobs.values()))
        known = [(row.setting, jobs[row.job_id]) for row in self.known.real.values() if not row.overridden]
        hidden = sum(
            not job.carries(setting) and (not job.readable(setting) or bool(job.excluded_reason))
            for setting, job in known
        )
        said = [
            f"{len(seen)} changes of Helios stand on the cluster and stay as they are" if seen else "",
            f"of {hidden} the cluster does not show whether they stand" if hidden else "",
        ]
        return "; ".join(filter(None, said))

    def report(self) -> CycleReport:
        return CycleReport(
            taken_at=self.now if self.snapshot is None else self.snapshot.taken_at,
            acted=len(self.minutes.changed),
            suspended=self.suspended,
            counts=self.minutes.sums(),
            decisions=self.minutes.frame(),
            seen=self.snapshot is not None or self.token is None,
            recorded=self.recorded,
            leads=self.token is not None,
            remaining=() if self.everything is None else jobs_in(self.everything),
            notes=self.minutes.told(),
            memory=self.memory,
            **cycle_counts(self.snapshot),
        )

    def _applied(self) -> AppliedChanges:
        try:
            return read_applied(self.ledger.applied_changes())
        except HeliosError as error:
            self.faults += (f"what stands changed could not be read: {error.message}",)
            return NO_APPLIED

    def _remember(self, world: Preconditions, snapshot: Snapshot) -> None:
        self.memory = replace(self.memory, controller=world.controller or self.memory.controller)
        if not is_cut_short(snapshot, self.memory):
            nodes = snapshot.nodes["name"].nunique()
            self.memory = replace(self.memory, pending=len(snapshot.pending), nodes=nodes)

    def _take_everything_back(self, context: CycleContext, reason: str) -> None:
        stands = any(not row.overridden for row in self.known.real.values())
        if not stands and not carried_values(list(context.jobs.values())):
            return
        self.everything = revert_everything(self.cluster, reason)
        self.minutes = release_entries(self.everything, now=self.now, reason=reason)
        if self.memory.suspended and not self.minutes.changed:
            self.minutes.lines.clear()  # what cannot be reverted is written down once, not in every cycle
        self._write(applied_after(self.known, self.everything))

    def _disputed(self, context: CycleContext) -> tuple[CycleContext, frozenset[Key]]:
        real = drop_released(context.applied.real, jobs=context.jobs) if self.released else context.applied.real
        rows = find_overridden(real, jobs=context.jobs, tolerance=context.tolerance)
        theirs = [row for row in rows if row.set_again]
        for row in theirs:
            self._say_theirs(row, read=describe_mode(row.setting, context.jobs[row.job_id].value(row.setting)))
        applied = replace(context.applied, real=mark_overridden(real, theirs))
        return replace(context, applied=applied), frozenset(row.key for row in rows if not row.set_again)

    def _say_theirs(self, row: AppliedChange, *, read: str) -> None:
        self.minutes.say(
            AuditEntry(
                service=HELIOS,
                mode=row.mode,
                action="HandsOff",
                target=row.job_id,
                reason=f"somebody changed twice what service {row.service} had set",
                before=row.after,
                after=read,
                outcome=f"{Result.REFUSED}: {row.setting} of this job is theirs from now on",
            )
        )

    def _take_down(self, execution: Execution) -> None:
        for active in execution.active_services:
            refused = execution.plan.refused.get(active.name, ())
            self.minutes.outcomes(active.name, active.mode.mode, refused, execution.context.jobs)
            self.minutes.count(active.name, Result.UNCHANGED, len(execution.plan.same.get(active.name, ())))

    def _tell_of_untracked(self, number: int) -> None:
        if number:
            self.minutes.notes.append(
                f"{number} changes bear Helios' mark, and no service may write to those jobs now; to take them back: "
                "helios pause, then helios resume"
            )

    def _mean(self, execution: Execution, applied: AppliedChanges) -> None:
        for active in execution.writers():
            number = len(execution.plan.send.get(active.name, ()))
            if number:
                self._say_cycle(
                    active.mode.mode, service=active.name, reason=f"will change {number} jobs", outcome="meant"
                )
        if execution.plan.take_back:
            number = len(execution.plan.take_back)
            self._say_cycle(Mode.ACTIVE, reason=f"will revert {number} changes", outcome="meant")
        if not self._write(applied):
            del self.minutes.lines[self.written :]
            raise _Suspended("what was meant could not be written down, so it was not done")

    def _why_stop(self) -> str:
        try:
            if why := self.paused():
                return f"paused: {why}"
            # Nothing to write down: this asks whether the lease is ours still.
            self.ledger.record(token=self.token or 0, decisions=DECISIONS.empty(), applied_changes=None)
        except HeliosError as error:
            return error.message
        return ""

    def _say_cycle(self, mode: str, *, reason: str, outcome: str, service: str = HELIOS) -> None:
        cluster = "" if self.snapshot is None else self.snapshot.cluster
        self.minutes.say(
            AuditEntry(service=service, mode=mode, action="Cycle", target=cluster, reason=reason, outcome=outcome)
        )

    def _breaker(self) -> CircuitBreaker:
        if self.minutes.bad:
            return self.memory.breaker.after_a_bad_cycle(now=self.now, settings=self.settings.control)
        return self.memory.breaker.after_a_good_cycle() if self.minutes.changed else self.memory.breaker

    def _unwritten(self) -> list[AuditEntry]:
        return self.minutes.lines[self.written :]

    def _write(self, applied: AppliedChanges | None) -> bool:
        try:
            if self.token is None:
                raise LeaseLost("there is no lease to write under")
            decisions = self.minutes.frame(self._unwritten())
            self.ledger.record(
                token=self.token, decisions=decisions, applied_changes=None if applied is None else applied.frame()
            )
        except HeliosError as error:
            self.recorded = False
            self.minutes.notes.append(f"the audit could not be written: {error.message}")
            return False
        self.written = len(self.minutes.lines)
        self.known = self.known if applied is None else applied
        return True


# One node cycle: take the lease, look, watch, ask, check, write down what is meant, act, write down what became of
# it.
#
# The sister of :mod:`helios.control.cycle`, for services that act on nodes. Every failure on the way means that
# nothing is done, and says so. A crash at any point leaves a book and an undo file that name at least every node that
# was touched.

NOBODY_SLEEPS = "no node is put to sleep"
NO_NODE_APPLIED = AppliedNodeChanges(real={}, shadow={})


def run_node_cycle(
    *,
    active_services: Sequence[ActiveService],
    cluster: NodeCluster,
    expectation: Callable[[Snapshot], Snapshot],
    ledger: Ledger,
    conditions: Callable[[Snapshot], Preconditions],
    settings: Settings,
    now: datetime,
    holder: str,
    memory: NodeControllerState,
    undo: Callable[[Undo], None],
    undone: Callable[[], Undo] = Undo,
    paused: Callable[[], str] = lambda: "",
) -> NodeCycleReport:
    """Take one turn of all services that act on nodes of one cluster.

    Fails still: whatever goes wrong before the first write, nothing is written and ``suspended`` says why. A pause
    wakes everything that Helios put to sleep and gives back weights and list, with or without the database, turn after
    turn until nothing remains; all other stillness leaves what stands.

    Parameters
    ----------
    seats : sequence of Seat
        In the order of configuration, which settles who has a setting that two services want.
    expectation : callable
        Returns the snapshot with the demand for nodes, and predictions. Without demand nodes are woken, none is put to
        sleep.
    ledger : Ledger
        Of the domain of nodes: its own lease, and ``APPLIED_NODE_CHANGES``.
    conditions : callable
        What the caller knows of the world. It should not fail for want of a database: None says that.
    now : datetime
        Start of the cycle; the lease lasts from it.
    holder : str
        Name of this Helios, the same in all its cycles, and after a restart.
    memory : NodeMemory
        Of the report of the cycle before.
    undo : callable
        Writes down, outside of the database, what would have to be reverted. It is called before anything is done;
        if it raises a :class:`HeliosError`, nothing is.
    undone : callable
        Reads what ``undo`` wrote last.
    paused : callable
        Why Helios is paused, empty: it is not; asked again before each door that writes, as a cycle takes its time.

    Raises
    ------
    Exception
        Only what is a defect of Helios itself; a service's are kept on the bench, and a ``HeliosError`` is a reason to
        be still.
    """
    cycle = _NodeCycle(
        cluster=cluster,
        ledger=ledger,
        settings=settings,
        now=now,
        holder=holder,
        memory=memory,
        undo=undo,
        undone=undone,
        paused=paused,
    )
    try:
        cycle.take_the_lease()
        context = cycle.look(expectation)
        context = cycle.check(context, conditions)
        cycle.act(context, active_services)
    except _Suspended as suspended:
        cycle.suspend(suspended.reasons)
    return cycle.report()


@dataclass(slots=True, kw_only=True)
class _NodeCycle:
    """A cycle while it goes on: each method is a step, in this order."""

    cluster: NodeCluster
    ledger: Ledger
    settings: Settings
    now: datetime
    holder: str
    memory: NodeControllerState
    undo: Callable[[Undo], None]
    undone: Callable[[], Undo]
    paused: Callable[[], str]
    minutes: AuditLog = field(init=False)
    activity: NodeActivity = field(init=False)
    mode: str = Mode.OFF
    token: int | None = None
    snapshot: Snapshot | None = None
    context: NodeCycleContext | None = None
    read: AppliedNodeChanges = NO_NODE_APPLIED
    known: AppliedNodeChanges = NO_NODE_APPLIED
    wanted: Mapping[str, float] = field(default_factory=dict)
    written: int = 0
    recorded: bool = True
    applied_now_was_read: bool = False
    no_forecast: str = ""
    file: Undo | None = None
    suspended: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    awakening: NodeReleaseResult | None = None

    def __post_init__(self) -> None:
        self.minutes = AuditLog(decided_at=self.now, said=self.memory.cycle.said)
        self.activity = NodeActivity(memory=self.memory)

    def take_the_lease(self) -> None:
        lasts = timedelta(seconds=self.settings.control.lease_s)
        try:
            self.token = self.ledger.acquire(holder=self.holder, now=self.now, lasts=lasts)
        except HeliosError as error:
            # Not the end yet: a pause must be able to wake everything without a database.
            self.faults += (f"the lease could not be taken: {error.message}",)
            return
        if self.token is None:
            raise _Suspended("another Helios holds the lease of this cluster's nodes: standing by")

    def look(self, expectation: Callable[[Snapshot], Snapshot]) -> NodeCycleContext:
        try:
            self.snapshot = self.cluster.snapshot()
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the cluster could not be looked at: {error.message}") from error
        nodes, wanted = observed_nodes(self.snapshot), partitions_wanted(self.snapshot)
        try:
            self.snapshot = expectation(self.snapshot)
        except HeliosError as error:
            self.no_forecast = " ".join(filter(None, [error.message, error.hint]))
            self.minutes.notes.append(f"there is no forecast, so that no node is put to sleep: {self.no_forecast}")
        self.read = self.known = self._applied()
        self.context = NodeCycleContext(
            snapshot=self.snapshot,
            nodes=nodes,
            applied=self.known,
            memory=self.memory,
            settings=self.settings,
            wanted=wanted,
            never=self._never(),
        )
        return self.context

    def check(self, context: NodeCycleContext, conditions: Callable[[Snapshot], Preconditions]) -> NodeCycleContext:
        try:
            world = conditions(context.snapshot)
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the conditions are not known: {error.message}") from error
        reasons = cluster_suspension_reasons(
            world, self.settings.control, snapshot=context.snapshot, memory=self.memory.cycle, now=self.now
        )
        if not is_cut_short(context.snapshot, self.memory.cycle):
            context = self._watch(context, released=bool(world.released))
        self._remember(world, context)
        if world.paused:
            self.mode = PAUSED
            self._wake_everything(context, world.paused)
        if self.faults or reasons:
            raise _Suspended(*self.faults, *reasons)
        return context

    def act(self, context: NodeCycleContext, active_services: Sequence[ActiveService]) -> None:
        answers = ask(
            active_services,
            snapshot=context.snapshot,
            memory=self.memory.cycle,
            minutes=self.minutes,
            settings=self.settings.control,
            now=self.now,
            understand=to_node_changes,
        )
        if self.minutes.is_news(HELIOS, self.no_forecast):
            self._say_cycle(self.mode, reason=f"there is no forecast: {self.no_forecast}", outcome=NOBODY_SLEEPS)
        self.wanted = wanted_awake(answers.proposals, context.nodes)
        plan = plan_nodes(answers.proposals, active_services=answers.playing, context=context)
        execution = NodeExecution(
            plan=plan, active_services=answers.playing, context=context, now=self.now, why_stop=self._why_stop
        )
        self._take_down(execution)
        applied = record_node_intent(execution)
        if execution.writes:
            self._mean(execution, applied)
        self.activity = NodeActivity(memory=self.memory)
        settled = execute_nodes(
            execution, cluster=self.cluster, applied=applied, minutes=self.minutes, activity=self.activity
        )
        if settled != self.known or self.known != self.read or self._unwritten():
            self._write(settled)
            self._undo_is(settled)
        self._undo_agrees(settled)
        cycle = replace(answers.memory, breaker=self._breaker(), said=self.minutes.said, suspended=())
        self.memory = replace(self.activity.memory, cycle=cycle)

    def suspend(self, reasons: tuple[str, ...]) -> None:
        applied = sum(not row.overridden for row in self.known.real.values())
        stays = f"{applied} changes of Helios stand on the nodes and stay as they are"
        self.suspended = (*reasons, stays) if applied and self.awakening is None else reasons
        if self.token is None:
            return  # a standby's memory is not the one that counts
        if reasons != self.memory.cycle.suspended and self.awakening is None:
            self._say_cycle(self.mode, reason="; ".join(reasons), outcome="nothing was done")
        if self._unwritten() or self.known != self.read:
            if self.applied_now_was_read:
                self._undo_is(self.known)
            self._write(self.known if self.applied_now_was_read else None)
        if self.applied_now_was_read:
            self._undo_agrees(self.known)
        if self.recorded:
            self.memory = replace(self.memory, cycle=replace(self.memory.cycle, suspended=reasons))

    def report(self) -> NodeCycleReport:
        return NodeCycleReport(
            slept=tuple(self.activity.slept),
            woken=tuple(self.activity.woken),
            weighed=tuple(self.activity.weighed),
            suspended=self.suspended,
            counts=self.minutes.sums(),
            decisions=self.minutes.frame(),
            seen=self.snapshot is not None or self.token is None,
            recorded=self.recorded,
            leads=self.token is not None,
            remaining=() if self.awakening is None else self.awakening.names(),
            notes=self.minutes.told(),
            protected=self.memory.protected,
            memory=self.memory,
            **node_cycle_counts(self.snapshot, self.known, at=self.now, wanted=self.wanted),
        )

    def _applied(self) -> AppliedNodeChanges:
        applied = NO_NODE_APPLIED
        try:
            applied = read_applied_nodes(self.ledger.applied_changes())
            self.applied_now_was_read = True
        except HeliosError as error:
            self.faults += (f"what stands changed could not be read: {error.message}",)
        try:
            self.file = self.undone()
        except HeliosError as error:
            self.minutes.notes.append(f"the undo file could not be read: {error.message}")
        # Only where the book is gone: a file that lay on a standby's disk may be about what was long since undone.
        return applied if applied.real or self.file is None else with_undo_records(applied, self.file, at=self.now)

    def _never(self) -> frozenset[str]:
        try:
            return frozenset(expand(self.settings.power.never))
        except HeliosError as error:
            self.faults += (f"power.never cannot be read: {error.message}",)
            return frozenset()

    def _watch(self, context: NodeCycleContext, *, released: bool) -> NodeCycleContext:
        look = NodeObservation(
            nodes=context.nodes,
            power=context.power,
            at=context.snapshot.taken_at,
            settings=self.settings.power,
            released=released,
        )
        found = update_nodes(self.memory, context.applied, look)
        for line in (*found.lines, *shadow_entries(context.applied, found.applied)):
            self.minutes.say(line)
        self.minutes.notes.extend(found.notes)
        if found.memory.protected:
            self.minutes.notes.append(f"{found.memory.protected}; to end it: helios power clear")
        self.memory, self.known = found.memory, found.applied
        self.activity.memory = found.memory
        self.context = replace(context, memory=found.memory, applied=found.applied)
        return self.context

    def _remember(self, world: Preconditions, context: NodeCycleContext) -> None:
        cycle = replace(self.memory.cycle, controller=world.controller or self.memory.cycle.controller)
        if not is_cut_short(context.snapshot, self.memory.cycle):
            cycle = replace(cycle, pending=len(context.snapshot.pending), nodes=len(context.nodes))
        self.memory = replace(self.memory, cycle=cycle)

    def _wake_everything(self, context: NodeCycleContext, reason: str) -> None:
        if not applied_on(context.snapshot, self.known.real):
            self.known = AppliedNodeChanges(real=suspended_applied(self.known.real, context.snapshot), shadow={})
            return
        self.awakening = all_awake(self.cluster, self.known.real, reason)
        lines, notes = self.minutes.lines, self.minutes.notes
        self.minutes = node_release_entries(self.awakening, now=self.now, reason=reason)
        if self.memory.cycle.suspended and not self.minutes.changed:
            self.minutes.lines.clear()  # what cannot be reverted yet is written down once, not in every cycle
        self.minutes.lines[:0], self.minutes.notes[:0] = lines, notes
        self.activity = NodeActivity(memory=self.memory)
        self.activity.take_note(self.awakening.outcomes, now=self.now)
        self.memory = self.activity.memory
        left = applied_nodes_after(self.known, self.awakening)
        self._write(left)
        self.known = left
        self._undo_is(left)

    def _take_down(self, execution: NodeExecution) -> None:
        plan: NodeReconcilePlan = execution.plan
        for active in execution.active_services:
            self.minutes.outcomes(active.name, active.mode.mode, plan.refused.get(active.name, ()))
            self.minutes.count(active.name, Result.UNCHANGED, len(plan.same.get(active.name, ())))
        falling = sum(row.setting is NodeSetting.POWER for row in plan.waiting)
        if falling:
            when = "as soon as they are asleep, in service, and there is room"
            self.minutes.notes.append(f"{falling} nodes are to be woken {when}")

    def _mean(self, execution: NodeExecution, applied: AppliedNodeChanges) -> None:
        before = len(self.minutes.lines)
        for active in execution.writers():
            number = len(execution.plan.send.get(active.name, ()))
            if number:
                self._say_cycle(
                    active.mode.mode, service=active.name, reason=f"will change {number} nodes", outcome="meant"
                )
        if execution.plan.take_back:
            number = len(execution.plan.take_back)
            self._say_cycle(Mode.ACTIVE, reason=f"will revert {number} changes", outcome="meant")
        try:
            self.undo(Undo.of(applied))
        except HeliosError as error:
            del self.minutes.lines[before:]
            raise _Suspended(f"the undo file could not be written, so nothing was done: {error.message}") from error
        if not self._write(applied):
            del self.minutes.lines[before:]
            raise _Suspended("what was meant could not be written down, so it was not done")

    def _why_stop(self) -> str:
        try:
            if why := self.paused():
                return f"paused: {why}"
            # Nothing to write down: this asks whether the lease is ours still.
            self.ledger.record(token=self.token or 0, decisions=DECISIONS.empty(), applied_changes=None)
        except HeliosError as error:
            return error.message
        return ""

    def _say_cycle(self, mode: str, *, reason: str, outcome: str, service: str = HELIOS) -> None:
        cluster = "" if self.snapshot is None else self.snapshot.cluster
        self.minutes.say(
            AuditEntry(service=service, mode=mode, action="Cycle", target=cluster, reason=reason, outcome=outcome)
        )

    def _breaker(self) -> CircuitBreaker:
        before = self.memory.cycle.breaker
        if self.minutes.bad:
            return before.after_a_bad_cycle(now=self.now, settings=self.settings.control)
        return before.after_a_good_cycle() if self.minutes.changed else before

    def _unwritten(self) -> list[AuditEntry]:
        return self.minutes.lines[self.written :]

    def _undo_agrees(self, applied: AppliedNodeChanges) -> None:
        """Have the undo file say what the book says: whoever takes a lease over has another file than who had it."""
        if self.file != Undo.of(applied):
            self._undo_is(applied)

    def _undo_is(self, applied: AppliedNodeChanges) -> None:
        try:
            self.undo(Undo.of(applied))
            self.file = Undo.of(applied)
        except HeliosError as error:
            self.minutes.notes.append(f"the undo file could not be written: {error.message}")

    def _write(self, applied: AppliedNodeChanges | None) -> bool:
        try:
            if self.token is None:
                raise LeaseLost("there is no lease to write under")
            applied_changes = None if applied is None else applied.frame()
            decisions = self.minutes.frame(self._unwritten())
            self.ledger.record(token=self.token, decisions=decisions, applied_changes=applied_changes)
        except HeliosError as error:
            self.recorded = False
            self.minutes.notes.append(f"the audit could not be written: {error.message}")
            return False
        self.written = len(self.minutes.lines)
        if applied is not None:
            self.read = self.known = applied
        return True
