"""What-if of energy policies on a series of busy nodes.

A series has no jobs: it stays as it was where nodes are short, and node hours short are counted instead of delays. Only
the oracle knows the future. A level that is decided at the end of a step is in force from the next one on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from helios.app.energy.policies import policy_result, weekly_savings
from helios.app.energy.spare_nodes import PLAIN_RULE, levels_of_oracle, timer_rule
from helios.app.energy.tariff import tariff_from
from helios.config import Energy
from helios.errors import NotEnoughHistory
from helios.metrics.spare_nodes import (
    CHECK_S,
    CYCLES_PER_NODE_DAY,
    DELAYED_SUBMISSIONS,
    WEEKS,
    SpareChoice,
    choose_rules,
)
from helios.model import STEP_S, NodeSeries, PoolUse
from helios.ports import Progress, no_progress
from helios.predict.node_demand import DAY, NodeHours, expect_all, mean_of_hour
from helios.report.energy_whatif import ChosenSpare, EnergyWhatIf
from helios.services.energy_saving.published import EXPECTED_HOURS, PHILLY, published_levels, published_values
from helios.simulate.node_series import SeriesRun, replay_levels, rule_levels
from helios.units import DAY_S

Steps = NDArray[np.float64]

RUN_IN = 3 * DAY
"""Steps before the window over which every policy already runs, so that its effect has built up."""
COMPARED = ("ces", "always_on", "idle_timer_30min")
"""Policies that are compared week by week, the first with the others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnergySeriesRequest:
    """Series of busy nodes, and the window to replay.

    Attributes
    ----------
    series : NodeSeries
        Its step divides ten minutes.
    window : pair of datetime
        First moment that counts, and the first that does not; aware. All before it is history.
    zone : ZoneInfo
        The site's.
    gpus_per_node : int
        All of them draw power while a node is busy.
    delayed_submissions, cycles_per_node_day : float
        As of :class:`~helios.app.energy.whatif.EnergyJobsRequest`; a rise of the series counts as a submission.
    """

    series: NodeSeries
    window: tuple[datetime, datetime]
    zone: ZoneInfo
    gpus_per_node: int = 8
    delayed_submissions: float = DELAYED_SUBMISSIONS
    cycles_per_node_day: float = CYCLES_PER_NODE_DAY


def energy_on_series(request: EnergySeriesRequest, *, energy: Energy, progress: Progress = no_progress) -> EnergyWhatIf:
    """Run every policy over the window of a series.

    Parameters
    ----------
    energy : Energy
        The model of what nodes draw, and what it costs.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the series, or there is hardly a day before it.
    """
    aligned = _align(request)
    choice = _choose(aligned, request, energy)
    window_s = (aligned.start_s + aligned.first * STEP_S, aligned.ended_s)
    total_nodes = float(aligned.total[aligned.first :].mean())
    runs: dict[str, SeriesRun] = {}
    for number, (policy, levels) in enumerate(_policies(aligned, choice, request, energy)):
        progress("Replaying the series", number / 8)
        runs[policy] = _replay(aligned, levels, energy, request.gpus_per_node)
    progress("Replaying the series", 1.0)
    results = [
        policy_result(policy, run, runs["always_on"], energy, window_s=window_s, total_nodes=total_nodes)
        for policy, run in runs.items()
    ]
    most = results[-1].saved_kwh
    compared = {name: runs[name] for name in COMPARED}
    return EnergyWhatIf(
        kind="series",
        name=request.series.name,
        window=(datetime.fromtimestamp(window_s[0], UTC), datetime.fromtimestamp(window_s[1], UTC)),
        total_nodes=total_nodes,
        policies=tuple(
            replace(result, share_of_oracle=result.saved_kwh / most if most > 0 else None) for result in results
        ),
        notes=(*request.series.notes, *_notes(aligned, request, energy)),
        weekly=weekly_savings(compared, energy, policy="ces"),
        spare=(
            ChosenSpare(
                pool=request.series.name,
                spare=choice.rule.spare,
                memory_s=choice.rule.memory_s,
                reason=choice.reason,
            ),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AlignedSeries:
    """Series in whole steps of ``STEP_S``, in both resolutions.

    ``fine_*`` are in the series' own steps, the others in those of ``STEP_S``.

    Attributes
    ----------
    first : int
        First step that counts.
    fine_per_step : int
        Fine steps of a step.
    has_holes : bool
        Whether readings are missing before the window.
    """

    start_s: int
    step_s: int
    first: int
    fine_per_step: int
    fine_busy: Steps
    fine_total: Steps
    busy: Steps
    total: Steps
    has_holes: bool

    @property
    def run_in(self) -> int:
        """First step that is replayed."""
        return max(self.first - RUN_IN, 0)

    @property
    def replayed(self) -> slice:
        """Fine steps that are replayed."""
        return slice(self.run_in * self.fine_per_step, None)

    @property
    def ended_s(self) -> int:
        return self.start_s + STEP_S * len(self.busy)


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
            f"{_format_time(start_s)} to {_format_time(start_s + n_steps * STEP_S)}, and it takes at least a day "
            "before the window.",
            hint="Choose --from and --to within the series, with weeks before --from to choose the rule on.",
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
        has_holes=bool(series.gaps[fine][: first_step * fine_per_step].any()),
    )


def _choose(aligned: _AlignedSeries, request: EnergySeriesRequest, energy: Energy) -> SpareChoice:
    """Return the rule that the weeks before the window suggest."""
    after = aligned.first * aligned.fine_per_step
    before = slice(max(after - 7 * WEEKS * DAY_S // aligned.step_s, 0), after)
    n_minutes = (before.stop - before.start) * aligned.step_s // CHECK_S
    minutes = before.start + np.arange(n_minutes) * CHECK_S // aligned.step_s
    busy = np.ceil(aligned.fine_busy[minutes]).astype(np.int64)
    rises = np.diff(busy, prepend=busy[:1]) > 0
    use = PoolUse(
        nodes=int(aligned.fine_total[before].max()),
        most=busy,
        last=busy,
        raised=np.where(rises, busy, 0),
        submissions=int(rises.sum()),
        has_holes=aligned.has_holes,
    )
    return choose_rules(
        {request.series.name: use},
        energy,
        delayed_submissions=request.delayed_submissions,
        cycles_per_node_day=request.cycles_per_node_day,
    )[request.series.name]


def _policies(
    aligned: _AlignedSeries, choice: SpareChoice, request: EnergySeriesRequest, energy: Energy
) -> Iterator[tuple[str, Steps]]:
    """Yield each policy with its levels from the run-in on."""
    busy, total = aligned.fine_busy[aligned.replayed], aligned.fine_total[aligned.replayed]
    rules = {
        "idle_timer_30min": timer_rule(0, counts_busy=False),
        "timer_and_spare": timer_rule(choice.rule.spare, counts_busy=False),
        "max_3h_plus_5": PLAIN_RULE,
    }
    yield "always_on", np.full(len(busy), np.inf)
    for policy, rule in rules.items():
        yield policy, rule_levels(busy, total, rule, step_s=aligned.step_s)
    yield "ces_published", _published(aligned, request)
    yield "ces", rule_levels(busy, total, choice.rule, step_s=aligned.step_s)
    yield "oracle", levels_of_oracle(busy, energy, step_s=aligned.step_s)


def _published(aligned: _AlignedSeries, request: EnergySeriesRequest) -> Steps:
    """Return the levels of the paper's rule from the run-in on."""
    hours = NodeHours.of(mean_of_hour(aligned.busy), start_s=aligned.start_s, zone=request.zone)
    first, after = aligned.run_in, len(aligned.busy)
    expected = expect_all(hours, from_step=first, until_step=after, hours=EXPECTED_HOURS)
    total = aligned.total[first:]
    levels = published_levels(
        aligned.busy[first:], total, expected, published_values(float(total.max())), powered=float(total[0])
    )
    return np.repeat(np.concatenate([[np.inf], levels[:-1]]), aligned.fine_per_step)


def _replay(aligned: _AlignedSeries, levels: Steps, energy: Energy, gpus_per_node: int) -> SeriesRun:
    run = replay_levels(
        aligned.fine_busy[aligned.replayed],
        aligned.fine_total[aligned.replayed],
        levels,
        step_s=aligned.step_s,
        boot_s=energy.boot_s,
        shutdown_s=energy.shutdown_s,
        count_from=(aligned.first - aligned.run_in) * aligned.fine_per_step,
    )
    # The work of nodes that were short is done later, so a policy that delays it saves nothing by that.
    load = gpus_per_node * (1 + run.short_s / (run.seconds.busy or 1.0))
    return replace(run, hourly=tuple(replace(hour, gpus_busy=hour.busy * load) for hour in run.hourly))


def _notes(aligned: _AlignedSeries, request: EnergySeriesRequest, energy: Energy) -> list[str]:
    is_large = published_values(float(aligned.total.max())) is PHILLY
    return [
        "ces wakes nodes each minute up to those in use and some spare ones. Their number is chosen on up to "
        f"{WEEKS} weeks before the window; a minute in which the series rises counts as a submission. "
        "timer_and_spare is the idle timer with as many idle nodes left awake.",
        "ces_published is the rule of the paper with its authors' values for "
        f"{'Philly' if is_large else 'Earth'}; its forecasts are learned each week from at most six weeks before.",
        f"It takes {energy.boot_s:.0f} s to wake a node. The series stays as it was where nodes are short; there are "
        "no jobs in it, so none is delayed.",
        f"A busy node has all its {request.gpus_per_node} GPUs busy. Nodes are filled in a fixed order, so every "
        "policy is at its best. The oracle knows the future and sleeps through every idle time that is long enough.",
        *tariff_from(energy).notes(aligned.start_s + aligned.first * STEP_S, aligned.ended_s),
    ]


def _format_time(moment_s: int) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M} UTC"
