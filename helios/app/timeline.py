"""Services asked along a replayed timeline: the same objects that a live turn asks, on a cluster made of arithmetic.

A service is asked at a moment when something may start and there is a choice, at most once in its ``every``; where it
is too early, as soon as ``every`` has passed. In between nothing would come of its answer. All services that are asked
at a moment see one snapshot, and what they propose is applied in their order before anything starts at that moment.
What a service no longer asks for is taken back, as :mod:`helios.app.claims` has it.

A jobwise service (:class:`helios.ports.JobwiseService`) is asked for the same wishes at the same moments, but only
about jobs of which it may wish something else than when it was asked last: the replay is the same, at many times the
speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from helios.actions import Action, JobAction, Reorder, Restore, Result, SoftLimit
from helios.app.claims import Claims
from helios.app.foresight import Foresight, NamedPredictor
from helios.app.standing import Standing
from helios.backlog import Reckoning
from helios.model import Snapshot
from helios.ports import JobwiseService, Service, Wishes
from helios.simulate.glance import moment
from helios.simulate.playable import Halt, Playable
from helios.simulate.rows import Rows
from helios.simulate.state import NEVER

_Answer = TypeVar("_Answer")
_Act = Callable[[], Mapping[Result, int]]
RAISES_TO_BENCH = 3
"""As ``control.raises_to_bench`` has it where a site says nothing."""
MOMENTS_PER_REPORT = 500


@dataclass(slots=True, kw_only=True, eq=False)
class Seat:
    """One service in a rehearsal, and what became of it.

    Attributes
    ----------
    name : str
    service : Service
    every : timedelta
        Least time between two questions; zero: whenever there is a choice.
    asked : int
        How often it was asked.
    outcomes : Counter
        How many jobs its proposals ended for in each way.
    troubles : Counter
        What it raised, and how often.
    benched : bool
        Whether it raised too often running, and was asked no more.
    raises_to_bench : int
        Times running that it may raise, the last included; as in a live turn.
    """

    name: str
    service: Service
    every: timedelta
    asked: int = 0
    outcomes: Counter[Result] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    benched: bool = False
    raises_to_bench: int = RAISES_TO_BENCH
    _failures: int = 0
    _due_s: int = -NEVER

    def is_due(self, now_s: int) -> bool:
        """Say whether it may be asked ``now_s``."""
        return not self.benched and now_s >= self._due_s

    def next_due_s(self) -> int:
        """Return when it may be asked again; NEVER: never."""
        return NEVER if self.benched else self._due_s

    def passes(self, now_s: int) -> None:
        """Take its turn ``now_s`` without being asked, since it has nothing new to say."""
        self._due_s = now_s + int(np.ceil(self.every.total_seconds()))

    def proposals(self, snapshot: Snapshot, *, now_s: int) -> list[JobAction] | None:
        """Ask it; None: it raised, which is written down."""
        return self._answer(lambda: _checked(self.service.decide(snapshot)), now_s)

    def wishes(self, jobs: Rows, *, now_s: int) -> Wishes | None:
        """Ask it, being jobwise, about some jobs; None: it raised, which is written down."""
        service: Any = self.service
        return self._answer(lambda: _checked_wishes(service.wishes(jobs.values, moment(now_s)), len(jobs.jobs)), now_s)

    def _answer(self, ask: Callable[[], _Answer], now_s: int) -> _Answer | None:
        self.asked += 1
        self.passes(now_s)
        try:
            answer = ask()
        except Exception as reason:  # because a service is anybody's code
            self.troubles[f"{type(reason).__name__}: {reason}"] += 1
            self._failures += 1
            self.benched = self._failures >= self.raises_to_bench
            return None
        self._failures = 0
        return answer


def play(
    cluster: Playable,
    seats: Sequence[Seat],
    *,
    predictor: NamedPredictor,
    predict_again_s: int | None = None,
    reckoning: Reckoning | None = None,
    most_of_one_user: float = 1.0,
    jobwise: bool = True,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Let everything happen that is to happen on ``cluster``, and ask the services of ``seats`` on the way.

    Parameters
    ----------
    predictor : NamedPredictor
        Asked for each job at its submission, told of each end; what it says stands in the snapshots.
    predict_again_s : int, optional
        Ask it about all that waits too, before the first moment that is at least so long after the last such question,
        or after the first submission, s; None: never.
    reckoning : Reckoning, optional
        Of the backlog of ``cluster``; None: no service is told of it.
    most_of_one_user : float
        As ``control.most_of_one_user`` has it; 1: no cap.
    jobwise : bool
        Ask a jobwise service about single jobs; False: about the whole queue each time, as any other, which is slow.
    progress : callable, optional
        Called now and then with the number of jobs ended.
    """
    claims = Claims(cluster, len(seats), most_of_one_user)
    played = _Play(cluster, seats, Foresight(cluster, predictor, predict_again_s, reckoning), claims, jobwise=jobwise)
    moments = 0
    while (halt := played.next_halt()) is not None:
        played.stop(halt)
        moments += 1
        if progress is not None and moments % MOMENTS_PER_REPORT == 0:
            progress(len(cluster.ended))


class _Play:
    """A replay on its way from one question to the next."""

    def __init__(
        self, cluster: Playable, seats: Sequence[Seat], foresight: Foresight, claims: Claims, *, jobwise: bool
    ) -> None:
        self._cluster, self._foresight, self._claims = cluster, foresight, claims
        self._seats = [(seat, _standing_of(seat, cluster) if jobwise else None) for seat in seats]
        self._alarm_s = NEVER

    def next_halt(self) -> Halt | None:
        """Let time go on to where the predictor, or a service, is to be asked; None: all is over."""
        asks_from_s, alarm_from_s = NEVER, NEVER
        for seat, standing in self._seats:
            due_s = seat.next_due_s()
            if standing is None or seat.every or self._claims.follows_the_queue:
                alarm_from_s = min(alarm_from_s, due_s)
            elif not seat.benched:
                due_s = standing.next_s()
            asks_from_s = min(asks_from_s, due_s)
        return self._cluster.go_on(
            asks_from_s=asks_from_s,
            alarm_s=self._alarm_s,
            alarm_from_s=alarm_from_s,
            before_s=self._foresight.again_s,
        )

    def stop(self, halt: Halt) -> None:
        """Ask whoever is to be asked where time has stopped."""
        if halt.before:
            self._hear(self._foresight.look_again(halt.moment_s))
            return
        self._foresight.follow()
        self._alarm_s = self._ask(halt.moment_s) if halt.choice else NEVER

    def _hear(self, jobs: NDArray[np.int64]) -> None:
        for _, standing in self._seats:
            if standing is not None and len(jobs):
                standing.changed(jobs)

    def _ask(self, now_s: int) -> int:
        """Ask the services that may be asked now, and return when the next of the others may be; NEVER: none."""
        later_s, shown = NEVER, _Shown(self._cluster, self._foresight)
        apply: list[tuple[Seat, Standing | None, _Act]] = []
        for number, (seat, standing) in enumerate(self._seats):
            if not seat.is_due(now_s):
                later_s = min(later_s, seat.next_due_s())
                continue
            if standing is None:
                act = self._proposed(number, seat, shown.snapshot(), now_s)
            else:
                if apply:  # who acts before it may take what stands of it, or leave it, and it says all of that again
                    standing.disturbed()
                act = self._wished(number, seat, standing, now_s)
            if seat.benched:
                act = partial(self._claims.release, number)
            if act is not None:
                apply.append((seat, standing, act))
        for seat, standing, act in apply:
            self._count(seat, standing, act())
        return later_s

    def _proposed(self, number: int, seat: Seat, snapshot: Snapshot, now_s: int) -> _Act | None:
        """Ask a service about the whole queue; None: it raised, and what stands of it stays."""
        proposals = seat.proposals(snapshot, now_s=now_s)
        return None if proposals is None else partial(self._claims.act, number, proposals)

    def _wished(self, number: int, seat: Seat, standing: Standing, now_s: int) -> _Act | None:
        """Ask a jobwise service about those jobs alone of which it may wish something new."""
        jobs = standing.outdated(now_s)
        if not len(jobs):
            seat.passes(now_s)
            nothing = (np.empty(0, dtype=np.int64), np.empty(0))
            return partial(self._claims.wish, number, *nothing) if self._claims.follows_the_queue else None
        rows = self._cluster.rows(jobs, self._foresight.predictions)
        wishes = seat.wishes(rows, now_s=now_s)
        if wishes is None:
            return None
        standing.told(jobs, wishes.until)
        return partial(self._claims.wish, number, jobs, wishes.urgency)

    def _count(self, seat: Seat, standing: Standing | None, outcomes: Mapping[Result, int]) -> None:
        for result, jobs in outcomes.items():
            seat.outcomes[result] += jobs
        if Result.DONE in outcomes and len(self._seats) > 1:
            for _, other in self._seats:
                if other is not None and other is not standing:
                    other.disturbed()


class _Shown:
    """What the services of a moment see, made once, and only if one of them looks at the whole queue."""

    def __init__(self, cluster: Playable, foresight: Foresight) -> None:
        self._cluster, self._foresight = cluster, foresight
        self._snapshot: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self._cluster.look(self._foresight.predictions)
        return self._snapshot


def _standing_of(seat: Seat, cluster: Playable) -> Standing | None:
    return Standing(cluster) if isinstance(seat.service, JobwiseService) else None


def _checked_wishes(wishes: Wishes, n_jobs: int) -> Wishes:
    if len(wishes.urgency) != n_jobs or len(wishes.until) != n_jobs:
        raise TypeError(f"{len(wishes.urgency)} wishes that hold until {len(wishes.until)} times, for {n_jobs} jobs")
    if (np.abs(wishes.urgency) > 1).any():
        raise ValueError("a wish has an urgency that is not between -1 and 1")
    return wishes


def _checked(actions: Iterable[Action]) -> list[JobAction]:
    chosen = list(actions)
    known = [action for action in chosen if isinstance(action, Reorder | SoftLimit | Restore)]
    if len(known) < len(chosen):
        stranger = next(action for action in chosen if not isinstance(action, Reorder | SoftLimit | Restore))
        raise TypeError(f"{stranger!r} is not an action on a job")
    return known
