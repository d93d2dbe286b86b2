"""Preconditions of a cycle.

No service, mode or option disables them. Where one fails (missing or stale input, a pause, a controller that changed),
Helios writes nothing, and what is applied on the cluster stays. Only a pause reverts everything. Reasons name times and
bounds, not ages, so that their text stays the same from cycle to cycle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from helios.config import Control
from helios.control.observed import Observation, PendingJob
from helios.control.state import BreakerState, ControllerState
from helios.model import Snapshot

MANY = 10
"""Fewest pending jobs that cannot all vanish in one cycle with some nodes, unless Slurm's answer is incomplete."""
VANISHED_SHARE = 0.25
"""Share of the pending or running jobs, or of the nodes, that must not vanish unexplained. An answer that lost a third
shows it although some of these jobs really ended meanwhile."""
FEWEST_VANISHED = 5
"""Fewest jobs of that share, unless no running job or no job at all is left: a queue of three may well change so."""
SETTLES = ": one cycle to settle"
"""End of a reason that holds for one cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """Facts about a cycle's environment that its caller supplies.

    Attributes
    ----------
    paused : str
        Why Helios is paused (the pause file, a stored pause), for a person; empty where it is not.
    controller : str, optional
        Identity of the controller that answers, which changes with a failover or restart; None where it is not known.
    history_read_at : datetime, optional
        Time up to which the accounting was read; None for never.
    model_trained_at : datetime, optional
        None where predictions come from the history alone, so that no model can be too old.
    model_problem : str
        Why the model in use is not to be trusted, for a person; empty where it is.
    clock_skew_s : float, optional
        The controller's clock minus ours, s; None where it could not be measured.
    cut_short : str
        Why the observation looks incomplete, for a person; empty where it does not. Set by the cycle.
    released : str
        The kill switches that reverted everything outside of a cycle since the last cycle that acted; empty for none.
    """

    paused: str = ""
    controller: str | None = None
    history_read_at: datetime | None = None
    model_trained_at: datetime | None = None
    model_problem: str = ""
    clock_skew_s: float | None = None
    cut_short: str = ""
    released: str = ""


def suspension_reasons(
    conditions: Preconditions,
    settings: Control,
    *,
    snapshot: Snapshot,
    jobs: Mapping[str, PendingJob],
    memory: ControllerState,
    now: datetime,
) -> list[str]:
    """Return every reason to write nothing in this cycle, for a person.

    Parameters
    ----------
    snapshot, jobs
        The snapshot, and its pending jobs with their predictions.
    now : datetime
        Start of the cycle.
    """
    reasons = cluster_suspension_reasons(conditions, settings, snapshot=snapshot, memory=memory, now=now)
    if conditions.paused:
        return reasons
    trained_at = conditions.model_trained_at
    if trained_at is not None and now - trained_at > timedelta(seconds=settings.oldest_model_s):
        reasons.append(f"the model was trained at {_utc_text(trained_at)}, more than {settings.oldest_model_s} s ago")
    if conditions.model_problem:
        reasons.append(f"the promoted model is not to be trusted: {conditions.model_problem}")
    if jobs and all(math.isnan(job.p50_s) for job in jobs.values()):
        reasons.append("there is no prediction for any pending job")
    return reasons


def cluster_suspension_reasons(
    conditions: Preconditions, settings: Control, *, snapshot: Snapshot, memory: ControllerState, now: datetime
) -> list[str]:
    """Return the reasons that hold for every domain.

    These are all reasons except those about predictions of jobs.
    """
    if conditions.paused:
        return [f"paused: {conditions.paused}"]  # the person who paused it needs no further reasons
    reasons: list[str] = []
    breaker = memory.breaker
    if breaker.state(now=now, settings=settings) is BreakerState.OPEN:
        until = _utc_text(breaker.closes_at(settings))
        reasons.append(f"the breaker is open until {until}: {breaker.bad_in_row} bad cycles in a row")
    # The lease holds for lease_s from the start of the cycle, so it does not cover a snapshot farther away in time.
    distance = snapshot.taken_at - now
    if abs(distance) > timedelta(seconds=settings.lease_s):
        when = "in the future" if distance > timedelta(0) else "too long ago"
        taken_at = _utc_text(snapshot.taken_at)
        reasons.append(f"the cluster was read {when}: at {taken_at}, the cycle began at {_utc_text(now)}")
    if conditions.cut_short:
        reasons.append(conditions.cut_short)
    if memory.controller is not None and conditions.controller not in {None, memory.controller}:
        changed = f"the controller changed from {memory.controller} to {conditions.controller}"
        reasons.append(f"{changed}{SETTLES}")
    if conditions.clock_skew_s is None:
        reasons.append("the controller's clock could not be compared with ours")
    elif abs(conditions.clock_skew_s) > settings.clock_skew_s:
        reasons.append(f"the controller's clock and ours differ by more than {settings.clock_skew_s:g} s")
    read_at = conditions.history_read_at
    if read_at is None:
        reasons.append("the history was never read")
    elif now - read_at > timedelta(seconds=settings.oldest_history_s):
        reasons.append(
            f"the history was read last at {_utc_text(read_at)}, more than {settings.oldest_history_s} s ago"
        )
    return reasons


def why_cut_short(
    seen: Observation,
    memory: ControllerState,
    *,
    accepted: Observation | None = None,
    doubted: Observation | None = None,
    ended: Callable[[datetime], Collection[str]] | None = None,
) -> str:
    """Return why an observation looks incomplete beside the last trusted one.

    Empty where it does not. An answer of Slurm that was cut between two records looks whole, so that only the jobs that
    vanished tell. Two observations in a row that agree are trusted.

    Parameters
    ----------
    accepted : Observation, optional
        The last trusted observation of this process. None where there is none; then the stored numbers count.
    doubted : Observation, optional
        The last observation if it was not trusted.
    ended : callable, optional
        Returns the jobs that are known to have ended since a time, from another source than the observation. None where
        an observation is always complete.
    """
    if not seen.nodes:
        return "the cluster answered without any node"
    there, before = seen.pending | seen.running, accepted
    if doubted is not None:
        lost = frozenset() if accepted is None else accepted.pending | accepted.running
        lost -= doubted.pending | doubted.running
        if not lost & there:  # a job that is back proves that the doubted answer was cut
            before = doubted
    if before is None:
        pending, nodes = memory.pending or 0, memory.nodes or 0
        if pending >= MANY and not seen.pending and len(seen.nodes) < nodes:
            return f"all {pending} pending jobs and some of {nodes} nodes vanished at once{SETTLES}"
        return ""
    lost_nodes, gone = before.nodes - seen.nodes, (before.pending | before.running) - there
    if len(lost_nodes) > VANISHED_SHARE * len(before.nodes):
        return f"{len(lost_nodes)} of {len(before.nodes)} nodes vanished at once{SETTLES}"
    if ended is not None and _are_too_many(gone, before, there):
        gone -= frozenset(ended(before.at))
        if _are_too_many(gone, before, there):
            number = len(before.pending | before.running)
            return f"{len(gone)} of {number} jobs vanished, and nothing tells of their start or end{SETTLES}"
    return ""


def _are_too_many(gone: frozenset[str], before: Observation, there: frozenset[str]) -> bool:
    """Return whether so many jobs do not vanish unexplained."""
    all_of_some = not there or (before.running & gone and not before.running & there)
    fewest = 1 if all_of_some else FEWEST_VANISHED
    kinds = (before.pending, before.running)
    return any(len(kind & gone) >= max(fewest, VANISHED_SHARE * len(kind)) for kind in kinds)


def _utc_text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
