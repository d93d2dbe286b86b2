"""What CES does with node series on rolling origins, beside its controls.

    python benchmarks/ces_series.py [TRACE...] [--json]

A trace is a file or folder of node series, or a job trace of Venus, whose jobs are replayed on 133 nodes first; without
one, all that the traces folder has. Each window of a trace is judged with a rule that was chosen on what was before it:
four weeks, two in less than a hundred days of data, one in less than fifty. Prints the worst window first: nodes
asleep, wake-ups a day and node hours short, and which rule CES used. ``--json`` prints rows of question, trace, window,
ours, control and ratio instead; ``rows`` returns them for one trace.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.predict.demand.forecaster import walk_forward
from helios.predict.demand.types import DAY, Calendar, Forecasts

from helios.app.energy.whatif import EnergySeriesRequest, energy_on_series
from helios.app.history import read_file
from helios.app.whatif import WhatIfRequest, prepare_replay
from helios.config import Energy
from helios.ingest.node_series import read_series, sum_series
from helios.model import STEP_S, NodeSeries
from helios.report.energy import EnergyWhatIf
from helios.services.energy_saving import CesOptions
from helios.simulate import Backfill, Placement, replay
from helios.simulate.ageing import first_in_first_out
from tests.traces import TRACES

ZONES = {"helios": "Asia/Shanghai", "philly": "America/Los_Angeles"}
NODES = {"helios_venus": 133}
"""Job traces whose demand is replayed, by the begin of their names, and the nodes of 8 GPUs."""
COPIES = ("helios_venus_users",)
"""Traces whose jobs are among those of another."""
FIRST_DAYS = 9
"""Least days before the first window: a week, and a day without forecasts on both sides."""
CONTROLS = ("ces_published", "idle_timer_30min", "max_3h_plus_5", "foresight", "oracle")
QUESTIONS = {
    "asleep": "mean_sleeping_nodes",
    "wake-ups a day": "wakeups_per_day",
    "node hours short": "node_hours_short",
}


def rows(path: Path, *, options: CesOptions | None = None) -> list[dict[str, Any]]:
    """Return CES beside each control in every window of one trace.

    Empty for a trace that tells nothing of nodes.
    """
    return [row for found in windows(path, options=options or CesOptions()) for row in _rows(path, found)]


def windows(path: Path, *, options: CesOptions) -> list[EnergyWhatIf]:
    """Return the what-if of each window of a trace; none where it tells nothing of nodes."""
    series = node_series(path)
    if series is None:
        return []
    calendar = Calendar(zone=ZoneInfo(_zone(path)))
    begin = datetime.fromtimestamp(-(-series.start_s // 86_400) * 86_400, UTC)
    span = (datetime.fromtimestamp(series.end_s, UTC) - begin).days
    length = 28 if span >= 100 else 14 if span >= 50 else 7
    before = max(FIRST_DAYS, span - length * ((span - min(FIRST_DAYS * 3, span // 3)) // length))
    request = EnergySeriesRequest(
        series=series,
        window=(begin, begin),
        calendar=calendar,
        options=options,
        forecasts=_forecasts(series, calendar),
    )
    found = []
    for first in range(before, span - length + 1, length):
        window = (begin + timedelta(days=first), begin + timedelta(days=first + length))
        found.append(energy_on_series(replace(request, window=window), energy=Energy()))
    return found


def node_series(path: Path) -> NodeSeries | None:
    """Read a file or folder of node series, or replay a job trace for one; None where it is neither."""
    if path.is_dir():
        return sum_series([read_series(part, timezone=_zone(path)) for part in sorted(path.iterdir())], name=path.name)
    if "nodes" in path.name:
        return read_series(path, timezone=_zone(path))
    count = next((nodes for name, nodes in NODES.items() if path.name.startswith(name)), None)
    if count is None or path.name.startswith(COPIES):
        return None
    history = read_file(path, timezone=_zone(path))
    setup = prepare_replay(history, WhatIfRequest(scenarios=(), nodes={"all": count}))
    played = replay(
        setup.workload,
        setup.machine.shape,
        backfill=Backfill.EASY,
        order=first_in_first_out,
        estimate_s=setup.limit_s,
        placement=Placement.RANDOM,
        count_nodes=True,
    )
    start_s, most, _ = played.busy_nodes(60)
    # The last submission ends the series: after it the cluster only runs empty.
    busy = most[0, : (int(setup.workload.submitted_s[-1]) - start_s) // 60]
    return NodeSeries(
        name=path.name,
        start_s=start_s,
        step_s=60,
        active=busy.astype(np.float64),
        total=np.full(len(busy), float(count)),
        gaps=np.zeros(len(busy), dtype=np.bool_),
    )


def _forecasts(series: NodeSeries, calendar: Calendar) -> Forecasts:
    """Forecast a whole series once, learning anew each day from what was before it."""
    each = STEP_S // series.step_s
    skipped = -series.start_s % STEP_S // series.step_s
    fine = slice(skipped, skipped + (len(series) - skipped) // each * each)
    total = series.total[fine].astype(np.float64)
    busy = np.minimum(series.active[fine], total).reshape(-1, each).max(axis=1)
    made = walk_forward(
        busy,
        total.reshape(-1, each).max(axis=1),
        start_s=series.start_s + skipped * series.step_s,
        from_step=DAY,
        until_step=len(busy),
        calendar=calendar,
        history_steps=180 * DAY,
    )

    def whole(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([np.full((DAY, *values.shape[1:]), np.nan), values])

    return replace(made, point=whole(made.point), mean=whole(made.mean), most=whole(made.most))


def _zone(path: Path) -> str:
    return next((zone for name, zone in ZONES.items() if path.name.startswith(name)), "UTC")


def _rows(path: Path, found: EnergyWhatIf) -> list[dict[str, Any]]:
    ces = found.of("ces")
    window = [moment.date().isoformat() for moment in found.window]
    told = []
    for policy in CONTROLS:
        control = found.of(policy)
        for question, field in QUESTIONS.items():
            ours, theirs = float(getattr(ces, field)), float(getattr(control, field))
            told.append(
                {
                    "question": question,
                    "trace": path.name,
                    "window": " to ".join(window),
                    "against": policy,
                    "ours": ours,
                    "control": theirs,
                    "ratio": ours / theirs if theirs else 1.0 if ours == theirs else None,
                    "rules": {rule.rule: rule.days for rule in found.chosen},
                }
            )
    return told


def _worst(found: EnergyWhatIf) -> float:
    """Return the least of sleep, and of wake-ups and shortness turned over, as ratios to the published rule."""
    ces, published = (found.of(policy) for policy in ("ces", "ces_published"))
    assert ces is not None
    assert published is not None
    pairs = (
        (ces.mean_sleeping_nodes, published.mean_sleeping_nodes),
        (published.wakeups_per_day, ces.wakeups_per_day),
        (published.node_hours_short, ces.node_hours_short),
    )
    return min((better / worse if worse else float("inf")) if better != worse else 1.0 for better, worse in pairs)


def _print(path: Path, found: EnergyWhatIf) -> None:
    first, end = found.window
    print(f"\n{path.name}, {first:%Y-%m-%d} to {end:%Y-%m-%d}, {found.total_nodes:.0f} nodes")
    print(f"{'':<20}{'asleep':>10}{'wake-ups a day':>24}{'node hours short':>18}{'saved, kWh':>12}")
    for policy in ("ces", *CONTROLS):
        result = found.of(policy)
        assert result is not None
        low, high = result.wakeups_per_day_interval
        wakes = f"{result.wakeups_per_day:.2f} ({low:.2f}-{high:.2f})"
        print(
            f"{policy:<20}{result.mean_sleeping_nodes:>10.1f}{wakes:>24}{result.node_hours_short:>18.1f}"
            f"{result.saved_kwh:>12,.0f}"
        )
    for rule in found.chosen:
        print(f"  {rule.rule}, {rule.days} days: {rule.choice.reason}")


def main() -> None:
    """Print every window of every trace, the worst first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--wake-ups", type=float, help="wake-ups a day that are accepted; else the published rule's")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    options, begun = CesOptions(wake_ups_per_day=given.wake_ups), time.perf_counter()
    paths = given.traces or sorted(TRACES.iterdir())
    found = [(path, one) for path in paths for one in windows(path, options=options)]
    if given.json:
        print(json.dumps([row for path, one in found for row in _rows(path, one)], indent=1))
        return
    for path, one in sorted(found, key=lambda pair: _worst(pair[1])):
        _print(path, one)
    print(f"\n{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
