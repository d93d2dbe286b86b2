"""What-if of energy policies on a series of busy nodes.

Strictly causal but for the oracle and foresight: forecasts walk forward, learning anew from what was before; the rule
of CES is chosen at each midnight from the weeks before; a decision at the end of a step is in force from the next one
on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.app.energy.ledger import HOUR_S, tariff_from
from helios.config import Energy
from helios.errors import NotEnoughHistory
from helios.metrics.energy import energy_kwh, payback_s
from helios.metrics.statistics import poisson_interval
from helios.model import STEP_S, Demand, NodeSeries
from helios.ports import Progress, no_progress
from helios.predict.demand.forecaster import walk_forward
from helios.predict.demand.types import AHEAD_S, DAY, Calendar, Forecasts, Wanted, assemble
from helios.report.energy import ChosenRule, EnergyWhatIf, PolicyResult
from helios.services.energy_saving import LARGE, LONGEST_S, CesOptions, Choice, published_values, target_levels
from helios.simulate.node_series import SeriesRun, fewest_levels, idle_timer_levels, oracle_levels, replay_levels
from helios.units import DAY_S

Steps = NDArray[np.float64]

RUN_IN = 3 * DAY
"""Steps before the window over which every policy already runs, so that its effect has built up."""
TIMERS_MIN = (10, 30)
RULES: Mapping[str, Any] = {"max_3h_plus_5": "max_3h", "ces_published": "published"}
"""Rules of CES, in its options, of the policies that are named for them."""


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
    cut = _cut(request)
    demand = _forecast_series(cut, request, history_days=history_days, progress=progress)
    runs: dict[str, SeriesRun] = {}
    for done, (policy, levels, every_step) in enumerate(_policies(cut, demand, request.options)):
        progress(f"Replaying {policy}", done / 7)
        runs[policy] = _replayed(cut, levels, energy, request.gpus_per_node, may_sleep_between=every_step)
    needed = np.maximum(cut.busy, np.append(cut.busy[1:], cut.busy[-1]))[cut.first :]
    # It knows a step ahead, which is a boot.
    levels = cut.foreseen_levels(fewest_levels(needed, most_wakes=runs["ces"].wakes))
    runs["foresight"] = _replayed(cut, levels, energy, request.gpus_per_node)
    least_s = energy.boot_s + energy.shutdown_s + min(payback_s(energy), DAY_S)
    levels = oracle_levels(
        cut.fine_busy[cut.run_in * cut.each :],
        boot_steps=math.ceil(energy.boot_s / cut.step_s),
        least_steps=math.ceil(least_s / cut.step_s),
    )
    runs["oracle"] = _replayed(cut, levels, energy, request.gpus_per_node, may_sleep_between=True)
    progress("Replaying oracle", 1.0)
    window_s = (cut.start_s + cut.first * STEP_S, cut.ended_s)
    return EnergyWhatIf(
        kind="series",
        name=request.series.name,
        window=(datetime.fromtimestamp(window_s[0], UTC), datetime.fromtimestamp(window_s[1], UTC)),
        total_nodes=float(cut.total[cut.first :].mean()),
        policies=tuple(
            policy_result(policy, run, runs["always_on"], energy, window_s=window_s) for policy, run in runs.items()
        ),
        notes=(*request.series.notes, *_notes_on_series(cut, request, energy, demand.source)),
        chosen=_chosen(cut, request, demand),
    )


def _chosen(cut: _Cut, request: EnergySeriesRequest, demand: Demand) -> tuple[ChosenRule, ...]:
    """Return the rules of CES, the most used first."""
    _, choices = target_levels(demand, 0, request.options, from_step=cut.run_in)
    of_rule: dict[str, list[Choice]] = {}
    for place, (begins, choice) in enumerate(choices):
        ends = choices[place + 1][0] if place + 1 < len(choices) else len(cut.busy)
        # The step that ends at midnight counts as the next day's.
        if ends - max(begins, cut.first) > 1:
            of_rule.setdefault(choice.rule.name if choice.rule else "", []).append(choice)
    found = [ChosenRule(pool=request.series.name, days=len(every), choice=every[-1]) for every in of_rule.values()]
    return tuple(sorted(found, key=lambda rule: -(rule.days or 0)))


def policy_result(
    policy: str,
    run: SeriesRun,
    always_on: SeriesRun,
    energy: Energy,
    *,
    window_s: tuple[int, int],
    **of_jobs: Any,
) -> PolicyResult:
    """Return the result of a policy against always on.

    ``of_jobs`` is what only a replay of jobs knows, in the fields of ``PolicyResult``.
    """
    begin_s, end_s = window_s
    days = (end_s - begin_s) / DAY_S
    kwh, always_kwh = (np.array([energy_kwh(hour, energy) for hour in one.hourly]) for one in (run, always_on))
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
        saved_kwh=float(always_kwh.sum() - kwh.sum()),
        **of_jobs,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cut:
    """Series cut to whole decision steps, in both resolutions.

    ``fine_*`` are in the series' own steps, the others in decision steps of ``STEP_S``.

    Attributes
    ----------
    first : int
        First decision step that counts.
    each : int
        Fine steps of a decision step.
    """

    start_s: int
    step_s: int
    first: int
    each: int
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
        return np.repeat(np.concatenate([[np.inf], levels[:-1]]), self.each)

    def foreseen_levels(self, levels: Steps) -> Steps:
        """Resample levels to fine steps."""
        return np.repeat(np.concatenate([np.full(self.first - self.run_in, levels[0]), levels]), self.each)


def _cut(request: EnergySeriesRequest) -> _Cut:
    series, step_s = request.series, request.series.step_s
    if STEP_S % step_s:
        raise NotEnoughHistory(
            f"{series.name} has steps of {step_s} s, and {STEP_S} s is no multiple of that.",
            hint="Give a series with a value each minute, or each ten minutes.",
        )
    each = STEP_S // step_s
    begin_s, end_s = (int(moment.timestamp()) for moment in request.window)
    skipped = -series.start_s % STEP_S // step_s
    start_s = series.start_s + skipped * step_s
    after = (end_s - start_s) // STEP_S
    first = -(-(begin_s - start_s) // STEP_S)
    there = (len(series) - skipped) // each
    if not DAY <= first < after <= there:
        raise NotEnoughHistory(
            f"The window from {_written(begin_s)} to {_written(end_s)} cannot be replayed: {series.name} spans "
            f"{_written(start_s)} to {_written(start_s + there * STEP_S)}, and forecasts need at least a day before "
            "the window.",
            hint="Choose --from and --to within the series, with some weeks before --from to learn from.",
        )
    fine = slice(skipped, skipped + after * each)
    total = series.total[fine].astype(np.float64)
    busy = np.minimum(series.active[fine], total).astype(np.float64)
    return _Cut(
        start_s=start_s,
        step_s=step_s,
        first=first,
        each=each,
        fine_busy=busy,
        fine_total=total,
        busy=busy.reshape(-1, each).max(axis=1),
        total=total.reshape(-1, each).max(axis=1),
    )


def forecasts_read(options: CesOptions, nodes: float) -> Wanted:
    """Return the parts of forecasts of a pool that CES reads."""
    mean_s = 2 * published_values(options, nodes)["f_s"]
    mean, most = (AHEAD_S[: bisect_left(AHEAD_S, longest_s) + 1] for longest_s in (mean_s, LONGEST_S))
    return Wanted(point=(), mean=mean, most=most)


def _forecast_series(cut: _Cut, request: EnergySeriesRequest, *, history_days: int, progress: Progress) -> Demand:
    """Forecast from the weeks on which the first rule is chosen."""
    if (made := request.forecasts) is not None:
        rows = slice(len(cut.busy))
        made = replace(made, point=made.point[rows], mean=made.mean[rows], most=made.most[rows])
        return assemble({request.series.name: (cut.busy, cut.total, made)}, ended_s=cut.ended_s)
    begin = max(cut.run_in - (7 * request.options.weeks + 1) * DAY, 0)
    # Of the weeks that rules are only chosen on, forecasts learned anew each week will do.
    parts = [
        walk_forward(
            cut.busy,
            cut.total,
            start_s=cut.start_s,
            from_step=first,
            until_step=after,
            calendar=request.calendar,
            history_steps=history_days * DAY,
            refit_every_s=refit_s,
            wanted=forecasts_read(request.options, float(cut.total.max())),
            progress=progress,
        )
        for first, after, refit_s in ((begin, cut.run_in, 7 * DAY_S), (cut.run_in, len(cut.busy), DAY_S))
        if first < after
    ]
    forecasts = replace(
        parts[-1],
        point=np.concatenate([part.point for part in parts]),
        mean=np.concatenate([part.mean for part in parts]),
        most=np.concatenate([part.most for part in parts]),
    )
    return assemble({request.series.name: (cut.busy, cut.total, forecasts)}, ended_s=cut.ended_s)


def _policies(cut: _Cut, demand: Demand, options: CesOptions) -> Iterator[tuple[str, Steps, bool]]:
    """Yield each policy with its levels over the fine steps.

    Levels start with the run-in. The last value says whether nodes may fall asleep at any fine step.
    """
    fine = cut.fine_busy[cut.run_in * cut.each :]
    yield "always_on", np.full(len(fine), np.inf), False
    for minutes in TIMERS_MIN:
        yield f"idle_timer_{minutes}min", idle_timer_levels(fine, steps=minutes * 60 // cut.step_s), True
    chosen = {policy: replace(options, rule=rule) for policy, rule in RULES.items()} | {"ces": options}
    for policy, run_with in chosen.items():
        levels, _ = target_levels(demand, 0, run_with, from_step=cut.run_in)
        yield policy, cut.in_force(levels), False


def _replayed(
    cut: _Cut, levels: Steps, energy: Energy, gpus_per_node: int, *, may_sleep_between: bool = False
) -> SeriesRun:
    from_step = cut.run_in * cut.each
    run = replay_levels(
        cut.fine_busy[from_step:],
        cut.fine_total[from_step:],
        levels,
        step_s=cut.step_s,
        decide_every=cut.each,
        boot_s=energy.boot_s,
        shutdown_s=energy.shutdown_s,
        count_from=(cut.first - cut.run_in) * cut.each,
        may_sleep_between=may_sleep_between,
    )
    # The work of nodes that were short is done later, so a policy that delays it saves nothing by that.
    load = gpus_per_node * (1 + run.short_s / (run.seconds.busy or 1.0))
    return replace(run, hourly=tuple(replace(hour, gpus_busy=hour.busy * load) for hour in run.hourly))


def _notes_on_series(cut: _Cut, request: EnergySeriesRequest, energy: Energy, source: str) -> list[str]:
    large = float(cut.total.max()) >= LARGE
    return [
        f"Forecasts: {source}, learned anew each day from what was before it, each week before the window. The rule of "
        f"CES is chosen at midnight (UTC) from up to {request.options.weeks} weeks before.",
        f"The rule as published, made causal, with its authors' values for {'Philly' if large else 'Earth'}.",
        f"A wake-up is a step of 10 min in which nodes are woken; they serve after {energy.boot_s:.0f} s. The series "
        "stays as it was where nodes are short; there are no jobs in it, so none is delayed.",
        f"A busy node has all its {request.gpus_per_node} GPUs busy. The idle timers are at their best: nodes are "
        "filled in a fixed order. The oracle knows the future and sleeps through every idle time that is long enough, "
        "with as many wake-ups as that takes; foresight knows it too, and wakes no oftener than CES.",
        *tariff_from(energy).notes(cut.start_s + cut.first * STEP_S, cut.ended_s),
    ]


def _written(moment_s: int) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M} UTC"
