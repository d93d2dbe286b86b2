"""Results of a sweep of replays.

Every replay beside those it is compared with, the best of each criterion, and the controls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import pandas as pd
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.markup import escape

from helios.report.significance import CRITERIA, Differences, whatif_figures
from helios.report.tables import plain_table
from helios.units import change, duration

MOST_GROUPS_SHOWN = 12
"""Tables that a person reads one after the other; of more, the summary is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One scenario of a group.

    Attributes
    ----------
    label : str
        Label of the replay. If it always failed, its policy and backfill.
    figures : mapping of float or None
        For each of ``CRITERIA``, s, the mean over the repeats. Empty where it always failed.
    failed : tuple of str
        Reasons, each once.
    """

    label: str
    figures: Mapping[str, float | None]
    is_plain: bool
    is_oracle: bool
    failed: tuple[str, ...]

    @classmethod
    def of(cls, found: Sequence[Mapping[str, Any]], reasons: Sequence[str], *, named: str) -> SweepRow:
        """Return the row of a scenario from the figures of its cells.

        ``reasons`` are those of the cells that failed.
        """
        all_figures = [whatif_figures(figures) for figures in found]
        first: Mapping[str, Any] = found[0] if found else {"label": named, "is_plain": False, "is_oracle": False}
        return cls(
            label=first["label"],
            figures={name: _mean([figures[name] for figures in all_figures]) for name in CRITERIA} if found else {},
            is_plain=first["is_plain"],
            is_oracle=first["is_oracle"],
            failed=tuple(dict.fromkeys(reasons)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Replays of one window on one machine, compared with each other.

    Attributes
    ----------
    about : mapping
        Window, machine and settings, as a cell's JSON has them.
    rows : tuple of SweepRow
    differences : Differences, optional
        Over the repeats. None where there are none.
    """

    about: Mapping[str, Any]
    rows: tuple[SweepRow, ...]
    differences: Differences | None

    @property
    def baseline(self) -> SweepRow | None:
        """The replay of plain FIFO + EASY, else the first replay."""
        there = [row for row in self.rows if row.figures]
        return next((row for row in there if row.is_plain), there[0] if there else None)

    def best(self, name: str) -> list[SweepRow]:
        """Return the feasible scenarios with the smallest value of a criterion.

        Empty where all are alike.
        """
        rows = [row for row in self.rows if row.figures and not row.is_oracle and row.figures[name] is not None]
        known = [value for row in rows if (value := row.figures[name]) is not None]
        if not known or min(known) == max(known):
            return []
        return [row for row in rows if row.figures[name] == min(known)]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "about": dict(self.about),
            "replays": [asdict(row) for row in self.rows],
            "best": {name: [row.label for row in self.best(name)] for name in CRITERIA},
            "differences": self.differences.to_json() if self.differences else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All replays of a sweep.

    Attributes
    ----------
    timezone : str
        In which windows are named.
    results : str
        The file that holds them.
    cells, known_before : int
        How many, and how many of them that file held already.
    lines : tuple of mapping
        Each cell with what became of it.
    """

    cluster: str
    timezone: str
    results: str
    cells: int
    known_before: int
    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    lines: tuple[Mapping[str, Any], ...]

    @property
    def failed(self) -> int:
        """Cells that failed."""
        return sum("failed" in line for line in self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = ("cluster", "timezone", "results", "cells", "known_before", "failed")
        found = {name: getattr(self, name) for name in names}
        return found | {"notes": list(self.notes), "groups": [group.to_json() for group in self.groups]}


def sweep_csv(found: Sweep) -> str:
    """Return the sweep as CSV, one line for each cell.

    What the cell is, its figures, or why it failed.
    """
    return str(
        pd.DataFrame([_csv_row(line) for line in found.lines], dtype=object).to_csv(index=False, lineterminator="\n")
    )


def sweep_tables(found: Sweep) -> RenderableType:
    """Return the tables of a sweep.

    Each group with its best figures bold, below them each scenario over all groups. Beyond ``MOST_GROUPS_SHOWN`` groups
    only the latter.
    """
    known = f", {found.known_before:,} of them known before" if found.known_before else ""
    head = (
        f"{escape(found.cluster)}: {found.cells:,} replays{known}. Best of those that can be had: bold; "
        "(plain): plain FIFO + EASY; ns: no difference to it beyond chance."
    )
    parts: list[RenderableType] = [head]
    if len(found.groups) <= MOST_GROUPS_SHOWN:
        for group in found.groups:
            parts += ["", _group_table(group, found)]
    if len(found.groups) > 1:
        parts += ["", _summary(found)]
    if found.failed:
        reasons = dict.fromkeys(reason for group in found.groups for row in group.rows for reason in row.failed)
        parts += ["", f"{found.failed:,} replays failed, and are tried again the next time:"]
        parts += [escape(f"  {reason}") for reason in reasons]
    return Lines(*parts)


def _group_table(group: Group, found: Sweep) -> RenderableType:
    table = plain_table("Replayed", "Mean wait", "vs plain", "p99", "Longest", CRITERIA["mean_wait_large_s"])
    for row in sorted(group.rows, key=lambda row: (row.is_oracle, not row.figures)):
        label = escape(f"{row.label} (plain)" if row.is_plain else row.label)
        if not row.figures:
            table.add_row(label, "failed", "", "", "", "")
            continue
        best = {name for name in CRITERIA if row in group.best(name)}
        figures = {name: duration(row.figures[name]) for name in CRITERIA}
        mean, *rest = (f"[bold green]{text}[/]" if name in best else text for name, text in figures.items())
        table.add_row(label, mean, _change_cell(row, group), *rest, style="dim" if row.is_oracle else "")
    return Lines(f"[bold]{escape(_group_name(group, found))}[/]", table)


def _change_cell(row: SweepRow, group: Group) -> str:
    base = group.baseline
    if base is None or row is base:
        return ""
    text = change(row.figures["mean_wait_s"], base.figures["mean_wait_s"])
    difference = group.differences.of(row.label, "mean_wait_s") if group.differences else None
    return f"{text} ns" if difference is not None and difference.is_none else text


def _group_name(group: Group, found: Sweep) -> str:
    """Name a group by its window and what differs between groups."""
    about = group.about
    differing = {name for name in about if len({str(other.about[name]) for other in found.groups}) > 1}
    begin, end = _day(about["since"], found.timezone), _day(about["until"], found.timezone)
    window = f"{begin or 'from its begin'} to {end or 'its end'}"
    settings = [
        f"{name.removesuffix('_s').replace('_', ' ')} {_write_setting(name, about[name])}"
        for name in about
        if name in differing - {"since", "until"}
    ]
    return ", ".join([window, *settings])


def _day(moment: str | None, timezone: str) -> str:
    """Write a moment in local time, midnight as its day alone."""
    return pd.Timestamp(moment).tz_convert(timezone).strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00") if moment else ""


def _write_setting(name: str, value: Any) -> str:
    if value is None:
        return "from the peak" if name == "nodes" else "as the policy has it"
    if name == "predict_again_s" and not value:
        return "never"
    if isinstance(value, dict):
        return ",".join(f"{partition}={count}" for partition, count in value.items())
    return duration(value) if name.endswith("_s") or name == "warm_up" else str(value)


def _summary(found: Sweep) -> RenderableType:
    """Return the table of all scenarios over all groups.

    Their changes against the baseline, and how often each was the best.
    """
    heads = ("Mean wait", "vs plain", "worst", "Longest, worst", "Best mean in")
    table = plain_table(f"Over all {len(found.groups)} windows and settings", *heads)
    labels = dict.fromkeys(row.label for group in found.groups for row in group.rows if row.figures)
    for label in labels:
        pairs = list(_pairs(label, found))
        means = [row.figures["mean_wait_s"] or 0.0 for row, _ in pairs]
        bases = [base.figures["mean_wait_s"] or 0.0 for _, base in pairs]
        won = sum(any(row.label == label for row in group.best("mean_wait_s")) for group in found.groups)
        worst = max(pairs, key=lambda pair: _ratio(pair, "mean_wait_s"))
        longest = max(pairs, key=lambda pair: _ratio(pair, "max_wait_s"))
        same = all(row is base for row, base in pairs)
        table.add_row(
            escape(label),
            duration(fmean(means)),
            "" if same else change(fmean(means), fmean(bases)),
            "" if same else change(worst[0].figures["mean_wait_s"], worst[1].figures["mean_wait_s"]),
            "" if same else change(longest[0].figures["max_wait_s"], longest[1].figures["max_wait_s"]),
            f"{won} of {len(found.groups)}",
        )
    return table


def _pairs(label: str, found: Sweep) -> Iterator[tuple[SweepRow, SweepRow]]:
    for group in found.groups:
        base = group.baseline
        for row in group.rows:
            if base is not None and row.label == label and row.figures:
                yield row, base


def _ratio(pair: tuple[SweepRow, SweepRow], name: str) -> float:
    new, old = (row.figures[name] or 0.0 for row in pair)
    return new / old if old else new


def _csv_row(line: Mapping[str, Any]) -> dict[str, Any]:
    flat = {"key": line["key"]} | {name: _csv_value(value) for name, value in line["cell"].items()}
    for name, value in line.get("figures", {}).items():
        if name in ("mean_wait_s_by_size", "jobs_by_size"):
            flat |= {f"{name.removesuffix('_by_size')}_{size}": figure for size, figure in value.items()}
        elif name == "nodes":
            flat["nodes"] = _csv_value(value)
        else:
            flat[name] = _csv_value(value)
    return flat | {"failed": line.get("failed", "")}


def _csv_value(value: Any) -> Any:
    if isinstance(value, dict):
        return ",".join(f"{name}={part}" for name, part in value.items())
    return value


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
