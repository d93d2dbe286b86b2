"""The door to nodes in memory: a cluster that behaves, with hands on every knob a test needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helios.actions import (
    FillFirst,
    KeepAwake,
    NodeAction,
    NodeLever,
    NodeOutcome,
    PowerDown,
    PowerUp,
    RestoreNodes,
    Result,
)
from helios.errors import ClusterUnavailable
from helios.hostlist import expand, fold
from helios.model import NodePower, PowerSettings, Snapshot
from helios.testing.builders import a_snapshot
from helios.testing.cluster import Crash
from helios.testing.powered import PoweredNode, PoweredNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDownSeen:
    """A node as it was when the door was told to power it down.

    Attributes
    ----------
    on_their_way : int
        Nodes falling asleep or waking, this one not yet among them.
    """

    node: str
    busy: bool
    drained: bool
    kept_awake: bool
    on_their_way: int


class FakeNodes(PoweredNodes):
    """A :class:`helios.ports.NodeCluster` in memory; jobs hold whole nodes.

    Parameters
    ----------
    name : str
        The cluster's name.
    now : datetime
        What its clock shows; :meth:`tick` moves it.
    nodes : sequence of rows, optional
        As :func:`~helios.testing.a_node` gives them, idle since a day before unless they say otherwise; None: one.
        Their weights are those of the configuration file.
    suspend_time_s, suspend_timeout_s, resume_timeout_s : float
        As in ``slurm.conf``, s; a ``suspend_time_s`` of inf switches power saving off.
    boot_s : float
        How long a node takes to wake, s; one that takes longer than ``resume_timeout_s`` goes down.
    keep_awake : str
        The site's own keep-awake list, in its configuration file.
    can_keep_awake : bool
        Whether the list can be changed live.
    why_not : str
        Why nodes cannot be put to sleep here; empty: they can.
    lax : bool
        Whether the door lets everything pass to Slurm, so that only control's own guards stand in the way.

    Attributes
    ----------
    writes : int
        How many writes reached a node or the list.
    looks : int
        How many snapshots were taken.
    steered : list of tuple of NodeAction
        What each ``steer`` was given.
    power_downs : list of PowerDownSeen
        Each node that Slurm was told to power down through the door.
    """

    def __init__(self, *, can_keep_awake: bool = True, why_not: str = "", lax: bool = False, **slurm: Any) -> None:
        super().__init__(**slurm)
        self.can_keep_awake, self.why_not, self.lax = can_keep_awake, why_not, lax
        self.writes = self.looks = 0
        self.steered: list[tuple[NodeAction, ...]] = []
        self.power_downs: list[PowerDownSeen] = []
        self._unavailable = self._swallowed = 0
        self._refused: dict[str, str] = {}
        self._crash_after: int | None = None

    # What goes wrong.

    def fail_wakes(self, *nodes: str, fails: bool = True) -> None:
        """Let these nodes not come when they are told to wake."""
        for name in nodes:
            self._nodes[name].wakes_fail = fails

    def fail_next(self, *, times: int = 1) -> None:
        """Answer the next ``times`` calls of ``snapshot`` or ``steer`` with ``ClusterUnavailable``."""
        self._unavailable = times

    def swallow_writes(self, *, times: int = 1) -> None:
        """Accept the next ``times`` writes and change nothing."""
        self._swallowed = times

    def refuse_writes(self, node: str, *, answer: str = "Invalid user id") -> None:
        """Answer every write to this node with ``answer``; an empty text makes it well again."""
        self._refused[node] = answer

    def crash_after(self, *, writes: int | None) -> None:
        """Raise :class:`Crash` in ``steer`` when ``writes`` more writes were made, once; None: not any more."""
        self._crash_after = writes

    # The socket.

    def snapshot(self) -> Snapshot:
        """Look."""
        self._answer()
        self.looks += 1
        kept = self._kept()
        return a_snapshot(
            pending=[row for job, row in self._jobs.items() if job not in self._held],
            running=[row for job, row in self._jobs.items() if job in self._held],
            nodes=[self._seen(node, kept) for node in self._nodes.values()],
            taken_at=self.now,
            cluster=self.name,
            power=PowerSettings(
                suspend_time_s=self.suspend_time_s,
                suspend_timeout_s=self.suspend_timeout_s,
                resume_timeout_s=self.resume_timeout_s,
                keep_awake=self.keep_awake,
                can_sleep=not self.why_not,
                can_keep_awake=self.can_keep_awake,
                why_not=self.why_not,
            ),
        )

    def steer(self, actions: Sequence[NodeAction]) -> list[NodeOutcome]:
        """Act, read back, and say what became of each node."""
        self._answer()
        self.steered.append(tuple(actions))
        return [outcome for action in actions for outcome in self._carried_out(action)]

    def _carried_out(self, action: NodeAction) -> list[NodeOutcome]:
        if isinstance(action, PowerDown):
            return [self._sleep(action)]
        if isinstance(action, PowerUp):
            return [self._wake(action.node, action=action, reason=action.reason)]
        if isinstance(action, KeepAwake):
            own = self.keep_awake if action.own is None else action.own
            return [self._list(fold([*expand(own), *action.nodes]), action=action, reason=action.reason)]
        if isinstance(action, FillFirst):
            return self._fill(action)
        return [self._restored(action, node, own) for node, own in action.own]

    def _sleep(self, action: PowerDown) -> NodeOutcome:
        change = _Change(action=action, lever=NodeLever.POWER, node=action.node, reason=action.reason)
        node = self._nodes.get(action.node)
        if node is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before = self._worded(node)
        if self.power_of(action.node) in {NodePower.ASLEEP, NodePower.FALLING_ASLEEP}:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        idle = node.power is NodePower.AWAKE and not node.jobs and not node.down
        if not self.lax and (not idle or self._hands_off(node)):
            return change.outcome(Result.REFUSED, before=before, remark=self._hands_off(node) or "it is not idle")
        if answer := self._written(action.node):
            return change.outcome(Result.FAILED, before=before, remark=answer)
        if not self._swallows():
            self.power_downs.append(self._seen_to_sleep(node))
            self._power_down(node)
        return change.judged(
            self.power_of(action.node) is NodePower.FALLING_ASLEEP, before=before, after=self._worded(node)
        )

    def _seen_to_sleep(self, node: PoweredNode) -> PowerDownSeen:
        return PowerDownSeen(
            node=node.name,
            busy=bool(node.jobs),
            drained=bool(node.drained or node.down),
            kept_awake=node.name in self._kept(),
            on_their_way=len(self.in_state(NodePower.FALLING_ASLEEP)) + len(self.in_state(NodePower.WAKING)),
        )

    def _wake(self, name: str, *, action: NodeAction, reason: str) -> NodeOutcome:
        change = _Change(action=action, lever=NodeLever.POWER, node=name, reason=reason)
        node = self._nodes.get(name)
        if node is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before, power = self._worded(node), self.power_of(name)
        if power in {NodePower.AWAKE, NodePower.WAKING}:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        if power is NodePower.FALLING_ASLEEP:
            return change.outcome(Result.POSTPONED, before=before, remark="falling asleep: it cannot be called back")
        if power is None or node.drained:
            return change.outcome(Result.REFUSED, before=before, remark=f"it is {self._hands_off(node)}")
        if answer := self._written(name):
            return change.outcome(Result.FAILED, before=before, remark=answer)
        if not self._swallows():
            self._power_up(node)
        return change.judged(node.power is NodePower.WAKING, before=before, after=self._worded(node))

    def _list(self, wanted: str, *, action: NodeAction, reason: str) -> NodeOutcome:
        change = _Change(action=action, lever=NodeLever.KEEP_AWAKE, node="", reason=reason)
        before = self.keep_awake
        if not self.can_keep_awake:
            return change.outcome(Result.REFUSED, before=_said(before), remark="SuspendExcNodes cannot be changed live")
        if expand(before) == expand(wanted):
            return change.outcome(Result.UNCHANGED, before=_said(before), after=_said(before))
        if answer := self._written(""):
            return change.outcome(Result.FAILED, before=_said(before), remark=answer)
        self.keep_awake = before if self._swallows() else wanted
        return change.judged(self.keep_awake == wanted, before=_said(before), after=_said(self.keep_awake))

    def _fill(self, action: FillFirst) -> list[NodeOutcome]:
        remembered = dict(action.own)
        own = {name: remembered.get(name, node.weight) for name, node in self._nodes.items()}
        outcomes = []
        for place, tier in enumerate(action.tiers):
            for name in tier:
                heavier = min((weight for weight in own.values() if weight > own.get(name, 0)), default=math.inf)
                wanted = min(own.get(name, 0) + place, heavier - 1)
                outcomes.append(self._weigh(name, wanted, action=action, reason=action.reason))
        return outcomes

    def _weigh(self, name: str, wanted: float, *, action: NodeAction, reason: str) -> NodeOutcome:
        change = _Change(action=action, lever=NodeLever.WEIGHT, node=name, reason=reason)
        node = self._nodes.get(name)
        if node is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before = f"Weight {node.weight:.0f}"
        if node.weight == wanted:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        if answer := self._written(name):
            return change.outcome(Result.FAILED, before=before, remark=answer)
        node.weight = node.weight if self._swallows() else wanted
        return change.judged(node.weight == wanted, before=before, after=f"Weight {node.weight:.0f}")

    def _restored(self, action: RestoreNodes, name: str, own: str) -> NodeOutcome:
        if action.lever is NodeLever.POWER:
            return self._wake(name, action=action, reason=action.reason)
        if action.lever is NodeLever.WEIGHT:
            return self._weigh(name, float(own), action=action, reason=action.reason)
        return self._list(own, action=action, reason=action.reason)

    def _written(self, node: str) -> str:
        if refusal := self._refused.get(node, ""):
            return refusal
        if self._crash_after == 0:
            self._crash_after = None
            raise Crash("told to crash at this write")
        if self._crash_after is not None:
            self._crash_after -= 1
        self.writes += 1
        return ""

    def _swallows(self) -> bool:
        if self._swallowed <= 0:
            return False
        self._swallowed -= 1
        return True

    def _answer(self) -> None:
        if self._unavailable > 0:
            self._unavailable -= 1
            raise ClusterUnavailable(f"cluster {self.name} was told not to answer", remedy="Call it again.")


def _said(keep_awake: str) -> str:
    return f"SuspendExcNodes {keep_awake or '(null)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    action: NodeAction
    lever: NodeLever
    node: str
    reason: str

    def judged(self, as_asked: bool, *, before: str, after: str) -> NodeOutcome:
        return self.outcome(Result.DONE if as_asked else Result.MISMATCH, before=before, after=after)

    def outcome(self, result: Result, *, before: str = "", after: str = "", remark: str = "") -> NodeOutcome:
        return NodeOutcome(
            action=type(self.action).__name__,
            lever=self.lever,
            node=self.node,
            result=result,
            reason=self.reason,
            before=before,
            after=after,
            remark=remark,
        )
