"""What actions ask of Slurm: one value on one lever of one job each, and whether it may and need be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from helios.actions import JobAction, Lever, Outcome, Reorder, Restore, Result, SoftLimit
from helios.slurm import translate
from helios.slurm.look import SOFT_LIMIT_FLAG, Look

GONE = "it is no longer pending"
INELIGIBLE = "it is not eligible yet: what stands on it cannot be read"
UNSEEN = "it is no longer eligible: it was written, and cannot be read back"
BLIND = "it is not eligible now: 0 was written, and cannot be read back"
NO_SOFT_LIMITS = (
    f"SchedulerParameters lacks {SOFT_LIMIT_FLAG}: here a TimeMin would let Slurm shorten the job. "
    "Add the flag in slurm.conf (Slurm 23.11 or newer), then: scontrol reconfigure"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A value that is wanted on one lever of one job.

    Attributes
    ----------
    wanted : int
        A SiteFactor, or a TimeMin in minutes; 0: none.
    """

    action: str
    lever: Lever
    job_id: str
    reason: str
    wanted: int

    @property
    def takes_back(self) -> bool:
        """Whether it is part of a ``Restore``."""
        return self.action == Restore.__name__

    def outcome(
        self, result: Result, *, before: int | None = None, after: int | None = None, remark: str = ""
    ) -> Outcome:
        """Return ``result`` as the outcome of this wish; None stands for not read."""
        return Outcome(
            action=self.action,
            lever=self.lever,
            job_id=self.job_id,
            result=result,
            reason=self.reason,
            before=worded(self.lever, before),
            after=worded(self.lever, after),
            remark=remark,
        )


def worded(lever: Lever, value: int | None) -> str:
    """Return a value in Slurm's words; empty: not read."""
    if value is None:
        return ""
    return f"SiteFactor {value}" if lever is Lever.ORDER else f"TimeMin {value} min"


def wishes_of(actions: Sequence[JobAction], look: Look, *, most: int) -> list[Wish]:
    """Return what the actions ask for, in their order.

    Raises
    ------
    TypeError
        There is no such action.
    """
    return [wish for action in actions for wish in _of(action, look, most)]


def verdict(wish: Wish, look: Look) -> Outcome | None:
    """Return the outcome of a wish that must not, cannot or need not be written; None: it is to be written."""
    if wish.job_id not in look.jobs:
        return wish.outcome(Result.GONE, remark=GONE)
    before = look.value(wish.lever, wish.job_id)
    if wish.takes_back:
        return _of_a_restore(wish, look, before)
    if why := look.hands_off(wish.job_id) or _why_no_soft_limit(wish, look):
        return wish.outcome(Result.REFUSED, before=before, remark=why)
    if before is None:
        return wish.outcome(Result.POSTPONED, remark=INELIGIBLE)
    return _if_unchanged(wish, before)


def size(wish: Wish, look: Look, *, most: int) -> float:
    """Return how much a wish that is to be written changes: what is taken back first, then 2 to 0."""
    before = look.value(wish.lever, wish.job_id) or 0
    if wish.takes_back:
        return 3.0 if before else 2.5
    if wish.lever is Lever.ORDER:
        return abs(wish.wanted - before) / most
    limit = translate.minutes(look.jobs[wish.job_id]["time_limit_s"])
    return abs(wish.wanted - (before or limit)) / max(limit, wish.wanted)


def _of(action: JobAction, look: Look, most: int) -> Iterator[Wish]:
    name = type(action).__name__
    if isinstance(action, Reorder):
        for place in action.order:
            factor = translate.site_factor(place.urgency, most=most)
            yield Wish(action=name, lever=Lever.ORDER, job_id=place.job_id, reason=place.reason, wanted=factor)
    elif isinstance(action, SoftLimit):
        minutes = translate.time_min(action.run_time)
        yield Wish(action=name, lever=Lever.SOFT_LIMIT, job_id=action.job_id, reason=action.reason, wanted=minutes)
    elif isinstance(action, Restore):
        for lever, job_id in _to_restore(action, look):
            yield Wish(action=name, lever=lever, job_id=job_id, reason=action.reason, wanted=0)
    else:
        raise TypeError(f"{name} is not an action; there are Reorder, SoftLimit and Restore")


def _to_restore(restore: Restore, look: Look) -> Iterable[tuple[Lever, str]]:
    levers = tuple(Lever) if restore.lever is None else (restore.lever,)
    named = restore.job_ids
    for job_id in look.jobs if named is None else named:
        for lever in levers:
            if named is not None or look.is_ours(lever, job_id) or _is_blind(lever, look, job_id):
                yield lever, job_id


def _is_blind(lever: Lever, look: Look, job_id: str) -> bool:
    return lever is Lever.ORDER and look.may_hide_ours(job_id)


def _of_a_restore(wish: Wish, look: Look, before: int | None) -> Outcome | None:
    if look.is_ours(wish.lever, wish.job_id) or _is_blind(wish.lever, look, wish.job_id):
        return None
    why = look.hands_off(wish.job_id)
    if before and why:
        return wish.outcome(Result.REFUSED, before=before, remark=why)
    return wish.outcome(Result.UNCHANGED, before=before, after=before)


def _why_no_soft_limit(wish: Wish, look: Look) -> str:
    if wish.lever is not Lever.SOFT_LIMIT:
        return ""
    if not look.soft_limits:
        return NO_SOFT_LIMITS
    if look.value(wish.lever, wish.job_id) and not look.is_ours(wish.lever, wish.job_id):
        return "the user set a --time-min"
    limit = translate.minutes(look.jobs[wish.job_id]["time_limit_s"])
    return "it is not below the time limit" if limit and wish.wanted >= limit else ""


def _if_unchanged(wish: Wish, before: int) -> Outcome | None:
    return wish.outcome(Result.UNCHANGED, before=before, after=before) if before == wish.wanted else None
