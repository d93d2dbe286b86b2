"""Changes that services request, each of one setting of one target.

The actions of services become :class:`Change` objects. Control judges them, the audit log has them, and every cluster
takes them: a live Slurm, a simulated one and the fakes. How a cluster holds a requested value is its
:class:`ValueMapping`. A live Slurm, a simulated one and the fake go by the rules of :func:`check_change`. The simulator
whose urgencies are not SiteFactors has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar, overload

from helios import ownership
from helios.actions import (
    Action,
    JobSetting,
    KeepAwake,
    NodeOutcome,
    NodeSetting,
    Outcome,
    PowerDown,
    PowerUp,
    Reorder,
    Result,
    Revert,
    RevertNodes,
    SoftLimit,
    Yield,
)

Setting = JobSetting | NodeSetting
Key = tuple[Setting, str]
"""One setting of one target: a job by its id, or a node by its name."""

Value = TypeVar("Value", int, float)
"""Value of a setting as a cluster holds it."""
Desired = TypeVar("Desired", float, str)
"""Requested value of a setting, a number for a job and text for a node."""

EVERY = "*"
"""In place of a job's id in a revert: every pending job with a value that Helios has set."""
LIST: Key = (NodeSetting.KEEP_AWAKE, "")
"""Key of the keep-awake list, which belongs to the cluster and has no node's name."""
ASLEEP, AWAKE = "asleep", "awake"
"""Requested values of a node's power."""
NOTHING: Mapping[Setting, float] = {JobSetting.ORDER: 0.0, JobSetting.SOFT_LIMIT: math.nan}
"""Values of a job that Helios has not changed."""

GONE = "it is no longer pending"
INELIGIBLE = "it is not eligible yet: the cluster hides its SiteFactor, which an admin may have set"
HIDDEN = "the cluster hides what stands on it now"
"""Beginning of the remark about a value that is not reverted, as the cluster hides the current one."""
NO_RECORD = "it bears Helios' mark, and no record says that Helios wrote it"
"""Beginning of the remark about a value that is not reverted, as somebody else wrote it."""
CHANGED = "somebody changed it right before Helios was to write"
"""Beginning of the remark about a change that is not written, as the value is no longer the one it was decided on."""
TOO_LONG = "it is not below the time limit"
USERS_OWN = "the user set a --time-min"
SOFT_LIMIT_FLAG = "time_min_as_soft_limit"
"""Flag in ``SchedulerParameters`` that makes a TimeMin a soft limit."""
NO_SOFT_LIMITS = (
    f"SchedulerParameters lacks {SOFT_LIMIT_FLAG}: here a TimeMin would let Slurm shorten the job. "
    "Add the flag in slurm.conf (Slurm 23.11 or newer), then: scontrol reconfigure"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[Desired]):
    """One value for one setting of one target.

    Attributes
    ----------
    target : str
        Id of a job, or name of a node; empty for the keep-awake list, and ``EVERY`` in a revert of all jobs.
    value : float or str
        For a job an urgency or a soft limit in s, and ``NOTHING`` in a revert. For a node ``asleep`` or ``awake``; for
        the list the nodes to keep awake, sorted and joined by commas. In the revert of a weight or of the list, the
        site's own value.
    action : str
        Name of the action's class.
    partition : str
        Partition of the order, for a change of a job's order.
    own : str, optional
        The site's own keep-awake list, for a change of the list. None: the list read now is the site's own.
    unseen : bool
        Whether a revert is to be written where the cluster hides the current value and Helios has written one. A value
        that an administrator has written there since is lost, so only a person requests it.
    """

    setting: Setting
    target: str
    value: Desired
    reason: str
    action: str
    partition: str = ""
    own: str | None = None
    unseen: bool = False

    @property
    def key(self) -> Key:
        """Setting and target."""
        return self.setting, self.target

    @property
    def is_revert(self) -> bool:
        """Whether it takes back what Helios set."""
        return self.action in {Revert.__name__, RevertNodes.__name__}

    @overload
    def outcome(
        self: Change[float], result: Result, remark: str = "", *, before: str = "", after: str = ""
    ) -> Outcome: ...

    @overload
    def outcome(
        self: Change[str], result: Result, remark: str = "", *, before: str = "", after: str = ""
    ) -> NodeOutcome: ...

    def outcome(self, result: Result, remark: str = "", *, before: str = "", after: str = "") -> Outcome | NodeOutcome:
        """Return ``result`` as the outcome of this change."""
        fields: dict[str, Any] = {
            "action": self.action,
            "setting": self.setting,
            "result": result,
            "reason": self.reason,
            "before": before,
            "after": after,
            "remark": remark,
        }
        if isinstance(self.setting, JobSetting):
            return Outcome(job_id=self.target, **fields)
        return NodeOutcome(node=self.target, **fields)


def revert_job(setting: JobSetting, job_id: str = EVERY, *, reason: str, unseen: bool = False) -> Change[float]:
    """Return the change that reverts a setting of a job, or of all."""
    return Change(
        setting=setting, target=job_id, value=NOTHING[setting], reason=reason, action=Revert.__name__, unseen=unseen
    )


def revert_node(setting: NodeSetting, node: str, own: str, *, reason: str) -> Change[str]:
    """Return the change that reverts a node's setting or the keep-awake list.

    ``own`` is the site's own value; it has no meaning for a node's power.
    """
    value = AWAKE if setting is NodeSetting.POWER else own
    return Change(setting=setting, target=node, value=value, reason=reason, action=RevertNodes.__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueMapping(Generic[Value]):
    """Mapping from requested values to those that a cluster holds.

    Attributes
    ----------
    of_urgency, of_run_time : callable
        Return the value for an urgency, and for a soft limit.
    nothing : callable
        Returns the neutral value of a setting.
    words : callable
        Returns a value of a setting as text.
    """

    of_urgency: Callable[[float], Value]
    of_run_time: Callable[[timedelta], Value]
    nothing: Callable[[JobSetting], Value]
    words: Callable[[JobSetting, Value], str]

    def wanted(self, change: Change[float]) -> Value:
        """Return the requested value as the cluster holds it."""
        if change.is_revert:
            return self.nothing(JobSetting(change.setting))
        if change.setting is JobSetting.ORDER:
            return self.of_urgency(change.value)
        return self.of_run_time(timedelta(seconds=change.value))

    def outcome(
        self,
        change: Change[float],
        result: Result,
        *,
        before: Value | None = None,
        after: Value | None = None,
        remark: str = "",
    ) -> Outcome:
        """Return ``result`` as the outcome of a change, with values as text.

        None stands for a value that was not read.
        """
        setting = JobSetting(change.setting)
        return change.outcome(
            result,
            remark,
            before="" if before is None else self.words(setting, before),
            after="" if after is None else self.words(setting, after),
        )


def slurm_value_mapping(
    *, site_factor: Callable[[float], int], time_min: Callable[[timedelta], int] = ownership.time_min
) -> ValueMapping[int]:
    """Return the mapping to Slurm's own values.

    An urgency becomes a SiteFactor, and a soft limit a TimeMin in minutes. 0 stands for none.
    """
    return ValueMapping(
        of_urgency=site_factor,
        of_run_time=time_min,
        nothing=lambda _: 0,
        words=lambda setting, value: f"SiteFactor {value}" if setting is JobSetting.ORDER else f"TimeMin {value} min",
    )


def each_job(
    changes: Iterable[Change[float]],
    *,
    pending: Callable[[], Iterable[str]],
    is_set: Callable[[JobSetting, str], bool],
) -> Iterator[Change[float]]:
    """Yield changes of single jobs, reverts of all jobs last.

    Parameters
    ----------
    pending : callable
        Returns the ids of the pending jobs that Helios may have changed.
    is_set : callable
        Returns whether a setting of one of these jobs is to be reverted or reported.
    """
    of_all = []
    for change in changes:
        if change.target == EVERY:
            of_all.append(change)
        else:
            yield change
    for job_id in pending() if of_all else ():
        for change in of_all:
            if is_set(JobSetting(change.setting), job_id):
                yield replace(change, target=job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeContext:
    """State of a pending job of Slurm, for decisions about a change.

    Attributes
    ----------
    mapping : ValueMapping
        How the cluster holds a requested value.
    before : int, optional
        Current value of the setting; None where it cannot be read.
    is_set : bool
        Whether Helios has a record of setting this value.
    excluded_reason : str
        Why the job must be left alone; empty where it may be changed.
    soft_limits : bool
        Whether a TimeMin is a soft limit here. Otherwise it lets Slurm shorten the job.
    time_limit : int
        The job's time limit, min; 0 for none.
    hidden : int
        Value that Helios wrote where the current one cannot be read; 0 for none.
    hides_site_factor : bool
        Whether the cluster hides the job's SiteFactor. Then no setting of the job is written.
    suspect : str
        Why a value with Helios' mark is left unchanged; empty where it has no mark, or a record.
    """

    mapping: ValueMapping[int]
    before: int | None
    is_set: bool
    excluded_reason: str
    soft_limits: bool
    time_limit: int
    hidden: int = 0
    hides_site_factor: bool = False
    suspect: str = ""


def check_change(change: Change[float], context: ChangeContext) -> Outcome | None:
    """Return the outcome of a change that is not to be written.

    None: it is to be written.
    """
    if change.is_revert:
        return _outcome_of_revert(change, context)
    why, wanted, outcome = context.excluded_reason, context.mapping.wanted(change), context.mapping.outcome
    if not why and change.setting is JobSetting.SOFT_LIMIT:
        if not context.soft_limits:
            why = NO_SOFT_LIMITS
        elif context.before and not context.is_set:
            why = USERS_OWN
        elif context.time_limit and wanted >= context.time_limit:
            why = TOO_LONG
    if why:
        return outcome(change, Result.REFUSED, before=context.before, remark=why)
    if context.hides_site_factor:
        return outcome(change, Result.POSTPONED, remark=INELIGIBLE)
    if context.before == wanted:
        return outcome(change, Result.UNCHANGED, before=context.before, after=context.before)
    return None


def _outcome_of_revert(change: Change[float], context: ChangeContext) -> Outcome | None:
    if context.is_set:
        return None
    outcome = context.mapping.outcome
    if context.before is None and context.hidden:
        remark = f"Helios had written {context.mapping.words(JobSetting(change.setting), context.hidden)}"
        return None if change.unseen else outcome(change, Result.REFUSED, remark=f"{HIDDEN}; {remark}")
    if context.suspect:
        return outcome(change, Result.REFUSED, before=context.before, remark=context.suspect)
    if context.before and context.excluded_reason:
        return outcome(change, Result.REFUSED, before=context.before, remark=context.excluded_reason)
    return outcome(change, Result.UNCHANGED, before=context.before, after=context.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedChanges(Generic[Desired]):
    """All changes that a service requested in one cycle.

    Attributes
    ----------
    kinds : frozenset of str
        Names of the actions' classes, including actions without a target.
    partitions : frozenset of str
        Partitions with an order that is not partial. A job there that is not in the order is neutral.
    reverts : frozenset of Key
        The service's own changes on nodes that are to be reverted.
    yields : tuple of Yield
        Running jobs that are to yield, those to be asked first in front.
    """

    changes: tuple[Change[Desired], ...]
    kinds: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    reverts: frozenset[Key] = frozenset()
    yields: tuple[Yield, ...] = ()


def to_job_changes(actions: Sequence[Action]) -> RequestedChanges[float]:
    """Return the changes that actions on jobs request.

    A ``Revert`` removes a job's changes, so that the job is treated like one that is not in any action.

    Raises
    ------
    TypeError
        Something is not an action on a job.
    """
    changes: list[Change[float]] = []
    for action in actions:
        if isinstance(action, Reorder):
            changes += [
                Change(
                    setting=JobSetting.ORDER,
                    target=place.job_id,
                    value=place.urgency,
                    reason=place.reason,
                    action=Reorder.__name__,
                    partition=action.partition,
                )
                for place in action.order
            ]
        elif isinstance(action, SoftLimit):
            changes.append(
                Change(
                    setting=JobSetting.SOFT_LIMIT,
                    target=action.job_id,
                    value=action.run_time.total_seconds(),
                    reason=action.reason,
                    action=SoftLimit.__name__,
                )
            )
        elif not isinstance(action, Revert | Yield):
            raise TypeError(
                f"{type(action).__name__} is not an action on a job; there are Reorder, SoftLimit, Revert and Yield"
            )
    reverted = [(action.setting, action.job_ids) for action in actions if isinstance(action, Revert)]
    return RequestedChanges(
        changes=tuple(
            change
            for change in changes
            if not any(
                setting in {None, change.setting} and (job_ids is None or change.target in job_ids)
                for setting, job_ids in reverted
            )
        ),
        kinds=frozenset(type(action).__name__ for action in actions),
        partitions=frozenset(
            action.partition for action in actions if isinstance(action, Reorder) and not action.partial
        ),
        yields=tuple(action for action in actions if isinstance(action, Yield)),
    )


def to_node_changes(actions: Sequence[Action]) -> RequestedChanges[str]:
    """Return the changes that actions on nodes request.

    Raises
    ------
    TypeError
        Something is not an action on a node.
    """
    changes: list[Change[str]] = []
    reverts: set[Key] = set()
    for action in actions:
        kind = type(action).__name__
        values: list[tuple[NodeSetting, str, str, str]] = []  # setting, node, value, reason
        if isinstance(action, PowerDown):
            values = [(NodeSetting.POWER, action.node, ASLEEP, action.reason)]
        elif isinstance(action, PowerUp):
            values = [(NodeSetting.POWER, action.node, AWAKE, action.reason)]
        elif isinstance(action, KeepAwake):
            values = [(NodeSetting.KEEP_AWAKE, "", join_names(action.nodes), action.reason)]
        elif isinstance(action, RevertNodes):
            reverts |= {(action.setting, node) for node, _ in action.own}
        else:
            raise TypeError(
                f"{kind} is not an action on a node; there are PowerDown, PowerUp, KeepAwake and RevertNodes"
            )
        changes += [
            Change(setting=setting, target=node, value=value, reason=reason, action=kind)
            for setting, node, value, reason in values
        ]
    kinds = frozenset(type(action).__name__ for action in actions)
    return RequestedChanges(changes=tuple(changes), kinds=kinds, reverts=frozenset(reverts))


def sleeps(change: Change[str]) -> bool:
    """Return whether a change puts a node to sleep."""
    return change.setting is NodeSetting.POWER and change.value == ASLEEP


def nodes_named(text: str) -> tuple[str, ...]:
    """Return the nodes in the value of a keep-awake list."""
    return tuple(name for name in text.split(",") if name)


def join_names(nodes: Iterable[str]) -> str:
    """Return nodes as the value of a keep-awake list."""
    return ",".join(sorted(set(nodes)))
