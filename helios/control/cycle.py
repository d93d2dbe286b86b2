"""One turn: take the lease, look, ask, check, write down what is meant, act, read back, write down what became of it.

Every failure on the way means that nothing is done, and says so. A crash at any point leaves a book that names at
least every job that was touched, so that the next turn can put it right.
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
    still_applied,
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
"""All that a service asked for, in the form of its office."""


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
    seats: Sequence[ActiveService],
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
    bench, asked_at = memory.bench, dict(memory.asked_at)
    for seat in seats:
        absent = seat.mode.mode is Mode.OFF or bench.why_not(seat.name, now=now, failures=settings.raises_to_bench)
        if absent or not memory.is_due(seat.name, every=seat.service.every, now=snapshot.taken_at):
            continue
        asked_at[seat.name] = snapshot.taken_at
        minutes.asks(seat.name)
        try:
            proposals[seat.name] = understand(list(seat.service.decide(_own_copy(snapshot))))
            bench = bench.without(seat.name)
        except Exception as raised:
            # Whatever a service may raise: the others and the turn must go on, and the reason is kept.
            fault = f"{type(raised).__name__}: {' '.join(str(raised).split())}"[:LONGEST_FAULT]
            bench = bench.after_a_failure(seat.name, what=fault, now=now)
            minutes.say(_failed(seat, snapshot, fault))
            minutes.count(seat.name, Result.FAILED)
    return ServiceAnswers(
        proposals=proposals,
        playing=_playing(seats, bench, minutes, settings, now),
        memory=replace(memory, bench=bench, asked_at=asked_at),
    )


def _own_copy(snapshot: Snapshot) -> Snapshot:
    # pandas copies on write, so that this costs nothing, and a service that writes changes only its own.
    return replace(
        snapshot,
        pending=snapshot.pending.copy(deep=False),
        running=snapshot.running.copy(deep=False),
        nodes=snapshot.nodes.copy(deep=False),
    )


def _failed(seat: ActiveService, snapshot: Snapshot, what: str) -> AuditEntry:
    return AuditEntry(
        service=seat.name,
        mode=seat.mode.mode,
        action="Turn",
        target=snapshot.cluster,
        reason="the service was asked and failed",
        outcome=f"{Result.FAILED}: {what}",
    )


def _playing(
    seats: Sequence[ActiveService], bench: ServiceSuspension, minutes: AuditLog, settings: Control, now: datetime
) -> tuple[ActiveService, ...]:
    why = {seat.name: bench.why_not(seat.name, now=now, failures=settings.raises_to_bench) for seat in seats}
    minutes.notes.extend(reason for reason in why.values() if reason)
    return tuple(seat for seat in seats if not why[seat.name] and seat.mode.mode is not Mode.OFF)


NO_BOOKS = AppliedChanges(real={}, shadow={})


def run_cycle(
    *,
    seats: Sequence[ActiveService],
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

    Fails still: whatever goes wrong before the first write, nothing is written and ``still`` says why. A pause takes
    back everything that Helios set, with or without the database; all other stillness leaves what stands.

    Parameters
    ----------
    seats : sequence of Seat
        In the order of configuration, which settles who has a lever that two services want.
    expectation : callable
        Returns the snapshot with predictions.
    conditions : callable
        What the caller knows of the world. It should not fail for want of a database: None says that.
    now : datetime
        Start of the turn; the lease lasts from it.
    holder : str
        Name of this Helios, the same in all its turns, and after a restart.
    memory : TurnMemory
        Of the report of the turn before.
    paused : callable
        Why Helios is paused, empty: it is not; asked again before each door that writes, as a turn takes its time.

    Raises
    ------
    Exception
        Only what is a defect of Helios itself; a service's are kept on the bench, and a ``HeliosError`` is a reason to
        be still.
    """
    turn = _Cycle(
        cluster=cluster, ledger=ledger, settings=settings, now=now, holder=holder, memory=memory, paused=paused
    )
    try:
        turn.take_the_lease()
        scene = turn.look(expectation)
        turn.mind(scene, conditions)
        turn.act(scene, seats)
    except _Suspended as still:
        turn.be_still(still.reasons)
    return turn.report()


class _Suspended(Exception):
    """Nothing is to be done in this turn."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


@dataclass(slots=True, kw_only=True)
class _Cycle:
    """A turn while it goes on: each method is a step, in this order."""

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
    scene: CycleContext | None = None
    known: AppliedChanges = NO_BOOKS
    written: int = 0
    recorded: bool = True
    still: tuple[str, ...] = ()
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
            # Not the end yet: a pause must be able to take everything back without a database.
            self.faults += (f"the lease could not be taken: {error.fact}",)
            return
        if self.token is None:
            raise _Suspended("another Helios holds the lease of this cluster: standing by")

    def look(self, expectation: Callable[[Snapshot], Snapshot]) -> CycleContext:
        try:
            self.snapshot = self.cluster.snapshot()
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the cluster could not be looked at: {error.fact}") from error
        try:
            self.snapshot = expectation(self.snapshot)
        except HeliosError as error:
            self.faults += (f"there are no predictions: {error.fact}",)
        jobs = pending_jobs(self.snapshot)
        self.known = drop_gone_jobs(self._books(), jobs=jobs, snapshot=self.snapshot)
        return CycleContext(
            snapshot=self.snapshot,
            jobs=jobs,
            books=self.known,
            resolution=Tolerance.of(self.settings.slurm),
            settings=self.settings,
        )

    def mind(self, scene: CycleContext, conditions: Callable[[Snapshot], Preconditions]) -> None:
        try:
            world = conditions(scene.snapshot)
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the conditions are not known: {error.fact}") from error
        reasons = suspension_reasons(
            world,
            self.settings.control,
            snapshot=scene.snapshot,
            jobs=scene.jobs,
            memory=self.memory,
            now=self.now,
        )
        self._remember(world, scene.snapshot)
        self.released = bool(world.released)
        if world.paused:
            self.mode = PAUSED
            self._take_everything_back(scene, world.paused)
        if self.faults or reasons:
            raise _Suspended(*self.faults, *reasons)

    def act(self, scene: CycleContext, seats: Sequence[ActiveService]) -> None:
        scene, disputed = self._disputed(scene)
        answers = ask(
            seats,
            snapshot=scene.snapshot,
            memory=self.memory,
            minutes=self.minutes,
            settings=self.settings.control,
            now=self.now,
            understand=to_changes,
        )
        plan = plan_jobs(answers.proposals, seats=answers.playing, scene=scene)
        errand = Execution(
            plan=plan, seats=answers.playing, scene=scene, disputed=disputed, now=self.now, why_stop=self._why_stop
        )
        self._take_down(errand)
        self._tell_of_orphans(plan.orphans)
        books = record_intent(errand)
        if errand.writes:
            self._mean(errand, books)
        settled = execute(errand, cluster=self.cluster, books=books, minutes=self.minutes)
        if settled != self.known or self._unwritten():
            self._write(settled)
        self.memory = replace(answers.memory, breaker=self._breaker(), said=self.minutes.said, still=())

    def be_still(self, reasons: tuple[str, ...]) -> None:
        stays = self._what_stays()
        self.still = (*reasons, stays) if stays else reasons
        if self.token is None or reasons == self.memory.still:
            return  # a standby's memory is not the one that counts; and what lasts is said once
        if self.everything is None:
            self._say_turn(self.mode, reason="; ".join(reasons), outcome="nothing was done")
        if self._write(None):
            self.memory = replace(self.memory, still=reasons)

    def _what_stays(self) -> str:
        """Say what of Helios stands and stays: of what is in the book only what was seen just now is known to stand."""
        if self.everything is not None or self.snapshot is None:
            return ""  # what is left has been said, job by job; or nobody could look
        jobs = pending_jobs(self.snapshot)
        seen = carried_values(list(jobs.values()))
        known = [(row.lever, jobs[row.job_id]) for row in self.known.real.values() if not row.admins]
        hidden = sum(
            not job.carries(lever) and (not job.readable(lever) or bool(job.hands_off)) for lever, job in known
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
            still=self.still,
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

    def _books(self) -> AppliedChanges:
        try:
            return read_applied(self.ledger.standings())
        except HeliosError as error:
            self.faults += (f"what stands changed could not be read: {error.fact}",)
            return NO_BOOKS

    def _remember(self, world: Preconditions, snapshot: Snapshot) -> None:
        self.memory = replace(self.memory, controller=world.controller or self.memory.controller)
        if not is_cut_short(snapshot, self.memory):
            nodes = snapshot.nodes["name"].nunique()
            self.memory = replace(self.memory, pending=len(snapshot.pending), nodes=nodes)

    def _take_everything_back(self, scene: CycleContext, reason: str) -> None:
        stands = any(not row.admins for row in self.known.real.values())
        if not stands and not carried_values(list(scene.jobs.values())):
            return
        self.everything = revert_everything(self.cluster, reason)
        self.minutes = release_entries(self.everything, now=self.now, reason=reason)
        if self.memory.still and not self.minutes.changed:
            self.minutes.lines.clear()  # what cannot be taken back is written down once, not in every turn
        self._write(applied_after(self.known, self.everything))

    def _disputed(self, scene: CycleContext) -> tuple[CycleContext, frozenset[Key]]:
        real = drop_released(scene.books.real, jobs=scene.jobs) if self.released else scene.books.real
        rows = find_overridden(real, jobs=scene.jobs, resolution=scene.resolution)
        theirs = [row for row in rows if row.set_again]
        for row in theirs:
            self._say_theirs(row, read=describe_mode(row.lever, scene.jobs[row.job_id].value(row.lever)))
        books = replace(scene.books, real=mark_overridden(real, theirs))
        return replace(scene, books=books), frozenset(row.key for row in rows if not row.set_again)

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
                outcome=f"{Result.REFUSED}: {row.lever} of this job is theirs from now on",
            )
        )

    def _take_down(self, errand: Execution) -> None:
        for seat in errand.seats:
            refused = errand.plan.refused.get(seat.name, ())
            self.minutes.outcomes(seat.name, seat.mode.mode, refused, errand.scene.jobs)
            self.minutes.count(seat.name, Result.UNCHANGED, len(errand.plan.same.get(seat.name, ())))

    def _tell_of_orphans(self, number: int) -> None:
        if number:
            self.minutes.notes.append(
                f"{number} changes bear Helios' mark, and no service may write to those jobs now; to take them back: "
                "helios pause, then helios resume"
            )

    def _mean(self, errand: Execution, books: AppliedChanges) -> None:
        for seat in errand.writers():
            number = len(errand.plan.send.get(seat.name, ()))
            if number:
                self._say_turn(seat.mode.mode, service=seat.name, reason=f"will change {number} jobs", outcome="meant")
        if errand.plan.take_back:
            number = len(errand.plan.take_back)
            self._say_turn(Mode.ACTIVE, reason=f"will take back {number} changes", outcome="meant")
        if not self._write(books):
            del self.minutes.lines[self.written :]
            raise _Suspended("what was meant could not be written down, so it was not done")

    def _why_stop(self) -> str:
        try:
            if why := self.paused():
                return f"paused: {why}"
            # Nothing to write down: this asks whether the lease is ours still.
            self.ledger.record(token=self.token or 0, decisions=DECISIONS.empty(), standings=None)
        except HeliosError as error:
            return error.fact
        return ""

    def _say_turn(self, mode: str, *, reason: str, outcome: str, service: str = HELIOS) -> None:
        cluster = "" if self.snapshot is None else self.snapshot.cluster
        self.minutes.say(
            AuditEntry(service=service, mode=mode, action="Turn", target=cluster, reason=reason, outcome=outcome)
        )

    def _breaker(self) -> CircuitBreaker:
        if self.minutes.bad:
            return self.memory.breaker.after_a_bad_turn(now=self.now, settings=self.settings.control)
        return self.memory.breaker.after_a_good_turn() if self.minutes.changed else self.memory.breaker

    def _unwritten(self) -> list[AuditEntry]:
        return self.minutes.lines[self.written :]

    def _write(self, books: AppliedChanges | None) -> bool:
        try:
            if self.token is None:
                raise LeaseLost("there is no lease to write under")
            decisions = self.minutes.frame(self._unwritten())
            self.ledger.record(
                token=self.token, decisions=decisions, standings=None if books is None else books.frame()
            )
        except HeliosError as error:
            self.recorded = False
            self.minutes.notes.append(f"the audit could not be written: {error.fact}")
            return False
        self.written = len(self.minutes.lines)
        self.known = self.known if books is None else books
        return True


# One power turn: take the lease, look, watch, ask, check, write down what is meant, act, write down what became of
# it.
#
# The sister of :mod:`helios.control.cycle`, for services that act on nodes. Every failure on the way means that
# nothing is done, and says so. A crash at any point leaves a book and an undo file that name at least every node that
# was touched.

NOBODY_SLEEPS = "no node is put to sleep"
NO_NODE_BOOKS = AppliedNodeChanges(real={}, shadow={})


def run_node_cycle(
    *,
    seats: Sequence[ActiveService],
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

    Fails still: whatever goes wrong before the first write, nothing is written and ``still`` says why. A pause wakes
    everything that Helios put to sleep and gives back weights and list, with or without the database, turn after turn
    until nothing remains; all other stillness leaves what stands.

    Parameters
    ----------
    seats : sequence of Seat
        In the order of configuration, which settles who has a lever that two services want.
    expectation : callable
        Returns the snapshot with the demand for nodes, and predictions. Without demand nodes are woken, none is put to
        sleep.
    ledger : Ledger
        Of the office of nodes: its own lease, and ``NODE_STANDINGS``.
    conditions : callable
        What the caller knows of the world. It should not fail for want of a database: None says that.
    now : datetime
        Start of the turn; the lease lasts from it.
    holder : str
        Name of this Helios, the same in all its turns, and after a restart.
    memory : NodeMemory
        Of the report of the turn before.
    undo : callable
        Writes down, outside of the database, what would have to be taken back. It is called before anything is done;
        if it raises a :class:`HeliosError`, nothing is.
    undone : callable
        Reads what ``undo`` wrote last.
    paused : callable
        Why Helios is paused, empty: it is not; asked again before each door that writes, as a turn takes its time.

    Raises
    ------
    Exception
        Only what is a defect of Helios itself; a service's are kept on the bench, and a ``HeliosError`` is a reason to
        be still.
    """
    turn = _NodeCycle(
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
        turn.take_the_lease()
        scene = turn.look(expectation)
        scene = turn.mind(scene, conditions)
        turn.act(scene, seats)
    except _Suspended as still:
        turn.be_still(still.reasons)
    return turn.report()


@dataclass(slots=True, kw_only=True)
class _NodeCycle:
    """A turn while it goes on: each method is a step, in this order."""

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
    deeds: NodeActivity = field(init=False)
    mode: str = Mode.OFF
    token: int | None = None
    snapshot: Snapshot | None = None
    scene: NodeCycleContext | None = None
    read: AppliedNodeChanges = NO_NODE_BOOKS
    known: AppliedNodeChanges = NO_NODE_BOOKS
    wanted: Mapping[str, float] = field(default_factory=dict)
    written: int = 0
    recorded: bool = True
    book_was_read: bool = False
    no_forecast: str = ""
    file: Undo | None = None
    still: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    awakening: NodeReleaseResult | None = None

    def __post_init__(self) -> None:
        self.minutes = AuditLog(decided_at=self.now, said=self.memory.turn.said)
        self.deeds = NodeActivity(memory=self.memory)

    def take_the_lease(self) -> None:
        lasts = timedelta(seconds=self.settings.control.lease_s)
        try:
            self.token = self.ledger.acquire(holder=self.holder, now=self.now, lasts=lasts)
        except HeliosError as error:
            # Not the end yet: a pause must be able to wake everything without a database.
            self.faults += (f"the lease could not be taken: {error.fact}",)
            return
        if self.token is None:
            raise _Suspended("another Helios holds the lease of this cluster's nodes: standing by")

    def look(self, expectation: Callable[[Snapshot], Snapshot]) -> NodeCycleContext:
        try:
            self.snapshot = self.cluster.snapshot()
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the cluster could not be looked at: {error.fact}") from error
        nodes, wanted = observed_nodes(self.snapshot), partitions_wanted(self.snapshot)
        try:
            self.snapshot = expectation(self.snapshot)
        except HeliosError as error:
            self.no_forecast = " ".join(filter(None, [error.fact, error.remedy]))
            self.minutes.notes.append(f"there is no forecast, so that no node is put to sleep: {self.no_forecast}")
        self.read = self.known = self._books()
        self.scene = NodeCycleContext(
            snapshot=self.snapshot,
            nodes=nodes,
            books=self.known,
            memory=self.memory,
            settings=self.settings,
            wanted=wanted,
            never=self._never(),
        )
        return self.scene

    def mind(self, scene: NodeCycleContext, conditions: Callable[[Snapshot], Preconditions]) -> NodeCycleContext:
        try:
            world = conditions(scene.snapshot)
        except HeliosError as error:
            raise _Suspended(*self.faults, f"the conditions are not known: {error.fact}") from error
        reasons = cluster_suspension_reasons(
            world, self.settings.control, snapshot=scene.snapshot, memory=self.memory.turn, now=self.now
        )
        if not is_cut_short(scene.snapshot, self.memory.turn):
            scene = self._watch(scene, released=bool(world.released))
        self._remember(world, scene)
        if world.paused:
            self.mode = PAUSED
            self._wake_everything(scene, world.paused)
        if self.faults or reasons:
            raise _Suspended(*self.faults, *reasons)
        return scene

    def act(self, scene: NodeCycleContext, seats: Sequence[ActiveService]) -> None:
        answers = ask(
            seats,
            snapshot=scene.snapshot,
            memory=self.memory.turn,
            minutes=self.minutes,
            settings=self.settings.control,
            now=self.now,
            understand=to_node_changes,
        )
        if self.minutes.is_news(HELIOS, self.no_forecast):
            self._say_turn(self.mode, reason=f"there is no forecast: {self.no_forecast}", outcome=NOBODY_SLEEPS)
        self.wanted = wanted_awake(answers.proposals, scene.nodes)
        plan = plan_nodes(answers.proposals, seats=answers.playing, scene=scene)
        errand = NodeExecution(plan=plan, seats=answers.playing, scene=scene, now=self.now, why_stop=self._why_stop)
        self._take_down(errand)
        books = record_node_intent(errand)
        if errand.writes:
            self._mean(errand, books)
        self.deeds = NodeActivity(memory=self.memory)
        settled = execute_nodes(errand, cluster=self.cluster, books=books, minutes=self.minutes, deeds=self.deeds)
        if settled != self.known or self.known != self.read or self._unwritten():
            self._write(settled)
            self._undo_is(settled)
        self._undo_agrees(settled)
        turn = replace(answers.memory, breaker=self._breaker(), said=self.minutes.said, still=())
        self.memory = replace(self.deeds.memory, turn=turn)

    def be_still(self, reasons: tuple[str, ...]) -> None:
        standing = sum(not row.admins for row in self.known.real.values())
        stays = f"{standing} changes of Helios stand on the nodes and stay as they are"
        self.still = (*reasons, stays) if standing and self.awakening is None else reasons
        if self.token is None:
            return  # a standby's memory is not the one that counts
        if reasons != self.memory.turn.still and self.awakening is None:
            self._say_turn(self.mode, reason="; ".join(reasons), outcome="nothing was done")
        if self._unwritten() or self.known != self.read:
            if self.book_was_read:
                self._undo_is(self.known)
            self._write(self.known if self.book_was_read else None)
        if self.book_was_read:
            self._undo_agrees(self.known)
        if self.recorded:
            self.memory = replace(self.memory, turn=replace(self.memory.turn, still=reasons))

    def report(self) -> NodeCycleReport:
        return NodeCycleReport(
            slept=tuple(self.deeds.slept),
            woken=tuple(self.deeds.woken),
            weighed=tuple(self.deeds.weighed),
            still=self.still,
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

    def _books(self) -> AppliedNodeChanges:
        books = NO_NODE_BOOKS
        try:
            books = read_applied_nodes(self.ledger.standings())
            self.book_was_read = True
        except HeliosError as error:
            self.faults += (f"what stands changed could not be read: {error.fact}",)
        try:
            self.file = self.undone()
        except HeliosError as error:
            self.minutes.notes.append(f"the undo file could not be read: {error.fact}")
        # Only where the book is gone: a file that lay on a standby's disk may be about what was long since undone.
        return books if books.real or self.file is None else with_undo_records(books, self.file, at=self.now)

    def _never(self) -> frozenset[str]:
        try:
            return frozenset(expand(self.settings.power.never))
        except HeliosError as error:
            self.faults += (f"power.never cannot be read: {error.fact}",)
            return frozenset()

    def _watch(self, scene: NodeCycleContext, *, released: bool) -> NodeCycleContext:
        look = NodeObservation(
            nodes=scene.nodes,
            power=scene.power,
            at=scene.snapshot.taken_at,
            settings=self.settings.power,
            released=released,
        )
        found = update_nodes(self.memory, scene.books, look)
        for line in (*found.lines, *shadow_entries(scene.books, found.books)):
            self.minutes.say(line)
        self.minutes.notes.extend(found.notes)
        if found.memory.protected:
            self.minutes.notes.append(f"{found.memory.protected}; to end it: helios power clear")
        self.memory, self.known = found.memory, found.books
        self.deeds.memory = found.memory
        self.scene = replace(scene, memory=found.memory, books=found.books)
        return self.scene

    def _remember(self, world: Preconditions, scene: NodeCycleContext) -> None:
        turn = replace(self.memory.turn, controller=world.controller or self.memory.turn.controller)
        if not is_cut_short(scene.snapshot, self.memory.turn):
            turn = replace(turn, pending=len(scene.snapshot.pending), nodes=len(scene.nodes))
        self.memory = replace(self.memory, turn=turn)

    def _wake_everything(self, scene: NodeCycleContext, reason: str) -> None:
        if not applied_on(scene.snapshot, self.known.real):
            self.known = AppliedNodeChanges(real=still_applied(self.known.real, scene.snapshot), shadow={})
            return
        self.awakening = all_awake(self.cluster, self.known.real, reason)
        lines, notes = self.minutes.lines, self.minutes.notes
        self.minutes = node_release_entries(self.awakening, now=self.now, reason=reason)
        if self.memory.turn.still and not self.minutes.changed:
            self.minutes.lines.clear()  # what cannot be taken back yet is written down once, not in every turn
        self.minutes.lines[:0], self.minutes.notes[:0] = lines, notes
        self.deeds = NodeActivity(memory=self.memory)
        self.deeds.take_note(self.awakening.outcomes, now=self.now)
        self.memory = self.deeds.memory
        left = applied_nodes_after(self.known, self.awakening)
        self._write(left)
        self.known = left
        self._undo_is(left)

    def _take_down(self, errand: NodeExecution) -> None:
        plan: NodeReconcilePlan = errand.plan
        for seat in errand.seats:
            self.minutes.outcomes(seat.name, seat.mode.mode, plan.refused.get(seat.name, ()))
            self.minutes.count(seat.name, Result.UNCHANGED, len(plan.same.get(seat.name, ())))
        falling = sum(row.lever is NodeSetting.POWER for row in plan.waiting)
        if falling:
            when = "as soon as they are asleep, in service, and there is room"
            self.minutes.notes.append(f"{falling} nodes are to be woken {when}")

    def _mean(self, errand: NodeExecution, books: AppliedNodeChanges) -> None:
        before = len(self.minutes.lines)
        for seat in errand.writers():
            number = len(errand.plan.send.get(seat.name, ()))
            if number:
                self._say_turn(seat.mode.mode, service=seat.name, reason=f"will change {number} nodes", outcome="meant")
        if errand.plan.take_back:
            number = len(errand.plan.take_back)
            self._say_turn(Mode.ACTIVE, reason=f"will take back {number} changes", outcome="meant")
        try:
            self.undo(Undo.of(books))
        except HeliosError as error:
            del self.minutes.lines[before:]
            raise _Suspended(f"the undo file could not be written, so nothing was done: {error.fact}") from error
        if not self._write(books):
            del self.minutes.lines[before:]
            raise _Suspended("what was meant could not be written down, so it was not done")

    def _why_stop(self) -> str:
        try:
            if why := self.paused():
                return f"paused: {why}"
            # Nothing to write down: this asks whether the lease is ours still.
            self.ledger.record(token=self.token or 0, decisions=DECISIONS.empty(), standings=None)
        except HeliosError as error:
            return error.fact
        return ""

    def _say_turn(self, mode: str, *, reason: str, outcome: str, service: str = HELIOS) -> None:
        cluster = "" if self.snapshot is None else self.snapshot.cluster
        self.minutes.say(
            AuditEntry(service=service, mode=mode, action="Turn", target=cluster, reason=reason, outcome=outcome)
        )

    def _breaker(self) -> CircuitBreaker:
        before = self.memory.turn.breaker
        if self.minutes.bad:
            return before.after_a_bad_turn(now=self.now, settings=self.settings.control)
        return before.after_a_good_turn() if self.minutes.changed else before

    def _unwritten(self) -> list[AuditEntry]:
        return self.minutes.lines[self.written :]

    def _undo_agrees(self, books: AppliedNodeChanges) -> None:
        """Have the undo file say what the book says: whoever takes a lease over has another file than who had it."""
        if self.file != Undo.of(books):
            self._undo_is(books)

    def _undo_is(self, books: AppliedNodeChanges) -> None:
        try:
            self.undo(Undo.of(books))
            self.file = Undo.of(books)
        except HeliosError as error:
            self.minutes.notes.append(f"the undo file could not be written: {error.fact}")

    def _write(self, books: AppliedNodeChanges | None) -> bool:
        try:
            if self.token is None:
                raise LeaseLost("there is no lease to write under")
            standings = None if books is None else books.frame()
            decisions = self.minutes.frame(self._unwritten())
            self.ledger.record(token=self.token, decisions=decisions, standings=standings)
        except HeliosError as error:
            self.recorded = False
            self.minutes.notes.append(f"the audit could not be written: {error.fact}")
            return False
        self.written = len(self.minutes.lines)
        if books is not None:
            self.read = self.known = books
        return True
