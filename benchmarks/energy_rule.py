"""The rule for nodes awake beside its rivals and the limit, on jobs: ``python -m benchmarks.energy_rule [case ...]``.

Cases are venus, venus-100 and philly, by default all. Venus' spare nodes are chosen on 13 April to 2 August 2020 and
judged in August. Philly's are chosen on October 2017 itself, as there is nothing before it. Rivals may choose their
numbers in the window itself, at no more delayed submissions. No later month is looked at.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from helios.app.energy.spare_nodes import PLAIN_RULE, oracle_run, timer_rule, use_of_pools
from helios.app.history import read_file
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.config import Energy
from helios.metrics.node_usage import NodeSeconds, energy_kwh
from helios.metrics.spare_nodes import CHECK_S, CYCLES_PER_NODE_DAY, SAFE_RULE, SPARES, AwakeRule, choose_rules
from helios.model import PoolUse
from helios.simulate import Sleep
from helios.simulate.cluster_nodes import NodeHolding
from helios.simulate.node_replay import NodeReplay
from helios.simulate.node_series import SeriesRun
from helios.units import DAY_S
from tests.traces import TRACES

ENERGY = Energy()
TARGETS = (0.01, 0.005, 0.004)
TIMERS_S = (1_800, 3_600, 10_800)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trace, its nodes, the weeks that choose, and the windows that judge."""

    file: str
    zone: str
    nodes: int
    chosen_on: tuple[str, str]
    windows: Mapping[str, tuple[str, str]]

    def moments(self, window: tuple[str, str]) -> tuple[int, int]:
        """Return the begin and the end of a window, s since the epoch."""
        begin, end = (datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(self.zone)) for day in window)
        return int(begin.timestamp()), int(end.timestamp())


VENUS = Case(
    file="helios_venus_mar-aug2020.csv.gz",
    zone="Asia/Shanghai",
    nodes=133,
    chosen_on=("2020-04-13", "2020-08-03"),
    windows={
        "August": ("2020-08-03", "2020-08-31"),
        "8 to 14 August": ("2020-08-08", "2020-08-15"),
        "April": ("2020-04-13", "2020-05-01"),
        "May": ("2020-05-01", "2020-06-01"),
        "June": ("2020-06-01", "2020-07-01"),
        "July": ("2020-07-01", "2020-08-01"),
    },
)
CASES = {
    "venus": VENUS,
    "venus-100": replace(VENUS, nodes=100, windows={"August": VENUS.windows["August"]}),
    "philly": Case(
        file="philly_vc_aug-oct2017.csv.gz",
        zone="America/Los_Angeles",
        nodes=352,
        chosen_on=("2017-10-03", "2017-10-31"),
        windows={"October": ("2017-10-03", "2017-10-31")},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a policy came to in a window."""

    asleep: float
    kwh_day: float
    submissions: float
    jobs: float
    cycles: float

    def __str__(self) -> str:
        return (
            f"{self.asleep:8.1f}{self.kwh_day:10,.0f}{100 * self.submissions:10.2f}{100 * self.jobs:10.2f}"
            f"{self.cycles:8.2f}"
        )


class Bench:
    """Replays of one case, each over all of its windows."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.windows = {name: case.moments(window) for name, window in case.windows.items()}
        self.chosen_on = case.moments(case.chosen_on)
        moments = [moment for window in (*self.windows.values(), self.chosen_on) for moment in window]
        history = read_file(TRACES / case.file, timezone=case.zone)
        since, until = (datetime.fromtimestamp(moment, UTC) for moment in (min(moments), max(moments)))
        warm_up = since - history.jobs["submitted_at"].min()
        self.setup: ReplaySetup = prepare_replay(
            history,
            WhatIfRequest(
                scenarios=(), since=since, until=until, warm_up=warm_up, nodes={"all": case.nodes}, skip_oversized=True
            ),
        )
        self.moments = sorted(set(moments))
        self.always_on = self._seconds(self.nodes())

    def nodes(self, *, rule: AwakeRule | None = None, timer_s: int | None = None) -> NodeReplay:
        """Return the nodes before the first job; jobs go to the fullest node."""
        return NodeReplay(
            self.setup.workload,
            self.setup.machine.shape,
            estimates_s=self.setup.limit_s,
            sleep=Sleep(
                boot_s=round(ENERGY.boot_s),
                shutdown_s=round(ENERGY.shutdown_s),
                idle_timer_s=timer_s,
                rules=() if rule is None else (rule,),
            ),
        )

    def _seconds(self, nodes: NodeReplay) -> dict[str, tuple[NodeSeconds, int]]:
        """Replay and return node seconds and wakes by window."""
        tallies = {}
        for moment in self.moments:
            nodes.advance(moment)
            tallies[moment] = nodes.tally()
        return {
            name: (tallies[end].total - tallies[begin].total, tallies[end].wakes - tallies[begin].wakes)
            for name, (begin, end) in self.windows.items()
        }

    def rows(self, *, rule: AwakeRule | None = None, timer_s: int | None = None) -> dict[str, Row]:
        """Replay the case and return what came of each window."""
        nodes = self.nodes(rule=rule, timer_s=timer_s)
        seconds = self._seconds(nodes)
        return {name: self._row(name, *seconds[name], late_s=nodes.late_s) for name in self.windows}

    def _row(self, window: str, seconds: NodeSeconds, wakes: int, *, late_s: NDArray[np.int64]) -> Row:
        (begin_s, end_s), (always, _) = self.windows[window], self.always_on[window]
        days = (end_s - begin_s) / DAY_S
        submitted_s = self.setup.workload.submitted_s
        counted = (submitted_s >= begin_s) & (submitted_s < end_s)
        late = counted & (late_s > 0)
        submissions, delayed = (len(np.unique(submitted_s[jobs] // CHECK_S)) for jobs in (counted, late))
        as_much_work = energy_kwh(always, ENERGY) * seconds.gpus_busy / always.gpus_busy
        return Row(
            asleep=seconds.asleep / (end_s - begin_s),
            kwh_day=(as_much_work - energy_kwh(seconds, ENERGY)) / days,
            submissions=delayed / submissions,
            jobs=late.sum() / counted.sum(),
            cycles=wakes / days / self.case.nodes,
        )

    @cached_property
    def holding(self) -> NodeHolding:
        """Use of the nodes under the safe rule."""
        nodes = self.nodes(rule=SAFE_RULE)
        nodes.advance(self.moments[-1])
        return nodes.holding()

    def uses(self, window: tuple[int, int]) -> dict[str, PoolUse]:
        """Return the use of the nodes by minute under the safe rule."""
        begin_s, end_s = window
        return use_of_pools(self.holding, self.setup.workload, self.setup.machine.shape, begin_s=begin_s, end_s=end_s)

    def oracle(self) -> dict[str, Row]:
        """Return what the limit comes to in each window."""
        rows = {}
        for name, (begin_s, end_s) in self.windows.items():
            always, n_hours = self.always_on[name][0], -(-(end_s - begin_s) // 3_600)
            hourly = (NodeSeconds(gpus_busy=always.gpus_busy / n_hours),) * n_hours
            work = SeriesRun(hourly=hourly, woken=0, short_s=0.0, mean_asleep=0.0, utilization_before=0.0)
            run = oracle_run(self.uses((begin_s, end_s)), ENERGY, work)
            late_s = np.zeros(len(self.setup.workload), dtype=np.int64)
            rows[name] = self._row(name, run.seconds, run.woken, late_s=late_s)
        return rows


def chosen(bench: Bench) -> Iterator[tuple[float, AwakeRule]]:
    """Print and yield the rule that each target takes."""
    uses = bench.uses(bench.chosen_on)
    for target in TARGETS:
        (choice,) = choose_rules(
            uses, ENERGY, delayed_submissions=target, cycles_per_node_day=CYCLES_PER_NODE_DAY
        ).values()
        print(f"target {target:.1%}: {choice.rule.memory_s // 60} min, {choice.reason}")
        yield target, choice.rule


def best(rows: Sequence[Row], *, submissions: float) -> Row | None:
    """Return the row that saves most at no more delays."""
    return max((row for row in rows if row.submissions <= submissions), key=lambda row: row.kwh_day, default=None)


def main() -> None:
    """Print every case."""
    for name in sys.argv[1:] or CASES:
        begun = time.process_time()
        print(f"{name}: {CASES[name].nodes} nodes")
        bench = Bench(CASES[name])
        show(bench, dict(chosen(bench)))
        print(f"{time.process_time() - begun:.0f} s CPU\n", flush=True)


def show(bench: Bench, rules: Mapping[float, AwakeRule]) -> None:
    """Print the table of each window."""
    spares = [spare for spare in SPARES if spare <= bench.case.nodes // 3]
    rows = {f"rule, chosen for {target:.1%}: N = {rule.spare}": bench.rows(rule=rule) for target, rule in rules.items()}
    front = [bench.rows(rule=AwakeRule(memory_s=1_800, spare=spare)) for spare in spares]
    rows |= {f"rule, 30 min, N = {spare}": row for spare, row in zip(spares, front, strict=True)}
    plain, timer, oracle = bench.rows(rule=PLAIN_RULE), bench.rows(timer_s=1_800), bench.oracle()
    rows |= {"most of 3 h + 5": plain, "timer 30 min": timer, "oracle": oracle}
    floors = range(0, bench.case.nodes, max(bench.case.nodes // 20, 1))
    kept = {
        f"timer + N {what}, best at <= 1 %": [
            bench.rows(rule=replace(timer_rule(n, counts_busy=counts), least_idle_s=timer_s))
            for timer_s in TIMERS_S
            for n in numbers
        ]
        for what, counts, numbers in (("idle", False, spares), ("powered", True, floors))
    }
    head = f"{'asleep':>8}{'kWh a day':>10}{'subm. %':>10}{'jobs %':>10}{'cycles':>8}"
    for window in bench.windows:
        print(f"{window:<36}{head}")
        for name, row in rows.items():
            print(f"{name:<36}{row[window]}")
        rivals = {name: best([row[window] for row in tried], submissions=0.01) for name, tried in kept.items()}
        for name, rival in rivals.items():
            print(f"{name:<36}{rival or 'none'}")
        delays = [row[window].submissions for row in front[::-1]]
        kwh = [row[window].kwh_day for row in front[::-1]]
        for name, rival in {"most of 3 h + 5": plain[window], **rivals}.items():
            if rival is not None:
                ratio = float(np.interp(rival.submissions, delays, kwh)) / rival.kwh_day
                print(f"at equal delays the rule saves {ratio:.2f} x {name}")


if __name__ == "__main__":
    main()
