"""Comparison of two studies, and which statements differ by more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import hypot
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from helios.metrics.blocks import Estimate
from helios.report.tables import plain_table
from helios.study.sentences import value_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDifference:
    """One statement in two studies.

    Attributes
    ----------
    one, other : float, optional
        The values. None where not known there.
    difference, low, high : float, optional
        Second value less the first, with the 95 % interval for independent values. None where there is none.
    more_than_chance : bool, optional
        Whether the interval excludes 0. None where it is not known.
    """

    number: int
    name: str
    title: str
    unit: str
    one: float | None
    other: float | None
    difference: float | None
    low: float | None
    high: float | None
    more_than_chance: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyComparison:
    """Two studies side by side.

    Attributes
    ----------
    one, other : str
        Cluster and window of each.
    """

    one: str
    other: str
    statements: tuple[StudyDifference, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare(one: Mapping[str, Any], other: Mapping[str, Any]) -> StudyComparison:
    """Compare two studies as ``helios study --json`` writes them."""
    others = {statement["number"]: statement for statement in other["statements"]}
    pairs = [
        (statement, others[statement["number"]]) for statement in one["statements"] if statement["number"] in others
    ]
    return StudyComparison(one=_label(one), other=_label(other), statements=tuple(_difference(*pair) for pair in pairs))


def comparison_tables(found: StudyComparison) -> list[RenderableType]:
    """Return a comparison for a terminal."""
    rows = [
        (
            f"{row.number}",
            escape(row.title),
            value_text(Estimate(value=row.one), row.unit),
            value_text(Estimate(value=row.other), row.unit),
            value_text(Estimate(value=row.difference, low=row.low, high=row.high), row.unit),
            {True: "yes", False: "no", None: "-"}[row.more_than_chance],
        )
        for row in found.statements
        if row.one is not None or row.other is not None
    ]
    names = ("", "Statement", "First", "Second", "Difference (95 % interval)", "Beyond chance")
    return [
        escape(f"First: {found.one}"),
        escape(f"Second: {found.other}"),
        "",
        plain_table(*names, right_from=2, rows=rows) if rows else "Neither study knows any of the statements.",
    ]


def _label(found: Mapping[str, Any]) -> str:
    return f"{found.get('cluster', '?')}, {str(found.get('from', '?'))[:10]} to {str(found.get('to', '?'))[:10]}"


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> StudyDifference:
    first, second = one.get("value"), other.get("value")
    # Shares of GPU hours and of CPU hours are two things, and so are hours of nodes and hours of what was asked for.
    ways = {(study.get("unit"), (study.get("parts") or {}).get("level")) for study in (one, other)}
    known = first is not None and second is not None and len(ways) == 1
    difference = float(second) - float(first) if known else None  # type: ignore[arg-type]  # because both are known
    bounds = [study.get(bound) for study in (one, other) for bound in ("low", "high")]
    low = high = None
    if difference is not None and None not in bounds:
        first_low, first_high, second_low, second_high = map(float, bounds)  # type: ignore[arg-type]  # because none is None
        half = hypot((first_high - first_low) / 2, (second_high - second_low) / 2)
        low, high = difference - half, difference + half
    return StudyDifference(
        number=int(one["number"]),
        name=str(one["name"]),
        title=str(one.get("title", one["name"])),
        unit=str(one.get("unit", "")),
        one=first,
        other=second,
        difference=difference,
        low=low,
        high=high,
        more_than_chance=None if low is None or high is None else bool(low > 0 or high < 0),
    )
