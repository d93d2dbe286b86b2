"""What-if of energy policies on a trace of jobs.

The jobs of a cluster's history are replayed, first in first out with EASY backfill, on nodes that sleep and wake. A
job that is placed on a sleeping node waits for its boot. A first replay, in which the cluster's own idle timer puts
nodes to sleep, gives the nodes needed at each step, and forecasts walk forward along it. Then the services act, the
same objects as live, every ten minutes on what was known at that time. Everything before the window is history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import Action, FillFirst, KeepAwake, NodeAction, PowerDown, PowerUp, RevertNodes
from helios.app.energy.ledger import HOUR_S, tariff_from
from helios.app.history import LoadedHistory
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay, replayed_resource
from helios.config import Energy, Power
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.energy import NodeSeconds, energy_kwh
from helios.metrics.statistics import poisson_interval
from helios.model import STEP_S, Demand, NodePower, Snapshot, pools
from helios.ports import Domain, Progress, Service, no_progress
from helios.predict.demand.features import job_state
from helios.predict.demand.forecaster import walk_forward
from helios.predict.demand.types import DAY, Calendar, assemble
from helios.predict.duration import HistoryPredictor
from helios.predict.job_table import JobTable, causal_features
from helios.report.energy_whatif import EnergyWhatIf, PolicyResult
from helios.services.energy_saving import Ces, CesOptions, published_options
from helios.services.energy_saving.node_choice import pool_nodes, to_sleep, to_wake
from helios.services.node_fill_order import NodeFillOrder
from helios.simulate import NodeTally, Placement, SimCluster, Sleep
from helios.simulate.node_series import fewest_levels

# Node services run every ten minutes of a replay of jobs, and what the nodes did meanwhile.

RUN_IN = 3 * DAY
"""Steps before the window over which every policy already runs, so that its effect has built up."""
STEPS_PER_REPORT = 144
_ON_THE_WAY = frozenset({NodePower.WAKING, NodePower.FALLING_ASLEEP})
_DARK = frozenset({NodePower.ASLEEP, NodePower.FALLING_ASLEEP})


@dataclass(slots=True, kw_only=True)
class EnergyService:
    """Node service that takes part in a replay."""

    service: Service


@dataclass(slots=True, kw_only=True, eq=False)
class EnergyReplay:
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


def replay_nodes(
    cluster: SimCluster,
    active_services: Sequence[EnergyService],
    *,
    demand: Demand | None,
    begin_s: int,
    end_s: int,
    power: Power,
    progress: Callable[[float], None],
) -> EnergyReplay:
    """Replay jobs up to ``end_s`` with services acting on the nodes.

    The services are called at the end of each step, from ``RUN_IN`` steps before the window on. Counting starts at
    ``begin_s``.

    Parameters
    ----------
    demand : Demand, optional
        All of it; at each step the services see what was known then. None: none is shown.
    """
    played = EnergyReplay()
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
        if active_services and now_s < end_s:
            _ask(cluster, active_services, demand, power)
        if number % STEPS_PER_REPORT == 0:
            progress((now_s - first_s) / max(end_s - first_s, 1))
    progress(1.0)
    started = cluster.started_s <= end_s
    played.late_s = np.where(started, cluster.late_s, 0)
    return played


def _count(played: EnergyReplay, before: NodeTally, now: NodeTally) -> None:
    played.wakes += now.wakes > before.wakes
    played.sleeps += now.sleeps > before.sleeps
    played.shortages += now.delays > before.delays
    played.nodes_woken += now.wakes - before.wakes
    played.short_node_s += now.short_node_s - before.short_node_s


def _between(before: NodeTally, now: NodeTally) -> NodeSeconds:
    was, now_is = before.total.to_json(), now.total.to_json()
    return NodeSeconds(**{name: now_is[name] - was[name] for name in now_is})


def _ask(cluster: SimCluster, active_services: Sequence[EnergyService], demand: Demand | None, power: Power) -> None:
    """Run one cycle of the services on the cluster.

    Jobs that can start are started first. Each service sees the changes of those before it.
    """
    cluster.next_event_s()
    for active in active_services:
        snapshot = cluster.snapshot()
        seen = snapshot if demand is None else snapshot.with_demand(demand_known_at(demand, cluster.now_s))
        cluster.steer(bound_levels(_on_nodes(active.service.decide(seen)), seen, power))


def _on_nodes(actions: Iterable[Action]) -> list[NodeAction]:
    return [
        action for action in actions if isinstance(action, PowerDown | PowerUp | KeepAwake | FillFirst | RevertNodes)
    ]


def demand_known_at(demand: Demand, now_s: int) -> Demand:
    """Return the part of ``demand`` that was known at ``now_s``.

    ``now_s`` is the end of the last step that is included.
    """
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


def bound_levels(actions: Iterable[NodeAction], snapshot: Snapshot, power: Power) -> list[NodeAction]:
    """Drop the power changes that exceed the configured limits.

    ``most_in_transition`` bounds the nodes on the way at once, ``most_asleep`` the sleeping nodes of a pool. Wakes are
    kept before sleeps.
    """
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
    """Service that knows how many nodes of each pool will be needed.

    It is a bound for comparison, not a policy that could run.

    Parameters
    ----------
    levels : mapping
        Of each pool the nodes to be awake from the end of each step on.
    ended_s : int
        End of the last of these steps.
    """

    domain = Domain.NODES
    every = timedelta(seconds=STEP_S)

    def __init__(self, levels: dict[str, NDArray[np.float64]], *, ended_s: int) -> None:
        self._levels, self._ended_s = levels, ended_s

    def decide(self, snapshot: Snapshot) -> list[NodeAction]:
        """Return the nodes to put to sleep and to wake now."""
        nodes = pool_nodes(snapshot.nodes, snapshot.taken_at)
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


def oracle_levels(demand: Demand, *, boot_s: float, most_wakes: int) -> Oracle:
    """Return an oracle that wakes the needed nodes just in time.

    Parameters
    ----------
    demand : Demand
        Only the busy nodes in it are used, not the forecasts.
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


POLICIES = (
    "always_on",
    "idle_timer_10min",
    "idle_timer_30min",
    "max_3h_plus_5",
    "ces_published",
    "ces",
    "node_fill_order",
    "ces+node_fill_order",
    "oracle",
)
"""In the order in which they are shown."""
REFIT_S = 7 * 86_400
"""Time between retrainings of the forecasts, s; daily, as live, they are hardly better and take seven times as long."""
FIRST_TIMER_S = 1_800
"""Idle timer of the replay that finds the needed nodes, s."""
_TIMERS_S = {"idle_timer_10min": 600, "idle_timer_30min": 1_800, "node_fill_order": 1_800}
"""Policies under which the cluster's own idle timer puts nodes to sleep, and after how long, s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnergyJobsRequest:
    """Window of a cluster's history to replay, and the machine it ran on.

    Attributes
    ----------
    window : pair of datetime
        First moment that counts, and the first that does not; aware. All before it is history.
    placement : Placement
        How the site fills its nodes without Helios. A site without weights comes near to ``random``: Slurm's own order
        depends on how nodes became free.
    seed : int
        Of that placement; every policy meets the same draws.
    nodes : mapping, optional
        Nodes of each partition; None takes them from the peak demand.
    resource : str, optional
        ``gpus`` or ``cpus``; None: GPUs where any job asks for one.
    calendar : Calendar
        The site's.
    options : CesOptions
        Options of CES.
    policies : sequence of str
        Which of ``POLICIES``; ``always_on`` is always included.
    history_days : int
        Days that forecasts learn from, where there are as many.
    """

    window: tuple[datetime, datetime]
    calendar: Calendar
    placement: Placement = Placement.RANDOM
    seed: int = 0
    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    resource: str | None = None
    skip_oversized: bool = False
    default_time_limit_s: int = 7 * 86_400
    options: CesOptions = field(default_factory=CesOptions)
    policies: Sequence[str] = POLICIES
    history_days: int = 180

    def __post_init__(self) -> None:
        strangers = [policy for policy in self.policies if policy not in POLICIES]
        if strangers:
            raise UsageError(f"there is no policy {strangers[0]!r}", hint=f"The policies are {', '.join(POLICIES)}.")


def energy_on_jobs(
    history: LoadedHistory,
    request: EnergyJobsRequest,
    *,
    energy: Energy,
    power: Power,
    progress: Progress = no_progress,
) -> EnergyWhatIf:
    """Replay a window of a cluster's history under each energy policy.

    Each replay begins with the first job of the history.

    Parameters
    ----------
    energy : Energy
        The model of what nodes draw, how long they boot, and what energy costs.
    power : Power
        Of its limits ``most_in_transition`` and ``most_asleep`` are simulated.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the history, or there is hardly a day before it.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    context = _set(history, request, energy, power)
    played: dict[str, EnergyReplay] = {}
    asked = [policy for policy in POLICIES if policy in request.policies or policy == "always_on"]
    for policy in asked:
        progress(f"Replaying {policy}", 0.0)
        played[policy] = _play(policy, context, played, progress)
    return _answer(history, context, played)


@dataclass(slots=True, kw_only=True, eq=False)
class _ServiceContext:
    """Setup that all policies share, with the forecast demand.

    ``demands`` caches forecasts by whether the nodes were packed.
    """

    request: EnergyJobsRequest
    setup: ReplaySetup
    energy: Energy
    power: Power
    resource: str
    begin_s: int
    end_s: int
    demands: dict[bool, Demand] = field(default_factory=dict)

    def cluster(self, timer_s: int | None = None) -> SimCluster:
        """Return the cluster before its first job."""
        machine = self.setup.machine
        return SimCluster(
            self.setup.workload,
            machine.shape,
            machine.jobs,
            estimates_s=self.setup.limit_s,
            resource=self.resource,
            placement=self.request.placement,
            seed=self.request.seed,
            sleep=Sleep(
                boot_s=max(round(self.energy.boot_s), 1),
                shutdown_s=max(round(self.energy.shutdown_s), 1),
                idle_timer_s=timer_s,
            ),
        )


def _set(history: LoadedHistory, request: EnergyJobsRequest, energy: Energy, power: Power) -> _ServiceContext:
    since, until = request.window
    first = history.jobs["submitted_at"].min()
    if not first + pd.Timedelta(days=1) <= pd.Timestamp(since) < pd.Timestamp(until):
        raise NotEnoughHistory(
            f"{history.cluster} begins on {first:%Y-%m-%d %H:%M} UTC; the window on {since:%Y-%m-%d %H:%M %Z}",
            hint="Ask for a window with some weeks of history before it: they are what is learned from.",
        )
    asked = WhatIfRequest(
        plans=(),
        since=since,
        until=until,
        warm_up=pd.Timestamp(since) - first,
        nodes=request.nodes,
        gpus_per_node=request.gpus_per_node,
        resource=request.resource,
        skip_oversized=request.skip_oversized,
        default_time_limit_s=request.default_time_limit_s,
    )
    setup = prepare_replay(history, asked)
    last_s = min(int(until.timestamp()), int(setup.workload.submitted_s[-1]))
    return _ServiceContext(
        request=request,
        setup=setup,
        energy=energy,
        power=power,
        resource=replayed_resource(history, asked),
        begin_s=int(since.timestamp()) // STEP_S * STEP_S,
        end_s=last_s // STEP_S * STEP_S,
    )


# The policies.


def _play(
    policy: str, context: _ServiceContext, played: Mapping[str, EnergyReplay], progress: Progress
) -> EnergyReplay:
    active_services = list(_active_services(policy, context, played, progress))
    forecasts = any(not isinstance(active.service, NodeFillOrder) for active in active_services)
    return replay_nodes(
        context.cluster(_TIMERS_S.get(policy)),
        active_services,
        demand=_demand(context, packed="node_fill_order" in policy, progress=progress) if forecasts else None,
        begin_s=context.begin_s,
        end_s=context.end_s,
        power=context.power,
        progress=lambda done: progress(f"Replaying {policy}", done),
    )


def _active_services(
    policy: str, context: _ServiceContext, played: Mapping[str, EnergyReplay], progress: Progress
) -> Iterator[EnergyService]:
    options, shape = context.request.options, context.setup.machine.shape
    if "node_fill_order" in policy:
        yield EnergyService(service=NodeFillOrder(NodeFillOrder.Options(tiers=context.power.tiers)))
    if policy in ("ces", "ces+node_fill_order"):
        yield EnergyService(service=Ces(options))
    elif policy == "max_3h_plus_5":
        yield EnergyService(service=Ces(replace(options, rule="max_3h")))
    elif policy == "ces_published":
        yield EnergyService(service=Ces(published_options(options, float(shape.nodes.sum()))))
    elif policy == "oracle":
        demand = _demand(context, packed=False, progress=progress)
        wakes = played["ces"].wakes if "ces" in played else context.setup.counted.size
        yield EnergyService(service=oracle_levels(demand, boot_s=context.energy.boot_s, most_wakes=wakes))


# The needed nodes, and their forecast.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Needed:
    """Busy nodes of each partition by step, and the jobs' times.

    ``busy`` has shape (n_partitions, n_steps).
    """

    start_s: int
    busy: NDArray[np.float64]
    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]


def _demand(context: _ServiceContext, *, packed: bool, progress: Progress) -> Demand:
    if packed not in context.demands:
        context.demands[packed] = _forecast(context, _needed(context, packed=packed, progress=progress), progress)
    return context.demands[packed]


def _needed(context: _ServiceContext, *, packed: bool, progress: Progress) -> _Needed:
    """Replay once more to find how many nodes are needed.

    The idle timer puts surplus nodes to sleep, because jobs crowd on the other nodes where some sleep.
    """
    cluster = context.cluster(FIRST_TIMER_S)
    if packed:
        replay_nodes(
            cluster,
            [EnergyService(service=NodeFillOrder(NodeFillOrder.Options(tiers=context.power.tiers)))],
            demand=None,
            begin_s=context.begin_s - _looked_back(context) * STEP_S,
            end_s=context.end_s,
            power=context.power,
            progress=lambda done: progress("Replaying node_fill_order from further back", done),
        )
    cluster.advance(context.end_s)
    start_s, most, _ = cluster.busy_nodes(STEP_S)
    return _Needed(start_s=start_s, busy=most, started_s=cluster.started_s.copy(), ended_s=cluster.ended_s.copy())


def _looked_back(context: _ServiceContext) -> int:
    """Return how many steps before the window forecasts begin.

    The first thresholds are picked on these steps.
    """
    return RUN_IN + (7 * context.request.options.weeks + 1) * DAY


def _forecast(context: _ServiceContext, needed: _Needed, progress: Progress) -> Demand:
    request, shape = context.request, context.setup.machine.shape
    predicted_s, group = _known_at_submission(context)
    n_steps, first = needed.busy.shape[1], (context.begin_s - needed.start_s) // STEP_S
    ended_s = needed.start_s + STEP_S * np.arange(1, n_steps + 1, dtype=np.int64)
    pools = {}
    for partition, name in enumerate(shape.partitions):
        total = np.full(n_steps, float(shape.nodes[partition]))
        mine = context.setup.workload.partition == partition
        state = job_state(
            submitted_s=context.setup.workload.submitted_s[mine],
            started_s=needed.started_s[mine],
            ended_s=needed.ended_s[mine],
            nodes=context.setup.workload.gpus[mine] / float(shape.gpus_per_node[partition]),
            predicted_s=predicted_s[mine],
            group=group[mine],
            ends_of_steps_s=ended_s,
        )
        forecasts = walk_forward(
            needed.busy[partition],
            total,
            start_s=needed.start_s,
            from_step=max(first - _looked_back(context), 0),
            until_step=n_steps,
            calendar=request.calendar,
            state=state,
            refit_every_s=REFIT_S,
            history_steps=request.history_days * DAY,
            progress=progress,
        )
        pools[name] = (needed.busy[partition], total, forecasts)
    return assemble(pools, ended_s=int(ended_s[-1]))


def _known_at_submission(context: _ServiceContext) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return each job's predicted run time, s, and its campaign.

    The prediction is that of shrinkage at submission. A campaign is the jobs of one user with one name and GPU count.
    """
    jobs = context.setup.machine.jobs
    features = causal_features(JobTable.from_frame(jobs, timezone=context.setup.timezone)).X
    campaign = jobs.groupby(["user", "name", "gpus"], observed=True, dropna=False).ngroup()
    return HistoryPredictor().predict(features)[:, 1], np.asarray(campaign, dtype=np.int64)


# The results.


def _answer(history: LoadedHistory, context: _ServiceContext, played: Mapping[str, EnergyReplay]) -> EnergyWhatIf:
    always = played["always_on"]
    shape = context.setup.machine.shape
    return EnergyWhatIf(
        kind="cluster",
        name=history.cluster,
        window=(datetime.fromtimestamp(context.begin_s, UTC), datetime.fromtimestamp(context.end_s, UTC)),
        total_nodes=float(shape.nodes.sum()),
        policies=tuple(_result(policy, one, always, context) for policy, one in played.items()),
        notes=(*history.notes, *context.setup.machine.notes, *context.setup.notes, *_notes(context)),
    )


def _result(policy: str, one: EnergyReplay, always: EnergyReplay, context: _ServiceContext) -> PolicyResult:
    length_s = context.end_s - context.begin_s
    days = length_s / 86_400
    kwh, always_kwh = (np.array([energy_kwh(hour, context.energy) for hour in whose.hourly]) for whose in (one, always))
    edges_s = np.append(context.begin_s + HOUR_S * np.arange(len(kwh)), context.end_s)
    cost, co2_kg = tariff_from(context.energy).cost_of(kwh, edges_s=edges_s)
    submitted_s = context.setup.workload.submitted_s
    counted = (submitted_s >= context.begin_s) & (submitted_s < context.end_s)
    late_s = one.late_s[counted & (one.late_s > 0)]
    return PolicyResult(
        policy=policy,
        mean_sleeping_nodes=one.seconds.asleep / length_s,
        node_utilization_before=always.seconds.utilization,
        node_utilization_after=one.seconds.utilization,
        wakeups_per_day=one.wakes / days,
        sleeps_per_day=one.sleeps / days,
        short_node_events_per_day=one.shortages / days,
        jobs_delayed=len(late_s),
        mean_delay_s=float(late_s.mean()) if len(late_s) else 0.0,
        energy_kwh=float(kwh.sum()),
        wakeups_per_day_interval=poisson_interval(one.wakes, days),
        nodes_per_wakeup=one.nodes_woken / one.wakes if one.wakes else None,
        node_hours_short=one.short_node_s / HOUR_S,
        share_of_jobs_delayed=len(late_s) / max(int(counted.sum()), 1),
        longest_delay_s=float(late_s.max(initial=0)),
        cost=float(cost.sum()),
        currency=context.energy.currency,
        co2_kg=float(co2_kg.sum()),
        saved_kwh=float(always_kwh.sum() - kwh.sum()),
    )


def _notes(context: _ServiceContext) -> list[str]:
    source = next((demand.source for demand in context.demands.values()), "none were made")
    return [
        f"Without Helios jobs are placed on nodes by --placement {context.request.placement.value}, awake "
        f"ones first. A "
        "site that sets no weights comes near to random.",
        f"Forecasts: {source}, learned anew each week from what was before it, of the nodes that hold jobs where "
        "the idle timer of 30 min puts the others to sleep.",
        "With the node fill order alone nodes sleep by the cluster's own idle timer of 30 min. Of the rails "
        "power.most_in_transition and power.most_asleep are simulated; every node that is told to wake does.",
        f"A wake-up is a step of 10 min in which nodes begin to wake, for a job or ahead of one; it takes "
        f"{context.energy.boot_s:.0f} s. A job is delayed if it was given a node that was not up yet.",
        "The oracle knows what will be needed, as it was in that replay, and is asked to wake no oftener than CES did.",
        *tariff_from(context.energy).notes(context.begin_s, context.end_s),
    ]
