"""What services ask for, lever by lever and job by job: the form in which it can be checked, and back again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

from helios.actions import Action, JobAction, Lever, Outcome, Place, Reorder, Restore, Result, SoftLimit
from helios.control.pending import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One value for one lever of one job.

    Attributes
    ----------
    partition : str
        Of the order that names the job; empty for a soft limit.
    why_partition : str
        The reason of that whole order.
    """

    lever: Lever
    job_id: str
    value: float
    reason: str
    partition: str = ""
    why_partition: str = ""

    @property
    def key(self) -> Key:
        """Lever and job."""
        return self.lever, self.job_id

    def outcome(self, result: Result, remark: str = "") -> Outcome:
        """Say what became of it."""
        action = "Reorder" if self.lever is Lever.ORDER else "SoftLimit"
        return Outcome(
            action=action, lever=self.lever, job_id=self.job_id, result=result, reason=self.reason, remark=remark
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """All that a service asked for in one turn.

    Attributes
    ----------
    partitions : frozenset of str
        Those it gave an order for: a job there that it does not name is neutral.
    soft_limits : bool
        Whether it gave any soft limit.
    """

    wishes: tuple[Wish, ...]
    partitions: frozenset[str] = frozenset()
    soft_limits: bool = False


def proposal_of(actions: Sequence[Action]) -> Proposal:
    """Take the actions of a service apart.

    A ``Restore`` is the wish that nothing stands, which is what a job has that is not named.

    Raises
    ------
    TypeError
        Something is not an action.
    """
    wishes = [wish for action in actions for wish in _wishes(action)]
    restores = [action for action in actions if isinstance(action, Restore)]
    return Proposal(
        wishes=tuple(wish for wish in wishes if not any(_covers(restore, wish) for restore in restores)),
        partitions=frozenset(action.partition for action in actions if isinstance(action, Reorder)),
        soft_limits=any(isinstance(action, SoftLimit) for action in actions),
    )


def actions_of(wishes: Sequence[Wish]) -> list[JobAction]:
    """Put wishes together again: an order for each partition, then the soft limits.

    Wishes of equal urgency stay as they are given.
    """
    orders = [wish for wish in wishes if wish.lever is Lever.ORDER]
    limits = [wish for wish in wishes if wish.lever is Lever.SOFT_LIMIT]
    by_partition = groupby(sorted(orders, key=lambda wish: (wish.partition, -wish.value)), lambda wish: wish.partition)
    return [*(_reorder(partition, list(named)) for partition, named in by_partition), *map(_soft_limit, limits)]


def _wishes(action: Action) -> list[Wish]:
    if isinstance(action, Reorder):
        return [_place_wish(action, place) for place in action.order]
    if isinstance(action, SoftLimit):
        return [_limit_wish(action)]
    if isinstance(action, Restore):
        return []
    raise TypeError(f"{type(action).__name__} is not an action on a job; there are Reorder, SoftLimit and Restore")


def _place_wish(order: Reorder, place: Place) -> Wish:
    return Wish(
        lever=Lever.ORDER,
        job_id=place.job_id,
        value=place.urgency,
        reason=place.reason,
        partition=order.partition,
        why_partition=order.reason,
    )


def _limit_wish(limit: SoftLimit) -> Wish:
    return Wish(lever=Lever.SOFT_LIMIT, job_id=limit.job_id, value=limit.run_time.total_seconds(), reason=limit.reason)


def _covers(restore: Restore, wish: Wish) -> bool:
    lever_fits = restore.lever is None or restore.lever is wish.lever
    return lever_fits and (restore.job_ids is None or wish.job_id in restore.job_ids)


def _reorder(partition: str, named: list[Wish]) -> Reorder:
    order = tuple(Place(job_id=wish.job_id, urgency=wish.value, reason=wish.reason) for wish in named)
    return Reorder(partition=partition, order=order, reason=named[0].why_partition)


def _soft_limit(wish: Wish) -> SoftLimit:
    return SoftLimit(job_id=wish.job_id, run_time=timedelta(seconds=wish.value), reason=wish.reason)
