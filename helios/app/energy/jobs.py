"""What sleeping nodes would have saved on a trace of jobs, under every policy at once: jobs really wait for a boot.

The jobs of a cluster's history are replayed, first in first out with EASY backfill, on nodes that sleep and wake. A
first replay, in which the cluster's own idle timer puts nodes to sleep, tells how many were needed at each step;
forecasts walk forward along it; then the services act, the same objects as live, every ten minutes on what was known
then. All before the window is history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.energy.job_replay import RUN_IN, Played, Seat, levels_of_oracle, play_nodes
from helios.app.energy.tariff import HOUR_S, tariff_of
from helios.app.history import History
from helios.app.whatif import Question, Stage, resource_of, set_the_stage
from helios.config import Energy, Power
from helios.energy import energy_kwh
from helios.errors import Misuse, NotEnoughHistory
from helios.model import STEP_S, Demand
from helios.ports import Progress, in_silence
from helios.predict import HistoryPredictor, JobTable, causal_features
from helios.predict.demand import DAY, Calendar, assemble, job_state, walk_forward
from helios.report.energy.whatif import EnergyWhatIf, PolicyResult, poisson_interval
from helios.services.ces import Ces, CesOptions, published_options
from helios.services.packing import Packing
from helios.simulate import Placement, SimCluster, Sleep

POLICIES = (
    "always_on",
    "idle_timer_10min",
    "idle_timer_30min",
    "max_3h_plus_5",
    "ces_published",
    "ces",
    "packing",
    "ces+packing",
    "oracle",
)
"""In the order in which they are shown."""
REFIT_S = 7 * 86_400
"""How often forecasts learn anew: each day, as live, they are hardly better and take seven times as long."""
FIRST_TIMER_S = 1_800
"""Idle timer of the replay that tells what is needed, s."""
_TIMERS_S = {"idle_timer_10min": 600, "idle_timer_30min": 1_800, "packing": 1_800}
"""Policies under which the cluster's own idle timer puts nodes to sleep, and after how long, s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobsQuestion:
    """A window of a cluster's history to ask about, and the machine it ran on.

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
        What CES is run with.
    policies : sequence of str
        Which of ``POLICIES``.
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
            raise Misuse(f"there is no policy {strangers[0]!r}", remedy=f"The policies are {', '.join(POLICIES)}.")


def energy_on_jobs(
    history: History,
    question: JobsQuestion,
    *,
    energy: Energy,
    power: Power,
    progress: Progress = in_silence,
) -> EnergyWhatIf:
    """Replay a cluster's history up to the end of a window once for each policy, and say what it comes to.

    Parameters
    ----------
    energy : Energy
        The model of what nodes draw, how long they boot, and what energy costs.
    power : Power
        Of its rails ``most_in_transition`` and ``most_asleep`` are simulated.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the history, or there is hardly a day before it.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    scene = _set(history, question, energy, power)
    played: dict[str, Played] = {}
    asked = [policy for policy in POLICIES if policy in question.policies or policy == "always_on"]
    for policy in asked:
        progress(f"Replaying {policy}", 0.0)
        played[policy] = _play(policy, scene, played, progress)
    return _answer(history, scene, played)


@dataclass(slots=True, kw_only=True, eq=False)
class _Scene:
    """What all policies share, and the demand that was forecast, by whether the nodes were packed."""

    question: JobsQuestion
    stage: Stage
    energy: Energy
    power: Power
    resource: str
    begin_s: int
    end_s: int
    demands: dict[bool, Demand] = field(default_factory=dict)

    def cluster(self, timer_s: int | None = None) -> SimCluster:
        """Return the cluster as it is before its first job."""
        machine = self.stage.machine
        return SimCluster(
            self.stage.workload,
            machine.shape,
            machine.jobs,
            estimates_s=self.stage.limit_s,
            resource=self.resource,
            placement=self.question.placement,
            seed=self.question.seed,
            sleep=Sleep(
                boot_s=max(round(self.energy.boot_s), 1),
                shutdown_s=max(round(self.energy.shutdown_s), 1),
                idle_timer_s=timer_s,
            ),
        )


def _set(history: History, question: JobsQuestion, energy: Energy, power: Power) -> _Scene:
    since, until = question.window
    first = history.jobs["submitted_at"].min()
    if not first + pd.Timedelta(days=1) <= pd.Timestamp(since) < pd.Timestamp(until):
        raise NotEnoughHistory(
            f"{history.cluster} begins on {first:%Y-%m-%d %H:%M} UTC; the window on {since:%Y-%m-%d %H:%M %Z}",
            remedy="Ask for a window with some weeks of history before it: they are what is learned from.",
        )
    asked = Question(
        plans=(),
        since=since,
        until=until,
        warm_up=pd.Timestamp(since) - first,
        nodes=question.nodes,
        gpus_per_node=question.gpus_per_node,
        resource=question.resource,
        skip_oversized=question.skip_oversized,
        default_time_limit_s=question.default_time_limit_s,
    )
    stage = set_the_stage(history, asked)
    last_s = min(int(until.timestamp()), int(stage.workload.submitted_s[-1]))
    return _Scene(
        question=question,
        stage=stage,
        energy=energy,
        power=power,
        resource=resource_of(history, asked),
        begin_s=int(since.timestamp()) // STEP_S * STEP_S,
        end_s=last_s // STEP_S * STEP_S,
    )


# The policies.


def _play(policy: str, scene: _Scene, played: Mapping[str, Played], progress: Progress) -> Played:
    seats = list(_seats(policy, scene, played, progress))
    forecasts = any(not isinstance(seat.service, Packing) for seat in seats)
    return play_nodes(
        scene.cluster(_TIMERS_S.get(policy)),
        seats,
        demand=_demand(scene, packed="packing" in policy, progress=progress) if forecasts else None,
        begin_s=scene.begin_s,
        end_s=scene.end_s,
        power=scene.power,
        progress=lambda done: progress(f"Replaying {policy}", done),
    )


def _seats(policy: str, scene: _Scene, played: Mapping[str, Played], progress: Progress) -> Iterator[Seat]:
    options, shape = scene.question.options, scene.stage.machine.shape
    if "packing" in policy:
        yield Seat(service=Packing(Packing.Options(tiers=scene.power.tiers)))
    if policy in ("ces", "ces+packing"):
        yield Seat(service=Ces(options))
    elif policy == "max_3h_plus_5":
        yield Seat(service=Ces(replace(options, rule="max_3h")))
    elif policy == "ces_published":
        yield Seat(service=Ces(published_options(options, float(shape.nodes.sum()))))
    elif policy == "oracle":
        demand = _demand(scene, packed=False, progress=progress)
        wakes = played["ces"].wakes if "ces" in played else scene.stage.counted.size
        yield Seat(service=levels_of_oracle(demand, boot_s=scene.energy.boot_s, most_wakes=wakes))


# What was needed, and what was expected to be.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Needed:
    """Nodes of each partition that held a job, by steps, and when jobs started and ended."""

    start_s: int
    busy: NDArray[np.float64]
    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]


def _demand(scene: _Scene, *, packed: bool, progress: Progress) -> Demand:
    if packed not in scene.demands:
        scene.demands[packed] = _forecast(scene, _needed(scene, packed=packed, progress=progress), progress)
    return scene.demands[packed]


def _needed(scene: _Scene, *, packed: bool, progress: Progress) -> _Needed:
    """Replay once more, the surplus put to sleep by the idle timer: where nodes sleep, jobs crowd on the others."""
    cluster = scene.cluster(FIRST_TIMER_S)
    if packed:
        play_nodes(
            cluster,
            [Seat(service=Packing(Packing.Options(tiers=scene.power.tiers)))],
            demand=None,
            begin_s=scene.begin_s - _looked_back(scene) * STEP_S,
            end_s=scene.end_s,
            power=scene.power,
            progress=lambda done: progress("Replaying packing from further back", done),
        )
    cluster.advance(scene.end_s)
    start_s, most, _ = cluster.busy_nodes(STEP_S)
    return _Needed(start_s=start_s, busy=most, started_s=cluster.started_s.copy(), ended_s=cluster.ended_s.copy())


def _looked_back(scene: _Scene) -> int:
    """Return how many steps before the window forecasts begin: those that the first thresholds are picked on."""
    return RUN_IN + (7 * scene.question.options.weeks + 1) * DAY


def _forecast(scene: _Scene, needed: _Needed, progress: Progress) -> Demand:
    question, shape = scene.question, scene.stage.machine.shape
    predicted_s, group = _known_at_submission(scene)
    n_steps, first = needed.busy.shape[1], (scene.begin_s - needed.start_s) // STEP_S
    ended_s = needed.start_s + STEP_S * np.arange(1, n_steps + 1, dtype=np.int64)
    pools = {}
    for partition, name in enumerate(shape.partitions):
        total = np.full(n_steps, float(shape.nodes[partition]))
        mine = scene.stage.workload.partition == partition
        state = job_state(
            submitted_s=scene.stage.workload.submitted_s[mine],
            started_s=needed.started_s[mine],
            ended_s=needed.ended_s[mine],
            nodes=scene.stage.workload.gpus[mine] / float(shape.gpus_per_node[partition]),
            predicted_s=predicted_s[mine],
            group=group[mine],
            ends_of_steps_s=ended_s,
        )
        forecasts = walk_forward(
            needed.busy[partition],
            total,
            start_s=needed.start_s,
            from_step=max(first - _looked_back(scene), 0),
            until_step=n_steps,
            calendar=question.calendar,
            state=state,
            refit_every_s=REFIT_S,
            history_steps=question.history_days * DAY,
            progress=progress,
        )
        pools[name] = (needed.busy[partition], total, forecasts)
    return assemble(pools, ended_s=int(ended_s[-1]))


def _known_at_submission(scene: _Scene) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the run time of each job as shrinkage would have predicted it, s, and of which campaign it is."""
    jobs = scene.stage.machine.jobs
    features = causal_features(JobTable.from_frame(jobs, timezone=scene.stage.timezone)).X
    campaign = jobs.groupby(["user", "name", "gpus"], observed=True, dropna=False).ngroup()
    return HistoryPredictor().predict(features)[:, 1], np.asarray(campaign, dtype=np.int64)


# What it comes to.


def _answer(history: History, scene: _Scene, played: Mapping[str, Played]) -> EnergyWhatIf:
    always = played["always_on"]
    shape = scene.stage.machine.shape
    return EnergyWhatIf(
        kind="cluster",
        name=history.cluster,
        window=(datetime.fromtimestamp(scene.begin_s, UTC), datetime.fromtimestamp(scene.end_s, UTC)),
        total_nodes=float(shape.nodes.sum()),
        policies=tuple(_result(policy, one, always, scene) for policy, one in played.items()),
        notes=(*history.notes, *scene.stage.machine.notes, *scene.stage.notes, *_notes(scene)),
    )


def _result(policy: str, one: Played, always: Played, scene: _Scene) -> PolicyResult:
    length_s = scene.end_s - scene.begin_s
    days = length_s / 86_400
    kwh, always_kwh = (np.array([energy_kwh(hour, scene.energy) for hour in whose.hourly]) for whose in (one, always))
    edges_s = np.append(scene.begin_s + HOUR_S * np.arange(len(kwh)), scene.end_s)
    cost, co2_kg = tariff_of(scene.energy).cost_of(kwh, edges_s=edges_s)
    submitted_s = scene.stage.workload.submitted_s
    counted = (submitted_s >= scene.begin_s) & (submitted_s < scene.end_s)
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
        currency=scene.energy.currency,
        co2_kg=float(co2_kg.sum()),
        saved_kwh=float(always_kwh.sum() - kwh.sum()),
    )


def _notes(scene: _Scene) -> list[str]:
    source = next((demand.source for demand in scene.demands.values()), "none were made")
    return [
        f"Without Helios jobs are placed on nodes by --placement {scene.question.placement.value}, awake ones first. A "
        "site that sets no weights comes near to random.",
        f"Forecasts: {source}, learned anew each week from what was before it, of the nodes that hold jobs where "
        "the idle timer of 30 min puts the others to sleep.",
        "Packing alone sleeps by the cluster's own idle timer of 30 min. Of the rails power.most_in_transition and "
        "power.most_asleep are simulated; every node that is told to wake does.",
        f"A wake-up is a step of 10 min in which nodes begin to wake, for a job or ahead of one; it takes "
        f"{scene.energy.boot_s:.0f} s. A job is delayed if it was given a node that was not up yet.",
        "The oracle knows what will be needed, as it was in that replay, and is asked to wake no oftener than CES did.",
        *tariff_of(scene.energy).notes(scene.begin_s, scene.end_s),
    ]
