"""Fake nodes in memory that follow Slurm's power saving rules.

These rules of Slurm were observed on running clusters: an explicit power-down ignores every exclusion and, on a busy
node, takes effect once its jobs have ended; a power-up of a node that is still falling asleep is ignored silently; a
job wakes the nodes that it needs; and a reconfiguration resets weights and the keep-awake list to the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from helios.actions import NodeOutcome, NodeSetting, Result
from helios.changes import ASLEEP, Change, nodes_named
from helios.model import NodePower, PowerSettings, Snapshot
from helios.model.nodes import expand, fold
from helios.testing.builders import NOON, Row, a_node, a_pending_job, a_running_job, a_snapshot
from helios.testing.fake_cluster import Faults

FLAGS = {
    NodePower.FALLING_ASLEEP: "POWERING_DOWN",
    NodePower.ASLEEP: "POWERED_DOWN",
    NodePower.WAKING: "POWERING_UP",
}
GAVE_UP = "ResumeTimeout reached"


@dataclass(slots=True, kw_only=True)
class PoweredNode:
    """State of one node as Slurm keeps it."""

    row: Row
    weight: float
    power: NodePower = NodePower.AWAKE
    since: datetime
    jobs: set[str] = field(default_factory=set)
    sleeps_after_jobs: bool = False  # whether it was powered down while a job held it
    drained: str = ""
    down: str = ""
    wakes_fail: bool = False

    @property
    def name(self) -> str:
        """Name of the node."""
        return str(self.row["name"])

    @property
    def partitions(self) -> list[str]:
        """Names of its partitions."""
        return str(self.row["partitions"]).split(",")

    @property
    def usable(self) -> bool:
        """Whether a job may start on it, once awake."""
        return not (self.drained or self.down or self.jobs or self.sleeps_after_jobs)


class PoweredNodes:
    """Fake nodes that sleep and wake by Slurm's rules.

    :class:`helios.testing.FakeNodes` adds the interface of :class:`helios.ports.NodeCluster`, and failures. The
    parameters are described there.
    """

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
        a_day_ago = now - timedelta(days=1)
        self._nodes = {
            str(row["name"]): PoweredNode(
                row=row,
                weight=float(row["weight"]),
                power=NodePower(row["power"]),
                since=row.get("idle_since") or a_day_ago,
            )
            for row in rows
        }
        self._jobs: dict[str, Row] = {}
        self._nodes_by_job: dict[str, list[str]] = {}

    # Events by users and by time.

    def submit(self, *, nodes: int = 1, **overrides: Any) -> str:
        """Queue a job for whole nodes and return its id.

        It starts at once if enough nodes are free, and wakes them if they sleep.

        Parameters
        ----------
        nodes : int
            Nodes that the job needs.
        **overrides
            Columns of ``QUEUE``, as in :func:`~helios.testing.a_pending_job`.
        """
        row = a_pending_job(**({"submitted_at": self.now, "reason": "Resources", "nodes": float(nodes)} | overrides))
        self._jobs[row["job_id"]] = row
        self._schedule()
        return str(row["job_id"])

    def end(self, job_id: str) -> None:
        """End or cancel a job.

        Jobs that wait for its nodes may start then.
        """
        del self._jobs[job_id]
        for name in self._nodes_by_job.pop(job_id, []):
            self._free(self._nodes[name], job_id)
        self._schedule()

    def tick(self, passes: timedelta) -> None:
        """Advance the clock by ``passes``.

        In that time nodes fall asleep, wake, or go down because they do not wake, in the order of these events.
        """
        until = self.now + passes
        while (event := self._next_event()) is not None and event[0] <= until:
            self.now = max(self.now, event[0])
            event[1]()
            self._schedule()
        self.now = until

    # Actions of an admin.

    def drain(self, node: str, *, reason: str = "memory errors") -> None:
        """Drain a node.

        Its jobs continue, and no new job starts on it.
        """
        self._nodes[node].drained = reason

    def take_down(self, node: str, *, reason: str = "being repaired") -> None:
        """Set a node down.

        Its jobs are requeued.
        """
        self._give_up(self._nodes[node], reason)

    def resume(self, node: str) -> None:
        """Return a drained or down node to service.

        A node that was down is awake then.
        """
        state = self._nodes[node]
        if state.down:
            state.power, state.since = NodePower.AWAKE, self.now
        state.drained = state.down = ""
        self._schedule()

    def admin_powers_down(self, node: str) -> None:
        """Power a node down as an admin.

        On a node with jobs this takes effect once they have ended.
        """
        self._power_down(self._nodes[node])

    def admin_powers_up(self, node: str) -> None:
        """Power a node up as an admin.

        A node that is still falling asleep ignores it.
        """
        self._power_up(self._nodes[node])

    def admin_sets_weight(self, node: str, weight: float) -> None:
        """Change a node's weight in the running configuration, as an admin."""
        self._nodes[node].weight = float(weight)

    def admin_sets_keep_awake(self, text: str) -> None:
        """Change the keep-awake list in the running configuration, as an admin."""
        self.keep_awake = text

    def reconfigure(self) -> None:
        """Reset weights and the keep-awake list to the configuration files.

        Slurm does this when it reconfigures or restarts.
        """
        self.keep_awake = self._own_keep_awake
        for node in self._nodes.values():
            node.weight = float(node.row["weight"])

    # Queries for tests.

    def power_of(self, node: str) -> NodePower | None:
        """Return the power state of a node, or None if it is down.

        A node with jobs that was powered down counts as falling asleep.
        """
        state = self._nodes[node]
        if state.down:
            return None
        return NodePower.FALLING_ASLEEP if state.sleeps_after_jobs else state.power

    def weight_of(self, node: str) -> float:
        """Return a node's weight, whoever set it."""
        return self._nodes[node].weight

    def nodes_of(self, job_id: str) -> list[str]:
        """Return the nodes that a job holds, none if it is pending."""
        return self._nodes_by_job.get(job_id, [])

    def in_state(self, power: NodePower | None) -> list[str]:
        """Return the nodes in a power state, None for down."""
        return [name for name in self._nodes if self.power_of(name) is power]

    # Slurm's rules.

    def _power_down(self, node: PoweredNode) -> None:
        if math.isinf(self.suspend_time_s) or node.down or node.power is not NodePower.AWAKE:
            return
        if node.jobs:
            node.sleeps_after_jobs = True
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
        if node.sleeps_after_jobs:
            node.sleeps_after_jobs = False
            self._power_down(node)

    def _next_event(self) -> tuple[datetime, Callable[[], None]] | None:
        events = [event for node in self._nodes.values() if (event := self._node_event(node)) is not None]
        return min(events, key=lambda event: event[0], default=None)

    def _node_event(self, node: PoweredNode) -> tuple[datetime, Callable[[], None]] | None:
        if node.down:
            return None
        if node.power is NodePower.FALLING_ASLEEP:
            return node.since + timedelta(seconds=self.suspend_timeout_s), lambda: self._set_power(
                node, NodePower.ASLEEP
            )
        if node.power is NodePower.WAKING and not node.wakes_fail and self.boot_s <= self.resume_timeout_s:
            return node.since + timedelta(seconds=self.boot_s), lambda: self._set_power(node, NodePower.AWAKE)
        if node.power is NodePower.WAKING:
            return node.since + timedelta(seconds=self.resume_timeout_s), lambda: self._give_up(node, GAVE_UP)
        kept = math.isinf(self.suspend_time_s) or node.name in self._kept_awake()
        if node.power is NodePower.ASLEEP or node.jobs or node.drained or kept:
            return None
        return node.since + timedelta(seconds=self.suspend_time_s), lambda: self._power_down(node)

    def _set_power(self, node: PoweredNode, power: NodePower) -> None:
        node.power, node.since = power, self.now

    def _give_up(self, node: PoweredNode, reason: str) -> None:
        node.down = reason
        for job_id in sorted(node.jobs):
            for name in self._nodes_by_job.pop(job_id):
                self._free(self._nodes[name], job_id)
            row = self._jobs[job_id]
            requeued = {"state": "PENDING", "reason": "Resources", "started_at": None, "node_list": None}
            self._jobs[job_id] = row | requeued | {"restart": row.get("restart", 0) + 1}

    def _schedule(self) -> None:
        for job_id, row in list(self._jobs.items()):
            if job_id in self._nodes_by_job or not row["priority"]:
                continue
            chosen = self._usable_nodes(row)[: int(row["nodes"])]
            if len(chosen) < int(row["nodes"]):
                continue
            for node in chosen:
                node.jobs.add(job_id)
                self._power_up(node)
            names = [node.name for node in chosen]
            self._nodes_by_job[job_id] = names
            started = {"state": "RUNNING", "reason": "None", "started_at": self.now, "node_list": fold(names)}
            self._jobs[job_id] = a_running_job(**(row | started))

    def _usable_nodes(self, row: Row) -> list[PoweredNode]:
        partitions = set(str(row["partition"]).split(","))
        free = [
            node
            for node in self._nodes.values()
            if node.usable and node.power is not NodePower.FALLING_ASLEEP and partitions & set(node.partitions)
        ]
        return sorted(free, key=lambda node: (node.power is not NodePower.AWAKE, node.weight, node.name))

    # Rows of the snapshot.

    def _kept_awake(self) -> frozenset[str]:
        return frozenset(expand(self.keep_awake))

    def _excluded_reason(self, node: PoweredNode) -> str:
        if node.drained:
            return f"drained: {node.drained}"
        return f"down: {node.down}" if node.down else str(node.row.get("excluded_reason") or "")

    def _row(self, node: PoweredNode, kept: frozenset[str]) -> Row:
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

    def _describe(self, node: PoweredNode) -> str:
        row = self._row(node, frozenset())
        return "+".join(part for part in (row["state"], row["flags"]) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDownSeen:
    """A node's state when it was powered down through ``FakeNodes.steer``.

    Attributes
    ----------
    node : str
        Name of the node.
    busy : bool
        Whether it had jobs.
    drained : bool
        Whether it was drained or down.
    kept_awake : bool
        Whether it was in the keep-awake list.
    on_their_way : int
        Nodes that were falling asleep or waking, without this one.
    """

    node: str
    busy: bool
    drained: bool
    kept_awake: bool
    on_their_way: int


class FakeNodes(PoweredNodes, Faults):
    """Fake ``NodeCluster`` in memory, where jobs hold whole nodes.

    Parameters
    ----------
    name : str
        Name of the cluster.
    now : datetime
        Time of its clock, which only :meth:`tick` moves.
    nodes : sequence of rows, optional
        As :func:`~helios.testing.a_node` returns them. Without ``idle_since`` they are idle since a day before ``now``.
        Their weights are those of the configuration file. None means one ordinary node.
    suspend_time_s, suspend_timeout_s, resume_timeout_s : float
        As in ``slurm.conf``, s. A ``suspend_time_s`` of inf disables power saving.
    boot_s : float
        How long a node takes to wake, s. If that is longer than ``resume_timeout_s``, it goes down.
    keep_awake : str
        The site's keep-awake list in the configuration file.
    can_keep_awake : bool
        Whether the list can be changed without a reconfiguration.
    why_not : str
        Why nodes cannot be put to sleep here; empty if they can.
    lax : bool
        Whether :meth:`steer` powers a node down even if it is not idle or is excluded. Then only the guards of the
        control cycle prevent it.

    Attributes
    ----------
    writes : int
        Number of writes that reached a node or the list.
    looks : int
        Number of snapshots taken.
    steered : list of tuple of Change
        The changes of each :meth:`steer`.
    power_downs : list of PowerDownSeen
        State of each node that :meth:`steer` powered down, at that time.
    """

    def __init__(self, *, can_keep_awake: bool = True, why_not: str = "", lax: bool = False, **slurm: Any) -> None:
        PoweredNodes.__init__(self, **slurm)
        Faults.__init__(self)
        self.can_keep_awake, self.why_not, self.lax = can_keep_awake, why_not, lax
        self.looks = 0
        self.steered: list[tuple[Change[str], ...]] = []
        self.power_downs: list[PowerDownSeen] = []

    # Failures.

    def fail_wakes(self, *nodes: str, fails: bool = True) -> None:
        """Let these nodes fail to wake, or let them wake again.

        A node that fails to wake goes down after ``resume_timeout_s``.
        """
        for name in nodes:
            self._nodes[name].wakes_fail = fails

    def refuse_writes(self, node: str, *, answer: str = "Invalid user id") -> None:
        """Fail every write to this node with the message ``answer``.

        An empty ``answer`` ends the failure. The node ``""`` is the keep-awake list.
        """
        self._refused[node] = answer

    # Methods of helios.ports.NodeCluster.

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the nodes and the jobs.

        Raises
        ------
        ClusterUnavailable
            :meth:`fail_next` asked for it.
        """
        self._answer()
        self.looks += 1
        kept = self._kept_awake()
        return a_snapshot(
            pending=[row for job, row in self._jobs.items() if job not in self._nodes_by_job],
            running=[row for job, row in self._jobs.items() if job in self._nodes_by_job],
            nodes=[self._row(node, kept) for node in self._nodes.values()],
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

    def steer(self, changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        """Apply ``changes`` and return their outcomes.

        Raises
        ------
        ClusterUnavailable
            :meth:`fail_next` asked for it.
        Crash
            :meth:`crash_after` asked for it.
        """
        self._answer()
        self.steered.append(tuple(changes))
        return [self._apply(change) for change in changes]

    def _apply(self, change: Change[str]) -> NodeOutcome:
        if change.setting is NodeSetting.WEIGHT:
            return self._set_weight(change, float(change.value))
        if change.setting is NodeSetting.KEEP_AWAKE:
            own = self.keep_awake if change.own is None else change.own
            wanted = change.value if change.is_revert else fold([*expand(own), *nodes_named(change.value)])
            return self._set_keep_awake(change, wanted)
        return self._sleep(change) if change.value == ASLEEP else self._wake(change)

    def _sleep(self, change: Change[str]) -> NodeOutcome:
        if (node := self._nodes.get(change.target)) is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before = self._describe(node)
        if self.power_of(node.name) in {NodePower.ASLEEP, NodePower.FALLING_ASLEEP}:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        idle = node.power is NodePower.AWAKE and not node.jobs and not node.down
        if not self.lax and (not idle or self._excluded_reason(node)):
            return change.outcome(Result.REFUSED, before=before, remark=self._excluded_reason(node) or "it is not idle")

        def power_down() -> None:
            on_their_way = len(self.in_state(NodePower.FALLING_ASLEEP)) + len(self.in_state(NodePower.WAKING))
            observation = PowerDownSeen(
                node=node.name,
                busy=bool(node.jobs),
                drained=bool(node.drained or node.down),
                kept_awake=node.name in self._kept_awake(),
                on_their_way=on_their_way,
            )
            self.power_downs.append(observation)
            self._power_down(node)

        def falls_asleep() -> bool:
            return self.power_of(node.name) is NodePower.FALLING_ASLEEP

        return self._write(change, lambda: self._describe(node), power_down, falls_asleep)

    def _wake(self, change: Change[str]) -> NodeOutcome:
        if (node := self._nodes.get(change.target)) is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before, power = self._describe(node), self.power_of(node.name)
        if power in {NodePower.AWAKE, NodePower.WAKING}:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        if power is NodePower.FALLING_ASLEEP:
            return change.outcome(Result.POSTPONED, before=before, remark="falling asleep: it cannot be called back")
        if power is None or node.drained:
            return change.outcome(Result.REFUSED, before=before, remark=f"it is {self._excluded_reason(node)}")
        return self._write(
            change,
            lambda: self._describe(node),
            lambda: self._power_up(node),
            lambda: node.power is NodePower.WAKING,
        )

    def _set_keep_awake(self, change: Change[str], wanted: str) -> NodeOutcome:
        before = self._keep_awake_text()
        if not self.can_keep_awake:
            return change.outcome(Result.REFUSED, before=before, remark="SuspendExcNodes cannot be changed live")
        if expand(self.keep_awake) == expand(wanted):
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        return self._write(
            change,
            self._keep_awake_text,
            lambda: self.admin_sets_keep_awake(wanted),
            lambda: self.keep_awake == wanted,
        )

    def _set_weight(self, change: Change[str], wanted: float) -> NodeOutcome:
        if (node := self._nodes.get(change.target)) is None:
            return change.outcome(Result.REFUSED, remark="no such node")
        before = f"Weight {node.weight:.0f}"
        if node.weight == wanted:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        return self._write(
            change,
            lambda: f"Weight {node.weight:.0f}",
            lambda: self.admin_sets_weight(node.name, wanted),
            lambda: node.weight == wanted,
        )

    def _write(
        self, change: Change[str], read: Callable[[], str], write: Callable[[], None], is_done: Callable[[], bool]
    ) -> NodeOutcome:
        """Write a change, unless a failure is simulated."""
        before = read()
        if refusal := self._refusal(change.target):
            return change.outcome(Result.FAILED, before=before, remark=refusal)
        if not self._is_swallowed():
            write()
        return change.outcome(Result.DONE if is_done() else Result.MISMATCH, before=before, after=read())

    def _keep_awake_text(self) -> str:
        return f"SuspendExcNodes {self.keep_awake or '(null)'}"
