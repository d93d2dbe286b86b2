"""One power turn: take the lease, look, watch, ask, check, write down what is meant, act, write down what became of it.

The sister of :mod:`helios.control.turn`, for services that act on nodes. Every failure on the way means that nothing is
done, and says so. A crash at any point leaves a book and an undo file that name at least every node that was touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from helios.actions import NodeLever, Result
from helios.config import Settings
from helios.control.asking import ask
from helios.control.audit import HELIOS, PAUSED, Line, Minutes
from helios.control.breaker import Breaker
from helios.control.conditions import Conditions, is_cut_short, reasons_of_the_world
from helios.control.nodes.acting import Deeds, NodeErrand, carried_out, entered
from helios.control.nodes.guards import NodeScene
from helios.control.nodes.memory import NodeMemory
from helios.control.nodes.outcome import NodeTurnReport, node_sums_of, wanted_awake
from helios.control.nodes.plan import NodePlan, node_plan_of
from helios.control.nodes.release import (
    Awakening,
    all_woken,
    books_after,
    left_of,
    minutes_of_the_awakening,
    standing_on,
    with_the_undone,
)
from helios.control.nodes.seen import nodes_seen, wanted_partitions
from helios.control.nodes.standings import NodeBooks, Undo, node_books_of
from helios.control.nodes.watching import Look, lines_of_shadows, watched
from helios.control.nodes.wishes import node_proposal_of
from helios.control.plan import Seat
from helios.errors import HeliosError, LeaseLost
from helios.hostlist import expand
from helios.model import DECISIONS, Mode, Snapshot
from helios.ports import Ledger, NodeCluster

NOBODY_SLEEPS = "no node is put to sleep"
NO_BOOKS = NodeBooks(real={}, shadow={})


def take_node_turn(
    *,
    seats: Sequence[Seat],
    cluster: NodeCluster,
    expectation: Callable[[Snapshot], Snapshot],
    ledger: Ledger,
    conditions: Callable[[Snapshot], Conditions],
    settings: Settings,
    now: datetime,
    holder: str,
    memory: NodeMemory,
    undo: Callable[[Undo], None],
    undone: Callable[[], Undo] = Undo,
    paused: Callable[[], str] = lambda: "",
) -> NodeTurnReport:
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
    turn = _Turn(
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
    except _Still as still:
        turn.be_still(still.reasons)
    return turn.report()


class _Still(Exception):
    """Nothing is to be done in this turn."""

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = reasons


@dataclass(slots=True, kw_only=True)
class _Turn:
    """A turn while it goes on: each method is a step, in this order."""

    cluster: NodeCluster
    ledger: Ledger
    settings: Settings
    now: datetime
    holder: str
    memory: NodeMemory
    undo: Callable[[Undo], None]
    undone: Callable[[], Undo]
    paused: Callable[[], str]
    minutes: Minutes = field(init=False)
    deeds: Deeds = field(init=False)
    mode: str = Mode.OFF
    token: int | None = None
    snapshot: Snapshot | None = None
    scene: NodeScene | None = None
    read: NodeBooks = NO_BOOKS
    known: NodeBooks = NO_BOOKS
    wanted: Mapping[str, float] = field(default_factory=dict)
    written: int = 0
    recorded: bool = True
    book_was_read: bool = False
    no_forecast: str = ""
    file: Undo | None = None
    still: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    awakening: Awakening | None = None

    def __post_init__(self) -> None:
        self.minutes = Minutes(decided_at=self.now, said=self.memory.turn.said)
        self.deeds = Deeds(memory=self.memory)

    def take_the_lease(self) -> None:
        lasts = timedelta(seconds=self.settings.control.lease_s)
        try:
            self.token = self.ledger.acquire(holder=self.holder, now=self.now, lasts=lasts)
        except HeliosError as error:
            # Not the end yet: a pause must be able to wake everything without a database.
            self.faults += (f"the lease could not be taken: {error.fact}",)
            return
        if self.token is None:
            raise _Still("another Helios holds the lease of this cluster's nodes: standing by")

    def look(self, expectation: Callable[[Snapshot], Snapshot]) -> NodeScene:
        try:
            self.snapshot = self.cluster.snapshot()
        except HeliosError as error:
            raise _Still(*self.faults, f"the cluster could not be looked at: {error.fact}") from error
        nodes, wanted = nodes_seen(self.snapshot), wanted_partitions(self.snapshot)
        try:
            self.snapshot = expectation(self.snapshot)
        except HeliosError as error:
            self.no_forecast = " ".join(filter(None, [error.fact, error.remedy]))
            self.minutes.notes.append(f"there is no forecast, so that no node is put to sleep: {self.no_forecast}")
        self.read = self.known = self._books()
        self.scene = NodeScene(
            snapshot=self.snapshot,
            nodes=nodes,
            books=self.known,
            memory=self.memory,
            settings=self.settings,
            wanted=wanted,
            never=self._never(),
        )
        return self.scene

    def mind(self, scene: NodeScene, conditions: Callable[[Snapshot], Conditions]) -> NodeScene:
        try:
            world = conditions(scene.snapshot)
        except HeliosError as error:
            raise _Still(*self.faults, f"the conditions are not known: {error.fact}") from error
        reasons = reasons_of_the_world(
            world, self.settings.control, snapshot=scene.snapshot, memory=self.memory.turn, now=self.now
        )
        if not is_cut_short(scene.snapshot, self.memory.turn):
            scene = self._watch(scene, released=bool(world.released))
        self._remember(world, scene)
        if world.paused:
            self.mode = PAUSED
            self._wake_everything(scene, world.paused)
        if self.faults or reasons:
            raise _Still(*self.faults, *reasons)
        return scene

    def act(self, scene: NodeScene, seats: Sequence[Seat]) -> None:
        answers = ask(
            seats,
            snapshot=scene.snapshot,
            memory=self.memory.turn,
            minutes=self.minutes,
            settings=self.settings.control,
            now=self.now,
            understand=node_proposal_of,
        )
        if self.minutes.is_news(HELIOS, self.no_forecast):
            self._say_turn(self.mode, reason=f"there is no forecast: {self.no_forecast}", outcome=NOBODY_SLEEPS)
        self.wanted = wanted_awake(answers.proposals, scene.nodes)
        plan = node_plan_of(answers.proposals, seats=answers.playing, scene=scene)
        errand = NodeErrand(plan=plan, seats=answers.playing, scene=scene, now=self.now, why_stop=self._why_stop)
        self._take_down(errand)
        books = entered(errand)
        if errand.writes:
            self._mean(errand, books)
        self.deeds = Deeds(memory=self.memory)
        settled = carried_out(errand, cluster=self.cluster, books=books, minutes=self.minutes, deeds=self.deeds)
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

    def report(self) -> NodeTurnReport:
        return NodeTurnReport(
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
            **node_sums_of(self.snapshot, self.known, at=self.now, wanted=self.wanted),
        )

    def _books(self) -> NodeBooks:
        books = NO_BOOKS
        try:
            books = node_books_of(self.ledger.standings())
            self.book_was_read = True
        except HeliosError as error:
            self.faults += (f"what stands changed could not be read: {error.fact}",)
        try:
            self.file = self.undone()
        except HeliosError as error:
            self.minutes.notes.append(f"the undo file could not be read: {error.fact}")
        # Only where the book is gone: a file that lay on a standby's disk may be about what was long since undone.
        return books if books.real or self.file is None else with_the_undone(books, self.file, at=self.now)

    def _never(self) -> frozenset[str]:
        try:
            return frozenset(expand(self.settings.power.never))
        except HeliosError as error:
            self.faults += (f"power.never cannot be read: {error.fact}",)
            return frozenset()

    def _watch(self, scene: NodeScene, *, released: bool) -> NodeScene:
        look = Look(
            nodes=scene.nodes,
            power=scene.power,
            at=scene.snapshot.taken_at,
            settings=self.settings.power,
            released=released,
        )
        found = watched(self.memory, scene.books, look)
        for line in (*found.lines, *lines_of_shadows(scene.books, found.books)):
            self.minutes.say(line)
        self.minutes.notes.extend(found.notes)
        if found.memory.protected:
            self.minutes.notes.append(f"{found.memory.protected}; to end it: helios power clear")
        self.memory, self.known = found.memory, found.books
        self.deeds.memory = found.memory
        self.scene = replace(scene, memory=found.memory, books=found.books)
        return self.scene

    def _remember(self, world: Conditions, scene: NodeScene) -> None:
        turn = replace(self.memory.turn, controller=world.controller or self.memory.turn.controller)
        if not is_cut_short(scene.snapshot, self.memory.turn):
            turn = replace(turn, pending=len(scene.snapshot.pending), nodes=len(scene.nodes))
        self.memory = replace(self.memory, turn=turn)

    def _wake_everything(self, scene: NodeScene, reason: str) -> None:
        if not standing_on(scene.snapshot, self.known.real):
            self.known = NodeBooks(real=left_of(self.known.real, scene.snapshot), shadow={})
            return
        self.awakening = all_woken(self.cluster, self.known.real, reason)
        lines, notes = self.minutes.lines, self.minutes.notes
        self.minutes = minutes_of_the_awakening(self.awakening, now=self.now, reason=reason)
        if self.memory.turn.still and not self.minutes.changed:
            self.minutes.lines.clear()  # what cannot be taken back yet is written down once, not in every turn
        self.minutes.lines[:0], self.minutes.notes[:0] = lines, notes
        self.deeds = Deeds(memory=self.memory)
        self.deeds.take_note(self.awakening.outcomes, now=self.now)
        self.memory = self.deeds.memory
        left = books_after(self.known, self.awakening)
        self._write(left)
        self.known = left
        self._undo_is(left)

    def _take_down(self, errand: NodeErrand) -> None:
        plan: NodePlan = errand.plan
        for seat in errand.seats:
            self.minutes.outcomes(seat.name, seat.mode.mode, plan.refused.get(seat.name, ()))
            self.minutes.count(seat.name, Result.UNCHANGED, len(plan.same.get(seat.name, ())))
        falling = sum(row.lever is NodeLever.POWER for row in plan.waiting)
        if falling:
            when = "as soon as they are asleep, in service, and there is room"
            self.minutes.notes.append(f"{falling} nodes are to be woken {when}")

    def _mean(self, errand: NodeErrand, books: NodeBooks) -> None:
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
            raise _Still(f"the undo file could not be written, so nothing was done: {error.fact}") from error
        if not self._write(books):
            del self.minutes.lines[before:]
            raise _Still("what was meant could not be written down, so it was not done")

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
            Line(service=service, mode=mode, action="Turn", target=cluster, reason=reason, outcome=outcome)
        )

    def _breaker(self) -> Breaker:
        before = self.memory.turn.breaker
        if self.minutes.bad:
            return before.after_a_bad_turn(now=self.now, settings=self.settings.control)
        return before.after_a_good_turn() if self.minutes.changed else before

    def _unwritten(self) -> list[Line]:
        return self.minutes.lines[self.written :]

    def _undo_agrees(self, books: NodeBooks) -> None:
        """Have the undo file say what the book says: whoever takes a lease over has another file than who had it."""
        if self.file != Undo.of(books):
            self._undo_is(books)

    def _undo_is(self, books: NodeBooks) -> None:
        try:
            self.undo(Undo.of(books))
            self.file = Undo.of(books)
        except HeliosError as error:
            self.minutes.notes.append(f"the undo file could not be written: {error.fact}")

    def _write(self, books: NodeBooks | None) -> bool:
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
