"""What-if of energy policies on a trace of jobs or on busy nodes.

On a trace, the jobs of a cluster's history are replayed, first in first out with EASY backfill, on nodes that sleep and
wake. A job that is placed on a sleeping node waits for its boot. A first replay, in which the cluster's own idle timer
puts nodes to sleep, returns the nodes needed at each step, and forecasts walk forward along it. Then the services, the
same objects as live, act every ten minutes on what was known at that time. Everything before the window is history.

On a series of busy nodes, only the oracle and foresight know the future. Forecasts walk forward and are trained on what
was before. The rule of CES is chosen at each midnight from the weeks before. A decision at the end of a step is in
force from the next one on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.energy.ledger import HOUR_S, tariff_from
from helios.app.energy.spare_nodes import (
    PLAIN_RULE,
    TIMER_S,
    choose_spare_nodes,
    chosen_rules,
    levels_of_oracle,
    oracle_run,
    safe_rules,
    use_of_pools,
)
from helios.app.history import LoadedHistory
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.changes import to_node_changes
from helios.config import Energy, Power
from helios.control.guards import PowerBudget, bound_power_changes
from helios.control.observed import observed_nodes
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.metrics.spare_nodes import CHECK_S, DELAYED_SUBMISSIONS, WEEKS, AwakeRule, SpareChoice
from helios.metrics.statistics import poisson_interval
from helios.model import STEP_S, Demand, NodeSeries
from helios.ports import Progress, Service, no_progress
from helios.predict.demand.features import campaigns, job_state
from helios.predict.demand.forecaster import walk_forward
from helios.predict.demand.types import AHEAD_S, DAY, Calendar, Forecasts, Wanted, assemble
from helios.predict.job_table import JobTable, causal_features, past_mean_s
from helios.report.energy import ChosenRule, ChosenSpare, EnergyWhatIf, FrontRow, PolicyResult
from helios.services.energy_saving import LARGE, LONGEST_S, Ces, CesOptions, Choice, published_values, target_levels
from helios.simulate import SimCluster, Sleep
from helios.simulate.node_series import SeriesRun, fewest_levels, idle_timer_levels, replay_levels
from helios.slurm.node_weights import BLOCK_NODES
from helios.units import DAY_S, count_in_words, percent, rounded_duration

Steps = NDArray[np.float64]

RUN_IN = 3 * DAY
"""Steps before the window over which every policy already runs, so that its effect has built up."""
TIMERS_MIN = (10, 30)
RULES: Mapping[str, Any] = {"max_3h_plus_5": "max_3h", "ces_published": "published"}
"""Policies that are CES with a fixed rule, and the name of that rule in its options; on jobs the core has the first."""
FRONT = range(17)
"""Numbers of spare nodes that are shown."""
_WITH_SPARE = frozenset({"spare_nodes", "timer_and_spare", "timer_and_floor"})
"""Policies with the chosen number of spare nodes."""


STEPS_PER_REPORT = 144


POLICIES = (
    "always_on",
    "idle_timer_10min",
    "idle_timer_30min",
    "max_3h_plus_5",
    "ces_published",
    "ces",
    "node_fill_order",
    "ces+node_fill_order",
    "timer_and_spare",
    "timer_and_floor",
    "spare_nodes",
    "oracle",
)
"""In the order in which they are shown."""
REFIT_S = 7 * DAY_S
"""Time between trainings of forecasts, s. Daily training, as live, is little better and takes seven times as long."""
FIRST_TIMER_S = 1_800
"""Idle timer of the replay that finds the needed nodes, s."""
_TIMERS_S = {"idle_timer_10min": 600, "idle_timer_30min": 1_800, "node_fill_order": 1_800}
"""Policies under which the cluster's own idle timer puts nodes to sleep, and after how long, s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnergySeriesRequest:
    """Series of busy nodes, and the window to replay.

    Attributes
    ----------
    series : NodeSeries
        Its step divides ten minutes.
    window : pair of datetime
        First moment that counts, and the first that does not; aware. All before it is history.
    calendar : Calendar
        The site's.
    options : CesOptions
        Options of CES.
    gpus_per_node : int
        All of them draw power while a node is busy.
    forecasts : Forecasts, optional
        A row for each step of ten minutes of the series, made before so that many windows can share them.
    """

    series: NodeSeries
    window: tuple[datetime, datetime]
    calendar: Calendar
    options: CesOptions = field(default_factory=CesOptions)
    gpus_per_node: int = 8
    forecasts: Forecasts | None = None


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
    delayed_submissions : float
        Share of submissions that may wait for a boot, on which the spare nodes are chosen.
    """

    replay: WhatIfRequest
    calendar: Calendar
    options: CesOptions = field(default_factory=CesOptions)
    policies: Sequence[str] = POLICIES
    history_days: int = 180
    delayed_submissions: float = DELAYED_SUBMISSIONS

    def __post_init__(self) -> None:
        unknown = [policy for policy in self.policies if policy not in POLICIES]
        if unknown:
            raise UsageError(f"There is no policy {unknown[0]!r}.", hint=f"The policies are {', '.join(POLICIES)}.")


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
    gpu_utilization : float, optional
        GPUs in use over those of powered nodes; None where nodes have no GPUs, or none was powered.
    """

    run: SeriesRun
    late_s: NDArray[np.int64]
    gpu_utilization: float | None = None


def energy_on_series(
    request: EnergySeriesRequest, *, energy: Energy, history_days: int = 180, progress: Progress = no_progress
) -> EnergyWhatIf:
    """Run every policy over the window of a series.

    Parameters
    ----------
    energy : Energy
        The model of what nodes draw, and what it costs.
    history_days : int
        Days that forecasts learn from, where there are as many.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the series, or there is hardly a day before it.
    """
    aligned = _align(request)
    demand = _forecast_series(aligned, request, history_days=history_days, progress=progress)
    runs: dict[str, SeriesRun] = {}
    for number, (policy, levels, every_step) in enumerate(_policies(aligned, demand, request.options)):
        progress(f"Replaying {policy}", number / 7)
        runs[policy] = _replay(aligned, levels, energy, request.gpus_per_node, may_sleep_between=every_step)
    needed = np.maximum(aligned.busy, np.append(aligned.busy[1:], aligned.busy[-1]))[aligned.first :]
    # It knows a step ahead, which is a boot.
    levels = aligned.foreseen_levels(fewest_levels(needed, most_wakes=runs["ces"].wakes))
    runs["foresight"] = _replay(aligned, levels, energy, request.gpus_per_node)
    levels = levels_of_oracle(
        aligned.fine_busy[aligned.run_in * aligned.fine_per_step :], energy, step_s=aligned.step_s
    )
    runs["oracle"] = _replay(aligned, levels, energy, request.gpus_per_node, may_sleep_between=True)
    progress("Replaying oracle", 1.0)
    window_s = (aligned.start_s + aligned.first * STEP_S, aligned.ended_s)
    return EnergyWhatIf(
        kind="series",
        name=request.series.name,
        window=(datetime.fromtimestamp(window_s[0], UTC), datetime.fromtimestamp(window_s[1], UTC)),
        total_nodes=float(aligned.total[aligned.first :].mean()),
        policies=tuple(
            policy_result(policy, run, runs["always_on"], energy, window_s=window_s) for policy, run in runs.items()
        ),
        notes=(*request.series.notes, *_notes_on_series(aligned, request, energy, demand.source)),
        chosen=_chosen_rules(aligned, request, demand),
    )


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
        Of its rails those on how many nodes may sleep and change their power at once are simulated.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the history, or there is hardly a day before it.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    context = _prepare(history, request, energy, power)
    replays: dict[str, EnergyReplay] = {}
    for policy in POLICIES:
        if policy != "oracle" and (policy in request.policies or policy == "always_on"):
            progress(f"Replaying {policy}", 0.0)
            replays[policy] = _replay_policy(policy, context, progress)
    if "oracle" in request.policies:
        replays["oracle"] = _oracle(context, replays["always_on"], progress)
    begin_s, end_s = context.window_s
    machine = context.setup.machine
    results = {policy: _result(policy, replay, replays, context) for policy, replay in replays.items()}
    front = _front(context, replays, progress) if "spare_nodes" in request.policies else ()
    return EnergyWhatIf(
        kind="cluster",
        name=history.cluster,
        window=(datetime.fromtimestamp(begin_s, UTC), datetime.fromtimestamp(end_s, UTC)),
        total_nodes=float(machine.shape.nodes.sum()),
        policies=tuple(results.values()),
        notes=(*history.notes, *machine.notes, *context.setup.notes, *_notes(context)),
        chosen=context.chosen,
        front=front,
        spare=tuple(
            ChosenSpare(pool=pool, spare=choice.rule.spare, memory_s=choice.rule.memory_s, reason=choice.reason)
            for pool, choice in context.spare_choices.items()
        ),
    )


def policy_result(
    policy: str,
    run: SeriesRun,
    always_on: SeriesRun,
    energy: Energy,
    *,
    window_s: tuple[int, int],
    **job_fields: Any,
) -> PolicyResult:
    """Return the result of a policy against always on.

    ``job_fields`` are the fields of ``PolicyResult`` that only a replay of jobs has.
    """
    begin_s, end_s = window_s
    days = (end_s - begin_s) / DAY_S
    kwh, always_kwh = (np.array([energy_kwh(hour, energy) for hour in replay.hourly]) for replay in (run, always_on))
    done, always_done = _work(run.seconds), _work(always_on.seconds)
    edges_s = np.append(begin_s + HOUR_S * np.arange(len(kwh)), end_s)
    cost, co2_kg = tariff_from(energy).cost_of(kwh, edges_s=edges_s)
    return PolicyResult(
        policy=policy,
        mean_sleeping_nodes=run.mean_asleep,
        node_utilization_before=run.utilization_before,
        node_utilization_after=run.seconds.utilization,
        wakeups_per_day=run.wakes / days,
        sleeps_per_day=run.sleeps / days,
        short_node_events_per_day=run.shortages / days,
        energy_kwh=float(kwh.sum()),
        wakeups_per_day_interval=poisson_interval(run.wakes, days),
        nodes_per_wakeup=run.woken / run.wakes if run.wakes else None,
        node_hours_short=run.short_s / HOUR_S,
        cost=float(cost.sum()),
        currency=energy.currency,
        co2_kg=float(co2_kg.sum()),
        saved_kwh=float(always_kwh.sum() * (done / always_done if always_done else 1.0) - kwh.sum()),
        **job_fields,
    )


def _work(seconds: NodeSeconds) -> float:
    return seconds.gpus_busy + seconds.cpus_busy


def forecasts_read(options: CesOptions, nodes: float) -> Wanted:
    """Return the parts of forecasts of a pool that CES reads."""
    mean_s = 2 * published_values(options, nodes)["f_s"]
    mean, most = (AHEAD_S[: bisect_left(AHEAD_S, longest_s) + 1] for longest_s in (mean_s, LONGEST_S))
    return Wanted(point=(), mean=mean, most=most)


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
        All of it; at each step the services see what was known then. Without it, they see none.
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
            _run_services(cluster, active_services, demand, power)
        if number % STEPS_PER_REPORT == 0:
            progress((now_s - first_s) / max(end_s - first_s, 1))
    progress(1.0)
    total = sum(hourly, NodeSeconds())
    powered_gpu_s = sum(
        (seconds - first.seconds[partition]).powered * cluster.gpus_per_node[partition]
        for partition, seconds in before.seconds.items()
    )
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
    return EnergyReplay(
        run=run,
        late_s=np.where(cluster.started_s <= end_s, cluster.late_s, 0),
        gpu_utilization=total.gpus_busy / powered_gpu_s if total.gpus_busy and powered_gpu_s else None,
    )


def demand_known_at(demand: Demand, now_s: int) -> Demand:
    """Return the part of ``demand`` that was known at ``now_s``.

    ``now_s`` is the end of the last step that is included.
    """
    later = max(demand.ended_s - now_s, 0) // STEP_S
    n_steps = demand.busy.shape[1] - later
    known = {name: getattr(demand, name)[:, :n_steps] for name in ("busy", "total", "point", "mean", "most")}
    return replace(demand, ended_s=demand.ended_s - later * STEP_S, **known)


def _chosen_rules(aligned: _AlignedSeries, request: EnergySeriesRequest, demand: Demand) -> tuple[ChosenRule, ...]:
    """Return the rules of CES, the most used first."""
    _, choices = target_levels(demand, 0, request.options, from_step=aligned.run_in)
    choices_by_rule: dict[str, list[Choice]] = {}
    for place, (begins, choice) in enumerate(choices):
        ends = choices[place + 1][0] if place + 1 < len(choices) else len(aligned.busy)
        # The step that ends at midnight counts as the next day's.
        if ends - max(begins, aligned.first) > 1:
            choices_by_rule.setdefault(choice.rule.name if choice.rule else "", []).append(choice)
    rules = [
        ChosenRule(pool=request.series.name, days=len(rule_choices), choice=rule_choices[-1])
        for rule_choices in choices_by_rule.values()
    ]
    return tuple(sorted(rules, key=lambda rule: -(rule.days or 0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AlignedSeries:
    """Series in whole decision steps, in both resolutions.

    ``fine_*`` are in the series' own steps, the others in decision steps of ``STEP_S``.

    Attributes
    ----------
    first : int
        First decision step that counts.
    fine_per_step : int
        Fine steps of a decision step.
    """

    start_s: int
    step_s: int
    first: int
    fine_per_step: int
    fine_busy: Steps
    fine_total: Steps
    busy: Steps
    total: Steps

    @property
    def run_in(self) -> int:
        """First decision step that is replayed."""
        return max(self.first - RUN_IN, 0)

    @property
    def ended_s(self) -> int:
        return self.start_s + STEP_S * len(self.busy)

    def in_force(self, levels: Steps) -> Steps:
        """Spread levels over the fine steps in which they are in force.

        Each level is decided at the end of a decision step, from ``run_in`` on, and holds during the next one.
        """
        return np.repeat(np.concatenate([[np.inf], levels[:-1]]), self.fine_per_step)

    def foreseen_levels(self, levels: Steps) -> Steps:
        """Resample levels to fine steps."""
        return np.repeat(np.concatenate([np.full(self.first - self.run_in, levels[0]), levels]), self.fine_per_step)


def _align(request: EnergySeriesRequest) -> _AlignedSeries:
    series, step_s = request.series, request.series.step_s
    if STEP_S % step_s:
        raise NotEnoughHistory(
            f"{series.name} has steps of {step_s} s, and {STEP_S} s is no multiple of that.",
            hint="Give a series with a value each minute, or each ten minutes.",
        )
    fine_per_step = STEP_S // step_s
    begin_s, end_s = (int(moment.timestamp()) for moment in request.window)
    skipped = -series.start_s % STEP_S // step_s
    start_s = series.start_s + skipped * step_s
    end_step = (end_s - start_s) // STEP_S
    first_step = -(-(begin_s - start_s) // STEP_S)
    n_steps = (len(series) - skipped) // fine_per_step
    if not DAY <= first_step < end_step <= n_steps:
        raise NotEnoughHistory(
            f"The window from {_format_time(begin_s)} to {_format_time(end_s)} cannot be replayed: {series.name} spans "
            f"{_format_time(start_s)} to {_format_time(start_s + n_steps * STEP_S)}, and forecasts need at least a day "
            "before the window.",
            hint="Choose --from and --to within the series, with some weeks before --from to learn from.",
        )
    fine = slice(skipped, skipped + end_step * fine_per_step)
    total = series.total[fine].astype(np.float64)
    busy = np.minimum(series.active[fine], total).astype(np.float64)
    return _AlignedSeries(
        start_s=start_s,
        step_s=step_s,
        first=first_step,
        fine_per_step=fine_per_step,
        fine_busy=busy,
        fine_total=total,
        busy=busy.reshape(-1, fine_per_step).max(axis=1),
        total=total.reshape(-1, fine_per_step).max(axis=1),
    )


def _forecast_series(
    aligned: _AlignedSeries, request: EnergySeriesRequest, *, history_days: int, progress: Progress
) -> Demand:
    """Return the series with forecasts.

    It begins with the weeks that choose the first rule.
    """
    if (forecasts := request.forecasts) is not None:
        rows = slice(len(aligned.busy))
        forecasts = replace(
            forecasts, point=forecasts.point[rows], mean=forecasts.mean[rows], most=forecasts.most[rows]
        )
        return assemble({request.series.name: (aligned.busy, aligned.total, forecasts)}, ended_s=aligned.ended_s)
    begin = max(aligned.run_in - (7 * request.options.weeks + 1) * DAY, 0)
    # Before the replay, where forecasts only choose rules, training once a week is enough.
    parts = [
        walk_forward(
            aligned.busy,
            aligned.total,
            start_s=aligned.start_s,
            from_step=first,
            until_step=until,
            calendar=request.calendar,
            history_steps=history_days * DAY,
            refit_every_s=refit_s,
            wanted=forecasts_read(request.options, float(aligned.total.max())),
            progress=progress,
        )
        for first, until, refit_s in ((begin, aligned.run_in, 7 * DAY_S), (aligned.run_in, len(aligned.busy), DAY_S))
        if first < until
    ]
    forecasts = replace(
        parts[-1],
        point=np.concatenate([part.point for part in parts]),
        mean=np.concatenate([part.mean for part in parts]),
        most=np.concatenate([part.most for part in parts]),
    )
    return assemble({request.series.name: (aligned.busy, aligned.total, forecasts)}, ended_s=aligned.ended_s)


def _policies(aligned: _AlignedSeries, demand: Demand, options: CesOptions) -> Iterator[tuple[str, Steps, bool]]:
    """Yield each policy with its levels over the fine steps.

    Levels start with the run-in. The last value is whether nodes may fall asleep at any fine step.
    """
    fine = aligned.fine_busy[aligned.run_in * aligned.fine_per_step :]
    yield "always_on", np.full(len(fine), np.inf), False
    for minutes in TIMERS_MIN:
        yield f"idle_timer_{minutes}min", idle_timer_levels(fine, steps=minutes * 60 // aligned.step_s), True
    ces_options = {policy: replace(options, rule=rule) for policy, rule in RULES.items()} | {"ces": options}
    for policy, ces_option in ces_options.items():
        levels, _ = target_levels(demand, 0, ces_option, from_step=aligned.run_in)
        yield policy, aligned.in_force(levels), False


def _replay(
    aligned: _AlignedSeries, levels: Steps, energy: Energy, gpus_per_node: int, *, may_sleep_between: bool = False
) -> SeriesRun:
    from_step = aligned.run_in * aligned.fine_per_step
    run = replay_levels(
        aligned.fine_busy[from_step:],
        aligned.fine_total[from_step:],
        levels,
        step_s=aligned.step_s,
        decide_every=aligned.fine_per_step,
        boot_s=energy.boot_s,
        shutdown_s=energy.shutdown_s,
        count_from=(aligned.first - aligned.run_in) * aligned.fine_per_step,
        may_sleep_between=may_sleep_between,
    )
    # The work of nodes that were short is done later, so a policy that delays it saves nothing by that.
    load = gpus_per_node * (1 + run.short_s / (run.seconds.busy or 1.0))
    return replace(run, hourly=tuple(replace(hour, gpus_busy=hour.busy * load) for hour in run.hourly))


def _notes_on_series(aligned: _AlignedSeries, request: EnergySeriesRequest, energy: Energy, source: str) -> list[str]:
    large = float(aligned.total.max()) >= LARGE
    return [
        f"Forecasts: {source}, learned anew each day from what was before it, each week before the window. The rule of "
        f"CES is chosen at midnight (UTC) from up to {request.options.weeks} weeks before.",
        f"The rule as published, made causal, with its authors' values for {'Philly' if large else 'Earth'}.",
        f"A wake-up is a step of 10 min in which nodes are woken; they serve after {energy.boot_s:.0f} s. The series "
        "stays as it was where nodes are short; there are no jobs in it, so none is delayed.",
        f"A busy node has all its {request.gpus_per_node} GPUs busy. The idle timers are at their best: nodes are "
        "filled in a fixed order. The oracle knows the future and sleeps through every idle time that is long enough, "
        "with as many wake-ups as that takes; foresight knows it too, and wakes no oftener than CES.",
        *tariff_from(energy).notes(aligned.start_s + aligned.first * STEP_S, aligned.ended_s),
    ]


def _format_time(moment_s: int) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M} UTC"


def _run_services(cluster: SimCluster, active_services: Sequence[Service], demand: Demand | None, power: Power) -> None:
    """Run one cycle of the services on the cluster.

    Jobs that can start are started first. Each service sees the changes of those before it.
    """
    cluster.next_event_s()
    for service in active_services:
        snapshot = cluster.snapshot()
        visible = snapshot if demand is None else snapshot.with_demand(demand_known_at(demand, cluster.now_s))
        changes = to_node_changes(list(service.decide(visible))).changes
        if changes:
            nodes = observed_nodes(visible)
            allowed, _ = bound_power_changes({"": changes}, nodes, PowerBudget(nodes, power))
            cluster.steer(allowed[""])


@dataclass(slots=True, kw_only=True, eq=False)
class _ServiceContext:
    """Setup that all policies share, with the forecast demand.

    ``demands`` caches forecasts by whether nodes are filled in an order; ``chosen`` has the last rules of CES,
    ``safe_cluster`` the replay under the safe rule, on which ``spare_choices`` are made.
    """

    request: EnergyJobsRequest
    setup: ReplaySetup
    energy: Energy
    power: Power
    window_s: tuple[int, int]
    demands: dict[bool, Demand] = field(default_factory=dict)
    chosen: tuple[ChosenRule, ...] = ()
    spare_choices: dict[str, SpareChoice] = field(default_factory=dict)
    safe_cluster: SimCluster | None = None

    @property
    def lookback_steps(self) -> int:
        """Steps before the window with forecasts, on which the first rule is chosen."""
        return RUN_IN + (7 * self.request.options.weeks + 1) * DAY

    def cluster(
        self, timer_s: int | None = None, rules: tuple[AwakeRule, ...] = (), *, in_blocks: bool = False
    ) -> SimCluster:
        """Return the cluster before its first job.

        ``in_blocks`` has nodes filled in the order of ``helios power weights``.
        """
        machine = self.setup.machine
        cluster = SimCluster(
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
                rules=rules,
            ),
        )
        if in_blocks:
            nodes = cluster.snapshot().nodes
            block = nodes.groupby("partitions", observed=True).cumcount() // BLOCK_NODES
            cluster.fill([names.tolist() for _, names in nodes["name"].groupby(block)])
        return cluster


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
    replay_request = replace(request.replay, warm_up=pd.Timestamp(since) - first)
    setup = prepare_replay(history, replay_request)
    last_s = min(int(until.timestamp()), int(setup.workload.submitted_s[-1]))
    return _ServiceContext(
        request=request,
        setup=setup,
        energy=energy,
        power=power,
        window_s=(int(since.timestamp()) // STEP_S * STEP_S, last_s // STEP_S * STEP_S),
    )


def _replay_policy(policy: str, context: _ServiceContext, progress: Progress) -> EnergyReplay:
    if policy == "max_3h_plus_5":
        return _replay_rules(policy, (PLAIN_RULE,) * len(context.setup.machine.shape.partitions), context, progress)
    if policy in _WITH_SPARE:
        timer = {"timer_and_spare": True, "timer_and_floor": False}.get(policy)
        return _replay_rules(policy, chosen_rules(_spare_choices(context), timer=timer), context, progress)
    active_services = list(_active_services(policy, context))
    in_blocks = "node_fill_order" in policy
    replay = replay_nodes(
        context.cluster(_TIMERS_S.get(policy), in_blocks=in_blocks),
        active_services,
        demand=_demand(context, packed=in_blocks, progress=progress) if active_services else None,
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
    return replay


def _replay_rules(
    name: str, rules: tuple[AwakeRule, ...], context: _ServiceContext, progress: Progress
) -> EnergyReplay:
    return replay_nodes(
        context.cluster(rules=rules),
        (),
        demand=None,
        begin_s=context.window_s[0],
        end_s=context.window_s[1],
        power=context.power,
        progress=lambda done: progress(f"Replaying {name}", done),
    )


def _safe_cluster(context: _ServiceContext) -> SimCluster:
    """Return the cluster after a replay under the safe rule."""
    if context.safe_cluster is None:
        context.safe_cluster = context.cluster(rules=safe_rules(context.setup.machine.shape))
        context.safe_cluster.advance(context.window_s[1])
    return context.safe_cluster


def _spare_choices(context: _ServiceContext) -> dict[str, SpareChoice]:
    if not context.spare_choices:
        context.spare_choices = choose_spare_nodes(
            _safe_cluster(context),
            context.setup.workload,
            context.setup.machine.shape,
            context.energy,
            before_s=context.window_s[0],
            delayed_submissions=context.request.delayed_submissions,
        )
    return context.spare_choices


def _oracle(context: _ServiceContext, always_on: EnergyReplay, progress: Progress) -> EnergyReplay:
    progress("Replaying oracle", 0.0)
    begin_s, end_s = context.window_s
    setup = context.setup
    uses = use_of_pools(_safe_cluster(context), setup.workload, setup.machine.shape, begin_s=begin_s, end_s=end_s)
    run = oracle_run(uses, context.energy, always_on.run)
    progress("Replaying oracle", 1.0)
    return EnergyReplay(run=run, late_s=np.zeros_like(always_on.late_s))


def _front(context: _ServiceContext, replays: Mapping[str, EnergyReplay], progress: Progress) -> tuple[FrontRow, ...]:
    """Return what each number of spare nodes comes to, with the price of the last."""
    rows: list[FrontRow] = []
    days = (context.window_s[1] - context.window_s[0]) / DAY_S
    most = int(context.setup.machine.shape.nodes.max())
    for spare in (spare for spare in FRONT if spare <= most):
        name = count_in_words(spare, "spare node")
        rules = chosen_rules(_spare_choices(context), spare=spare)
        result = _result("spare_nodes", _replay_rules(name, rules, context, progress), replays, context)
        fewer = rows[-1].result if rows else None
        rows.append(
            FrontRow(
                spare=spare,
                result=result,
                last_costs_kwh_day=None if fewer is None else (fewer.saved_kwh - result.saved_kwh) / days,
                last_spares_day=None
                if fewer is None
                else ((fewer.submissions_delayed or 0) - (result.submissions_delayed or 0)) / days,
            )
        )
    return tuple(rows)


def _active_services(policy: str, context: _ServiceContext) -> Iterator[Service]:
    options = context.request.options
    if policy in RULES:
        yield Ces(replace(options, rule=RULES[policy]))
    elif policy.startswith("ces"):
        yield Ces(options)


def _demand(context: _ServiceContext, *, packed: bool, progress: Progress) -> Demand:
    """Return the needed nodes and their forecasts.

    They come from a replay with an idle timer that puts surplus nodes to sleep, because jobs use fewer nodes where some
    sleep.
    """
    if packed not in context.demands:
        cluster = context.cluster(FIRST_TIMER_S, in_blocks=packed)
        cluster.advance(context.window_s[1])
        context.demands[packed] = _forecast(context, cluster, progress)
    return context.demands[packed]


def _forecast(context: _ServiceContext, cluster: SimCluster, progress: Progress) -> Demand:
    request, machine, workload = context.request, context.setup.machine, context.setup.workload
    start_s, busy, _ = cluster.busy_nodes(STEP_S)
    n_steps, first = busy.shape[1], (context.window_s[0] - start_s) // STEP_S
    ended_s = start_s + STEP_S * np.arange(1, n_steps + 1, dtype=np.int64)
    # Predictions at submission, without a trained model.
    predicted_s = past_mean_s(causal_features(JobTable.from_frame(machine.jobs, timezone=context.setup.timezone)).X)
    group = campaigns(machine.jobs)
    pools = {}
    for partition, name in enumerate(machine.shape.partitions):
        total = np.full(n_steps, float(machine.shape.nodes[partition]))
        in_pool = workload.partition == partition
        state = job_state(
            submitted_s=workload.submitted_s[in_pool],
            started_s=cluster.started_s[in_pool],
            ended_s=cluster.ended_s[in_pool],
            nodes=workload.gpus[in_pool] / float(machine.shape.gpus_per_node[partition]),
            predicted_s=predicted_s[in_pool],
            group=group[in_pool],
            ends_of_steps_s=ended_s,
        )
        forecasts = walk_forward(
            busy[partition],
            total,
            start_s=start_s,
            from_step=max(first - context.lookback_steps, 0),
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


def _result(
    policy: str, replay: EnergyReplay, replays: Mapping[str, EnergyReplay], context: _ServiceContext
) -> PolicyResult:
    begin_s, end_s = context.window_s
    always, workload = replays["always_on"].run, context.setup.workload
    counted = (workload.submitted_s >= begin_s) & (workload.submitted_s < end_s)
    late = counted & (replay.late_s > 0)
    late_s = replay.late_s[late]
    # A minute in which jobs were submitted to a partition counts once, as one array would else decide for months.
    minute = workload.submitted_s // CHECK_S * len(context.setup.machine.shape.partitions) + workload.partition
    submissions, delayed = len(np.unique(minute[counted])), len(np.unique(minute[late]))
    result = policy_result(
        policy,
        replace(replay.run, utilization_before=always.utilization_before),
        always,
        context.energy,
        window_s=context.window_s,
        jobs_delayed=len(late_s),
        mean_delay_s=float(late_s.mean()) if len(late_s) else 0.0,
        share_of_jobs_delayed=len(late_s) / max(int(counted.sum()), 1),
        longest_delay_s=float(late_s.max(initial=0)),
        submissions_delayed=delayed,
        share_of_submissions_delayed=delayed / max(submissions, 1),
        added_wait_s=float(late_s.sum()) / max(int(counted.sum()), 1),
        cycles_per_node_day=replay.run.woken * DAY_S / (end_s - begin_s) / int(context.setup.machine.shape.nodes.sum()),
        gpu_utilization=replay.gpu_utilization,
    )
    if "oracle" not in replays:
        return result
    oracle = policy_result("oracle", replays["oracle"].run, always, context.energy, window_s=context.window_s)
    return replace(result, share_of_oracle=result.saved_kwh / oracle.saved_kwh if oracle.saved_kwh > 0 else None)


def _notes(context: _ServiceContext) -> list[str]:
    source = next((demand.source for demand in context.demands.values()), "none were made")
    return [
        f"Without Helios jobs are placed on nodes by --placement {context.request.replay.placement.value}, awake "
        f"ones first. A "
        "site that sets no weights comes near to random.",
        f"Forecasts: {source}, learned anew each week from what was before it, of the nodes that hold jobs where "
        "the idle timer of 30 min puts the others to sleep.",
        "With the node fill order alone nodes sleep by the cluster's own idle timer of 30 min. Of the rails "
        "power.most_in_transition, power.most_asleep and the last awake node of a kind are simulated, as live; every "
        "node that is told to wake does.",
        "The rule spare_nodes wakes nodes each minute up to those in use and some spare ones. Their number is chosen "
        f"on up to {WEEKS} weeks before the window, for at most {percent(context.request.delayed_submissions, 1)} of "
        "submissions delayed; a minute with submissions to a partition counts once. The oracle knows when jobs start.",
        f"timer_and_spare and timer_and_floor are the idle timer of {rounded_duration(TIMER_S)} with as many nodes as "
        "that in SuspendExcNodes=...:N: idle ones, as Slurm counts before 24.05, or powered ones, as since then.",
        f"A wake-up is a step of 10 min in which nodes begin to wake, for a job or ahead of one; it takes "
        f"{context.energy.boot_s:.0f} s. A job is delayed if it was given a node that was not up yet.",
        *tariff_from(context.energy).notes(*context.window_s),
    ]
