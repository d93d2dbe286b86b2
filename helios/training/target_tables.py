"""Tables of simulated tasks with targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.report.tables import plain_table
from helios.training.report import shorten
from helios.training.target_rules import EQUAL, FIRST_COME, GROWTH, ORACLE, SHORTEST, TIERS
from helios.training.whatif_report import LEAST_GAIN, PoolWhatIf, as_range, setting_lines
from helios.units import count_in_words, percent, rounded_duration

SHOWN = 10
"""Tasks in the table of who pays; all are in the JSON."""
NAME = 16
"""Characters of a task's name."""


def target_whatif_tables(result: PoolWhatIf) -> RenderableType:
    """Return a table of the rules for each target, and one of who pays.

    They have at most 80 columns, as a terminal.
    """
    cases = [comparison["rules"] for comparison in result.to_json()["comparisons"]]
    parts: list[RenderableType] = []
    lines = []
    for tier in TIERS:
        tasks_s = cases[0][EQUAL][tier]["tasks_s"]
        if tasks_s:
            parts += [_rules(cases, tier), ""]
        lines += [
            f"{task} never reaches its {tier} target in its curve, so it does not count there."
            for task, time_s in tasks_s.items()
            if time_s is None
        ]
    parts += [_payers(cases), ""]
    about = f"{count_in_words(result.trials, 'trial')} of {result.name}"
    return Group(*parts, *map(escape, [*setting_lines(about, result.devices, result.comparisons), *lines]))


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
    """Return each task's times beside those under equal share, those that pay most first."""
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
