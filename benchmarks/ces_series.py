"""What CES does with a node series, beside its controls, and how fast its thresholds are picked.

    python benchmarks/ces_series.py SERIES... --from 2017-11-01 --to 2017-12-01 [--timezone Z]

Prints the what-if table, the time to pick a day's setting from three weeks, and what each part of the rule gains: the
same window without the spare node, with a fixed number of wake-ups, and with other weights of sleep against wake-ups.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.app.energy.whatif_series import EnergySeriesRequest, energy_on_series
from helios.config import Energy
from helios.ingest.node_series import read_series, sum_series
from helios.predict.demand.types import Calendar
from helios.services.energy_saving import CesOptions
from helios.services.energy_saving.tuning import DAY, Goal, KnownDemand, tune

VARIANTS = {
    "as it is": CesOptions(),
    "no spare node": CesOptions(spare=0),
    "0.5 wake-ups a day": CesOptions(wake_ups_per_day=0.5),
    "1 wake-up a day": CesOptions(wake_ups_per_day=1.0),
    "2 wake-ups a day": CesOptions(wake_ups_per_day=2.0),
    "dearer wake-ups": CesOptions(worth=0.2),
    "two weeks": CesOptions(weeks=2),
}


def asked() -> tuple[argparse.Namespace, EnergySeriesRequest]:
    """Return the arguments and the question they put."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", nargs="+", type=Path)
    parser.add_argument("--from", dest="since", required=True)
    parser.add_argument("--to", dest="until", required=True)
    parser.add_argument("--timezone", default="UTC")
    given = parser.parse_args()
    zone = ZoneInfo(given.timezone)
    read = [read_series(path, timezone=given.timezone) for path in given.series]
    one = read[0] if len(read) == 1 else sum_series(read, name=f"{len(read)} files")
    since, until = (datetime.fromisoformat(text).replace(tzinfo=zone) for text in (given.since, given.until))
    return given, EnergySeriesRequest(
        series=one,
        window=(since, until),
        calendar=Calendar(zone=zone),
    )


def picking_s(request: EnergySeriesRequest) -> float:
    """Return the time to pick a setting from three weeks, s, without compilation."""
    busy = request.series.active[-21 * 1_440 :].reshape(-1, 10).max(axis=1)
    most = np.repeat(np.repeat(busy[:, None, None], 5, axis=1), 3, axis=2)
    known = KnownDemand(
        busy=busy,
        total=request.series.total[-21 * 1_440 :: 10],
        most=most,
        ahead_s=(3_600, 10_800, 21_600, 43_200, 86_400),
        levels=(0.5, 0.9, 0.99),
        ended_s=DAY * 600,
        yardstick=np.zeros(len(busy)),
    )
    goal = Goal(risk=0.01, wake_ups_per_day=1.0, worth=0.1, spare=1.0, weeks=3)
    tune(known, goal)
    begun = time.perf_counter()
    tune(known, goal)
    return time.perf_counter() - begun


def main() -> None:
    """Print it all."""
    _, request = asked()
    print(f"a day's setting from three weeks: {picking_s(request):.2f} s")
    for variant, options in VARIANTS.items():
        found = energy_on_series(replace(request, options=options), energy=Energy())
        shown = found.policies if options == CesOptions() else [found.of("ces")]
        for result in filter(None, shown):
            low, high = result.wakeups_per_day_interval
            name = result.policy if options == CesOptions() else f"ces, {variant}"
            print(
                f"{name:26} asleep {result.mean_sleeping_nodes:6.1f}  used {result.node_utilization_after:.3f}  "
                f"wakes/day {result.wakeups_per_day:5.2f} ({low:.2f}-{high:.2f})  "
                f"short {result.node_hours_short:6.1f} node-h"
            )


if __name__ == "__main__":
    main()
