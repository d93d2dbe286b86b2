"""Preconditions of a cycle, without which nothing is written.

Examples are missing or stale input, a pause, and a controller that changed. While suspended, Helios writes nothing, and
what is applied on the cluster stays. Only a pause reverts everything. Reasons name times and bounds, not ages, so that
their text stays the same while they hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from helios.config import Control
from helios.control.observed import PendingJob
from helios.control.state import BreakerState, ControllerState
from helios.model import Snapshot

MANY = 10
"""So many pending jobs do not vanish within one cycle together with nodes, unless Slurm's answer was cut short."""


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
        Until when the accounting was read; None for never.
    model_trained_at : datetime, optional
        None where predictions come from the history alone, so that no model can be too old.
    model_problem : str
        Why the model in use is not to be trusted, for a person; empty where nothing is known against it.
    clock_skew_s : float, optional
        The controller's clock minus ours, s; None where it could not be measured.
    released : str
        The kill switches that reverted everything outside of a cycle since the last cycle that acted; empty for none.
    """

    paused: str = ""
    controller: str | None = None
    history_read_at: datetime | None = None
    model_trained_at: datetime | None = None
    model_problem: str = ""
    clock_skew_s: float | None = None
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
    # The lease was taken for lease_s at the start of the cycle; a snapshot farther away in time is not covered by it.
    apart = snapshot.taken_at - now
    if abs(apart) > timedelta(seconds=settings.lease_s):
        side = "in the future" if apart > timedelta(0) else "too long ago"
        taken_at = _utc_text(snapshot.taken_at)
        reasons.append(f"the cluster was read {side}: at {taken_at}, the cycle began at {_utc_text(now)}")
    if why := why_cut_short(snapshot, memory):
        reasons.append(why)
    if memory.controller is not None and conditions.controller not in {None, memory.controller}:
        changed = f"the controller changed from {memory.controller} to {conditions.controller}"
        reasons.append(f"{changed}: one cycle to settle")
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


def why_cut_short(snapshot: Snapshot, memory: ControllerState) -> str:
    """Return why the snapshot looks incomplete, compared with the last trusted one.

    Empty where it does not.
    """
    nodes = snapshot.nodes["name"].nunique()
    if not nodes:
        return "the cluster answered without any node"
    if memory.nodes is None or memory.pending is None:
        return ""
    if memory.pending >= MANY and snapshot.pending.empty and nodes < memory.nodes:
        return f"all {memory.pending} pending jobs and some of {memory.nodes} nodes vanished at once"
    return ""


def _utc_text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
