"""One turn: take the lease, look, ask, check, write down what is meant, act, read back, write down what became of it.

Every failure on the way means that nothing is done, and says so. A crash at any point leaves a book that names at
least every job that was touched, so that the next turn can put it right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from helios.actions import Result
from helios.config import Settings
from helios.control.acting import Errand, carried_out, entered
from helios.control.asking import ask
from helios.control.audit import HELIOS, PAUSED, Line, Minutes
from helios.control.breaker import Breaker
from helios.control.conditions import Conditions, is_cut_short, reasons_to_be_still
from helios.control.memory import TurnMemory
from helios.control.modes import worded
from helios.control.outcome import TurnReport, sums_of
from helios.control.pending import Key, carried, pending_jobs
from helios.control.plan import Scene, Seat, plan_of
from helios.control.release import Everything, book_after, jobs_of, minutes_of_the_release, take_everything_back
from helios.control.resolution import Resolution
from helios.control.standings import (
    Books,
    Standing,
    books_of,
    changed_by_others,
    given_to_the_admins,
    without_the_gone,
    without_the_released,
)
from helios.control.wishes import proposal_of
from helios.errors import HeliosError, LeaseLost
from helios.model import DECISIONS, Mode, Snapshot
from helios.ports import Cluster, Ledger

NO_BOOKS = Books(real={}, shadow={})


def take_turn(
    *,
    seats: Sequence[Seat],
    cluster: Cluster,
    expectation: Callable[[Snapshot], Snapshot],
    ledger: Ledger,
    conditions: Callable[[Snapshot], Conditions],
    settings: Settings,
    now: datetime,
    holder: str,
    memory: TurnMemory,
    paused: Callable[[], str] = lambda: "",
) -> TurnReport:
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
    turn = _Turn(
        cluster=cluster, ledger=ledger, settings=settings, now=now, holder=holder, memory=memory, paused=paused
    )
    try:
        turn.take_the_lease()
        scene = turn.look(expectation)
        turn.mind(scene, conditions)
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

    cluster: Cluster
    ledger: Ledger
    settings: Settings
    now: datetime
    holder: str
    memory: TurnMemory
    paused: Callable[[], str]
    minutes: Minutes = field(init=False)
    mode: str = Mode.OFF
    token: int | None = None
    snapshot: Snapshot | None = None
    scene: Scene | None = None
    known: Books = NO_BOOKS
    written: int = 0
    recorded: bool = True
    still: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    everything: Everything | None = None
    released: bool = False

    def __post_init__(self) -> None:
        self.minutes = Minutes(decided_at=self.now, said=self.memory.said)

    def take_the_lease(self) -> None:
        lasts = timedelta(seconds=self.settings.control.lease_s)
        try:
            self.token = self.ledger.acquire(holder=self.holder, now=self.now, lasts=lasts)
        except HeliosError as error:
            # Not the end yet: a pause must be able to take everything back without a database.
            self.faults += (f"the lease could not be taken: {error.fact}",)
            return
        if self.token is None:
            raise _Still("another Helios holds the lease of this cluster: standing by")

    def look(self, expectation: Callable[[Snapshot], Snapshot]) -> Scene:
        try:
            self.snapshot = self.cluster.snapshot()
        except HeliosError as error:
            raise _Still(*self.faults, f"the cluster could not be looked at: {error.fact}") from error
        try:
            self.snapshot = expectation(self.snapshot)
        except HeliosError as error:
            self.faults += (f"there are no predictions: {error.fact}",)
        jobs = pending_jobs(self.snapshot)
        self.known = without_the_gone(self._books(), jobs=jobs, snapshot=self.snapshot)
        return Scene(
            snapshot=self.snapshot,
            jobs=jobs,
            books=self.known,
            resolution=Resolution.of(self.settings.slurm),
            settings=self.settings,
        )

    def mind(self, scene: Scene, conditions: Callable[[Snapshot], Conditions]) -> None:
        try:
            world = conditions(scene.snapshot)
        except HeliosError as error:
            raise _Still(*self.faults, f"the conditions are not known: {error.fact}") from error
        reasons = reasons_to_be_still(
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
            raise _Still(*self.faults, *reasons)

    def act(self, scene: Scene, seats: Sequence[Seat]) -> None:
        scene, disputed = self._disputed(scene)
        answers = ask(
            seats,
            snapshot=scene.snapshot,
            memory=self.memory,
            minutes=self.minutes,
            settings=self.settings.control,
            now=self.now,
            understand=proposal_of,
        )
        plan = plan_of(answers.proposals, seats=answers.playing, scene=scene)
        errand = Errand(
            plan=plan, seats=answers.playing, scene=scene, disputed=disputed, now=self.now, why_stop=self._why_stop
        )
        self._take_down(errand)
        self._tell_of_orphans(plan.orphans)
        books = entered(errand)
        if errand.writes:
            self._mean(errand, books)
        settled = carried_out(errand, cluster=self.cluster, books=books, minutes=self.minutes)
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
        seen = carried(list(jobs.values()))
        known = [(row.lever, jobs[row.job_id]) for row in self.known.real.values() if not row.admins]
        hidden = sum(
            not job.carries(lever) and (not job.readable(lever) or bool(job.hands_off)) for lever, job in known
        )
        said = [
            f"{len(seen)} changes of Helios stand on the cluster and stay as they are" if seen else "",
            f"of {hidden} the cluster does not show whether they stand" if hidden else "",
        ]
        return "; ".join(filter(None, said))

    def report(self) -> TurnReport:
        return TurnReport(
            taken_at=self.now if self.snapshot is None else self.snapshot.taken_at,
            acted=len(self.minutes.changed),
            still=self.still,
            counts=self.minutes.sums(),
            decisions=self.minutes.frame(),
            seen=self.snapshot is not None or self.token is None,
            recorded=self.recorded,
            leads=self.token is not None,
            remaining=() if self.everything is None else jobs_of(self.everything),
            notes=self.minutes.told(),
            memory=self.memory,
            **sums_of(self.snapshot),
        )

    def _books(self) -> Books:
        try:
            return books_of(self.ledger.standings())
        except HeliosError as error:
            self.faults += (f"what stands changed could not be read: {error.fact}",)
            return NO_BOOKS

    def _remember(self, world: Conditions, snapshot: Snapshot) -> None:
        self.memory = replace(self.memory, controller=world.controller or self.memory.controller)
        if not is_cut_short(snapshot, self.memory):
            nodes = snapshot.nodes["name"].nunique()
            self.memory = replace(self.memory, pending=len(snapshot.pending), nodes=nodes)

    def _take_everything_back(self, scene: Scene, reason: str) -> None:
        stands = any(not row.admins for row in self.known.real.values())
        if not stands and not carried(list(scene.jobs.values())):
            return
        self.everything = take_everything_back(self.cluster, reason)
        self.minutes = minutes_of_the_release(self.everything, now=self.now, reason=reason)
        if self.memory.still and not self.minutes.changed:
            self.minutes.lines.clear()  # what cannot be taken back is written down once, not in every turn
        self._write(book_after(self.known, self.everything))

    def _disputed(self, scene: Scene) -> tuple[Scene, frozenset[Key]]:
        real = without_the_released(scene.books.real, jobs=scene.jobs) if self.released else scene.books.real
        rows = changed_by_others(real, jobs=scene.jobs, resolution=scene.resolution)
        theirs = [row for row in rows if row.set_again]
        for row in theirs:
            self._say_theirs(row, read=worded(row.lever, scene.jobs[row.job_id].value(row.lever)))
        books = replace(scene.books, real=given_to_the_admins(real, theirs))
        return replace(scene, books=books), frozenset(row.key for row in rows if not row.set_again)

    def _say_theirs(self, row: Standing, *, read: str) -> None:
        self.minutes.say(
            Line(
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

    def _take_down(self, errand: Errand) -> None:
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

    def _mean(self, errand: Errand, books: Books) -> None:
        for seat in errand.writers():
            number = len(errand.plan.send.get(seat.name, ()))
            if number:
                self._say_turn(seat.mode.mode, service=seat.name, reason=f"will change {number} jobs", outcome="meant")
        if errand.plan.take_back:
            number = len(errand.plan.take_back)
            self._say_turn(Mode.ACTIVE, reason=f"will take back {number} changes", outcome="meant")
        if not self._write(books):
            del self.minutes.lines[self.written :]
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
        if self.minutes.bad:
            return self.memory.breaker.after_a_bad_turn(now=self.now, settings=self.settings.control)
        return self.memory.breaker.after_a_good_turn() if self.minutes.changed else self.memory.breaker

    def _unwritten(self) -> list[Line]:
        return self.minutes.lines[self.written :]

    def _write(self, books: Books | None) -> bool:
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
