"""What actions ask of jobs: one value on one lever of one job each, and what becomes of it.

A live Slurm, a simulated one and the fake take actions apart, judge them and tell of them by this; the simulator whose
urgencies are no SiteFactors judges by its own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from helios import marks
from helios.actions import JobAction, Lever, Outcome, Reorder, Restore, Result, SoftLimit

Value = TypeVar("Value", int, float)
"""What a cluster holds on a lever."""

GONE = "it is no longer pending"
INELIGIBLE = "it is not eligible yet: what stands on it cannot be read"
HIDDEN = "the cluster hides what stands on it now"
"""Begins the remark about a value of Helios that is not taken back, since nobody can see whether it still stands."""
TOO_LONG = "it is not below the time limit"
USERS_OWN = "the user set a --time-min"
SOFT_LIMIT_FLAG = "time_min_as_soft_limit"
"""What the site sets in ``SchedulerParameters`` for a TimeMin to be a soft limit."""
NO_SOFT_LIMITS = (
    f"SchedulerParameters lacks {SOFT_LIMIT_FLAG}: here a TimeMin would let Slurm shorten the job. "
    "Add the flag in slurm.conf (Slurm 23.11 or newer), then: scontrol reconfigure"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Generic[Value]):
    """The values in which a cluster holds what it is asked for.

    Attributes
    ----------
    of_urgency, of_run_time : callable
        Return the value for an urgency, and for a soft limit.
    nothing : callable
        Returns the value of a lever on which nothing is set.
    words : callable
        Returns a value of a lever, for a person.
    """

    of_urgency: Callable[[float], Value]
    of_run_time: Callable[[timedelta], Value]
    nothing: Callable[[Lever], Value]
    words: Callable[[Lever, Value], str]


def slurms_terms(
    *, site_factor: Callable[[float], int], time_min: Callable[[timedelta], int] = marks.time_min
) -> Terms[int]:
    """Return Slurm's own: the SiteFactor of an urgency, and the TimeMin of a soft limit in minutes; 0: none."""
    return Terms(
        of_urgency=site_factor,
        of_run_time=time_min,
        nothing=lambda _: 0,
        words=lambda lever, value: f"SiteFactor {value}" if lever is Lever.ORDER else f"TimeMin {value} min",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish(Generic[Value]):
    """A value that is wanted on one lever of one job.

    Attributes
    ----------
    action : str
        Name of the action's class.
    reason : str
        The action's own for this job.
    wanted : int or float
        In the ``terms`` of the cluster.
    unseen : bool
        Whether it is to be written also where nobody can read what stands.
    """

    action: str
    lever: Lever
    job_id: str
    reason: str
    wanted: Value
    terms: Terms[Value]
    unseen: bool = False

    @property
    def takes_back(self) -> bool:
        """Whether it is part of a ``Restore``."""
        return self.action == Restore.__name__

    def outcome(
        self, result: Result, *, before: Value | None = None, after: Value | None = None, remark: str = ""
    ) -> Outcome:
        """Return ``result`` as the outcome of this wish; None stands for not read."""
        return Outcome(
            action=self.action,
            lever=self.lever,
            job_id=self.job_id,
            result=result,
            reason=self.reason,
            before=self._worded(before),
            after=self._worded(after),
            remark=remark,
        )

    def _worded(self, value: Value | None) -> str:
        return "" if value is None else self.terms.words(self.lever, value)


def wishes_of(
    action: JobAction,
    terms: Terms[Value],
    *,
    pending: Callable[[], Iterable[str]],
    is_set: Callable[[Lever, str], bool],
) -> Iterator[Wish[Value]]:
    """Return what an action asks for, in its order, each wish when it is asked for.

    Parameters
    ----------
    pending : callable
        Returns the ids of the pending jobs on which Helios may have set something.
    is_set : callable
        Returns whether there is something to do, or to say, about a lever of one of these.

    Raises
    ------
    TypeError
        There is no such action.
    """
    if isinstance(action, Reorder):
        for place in action.order:
            yield Wish(
                action=Reorder.__name__,
                lever=Lever.ORDER,
                job_id=place.job_id,
                reason=place.reason,
                wanted=terms.of_urgency(place.urgency),
                terms=terms,
            )
    elif isinstance(action, SoftLimit):
        yield Wish(
            action=SoftLimit.__name__,
            lever=Lever.SOFT_LIMIT,
            job_id=action.job_id,
            reason=action.reason,
            wanted=terms.of_run_time(action.run_time),
            terms=terms,
        )
    elif isinstance(action, Restore):
        for lever, job_id in _to_restore(action, pending, is_set):
            yield Wish(
                action=Restore.__name__,
                lever=lever,
                job_id=job_id,
                reason=action.reason,
                wanted=terms.nothing(lever),
                terms=terms,
                unseen=action.hidden,
            )
    else:
        raise TypeError(f"{type(action).__name__} is not an action; there are Reorder, SoftLimit and Restore")


def _to_restore(
    restore: Restore, pending: Callable[[], Iterable[str]], is_set: Callable[[Lever, str], bool]
) -> Iterator[tuple[Lever, str]]:
    levers = tuple(Lever) if restore.lever is None else (restore.lever,)
    named = restore.job_ids
    for job_id in pending() if named is None else named:
        for lever in levers:
            if named is not None or is_set(lever, job_id):
                yield lever, job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a wish for a pending job of Slurm is judged on.

    Attributes
    ----------
    before : int, optional
        What stands on the lever; None: it cannot be read.
    is_set : bool
        Whether it is proved that Helios has set that.
    hands_off : str
        Why the job must be left alone; empty: it need not.
    soft_limits : bool
        Whether a TimeMin is a soft limit here; else it lets Slurm shorten the job.
    time_limit : int
        Of the job, min; 0: none.
    hidden : int
        What Helios wrote where nobody can read what stands now; 0: nothing.
    suspect : str
        Why what stands, and bears Helios' mark, is left; empty: it bears none, or is proved.
    """

    before: int | None
    is_set: bool
    hands_off: str
    soft_limits: bool
    time_limit: int
    hidden: int = 0
    suspect: str = ""


def verdict(wish: Wish[int], ground: Ground) -> Outcome | None:
    """Return the outcome of a wish that must not, cannot or need not be written; None: it is to be written."""
    if wish.takes_back:
        return _of_a_restore(wish, ground)
    if why := ground.hands_off or _why_no_soft_limit(wish, ground):
        return wish.outcome(Result.REFUSED, before=ground.before, remark=why)
    if ground.before is None:
        return wish.outcome(Result.POSTPONED, remark=INELIGIBLE)
    return _unchanged(wish, ground) if ground.before == wish.wanted else None


def _of_a_restore(wish: Wish[int], ground: Ground) -> Outcome | None:
    if ground.is_set:
        return None
    if ground.before is None and ground.hidden:
        wrote = f"Helios had written {wish.terms.words(wish.lever, ground.hidden)}"
        return None if wish.unseen else wish.outcome(Result.REFUSED, remark=f"{HIDDEN}; {wrote}")
    if ground.suspect:
        return wish.outcome(Result.REFUSED, before=ground.before, remark=ground.suspect)
    if ground.before and ground.hands_off:
        return wish.outcome(Result.REFUSED, before=ground.before, remark=ground.hands_off)
    return _unchanged(wish, ground)


def _why_no_soft_limit(wish: Wish[int], ground: Ground) -> str:
    if wish.lever is not Lever.SOFT_LIMIT:
        return ""
    if not ground.soft_limits:
        return NO_SOFT_LIMITS
    if ground.before and not ground.is_set:
        return USERS_OWN
    return TOO_LONG if ground.time_limit and wish.wanted >= ground.time_limit else ""


def _unchanged(wish: Wish[int], ground: Ground) -> Outcome:
    return wish.outcome(Result.UNCHANGED, before=ground.before, after=ground.before)
