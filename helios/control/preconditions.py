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
from helios.control.circuit_breaker import BreakerState
from helios.control.observed import PendingJob
from helios.control.state import ControllerState
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
    drift : str
        Why predictions are not to be trusted, for a person; empty where nothing is known against them.
    """

    paused: str = ""
    controller: str | None = None
    history_read_at: datetime | None = None
    model_trained_at: datetime | None = None
    model_problem: str = ""
    clock_skew_s: float | None = None
    released: str = ""
    drift: str = ""


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
    shared = cluster_suspension_reasons(conditions, settings, snapshot=snapshot, memory=memory, now=now)
    if conditions.paused:
        return shared
    reasons = [
        _old_model(conditions, settings, now),
        conditions.model_problem and f"the model in charge is not to be trusted: {conditions.model_problem}",
        conditions.drift and f"the predictions have drifted: {conditions.drift}",
        _no_predictions(jobs),
    ]
    return [*shared, *(reason for reason in reasons if reason)]


def cluster_suspension_reasons(
    conditions: Preconditions, settings: Control, *, snapshot: Snapshot, memory: ControllerState, now: datetime
) -> list[str]:
    """Return the reasons that hold for every domain.

    These are all reasons except those about predictions of jobs.
    """
    if conditions.paused:
        return [f"paused: {conditions.paused}"]  # the person who paused it needs no further reasons
    reasons = [
        _breaker(memory, settings, now),
        _old_look(snapshot, settings, now),
        _cut_short(snapshot, memory),
        _other_controller(conditions, memory),
        _skew(conditions, settings),
        _old_history(conditions, settings, now),
    ]
    return [reason for reason in reasons if reason]


def is_cut_short(snapshot: Snapshot, memory: ControllerState) -> bool:
    """Return whether the snapshot looks incomplete, compared with the last trusted one."""
    return bool(_cut_short(snapshot, memory))


def _breaker(memory: ControllerState, settings: Control, now: datetime) -> str:
    breaker = memory.breaker
    if breaker.state(now=now, settings=settings) is not BreakerState.OPEN:
        return ""
    return f"the breaker is open until {_moment(breaker.closes_at(settings))}: {breaker.bad_in_row} bad cycles in a row"


def _old_look(snapshot: Snapshot, settings: Control, now: datetime) -> str:
    # The lease was taken for lease_s at the start of the cycle; a snapshot farther away in time is not covered by it.
    apart = snapshot.taken_at - now
    if abs(apart) <= timedelta(seconds=settings.lease_s):
        return ""
    side = "in the future" if apart > timedelta(0) else "too long ago"
    return f"the cluster was looked at {side}: at {_moment(snapshot.taken_at)}, the cycle began at {_moment(now)}"


def _cut_short(snapshot: Snapshot, memory: ControllerState) -> str:
    nodes = snapshot.nodes["name"].nunique()
    if not nodes:
        return "the cluster answered without any node"
    if memory.nodes is None or memory.pending is None:
        return ""
    if memory.pending >= MANY and snapshot.pending.empty and nodes < memory.nodes:
        return f"all {memory.pending} pending jobs and some of {memory.nodes} nodes vanished at once"
    return ""


def _other_controller(conditions: Preconditions, memory: ControllerState) -> str:
    if memory.controller is None or conditions.controller in {None, memory.controller}:
        return ""
    return f"the controller changed from {memory.controller} to {conditions.controller}: one cycle to settle"


def _skew(conditions: Preconditions, settings: Control) -> str:
    if conditions.clock_skew_s is None:
        return "the controller's clock could not be compared with ours"
    if abs(conditions.clock_skew_s) <= settings.clock_skew_s:
        return ""
    return f"the controller's clock and ours differ by more than {settings.clock_skew_s:g} s"


def _old_history(conditions: Preconditions, settings: Control, now: datetime) -> str:
    read_at = conditions.history_read_at
    if read_at is None:
        return "the history was never read"
    if now - read_at <= timedelta(seconds=settings.oldest_history_s):
        return ""
    return f"the history was read last at {_moment(read_at)}, more than {settings.oldest_history_s} s ago"


def _old_model(conditions: Preconditions, settings: Control, now: datetime) -> str:
    trained_at = conditions.model_trained_at
    if trained_at is None or now - trained_at <= timedelta(seconds=settings.oldest_model_s):
        return ""
    return f"the model was trained at {_moment(trained_at)}, more than {settings.oldest_model_s} s ago"


def _no_predictions(jobs: Mapping[str, PendingJob]) -> str:
    if not jobs or not all(math.isnan(job.p50_s) for job in jobs.values()):
        return ""
    return "there is no prediction for any pending job"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
