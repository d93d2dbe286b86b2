"""What-if of energy policies on a trace of jobs.

The jobs of a cluster's history are replayed, first in first out with EASY backfill, on nodes that sleep and wake. A
job that is placed on a sleeping node waits for its boot. A first replay, in which the cluster's own idle timer puts
nodes to sleep, gives the nodes needed at each step, and forecasts walk forward along it. Then the services act, the
same objects as live, every ten minutes on what was known at that time. Everything before the window is history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import FillFirst, NodeAction, PowerDown, PowerUp
from helios.app.energy.ledger import HOUR_S, tariff_from
from helios.app.energy.whatif_series import RULES, RUN_IN, forecasts_read, policy_result
from helios.app.history import LoadedHistory
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.config import Energy, Power
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.energy import NodeSeconds
from helios.model import STEP_S, Demand, NodePower, Snapshot, pool_names
from helios.ports import Progress, Service, no_progress
from helios.predict.demand.features import campaigns, job_state
from helios.predict.demand.forecaster import walk_forward
from helios.predict.demand.types import DAY, Calendar, assemble
from helios.predict.job_table import JobTable, causal_features, past_mean_s
from helios.report.energy import ChosenRule, EnergyWhatIf, PolicyResult
from helios.services.energy_saving import Ces, CesOptions
from helios.services.node_fill_order import NodeFillOrder
from helios.simulate import SimCluster, Sleep
from helios.simulate.node_series import SeriesRun

# Node services run every ten minutes of a replay of jobs, and what the nodes did meanwhile.

STEPS_PER_REPORT = 144
_ON_THE_WAY = frozenset({NodePower.WAKING, NodePower.FALLING_ASLEEP})
_DARK = frozenset({NodePower.ASLEEP, NodePower.FALLING_ASLEEP})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnergyReplay:
    """What nodes and jobs did in the window of one replay.

    Attributes
    ----------
    run : SeriesRun
        Wakes, sleeps and shortages count steps of ten minutes in which nodes began to wake, to fall asleep, or a job
        had to wait for one.
    late_s : int64 array of shape (n_jobs,)
        How long each job that had started by the end of the window waited for its nodes, s.
    """

    run: SeriesRun
    late_s: NDArray[np.int64]


def replay_nodes(
    cluster: SimCluster,
    active_services: Sequence[Service],
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
    first_s = max(begin_s - RUN_IN * STEP_S, cluster.now_s)
    first_s += -first_s % STEP_S
    before = hour = first = cluster.tally()
    hourly, steps = [], Counter[str]()
    for number, now_s in enumerate(range(first_s, end_s + 1, STEP_S)):
        cluster.advance(now_s)
        tally = cluster.tally()
        if now_s > begin_s:
            steps.update(name for name in ("wakes", "sleeps", "delays") if getattr(tally, name) > getattr(before, name))
            if (now_s - begin_s) % HOUR_S == 0 or now_s == end_s:
                hourly.append(tally.total - hour.total)
                hour = tally
        elif now_s == begin_s:
            hour = first = tally
        before = tally
        if active_services and now_s < end_s:
            _ask(cluster, active_services, demand, power)
        if number % STEPS_PER_REPORT == 0:
            progress((now_s - first_s) / max(end_s - first_s, 1))
    progress(1.0)
    total = sum(hourly, NodeSeconds())
    run = SeriesRun(
        hourly=tuple(hourly),
        wakes=steps["wakes"],
        sleeps=steps["sleeps"],
        woken=before.wakes - first.wakes,
        shortages=steps["delays"],
        short_s=before.short_node_s - first.short_node_s,
        mean_asleep=total.asleep / (end_s - begin_s),
        utilization_before=total.utilization,
    )
    return EnergyReplay(run=run, late_s=np.where(cluster.started_s <= end_s, cluster.late_s, 0))


def _ask(cluster: SimCluster, active_services: Sequence[Service], demand: Demand | None, power: Power) -> None:
    """Run one cycle of the services on the cluster.

    Jobs that can start are started first. Each service sees the changes of those before it.
    """
    cluster.next_event_s()
    for service in active_services:
        snapshot = cluster.snapshot()
        seen = snapshot if demand is None else snapshot.with_demand(demand_known_at(demand, cluster.now_s))
        actions = [action for action in service.decide(seen) if isinstance(action, NodeAction)]
        for action in actions:
            if isinstance(action, FillFirst):
                cluster.fill(action)
        cluster.steer(bound_levels([action for action in actions if not isinstance(action, FillFirst)], seen, power))


def demand_known_at(demand: Demand, now_s: int) -> Demand:
    """Return the part of ``demand`` that was known at ``now_s``.

    ``now_s`` is the end of the last step that is included.
    """
    later = max(demand.ended_s - now_s, 0) // STEP_S
    n_steps = demand.busy.shape[1] - later
    known = {name: getattr(demand, name)[:, :n_steps] for name in ("busy", "total", "point", "mean", "most")}
    return replace(demand, ended_s=demand.ended_s - later * STEP_S, **known)


def bound_levels(actions: Iterable[NodeAction], snapshot: Snapshot, power: Power) -> list[NodeAction]:
    """Drop the power changes that exceed the configured limits.

    ``most_in_transition`` bounds the nodes on the way at once, ``most_asleep`` the sleeping nodes of a pool. Wakes are
    kept before sleeps.
    """
    chosen = sorted(actions, key=lambda action: isinstance(action, PowerDown))
    if not any(isinstance(action, PowerDown | PowerUp) for action in chosen):
        return chosen
    states = snapshot.node_values("power").tolist()
    pools = pool_names(snapshot.node_values("partitions"), snapshot.node_values("gpu_type"))
    pool = dict(zip(snapshot.node_values("name").tolist(), pools, strict=True))
    left = max(int(power.most_in_transition * len(pools)), 1) - sum(state in _ON_THE_WAY for state in states)
    dark = Counter(name for name, state in zip(pools, states, strict=True) if state in _DARK)
    may_sleep = {name: int(power.most_asleep * size) - dark[name] for name, size in Counter(pools).items()}
    kept: list[NodeAction] = []
    for action in chosen:
        if isinstance(action, PowerDown | PowerUp):
            if left <= 0 or (isinstance(action, PowerDown) and may_sleep[pool[action.node]] <= 0):
                continue
            left -= 1
            may_sleep[pool[action.node]] -= isinstance(action, PowerDown)
        kept.append(action)
    return kept


POLICIES = (
    "always_on",
    "idle_timer_10min",
    "idle_timer_30min",
    "max_3h_plus_5",
    "ces_published",
    "ces",
    "node_fill_order",
    "ces+node_fill_order",
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
    """Request to replay the energy of a window.

    Attributes
    ----------
    replay : WhatIfRequest
        The window and the machine; all before the window is history. Its placement is how the site fills its nodes
        without Helios. A site without weights comes near to ``random``: Slurm's own order depends on how nodes became
        free. Every policy meets the same draws of it.
    calendar : Calendar
        The site's.
    options : CesOptions
        Options of CES.
    policies : sequence of str
        Which of ``POLICIES``; ``always_on`` is always included.
    history_days : int
        Days that forecasts learn from, where there are as many.
    """

    replay: WhatIfRequest
    calendar: Calendar
    options: CesOptions = field(default_factory=CesOptions)
    policies: Sequence[str] = POLICIES
    history_days: int = 180

    def __post_init__(self) -> None:
        strangers = [policy for policy in self.policies if policy not in POLICIES]
        if strangers:
            raise UsageError(f"There is no policy {strangers[0]!r}.", hint=f"The policies are {', '.join(POLICIES)}.")


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
    context = _prepare(history, request, energy, power)
    played: dict[str, EnergyReplay] = {}
    for policy in POLICIES:
        if policy in request.policies or policy == "always_on":
            progress(f"Replaying {policy}", 0.0)
            played[policy] = _play(policy, context, progress)
    begin_s, end_s = context.window_s
    machine = context.setup.machine
    return EnergyWhatIf(
        kind="cluster",
        name=history.cluster,
        window=(datetime.fromtimestamp(begin_s, UTC), datetime.fromtimestamp(end_s, UTC)),
        total_nodes=float(machine.shape.nodes.sum()),
        policies=tuple(_result(policy, one, played["always_on"], context) for policy, one in played.items()),
        notes=(*history.notes, *machine.notes, *context.setup.notes, *_notes(context)),
        chosen=context.chosen,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _ServiceContext:
    """Setup that all policies share, with the forecast demand.

    ``demands`` caches forecasts by whether the nodes were packed; ``chosen`` has the last rules of CES.
    """

    request: EnergyJobsRequest
    setup: ReplaySetup
    energy: Energy
    power: Power
    window_s: tuple[int, int]
    demands: dict[bool, Demand] = field(default_factory=dict)
    chosen: tuple[ChosenRule, ...] = ()

    @property
    def looked_back(self) -> int:
        """Steps before the window on which forecasts are made.

        The first rule is chosen on them.
        """
        return RUN_IN + (7 * self.request.options.weeks + 1) * DAY

    def cluster(self, timer_s: int | None = None) -> SimCluster:
        """Return the cluster before its first job."""
        machine = self.setup.machine
        return SimCluster(
            self.setup.workload,
            machine.shape,
            machine.jobs,
            estimates_s=self.setup.limit_s,
            resource=machine.resource,
            placement=self.request.replay.placement,
            seed=self.request.replay.seed,
            sleep=Sleep(
                boot_s=max(round(self.energy.boot_s), 1),
                shutdown_s=max(round(self.energy.shutdown_s), 1),
                idle_timer_s=timer_s,
            ),
        )


def _prepare(history: LoadedHistory, request: EnergyJobsRequest, energy: Energy, power: Power) -> _ServiceContext:
    since, until = request.replay.since, request.replay.until
    first = history.jobs["submitted_at"].min()
    if since is None or until is None or not first + pd.Timedelta(days=1) <= pd.Timestamp(since):
        begins = "" if since is None else f", and the window on {since:%Y-%m-%d %H:%M %Z}"
        raise NotEnoughHistory(
            f"The history of {history.cluster} begins on {first:%Y-%m-%d %H:%M} UTC{begins}: forecasts need at least a "
            "day before the window.",
            hint="Choose --from some weeks after the begin of the history: the forecasts learn from these weeks.",
        )
    asked = replace(request.replay, warm_up=pd.Timestamp(since) - first)
    setup = prepare_replay(history, asked)
    last_s = min(int(until.timestamp()), int(setup.workload.submitted_s[-1]))
    return _ServiceContext(
        request=request,
        setup=setup,
        energy=energy,
        power=power,
        window_s=(int(since.timestamp()) // STEP_S * STEP_S, last_s // STEP_S * STEP_S),
    )


# The policies.


def _play(policy: str, context: _ServiceContext, progress: Progress) -> EnergyReplay:
    active_services = list(_active_services(policy, context))
    forecasts = any(not isinstance(service, NodeFillOrder) for service in active_services)
    played = replay_nodes(
        context.cluster(_TIMERS_S.get(policy)),
        active_services,
        demand=_demand(context, packed="node_fill_order" in policy, progress=progress) if forecasts else None,
        begin_s=context.window_s[0],
        end_s=context.window_s[1],
        power=context.power,
        progress=lambda done: progress(f"Replaying {policy}", done),
    )
    if policy == "ces":
        context.chosen = tuple(
            ChosenRule(pool=pool, days=None, choice=choice)
            for service in active_services
            if isinstance(service, Ces)
            for pool, choice in service.choices.items()
        )
    return played


def _active_services(policy: str, context: _ServiceContext) -> Iterator[Service]:
    options = context.request.options
    if "node_fill_order" in policy:
        yield _node_fill_order(context)
    if policy in RULES:
        yield Ces(replace(options, rule=RULES[policy]))
    elif policy.startswith("ces"):
        yield Ces(options)


def _node_fill_order(context: _ServiceContext) -> Service:
    return NodeFillOrder(NodeFillOrder.Options(tiers=context.power.tiers))


# The needed nodes, and their forecast.


def _demand(context: _ServiceContext, *, packed: bool, progress: Progress) -> Demand:
    """Return the needed nodes of one more replay, and their forecasts.

    The idle timer puts surplus nodes to sleep, because jobs crowd on the other nodes where some sleep.
    """
    if packed not in context.demands:
        cluster = context.cluster(FIRST_TIMER_S)
        if packed:
            replay_nodes(
                cluster,
                [_node_fill_order(context)],
                demand=None,
                begin_s=context.window_s[0] - context.looked_back * STEP_S,
                end_s=context.window_s[1],
                power=context.power,
                progress=lambda done: progress("Replaying node_fill_order from further back", done),
            )
        cluster.advance(context.window_s[1])
        context.demands[packed] = _forecast(context, cluster, progress)
    return context.demands[packed]


def _forecast(context: _ServiceContext, cluster: SimCluster, progress: Progress) -> Demand:
    request, machine, workload = context.request, context.setup.machine, context.setup.workload
    start_s, busy, _ = cluster.busy_nodes(STEP_S)
    n_steps, first = busy.shape[1], (context.window_s[0] - start_s) // STEP_S
    ended_s = start_s + STEP_S * np.arange(1, n_steps + 1, dtype=np.int64)
    # What a prediction at submission without a trained model would have said.
    predicted_s = past_mean_s(causal_features(JobTable.from_frame(machine.jobs, timezone=context.setup.timezone)).X)
    group = campaigns(machine.jobs)
    pools = {}
    for partition, name in enumerate(machine.shape.partitions):
        total = np.full(n_steps, float(machine.shape.nodes[partition]))
        mine = workload.partition == partition
        state = job_state(
            submitted_s=workload.submitted_s[mine],
            started_s=cluster.started_s[mine],
            ended_s=cluster.ended_s[mine],
            nodes=workload.gpus[mine] / float(machine.shape.gpus_per_node[partition]),
            predicted_s=predicted_s[mine],
            group=group[mine],
            ends_of_steps_s=ended_s,
        )
        forecasts = walk_forward(
            busy[partition],
            total,
            start_s=start_s,
            from_step=max(first - context.looked_back, 0),
            until_step=n_steps,
            calendar=request.calendar,
            state=state,
            refit_every_s=REFIT_S,
            history_steps=request.history_days * DAY,
            wanted=forecasts_read(request.options, float(total.max())),
            progress=progress,
        )
        pools[name] = (busy[partition], total, forecasts)
    return assemble(pools, ended_s=int(ended_s[-1]))


# The results.


def _result(policy: str, one: EnergyReplay, always: EnergyReplay, context: _ServiceContext) -> PolicyResult:
    begin_s, end_s = context.window_s
    submitted_s = context.setup.workload.submitted_s
    counted = (submitted_s >= begin_s) & (submitted_s < end_s)
    late_s = one.late_s[counted & (one.late_s > 0)]
    return policy_result(
        policy,
        replace(one.run, utilization_before=always.run.utilization_before),
        always.run,
        context.energy,
        window_s=context.window_s,
        jobs_delayed=len(late_s),
        mean_delay_s=float(late_s.mean()) if len(late_s) else 0.0,
        share_of_jobs_delayed=len(late_s) / max(int(counted.sum()), 1),
        longest_delay_s=float(late_s.max(initial=0)),
    )


def _notes(context: _ServiceContext) -> list[str]:
    source = next((demand.source for demand in context.demands.values()), "none were made")
    return [
        f"Without Helios jobs are placed on nodes by --placement {context.request.replay.placement.value}, awake "
        f"ones first. A "
        "site that sets no weights comes near to random.",
        f"Forecasts: {source}, learned anew each week from what was before it, of the nodes that hold jobs where "
        "the idle timer of 30 min puts the others to sleep.",
        "With the node fill order alone nodes sleep by the cluster's own idle timer of 30 min. Of the rails "
        "power.most_in_transition and power.most_asleep are simulated; every node that is told to wake does.",
        f"A wake-up is a step of 10 min in which nodes begin to wake, for a job or ahead of one; it takes "
        f"{context.energy.boot_s:.0f} s. A job is delayed if it was given a node that was not up yet.",
        *tariff_from(context.energy).notes(*context.window_s),
    ]
