"""Cluster Energy Saving (CES).

For each pool (nodes that can replace each other) the service decides how many nodes stay awake, then which. How many is
the rule of :mod:`helios.metrics.spare_nodes`, with numbers chosen each midnight of the site on the weeks before it.

Source of the idea: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale
GPU Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import numpy as np

from helios.actions import KeepAwake, NodeAction, PowerDown, PowerUp
from helios.choices import Domain
from helios.config import Energy
from helios.metrics.spare_nodes import (
    CHECK_S,
    CYCLES_PER_NODE_DAY,
    DELAYED_SUBMISSIONS,
    SAFE_RULE,
    AwakeRule,
    SpareChoice,
    choose_rules,
    nodes_to_change,
)
from helios.model import NodeForecast, NodeUse, PoolUse, PowerSettings, Snapshot
from helios.services.energy_saving.nodes import NodeCandidate, pool_nodes, to_sleep, to_wake
from helios.services.energy_saving.published import published_levels, published_values
from helios.services.energy_saving.queue import nodes_wanted_by_queue
from helios.units import count_in_words, rounded_duration

OLD_S = 3_600
"""Age from which a record of use is too old to put nodes to sleep, s."""
USE_UNKNOWN = "it is not known which nodes were in use lately, so none is put to sleep"


@dataclass(frozen=True, slots=True, kw_only=True)
class CesOptions:
    """Options of the energy-saving service (CES).

    Attributes
    ----------
    every_s : int
        Time between two decisions, s. Every ten minutes delays 1.5 to 1.8 times as many submissions.
    rule : str
        ``spare``: the nodes in use and some spare ones stay awake; or ``published``, the rule of the paper, as a
        comparison.
    mechanism : str
        ``sleep`` to power nodes down, or ``keep_awake`` to let the cluster's idle timer do it, except for listed nodes.
    delayed_submissions : float
        Largest share of submissions that may wait for a boot, over all pools.
    cycles_per_node_day : float
        How often a day, on average, a node of a pool may be woken.
    """

    every_s: int = CHECK_S
    rule: Literal["spare", "published"] = "spare"
    mechanism: Literal["sleep", "keep_awake"] = "sleep"
    delayed_submissions: float = DELAYED_SUBMISSIONS
    cycles_per_node_day: float = CYCLES_PER_NODE_DAY

    def __post_init__(self) -> None:
        for valid, message in (
            (self.every_s > 0, "every_s must be positive"),
            (
                0 < self.delayed_submissions < 1,
                "delayed_submissions must lie between 0 and 1: 0.01 is one in a hundred",
            ),
            (0 < self.cycles_per_node_day < math.inf, "cycles_per_node_day must be positive and finite"),
        ):
            if not valid:
                raise ValueError(message)


class Ces:
    """Put surplus nodes to sleep and wake them before they are needed.

    In each pool the nodes in use and N more are woken at once. Nodes beyond the most in use of the last T minutes and N
    are put to sleep. N and T are those that would have saved most in the last weeks, with no more submissions delayed
    than the options accept. Nodes that queued jobs wait for count as in use.

    The result is a request. The guards of the control cycle check each node again, and the cluster itself still wakes a
    sleeping node for a job.
    """

    domain = Domain.NODES
    Options = CesOptions

    def __init__(self, options: CesOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)
        # The choices of the last inputs, by a digest of them all: a cache.
        self._chosen: tuple[bytes, Mapping[str, SpareChoice]] = (b"", {})
        # What was decided last, for reports; no decision reads them.
        self.choices: dict[str, SpareChoice] = {}
        self.why_nothing = ""

    def decide(self, snapshot: Snapshot) -> list[NodeAction]:
        """Return the nodes to put to sleep and to wake now.

        With the mechanism ``keep_awake``, return the whole keep-awake list instead of the nodes to put to sleep.
        """
        nodes = pool_nodes(snapshot)
        self.why_nothing = "there are no nodes"
        if not nodes:
            return []
        pools = self._pools(snapshot, nodes)
        self.choices = {pool.name: pool.choice for pool in pools if pool.rule is not None}
        self.why_nothing = "; ".join(pool.why_unchanged for pool in pools)
        woken = [PowerUp(node=node.name, reason=pool.why_awake) for pool in pools for node in pool.up]
        if self.options.mechanism == "keep_awake":
            # The list keeps awake what is awake, but wakes nothing.
            return [_kept_awake(pools, nodes), *woken]
        slept = [
            PowerDown(node=node.name, reason=pool.why_asleep(node, snapshot)) for pool in pools for node in pool.down
        ]
        return [*woken, *slept]

    def _pools(self, snapshot: Snapshot, nodes: Sequence[NodeCandidate]) -> list[_Pool]:
        use, wanted, pools, sleeping = _recent_use(snapshot), nodes_wanted_by_queue(snapshot, nodes), [], set[str]()
        choices = self._choose(use, snapshot.power) if use is not None else {}
        members: dict[str, list[NodeCandidate]] = {}
        for node in nodes:
            members.setdefault(node.pool, []).append(node)
        for name, all_of_pool in sorted(members.items()):
            serving = [node for node in all_of_pool if node.serves]
            choice = choices.get(name) or SpareChoice(rule=SAFE_RULE, reason="nothing is known of the past of its jobs")
            busy = sum(node.busy for node in serving)
            needed = min(busy + round(wanted.get(name, 0.0)), len(serving))
            recent = None if use is None else use.recent.get(name)
            peak = len(serving)
            if recent is not None:
                peak = max(needed, int(recent[-(choice.rule.memory_s // CHECK_S) :].max(initial=0)))
            powered = sum(node.powered for node in serving)
            if self.options.rule == "published":
                change = _change_as_published(
                    snapshot.forecast, name, needed=needed, powered=powered, total=len(serving)
                )
            else:
                change = nodes_to_change(needed, peak, choice.rule.spare, powered, len(serving))
            # With the mechanism keep_awake the list has Helios' own entries, which it may remove.
            may_sleep = [node for node in serving if self.options.mechanism == "keep_awake" or not node.kept_awake]
            others = [node for node in nodes if node.name not in sleeping]
            down = to_sleep(may_sleep, -change, everywhere=others)
            sleeping |= {node.name for node in down}
            pools.append(
                _Pool(
                    name=name,
                    size=len(serving),
                    busy=busy,
                    queued=needed - busy,
                    peak=None if recent is None else peak,
                    change=change,
                    powered=powered,
                    rule=None if self.options.rule == "published" else choice.rule,
                    choice=choice,
                    down=tuple(down),
                    up=tuple(to_wake(serving, change, everywhere=nodes)),
                )
            )
        return pools

    def _choose(self, use: NodeUse, power: PowerSettings | None) -> Mapping[str, SpareChoice]:
        """Return the rules of the day, from the weeks before its midnight."""
        energy, assumed = Energy(**use.energy), ""
        if "boot_s" not in use.energy and power is not None and math.isfinite(power.resume_timeout_s):
            energy = energy.model_copy(update={"boot_s": power.resume_timeout_s})
            assumed = f"; a boot counts as {energy.boot_s:g} s, Slurm's ResumeTimeout, as energy.boot_s is not set"
        digests = {name: _digest(past) for name, past in use.past.items()}
        key = blake2b(repr((sorted(digests.items()), energy)).encode(), digest_size=16).digest()
        if self._chosen[0] != key:
            choices = choose_rules(
                use.past,
                energy,
                delayed_submissions=self.options.delayed_submissions,
                cycles_per_node_day=self.options.cycles_per_node_day,
            )
            reasoned = {
                pool: replace(choice, reason=choice.reason + assumed) if choice.outcomes else choice
                for pool, choice in choices.items()
            }
            self._chosen = key, reasoned
        return self._chosen[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Use of a pool's nodes, its rule, and nodes to change.

    ``peak`` is None where the use of the last time is not known, ``rule`` under the rule of the paper.
    """

    name: str
    size: int
    busy: int
    queued: int
    peak: int | None
    powered: int
    change: int
    rule: AwakeRule | None
    choice: SpareChoice
    down: tuple[NodeCandidate, ...]
    up: tuple[NodeCandidate, ...]

    @property
    def why_awake(self) -> str:
        return f"woken ahead of need: {self._situation}"

    def why_asleep(self, node: NodeCandidate, snapshot: Snapshot) -> str:
        idle_s = (snapshot.taken_at - node.idle_since).total_seconds()
        return f"idle for {rounded_duration(idle_s)}; {self._situation}" if idle_s >= 0 else f"idle; {self._situation}"

    @property
    def why_unchanged(self) -> str:
        return self._situation + (f"; {-self.change} more are awake and may not sleep" if self.change < 0 else "")

    @property
    def summary(self) -> str:
        return f"{count_in_words(len(self.down), 'node')} may sleep: {self._situation}"

    @property
    def _situation(self) -> str:
        if not self.size:
            return f"no node of {self.name} is in service"
        queued = f" and {self.queued} wanted by the queue" if self.queued else ""
        used = f"{self.busy} of {self.size} nodes of {self.name} in use{queued}"
        if self.rule is None:
            return f"{used}; {self.powered + self.change} awake by the rule of the paper"
        if self.peak is None:
            return f"{used}; {USE_UNKNOWN}"
        return (
            f"{used}, at most {self.peak} in the last {self.rule.memory_s // CHECK_S} min; "
            f"{min(self.rule.spare, self.size)} spare"
        )


def _change_as_published(forecast: NodeForecast | None, pool: str, *, needed: int, powered: int, total: int) -> int:
    """Return the change of nodes awake by the rule of the paper.

    Below zero are nodes to put to sleep.
    """
    values = published_values(total)
    level = needed + values.reserve
    if forecast is None or pool not in forecast.busy:
        return max(min(round(level), total) - powered, 0)
    busy = forecast.busy[pool]
    by_rule = published_levels(busy, np.full(len(busy), float(total)), forecast.expected[pool], values)[-1]
    return min(round(level if needed > by_rule else by_rule), total) - powered


def _recent_use(snapshot: Snapshot) -> NodeUse | None:
    use = snapshot.use
    return use if use is not None and abs(snapshot.taken_at.timestamp() - use.ended_s) <= OLD_S else None


@lru_cache(maxsize=1_024)  # the same object from minute to minute, for a day
def _digest(past: PoolUse) -> bytes:
    digest = blake2b(digest_size=16)
    for values in (past.most, past.last, past.raised):
        digest.update(values.tobytes())
    digest.update(repr((past.nodes, past.submissions, past.has_holes)).encode())
    return digest.digest()


def _kept_awake(pools: Sequence[_Pool], nodes: Sequence[NodeCandidate]) -> KeepAwake:
    free = {node.name for pool in pools for node in pool.down}
    woken = {node.name for pool in pools for node in pool.up}
    names = tuple(node.name for node in nodes if (node.powered and node.name not in free) or node.name in woken)
    return KeepAwake(nodes=names, reason="; ".join(pool.summary for pool in pools))
