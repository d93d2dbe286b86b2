"""Table and JSON of a simulated sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.report.tables import plain_table
from helios.targets import TIERS
from helios.training.model import Device
from helios.training.report import memory_in_words, shorten
from helios.training.sharing_rules import PoolComparison
from helios.training.simulator import PoolOutcome
from helios.training.target_rules import EQUAL, FIRST_COME, GROWTH, ORACLE, SHORTEST, TargetComparison
from helios.units import count_in_words, percent, rounded_duration

J_PER_KWH = 3_600_000.0
LEAST_GAIN = 0.03
"""Smallest gain of the oracle, as a share of the makespan, with which other gains are compared."""
SHOWN = 10
"""Tasks in the table of who pays; all are in the JSON."""
NAME = 16
"""Characters of a task's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWhatIf:
    """A sweep under several rules of sharing GPUs.

    Attributes
    ----------
    trials : int
        Simulated trials.
    comparisons : mapping
        Results by the gain of pairs that were never measured, lowest first. None where all were.
    watts : pair of float, optional
        Power of an idle and of a busy GPU, W. NaN for the idle one where only energy of busy ones is known.
    notes : sequence of str
        Assumptions.
    """

    name: str
    trials: int
    devices: Sequence[Device]
    comparisons: Mapping[float | None, PoolComparison | TargetComparison]
    watts: tuple[float, float] | None
    notes: Sequence[str]

    def energy_kwh(self, outcome: PoolOutcome) -> float | None:
        """Return the energy of the GPUs, kWh."""
        if self.watts is None:
            return None
        idle, busy = self.watts
        idle_s = outcome.held_gpu_s - outcome.busy_gpu_s
        return (outcome.busy_gpu_s * busy + (0.0 if math.isnan(idle) else idle_s * idle)) / J_PER_KWH

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``helios pool whatif --json``."""
        return {
            "sweep": self.name,
            "trials": self.trials,
            "devices": [{"name": device.name, "memory_mib": round(device.memory_mib, 1)} for device in self.devices],
            "comparisons": [
                {"gain_of_unmeasured_pairs": gain, **self._comparison(comparison)}
                for gain, comparison in self.comparisons.items()
            ],
            "notes": list(self.notes),
        }

    def _comparison(self, comparison: PoolComparison | TargetComparison) -> dict[str, Any]:
        values = comparison.to_json()
        for name, outcome in comparison.outcomes.items():
            values["rules"][name]["energy_kwh"] = self.energy_kwh(outcome)
        return values


def pool_whatif_table(result: PoolWhatIf) -> RenderableType:
    """Return tables of the rules, with ranges where pairs were never measured.

    With targets there is one for each target, and one of who pays. They have at most 80 columns, as a terminal.
    """
    with_targets = any(isinstance(comparison, TargetComparison) for comparison in result.comparisons.values())
    parts, lines = _target_tables(result) if with_targets else _sharing_table(result)
    memory = memory_in_words(result.devices[0].memory_mib)
    about = f"{count_in_words(result.trials, 'trial')} of {result.name}"
    about = f"{about} on {count_in_words(len(result.devices), 'GPU')} of {memory}, simulated."
    if None not in (gains := [*result.comparisons]):
        words = " to ".join(f"{gain:g}" for gain in gains)
        about += f"\nTwo trials do {words} times the work of one on a GPU, where no measurement is used: --gain."
    return Group(*(each for part in parts for each in (part, "")), *map(escape, [about, *lines]))


def _sharing_table(result: PoolWhatIf) -> tuple[list[RenderableType], list[str]]:
    table = plain_table(
        "Rule", "Makespan", "Mean time\nto result", "GPU\nhours", "Energy", "Memory\nkills", "Of the\noracle's gain"
    )
    comparisons = list(result.comparisons.values())
    for rule in comparisons[0].outcomes:
        outcomes = [comparison.outcomes[rule] for comparison in comparisons]
        energies = [result.energy_kwh(outcome) for outcome in outcomes]
        shares = [_share(comparison, rule) for comparison in comparisons]
        table.add_row(
            escape(rule),
            as_range([rounded_duration(outcome.makespan_s) for outcome in outcomes]),
            as_range([rounded_duration(outcome.mean_result_s) for outcome in outcomes]),
            as_range([f"{outcome.held_gpu_s / 3600:,.3g}" for outcome in outcomes]),
            as_range(["not known" if energy is None else f"{energy:,.2f} kWh" for energy in energies]),
            as_range([f"{outcome.out_of_memory:,}" for outcome in outcomes]),
            as_range(["none" if math.isnan(share) else percent(share) for share in shares]),
        )
    lines = []
    if result.watts is not None and math.isnan(result.watts[0]):
        lines.append("Energy is that of busy GPUs; that of idle ones is not known: --watts IDLE,BUSY.")
    return [table], lines


def _share(comparison: PoolComparison | TargetComparison, rule: str) -> float:
    """Return the share of the oracle's gain, NaN of a small one."""
    below_s = (1 - LEAST_GAIN) * comparison.outcomes["exclusive"].makespan_s
    return comparison.share_of_gain(rule) if comparison.outcomes["oracle"].makespan_s < below_s else math.nan


def as_range(cells: Sequence[str]) -> str:
    """Return the first and the last cell as a range.

    Equal cells are returned as one.
    """
    return cells[0] if cells[0] == cells[-1] else f"{cells[0]}\nto {cells[-1]}"


def _target_tables(result: PoolWhatIf) -> tuple[list[RenderableType], list[str]]:
    cases = [comparison["rules"] for comparison in result.to_json()["comparisons"]]
    tasks = {tier: cases[0][EQUAL][tier]["tasks_s"] for tier in TIERS}
    lines = [
        f"{task} never reaches its {tier} target in its curve, so it does not count there."
        for tier, tasks_s in tasks.items()
        for task, time_s in tasks_s.items()
        if time_s is None
    ]
    return [*(_rules(cases, tier) for tier, tasks_s in tasks.items() if tasks_s), _payers(cases)], lines


def _rules(cases: Sequence[Mapping[str, Any]], tier: str) -> RenderableType:
    rows = []
    for rule in cases[0]:
        found = [case[rule] for case in cases]
        times = [[_duration(each[tier][name]) for each in found] for name in ("mean_s", "p95_s", "worst_s")]
        times.insert(3, [shorten(each[tier]["worst_task"] or "none", NAME) for each in found])
        if tier == TIERS[0]:
            times.append([rounded_duration(each["makespan_s"]) for each in found])
            times.append([_gain(case, rule) for case in cases])
        rows.append([escape(cell) for cell in (rule, *map(as_range, times))])
    names = ["Mean", "p95", "Worst", "Its task", "Makespan", "Of the\noracle's gain"][: len(rows[0]) - 1]
    return plain_table(f"Time to the\n{tier} target", *names, rows=rows)


def _payers(cases: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return each task's times beside equal share, the largest loss first."""
    rows = []
    (service,) = cases[0].keys() - {EQUAL, FIRST_COME, SHORTEST, GROWTH, ORACLE}
    for task in cases[0][EQUAL][TIERS[0]]["tasks_s"]:
        cells, ratios = [shorten(task, NAME)], [[0.0]]
        for tier in TIERS:
            pairs = [[case[rule][tier]["tasks_s"].get(task) for rule in (EQUAL, service)] for case in cases]
            cells += [as_range([_duration(pair[place]) for pair in pairs]) for place in (0, 1)]
            ratios.append([ours / equal for equal, ours in pairs if equal and ours])
            cells.append(as_range([f"{ratio:.2f}" for ratio in ratios[-1]] or [""]))
        rows.append((max(ratios[1] or [0.0]), [escape(cell) for cell in cells]))
    rows.sort(key=lambda row: -row[0])
    names = [word for tier in TIERS for word in (f"{tier.title()}:\n{EQUAL}", service, "Ratio")]
    return plain_table("Who pays", *names, rows=[cells for _, cells in rows[:SHOWN]])


def _gain(case: Mapping[str, Any], rule: str) -> str:
    """Return the share of the oracle's gain, if that is large."""
    best, equal = (case[name][TIERS[0]]["mean_s"] for name in (ORACLE, EQUAL))
    share = case[rule]["share_of_oracle_gain"]
    return "none" if not equal or share is None or best > (1 - LEAST_GAIN) * equal else percent(share)


def _duration(seconds: float | None) -> str:
    return "never" if seconds is None else rounded_duration(seconds)
