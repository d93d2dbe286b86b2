"""Table and JSON of a simulated sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.report.tables import plain_table
from helios.training.model import Device
from helios.training.report import memory_in_words
from helios.training.sharing_rules import PoolComparison
from helios.training.simulator import PoolOutcome
from helios.training.target_rules import TargetComparison
from helios.units import count_in_words, percent, rounded_duration

J_PER_KWH = 3_600_000.0
LEAST_GAIN = 0.03
"""Smallest gain of the oracle, as a share of the makespan, with which other gains are compared."""


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
    """Return a table of the rules, with ranges where pairs were never measured.

    It has at most 80 columns, as a terminal.
    """
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
    about = f"{count_in_words(result.trials, 'trial')} of {result.name}"
    lines = setting_lines(about, result.devices, result.comparisons)
    if result.watts is not None and math.isnan(result.watts[0]):
        lines.append("Energy is that of busy GPUs; that of idle ones is not known: --watts IDLE,BUSY.")
    return Group(table, "", *map(escape, lines))


def setting_lines(about: str, devices: Sequence[Device], gains: Iterable[float | None]) -> list[str]:
    """Return lines on what was simulated."""
    memory = memory_in_words(devices[0].memory_mib)
    lines = [f"{about} on {count_in_words(len(devices), 'GPU')} of {memory}, simulated."]
    if None not in (known := [*gains]):
        words = " to ".join(f"{gain:g}" for gain in known)
        lines.append(f"Two trials do {words} times the work of one on a GPU, where no measurement is used: --gain.")
    return lines


def _share(comparison: PoolComparison | TargetComparison, rule: str) -> float:
    """Return the share of the oracle's gain, NaN where that gain is too small."""
    below_s = (1 - LEAST_GAIN) * comparison.outcomes["exclusive"].makespan_s
    return comparison.share_of_gain(rule) if comparison.outcomes["oracle"].makespan_s < below_s else math.nan


def as_range(cells: Sequence[str]) -> str:
    """Return the first and the last cell as a range.

    Equal cells are returned as one.
    """
    return cells[0] if cells[0] == cells[-1] else f"{cells[0]}\nto {cells[-1]}"
