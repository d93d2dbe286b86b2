"""Statements of a study in words, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.markup import escape

from helios.metrics.blocks import Estimate, Finding
from helios.report.tables import plain_table
from helios.study.sentences import WORDS, number_text, value_text

OF_THE_WAREHOUSE = ("helios report", "helios model drift")
"""Commands that read loaded clusters only."""
SHOWN_FIRST = 3
"""Statements at the top of a page."""
COMMANDS = {
    1: "helios whatif --nodes {nodes}",
    2: "helios power weights",
    3: "helios whatif",
    4: "helios whatif energy",
    7: "helios report users",
    8: "helios report users",
    9: "helios report partitions",
    10: "helios whatif --service soft_limits",
    12: "helios whatif",
    13: "helios whatif",
    14: "helios model evaluate",
    16: "helios report trials",
    18: "helios model drift",
}
"""What to type next, by finding."""


class Verdict(StrEnum):
    """What a statement argues for."""

    TRY = "worth a try"
    NOTHING = "would bring nothing here"
    UNCLEAR = "may be worth a try"
    LEVEL = "for orientation"
    UNKNOWN = "not known here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A finding in words.

    Attributes
    ----------
    number : int
        1 to 20, as in docs/study.md.
    name : str
        Stable name for scripts.
    title : str
        What it is about.
    value : float, optional
        None where not known here.
    unit : str
        ``share``, ``GPU hours a week``, ``ratio``, ...
    low, high : float, optional
        95 % interval over weeks or days; None where there are too few.
    n : int, optional
        Jobs, nodes, users or partitions that it rests on.
    coverage : float, optional
        Share of them that the history says enough about.
    verdict : Verdict
    sentence : str
        The statement with its figures.
    command : str, optional
        What to type next.
    hours_per_week : float, optional
        Resource hours at stake; the first statements of a page have the most.
    lacks : str
        What the history would have to record; empty where the value is known.
    parts : dict
        Further figures.
    """

    number: int
    name: str
    title: str
    value: float | None
    unit: str
    low: float | None
    high: float | None
    n: int | None
    coverage: float | None
    verdict: Verdict
    sentence: str
    command: str | None
    hours_per_week: float | None = None
    lacks: str = ""
    parts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @property
    def shown_value(self) -> str:
        """The value with its interval and unit, as text."""
        return value_text(Estimate(value=self.value, low=self.low, high=self.high), self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thresholds:
    """Bounds of a finding between which nothing is certain.

    A value of at most ``nothing`` argues against the command, one of at least ``some`` for it. ``compared`` is the
    part of the finding that is compared in place of the value.
    """

    nothing: float
    some: float
    compared: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a history comes from, as one types it behind a command.

    Attributes
    ----------
    options : str
        For commands that read any history; empty for none.
    load : str
        Command that loads the file first, for commands that read the warehouse. Empty where it is loaded.
    cluster : str
        Options that name the loaded cluster; empty for none.
    nodes : int, optional
        Nodes of the cluster.
    """

    options: str = ""
    load: str = ""
    cluster: str = ""
    nodes: int | None = None


def statements(findings: Sequence[Finding], *, unit: str, source: Source) -> list[Statement]:
    """Return all findings in words, by number.

    Parameters
    ----------
    unit : str
        ``GPU`` or ``CPU``.
    """
    ordered = sorted(findings, key=lambda finding: finding.number)
    return [_statement(finding, unit, source) for finding in ordered]


def first_statements(found: Sequence[Statement]) -> list[Statement]:
    """Return the statements that come first.

    They are those with a reason to act, by hours at stake. If there are none, they are the clearest denials.
    """
    for verdict in (Verdict.TRY, Verdict.UNCLEAR, Verdict.NOTHING):
        chosen = [one for one in found if one.verdict is verdict and one.hours_per_week is not None]
        if chosen:
            best = sorted(chosen, key=lambda one: -(one.hours_per_week or 0.0))[:SHOWN_FIRST]
            rest = [one for one in found if one.verdict is Verdict.NOTHING and one not in best]
            return (best + rest)[:SHOWN_FIRST]
    return [one for one in found if one.value is not None][:SHOWN_FIRST]


def change_sentence(statement: Statement, before: NDArray[np.float64]) -> str:
    """Return how a statement of this week differs from the weeks before."""
    now, low, high = (number_text(value, statement.unit) for value in (statement.value, before.min(), before.max()))
    return f"{statement.title}: {now} in the last seven days, {low} to {high} in the {len(before)} weeks before."


def statement_tables(found: Sequence[Statement]) -> list[RenderableType]:
    """Return the statements for a terminal."""
    parts: list[RenderableType] = []
    for statement in first_statements(found):
        parts += [escape(statement.sentence), *([escape(f"  {statement.command}")] if statement.command else []), ""]
    known = [statement for statement in found if statement.verdict is not Verdict.UNKNOWN]
    rows = [
        (f"{one.number}", escape(one.title), one.shown_value, "-" if one.n is None else f"{one.n:,}", one.verdict)
        for one in known
    ]
    if rows:
        parts.append(plain_table("", "Statement", "Value (95 % interval)", "n", "Verdict", right_from=2, rows=rows))
    unknown = [statement for statement in found if statement.verdict is Verdict.UNKNOWN]
    if unknown:
        lacking = [(f"{one.number}", escape(one.title), escape(one.lacks)) for one in unknown]
        parts += ["", plain_table("", "Not known here", "The history lacks", right_from=3, rows=lacking)]
    return parts


def _statement(finding: Finding, unit: str, source: Source) -> Statement:
    estimate, words, command = finding.estimate, WORDS[finding.number], COMMANDS.get(finding.number)
    verdict = _verdict(finding)
    if verdict is Verdict.UNKNOWN:
        sentence = f"Not known here: the history lacks {finding.missing}."
    else:
        sentence = words.describe(finding, unit)
        if verdict is Verdict.NOTHING and command:
            sentence = f"{sentence} There is little to gain here."
    if verdict not in {Verdict.TRY, Verdict.UNCLEAR, Verdict.LEVEL}:
        command = None
    return Statement(
        number=finding.number,
        name=words.name,
        title=words.title.format(unit=unit),
        value=estimate.value,
        unit=words.unit.format(unit=unit),
        low=estimate.low,
        high=estimate.high,
        n=finding.n,
        coverage=finding.coverage,
        verdict=verdict,
        sentence=sentence,
        command=_complete_command(command, source) if command else None,
        hours_per_week=finding.hours_per_week,
        lacks=finding.missing,
        parts=finding.parts,
    )


def _complete_command(command: str, source: Source) -> str:
    """Return a command with what names the history."""
    if command == COMMANDS[2]:
        return command  # it reads slurm.conf, no history
    command = command.replace("{nodes}", "N" if source.nodes is None else str(source.nodes))
    if not command.startswith(OF_THE_WAREHOUSE):
        return f"{command} {source.options}".rstrip()
    return f"{source.load}{source.load and ' && '}{command} {source.cluster}".rstrip()


def _verdict(finding: Finding) -> Verdict:
    estimate, thresholds = finding.estimate, THRESHOLDS.get(finding.number)
    if estimate.value is None:
        return Verdict.UNKNOWN
    if thresholds is None:
        return Verdict.LEVEL
    low, high = estimate.low, estimate.high
    if thresholds.compared:
        compared = finding.parts.get(thresholds.compared)
        if compared is None:
            return Verdict.LEVEL
        low = high = float(compared)
    elif low is None or high is None:
        low = high = estimate.value
    if low >= thresholds.some:
        return Verdict.TRY
    if high > thresholds.nothing:
        return Verdict.UNCLEAR
    # A lower bound argues for something, never against it.
    return Verdict.LEVEL if finding.parts.get("lower_bound") else Verdict.NOTHING


THRESHOLDS: Mapping[int, _Thresholds] = {
    1: _Thresholds(nothing=0.005, some=0.02, compared="share_of_service"),
    2: _Thresholds(nothing=0.005, some=0.02, compared="share_of_service"),
    3: _Thresholds(nothing=0.002, some=0.01, compared="share_of_service"),
    4: _Thresholds(nothing=0.02, some=0.05),
    7: _Thresholds(nothing=0.01, some=0.03),
    8: _Thresholds(nothing=0.005, some=0.02, compared="share_of_hours_in_streaks"),
    9: _Thresholds(nothing=0.02, some=0.1),
    10: _Thresholds(nothing=1.2, some=2.0, compared="median_by_jobs"),
    12: _Thresholds(nothing=0.1, some=0.5, compared="short_p90"),
    13: _Thresholds(nothing=0.01, some=0.05),
    14: _Thresholds(nothing=0.1, some=0.3, compared="rank_correlation"),
    16: _Thresholds(nothing=0.05, some=0.1),
    19: _Thresholds(nothing=0.005, some=0.02),
}
"""Findings that argue for or against something; the others are for orientation."""
