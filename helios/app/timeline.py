"""Services asked along a replayed timeline: the same objects that a live turn asks, on a cluster made of arithmetic.

A service is asked at a moment when something may start and there is a choice, at most once in its ``every``; where it
is too early, as soon as ``every`` has passed. In between nothing would come of its answer. All services that are asked
at a moment see one snapshot, and what they propose is applied in their order before anything starts at that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from helios.actions import Action, JobAction, Reorder, Restore, Result, SoftLimit
from helios.model import Snapshot
from helios.ports import ReplayPredictor, Service
from helios.simulate import Predictions, SimCluster

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
    _due_s: float = -np.inf

    def is_due(self, now_s: int) -> bool:
        """Say whether it may be asked ``now_s``."""
        return not self.benched and now_s >= self._due_s

    def next_due_s(self) -> float:
        """Return when it may be asked again; inf: never."""
        return np.inf if self.benched else self._due_s

    def proposals(self, snapshot: Snapshot, *, now_s: int) -> list[JobAction]:
        """Ask it; what it raises is written down, and nothing proposed."""
        self.asked += 1
        self._due_s = now_s + self.every.total_seconds()
        try:
            actions = _checked(self.service.decide(snapshot))
        except Exception as reason:  # because a service is anybody's code
            self.troubles[f"{type(reason).__name__}: {reason}"] += 1
            self._failures += 1
            self.benched = self._failures >= self.raises_to_bench
            return []
        self._failures = 0
        return actions


class NamedPredictor(ReplayPredictor, Protocol):
    """A predictor that says who in it predicted: a model, or a fallback.

    Attributes
    ----------
    source : int16 array of shape (n_jobs,)
        Which of ``sources`` predicted each job; -1: not asked yet.
    sources : list of str
        Model ids and fallbacks.
    """

    source: NDArray[np.int16]
    sources: list[str]


def play(
    cluster: SimCluster,
    seats: Sequence[Seat],
    *,
    predictor: NamedPredictor,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Let everything happen that is to happen on ``cluster``, and ask the services of ``seats`` on the way.

    Parameters
    ----------
    predictor : NamedPredictor
        Asked for each job at its submission, told of each end; what it says stands in the snapshots.
    progress : callable, optional
        Called now and then with the number of jobs ended.
    """
    foresight, alarm_s, moments = _Foresight(predictor, n_jobs=len(cluster.started_s)), np.inf, 0
    while (event_s := cluster.next_event_s()) is not None:
        cluster.advance(int(min(event_s, alarm_s)))
        foresight.follow(cluster)
        alarm_s = _ask(cluster, seats, foresight) if cluster.has_choice() else np.inf
        moments += 1
        if progress is not None and moments % MOMENTS_PER_REPORT == 0:
            progress(len(cluster.ended))


def _ask(cluster: SimCluster, seats: Sequence[Seat], foresight: _Foresight) -> float:
    """Ask the services that may be asked now, and return when the next of the others may be; inf: none."""
    now_s = cluster.now_s
    due = [seat for seat in seats if seat.is_due(now_s)]
    if due:
        snapshot = cluster.look(foresight.predictions)
        proposed = [(seat, seat.proposals(snapshot, now_s=now_s)) for seat in due]
        for seat, actions in proposed:
            seat.outcomes.update(outcome.result for outcome in cluster.apply(actions))
    return min((seat.next_due_s() for seat in seats if seat not in due), default=np.inf)


class _Foresight:
    """Keeps what is predicted of each job, causally: asked at its submission, taught by what has ended."""

    def __init__(self, predictor: NamedPredictor, *, n_jobs: int) -> None:
        self._predictor = predictor
        self._n_asked = self._n_told = 0
        self._quantiles_s = np.full((n_jobs, 3), np.nan)

    @property
    def predictions(self) -> Predictions:
        return Predictions(
            quantiles_s=self._quantiles_s, source=self._predictor.source, sources=self._predictor.sources
        )

    def follow(self, cluster: SimCluster) -> None:
        """Take note of what has ended, and predict what has arrived."""
        arrived, ended = cluster.arrived, cluster.ended
        if arrived == self._n_asked:
            return
        fresh, jobs = ended[self._n_told :].copy(), np.arange(self._n_asked, arrived)
        self._predictor.ended(fresh, cluster.ended_s[fresh])
        self._quantiles_s[jobs] = self._predictor.submitted(jobs, cluster.now_s)
        self._n_asked, self._n_told = arrived, len(ended)


def _checked(actions: Iterable[Action]) -> list[JobAction]:
    chosen = list(actions)
    known = [action for action in chosen if isinstance(action, Reorder | SoftLimit | Restore)]
    if len(known) < len(chosen):
        stranger = next(action for action in chosen if not isinstance(action, Reorder | SoftLimit | Restore))
        raise TypeError(f"{stranger!r} is not an action on a job")
    return known
