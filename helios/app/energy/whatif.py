"""What-if of energy policies on the jobs of a cluster's history.

The jobs are replayed, first in first out with EASY backfill, on nodes that sleep and wake. A job that is placed on a
sleeping node waits for its boot. A first replay, in which the safe rule lets nodes sleep, gives the use of nodes by
minute: on the weeks before the window the rule is chosen, and what is known of it at each step is what the forecasts
and the levels of the paper's rule follow from. Only the oracle knows the window. Everything before it is history.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.energy.policies import LEAST_WEEKS, policy_result, weekly_savings
from helios.app.energy.spare_nodes import (
    PLAIN_RULE,
    TIMER_S,
    chosen_rules,
    oracle_run,
    safe_rules,
    timer_rule,
    use_of_pools,
)
from helios.app.energy.tariff import tariff_from
from helios.app.history import LoadedHistory
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.config import Energy
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.spare_nodes import (
    CHECK_S,
    CYCLES_PER_NODE_DAY,
    DELAYED_SUBMISSIONS,
    WEEKS,
    AwakeRule,
    SpareChoice,
    choose_rules,
)
from helios.model import STEP_S
from helios.ports import Progress, no_progress
from helios.predict.node_demand import NodeHours, expect_all, mean_of_hour
from helios.report.energy_whatif import ChosenSpare, EnergyWhatIf, FrontRow, PolicyResult
from helios.services.energy_saving.published import EXPECTED_HOURS, published_levels, published_values
from helios.simulate import Sleep
from helios.simulate.cluster_nodes import NodeHolding
from helios.simulate.node_replay import NodeReplay
from helios.simulate.node_series import SeriesRun
from helios.slurm.node_weights import BLOCK_NODES
from helios.slurm.power import COUNTS_BUSY_SINCE
from helios.units import DAY_S, HOUR_S, count_in_words, percent, rounded_duration

Levels = NDArray[np.int64]

RUN_IN_S = 3 * DAY_S
"""Time before the window over which the paper's rule already runs, so that its effect has built up, s."""
BEFORE_S = 7 * (WEEKS + 1) * DAY_S
"""Longest time before the window that is replayed, s: the weeks on which the rule is chosen, and one to fill nodes."""
FRONT = range(17)
"""Numbers of spare nodes that are shown."""
TIMER_AND_SPARE, TIMER_AND_FLOOR = "timer_and_spare", "timer_and_floor"
POLICIES = (
    "always_on",
    "idle_timer_30min",
    "timer_and_spare",
    "timer_and_floor",
    "max_3h_plus_5",
    "ces_published",
    "ces",
    "ces+weights",
    "oracle",
)
"""In the order in which they are shown."""
COMPARED: tuple[str, ...] = ("ces", "always_on", "idle_timer_30min")
"""Policies that are compared week by week, the first with the others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnergyJobsRequest:
    """Request to replay the energy of a window.

    Attributes
    ----------
    replay : WhatIfRequest
        The window and the machine; all before the window is history. Its placement is how the site fills its nodes
        without Helios. A site without weights comes near to ``random``: Slurm's own order depends on how nodes became
        free. Every policy meets the same draws of it.
    policies : sequence of str
        Which of ``POLICIES``; ``always_on`` is always included.
    delayed_submissions, cycles_per_node_day : float
        Share of submissions that may wait for a boot, and wakes of a node a day, within which the rule is chosen.
    release : tuple of int, optional
        The site's release of Slurm, as (24, 11), which says what N spare nodes of its idle timer are; None: not known.
    """

    replay: WhatIfRequest
    policies: Sequence[str] = POLICIES
    delayed_submissions: float = DELAYED_SUBMISSIONS
    cycles_per_node_day: float = CYCLES_PER_NODE_DAY
    release: tuple[int, int] | None = None

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
    late_s : int64 array of shape (n_jobs,)
        How long each job that had started by the end of the window waited for its nodes, s.
    gpu_utilization : float, optional
        GPUs in use over those of powered nodes; None where nodes have no GPUs, or none was powered.
    """

    run: SeriesRun
    late_s: NDArray[np.int64]
    gpu_utilization: float | None = None


def energy_on_jobs(
    history: LoadedHistory, request: EnergyJobsRequest, *, energy: Energy, progress: Progress = no_progress
) -> EnergyWhatIf:
    """Replay a window of a cluster's history under each energy policy.

    Parameters
    ----------
    energy : Energy
        The model of what nodes draw, how long they boot, and what energy costs.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the history, or there is hardly a day before it.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    replays = _prepare(history, request, energy, progress)
    counts_busy = request.release is None or request.release >= COUNTS_BUSY_SINCE
    hidden = TIMER_AND_SPARE if counts_busy else TIMER_AND_FLOOR
    shown = [name for name in POLICIES if name in request.policies and name not in {"always_on", "oracle", hidden}]
    found = {name: replays.of_policy(name) for name in ("always_on", *shown)}
    if "oracle" in request.policies:
        found["oracle"] = replays.oracle(found["always_on"])
    results = {policy: _result(policy, replay, found["always_on"], replays) for policy, replay in found.items()}
    oracle = results.get("oracle")
    runs = {policy: replay.run for policy, replay in found.items()}
    compared = {name: runs[name] for name in COMPARED if name in runs}
    begin_s, end_s = replays.window_s
    machine = replays.setup.machine
    front = _front(replays, found, oracle) if "ces" in request.policies else ()
    progress("Replaying the jobs", 1.0)
    return EnergyWhatIf(
        kind="cluster",
        name=history.cluster,
        window=(datetime.fromtimestamp(begin_s, UTC), datetime.fromtimestamp(end_s, UTC)),
        total_nodes=float(machine.shape.nodes.sum()),
        policies=tuple(_beside(oracle, result) for result in results.values()),
        notes=(*history.notes, *machine.notes, *replays.setup.notes, *_notes(replays, counts_busy=counts_busy)),
        weekly=weekly_savings(compared, energy, policy="ces") if "ces" in runs else (),
        front=front,
        spare=tuple(
            ChosenSpare(pool=pool, spare=choice.rule.spare, memory_s=choice.rule.memory_s, reason=choice.reason)
            for pool, choice in (replays.choices.items() if "ces" in request.policies else ())
        ),
    )


@dataclass(kw_only=True, eq=False)
class _Replays:
    """Setup that all policies share, and the replay under the safe rule.

    Attributes
    ----------
    window_s : pair of int
        Begin and end of the window, whole steps, s since the epoch.
    done : int
        Replays so far.
    """

    request: EnergyJobsRequest
    setup: ReplaySetup
    energy: Energy
    zone: ZoneInfo
    window_s: tuple[int, int]
    progress: Progress
    done: int = field(default=0)

    def of_policy(self, policy: str) -> EnergyReplay:
        """Replay the window under a policy."""
        nodes = self.setup.machine.shape.nodes.tolist()
        rules: dict[str, Callable[[], tuple[AwakeRule, ...]]] = {
            "always_on": lambda: (),
            "idle_timer_30min": lambda: (),
            "max_3h_plus_5": lambda: (PLAIN_RULE,) * len(nodes),
            "ces_published": lambda: tuple(_level_rule(count) for count in nodes),
            "ces": lambda: chosen_rules(self.choices),
            "ces+weights": lambda: chosen_rules(self.choices),
            TIMER_AND_SPARE: lambda: self.timer_rules(counts_busy=False),
            TIMER_AND_FLOOR: lambda: self.timer_rules(counts_busy=True),
        }
        return self.replay(
            rules[policy](),
            timer_s=TIMER_S if policy == "idle_timer_30min" else None,
            in_blocks=policy == "ces+weights",
            levels=self.published_levels() if policy == "ces_published" else None,
        )

    def timer_rules(self, *, counts_busy: bool) -> tuple[AwakeRule, ...]:
        """Return the idle timer of each partition with spare nodes."""
        return tuple(timer_rule(choice.rule.spare, counts_busy=counts_busy) for choice in self.choices.values())

    def replay(
        self,
        rules: tuple[AwakeRule, ...],
        *,
        timer_s: int | None = None,
        in_blocks: bool = False,
        levels: Levels | None = None,
    ) -> EnergyReplay:
        """Replay the history up to the end of the window.

        Parameters
        ----------
        levels : int64 array of shape (n_steps, n_partitions), optional
            Nodes to be awake at the end of each step of the window and of ``RUN_IN_S`` before.
        """
        begin_s, end_s = self.window_s
        nodes = self.nodes(rules, timer_s=timer_s, in_blocks=in_blocks)
        moments = [*range(begin_s, end_s, HOUR_S), end_s]
        if levels is not None:
            first_s = end_s - STEP_S * (len(levels) - 1)
            steps = dict(zip(range(first_s, end_s + 1, STEP_S), levels, strict=True))
            moments = sorted({*moments, *steps})
        tallies = []
        for moment_s in moments:
            if levels is not None and moment_s in steps:
                nodes.set_spare(steps[moment_s])
            if moment_s > nodes.now_s:
                nodes.advance(moment_s)
            if moment_s >= begin_s and ((moment_s - begin_s) % HOUR_S == 0 or moment_s == end_s):
                tallies.append(nodes.tally())
        self.done += 1
        self.progress("Replaying the jobs", min(self.done / (len(POLICIES) + len(FRONT)), 1.0))
        first, last = tallies[0], tallies[-1]
        totals = [tally.total for tally in tallies]
        hourly = tuple(after - before for before, after in itertools.pairwise(totals))
        total = totals[-1] - totals[0]
        gpus_of = dict(
            zip(self.setup.machine.shape.partitions, self.setup.machine.shape.gpus_per_node.tolist(), strict=True)
        )
        powered_gpu_s = sum(
            (seconds - first.seconds[partition]).powered * gpus_of[partition]
            for partition, seconds in last.seconds.items()
        )
        return EnergyReplay(
            run=SeriesRun(
                hourly=hourly,
                woken=last.wakes - first.wakes,
                short_s=last.short_node_s - first.short_node_s,
                mean_asleep=total.asleep / (end_s - begin_s),
                utilization_before=total.utilization,
            ),
            late_s=np.where(nodes.started_s <= end_s, nodes.late_s, 0),
            gpu_utilization=total.gpus_busy / powered_gpu_s if total.gpus_busy and powered_gpu_s else None,
        )

    def nodes(self, rules: tuple[AwakeRule, ...], *, timer_s: int | None = None, in_blocks: bool = False) -> NodeReplay:
        """Return the nodes before the first job."""
        machine, replay = self.setup.machine, self.request.replay
        return NodeReplay(
            self.setup.workload,
            machine.shape,
            estimates_s=self.setup.limit_s,
            resource=machine.resource,
            placement=replay.placement,
            seed=replay.seed,
            block_nodes=BLOCK_NODES if in_blocks else None,
            sleep=Sleep(
                boot_s=max(round(self.energy.boot_s), 1),
                shutdown_s=max(round(self.energy.shutdown_s), 1),
                idle_timer_s=timer_s,
                rules=rules,
            ),
        )

    @cached_property
    def holding(self) -> NodeHolding:
        """Use of the nodes under the safe rule."""
        return self.hold(in_blocks=False)

    def hold(self, *, in_blocks: bool) -> NodeHolding:
        """Replay under the safe rule and return the use of the nodes."""
        nodes = self.nodes(safe_rules(self.setup.machine.shape), in_blocks=in_blocks)
        nodes.advance(self.window_s[1])
        return nodes.holding()

    @cached_property
    def choices(self) -> dict[str, SpareChoice]:
        """Rules of the partitions, chosen on the weeks before the window."""
        begin_s = self.window_s[0]
        return choose_rules(
            use_of_pools(
                self.holding,
                self.setup.workload,
                self.setup.machine.shape,
                begin_s=begin_s - 7 * WEEKS * DAY_S,
                end_s=begin_s,
            ),
            self.energy,
            delayed_submissions=self.request.delayed_submissions,
            cycles_per_node_day=self.request.cycles_per_node_day,
        )

    def published_levels(self) -> Levels:
        """Return the levels of the paper's rule, from ``RUN_IN_S`` before on."""
        start_s, most, _ = self.holding.in_steps(STEP_S)
        n_steps = (self.window_s[1] - start_s) // STEP_S
        first = max((self.window_s[0] - RUN_IN_S - start_s) // STEP_S, 0)
        found = []
        for busy, nodes in zip(most[:, :n_steps], self.setup.machine.shape.nodes.tolist(), strict=True):
            hours = NodeHours.of(mean_of_hour(busy), start_s=start_s, zone=self.zone)
            expected = expect_all(hours, from_step=first, until_step=n_steps, hours=EXPECTED_HOURS)
            total = np.full(n_steps - first, float(nodes))
            levels = published_levels(busy[first:], total, expected, published_values(nodes), powered=float(nodes))
            found.append(np.ceil(levels).astype(np.int64))
        return np.stack(found, axis=1)

    def oracle(self, always_on: EnergyReplay) -> EnergyReplay:
        """Return the limit for jobs on nodes filled in blocks.

        With jobs at random places, a timer would sleep more than an oracle that has to take the places as they are.
        """
        begin_s, end_s = self.window_s
        holding, shape = self.hold(in_blocks=True), self.setup.machine.shape
        uses = use_of_pools(holding, self.setup.workload, shape, begin_s=begin_s, end_s=end_s)
        return EnergyReplay(run=oracle_run(uses, self.energy, always_on.run), late_s=np.zeros_like(always_on.late_s))


def _level_rule(nodes: int) -> AwakeRule:
    """Return the rule that keeps awake as many nodes as are set."""
    return AwakeRule(memory_s=0, spare=nodes, every_s=STEP_S, counts_use=False)


def _prepare(history: LoadedHistory, request: EnergyJobsRequest, energy: Energy, progress: Progress) -> _Replays:
    since, until = request.replay.since, request.replay.until
    first = history.jobs["submitted_at"].min()
    if since is None or until is None or not first + pd.Timedelta(days=1) <= pd.Timestamp(since):
        begins = "" if since is None else f", and the window on {since:%Y-%m-%d %H:%M %Z}"
        raise NotEnoughHistory(
            f"The history of {history.cluster} begins on {first:%Y-%m-%d %H:%M} UTC{begins}: it takes at least a day "
            "before the window.",
            hint="Choose --from some weeks after the begin of the history: the rule is chosen on these weeks.",
        )
    warm_up = min(pd.Timestamp(since) - first, timedelta(seconds=BEFORE_S))
    setup = prepare_replay(history, replace(request.replay, warm_up=warm_up))
    last_s = min(int(until.timestamp()), int(setup.workload.submitted_s[-1]))
    window_s = (int(since.timestamp()) // STEP_S * STEP_S, last_s // STEP_S * STEP_S)
    if window_s[1] - window_s[0] < HOUR_S:
        raise NotEnoughHistory(
            f"The jobs of {history.cluster} span less than an hour of the window from {since:%Y-%m-%d %H:%M %Z} on.",
            hint="Choose a window of some weeks: --from, --to",
        )
    return _Replays(
        request=request,
        setup=setup,
        energy=energy,
        zone=ZoneInfo(history.timezone),
        window_s=window_s,
        progress=progress,
    )


def _front(replays: _Replays, found: Mapping[str, EnergyReplay], oracle: PolicyResult | None) -> tuple[FrontRow, ...]:
    """Return what each number of spare nodes comes to."""
    rows: list[FrontRow] = []
    begin_s, end_s = replays.window_s
    days = (end_s - begin_s) / DAY_S
    for spare in (spare for spare in FRONT if spare <= int(replays.setup.machine.shape.nodes.max())):
        rules = chosen_rules(replays.choices, spare=spare)
        replay = found["ces"] if rules == chosen_rules(replays.choices) else replays.replay(rules)
        result = _beside(oracle, _result("ces", replay, found["always_on"], replays))
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


def _result(policy: str, replay: EnergyReplay, always_on: EnergyReplay, replays: _Replays) -> PolicyResult:
    begin_s, end_s = replays.window_s
    always, workload = always_on.run, replays.setup.workload
    counted = (workload.submitted_s >= begin_s) & (workload.submitted_s < end_s)
    late = counted & (replay.late_s > 0)
    late_s = replay.late_s[late]
    # A minute in which jobs were submitted to a partition counts once, as one array would else decide for months.
    minute = workload.submitted_s // CHECK_S * len(replays.setup.machine.shape.partitions) + workload.partition
    submissions, delayed = len(np.unique(minute[counted])), len(np.unique(minute[late]))
    return policy_result(
        policy,
        replace(replay.run, utilization_before=always.utilization_before),
        always,
        replays.energy,
        window_s=replays.window_s,
        total_nodes=float(replays.setup.machine.shape.nodes.sum()),
        jobs_delayed=len(late_s),
        mean_delay_s=float(late_s.mean()) if len(late_s) else 0.0,
        share_of_jobs_delayed=len(late_s) / max(int(counted.sum()), 1),
        longest_delay_s=float(late_s.max(initial=0)),
        submissions_delayed=delayed,
        share_of_submissions_delayed=delayed / max(submissions, 1),
        added_wait_s=float(late_s.sum()) / max(int(counted.sum()), 1),
        gpu_utilization=replay.gpu_utilization,
    )


def _beside(oracle: PolicyResult | None, result: PolicyResult) -> PolicyResult:
    """Return a result with its share of what the oracle saves."""
    if oracle is None or oracle.saved_kwh <= 0:
        return result
    return replace(result, share_of_oracle=result.saved_kwh / oracle.saved_kwh)


def _notes(replays: _Replays, *, counts_busy: bool) -> list[str]:
    request, (begin_s, end_s) = replays.request, replays.window_s
    row = TIMER_AND_FLOOR if counts_busy else TIMER_AND_SPARE
    counted = "powered ones, as Slurm counts since 24.05" if counts_busy else "idle ones, as Slurm counts before 24.05"
    known = (
        "; the site's release is not known"
        if request.release is None
        else "; Slurm here is {}.{:02}".format(*request.release)
    )
    notes = [
        f"Without Helios jobs are placed on nodes by --placement {request.replay.placement.value}, awake ones first. "
        "A site that sets no weights comes near to random. With ces+weights nodes are filled in blocks of "
        f"{BLOCK_NODES}, as helios power weights prints.",
        "ces wakes nodes each minute up to those in use and some spare ones. Their number is chosen on up to "
        f"{WEEKS} weeks before the window, for delayed_submissions = {percent(request.delayed_submissions, 1)} and "
        f"cycles_per_node_day = {request.cycles_per_node_day:g}; a minute with submissions to a partition counts once. "
        "The oracle knows when jobs start, and fills nodes in blocks.",
        f"{row} is the idle timer of {rounded_duration(TIMER_S)} with as many nodes as that in "
        f"SuspendExcNodes=...:N: {counted}{known}.",
        f"It takes {replays.energy.boot_s:.0f} s to wake a node, and every node that is told to wake does. A job is "
        "delayed if it was given a node that was not up yet. The limits of [power] are not simulated.",
        *tariff_from(replays.energy).notes(begin_s, end_s),
    ]
    if "ces_published" in request.policies:
        notes.insert(
            2,
            "ces_published is the rule of the paper with its authors' values; its forecasts are learned each week "
            "from at most six weeks before.",
        )
    if (hours := (end_s - begin_s) / HOUR_S) < 24:
        notes.append(f"The window has {hours:.1f} h: figures for a day are scaled up from it.")
    elif hours < LEAST_WEEKS * 7 * 24:
        notes.append(
            f"No interval is given: it takes {count_in_words(LEAST_WEEKS, 'whole week')} in the window, which has "
            f"{hours / 24:.1f} days."
        )
    return notes
