"""Cluster Energy Saving (CES).

The service decides for each pool how many nodes stay awake, then which.

Source of the idea: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale
GPU Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223. The rule, its daily tuning and the choice of nodes
are Helios' own. The published rule is included as a baseline.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import groupby, pairwise, starmap
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import KeepAwake, NodeAction, PowerDown, PowerUp
from helios.choices import Domain
from helios.model import STEP_S, Demand, NodePower, Snapshot, pool_names
from helios.services.energy_saving.sizing import (
    DAY,
    CesOptions,
    Choice,
    KnownDemand,
    Memo,
    PublishedRule,
    levels_of,
    plain_rule,
    plan_sizing,
    published_rule,
    training_days,
)
from helios.units import count_in_words, rounded_duration

_LATEST = datetime.max.replace(tzinfo=UTC)

LARGE = 300
"""Number of nodes from which the published rule has the values of its largest cluster (Philly), otherwise Earth's."""
_EARTH = {"sigma": 5.0, "h_s": 3_600, "f_s": 10_800, "xi_h": 1.0, "xi_p": 1.0, "hold_s": 7_200}
_PHILLY = {"sigma": 20.0, "h_s": 1_200, "f_s": 18_000, "xi_h": 0.1, "xi_p": 0.0, "hold_s": 6_000}
RUN_IN_DAYS = 3
"""Days over which a rule is replayed to find its current state, which depends on hours before."""

WAITS_FOR_NODES = frozenset({"Resources", "Priority", "None", ""})
"""Reasons that Slurm gives for jobs that more nodes would let start."""
_COLUMNS = ("partition", "gpu_type", "reason", "gpus", "cpus", "nodes", "tasks")

OLD_S = 3_600
"""Age from which a forecast of demand is too old to put nodes to sleep, s."""
MEMO_SIZE = 1_024
"""Choices of rules that are kept."""
LIKELY_HOURS = 6
"""Hours for which the most nodes needed are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCandidate:
    """Properties of a node that the choice of nodes depends on.

    See ``NODE_STATES``.

    Attributes
    ----------
    power : str
        A NodePower; empty for a node that is down.
    idle, asleep : bool
        Whether it is idle or asleep, and not excluded.
    busy : bool
        Whether it holds a job.
    kept_awake : bool
        Whether the cluster's keep-awake list has it.
    cpus, gpus : float
        Total numbers.
    kinds : frozenset of str
        Its features and its type of GPU.
    idle_since : datetime
        The latest possible time if unknown.
    cycle : int
        Position in a rotation that advances by one each day, so that not always the same of equal nodes sleep.
    """

    name: str
    pool: str
    partitions: frozenset[str]
    power: str
    idle: bool
    asleep: bool
    busy: bool
    kept_awake: bool
    cpus: float
    gpus: float
    kinds: frozenset[str]
    rack: str
    weight: float
    idle_since: datetime
    cycle: int

    @property
    def powered(self) -> bool:
        """Whether it is awake, or waking already."""
        return self.power in {NodePower.AWAKE, NodePower.WAKING}


def pool_nodes(snapshot: Snapshot) -> list[NodeCandidate]:
    """Return the nodes of a snapshot, in its order."""
    rows = list(starmap(_NodeRow, zip(*(_values(snapshot, name) for name in _NodeRow._fields), strict=True)))
    day, count = int(snapshot.taken_at.timestamp()) // 86_400, max(len(rows), 1)
    return [_node(row, (index - day) % count) for index, row in enumerate(rows)]


def to_sleep(pool: Iterable[NodeCandidate], count: int, *, everywhere: Sequence[NodeCandidate]) -> list[NodeCandidate]:
    """Return up to ``count`` idle nodes to put to sleep.

    A rack that is nearly asleep is emptied before the next one. Within a rack the order is that of the highest weight,
    which the cluster fills last, then of the longest idle time. One awake node of each feature and type of GPU is kept
    in the cluster.

    Parameters
    ----------
    everywhere : sequence of NodeCandidate
        All nodes of the cluster.
    """
    if count <= 0:
        return []
    awake = [node for node in everywhere if node.power == NodePower.AWAKE]
    n_awake_of_kind = Counter(kind for node in awake for kind in node.kinds)
    n_held = Counter(node.rack for node in awake if not node.idle)
    n_asleep = Counter(node.rack for node in everywhere if node.power in {NodePower.ASLEEP, NodePower.FALLING_ASLEEP})
    chosen: list[NodeCandidate] = []

    def sort_key(node: NodeCandidate) -> tuple[Any, ...]:
        racks = (n_held[node.rack], -n_asleep[node.rack], node.rack) if node.rack else ()
        return not node.rack, racks, -node.weight, node.idle_since, node.cycle

    for node in sorted((node for node in pool if node.idle), key=sort_key):
        if len(chosen) >= count:
            break
        if all(n_awake_of_kind[kind] > 1 for kind in node.kinds):
            n_awake_of_kind.subtract(node.kinds)
            chosen.append(node)
    return chosen


def to_wake(pool: Iterable[NodeCandidate], count: int, *, everywhere: Sequence[NodeCandidate]) -> list[NodeCandidate]:
    """Return up to ``count`` sleeping nodes to wake.

    Nodes of racks with most awake nodes come first, then the lowest weight, which the cluster fills first, then the
    longest time without a job, so that power cycles are distributed.
    """
    if count <= 0:
        return []
    n_powered = Counter(node.rack for node in everywhere if node.rack and node.powered)
    asleep = sorted(
        (node for node in pool if node.asleep),
        key=lambda node: (-n_powered[node.rack], node.rack, node.weight, node.idle_since, node.cycle),
    )
    return asleep[:count]


class _NodeRow(NamedTuple):
    """Columns of ``NODE_STATES`` of one node.

    A missing number is 0, missing text NaN, and a missing time None.
    """

    name: str
    partitions: Any
    state: Any
    flags: Any
    power: Any
    excluded_reason: Any
    kept_awake: int
    rack: Any
    cpus: float
    cpus_held: float
    gpus: int
    gpus_held: int
    gpu_type: Any
    weight: float
    features: Any
    idle_since: datetime | None


@lru_cache(maxsize=16_384)  # most nodes do not change from one cycle to the next
def _node(row: _NodeRow, cycle: int) -> NodeCandidate:
    busy = bool(row.cpus_held > 0 or row.gpus_held > 0) or row.state in {"ALLOCATED", "MIXED"}
    excluded = bool(text_of(row.excluded_reason))
    return NodeCandidate(
        name=row.name,
        pool=pool_names([row.partitions], [row.gpu_type])[0],
        partitions=_split_words(row.partitions),
        power=text_of(row.power),
        idle=row.power == NodePower.AWAKE and row.state == "IDLE" and not (text_of(row.flags) or excluded or busy),
        asleep=row.power == NodePower.ASLEEP and not excluded,
        busy=busy,
        kept_awake=bool(row.kept_awake),
        cpus=float(row.cpus),
        gpus=float(row.gpus),
        kinds=_split_words(row.features) | _split_words(row.gpu_type),
        rack=text_of(row.rack),
        weight=float(row.weight),
        idle_since=_LATEST if row.idle_since is None else row.idle_since.replace(tzinfo=UTC),
        cycle=cycle,
    )


def _values(snapshot: Snapshot, name: str) -> list[Any]:
    values = snapshot.node_values(name)
    if values.dtype.kind == "f":  # NaN is not equal to NaN, so a row with one is never found in the cache
        values = np.where(np.isnan(values), 0.0, values)
    result: list[Any] = values.tolist()
    return result


def text_of(value: object) -> str:
    """Return a value of a text column, empty where it is missing."""
    return value if isinstance(value, str) else ""


@lru_cache(maxsize=4_096)
def _split_words(value: object) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in text_of(value).split(","))))


# Number of nodes that a pool needs awake, from its demand, by Helios' rule or a baseline.


def level_now(
    demand: Demand, pool: int, options: CesOptions, *, memo: Memo | None = None
) -> tuple[float, Choice | None]:
    """Return the nodes of a pool to be awake now, and today's choice of rule.

    The first is a number; the choice is None under a baseline.
    """
    demand = demand.last(DAY * (7 * options.weeks + RUN_IN_DAYS + 2))
    # The start is a midnight, as one that moved with each step would change the result.
    days = training_days(demand.ended_s, demand.busy.shape[1])
    first = int(np.searchsorted(days, demand.ended_s // 86_400 - RUN_IN_DAYS))
    levels, choices = target_levels(demand, pool, options, from_step=first, memo=memo)
    return float(levels[-1]) if len(levels) else float("inf"), choices[-1][1] if choices else None


def target_levels(
    demand: Demand, pool: int, options: CesOptions, *, from_step: int, memo: Memo | None = None
) -> tuple[NDArray[np.float64], tuple[tuple[int, Choice], ...]]:
    """Return the target level after each step, and the choices of rules.

    Parameters
    ----------
    pool : int
        Position of the pool in ``demand.pools``.
    from_step : int
        First step of the result, before which all nodes are awake.

    Returns
    -------
    levels : float64 array
        Nodes to be awake from the end of each step on.
    choices : tuple of (int, Choice)
        First step of each day and the choice for it; empty under a baseline.
    """
    demand_of_pool = known_demand(demand, pool, options)
    if options.rule == "helios":
        plan = plan_sizing(demand_of_pool, options, from_step=from_step, memo=memo)
        return plan.levels[from_step:], plan.choices
    rule = plain_rule() if options.rule == "max_3h" else published_rule(demand_of_pool)
    return levels_of(demand_of_pool, rule.setting, from_step=from_step), ()


def published_values(options: CesOptions, nodes: float) -> dict[str, float]:
    """Return the parameters of the published rule, its authors' or those of the options."""
    defaults = _PHILLY if nodes >= LARGE else _EARTH
    return {name: value if (own := getattr(options, name)) is None else own for name, value in defaults.items()}


def known_demand(demand: Demand, pool: int, options: CesOptions) -> KnownDemand:
    """Return the demand of one pool."""
    values = published_values(options, float(demand.total[pool].max(initial=0.0)))
    soon, later = (mean_within(demand, pool, times * values["f_s"]) for times in (1, 2))
    return KnownDemand(
        busy=demand.busy[pool],
        total=demand.total[pool],
        most=demand.most[pool],
        soon=soon,
        later=later,
        ahead_s=demand.ahead_s,
        levels=demand.levels,
        ended_s=demand.ended_s,
        published=PublishedRule(
            recent_steps=int(values["h_s"]) // STEP_S,
            xi_h=values["xi_h"],
            xi_p=values["xi_p"],
            reserve=values["sigma"],
            hold_steps=int(values["hold_s"]) // STEP_S,
        ),
    )


def mean_within(demand: Demand, pool: int, within_s: float) -> NDArray[np.float64]:
    """Return the expected mean of busy nodes over the next ``within_s``.

    The integral over time is interpolated linearly between the horizons.
    """
    mean: NDArray[np.float64] = demand.mean[pool]
    for number, (before_s, after_s) in enumerate(pairwise((0, *demand.ahead_s))):
        if within_s <= after_s:
            share = (within_s - before_s) / (after_s - before_s)
            before, after = mean[:, number - 1] * before_s if number else 0.0, mean[:, number] * after_s
            interpolated: NDArray[np.float64] = (before + share * (after - before)) / within_s
            return interpolated
    return mean[:, -1]


def most_within(demand: Demand, pool: int) -> float | None:
    """Return the most nodes needed within ``LIKELY_HOURS``, 9 of 10 times.

    None where it was not forecast.
    """
    ahead_s, level = LIKELY_HOURS * 3_600, 0.9
    if ahead_s not in demand.ahead_s or level not in demand.levels or not demand.busy.shape[1]:
        return None
    most = demand.most[pool, -1, demand.ahead_s.index(ahead_s), demand.levels.index(level)]
    return None if np.isnan(most) else float(most)


# Nodes that pending jobs wait for, by pool.


def nodes_wanted_by_queue(snapshot: Snapshot, nodes: Sequence[NodeCandidate]) -> dict[str, float]:
    """Return the number of nodes that eligible pending jobs wait for, by pool.

    Pools without such jobs are missing. A job that fits several pools counts for the one with the most free nodes. Jobs
    smaller than a node share nodes.
    """
    eligible = snapshot.pending_values("eligible_at") <= np.datetime64(snapshot.taken_at.replace(tzinfo=None), "us")
    if not eligible.any():
        return {}
    pools = _pools(nodes)
    columns = (snapshot.pending_values(name)[eligible].tolist() for name in _COLUMNS)
    wanted: dict[str, float] = {}
    pool_of: dict[tuple[str, str, bool], _NodePool | None] = {}
    for partition, gpu_type, reason, gpus, cpus, requested_nodes, tasks in zip(*columns, strict=True):
        if text_of(reason) not in WAITS_FOR_NODES:
            continue
        key = (text_of(partition), text_of(gpu_type), gpus > 0)
        if key not in pool_of:
            pool_of[key] = _pool_for(*key, pools)
        if (pool := pool_of[key]) is not None:
            nodes_per_job = pool.nodes_for(gpus=gpus, cpus=cpus, requested_nodes=requested_nodes)
            wanted[pool.name] = wanted.get(pool.name, 0.0) + nodes_per_job * max(tasks, 1)
    return {name: math.ceil(round(count, 6)) for name, count in sorted(wanted.items())}


@dataclass(slots=True, kw_only=True)
class _NodePool:
    name: str
    partitions: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    gpus: float = 0.0
    cpus: float = 0.0
    free_nodes: int = 0

    def nodes_for(self, *, gpus: float, cpus: float, requested_nodes: float) -> float:
        """Return the nodes that one job needs, or its share of a node."""
        share = gpus / self.gpus if gpus and self.gpus else _finite_or_zero(cpus) / self.cpus if self.cpus else 0.0
        n_nodes = _finite_or_zero(requested_nodes)
        return max(n_nodes, share) if n_nodes > 1 else share or n_nodes or 1.0


def _pools(nodes: Sequence[NodeCandidate]) -> list[_NodePool]:
    pools: dict[str, _NodePool] = {}
    for node in nodes:
        pool = pools.setdefault(node.pool, _NodePool(name=node.pool))
        pool.partitions |= node.partitions
        pool.kinds |= node.kinds
        pool.gpus, pool.cpus = max(pool.gpus, node.gpus), max(pool.cpus, node.cpus)
        pool.free_nodes += node.idle or node.asleep
    return list(pools.values())


def _pool_for(partition: str, gpu_type: str, needs_gpus: bool, pools: Sequence[_NodePool]) -> _NodePool | None:
    partitions = set(partition.split(","))
    fits = [
        pool
        for pool in pools
        if pool.partitions & partitions and (pool.gpus or not needs_gpus) and (not gpu_type or gpu_type in pool.kinds)
    ]
    return min(fits, key=lambda pool: (-pool.free_nodes, pool.name), default=None)


def _finite_or_zero(value: float) -> float:
    return 0.0 if pd.isna(value) or math.isinf(value) else float(value)


class Ces:
    """Put surplus nodes to sleep and wake them before they are needed.

    For each pool (nodes that can replace each other) a rule decides how many nodes are to be awake. It is chosen again
    each midnight (UTC) by replaying the last weeks. It is the published rule, unless another was no worse in each of
    them; or the one with the most sleep at the wake-ups that the site accepts. Nodes that queued jobs wait for are
    needed at once. Without a forecast of demand nothing is put to sleep.

    The result is a request. The guards of the control cycle check each node again, and the cluster itself still wakes a
    sleeping node for a job.
    """

    domain = Domain.NODES
    Options = CesOptions

    def __init__(self, options: CesOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)
        # A cache, by digests of all inputs of a choice.
        self._memo: Memo = {}
        # The latest choice of each pool, and why the latest answer was empty, for reports; no decision reads them.
        self.choices: dict[str, Choice] = {}
        self.why_nothing = ""

    def decide(self, snapshot: Snapshot) -> list[NodeAction]:
        """Return the nodes to put to sleep and to wake now.

        With the mechanism ``keep_awake``, return the whole keep-awake list instead of the nodes to put to sleep.
        """
        nodes = pool_nodes(snapshot)
        self.why_nothing = "there are no nodes"
        if not nodes:
            return []
        pools = self._assess_pools(snapshot, nodes)
        self.why_nothing = "; ".join(pool.why_unchanged for pool in pools) or "there is no forecast of its pools"
        woken = [PowerUp(node=node.name, reason=pool.why_awake) for pool in pools for node in pool.up]
        if self.options.mechanism == "keep_awake":
            # The list keeps awake what is awake, but wakes nothing.
            return [_kept_awake(pools, nodes), *woken]
        slept = [
            PowerDown(node=node.name, reason=pool.why_asleep(node, snapshot)) for pool in pools for node in pool.down
        ]
        return [*woken, *slept]

    def _assess_pools(self, snapshot: Snapshot, nodes: Sequence[NodeCandidate]) -> list[_PoolAssessment]:
        demand = snapshot.demand
        if demand is None:
            return []
        queued = nodes_wanted_by_queue(snapshot, nodes)
        is_recent = abs(snapshot.taken_at.timestamp() - demand.ended_s) <= OLD_S
        pools_of_nodes = groupby(sorted(nodes, key=lambda node: node.pool), key=lambda node: node.pool)
        assessments: list[_PoolAssessment] = []
        sleeping: set[str] = set()
        for name, members in pools_of_nodes:
            if name not in demand.pools or not demand.busy.shape[1]:
                continue
            pool = self._assess_pool(demand, name, list(members), queued.get(name, 0.0), is_recent=is_recent)
            others = [node for node in nodes if node.name not in sleeping]
            count = pool.powered - pool.level
            down = to_sleep(pool.may_sleep(self.options.mechanism), count, everywhere=others)
            pool = replace(pool, down=tuple(down), up=tuple(to_wake(pool.members, -count, everywhere=nodes)))
            sleeping |= {node.name for node in pool.down}
            assessments.append(pool)
        return assessments

    def _assess_pool(
        self, demand: Demand, name: str, members: list[NodeCandidate], queued: float, *, is_recent: bool
    ) -> _PoolAssessment:
        position = demand.pools.index(name)
        level, choice = level_now(demand, position, self.options, memo=self._memo)
        while len(self._memo) > MEMO_SIZE:
            del self._memo[next(iter(self._memo))]
        needed = sum(node.busy for node in members) + queued
        if needed + self.options.spare > level:
            level = needed + max(self._reserve(demand, position, choice), self.options.spare)
        if choice is not None:
            self.choices[name] = choice
        return _PoolAssessment(
            name=name,
            members=tuple(members),
            level=round(level) if is_recent else max(round(level), sum(node.powered for node in members)),
            needed=round(needed),
            likely=most_within(demand, position),
            rule=choice.rule.name if choice and choice.rule else "",
        )

    def _reserve(self, demand: Demand, position: int, choice: Choice | None) -> float:
        if choice and choice.rule:
            return choice.rule.setting.up
        if self.options.rule == "max_3h":
            return plain_rule().setting.up
        return published_values(self.options, float(demand.total[position].max(initial=0.0)))["sigma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PoolAssessment:
    """Number of a pool's nodes to be awake, and the nodes that change for it."""

    name: str
    members: tuple[NodeCandidate, ...]
    level: int
    needed: int
    likely: float | None
    rule: str
    down: tuple[NodeCandidate, ...] = ()
    up: tuple[NodeCandidate, ...] = ()

    @property
    def powered(self) -> int:
        return sum(node.powered for node in self.members)

    @property
    def why_awake(self) -> str:
        return f"woken ahead of need: {self._situation}"

    def may_sleep(self, mechanism: str) -> list[NodeCandidate]:
        # With the mechanism keep_awake the list has Helios' own entries, which it may remove.
        return [node for node in self.members if mechanism == "keep_awake" or not node.kept_awake]

    def why_asleep(self, node: NodeCandidate, snapshot: Snapshot) -> str:
        idle_s = (snapshot.taken_at - node.idle_since).total_seconds()
        return f"idle for {rounded_duration(idle_s)}; {self._situation}" if idle_s >= 0 else f"idle; {self._situation}"

    @property
    def why_unchanged(self) -> str:
        surplus = self.powered - self.level
        return self._situation + (f", {surplus} more are awake and may not sleep" if surplus > 0 else "")

    @property
    def summary(self) -> str:
        return f"{count_in_words(len(self.down), 'node')} may sleep: {self._situation}"

    @property
    def _situation(self) -> str:
        needed = f"{self.needed} of {sum(bool(node.power) for node in self.members)} nodes of {self.name} needed"
        likely = "" if self.likely is None else f", at most {self.likely:.0f} within {LIKELY_HOURS} h (9 of 10 times)"
        spare = max(min(self.level, len(self.members)) - self.needed, 0)
        by = f" by the {self.rule.removeprefix('the ')}" if self.rule else ""
        return f"{needed}{likely}; {spare} kept in reserve{by}"


def _kept_awake(pools: Sequence[_PoolAssessment], nodes: Sequence[NodeCandidate]) -> KeepAwake:
    free = {node.name for pool in pools for node in pool.down}
    woken = {node.name for pool in pools for node in pool.up}
    names = tuple(node.name for node in nodes if (node.powered and node.name not in free) or node.name in woken)
    why = "; ".join(pool.summary for pool in pools) or "no forecast of demand, so nothing may sleep"
    return KeepAwake(nodes=names, reason=why)
