"""Preconditions of a cycle and guards over changes of jobs and nodes.

No service, mode or option disables them. Where a precondition fails (missing or stale input, a pause, a controller that
changed), Helios writes nothing, and what is applied on the cluster stays. Only a pause reverts everything. Reasons name
times and bounds, not ages, so that their text stays the same from cycle to cycle.

A guard checks one change and its target, and returns a reason where it refuses. The cap on one user's share does not
refuse a change but makes it neutral. :class:`PowerBudget` limits how many nodes may be asleep or changing their power.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.actions import JobSetting, NodeOutcome, NodeSetting, Outcome, Result
from helios.changes import AWAKE, INELIGIBLE, Change, Desired, Key, sleeps
from helios.config import Control, Power, Settings
from helios.control.modes import OUTSIDE, ServiceMode
from helios.control.observed import (
    UNTOUCHABLE,
    AppliedChanges,
    Observation,
    ObservedNode,
    PendingJob,
    same_list,
)
from helios.control.state import BreakerState, ControllerState, NodeControllerState
from helios.model import Mode, NodePower, PowerSettings, Snapshot

OLDEST_USE = timedelta(hours=1)
"""Age of a record of the use of nodes beyond which none is put to sleep on it."""


_Key = TypeVar("_Key")
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


MANY = 10
"""Fewest pending jobs that cannot all vanish in one cycle with some nodes, unless Slurm's answer is incomplete."""
VANISHED_SHARE = 0.25
"""Share of the pending or running jobs, or of the nodes, that must not vanish unexplained. An answer that lost a third
shows it although some of these jobs really ended meanwhile."""
FEWEST_VANISHED = 5
"""Fewest jobs of that share, unless no running job or no job at all is left: a queue of three may well change so."""
SETTLES = ": one cycle to settle"
"""End of a reason that holds for one cycle."""


BudgetResult = tuple[Result, str]
"""Result with its reason, which is empty where the change is allowed."""
ALLOWED: BudgetResult = (Result.DONE, "")
MOST_SPARE = 48
"""Nodes that may wake at once beside those that jobs wait for: the most spare nodes of ces (metrics.spare_nodes)."""
TOO_MANY_MOVING = "as many nodes are on their way as may be"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCycleContext:
    """Observations and state of a node cycle, for its guards.

    Attributes
    ----------
    nodes : mapping
        The nodes as observed.
    wanted : frozenset of str
        Partitions in which a pending job waits for nodes.
    never : frozenset of str
        Nodes in ``power.never``.
    """

    snapshot: Snapshot
    nodes: Mapping[str, ObservedNode]
    applied: AppliedChanges
    memory: NodeControllerState
    settings: Settings
    wanted: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()

    @property
    def power(self) -> PowerSettings | None:
        """The cluster's power-saving settings."""
        return self.snapshot.power

    @property
    def only_lists(self) -> bool:
        """Whether the cluster's own idle timer puts nodes to sleep."""
        return self.settings.power.mechanism == "keep_awake"

    def is_wanted(self, node: ObservedNode) -> bool:
        """Return whether a pending job waits for nodes of its partitions."""
        return bool(self.wanted.intersection(node.partitions))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult(Generic[Desired]):
    """Allowed and refused changes, and those already applied."""

    allowed: tuple[Change[Desired], ...]
    refused: tuple[Outcome | NodeOutcome, ...]
    same: tuple[Change[Desired], ...] = ()


class PowerBudget:
    """Power changes and sleeping nodes that ``[power]`` still allows in this cycle.

    Parameters
    ----------
    away : collection of str
        Nodes that count as asleep although they are awake: those that a shadow has asleep, or that the cluster's own
        timer may put to sleep at any moment.
    about_to_fall : collection of str
        Those of ``away`` that the cluster's timer will put to sleep soon. For another sleep, they count as changing
        their power.
    wanted : int
        Nodes that pending jobs wait for. So many, and ``MOST_SPARE`` more, may wake at once whatever the limit, as the
        cluster itself would wake them for these jobs.
    """

    def __init__(
        self,
        nodes: Mapping[str, ObservedNode],
        settings: Power,
        *,
        away: Iterable[str] = (),
        about_to_fall: Collection[str] = (),
        wanted: int = 0,
    ) -> None:
        asleep = set(away)
        self._about_to_fall = len(about_to_fall)
        self._settings = settings
        most = max(1, _share(settings.most_in_transition, len(nodes)))
        self._left = most - sum(node.in_transition for node in nodes.values())
        waking = sum(node.power is NodePower.WAKING for node in nodes.values())
        self._left_to_wake = max(most, MOST_SPARE + wanted) - waking
        in_service = [node for node in nodes.values() if node.in_service]
        self._serving = Counter(
            kind for node in in_service if node.serves and node.name not in asleep for kind in node.kinds()
        )
        self._away = Counter(node.pool for node in in_service if node.is_away or node.name in asleep)
        self._total = Counter(node.pool for node in in_service)

    def to_wake(self) -> BudgetResult:
        """Reserve a power change for one node that is woken ahead of need."""
        if self._left_to_wake <= 0:
            return Result.POSTPONED, TOO_MANY_MOVING
        self._left -= 1
        self._left_to_wake -= 1
        return ALLOWED

    def to_revert(self) -> BudgetResult:
        """Reserve a power change for one node that Helios gives back."""
        return self.to_wake() if self._left > 0 else (Result.POSTPONED, TOO_MANY_MOVING)

    def to_sleep(self, node: ObservedNode) -> BudgetResult:
        """Reserve a power change and a sleeping node for ``node``."""
        if last_awake := [kind for kind in node.kinds() if self._serving[kind] <= 1]:
            return Result.REFUSED, f"it is the last node awake of {last_awake[0]}"
        max_asleep = _share(self._settings.most_asleep, self._total[node.pool])
        if self._away[node.pool] >= max_asleep:
            return (
                Result.REFUSED,
                f"no more than {max_asleep} of {self._total[node.pool]} nodes of {node.pool} may be asleep",
            )
        if node.idle and self._left - self._about_to_fall <= 0:
            return Result.POSTPONED, TOO_MANY_MOVING
        self._left -= node.idle
        self._away[node.pool] += 1
        self._serving.subtract(node.kinds())
        return ALLOWED


def bound_power_changes(
    requested: Mapping[str, Sequence[Change[str]]], nodes: Mapping[str, ObservedNode], budget: PowerBudget
) -> tuple[dict[str, list[Change[str]]], dict[str, list[NodeOutcome]]]:
    """Divide changes of nodes into those within a budget and the others.

    Wakes of all services come before any sleep. It is pure, so that replays can bound changes as a live cycle does.

    Parameters
    ----------
    requested : mapping
        By service. Changes of other settings than power are allowed, and need no budget.

    Returns
    -------
    allowed, refused : dict
        By service.
    """
    results: dict[Key, BudgetResult] = {}
    power = [change for changes in requested.values() for change in changes if change.setting is NodeSetting.POWER]
    for change in sorted(power, key=sleeps):
        results[change.key] = budget.to_sleep(nodes[change.target]) if sleeps(change) else budget.to_wake()
    allowed = {
        name: [change for change in changes if not results.get(change.key, ALLOWED)[1]]
        for name, changes in requested.items()
    }
    refused = {
        name: [change.outcome(*result) for change in changes if (result := results.get(change.key, ALLOWED))[1]]
        for name, changes in requested.items()
    }
    return allowed, refused


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


def apply_node_guards(
    changes: Sequence[Change[str]], *, context: NodeCycleContext, mode: ServiceMode
) -> GuardResult[str]:
    """Apply every guard for single nodes to one service's changes."""
    unique, repeated = split_repeated(changes)
    same = [
        change
        for change in unique
        if _why_not_named(change, context, mode) == "" and is_in_desired_state(change, context, mode.mode)
    ]
    same_keys = {change.key for change in same}
    refusals = {change.key: _node_refusal(change, context, mode) for change in unique if change.key not in same_keys}
    return GuardResult(
        allowed=tuple(change for change in unique if change.key not in same_keys and not refusals[change.key][1]),
        same=tuple(same),
        refused=(
            *(
                change.outcome(*refusals[change.key])
                for change in unique
                if change.key not in same_keys and refusals[change.key][1]
            ),
            *(change.outcome(Result.REFUSED, "the service named this node twice") for change in repeated),
        ),
    )


def is_in_desired_state(change: Change[str], context: NodeCycleContext, mode: Mode) -> bool:
    """Return whether a requested change is already applied.

    In shadow mode: whether it would be.
    """
    row = context.applied.of(mode).get(change.key)
    node = context.nodes.get(change.target)
    if change.setting is NodeSetting.POWER:
        return _has_power(change, node, would_sleep=mode is Mode.SHADOW and row is not None)
    if row is None or row.value != change.value or row.overridden:
        return False
    if mode is Mode.SHADOW:
        return True
    return row.confirmed and context.power is not None and same_list(context.power.keep_awake, row.after)


def why_keep_awake(node: ObservedNode, context: NodeCycleContext) -> str:
    """Return why Helios must not keep a node asleep, whatever its state.

    Empty where it may.
    """
    return (
        context.memory.protected
        or _why_use_unknown(context)
        or _why_protected(node, context)
        or ("a pending job waits for nodes of its partition" if context.is_wanted(node) else "")
    )


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


def cap_changes(
    changes: Sequence[Change[float]], *, jobs: Mapping[str, PendingJob], share: float
) -> list[Change[float]]:
    """Make changes neutral that exceed one user's share of a partition.

    Only jobs that are put ahead of others' count, see :func:`ahead_of_others`. The job that has waited longest is put
    ahead of nobody. So a job that a service promotes for its wait stays promoted, even if its user has other jobs. An
    array counts as one job. The least urgent jobs are made neutral first, among equals the last in the queue. Every
    user keeps at least one.
    """
    ordering = {change.target: change for change in changes if change.setting is JobSetting.ORDER}
    movable = [job for job in jobs.values() if job.eligible and not job.excluded_reason]
    partition, user = (
        pd.factorize(np.array(names, dtype=object))[0]
        for names in ([job.partition for job in movable], [job.user for job in movable])
    )
    eligible = np.array([job.eligible_us for job in movable], dtype=np.int64)
    urgency = np.array([ordering[job.job_id].value if job.job_id in ordering else 0.0 for job in movable])
    is_ahead = ahead_of_others(partition, eligible, user, urgency)
    is_beyond = beyond_share(partition, user, urgency, is_ahead, share)
    excess_keys = {ordering[movable[place].job_id].key for place in np.flatnonzero(is_beyond).tolist()}
    return [
        _neutral(change, jobs[change.target].user, share) if change.key in excess_keys else change for change in changes
    ]


# The rule of cap_changes for arrays of the movable jobs in the order of the queue, with numbers for partitions and
# users. Replays compile it and apply it at every event, so it uses only what Numba supports.


def ahead_of_others(partition: Integers, eligible: Integers, user: Integers, urgency: Floats) -> Flags:
    """Return which jobs are put ahead of an older job of another user.

    Such a job has an urgency above 0, and above that of a job of another user that became eligible earlier in the
    partition. The unit of ``eligible`` does not matter. The loop goes from the oldest job on. It keeps the least
    urgency among the older jobs and its user, and the least urgency among the jobs of all other users.
    """
    oldest = np.argsort(eligible, kind="mergesort")
    oldest = oldest[np.argsort(partition[oldest], kind="mergesort")]
    is_ahead = np.zeros(len(user), dtype=np.bool_)
    least, least_user, least_other = np.inf, -2, np.inf
    begins = 0
    for place in range(len(oldest)):
        job = oldest[place]
        if place > 0 and partition[job] != partition[oldest[place - 1]]:
            least, least_user, least_other, begins = np.inf, -2, np.inf, place
        while eligible[oldest[begins]] < eligible[job]:
            older = oldest[begins]
            if user[older] == least_user:
                least = min(least, urgency[older])
            elif urgency[older] < least:
                least, least_user, least_other = urgency[older], user[older], least
            else:
                least_other = min(least_other, urgency[older])
            begins += 1
        is_ahead[job] = urgency[job] > 0 and (least_other if user[job] == least_user else least) < urgency[job]
    return is_ahead


def beyond_share(partition: Integers, user: Integers, urgency: Floats, ahead: Flags, share: float) -> Flags:
    """Return which jobs of those ``ahead`` exceed one user's share of a partition."""
    places = np.flatnonzero(ahead)
    places = places[np.argsort(-urgency[places], kind="mergesort")]
    for column in (user, partition):
        places = places[np.argsort(column[places], kind="mergesort")]
    previous, following = places[:-1], places[1:]
    is_first = np.ones(len(places), dtype=np.int64)
    is_first[1:] = (user[previous] != user[following]) | (partition[previous] != partition[following])
    rank = np.arange(len(places)) - np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    is_beyond, begins = np.zeros(len(user), dtype=np.bool_), 0
    while begins < len(places):
        ends = begins + int((partition[places[begins:]] == partition[places[begins]]).sum())
        # Each reduction lowers the sum, so repeat until nothing changes. The epsilon keeps 0.1 x 30 at 3.
        n_kept, max_rank, n_before = ends - begins, 0, -1
        while n_kept != n_before:
            n_before, max_rank = n_kept, max(1, math.floor(share * n_kept + 1e-9))
            n_kept = int((rank[begins:ends] < max_rank).sum())
        is_beyond[places[begins:ends]] = rank[begins:ends] >= max_rank
        begins = ends
    return is_beyond


def _has_power(change: Change[str], node: ObservedNode | None, *, would_sleep: bool) -> bool:
    if node is None:
        return False
    if change.value == AWAKE:
        return not would_sleep and node.power in {NodePower.AWAKE, NodePower.WAKING}
    return would_sleep or node.is_away


def _node_refusal(change: Change[str], context: NodeCycleContext, mode: ServiceMode) -> tuple[Result, str]:
    if why := _why_not_named(change, context, mode):
        return Result.REFUSED, why
    if change.setting is NodeSetting.KEEP_AWAKE:
        return Result.REFUSED, _refuse_keep_awake(context)
    node = context.nodes[change.target]
    if change.value == AWAKE:
        return _refuse_wake(node)
    return Result.REFUSED, _refuse_sleep(node, context)


def _why_not_named(change: Change[str], context: NodeCycleContext, mode: ServiceMode) -> str:
    row = context.applied.real.get(change.key)
    if row is not None and row.overridden:
        return "somebody changed it after Helios did: it is theirs"
    if change.setting is NodeSetting.KEEP_AWAKE:
        return ""
    node = context.nodes.get(change.target)
    if node is None:
        return "no such node"
    return "" if mode.reaches(node.name, partitions=node.partitions) else OUTSIDE


def _refuse_keep_awake(context: NodeCycleContext) -> str:
    if not context.only_lists:
        return "power.mechanism is sleep: the keep-awake list is left to the site"
    if context.power is None:
        return "it is not known how the cluster powers nodes"
    return "" if context.power.can_keep_awake else "the keep-awake list cannot be changed on this cluster"


def _refuse_wake(node: ObservedNode) -> tuple[Result, str]:
    if node.down:
        return Result.REFUSED, f"it is {node.state or 'down'}"
    if not node.in_service:  # a node that is only planned or reserved may be woken
        return Result.REFUSED, node.excluded_reason or f"it is {min(node.flags)}"
    if node.power is NodePower.FALLING_ASLEEP:
        return Result.POSTPONED, "falling asleep: it cannot be called back until it is asleep"
    return Result.REFUSED, ""


def _refuse_sleep(node: ObservedNode, context: NodeCycleContext) -> str:
    return (
        _why_no_sleep_here(context)
        or _why_in_use(node)
        or why_keep_awake(node, context)
        or _why_not_idle(node, context)
    )


def _why_no_sleep_here(context: NodeCycleContext) -> str:
    if context.only_lists:
        return "power.mechanism is keep_awake: the cluster's own timer puts nodes to sleep"
    if context.power is None:
        return "it is not known how the cluster powers nodes"
    return context.power.why_not or ("" if context.power.can_sleep else "nodes cannot be put to sleep on this cluster")


def _why_use_unknown(context: NodeCycleContext) -> str:
    use = context.snapshot.use
    if use is None:
        return "it is not known which nodes were in use"
    is_recent = abs(context.snapshot.taken_at.timestamp() - use.ended_s) <= OLDEST_USE.total_seconds()
    return "" if is_recent else "the record of which nodes were in use is not of this hour"


def _why_in_use(node: ObservedNode) -> str:
    if node.excluded_reason:
        return node.excluded_reason
    flags = sorted(node.flags & UNTOUCHABLE)
    return f"it is {flags[0]}" if flags else ""


def _why_protected(node: ObservedNode, context: NodeCycleContext) -> str:
    memory, power = context.memory, context.settings.power
    if node.name in context.never:
        return "power.never names it"
    if node.name in memory.quarantined:
        return f"it {memory.quarantined[node.name].what}, and nobody has cleared it"
    if node.name in memory.keep_off:
        return f"somebody woke it: left awake until {memory.keep_off[node.name]:%Y-%m-%d %H:%M} UTC"
    cycles = len(memory.slept.get(node.name, ()))
    return f"Helios put it to sleep {cycles} times in 24 hours" if cycles >= power.cycles_per_day else ""


def _why_not_idle(node: ObservedNode, context: NodeCycleContext) -> str:
    now = context.snapshot.taken_at
    if node.kept_awake:
        return "the cluster's keep-awake list names it"
    if not node.idle:
        return f"it is not idle: {node.state} and {node.power}" + (", and jobs hold it" if node.holds else "")
    observed_idle = context.memory.idle.get(node.name)
    if observed_idle is None or observed_idle >= now:
        return "it was not idle at the look before, and it takes two in a row"
    since = node.idle_since or observed_idle
    idle_s = context.settings.power.idle_s
    return "" if now - since >= timedelta(seconds=idle_s) else f"it has not been idle for {idle_s} s"


def _share(share: float, total: int) -> int:
    return math.floor(share * total + 1e-9)  # the epsilon keeps 0.1 x 30 at 3


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


def _neutral(change: Change[float], user: str, share: float) -> Change[float]:
    where = f"the jobs put ahead of others' in partition {change.partition}"
    why = f"neutral: no more than {share:.0%} of {where} may be {user}'s"
    return replace(change, value=0.0, reason=f"{change.reason}; {why}")


def _utc_text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
