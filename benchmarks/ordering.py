"""What an order of the queue is worth, over draws of several traces.

    python -m benchmarks.ordering FOLDER [--draws 4] [--part first|rest|all|earlier] [--rules rules|bounds]
        [--only kth_dec]

Each figure is a wait over that of plain FIFO + EASY (by time limits) in the same draw: the mean wait (geometric mean
over the draws, the worst in brackets), the longest wait (median, worst), and the mean wait of jobs of a node and more
(geometric mean, worst), where nodes have one CPU of more than one. Every rule has EASY backfill by time limits, and
ages by the same share of the longest wait, unless its name says "not aged". The windows of the parts `first` and
`earlier` served to choose constants; what is reported is `rest`.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.draws import Window, day
from helios.app.history import read_file
from helios.app.order_check import live_scenario
from helios.app.scenarios import AGED, NEVER, Scenario, read_options
from helios.choices import Policy, RunTimes
from helios.report.verdict import Ratios, geometric_mean

VENUS = "helios_venus_mar-aug2020.csv.gz"
VENUS_USERS = "helios_venus_users_may-jun2020.csv.gz"
PHILLY = "philly_vc_aug-oct2017.csv.gz"
GRAHAM, CEDAR = "sacct_graham_may-jun2021.txt.gz", "sacct_cedar_may-jun2021.txt.gz"
KTH, BLUE = "KTH-SP2-1996-2.1-cln.swf.gz", "SDSC-BLUE-2000-4.2-cln.swf.gz"
PHILLY_NODES = (
    "6214e9=26,7f04ca=13,11cb48=6,b436b2=26,ee9e8c=26,e13805=6,6c71a0=13,2869ce=6,ed69ec=3,103959=3,0e4a51=13"
)
"""40 % of the nodes of each virtual cluster; at all of them hardly a job waits."""
FIRST = (
    Window(name="venus_apr", file=VENUS, nodes="85", since=day("2020-04-01"), until=day("2020-05-11")),
    Window(name="venus_may", file=VENUS, nodes="85", since=day("2020-05-11"), until=day("2020-06-21")),
    Window(name="kth_first", file=KTH, nodes="100", gpus_per_node=1, until=day("1997-03-01")),
    Window(name="blue_first", file=BLUE, nodes="144", since=day("2000-07-01"), until=day("2000-10-01")),
)
REST = (
    Window(name="venus_users", file=VENUS_USERS, nodes="85"),
    Window(name="venus_jul", file=VENUS, nodes="85", since=day("2020-07-01"), until=day("2020-08-20")),
    Window(name="philly", file=PHILLY, nodes=PHILLY_NODES),
    Window(name="kth_rest", file=KTH, nodes="100", gpus_per_node=1, since=day("1997-03-01")),
    Window(name="blue_rest", file=BLUE, nodes="144", since=day("2001-11-01"), until=day("2002-02-01")),
)
EARLIER = (
    Window(name="philly_sep", file=PHILLY, nodes="48", since=day("2017-09-01"), until=day("2017-10-01")),
    Window(name="venus_apr4", file=VENUS, nodes="70", since=day("2020-03-29"), until=day("2020-04-26")),
    Window(name="venus_may4", file=VENUS, nodes="74", since=day("2020-04-26"), until=day("2020-05-24")),
    Window(name="kth_dec", file=KTH, nodes="97", gpus_per_node=1, since=day("1996-11-25"), until=day("1996-12-23")),
    Window(name="kth_feb", file=KTH, nodes="94", gpus_per_node=1, since=day("1997-01-20"), until=day("1997-02-17")),
    Window(name="blue_aug", file=BLUE, nodes="1073", gpus_per_node=1, since=day("2000-08-01"), until=day("2000-08-29")),
    Window(name="blue_mar", file=BLUE, nodes="1024", gpus_per_node=1, since=day("2001-03-01"), until=day("2001-03-29")),
    Window(name="graham", file=GRAHAM, nodes="19", since=day("2021-05-09T11:22:48"), until=day("2021-05-31T12:47:59")),
    Window(name="cedar", file=CEDAR, nodes="30", since=day("2021-05-12T19:06:09"), until=day("2021-05-30T11:36:05")),
)
"""Stretches that ``large_divisor`` was chosen on, each on a machine that its jobs keep busy.

They come before the windows of ``benchmarks/held_out.py``, but for Venus, where they overlap with its first two.
"""
PARTS = {"first": FIRST, "rest": REST, "all": (*FIRST, *REST), "earlier": EARLIER}


def plan(policy: Policy, run_times: RunTimes | None = None, **options: Any) -> Scenario:
    """Return a scenario with EASY backfill by time limits."""
    return live_scenario(policy, run_times=run_times, options=read_options(policy.value, options))


PREDICTED, TRUE = RunTimes.PREDICTED, RunTimes.TRUE
DEFAULT: dict[str, Any] = dict(AGED)
"""Controls age and are bounded as `qssf` is."""
RULES = {
    "qssf": plan(Policy.QSSF, PREDICTED, **DEFAULT),
    "size": plan(Policy.FEWEST_GPUS, **DEFAULT),
    "size x median": plan(Policy.SERVICE, PREDICTED, **DEFAULT),
    "size x mean": plan(Policy.MEAN_SERVICE, PREDICTED, **DEFAULT),
    "qssf, true run times": plan(Policy.QSSF, TRUE, **DEFAULT),
    "size x median, not aged": plan(Policy.SERVICE, PREDICTED),
}
BOUNDS = {
    f"qssf, wait_share {share:g}, bound {bound}, large / {divisor:g}": plan(
        Policy.QSSF, PREDICTED, wait_share=share, bound_share=bound, large_divisor=divisor
    )
    for share, bound, divisor in (
        *((0.5, bound, 1.0) for bound in (NEVER, 0.75, 0.9, 1.0)),
        *((share, 0.9, divisor) for share in (0.25, 0.5) for divisor in (2.0, 4.0, 8.0)),
    )
}
TABLES = {"rules": RULES, "bounds": BOUNDS}
Found = dict[str, dict[str, list[Ratios]]]


def measure(folder: Path, windows: Sequence[Window], rules: dict[str, Scenario], draws: int) -> Found:
    """Return the ratios of each rule in each window, one for each draw, printing them as they come."""
    found: Found = defaultdict(lambda: defaultdict(list))
    for window in windows:
        drawn = window.drawn_from(read_file(folder / window.file))
        for number in range(1, draws + 1):
            one = drawn.draw(number)
            for name, scenario in rules.items():
                found[name][window.name].append(one.ratios(scenario))
        for name in rules:
            print(f"{window.name:12s} {name:44s} {_line(found[name][window.name])}", flush=True)
    return found


def _line(ratios: Sequence[Ratios]) -> str:
    mean, longest, large = ([getattr(one, name) for one in ratios] for name in ("mean", "longest", "large"))
    return (
        f"mean {geometric_mean(mean):5.2f} ({max(mean):.2f})  longest {np.median(longest):5.2f} ({max(longest):.2f})  "
        f"large {geometric_mean(large):5.2f} ({max(large):.2f})"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--part", choices=PARTS, default="rest")
    parser.add_argument("--rules", choices=TABLES, default="rules")
    parser.add_argument("--only", help="Names of windows by commas; else all of the part")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else None
    windows = [window for window in PARTS[given.part] if names is None or window.name in names]
    found = measure(given.folder, windows, TABLES[given.rules], given.draws)
    print("\nAll windows: each window counts once, by its draws' geometric mean")
    for name, by_window in found.items():
        means = [
            Ratios(
                mean=geometric_mean([one.mean for one in ratios]),
                longest=float(np.median([one.longest for one in ratios])),
                large=geometric_mean([one.large for one in ratios]),
            )
            for ratios in by_window.values()
        ]
        print(f"{name:44s} {_line(means)}", flush=True)


if __name__ == "__main__":
    main()
