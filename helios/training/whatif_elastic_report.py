"""Table and JSON of sweeps simulated with changing and with fixed sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape

from helios.report.tables import plain_table
from helios.training.report import shorten
from helios.units import change, count_in_words, percent, rounded_duration

NAME = 12
"""Characters of a sweep's name."""
SHOWN = 10
"""Trials in the table of who pays; all are in the JSON."""


class DeviceSpan(NamedTuple):
    """A time in which a trial had the same devices, s since the begin."""

    trial: int
    start_s: float
    end_s: float
    gpus: int
    is_measured: bool
    """Whether earlier runs had as many GPUs on as many nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesOutcome:
    """What a rule of sizes came to.

    Attributes
    ----------
    ends_s : sequence of float
        When each trial ended, s since the begin.
    changes : sequence of int
        How often its devices changed.
    slowdowns : sequence of float
        When it ended over when it would on its equal share of the pool.
    spans : sequence of DeviceSpan
    """

    ends_s: Sequence[float]
    changes: Sequence[int]
    slowdowns: Sequence[float]
    spans: Sequence[DeviceSpan]

    @property
    def measured_share(self) -> float:
        """Share of the trials' time on sizes that earlier runs had."""
        lengths = [(span.end_s - span.start_s, span.is_measured) for span in self.spans]
        return sum(length for length, is_measured in lengths if is_measured) / sum(length for length, _ in lengths)

    def to_json(self, gpus: int) -> dict[str, Any]:
        """Return the figures of the rule on so many GPUs."""
        gpu_s = sum(span.gpus * (span.end_s - span.start_s) for span in self.spans)
        return {
            "mean_s": fmean(self.ends_s),
            "p95_s": float(np.quantile(self.ends_s, 0.95)),
            "worst_s": max(self.ends_s),
            "worst_slowdown": max(self.slowdowns),
            "changes_a_trial": fmean(self.changes),
            "gpu_hours": gpu_s / 3600,
            "idle_share": 1 - gpu_s / (gpus * max(self.ends_s)),
            "measured_share": self.measured_share,
            "trials_s": list(self.ends_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticWhatIf:
    """Sweeps with sizes that a service changes, and with fixed ones.

    Attributes
    ----------
    service : str
        Name of its rule. All others are of fixed sizes.
    nodes : int
        Over which the GPUs are spread evenly.
    trials : sequence of str
        Their names.
    """

    name: str
    service: str
    trials: Sequence[str]
    gpus: int
    nodes: int
    rules: Mapping[str, SizesOutcome]
    notes: Sequence[str]

    @property
    def best_fixed(self) -> str:
        """Rule of fixed sizes that ends trials soonest in the mean."""
        return min(self.rules.keys() - {self.service}, key=lambda rule: (fmean(self.rules[rule].ends_s), rule))

    @property
    def payers(self) -> list[tuple[float, int]]:
        """How much later trials end than with the best fixed size, the largest first."""
        pairs = zip(self.rules[self.service].ends_s, self.rules[self.best_fixed].ends_s, strict=True)
        ratios = [(ours / fixed, number) for number, (ours, fixed) in enumerate(pairs)]
        return sorted((pair for pair in ratios if pair[0] > 1), reverse=True)

    def headline(self) -> str:
        """Return the gain against the best fixed size, and how many pay."""
        ours, fixed = (self.rules[rule].to_json(self.gpus) for rule in (self.service, self.best_fixed))
        later = f"{len(self.payers):,} of {count_in_words(len(self.trials), 'trial')}"
        return (
            f"Mean time to the end: {change(ours['mean_s'], fixed['mean_s'])} against the best fixed size "
            f"({self.best_fixed}), the last end {change(ours['worst_s'], fixed['worst_s'])}; {later} end later."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``helios pool whatif --elastic --json``."""
        return {
            "sweep": self.name,
            "service": self.service,
            "best_fixed": self.best_fixed,
            "trials": list(self.trials),
            "gpus": self.gpus,
            "nodes": self.nodes,
            "rules": {name: outcome.to_json(self.gpus) for name, outcome in self.rules.items()},
            "notes": list(self.notes),
        }


def short_name(trial: str) -> str:
    """Return a trial's name with a short one of its sweep."""
    sweep, colon, number = trial.rpartition(":")
    return f"{shorten(sweep, NAME)}{colon}{number}"


def rule_cells(result: ElasticWhatIf) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table of rules."""
    rows = []
    for rule, outcome in result.rules.items():
        known = outcome.to_json(result.gpus)
        times = [rounded_duration(known[name]) for name in ("mean_s", "p95_s", "worst_s")]
        numbers = [f"{known['worst_slowdown']:.2f}", f"{known['changes_a_trial']:.1f}", f"{known['gpu_hours']:,.3g}"]
        rows.append([rule, *times, *numbers, percent(known["idle_share"])])
    return ["Rule", "Mean", "p95", "Last end", "Slowdown", "Changes", "GPU hours", "Idle"], rows


def payer_cells(result: ElasticWhatIf) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table of who pays."""
    rules = result.best_fixed, result.service
    rows = [
        [
            result.trials[number],
            *(rounded_duration(result.rules[rule].ends_s[number]) for rule in rules),
            f"{ratio:.2f}",
        ]
        for ratio, number in result.payers[:SHOWN]
    ]
    return ["Ends later", *rules, "Ratio"], rows


def elastic_whatif_table(result: ElasticWhatIf) -> RenderableType:
    """Return tables of the rules and of who pays, in at most 80 columns."""
    parts: list[RenderableType] = []
    for header, rows in (rule_cells(result), payer_cells(result)):
        if rows:
            parts += [plain_table(*header, rows=[map(escape, row) for row in rows]), ""]
    where = count_in_words(result.gpus, "GPU") + (f" of {result.nodes} nodes" if result.nodes > 1 else "")
    about = f"{count_in_words(len(result.trials), 'trial')} of {result.name} on {where}, simulated."
    return Group(*parts, escape(about), escape(result.headline()))
