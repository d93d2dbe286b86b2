"""Node services asked each ten minutes along a replay of jobs, and what nodes did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from helios.actions import Action, FillFirst, KeepAwake, NodeAction, PowerDown, PowerUp, RestoreNodes
from helios.app.energy.tariff import HOUR_S
from helios.config import Power
from helios.energy import NodeSeconds
from helios.model import STEP_S, Demand, NodePower, Snapshot, pools
from helios.ports import Office, Service
from helios.predict.demand import DAY
from helios.services.ces.choice import nodes_of, to_sleep, to_wake
from helios.simulate import SimCluster, Tally
from helios.simulate.node_series import fewest_levels

RUN_IN = 3 * DAY
"""Steps before the window over which every policy runs, so that the window begins in its midst."""
STEPS_PER_REPORT = 144
_ON_THE_WAY = frozenset({NodePower.WAKING, NodePower.FALLING_ASLEEP})
_DARK = frozenset({NodePower.ASLEEP, NodePower.FALLING_ASLEEP})


@dataclass(slots=True, kw_only=True)
class Seat:
    """A service of the office of nodes that is asked along a replay."""

    service: Service


@dataclass(slots=True, kw_only=True, eq=False)
class Played:
    """What nodes did in the window of one replay.

    Attributes
    ----------
    hourly : list of NodeSeconds
        Of each hour of the window, the last one perhaps shorter.
    wakes, sleeps, shortages : int
        Steps of ten minutes in which nodes began to wake, to fall asleep, or a job had to wait for one.
    nodes_woken : int
    short_node_s : float
        Node seconds in which a job held a node that was not up yet.
    late_s : int64 array of shape (n_jobs,)
        How long each job that had started by the end of the window waited for its nodes, s.
    """

    hourly: list[NodeSeconds] = field(default_factory=list)
    wakes: int = 0
    sleeps: int = 0
    shortages: int = 0
    nodes_woken: int = 0
    short_node_s: float = 0.0
    late_s: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def seconds(self) -> NodeSeconds:
        """The whole window."""
        return sum(self.hourly, NodeSeconds())


def play_nodes(
    cluster: SimCluster,
    seats: Sequence[Seat],
    *,
    demand: Demand | None,
    begin_s: int,
    end_s: int,
    power: Power,
    progress: Callable[[float], None],
) -> Played:
    """Replay up to ``end_s``, with the services of ``seats`` asked at the end of each step, and count from ``begin_s``.

    Parameters
    ----------
    demand : Demand, optional
        All of it; at each step the services see what was known then. None: none is shown.
    """
    played = Played()
    first_s = max(begin_s - RUN_IN * STEP_S, cluster.now_s)
    first_s += -first_s % STEP_S
    before = hour = cluster.tally()
    for number, now_s in enumerate(range(first_s, end_s + 1, STEP_S)):
        cluster.advance(now_s)
        tally = cluster.tally()
        if now_s > begin_s:
            _count(played, before, tally)
            if (now_s - begin_s) % HOUR_S == 0 or now_s == end_s:
                played.hourly.append(_between(hour, tally))
                hour = tally
        elif now_s == begin_s:
            hour = tally
        before = tally
        if seats and now_s < end_s:
            _ask(cluster, seats, demand, power)
        if number % STEPS_PER_REPORT == 0:
            progress((now_s - first_s) / max(end_s - first_s, 1))
    progress(1.0)
    started = cluster.started_s <= end_s
    played.late_s = np.where(started, cluster.late_s, 0)
    return played


def _count(played: Played, before: Tally, now: Tally) -> None:
    played.wakes += now.wakes > before.wakes
    played.sleeps += now.sleeps > before.sleeps
    played.shortages += now.delays > before.delays
    played.nodes_woken += now.wakes - before.wakes
    played.short_node_s += now.short_node_s - before.short_node_s


def _between(before: Tally, now: Tally) -> NodeSeconds:
    was, now_is = before.total.to_json(), now.total.to_json()
    return NodeSeconds(**{name: now_is[name] - was[name] for name in now_is})


def _ask(cluster: SimCluster, seats: Sequence[Seat], demand: Demand | None, power: Power) -> None:
    """Let start what can start, then look, ask and act."""
    cluster.next_event_s()
    for seat in seats:
        snapshot = cluster.snapshot()
        seen = snapshot if demand is None else snapshot.with_demand(known_at(demand, cluster.now_s))
        cluster.steer(bounded(_on_nodes(seat.service.decide(seen)), seen, power))


def _on_nodes(actions: Iterable[Action]) -> list[NodeAction]:
    return [
        action for action in actions if isinstance(action, PowerDown | PowerUp | KeepAwake | FillFirst | RestoreNodes)
    ]


def known_at(demand: Demand, now_s: int) -> Demand:
    """Return the part of ``demand`` that was known at the end of the step that ends ``now_s``."""
    n_steps = demand.busy.shape[1] - max(demand.ended_s - now_s, 0) // STEP_S
    return Demand(
        pools=demand.pools,
        ended_s=demand.ended_s - (demand.busy.shape[1] - n_steps) * STEP_S,
        busy=demand.busy[:, :n_steps],
        total=demand.total[:, :n_steps],
        ahead_s=demand.ahead_s,
        levels=demand.levels,
        point=demand.point[:, :n_steps],
        mean=demand.mean[:, :n_steps],
        most=demand.most[:, :n_steps],
        source=demand.source,
    )


def bounded(actions: Iterable[NodeAction], snapshot: Snapshot, power: Power) -> list[NodeAction]:
    """Keep what rails let through: so many nodes on the way at once, so many of a pool asleep; wakes go first."""
    chosen = sorted(actions, key=lambda action: isinstance(action, PowerDown))
    if not any(isinstance(action, PowerDown | PowerUp) for action in chosen):
        return chosen
    nodes = snapshot.nodes
    pool = dict(zip(nodes["name"], pools(nodes), strict=True))
    left = max(int(power.most_in_transition * len(nodes)), 1) - int(nodes["power"].isin(_ON_THE_WAY).sum())
    sizes = pools(nodes).value_counts()
    dark = pools(nodes)[nodes["power"].isin(_DARK)].value_counts()
    may_sleep = {name: int(power.most_asleep * size) - int(dark.get(name, 0)) for name, size in sizes.items()}
    kept: list[NodeAction] = []
    for action in chosen:
        if isinstance(action, PowerDown | PowerUp):
            if left <= 0 or (isinstance(action, PowerDown) and may_sleep[pool[action.node]] <= 0):
                continue
            left -= 1
            may_sleep[pool[action.node]] -= isinstance(action, PowerDown)
        kept.append(action)
    return kept


class Oracle:
    """A service that was told how many nodes of each pool are to be awake after each step; a bound, not a policy.

    Parameters
    ----------
    levels : mapping
        Of each pool the nodes to be awake from the end of each step on.
    ended_s : int
        End of the last of these steps.
    """

    office = Office.NODES
    every = timedelta(seconds=STEP_S)

    def __init__(self, levels: dict[str, NDArray[np.float64]], *, ended_s: int) -> None:
        self._levels, self._ended_s = levels, ended_s

    def decide(self, snapshot: Snapshot) -> list[NodeAction]:
        """Return the nodes to put to sleep and to wake now."""
        nodes = nodes_of(snapshot.nodes, snapshot.taken_at)
        before_end = (self._ended_s - int(snapshot.taken_at.timestamp())) // STEP_S
        actions: list[NodeAction] = []
        for name, levels in self._levels.items():
            mine = [node for node in nodes if node.pool == name]
            surplus = sum(node.powered for node in mine) - int(levels[max(len(levels) - 1 - before_end, 0)])
            woken = to_wake(mine, -surplus, everywhere=nodes)
            actions += [PowerUp(node=node.name, reason="it will be needed") for node in woken]
            slept = to_sleep(mine, surplus, everywhere=nodes)
            actions += [PowerDown(node=node.name, reason="it will not be needed") for node in slept]
        return actions


def levels_of_oracle(demand: Demand, *, boot_s: float, most_wakes: int) -> Oracle:
    """Return the service that knows what is needed, and wakes nodes just in time.

    Parameters
    ----------
    demand : Demand
        Of it only what was needed is looked at.
    most_wakes : int
        How often nodes may be woken, shared out evenly among the pools.
    """
    ahead = 1 + int(-(-boot_s // STEP_S))
    levels = {}
    for place, name in enumerate(demand.pools):
        busy = demand.busy[place]
        coming = [np.append(busy[step:], np.full(step, busy[-1])) for step in range(ahead + 1)]
        needed = np.max(coming, axis=0)
        levels[name] = fewest_levels(needed, most_wakes=max(most_wakes // len(demand.pools), 1))
    return Oracle(levels, ended_s=demand.ended_s)
