"""What actions ask of jobs: one value on one setting of one job each, and what becomes of it.

A live Slurm, a simulated one and the fake take actions apart, judge them and tell of them by this; the simulator whose
urgencies are no SiteFactors judges by its own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Generic, TypeVar

from helios import ownership
from helios.actions import (
    Action,
    FillFirst,
    JobAction,
    JobSetting,
    KeepAwake,
    NodeAction,
    NodeOutcome,
    NodeSetting,
    Outcome,
    Place,
    PowerDown,
    PowerUp,
    Reorder,
    Result,
    Revert,
    RevertNodes,
    SoftLimit,
)

Key = tuple[JobSetting, str]
"""One setting of one job, by its id."""

Value = TypeVar("Value", int, float)
"""What a cluster holds on a setting."""

GONE = "it is no longer pending"
INELIGIBLE = "it is not eligible yet: what stands on it cannot be read"
HIDDEN = "the cluster hides what stands on it now"
"""Begins the remark about a value of Helios that is not reverted, since nobody can see whether it still stands."""
TOO_LONG = "it is not below the time limit"
USERS_OWN = "the user set a --time-min"
SOFT_LIMIT_FLAG = "time_min_as_soft_limit"
"""What the site sets in ``SchedulerParameters`` for a TimeMin to be a soft limit."""
NO_SOFT_LIMITS = (
    f"SchedulerParameters lacks {SOFT_LIMIT_FLAG}: here a TimeMin would let Slurm shorten the job. "
    "Add the flag in slurm.conf (Slurm 23.11 or newer), then: scontrol reconfigure"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMapping(Generic[Value]):
    """The values in which a cluster holds what it is asked for.

    Attributes
    ----------
    of_urgency, of_run_time : callable
        Return the value for an urgency, and for a soft limit.
    nothing : callable
        Returns the value of a setting on which nothing is set.
    words : callable
        Returns a value of a setting, for a person.
    """

    of_urgency: Callable[[float], Value]
    of_run_time: Callable[[timedelta], Value]
    nothing: Callable[[JobSetting], Value]
    words: Callable[[JobSetting, Value], str]


def slurm_value_mapping(
    *, site_factor: Callable[[float], int], time_min: Callable[[timedelta], int] = ownership.time_min
) -> ValueMapping[int]:
    """Return Slurm's own: the SiteFactor of an urgency, and the TimeMin of a soft limit in minutes; 0: none."""
    return ValueMapping(
        of_urgency=site_factor,
        of_run_time=time_min,
        nothing=lambda _: 0,
        words=lambda setting, value: f"SiteFactor {value}" if setting is JobSetting.ORDER else f"TimeMin {value} min",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange(Generic[Value]):
    """A value that is wanted on one setting of one job.

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
    setting: JobSetting
    job_id: str
    reason: str
    wanted: Value
    terms: ValueMapping[Value]
    unseen: bool = False

    @property
    def takes_back(self) -> bool:
        """Whether it is part of a ``Revert``."""
        return self.action == Revert.__name__

    def outcome(
        self, result: Result, *, before: Value | None = None, after: Value | None = None, remark: str = ""
    ) -> Outcome:
        """Return ``result`` as the outcome of this change; None stands for not read."""
        return Outcome(
            action=self.action,
            setting=self.setting,
            job_id=self.job_id,
            result=result,
            reason=self.reason,
            before=self._worded(before),
            after=self._worded(after),
            remark=remark,
        )

    def _worded(self, value: Value | None) -> str:
        return "" if value is None else self.terms.words(self.setting, value)


def setting_changes(
    action: JobAction,
    terms: ValueMapping[Value],
    *,
    pending: Callable[[], Iterable[str]],
    is_set: Callable[[JobSetting, str], bool],
) -> Iterator[SettingChange[Value]]:
    """Return what an action asks for, in its order, each change when it is asked for.

    Parameters
    ----------
    pending : callable
        Returns the ids of the pending jobs on which Helios may have set something.
    is_set : callable
        Returns whether there is something to do, or to say, about a setting of one of these.

    Raises
    ------
    TypeError
        There is no such action.
    """
    if isinstance(action, Reorder):
        for place in action.order:
            yield SettingChange(
                action=Reorder.__name__,
                setting=JobSetting.ORDER,
                job_id=place.job_id,
                reason=place.reason,
                wanted=terms.of_urgency(place.urgency),
                terms=terms,
            )
    elif isinstance(action, SoftLimit):
        yield SettingChange(
            action=SoftLimit.__name__,
            setting=JobSetting.SOFT_LIMIT,
            job_id=action.job_id,
            reason=action.reason,
            wanted=terms.of_run_time(action.run_time),
            terms=terms,
        )
    elif isinstance(action, Revert):
        for setting, job_id in _to_restore(action, pending, is_set):
            yield SettingChange(
                action=Revert.__name__,
                setting=setting,
                job_id=job_id,
                reason=action.reason,
                wanted=terms.nothing(setting),
                terms=terms,
                unseen=action.hidden,
            )
    else:
        raise TypeError(f"{type(action).__name__} is not an action; there are Reorder, SoftLimit and Revert")


def _to_restore(
    restore: Revert, pending: Callable[[], Iterable[str]], is_set: Callable[[JobSetting, str], bool]
) -> Iterator[tuple[JobSetting, str]]:
    setting_kinds = tuple(JobSetting) if restore.setting is None else (restore.setting,)
    named = restore.job_ids
    for job_id in pending() if named is None else named:
        for setting in setting_kinds:
            if named is not None or is_set(setting, job_id):
                yield setting, job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeContext:
    """What a wish for a pending job of Slurm is judged on.

    Attributes
    ----------
    before : int, optional
        What stands on the setting; None: it cannot be read.
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
    excluded_reason: str
    soft_limits: bool
    time_limit: int
    hidden: int = 0
    suspect: str = ""


def judge_change(change: SettingChange[int], ground: ChangeContext) -> Outcome | None:
    """Return the outcome of a change that must not, cannot or need not be written; None: it is to be written."""
    if change.takes_back:
        return _of_a_restore(change, ground)
    if why := ground.excluded_reason or _why_no_soft_limit(change, ground):
        return change.outcome(Result.REFUSED, before=ground.before, remark=why)
    if ground.before is None:
        return change.outcome(Result.POSTPONED, remark=INELIGIBLE)
    return _unchanged(change, ground) if ground.before == change.wanted else None


def _of_a_restore(change: SettingChange[int], ground: ChangeContext) -> Outcome | None:
    if ground.is_set:
        return None
    if ground.before is None and ground.hidden:
        wrote = f"Helios had written {change.terms.words(change.setting, ground.hidden)}"
        return None if change.unseen else change.outcome(Result.REFUSED, remark=f"{HIDDEN}; {wrote}")
    if ground.suspect:
        return change.outcome(Result.REFUSED, before=ground.before, remark=ground.suspect)
    if ground.before and ground.excluded_reason:
        return change.outcome(Result.REFUSED, before=ground.before, remark=ground.excluded_reason)
    return _unchanged(change, ground)


def _why_no_soft_limit(change: SettingChange[int], ground: ChangeContext) -> str:
    if change.setting is not JobSetting.SOFT_LIMIT:
        return ""
    if not ground.soft_limits:
        return NO_SOFT_LIMITS
    if ground.before and not ground.is_set:
        return USERS_OWN
    return TOO_LONG if ground.time_limit and change.wanted >= ground.time_limit else ""


def _unchanged(change: SettingChange[int], ground: ChangeContext) -> Outcome:
    return change.outcome(Result.UNCHANGED, before=ground.before, after=ground.before)


# What services ask for, node by node: the form in which it can be checked, and back again.

NodeKey = tuple[NodeSetting, str]
"""One setting of one node; the keep-awake list is the cluster's and has an empty name."""
LIST: NodeKey = (NodeSetting.KEEP_AWAKE, "")
ASLEEP, AWAKE = "asleep", "awake"
"""What is asked of a node's power, as the book has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """One value for one setting of one node.

    Attributes
    ----------
    value : str
        ``asleep`` or ``awake``; ``tier 2``; or the nodes to keep awake, by commas, sorted.
    action : str
        Name of the action's class.
    """

    setting: NodeSetting
    node: str
    value: str
    reason: str
    action: str

    @property
    def key(self) -> NodeKey:
        """Setting and node."""
        return self.setting, self.node

    @property
    def sleeps(self) -> bool:
        """Whether it puts the node to sleep."""
        return self.action == PowerDown.__name__

    @property
    def tier(self) -> int:
        """The tier of a weight, from 0."""
        return int(self.value.removeprefix(TIER))

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of a keep-awake list."""
        return nodes_named(self.value)

    def outcome(self, result: Result, remark: str = "", *, before: str = "", after: str = "") -> NodeOutcome:
        """Say what became of it."""
        return NodeOutcome(
            action=self.action,
            setting=self.setting,
            node=self.node,
            result=result,
            reason=self.reason,
            before=before,
            after=after,
            remark=remark,
        )


TIER = "tier "


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedNodeChanges:
    """All that a service asked for in one cycle.

    Attributes
    ----------
    gives_back : frozenset of NodeKey
        What of its own changes shall not stand any longer.
    fills : bool
        Whether it gave an order of filling.
    """

    changes: tuple[NodeChange, ...]
    gives_back: frozenset[NodeKey] = frozenset()
    fills: bool = False


def to_node_changes(actions: Sequence[Action]) -> RequestedNodeChanges:
    """Take the actions of a service apart.

    Raises
    ------
    TypeError
        Something is not an action on a node.
    """
    restores = [action for action in actions if isinstance(action, RevertNodes)]
    return RequestedNodeChanges(
        changes=tuple(change for action in actions for change in _node_changes(action)),
        gives_back=frozenset((action.setting, node) for action in restores for node, _ in action.own),
        fills=any(isinstance(action, FillFirst) for action in actions),
    )


def to_node_actions(changes: Sequence[NodeChange], *, own: Mapping[NodeKey, str]) -> list[NodeAction]:
    """Put wishes together again: wakes first, then the keep-awake list, sleeps and the order of filling.

    Parameters
    ----------
    own : mapping
        What the site itself has where Helios changed it.
    """
    ups = [PowerUp(node=change.node, reason=change.reason) for change in changes if change.action == PowerUp.__name__]
    downs = [PowerDown(node=change.node, reason=change.reason) for change in changes if change.sleeps]
    lists = [
        KeepAwake(nodes=change.names, reason=change.reason, own=own.get(LIST))
        for change in changes
        if change.setting is NodeSetting.KEEP_AWAKE
    ]
    return [
        *ups,
        *lists,
        *downs,
        *_fill_first([change for change in changes if change.setting is NodeSetting.WEIGHT], own),
    ]


def nodes_named(text: str) -> tuple[str, ...]:
    """Return the nodes of a list as the book has it."""
    return tuple(name for name in text.split(",") if name)


def join_names(nodes: Iterable[str]) -> str:
    """Write a list of nodes as the book has it."""
    return ",".join(sorted(set(nodes)))


def _node_changes(action: Action) -> list[NodeChange]:
    kind = type(action).__name__
    if isinstance(action, PowerDown):
        return [
            NodeChange(setting=NodeSetting.POWER, node=action.node, value=ASLEEP, reason=action.reason, action=kind)
        ]
    if isinstance(action, PowerUp):
        return [NodeChange(setting=NodeSetting.POWER, node=action.node, value=AWAKE, reason=action.reason, action=kind)]
    if isinstance(action, KeepAwake):
        value = join_names(action.nodes)
        return [NodeChange(setting=NodeSetting.KEEP_AWAKE, node="", value=value, reason=action.reason, action=kind)]
    if isinstance(action, FillFirst):
        return [
            NodeChange(
                setting=NodeSetting.WEIGHT, node=node, value=f"{TIER}{place}", reason=action.why_in(place), action=kind
            )
            for place, tier in enumerate(action.tiers)
            for node in tier
        ]
    if isinstance(action, RevertNodes):
        return []
    raise TypeError(
        f"{kind} is not an action on a node; there are PowerDown, PowerUp, KeepAwake, FillFirst and RestoreNodes"
    )


def _fill_first(changes: Sequence[NodeChange], own: Mapping[NodeKey, str]) -> list[NodeAction]:
    if not changes:
        return []
    tiers: list[list[str]] = [[] for _ in range(max(change.tier for change in changes) + 1)]
    for change in changes:
        tiers[change.tier].append(change.node)
    weights = tuple((node, int(float(text))) for (setting, node), text in own.items() if setting is NodeSetting.WEIGHT)
    return [FillFirst(tiers=tuple(map(tuple, tiers)), reason=changes[0].reason, own=weights)]


# What services ask for, setting by setting and job by job: the form in which it can be checked, and back again.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """One value for one setting of one job.

    Attributes
    ----------
    partition : str
        Of the order that names the job; empty for a soft limit.
    why_partition : str
        The reason of that whole order.
    """

    setting: JobSetting
    job_id: str
    value: float
    reason: str
    partition: str = ""
    why_partition: str = ""

    @property
    def key(self) -> Key:
        """Setting and job."""
        return self.setting, self.job_id

    def outcome(self, result: Result, remark: str = "") -> Outcome:
        """Say what became of it."""
        action = "Reorder" if self.setting is JobSetting.ORDER else "SoftLimit"
        return Outcome(
            action=action, setting=self.setting, job_id=self.job_id, result=result, reason=self.reason, remark=remark
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChanges:
    """All that a service asked for in one cycle.

    Attributes
    ----------
    partitions : frozenset of str
        Those it gave an order for: a job there that it does not name is neutral.
    soft_limits : bool
        Whether it gave any soft limit.
    """

    changes: tuple[JobChange, ...]
    partitions: frozenset[str] = frozenset()
    soft_limits: bool = False


def to_changes(actions: Sequence[Action]) -> RequestedChanges:
    """Take the actions of a service apart.

    A ``Revert`` is the change that nothing stands, which is what a job has that is not named.

    Raises
    ------
    TypeError
        Something is not an action.
    """
    changes = [change for action in actions for change in _changes(action)]
    restores = [action for action in actions if isinstance(action, Revert)]
    return RequestedChanges(
        changes=tuple(change for change in changes if not any(_covers(restore, change) for restore in restores)),
        partitions=frozenset(action.partition for action in actions if isinstance(action, Reorder)),
        soft_limits=any(isinstance(action, SoftLimit) for action in actions),
    )


def to_actions(changes: Sequence[JobChange]) -> list[JobAction]:
    """Put wishes together again: an order for each partition, then the soft limits.

    Wishes of equal urgency stay as they are given.
    """
    orders = [change for change in changes if change.setting is JobSetting.ORDER]
    limits = [change for change in changes if change.setting is JobSetting.SOFT_LIMIT]
    by_partition = groupby(
        sorted(orders, key=lambda change: (change.partition, -change.value)), lambda change: change.partition
    )
    return [*(_reorder(partition, list(named)) for partition, named in by_partition), *map(_soft_limit, limits)]


def _changes(action: Action) -> list[JobChange]:
    if isinstance(action, Reorder):
        return [_place_change(action, place) for place in action.order]
    if isinstance(action, SoftLimit):
        return [_limit_change(action)]
    if isinstance(action, Revert):
        return []
    raise TypeError(f"{type(action).__name__} is not an action on a job; there are Reorder, SoftLimit and Revert")


def _place_change(order: Reorder, place: Place) -> JobChange:
    return JobChange(
        setting=JobSetting.ORDER,
        job_id=place.job_id,
        value=place.urgency,
        reason=place.reason,
        partition=order.partition,
        why_partition=order.reason,
    )


def _limit_change(limit: SoftLimit) -> JobChange:
    return JobChange(
        setting=JobSetting.SOFT_LIMIT, job_id=limit.job_id, value=limit.run_time.total_seconds(), reason=limit.reason
    )


def _covers(restore: Revert, change: JobChange) -> bool:
    setting_fits = restore.setting is None or restore.setting is change.setting
    return setting_fits and (restore.job_ids is None or change.job_id in restore.job_ids)


def _reorder(partition: str, named: list[JobChange]) -> Reorder:
    order = tuple(Place(job_id=change.job_id, urgency=change.value, reason=change.reason) for change in named)
    return Reorder(partition=partition, order=order, reason=named[0].why_partition)


def _soft_limit(change: JobChange) -> SoftLimit:
    return SoftLimit(job_id=change.job_id, run_time=timedelta(seconds=change.value), reason=change.reason)
