"""Cluster Energy Saving: how many nodes stay awake, pool by pool, and which.

Source of the idea: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale
GPU Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223. The rule, its daily tuning and the choice of nodes
are Helios' own; the published rule is here as a control.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

from helios.actions import KeepAwake, NodeAction, PowerDown, PowerUp
from helios.model import Demand, Snapshot
from helios.ports import Office
from helios.services.ces.choice import Node, nodes_of, to_sleep, to_wake
from helios.services.ces.levels import level_now, most_within
from helios.services.ces.options import CesOptions
from helios.services.ces.queue import queued_nodes
from helios.services.ces.tuning import Memo
from helios.services.wording import counted, duration

OLD_S = 3_600
"""Age at which demand says nothing of now, s; then nothing is put to sleep."""
MOST_REMEMBERED = 1_024
LIKELY_HOURS = 6


class Ces:
    """Put surplus nodes to sleep and wake them ahead of need, within a risk and a number of wake-ups that a site sets.

    For each pool (nodes that can stand in for each other) the rule says how many nodes are to be awake: at least the
    most that was needed lately and an upper quantile of what will be, with a reserve. Its thresholds are picked again
    each midnight (UTC) by replaying the last weeks: the most sleep for its wake-ups that kept to the risk. Nodes that
    queued jobs wait for are needed at once. Without a forecast of demand nothing is put to sleep.

    What it names is a proposal: control's guards check each node again, and the cluster still wakes a sleeping node for
    a job by itself.
    """

    office = Office.NODES
    Options = CesOptions

    def __init__(self, options: CesOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)
        # Only saves work: its keys are digests of all that the values follow from.
        self._memo: Memo = {}

    def decide(self, snapshot: Snapshot) -> list[NodeAction]:
        """Return the nodes to put to sleep and to wake now, or the whole set to be kept awake."""
        nodes = nodes_of(snapshot.nodes, snapshot.taken_at)
        if not nodes:
            return []
        pools = self._judged(snapshot, nodes)
        woken = [PowerUp(node=node.name, reason=pool.why_awake) for pool in pools for node in pool.up]
        if self.options.mechanism == "keep_awake":
            # The list keeps awake what is awake, but wakes nothing.
            return [_kept_awake(pools, nodes), *woken]
        slept = [
            PowerDown(node=node.name, reason=pool.why_asleep(node, snapshot)) for pool in pools for node in pool.down
        ]
        return [*woken, *slept]

    def _judged(self, snapshot: Snapshot, nodes: Sequence[Node]) -> list[_Judged]:
        demand = snapshot.demand
        if demand is None:
            return []
        queued = queued_nodes(snapshot, nodes)
        fresh = abs(snapshot.taken_at.timestamp() - demand.ended_s) <= OLD_S
        of_pool = groupby(sorted(nodes, key=lambda node: node.pool), key=lambda node: node.pool)
        judged: list[_Judged] = []
        taken: set[str] = set()
        for name, members in of_pool:
            if name not in demand.pools or not demand.busy.shape[1]:
                continue
            pool = self._judged_pool(demand, name, list(members), queued.get(name, 0.0), fresh=fresh)
            awake = [node for node in nodes if node.name not in taken]
            count = pool.powered - pool.level
            pool = pool.with_nodes(
                down=to_sleep(pool.may_sleep(self.options.mechanism), count, everywhere=awake),
                up=to_wake(pool.members, -count, everywhere=nodes),
            )
            taken |= {node.name for node in pool.down}
            judged.append(pool)
        return judged

    def _judged_pool(self, demand: Demand, name: str, members: list[Node], queued: float, *, fresh: bool) -> _Judged:
        place = demand.pools.index(name)
        level, setting = level_now(demand, place, self.options, memo=self._memo)
        while len(self._memo) > MOST_REMEMBERED:
            del self._memo[next(iter(self._memo))]
        needed = sum(node.busy for node in members) + queued
        if needed + self.options.spare > level:
            level = needed + (setting.up if setting else self.options.sigma)
        return _Judged(
            name=name,
            members=tuple(members),
            level=round(level) if fresh else max(round(level), sum(node.powered for node in members)),
            needed=round(needed),
            likely=most_within(demand, place, hours=LIKELY_HOURS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One pool: how many nodes it is to have awake, and which move for that."""

    name: str
    members: tuple[Node, ...]
    level: int
    needed: int
    likely: float | None
    down: tuple[Node, ...] = ()
    up: tuple[Node, ...] = ()

    @property
    def powered(self) -> int:
        return sum(node.powered for node in self.members)

    @property
    def why_awake(self) -> str:
        return f"woken ahead of need: {self._situation}"

    def may_sleep(self, mechanism: str) -> list[Node]:
        # With the list as the mechanism Helios' own entries stand in it, and are its to take out.
        return [node for node in self.members if mechanism == "keep_awake" or not node.kept_awake]

    def with_nodes(self, *, down: Sequence[Node], up: Sequence[Node]) -> _Judged:
        return _Judged(
            name=self.name,
            members=self.members,
            level=self.level,
            needed=self.needed,
            likely=self.likely,
            down=tuple(down),
            up=tuple(up),
        )

    def why_asleep(self, node: Node, snapshot: Snapshot) -> str:
        idle_s = (snapshot.taken_at - node.idle_since).total_seconds()
        return f"idle for {duration(idle_s)}; {self._situation}" if idle_s >= 0 else f"idle; {self._situation}"

    @property
    def summary(self) -> str:
        return f"{counted(len(self.down), 'node')} may sleep: {self._situation}"

    @property
    def _situation(self) -> str:
        of = f"{self.needed} of {sum(bool(node.power) for node in self.members)} nodes of {self.name} needed"
        likely = "" if self.likely is None else f", at most {self.likely:.0f} within {LIKELY_HOURS} h (9 of 10 times)"
        spare = max(min(self.level, len(self.members)) - self.needed, 0)
        return f"{of}{likely}; {spare} kept in reserve"


def _kept_awake(pools: Sequence[_Judged], nodes: Sequence[Node]) -> KeepAwake:
    free = {node.name for pool in pools for node in pool.down}
    woken = {node.name for pool in pools for node in pool.up}
    kept = tuple(node.name for node in nodes if (node.powered and node.name not in free) or node.name in woken)
    why = "; ".join(pool.summary for pool in pools) or "no forecast of demand, so nothing may sleep"
    return KeepAwake(nodes=kept, reason=why)
