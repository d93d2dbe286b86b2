"""Nodes of a simulated cluster, and their use over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.actions import NodeOutcome, NodeSetting, Result
from helios.changes import ASLEEP as TO_SLEEP
from helios.changes import Change, join_names, nodes_named
from helios.errors import UsageError
from helios.metrics.node_usage import NodeSeconds
from helios.metrics.spare_nodes import AwakeRule
from helios.model import NodePower, PowerSettings
from helios.simulate.core.awake import NEVER_WAKES, WAKES_AHEAD, WAKES_SHORT
from helios.simulate.core.events import keep_awake, rank_nodes, set_power
from helios.simulate.core.state import ASLEEP, AWAKE, FALLING, NEVER, RECENT_CHECKS, WAKING, EngineState
from helios.simulate.snapshot import Coded, OwnColumns, Values, as_times

FLAGS = {WAKING: "POWERING_UP", ASLEEP: "POWERED_DOWN", FALLING: "POWERING_DOWN"}
_POWERS = {
    AWAKE: NodePower.AWAKE,
    WAKING: NodePower.WAKING,
    ASLEEP: NodePower.ASLEEP,
    FALLING: NodePower.FALLING_ASLEEP,
}
_POWER_WORDS = tuple(_POWERS[code].value for code in sorted(_POWERS))
_FLAG_WORDS = tuple(FLAGS[code] for code in sorted(FLAGS))
"""AWAKE, the first code, has no flag."""
WAKES = {"never": NEVER_WAKES, "short": WAKES_SHORT, "ahead": WAKES_AHEAD}
SITE_WEIGHT = 1
"""Weight of a node without another one; Slurm's default."""
Nodes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Sleep settings of the nodes of a simulated cluster.

    Parameters
    ----------
    boot_s, shutdown_s : int
        Time to wake, and to fall asleep, s; at least 1.
    idle_timer_s : int, optional
        Idle time after which the cluster itself puts a node to sleep, s, at least 1; None: never.
    keep_awake : tuple of str
        Nodes that the site itself excludes from the idle timer, and from the rules.
    rules : tuple of AwakeRule
        How many nodes stay awake, one rule for each partition; empty: no rule acts.
    """

    boot_s: int
    shutdown_s: int
    idle_timer_s: int | None = None
    keep_awake: tuple[str, ...] = ()
    rules: tuple[AwakeRule, ...] = ()

    def __post_init__(self) -> None:
        every_s = {rule.every_s for rule in self.rules}
        if len(every_s) > 1 or any(not 0 <= rule.memory_s <= RECENT_CHECKS * rule.every_s for rule in self.rules):
            raise UsageError(
                "the rules for nodes awake are checked at different times, or remember too long",
                hint=f"Give all the same every_s, and a memory of at most {RECENT_CHECKS} times that.",
            )
        if min(self.boot_s, self.shutdown_s, 1 if self.idle_timer_s is None else self.idle_timer_s) < 1:
            raise UsageError("a time to wake, to fall asleep or to be idle is not positive", hint="Use whole seconds.")


class NodeActions:
    """Executor of actions on the nodes of a replay.

    It refuses what :class:`helios.ports.NodeCluster` must always refuse. The guards of the control cycle are not here.

    Parameters
    ----------
    names : list of str
        Names of the nodes, in the order of the state.
    sleep : Sleep, optional
        None: nodes do not sleep here.
    """

    def __init__(self, state: EngineState, names: list[str], sleep: Sleep | None) -> None:
        self._state, self._names, self.sleep = state, names, sleep
        self._number = {name: number for number, name in enumerate(names)}
        self._node_size = np.repeat(state.partitions["gpus_per_node"], state.partitions["nodes"])
        self.weight = np.full(len(names), SITE_WEIGHT, dtype=np.int64)
        self.excluded_reason: dict[int, str] = {}
        self._site_keep_awake_list = self._keep_awake_list = join_names(sleep.keep_awake if sleep else ())
        if sleep is not None:
            self._start_sleeping(sleep)

    def _start_sleeping(self, sleep: Sleep) -> None:
        clock, nodes = self._state.clock, self._state.nodes
        clock["boot_s"], clock["shutdown_s"] = sleep.boot_s, sleep.shutdown_s
        clock["suspend_s"] = NEVER if sleep.idle_timer_s is None else sleep.idle_timer_s
        nodes["idle_since_s"] = self._state.partitions["counted_s"][0]
        kept = set(sleep.keep_awake)
        for node, name in enumerate(self._names):
            keep_awake(self._state, node, name in kept)
        for partition, rule in zip(self._state.partitions, sleep.rules, strict=bool(sleep.rules)):
            partition["spare"], partition["wakes"] = rule.spare, WAKES[rule.wakes]
            partition["memory_checks"] = rule.memory_s // rule.every_s
            partition["least_idle_s"], partition["is_floor"] = rule.least_idle_s, not rule.counts_use
            clock["check_every_s"] = rule.every_s
            clock["check_s"] = (self._state.partitions["counted_s"][0] // rule.every_s + 1) * rule.every_s

    @property
    def settings(self) -> PowerSettings | None:
        """Power settings of the cluster.

        None: nodes do not sleep here.
        """
        if self.sleep is None:
            return None
        timer_s = self.sleep.idle_timer_s
        return PowerSettings(
            suspend_time_s=float("inf") if timer_s is None else float(timer_s),
            suspend_timeout_s=float(self.sleep.shutdown_s),
            resume_timeout_s=float(self.sleep.boot_s),
            keep_awake=self._keep_awake_list,
            can_keep_awake=True,
        )

    def number(self, name: str) -> int:
        """Return the number of a node in the state.

        Raises
        ------
        UsageError
            There is no node of that name.
        """
        if name not in self._number:
            raise UsageError(f"there is no node {name!r}", hint=f"The nodes are {self._names[0]} to {self._names[-1]}.")
        return self._number[name]

    def columns(self) -> OwnColumns:
        """Return the changing columns of ``NODE_STATES`` as they are now."""
        nodes, weight, excluded_reason = self._state.nodes.copy(), self.weight, dict(self.excluded_reason)

        def excluded() -> Coded:
            words = tuple(sorted(set(excluded_reason.values())))
            codes = np.full(len(nodes), -1)
            for node, reason in excluded_reason.items():
                codes[node] = words.index(reason)
            return Coded(codes, words)

        def idle_since() -> Values:
            idle = (nodes["free"] == self._node_size) & (nodes["idle_since_s"] != NEVER)
            return np.where(idle, as_times(np.where(idle, nodes["idle_since_s"], 0)), np.datetime64("NaT"))

        return {
            "power": Coded(nodes["power"], _POWER_WORDS),
            "flags": lambda: Coded(nodes["power"] - 1, _FLAG_WORDS),
            "excluded_reason": excluded,
            "kept_awake": lambda: nodes["kept"].astype(np.int32),
            "weight": lambda: weight.astype(np.float64),
            "idle_since": idle_since,
        }

    def steer(self, changes: Sequence[Change[str]], *, now: int) -> list[NodeOutcome]:
        """Apply changes and return the outcome of each.

        See :meth:`helios.ports.NodeCluster.steer`.
        """
        return [self._apply(change, now) for change in changes]

    def _apply(self, change: Change[str], now: int) -> NodeOutcome:
        if change.setting is NodeSetting.KEEP_AWAKE:
            return self._keep_awake(change)
        if change.target not in self._number:
            return change.outcome(Result.FAILED, "there is no such node")
        if change.setting is NodeSetting.WEIGHT:
            return change.outcome(Result.UNCHANGED, "no action changes a weight here")
        return self._put_to_sleep(change, now) if change.value == TO_SLEEP else self._wake(change, now)

    # Power.

    def _put_to_sleep(self, change: Change[str], now: int) -> NodeOutcome:
        node, before = self._number[change.target], self._slurm_state(change.target)
        power, free = self._state.nodes["power"][node], self._state.nodes["free"][node]
        if power in (ASLEEP, FALLING):
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        if self.sleep is None:
            return change.outcome(Result.REFUSED, "nodes do not sleep here", before=before)
        if node in self.excluded_reason:
            return change.outcome(Result.REFUSED, self.excluded_reason[node], before=before)
        if power == WAKING or free < self._node_size[node]:
            return change.outcome(Result.REFUSED, "it is not idle", before=before)
        set_power(self._state, np.array([node]), FALLING, now)
        return change.outcome(Result.DONE, before=before, after=self._slurm_state(change.target))

    def _wake(self, change: Change[str], now: int) -> NodeOutcome:
        node, before = self._number[change.target], self._slurm_state(change.target)
        power = self._state.nodes["power"][node]
        if power == FALLING:
            return change.outcome(Result.POSTPONED, "it is falling asleep and cannot be called back", before=before)
        if power != ASLEEP:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        set_power(self._state, np.array([node]), WAKING, now)
        return change.outcome(Result.DONE, before=before, after=self._slurm_state(change.target))

    def _slurm_state(self, name: str) -> str:
        """Return the state and flags of a node as Slurm writes them."""
        node = self._state.nodes[self._number[name]]
        held = self._node_size[self._number[name]] - node["free"]
        state = "IDLE" if held == 0 else "MIXED" if node["free"] else "ALLOCATED"
        flag = FLAGS.get(int(node["power"]))
        return f"{state}+{flag}" if flag else state

    # The keep-awake list.

    def _keep_awake(self, change: Change[str]) -> NodeOutcome:
        own = self._site_keep_awake_list if change.own is None else change.own
        text = join_names(nodes_named(change.value if change.is_revert else f"{own},{change.value}"))
        before = self._keep_awake_list
        unknown = [name for name in nodes_named(text) if name not in self._number]
        if unknown:
            return change.outcome(Result.FAILED, f"there is no node {unknown[0]}", before=before)
        if self.sleep is None:
            return change.outcome(Result.REFUSED, "nodes do not sleep here", before=before)
        if text == before:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        after = set(nodes_named(text))
        for name in after.symmetric_difference(nodes_named(before)):
            keep_awake(self._state, self._number[name], name in after)
        self._keep_awake_list = text
        return change.outcome(Result.DONE, before=before, after=text)

    # Weights.

    def fill(self, tiers: Sequence[Sequence[str]]) -> None:
        """Have nodes filled tier by tier, as a site's static weights do."""
        for tier, names in enumerate(tiers):
            self.weight[[self._number[name] for name in names]] = SITE_WEIGHT + tier
        rank_nodes(self._state, self.weight)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeHolding:
    """Number of nodes that hold a job, over time.

    Attributes
    ----------
    at_s : int64 array
        When the number changed, s since the epoch; ascending within a partition.
    partition, nodes : int64 arrays
        The partition, and its number of such nodes from then on.
    n_partitions : int
        Number of partitions.
    since_s, until_s : int
        Begin and end of the count, s since the epoch.
    """

    at_s: NDArray[np.int64]
    partition: NDArray[np.int64]
    nodes: NDArray[np.int64]
    n_partitions: int
    since_s: int
    until_s: int

    def in_steps(self, step_s: int) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return the most and the mean number of nodes in each step.

        Steps begin at whole multiples of ``step_s`` since the epoch.

        Returns
        -------
        start_s : int
            Begin of the first step, that in which the first job was submitted.
        most, mean : float64 arrays of shape (n_partitions, n_steps)
            Most nodes that held a job at once, and their average, up to the step in which the count ends; nothing is
            held before and after it.

        Raises
        ------
        UsageError
            ``step_s`` is not positive.
        """
        if step_s < 1:
            raise UsageError(f"a step of {step_s} s", hint="Use a positive number of seconds, as 600.")
        start_s = self.since_s // step_s * step_s
        grid = np.arange(start_s, max(self.until_s, start_s + 1), step_s)
        most, mean = np.zeros((2, self.n_partitions, len(grid)))
        for partition in range(self.n_partitions):
            in_partition = self.partition == partition
            most[partition], mean[partition] = _in_steps(
                self.at_s[in_partition], self.nodes[in_partition], grid, step_s
            )
        return start_s, most, mean


def node_holding(state: EngineState, *, until_s: int) -> NodeHolding:
    """Return the log of the nodes that held a job, up to ``until_s``."""
    rows = state.holding[: int(state.clock["rows"][0])]
    jobs = state.jobs["submitted_s"]
    return NodeHolding(
        at_s=rows["at_s"].copy(),
        partition=rows["partition"].copy(),
        nodes=rows["nodes"].copy(),
        n_partitions=len(state.partitions),
        since_s=int(jobs[0]) if len(jobs) else 0,
        until_s=until_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTally:
    """Node seconds by power state, and counts of sleeps, wakes and delays.

    Attributes
    ----------
    seconds : mapping of str to NodeSeconds
        By partition. GPUs or CPUs held on awake nodes count as busy, also those of a job that still waits for another
        of its nodes.
    sleeps, wakes : int
        Nodes put to sleep, and woken, by Helios or by the cluster itself.
    sleep_moments, wake_moments : int
        Number of seconds in which nodes were put to sleep, and woken.
    delays, delay_moments : int
        Starts that waited for a node to boot, and number of seconds with such starts.
    short_node_s : int
        Node seconds in which a job held a node that was still booting.
    """

    seconds: Mapping[str, NodeSeconds]
    sleeps: int
    sleep_moments: int
    wakes: int
    wake_moments: int
    delays: int
    delay_moments: int
    short_node_s: int

    @property
    def total(self) -> NodeSeconds:
        """All partitions together."""
        return sum(self.seconds.values(), NodeSeconds())


def node_tally(state: EngineState, partitions: tuple[str, ...], *, resource: str) -> NodeTally:
    """Return the counts of the core.

    They go up to the last change; :func:`helios.simulate.core.events.count_up` brings them up to now.
    """
    clock = state.clock[0]
    seconds = {
        name: NodeSeconds(
            busy=float(row["busy_node_s"]),
            idle=float(row["awake_node_s"] - row["busy_node_s"]),
            asleep=float(row["asleep_node_s"]),
            falling_asleep=float(row["falling_node_s"]),
            waking=float(row["waking_node_s"]),
            **{f"{resource}_busy": float(row["gpu_s"] / clock["units"])},
        )
        for name, row in zip(partitions, state.partitions, strict=True)
    }
    counted = ("sleeps", "sleep_moments", "wakes", "wake_moments", "delays", "delay_moments")
    return NodeTally(
        seconds=seconds,
        short_node_s=int(state.partitions["short_node_s"].sum()),
        **{name: int(clock[name]) for name in counted},
    )


def _in_steps(
    at_s: NDArray[np.int64], nodes: NDArray[np.int64], grid: NDArray[np.int64], step_s: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the most and the mean of a count in each step.

    The count changed at ``at_s`` and was ``nodes`` from then on.
    """
    end_s = int(grid[-1]) + step_s
    begins = np.union1d(grid, at_s[at_s < end_s])
    held = np.concatenate([[0], nodes])[np.searchsorted(at_s, begins, side="right")].astype(np.float64)
    lasts_s = np.diff(begins, append=end_s)
    first = np.searchsorted(begins, grid)
    return np.maximum.reduceat(held, first), np.add.reduceat(held * lasts_s, first) / step_s
