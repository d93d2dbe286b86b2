"""Guards over changes of jobs, and one owner for each setting.

No service, mode or option disables them. A guard checks one change and its target, and returns a reason where it
refuses. Reasons name times and bounds, not ages, so that their text stays the same from cycle to cycle. Nodes have
guards of their own (``node_guards``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from helios import ownership
from helios.actions import JobSetting, NodeOutcome, Outcome, Result
from helios.changes import INELIGIBLE, Change, Desired, Key
from helios.control.modes import OUTSIDE, ServiceMode
from helios.control.observed import PendingJob
from helios.control.user_share import cap_changes

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult(Generic[Desired]):
    """Allowed and refused changes, and those already applied."""

    allowed: tuple[Change[Desired], ...]
    refused: tuple[Outcome | NodeOutcome, ...]
    same: tuple[Change[Desired], ...] = ()


def apply_guards(
    changes: Sequence[Change[float]],
    *,
    jobs: Mapping[str, PendingJob],
    mode: ServiceMode,
    overridden: frozenset[Key],
    most_of_one_user: float,
) -> GuardResult[float]:
    """Apply every guard to one service's changes.

    Parameters
    ----------
    jobs : mapping
        The pending jobs as observed, before any service received the snapshot.
    mode : ServiceMode
        Mode of the service.
    overridden : set of Key
        Settings that somebody else changed after Helios.
    most_of_one_user : float
        Largest share of one user in the jobs that are put ahead of others' in a partition.
    """
    reasons = [_job_refusal(change, jobs.get(change.target), mode, overridden) for change in changes]
    allowed = [change for change, reason in zip(changes, reasons, strict=True) if not reason]
    unique, repeated = split_repeated(allowed)
    return GuardResult(
        allowed=tuple(cap_changes(unique, jobs=jobs, share=most_of_one_user)),
        refused=(
            *(
                change.outcome(Result.POSTPONED if why == INELIGIBLE else Result.REFUSED, why)
                for change, why in zip(changes, reasons, strict=True)
                if why
            ),
            *(change.outcome(Result.REFUSED, "the service named this job twice") for change in repeated),
        ),
    )


def split_repeated(changes: Sequence[Change[Desired]]) -> tuple[list[Change[Desired]], list[Change[Desired]]]:
    """Return the first change of each setting of each target, and the others."""
    first = {change.key: change for change in reversed(changes)}
    return [change for change in changes if first[change.key] is change], [
        change for change in changes if first[change.key] is not change
    ]


def keep_one_owner(
    changes: Mapping[str, Sequence[Change[Desired]]], *, held: Mapping[Key, str], kind: str = "job"
) -> tuple[dict[str, tuple[Change[Desired], ...]], dict[str, tuple[Outcome | NodeOutcome, ...]]]:
    """Assign each setting of each target to one service.

    The first configured service has precedence.

    Parameters
    ----------
    changes : mapping
        By service, in the order of configuration. A service that was not called in this cycle has none.
    held : mapping
        The service of the change applied now. It keeps the setting against services configured after it.
    kind : str
        Kind of the targets, for a person.

    Returns
    -------
    allowed, refused : dict
        By service.
    """
    owner = owners({name: [change.key for change in requested] for name, requested in changes.items()}, held=held)
    allowed = {
        name: tuple(change for change in requested if owner[change.key] == name) for name, requested in changes.items()
    }
    refused: dict[str, tuple[Outcome | NodeOutcome, ...]] = {
        name: tuple(
            change.outcome(Result.REFUSED, f"service {owner[change.key]} has this setting of the {kind}")
            for change in requested
            if owner[change.key] != name
        )
        for name, requested in changes.items()
    }
    return allowed, refused


def owners(requested: Mapping[str, Sequence[_Key]], *, held: Mapping[_Key, str]) -> dict[_Key, str]:
    """Return the service that owns each key.

    It is the first configured service that requests or holds the key.

    Parameters
    ----------
    requested : mapping
        Keys that each service requests, in the order of configuration.
    held : mapping
        The service that holds a key now. One that is no longer configured is ignored.
    """
    rank = {service: position for position, service in enumerate(requested)}
    owner = {key: service for key, service in held.items() if service in rank}
    for service, keys in requested.items():
        for key in keys:
            if key not in owner or rank[service] < rank[owner[key]]:
                owner[key] = service
    return owner


def _job_refusal(change: Change[float], job: PendingJob | None, mode: ServiceMode, overridden: frozenset[Key]) -> str:
    if job is None:
        return "no such job is pending"
    if job.excluded_reason:
        return job.excluded_reason
    if change.key in overridden:
        return "somebody changed it after Helios did: it is theirs"
    if not mode.covers(job):
        return OUTSIDE
    if not job.eligible:
        return INELIGIBLE
    return _refuse_order(change, job) if change.setting is JobSetting.ORDER else _refuse_soft_limit(change, job)


def _refuse_order(change: Change[float], job: PendingJob) -> str:
    if not -1 <= change.value <= 1:
        return f"urgency {change.value} is not between -1 and 1"
    if change.partition != job.partition:
        return f"it queues in partition {job.partition}, not {change.partition}"
    return ""


def _refuse_soft_limit(change: Change[float], job: PendingJob) -> str:
    if not math.isfinite(change.value) or change.value <= 0:
        return f"a soft limit of {change.value} s"
    if not math.isnan(job.user_soft_limit_s):
        return "the user set a --time-min"
    too_long = "not below its time limit"
    if not change.value < job.time_limit_s:
        return too_long
    # Checked as it is written, rounded up to a marked minute. Otherwise a refused value is sent in every cycle.
    if not 60.0 * ownership.time_min(timedelta(seconds=change.value)) < job.time_limit_s:
        return too_long
    return "" if change.value >= job.p50_s else "below the predicted median of its run time, or there is no prediction"
