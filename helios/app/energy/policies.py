"""Results of energy policies, beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.app.energy.tariff import tariff_from
from helios.config import Energy
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.metrics.statistics import mean_interval
from helios.report.energy_whatif import PolicyResult, WeeklySaving
from helios.simulate.node_series import SeriesRun
from helios.units import DAY_S, HOUR_S

WEEK_H = 7 * 24
LEAST_WEEKS = 3
"""Whole weeks of a window from which a difference has an interval."""


def policy_result(
    policy: str,
    run: SeriesRun,
    always_on: SeriesRun,
    energy: Energy,
    *,
    window_s: tuple[int, int],
    total_nodes: float,
    **job_fields: Any,
) -> PolicyResult:
    """Return the result of a policy against always on.

    ``job_fields`` are the fields of ``PolicyResult`` that only a replay of jobs has.
    """
    begin_s, end_s = window_s
    kwh = _hourly_kwh(run, energy)
    edges_s = np.append(begin_s + HOUR_S * np.arange(len(kwh)), end_s)
    cost, co2_kg = tariff_from(energy).cost_of(kwh, edges_s=edges_s)
    return PolicyResult(
        policy=policy,
        mean_sleeping_nodes=run.mean_asleep,
        node_utilization_before=run.utilization_before,
        node_utilization_after=run.seconds.utilization,
        energy_kwh=float(kwh.sum()),
        node_hours_short=run.short_s / HOUR_S,
        cycles_per_node_day=run.woken * DAY_S / (end_s - begin_s) / total_nodes if total_nodes else 0.0,
        cost=float(cost.sum()),
        currency=energy.currency,
        co2_kg=float(co2_kg.sum()),
        saved_kwh=_saved_kwh(run, always_on, energy, slice(None)),
        **job_fields,
    )


def weekly_savings(runs: Mapping[str, SeriesRun], energy: Energy, *, policy: str) -> tuple[WeeklySaving, ...]:
    """Return what a policy saved against the others, by week.

    Only whole weeks from the begin of the window on are compared.
    """
    n_weeks = len(runs[policy].hourly) // WEEK_H
    weeks = [slice(WEEK_H * week, WEEK_H * (week + 1)) for week in range(n_weeks)]
    saved = {
        name: np.array([_saved_kwh(run, runs["always_on"], energy, week) for week in weeks])
        for name, run in runs.items()
    }
    found = []
    for name in runs:
        if name != policy and n_weeks >= LEAST_WEEKS:
            differences = (saved[policy] - saved[name]) / 7
            low, high = mean_interval(differences)
            kwh_day = float(differences.mean())
            found.append(WeeklySaving(against=name, weeks=n_weeks, kwh_day=kwh_day, low_kwh_day=low, high_kwh_day=high))
    return tuple(found)


def _saved_kwh(run: SeriesRun, always_on: SeriesRun, energy: Energy, hours: slice) -> float:
    """Return the energy saved, for as much work done."""
    kwh, always_kwh = (_hourly_kwh(replay, energy)[hours].sum() for replay in (run, always_on))
    done, always_done = (sum(map(_work, replay.hourly[hours])) for replay in (run, always_on))
    return float(always_kwh * (done / always_done if always_done else 1.0) - kwh)


def _hourly_kwh(run: SeriesRun, energy: Energy) -> NDArray[np.float64]:
    return np.array([energy_kwh(hour, energy) for hour in run.hourly])


def _work(seconds: NodeSeconds) -> float:
    return seconds.gpus_busy + seconds.cpus_busy
