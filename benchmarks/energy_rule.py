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

from helios.app.energy.spare_nodes import PLAIN_RULE, choose_spare_nodes, oracle_run, safe_rules, use_of_pools
from helios.app.energy.whatif import EnergyReplay, policy_result, replay_nodes
from helios.app.history import read_file
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.config import Energy, Power
from helios.metrics.spare_nodes import CHECK_S, SPARES, AwakeRule
from helios.simulate import SimCluster, Sleep
from tests.traces import TRACES

ENERGY = Energy()
TARGETS = (0.01, 0.004)
TIMERS_S = (1_800, 3_600, 10_800)
FLOORS = range(0, 133, 6)


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
    """Replays of one case in one window."""

    def __init__(self, case: Case, window: tuple[str, str]) -> None:
        self.case, (self.begin_s, self.end_s) = case, case.moments(window)
        history = read_file(TRACES / case.file, timezone=case.zone)
        since, until = (datetime.fromtimestamp(moment, UTC) for moment in (self.begin_s, self.end_s))
        warm_up = since - history.jobs["submitted_at"].min()
        request = WhatIfRequest(
            plans=(), since=since, until=until, warm_up=warm_up, nodes={"all": case.nodes}, skip_oversized=True
        )
        self.setup: ReplaySetup = prepare_replay(history, request)

    def cluster(self, **sleep: object) -> SimCluster:
        """Return the cluster before its first job; jobs go to the fullest node."""
        machine = self.setup.machine
        options = {"boot_s": round(ENERGY.boot_s), "shutdown_s": round(ENERGY.shutdown_s), **sleep}
        return SimCluster(
            self.setup.workload,
            machine.shape,
            machine.jobs,
            estimates_s=self.setup.limit_s,
            sleep=Sleep(**options),  # type: ignore[arg-type]  # as named by the caller
        )

    def safe_cluster(self, until_s: int) -> SimCluster:
        """Return the cluster after a replay under the safe rule."""
        cluster = self.cluster(rules=safe_rules(self.setup.machine.shape))
        cluster.advance(until_s)
        return cluster

    @cached_property
    def always_on(self) -> EnergyReplay:
        """Replay with all nodes awake."""
        return self._replay()

    def _replay(self, **sleep: object) -> EnergyReplay:
        window = {"begin_s": self.begin_s, "end_s": self.end_s}
        return replay_nodes(self.cluster(**sleep), (), demand=None, power=Power(), progress=lambda _: None, **window)

    def row(self, replayed: EnergyReplay | None = None, **sleep: object) -> Row:
        """Replay the window and return what came of it."""
        replayed = self._replay(**sleep) if replayed is None else replayed
        days = (self.end_s - self.begin_s) / 86_400
        submitted_s = self.setup.workload.submitted_s
        counted = (submitted_s >= self.begin_s) & (submitted_s < self.end_s)
        late = counted & (replayed.late_s > 0)
        submissions, delayed = (len(np.unique(submitted_s[jobs] // CHECK_S)) for jobs in (counted, late))
        result = policy_result("", replayed.run, self.always_on.run, ENERGY, window_s=(self.begin_s, self.end_s))
        return Row(
            asleep=replayed.run.mean_asleep,
            kwh_day=result.saved_kwh / days,
            submissions=delayed / submissions,
            jobs=late.sum() / counted.sum(),
            cycles=replayed.run.woken / days / self.case.nodes,
        )

    def oracle(self) -> Row:
        """Return what the limit comes to."""
        shape, cluster = self.setup.machine.shape, self.safe_cluster(self.end_s)
        uses = use_of_pools(cluster, self.setup.workload, shape, begin_s=self.begin_s, end_s=self.end_s)
        run = oracle_run(uses, ENERGY, self.always_on.run)
        return self.row(EnergyReplay(run=run, late_s=np.zeros_like(self.always_on.late_s)))


def chosen(case: Case) -> Iterator[tuple[float, AwakeRule]]:
    """Print and yield the rule that each target takes."""
    bench = Bench(case, case.chosen_on)
    cluster = bench.safe_cluster(bench.end_s)
    for target in TARGETS:
        (choice,) = choose_spare_nodes(
            cluster,
            bench.setup.workload,
            bench.setup.machine.shape,
            ENERGY,
            before_s=bench.end_s,
            since_s=bench.begin_s,
            delayed_submissions=target,
        ).values()
        print(f"target {target:.1%}: {choice.rule.memory_s // 60} min, {choice.reason}")
        yield target, choice.rule


def best(rows: Sequence[Row], *, submissions: float) -> Row | None:
    """Return the row that saves most at no more delays."""
    return max((row for row in rows if row.submissions <= submissions), key=lambda row: row.kwh_day, default=None)


def main() -> None:
    """Print every case."""
    for name in sys.argv[1:] or CASES:
        case, begun = CASES[name], time.process_time()
        print(f"{name}: {case.nodes} nodes")
        rules = dict(chosen(case))
        for window, days in case.windows.items():
            show(window, Bench(case, days), rules)
        print(f"{time.process_time() - begun:.0f} s CPU\n")


def show(window: str, bench: Bench, rules: Mapping[float, AwakeRule]) -> None:
    """Print the table of a window."""
    head = f"{'asleep':>8}{'kWh a day':>10}{'subm. %':>10}{'jobs %':>10}{'cycles':>8}"
    print(f"{window:<34}{head}")
    for target, rule in rules.items():
        print(f"{f'rule, chosen for {target:.1%}: N = {rule.spare}':<34}{bench.row(rules=(rule,))}")
    spares = [spare for spare in SPARES if spare <= bench.case.nodes // 3]
    front = [bench.row(rules=(AwakeRule(memory_s=1_800, spare=spare),)) for spare in spares]
    for spare, row in zip(spares, front, strict=True):
        print(f"{f'rule, 30 min, N = {spare}':<34}{row}")
    plain = bench.row(rules=(PLAIN_RULE,))
    print(f"{'most of 3 h + 5':<34}{plain}")
    timers = {
        f"timer + N {what}": [
            bench.row(rules=(AwakeRule(memory_s=0, spare=n, wakes="never", least_idle_s=timer, counts_use=counts),))
            for timer in TIMERS_S
            for n in numbers
        ]
        for what, counts, numbers in (("idle", True, spares), ("powered", False, FLOORS))
    }
    for name, rows in timers.items():
        print(f"{f'{name}, best at <= 1 %':<34}{best(rows, submissions=0.01) or 'none'}")
    print(f"{'timer 30 min':<34}{bench.row(idle_timer_s=1_800)}")
    print(f"{'oracle':<34}{bench.oracle()}")
    delays, kwh = (np.array([getattr(row, column) for row in front[::-1]]) for column in ("submissions", "kwh_day"))
    ratio = float(np.interp(plain.submissions, delays, kwh)) / plain.kwh_day
    print(f"at equal delays the rule saves {ratio:.2f} x most of 3 h + 5", end="")
    kept = best(timers["timer + N idle"], submissions=0.01)
    if kept is not None:
        print(f", {float(np.interp(kept.submissions, delays, kwh)) / kept.kwh_day:.2f} x timer + N", end="")
    print()


if __name__ == "__main__":
    main()
