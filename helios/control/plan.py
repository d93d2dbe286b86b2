"""From what services ask for to what is sent to the cluster: guarded, owned, different from what stands, affordable.

Pure. Desired state: what stands and is no longer asked for by a service that may write is taken back, and exactly that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from helios.actions import Lever, Outcome, Result
from helios.config import Settings
from helios.control.guards import Verdict, guarded, one_owner_each
from helios.control.modes import NOTHING, ServiceMode
from helios.control.pending import Key, PendingJob, carried
from helios.control.resolution import Resolution
from helios.control.standings import Book, Books, Standing
from helios.control.wishes import Proposal, Wish
from helios.model import Mode, Snapshot
from helios.ports import Service

NOBODY = "it bears Helios' mark and nobody asks for it"
SPENT = "the writes of this turn are spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A service at the table, under its name in the configuration, and how far it may go."""

    name: str
    service: Service
    mode: ServiceMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a turn sees and remembers of the cluster before it asks anybody.

    Attributes
    ----------
    jobs : mapping
        The pending jobs, as the cluster gave them.
    """

    snapshot: Snapshot
    jobs: Mapping[str, PendingJob]
    books: Books
    resolution: Resolution
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack:
    """A change of Helios that must not stand any longer, whose it was, and why."""

    key: Key
    service: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a turn will do.

    Attributes
    ----------
    send, same, refused : mapping
        By service: what differs from what stands, what already is so, and what may not be or must wait.
    take_back : tuple of TakeBack
        On the cluster.
    shadows_end : tuple of TakeBack
        What would be taken back, if the shadows could act.
    forget : frozenset of Key
        Real entries behind which nothing is seen on the cluster any more.
    orphans : int
        Changes that bear Helios' mark, are in no book, and are about jobs that no service may change now: what the hook
        or a lost database left. They are told, not touched: a shadow alone on a cluster must not write.
    """

    send: Mapping[str, tuple[Wish, ...]] = field(default_factory=dict)
    same: Mapping[str, tuple[Wish, ...]] = field(default_factory=dict)
    refused: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    take_back: tuple[TakeBack, ...] = ()
    shadows_end: tuple[TakeBack, ...] = ()
    forget: frozenset[Key] = frozenset()
    orphans: int = 0


def plan_of(proposals: Mapping[str, Proposal], *, seats: Sequence[Seat], scene: Scene) -> Plan:
    """Return what to do about ``proposals``.

    Parameters
    ----------
    proposals : mapping
        Of the services that were asked in this turn and answered.
    seats : sequence of Seat
        In the order of configuration; without those that sit out.
    """
    verdicts = {seat.name: _verdict(proposals[seat.name], seat, scene) for seat in seats if seat.name in proposals}
    real = _owned(verdicts, [seat for seat in seats if seat.mode.writes], scene.books.real)
    shadow = _owned(verdicts, [seat for seat in seats if seat.mode.mode is Mode.SHADOW], scene.books.shadow)
    allowed = real.allowed | shadow.allowed
    split = {name: _split(wishes, scene, is_shadow=name in shadow.allowed) for name, wishes in allowed.items()}
    refused = {name: (*verdicts[name].refused, *(real.refused | shadow.refused).get(name, ())) for name in verdicts}
    unwanted = _unwanted(proposals, verdicts, real, seats=seats, scene=scene)
    # What cannot be read is neither written blindly nor forgotten: a later turn that can read it takes it back.
    seen = tuple(back for back in unwanted if scene.jobs[back.key[1]].carries(back.key[0]))
    planned = Plan(
        send={name: tuple(differing) for name, (differing, _) in split.items()},
        same={name: tuple(same) for name, (_, same) in split.items()},
        refused=refused,
        take_back=seen,
        shadows_end=tuple(_shadows_end(proposals, verdicts, shadow, seats=seats, scene=scene)),
        forget=frozenset(back.key for back in unwanted if not _may_stand(back.key, scene)),
        orphans=_orphans([seat for seat in seats if seat.mode.writes], scene),
    )
    return _within_budget(planned, writers=set(real.allowed), scene=scene)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owned:
    allowed: dict[str, tuple[Wish, ...]]
    refused: dict[str, tuple[Outcome, ...]]

    def wanted(self) -> set[Key]:
        return {wish.key for wishes in self.allowed.values() for wish in wishes}


def _verdict(proposal: Proposal, seat: Seat, scene: Scene) -> Verdict:
    return guarded(
        proposal.wishes,
        jobs=scene.jobs,
        mode=seat.mode,
        of_the_admins=scene.books.of_the_admins(),
        most_of_one_user=scene.settings.control.most_of_one_user,
    )


def _owned(verdicts: Mapping[str, Verdict], seats: Sequence[Seat], book: Book) -> _Owned:
    silent = {seat.name for seat in seats} - set(verdicts)
    held = {key: row.service for key, row in book.items() if row.service in silent}
    wishes = {seat.name: verdicts[seat.name].allowed if seat.name in verdicts else () for seat in seats}
    allowed, refused = one_owner_each(wishes, held=held)
    return _Owned(allowed=allowed, refused=refused)


def _split(wishes: Iterable[Wish], scene: Scene, *, is_shadow: bool) -> tuple[list[Wish], list[Wish]]:
    differing: list[Wish] = []
    same: list[Wish] = []
    for wish in wishes:
        read = _would_stand(wish, scene) if is_shadow else scene.jobs[wish.job_id].value(wish.lever)
        agrees = scene.resolution.same(wish.lever, asked=wish.value, read=read)
        (same if agrees else differing).append(wish)
    return differing, same


def _would_stand(wish: Wish, scene: Scene) -> float:
    row = scene.books.shadow.get(wish.key)
    return NOTHING[wish.lever] if row is None else row.value


def _may_stand(key: Key, scene: Scene) -> bool:
    lever, job_id = key
    job = scene.jobs[job_id]
    return job.carries(lever) or not job.readable(lever)


def _unwanted(
    proposals: Mapping[str, Proposal],
    verdicts: Mapping[str, Verdict],
    owned: _Owned,
    *,
    seats: Sequence[Seat],
    scene: Scene,
) -> list[TakeBack]:
    writers = {seat.name: seat for seat in seats if seat.mode.writes}
    keep = owned.wanted() | _waiting(verdicts)
    theirs = scene.books.of_the_admins()
    unwanted = [
        TakeBack(key=key, service=row.service, why=why)
        for key, row in scene.books.real.items()
        if key not in keep and key not in theirs and not scene.jobs[row.job_id].hands_off
        if (why := _why_not_stand(row, writers, proposals, scene))
    ]
    return [*unwanted, *_nobodys(proposals, writers, keep, scene)]


def _why_not_stand(row: Standing, writers: Mapping[str, Seat], proposals: Mapping[str, Proposal], scene: Scene) -> str:
    if row.service not in writers:
        return f"service {row.service} may not write now"
    if not writers[row.service].mode.covers(scene.jobs[row.job_id]):
        return f"it is outside the canary of service {row.service} now"
    return f"service {row.service} no longer asks for it" if row.service in proposals else ""


def _nobodys(
    proposals: Mapping[str, Proposal], writers: Mapping[str, Seat], keep: set[Key], scene: Scene
) -> Iterable[TakeBack]:
    for key in carried(list(scene.jobs.values())):
        job = scene.jobs[key[1]]
        if key in keep or key in scene.books.real or job.hands_off:
            continue
        for name, seat in writers.items():
            if name in proposals and seat.mode.covers(job) and _is_governed(key[0], job, proposals[name]):
                yield TakeBack(key=key, service=name, why=NOBODY)
                break


def _orphans(writers: Sequence[Seat], scene: Scene) -> int:
    return sum(
        key not in scene.books.real
        and not scene.jobs[key[1]].hands_off
        and not any(seat.mode.covers(scene.jobs[key[1]]) for seat in writers)
        for key in carried(list(scene.jobs.values()))
    )


def _is_governed(lever: Lever, job: PendingJob, proposal: Proposal) -> bool:
    return job.partition in proposal.partitions if lever is Lever.ORDER else proposal.soft_limits


def _waiting(verdicts: Mapping[str, Verdict]) -> set[Key]:
    refused = (outcome for verdict in verdicts.values() for outcome in verdict.refused)
    return {(outcome.lever, outcome.job_id) for outcome in refused if outcome.result is Result.POSTPONED}


def _shadows_end(
    proposals: Mapping[str, Proposal],
    verdicts: Mapping[str, Verdict],
    owned: _Owned,
    *,
    seats: Sequence[Seat],
    scene: Scene,
) -> Iterable[TakeBack]:
    shadows = {seat.name for seat in seats if seat.mode.mode is Mode.SHADOW}
    keep = owned.wanted() | _waiting(verdicts)
    for key, row in scene.books.shadow.items():
        if key in keep or scene.jobs[row.job_id].hands_off:
            continue
        if row.service not in shadows:
            yield TakeBack(key=key, service=row.service, why=f"service {row.service} is no shadow now")
        elif row.service in proposals:
            yield TakeBack(key=key, service=row.service, why=f"service {row.service} no longer asks for it")


def _within_budget(plan: Plan, *, writers: set[str], scene: Scene) -> Plan:
    left = scene.settings.slurm.writes_per_turn - len(plan.take_back)
    if left < 0:
        return _cut(plan, writers, left, scene)
    wanted = sum(len(plan.send[name]) for name in writers)
    return plan if wanted <= left else _cut(plan, writers, left, scene)


def _cut(plan: Plan, writers: set[str], left: int, scene: Scene) -> Plan:
    send, refused = dict(plan.send), dict(plan.refused)
    for name in (name for name in plan.send if name in writers):
        wishes = sorted(plan.send[name], key=lambda wish: -_size(wish, scene))
        send[name], late = tuple(wishes[: max(left, 0)]), wishes[max(left, 0) :]
        refused[name] = (*refused.get(name, ()), *(wish.outcome(Result.POSTPONED, SPENT) for wish in late))
        left -= len(send[name])
    return replace(plan, send=send, refused=refused, take_back=plan.take_back[: scene.settings.slurm.writes_per_turn])


def _size(wish: Wish, scene: Scene) -> float:
    # Orders of the largest change first; soft limits after them, in the order of the queue.
    return abs(wish.value - scene.jobs[wish.job_id].urgency) if wish.lever is Lever.ORDER else 0.0
