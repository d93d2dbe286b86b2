"""The door to nodes in memory: a cluster that behaves, with hands on every knob a test needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from helios.actions import (
    FillFirst,
    KeepAwake,
    NodeAction,
    NodeOutcome,
    NodeSetting,
    PowerDown,
    PowerUp,
    Result,
    RevertNodes,
)
from helios.errors import ClusterUnavailable
from helios.model import NodePower, PowerSettings, Snapshot
from helios.model.hostlist import expand, fold
from helios.testing.builders import NOON, Row, a_node, a_pending_job, a_running_job, a_snapshot
from helios.testing.fake_cluster import Crash

# Nodes in memory that sleep and wake by Slurm's rules, and what users, time, admins and Slurm itself do to them.
#
# What Slurm does and does not mind was seen on running clusters: an explicit power-down ignores every exclusion and
# sticks to a busy node, a wake of a node that still falls asleep is ignored without a word, a job wakes nodes by
# itself, and a reconfiguration forgets weights and the keep-awake list.

FLAGS = {
    NodePower.FALLING_ASLEEP: "POWERING_DOWN",
    NodePower.ASLEEP: "POWERED_DOWN",
    NodePower.WAKING: "POWERING_UP",
}
GAVE_UP = "ResumeTimeout reached"


@dataclass(slots=True, kw_only=True)
class PoweredNode:
    """A node as Slurm keeps it."""

    row: Row
    weight: float
    power: NodePower = NodePower.AWAKE
    since: datetime
    jobs: set[str] = field(default_factory=set)
    told_to_sleep: bool = False  # while a job held it
    drained: str = ""
    down: str = ""
    wakes_fail: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.row["name"])

    @property
    def partitions(self) -> list[str]:
        """Its partitions."""
        return str(self.row["partitions"]).split(",")

    @property
    def usable(self) -> bool:
        """Whether a job may start on it, once it is awake."""
        return not (self.drained or self.down or self.jobs or self.told_to_sleep)


class PoweredNodes:
    """Nodes by Slurm's rules; see :class:`helios.testing.FakeNodes`, which adds the door and its failures."""

    def __init__(
        self,
        *,
        name: str = "venus",
        now: datetime = NOON,
        nodes: Sequence[Mapping[str, Any]] | None = None,
        suspend_time_s: float = 604_800.0,
        suspend_timeout_s: float = 60.0,
        resume_timeout_s: float = 600.0,
        boot_s: float = 120.0,
        keep_awake: str = "",
    ) -> None:
        self.name, self.now = name, now
        self.suspend_time_s, self.suspend_timeout_s = suspend_time_s, suspend_timeout_s
        self.resume_timeout_s, self.boot_s = resume_timeout_s, boot_s
        self.keep_awake = keep_awake
        self._own_keep_awake = keep_awake
        rows = [a_node()] if nodes is None else [dict(row) for row in nodes]
        yesterday = now - timedelta(days=1)
        self._nodes = {
            str(row["name"]): PoweredNode(
                row=row,
                weight=float(row["weight"]),
                power=NodePower(row["power"]),
                since=row.get("idle_since") or yesterday,
            )
            for row in rows
        }
        self._jobs: dict[str, Row] = {}
        self._held: dict[str, list[str]] = {}

    # What users and time do.

    def submit(self, *, nodes: int = 1, **overrides: Any) -> str:
        """Queue a job for whole nodes and return its id; it starts at once where it can, waking nodes if it must."""
        row = a_pending_job(**({"submitted_at": self.now, "reason": "Resources", "nodes": float(nodes)} | overrides))
        self._jobs[row["job_id"]] = row
        self._schedule()
        return str(row["job_id"])

    def end(self, job_id: str) -> None:
        """Let a job end, or be cancelled."""
        del self._jobs[job_id]
        for name in self._held.pop(job_id, []):
            self._free(self._nodes[name], job_id)
        self._schedule()

    def tick(self, passes: timedelta) -> None:
        """Let time pass: nodes fall asleep, come, or are given up, in the order in which that happens."""
        until = self.now + passes
        while (event := self._next()) is not None and event[0] <= until:
            self.now = max(self.now, event[0])
            event[1]()
            self._schedule()
        self.now = until

    # What an admin does.

    def drain(self, node: str, *, reason: str = "memory errors") -> None:
        """Drain a node; jobs on it go on, none starts."""
        self._nodes[node].drained = reason

    def take_down(self, node: str, *, reason: str = "being repaired") -> None:
        """Set a node down."""
        self._give_up(self._nodes[node], reason)

    def resume(self, node: str) -> None:
        """Return a drained node, or one that was down, to service, awake."""
        it = self._nodes[node]
        if it.down:
            it.power, it.since = NodePower.AWAKE, self.now
        it.drained = it.down = ""
        self._schedule()

    def admin_powers_down(self, node: str) -> None:
        """Power a node down past Helios."""
        self._power_down(self._nodes[node])

    def admin_powers_up(self, node: str) -> None:
        """Wake a node past Helios; one that still falls asleep ignores it."""
        self._power_up(self._nodes[node])

    def admin_sets_weight(self, node: str, weight: float) -> None:
        """Change a node's weight live, past Helios."""
        self._nodes[node].weight = float(weight)

    def admin_sets_keep_awake(self, text: str) -> None:
        """Change the keep-awake list live, past Helios."""
        self.keep_awake = text

    def reconfigure(self) -> None:
        """Read the configuration file again, or restart: weights and the keep-awake list are its own again."""
        self.keep_awake = self._own_keep_awake
        for node in self._nodes.values():
            node.weight = float(node.row["weight"])

    # What a test wants to know.

    def power_of(self, node: str) -> NodePower | None:
        """Return whether a node sleeps; None: it is down."""
        it = self._nodes[node]
        if it.down:
            return None
        return NodePower.FALLING_ASLEEP if it.told_to_sleep else it.power

    def weight_of(self, node: str) -> float:
        """Return a node's weight, whoever set it."""
        return self._nodes[node].weight

    def nodes_of(self, job_id: str) -> list[str]:
        """Return the nodes that a job holds; none: it is pending."""
        return self._held.get(job_id, [])

    def in_state(self, power: NodePower | None) -> list[str]:
        """Return the nodes in that state."""
        return [name for name in self._nodes if self.power_of(name) is power]

    # What Slurm does.

    def _power_down(self, node: PoweredNode) -> None:
        if math.isinf(self.suspend_time_s) or node.down or node.power is not NodePower.AWAKE:
            return
        if node.jobs:
            node.told_to_sleep = True
        else:
            node.power, node.since = NodePower.FALLING_ASLEEP, self.now

    def _power_up(self, node: PoweredNode) -> None:
        if node.power is NodePower.ASLEEP and not node.down:
            node.power, node.since = NodePower.WAKING, self.now

    def _free(self, node: PoweredNode, job_id: str) -> None:
        node.jobs.discard(job_id)
        if node.jobs or node.power is not NodePower.AWAKE:
            return
        node.since = self.now
        if node.told_to_sleep:
            node.told_to_sleep = False
            self._power_down(node)

    def _next(self) -> tuple[datetime, Callable[[], None]] | None:
        events = [event for node in self._nodes.values() if (event := self._event_of(node)) is not None]
        return min(events, key=lambda event: event[0], default=None)

    def _event_of(self, node: PoweredNode) -> tuple[datetime, Callable[[], None]] | None:
        if node.down:
            return None
        if node.power is NodePower.FALLING_ASLEEP:
            return node.since + timedelta(seconds=self.suspend_timeout_s), lambda: self._becomes(node, NodePower.ASLEEP)
        if node.power is NodePower.WAKING and not node.wakes_fail and self.boot_s <= self.resume_timeout_s:
            return node.since + timedelta(seconds=self.boot_s), lambda: self._becomes(node, NodePower.AWAKE)
        if node.power is NodePower.WAKING:
            return node.since + timedelta(seconds=self.resume_timeout_s), lambda: self._give_up(node, GAVE_UP)
        kept = math.isinf(self.suspend_time_s) or node.name in self._kept()
        if node.power is NodePower.ASLEEP or node.jobs or node.drained or kept:
            return None
        return node.since + timedelta(seconds=self.suspend_time_s), lambda: self._power_down(node)

    def _becomes(self, node: PoweredNode, power: NodePower) -> None:
        node.power, node.since = power, self.now

    def _give_up(self, node: PoweredNode, reason: str) -> None:
        node.down = reason
        for job_id in sorted(node.jobs):
            for name in self._held.pop(job_id):
                self._free(self._nodes[name], job_id)
            row = self._jobs[job_id]
            requeued = {"state": "PENDING", "reason": "Resources", "started_at": None, "node_list": None}
            self._jobs[job_id] = row | requeued | {"restart": row.get("restart", 0) + 1}

    def _schedule(self) -> None:
        for job_id, row in list(self._jobs.items()):
            if job_id in self._held or not row["priority"]:
                continue
            chosen = self._free_for(row)[: int(row["nodes"])]
            if len(chosen) < int(row["nodes"]):
                continue
            for node in chosen:
                node.jobs.add(job_id)
                self._power_up(node)
            names = [node.name for node in chosen]
            self._held[job_id] = names
            started = {"state": "RUNNING", "reason": "None", "started_at": self.now, "node_list": fold(names)}
            self._jobs[job_id] = a_running_job(**(row | started))

    def _free_for(self, row: Row) -> list[PoweredNode]:
        partitions = set(str(row["partition"]).split(","))
        free = [
            node
            for node in self._nodes.values()
            if node.usable and node.power is not NodePower.FALLING_ASLEEP and partitions & set(node.partitions)
        ]
        return sorted(free, key=lambda node: (node.power is not NodePower.AWAKE, node.weight, node.name))

    # What is seen.

    def _kept(self) -> frozenset[str]:
        return frozenset(expand(self.keep_awake))

    def _excluded_reason(self, node: PoweredNode) -> str:
        if node.drained:
            return f"drained: {node.drained}"
        return f"down: {node.down}" if node.down else str(node.row.get("excluded_reason") or "")

    def _seen(self, node: PoweredNode, kept: frozenset[str]) -> Row:
        power, idle = self.power_of(node.name), node.power is NodePower.AWAKE and not node.jobs
        flags = [FLAGS.get(power, "") if power else "", "DRAIN" if node.drained else "", node.row.get("flags") or ""]
        state = "DOWN" if node.down else "ALLOCATED" if node.jobs else node.row["state"]
        held = {"cpus_held": node.row["cpus"], "gpus_held": node.row["gpus"]} if node.jobs else {}
        return node.row | {
            "state": state,
            "power": None if power is None else str(power),
            "flags": "+".join(flag for flag in flags if flag) or None,
            "excluded_reason": self._excluded_reason(node) or None,
            "kept_awake": int(node.name in kept),
            "weight": node.weight,
            "idle_since": node.since if idle and not node.down else None,
            "reason": node.down or node.drained or None,
            **held,
        }

    def _worded(self, node: PoweredNode) -> str:
        row = self._seen(node, frozenset())
        return "+".join(part for part in (row["state"], row["flags"]) if part)


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
        change = _Change(action=action, setting=NodeSetting.POWER, node=action.node, reason=action.reason)
        node = self._nodes.get(action.node)
        if node is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before = self._worded(node)
        if self.power_of(action.node) in {NodePower.ASLEEP, NodePower.FALLING_ASLEEP}:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        idle = node.power is NodePower.AWAKE and not node.jobs and not node.down
        if not self.lax and (not idle or self._excluded_reason(node)):
            return change.outcome(Result.REFUSED, before=before, remark=self._excluded_reason(node) or "it is not idle")
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
        change = _Change(action=action, setting=NodeSetting.POWER, node=name, reason=reason)
        node = self._nodes.get(name)
        if node is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before, power = self._worded(node), self.power_of(name)
        if power in {NodePower.AWAKE, NodePower.WAKING}:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        if power is NodePower.FALLING_ASLEEP:
            return change.outcome(Result.POSTPONED, before=before, remark="falling asleep: it cannot be called back")
        if power is None or node.drained:
            return change.outcome(Result.REFUSED, before=before, remark=f"it is {self._excluded_reason(node)}")
        if answer := self._written(name):
            return change.outcome(Result.FAILED, before=before, remark=answer)
        if not self._swallows():
            self._power_up(node)
        return change.judged(node.power is NodePower.WAKING, before=before, after=self._worded(node))

    def _list(self, wanted: str, *, action: NodeAction, reason: str) -> NodeOutcome:
        change = _Change(action=action, setting=NodeSetting.KEEP_AWAKE, node="", reason=reason)
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
        change = _Change(action=action, setting=NodeSetting.WEIGHT, node=name, reason=reason)
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

    def _restored(self, action: RevertNodes, name: str, own: str) -> NodeOutcome:
        if action.setting is NodeSetting.POWER:
            return self._wake(name, action=action, reason=action.reason)
        if action.setting is NodeSetting.WEIGHT:
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
            raise ClusterUnavailable(f"cluster {self.name} was told not to answer", hint="Call it again.")


def _said(keep_awake: str) -> str:
    return f"SuspendExcNodes {keep_awake or '(null)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    action: NodeAction
    setting: NodeSetting
    node: str
    reason: str

    def judged(self, as_asked: bool, *, before: str, after: str) -> NodeOutcome:
        return self.outcome(Result.DONE if as_asked else Result.MISMATCH, before=before, after=after)

    def outcome(self, result: Result, *, before: str = "", after: str = "", remark: str = "") -> NodeOutcome:
        return NodeOutcome(
            action=type(self.action).__name__,
            setting=self.setting,
            node=self.node,
            result=result,
            reason=self.reason,
            before=before,
            after=after,
            remark=remark,
        )
