"""What actions ask of Slurm's jobs, on the ground of what was read of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from helios import asked_of_jobs, marks
from helios.actions import JobAction, Lever, Outcome, Result
from helios.asked_of_jobs import GONE, Ground, Wish, slurms_terms
from helios.slurm import translate
from helios.slurm.look import Look

UNSEEN = "it is no longer eligible: it was written, and cannot be read back"
BLIND = "0 was written on demand where Slurm hides the value"


def wishes_of(actions: Sequence[JobAction], look: Look, *, most: int) -> list[Wish[int]]:
    """Return what the actions ask for, in their order.

    Raises
    ------
    TypeError
        There is no such action.
    """
    terms = slurms_terms(site_factor=partial(marks.site_factor, most=most))
    return [
        wish
        for action in actions
        for wish in asked_of_jobs.wishes_of(
            action, terms, pending=lambda: look.jobs, is_set=lambda lever, job_id: _concerns(lever, look, job_id)
        )
    ]


def verdict(wish: Wish[int], look: Look) -> Outcome | None:
    """Return the outcome of a wish that must not, cannot or need not be written; None: it is to be written."""
    if wish.job_id not in look.jobs:
        return wish.outcome(Result.GONE, remark=GONE)
    return asked_of_jobs.verdict(wish, _ground(wish, look))


def size(wish: Wish[int], look: Look, *, most: int) -> float:
    """Return how much a wish that is to be written changes: what is taken back first, then 2 to 0."""
    before = look.value(wish.lever, wish.job_id) or 0
    if wish.takes_back:
        return 3.0 if before else 2.5
    if wish.lever is Lever.ORDER:
        return abs(wish.wanted - before) / most
    limit = translate.minutes(look.jobs[wish.job_id]["time_limit_s"])
    return abs(wish.wanted - (before or limit)) / max(limit, wish.wanted)


def _ground(wish: Wish[int], look: Look) -> Ground:
    return Ground(
        before=look.value(wish.lever, wish.job_id),
        is_set=look.is_ours(wish.lever, wish.job_id),
        hands_off=look.hands_off(wish.job_id),
        soft_limits=look.soft_limits,
        time_limit=translate.minutes(look.jobs[wish.job_id]["time_limit_s"]),
        hidden=look.hidden(wish.job_id) if wish.lever is Lever.ORDER else 0,
        suspect=look.suspect(wish.lever, wish.job_id),
    )


def _concerns(lever: Lever, look: Look, job_id: str) -> bool:
    """Return whether a restore of everything has something to do, or to say, about a lever of a pending job."""
    if look.is_ours(lever, job_id) or look.suspect(lever, job_id):
        return True
    return lever is Lever.ORDER and look.hidden(job_id) != 0
