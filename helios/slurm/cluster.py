"""A cluster made of metal: a way into Slurm as a :class:`helios.ports.Cluster`.

What to do is judged from what is read at that moment, never from what was written before; whatever is written is read
back. A change that Slurm accepted and that does not show is a mismatch, not a success: before 26.05.3 a backfill pass
may put an old value back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from helios.actions import JobAction, Lever, Outcome, Result
from helios.asked_of_jobs import GONE, Wish
from helios.errors import HeliosError
from helios.model import Snapshot
from helios.slurm import translate, values
from helios.slurm.backend import Backend, Change, RawJob
from helios.slurm.look import Look, identity, look_at
from helios.slurm.sprio import SiteFactor
from helios.slurm.wishes import BLIND, UNSEEN, size, verdict, wishes_of

SPENT = "the writes of this turn are spent"
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
    writes_per_turn : int
        Most jobs changed by one :meth:`apply`; the largest changes come first, the rest is ``POSTPONED``.
    clock : callable
        Returns the time, aware.
    sprio : callable
        Returns the site factor of every job that has one to read.
    notes : sequence of str
        What a person should be told about the way in.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        site_factor_most: int,
        writes_per_turn: int,
        sprio: Callable[[], Mapping[str, SiteFactor]],
        clock: Callable[[], datetime] = now,
        notes: Sequence[str] = (),
    ) -> None:
        self.backend = backend
        self.name = name
        self.notes = tuple(notes)
        self._most = site_factor_most
        self._writes_per_turn = writes_per_turn
        self._sprio = sprio
        self._clock = clock
        self._release: tuple[int, int] | None = None
        self._zeroed: frozenset[tuple[str, int, int]] = frozenset()

    def snapshot(self) -> Snapshot:
        """Look; prediction columns are missing.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached, or did not answer in time.
        """
        taken_at = self._clock()
        jobs, factors, release = self.backend.queue(), self._sprio(), self._known_release()
        return Snapshot(
            taken_at=taken_at,
            cluster=self.name,
            pending=translate.pending(jobs, factors, most=self._most, release=release),
            running=translate.running(jobs, release=release),
            nodes=translate.node_states(self.backend.nodes()),
        )

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, read back, and say what became of each job that an action names.

        A ``Restore`` that names no jobs takes back what bears Helios' mark, and writes a neutral zero to jobs whose
        site factor nobody can read now (held, or not yet eligible), as they may carry one from before.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached; nothing was written.
        """
        if not actions:
            return []
        look = self._look()
        wishes = wishes_of(actions, look, most=self._most)
        outcomes = {at: said for at, wish in enumerate(wishes) if (said := verdict(wish, look)) is not None}
        open_wishes = [at for at in range(len(wishes)) if at not in outcomes]
        chosen = self._chosen({at: wishes[at] for at in open_wishes}, look)
        outcomes |= {at: _left_out(wishes[at], look, why) for at, why in chosen.left_out.items()}
        outcomes |= self._written(chosen.writes, look)
        return [outcomes[at] for at in range(len(wishes))]

    def close(self) -> None:
        """Let go of the way in."""
        self.backend.close()

    def _look(self) -> Look:
        configuration = self.backend.configuration()
        self._release = values.release(configuration.get("SLURM_VERSION", ""))
        look = look_at(
            self.backend.queue(),
            self._sprio(),
            release=self._release,
            scheduler_parameters=configuration.get("SchedulerParameters", ""),
            zeroed=self._zeroed,
        )
        self._zeroed = look.zeroed
        return look

    def _chosen(self, wishes: Mapping[int, Wish[int]], look: Look) -> _Choice:
        """Choose what is written now: of each lever of a job the last wish, within the budget of jobs."""
        last = {(wish.lever, wish.job_id): at for at, wish in wishes.items()}
        left_out = {at: OVERRULED for at, wish in wishes.items() if last[wish.lever, wish.job_id] != at}
        sizes: dict[str, float] = {}
        for at in last.values():
            job_id = wishes[at].job_id
            sizes[job_id] = max(sizes.get(job_id, 0.0), size(wishes[at], look, most=self._most))
        first = set(sorted(sizes, key=lambda job_id: -sizes[job_id])[: self._writes_per_turn])
        late = {at: SPENT for at in last.values() if wishes[at].job_id not in first}
        writes = {at: wishes[at] for at in last.values() if at not in late}
        return _Choice(writes=writes, left_out=left_out | late)

    def _written(self, wishes: Mapping[int, Wish[int]], look: Look) -> dict[int, Outcome]:
        """Write, read back, and return what became of each wish."""
        if not wishes:
            return {}
        answers = self._answers(list(wishes.values()), look)
        try:
            after = self._seen_after(wishes.values(), look)
        except HeliosError as reason:
            return {at: _unread(wish, look, reason) for at, wish in wishes.items()}
        outcomes = {at: became(wish, look, after, answers[wish.job_id]) for at, wish in wishes.items()}
        self._remember_the_blind(wishes, outcomes, look)
        return outcomes

    def _answers(self, wishes: Sequence[Wish[int]], look: Look) -> dict[str, str]:
        """Write one change for each job, arrays first: a write to an array also reaches its tasks that have left it."""
        changes = _changes(wishes, look)
        arrays = [change for change in changes if look.jobs[change.job_id]["tasks"] > 1]
        others = [change for change in changes if look.jobs[change.job_id]["tasks"] <= 1]
        said: list[str] = []
        for group in (arrays, others):
            said += self._group_answers(group, first=not said) if group else []
        return {change.job_id: answer for change, answer in zip([*arrays, *others], said, strict=True)}

    def _group_answers(self, changes: Sequence[Change], *, first: bool) -> list[str]:
        try:
            return self.backend.change(changes)
        except HeliosError as reason:
            if first:
                raise
            # Something was written before: that must be read back and told.
            return [reason.fact] * len(changes)

    def _seen_after(self, wishes: Iterable[Wish[int]], look: Look) -> Look:
        orders = any(wish.lever is Lever.ORDER for wish in wishes)
        jobs = {job["job_id"]: job for job in self.backend.queue() if job["state"] == "PENDING"}
        return replace(look, jobs=jobs, factors=self._sprio() if orders else look.factors)

    def _remember_the_blind(self, wishes: Mapping[int, Wish[int]], outcomes: Mapping[int, Outcome], look: Look) -> None:
        done = (wishes[at].job_id for at, outcome in outcomes.items() if outcome.remark == BLIND)
        self._zeroed |= {identity(look.jobs[job_id]) for job_id in done}

    def _known_release(self) -> tuple[int, int]:
        if self._release is None:
            self._release = values.release(self.backend.configuration().get("SLURM_VERSION", ""))
        return self._release


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Which wishes are written now, and why the others are not."""

    writes: Mapping[int, Wish[int]]
    left_out: Mapping[int, str]


def became(wish: Wish[int], before: Look, after: Look, answer: str) -> Outcome:
    """Return what became of a wish that was written, from what was read before and after and what Slurm answered."""
    was = before.value(wish.lever, wish.job_id)
    if wish.job_id not in after.jobs:
        return wish.outcome(Result.GONE, before=was, remark=GONE)
    seen = after.value(wish.lever, wish.job_id)
    if seen == wish.wanted:
        return wish.outcome(Result.DONE, before=was, after=seen)
    if answer:
        return wish.outcome(Result.FAILED, before=was, after=seen, remark=answer)
    if seen is not None:
        return wish.outcome(
            Result.MISMATCH, before=was, after=seen, remark="Slurm accepted it, and something else stands"
        )
    if wish.takes_back:
        return wish.outcome(Result.DONE, before=was, remark=BLIND)
    # It was written: said otherwise, nobody would remember that it is to be taken back.
    return wish.outcome(Result.DONE, before=was, remark=UNSEEN)


def _changes(wishes: Sequence[Wish[int]], look: Look) -> list[Change]:
    by_job: dict[str, dict[Lever, int]] = {}
    for wish in wishes:
        by_job.setdefault(wish.job_id, {})[wish.lever] = wish.wanted
    return [
        Change(
            job_id=job_id,
            tasks=_tasks_of(look.jobs[job_id]),
            site_factor=wanted.get(Lever.ORDER),
            time_min=wanted.get(Lever.SOFT_LIMIT),
        )
        for job_id, wanted in by_job.items()
    ]


def _tasks_of(job: RawJob) -> str:
    """Return the tasks of an array's master, without the bound on how many run at once; empty: it is none."""
    is_master = job["array_job_id"] == job["job_id"]
    return (job["array_tasks"] or "").partition("%")[0] if is_master else ""


def _left_out(wish: Wish[int], look: Look, why: str) -> Outcome:
    result = Result.POSTPONED if why == SPENT else Result.REFUSED
    return wish.outcome(result, before=look.value(wish.lever, wish.job_id), remark=why)


def _unread(wish: Wish[int], look: Look, reason: HeliosError) -> Outcome:
    before = look.value(wish.lever, wish.job_id)
    return wish.outcome(
        Result.FAILED, before=before, remark=f"it was written, but could not be read back: {reason.fact}"
    )
