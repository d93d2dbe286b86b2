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

from helios.metrics.blocks import Estimate, Finding, Question
from helios.metrics.capacity import ClusterCapacity
from helios.metrics.history import StudyHistory
from helios.report.tables import plain_table
from helios.study.proposals import Proposal, Source, propose
from helios.study.sentences import WORDS, number_text, value_text

SHOWN_FIRST = 3
"""Statements at the top of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thresholds:
    """Bounds of a value between which nothing is certain.

    A value of at most ``nothing`` argues against the command, one above ``some`` for it. Bounds that are shares of
    something name the part of the finding that says how much that is.
    """

    nothing: float
    some: float
    share_of: str = ""

    def in_units_of(self, finding: Finding) -> tuple[float, float]:
        """Return the bounds in the unit of the value."""
        whole = finding.parts[self.share_of] if self.share_of else 1.0
        return self.nothing * whole, self.some * whole


THRESHOLDS: Mapping[Question, _Thresholds] = {
    Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE: _Thresholds(nothing=0.005, some=0.02, share_of="service_hours_per_week"),
    Question.UNUSABLE_IDLE: _Thresholds(nothing=0.005, some=0.02, share_of="service_hours_per_week"),
    Question.IDLE_BEHIND_OLDEST_JOB: _Thresholds(nothing=0.002, some=0.01, share_of="service_hours_per_week"),
    Question.IDLE_NODES: _Thresholds(nothing=0.02, some=0.05),
    Question.LONG_FAILURES: _Thresholds(nothing=0.01, some=0.03),
    Question.REPEATED_FAILURES: _Thresholds(nothing=0.005, some=0.02),
    Question.HOURS_AT_TIME_LIMIT: _Thresholds(nothing=0.02, some=0.1),
    Question.LONG_TIME_LIMITS: _Thresholds(nothing=1.2, some=2.0),
    Question.WHO_WAITS: _Thresholds(nothing=0.1, some=0.5),
    Question.SHORT_BEHIND_LONG: _Thresholds(nothing=0.01, some=0.05),
    Question.REPETITION: _Thresholds(nothing=0.1, some=0.3),
    Question.ONE_GPU_JOBS: _Thresholds(nothing=0.05, some=0.1),
    Question.REQUEUES: _Thresholds(nothing=0.005, some=0.02),
    Question.HELD_AND_UNUSED: _Thresholds(nothing=0.02, some=0.1),
    Question.FITS_A_PART: _Thresholds(nothing=0.05, some=0.1),
    Question.UNUSED_REQUESTS: _Thresholds(nothing=0.1, some=0.3),
}
"""Findings that argue for or against something; the others are for orientation."""


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
        1 to 23, as in docs/study.md.
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
    command, command_shows : str, optional
        What to type next, and what that shows.
    hours_per_week : float, optional
        Resource hours at stake; the first statements of a page have the most.
    lacks : str
        What the history would have to record; empty where the value is known.
    nothing_up_to, some_above : float, optional
        Bounds of the verdict, in the unit of the value. None where the statement is for orientation.
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
    command_shows: str | None = None
    hours_per_week: float | None = None
    lacks: str = ""
    nothing_up_to: float | None = None
    some_above: float | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @property
    def next_lines(self) -> list[str]:
        """The command to type next, and what it shows, as lines."""
        return [f"  {self.command}", f"  It shows {self.command_shows}."] if self.command else []

    @property
    def shown_value(self) -> str:
        """The value with its interval and unit, as text."""
        return value_text(Estimate(value=self.value, low=self.low, high=self.high), self.unit)


def statements(
    findings: Sequence[Finding], history: StudyHistory, *, size: ClusterCapacity | None, source: Source
) -> list[Statement]:
    """Return all findings in words, by number."""
    ordered = sorted(findings, key=lambda finding: finding.question)
    return [_statement(finding, propose(finding, history, size, source), history.unit) for finding in ordered]


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
        parts += [escape(line) for line in (statement.sentence, *statement.next_lines)] + [""]
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


def _statement(finding: Finding, proposal: Proposal | None, unit: str) -> Statement:
    estimate, words, thresholds = finding.estimate, WORDS[finding.question], THRESHOLDS.get(finding.question)
    known = estimate.value is not None
    bounds = thresholds.in_units_of(finding) if thresholds and known else None
    verdict = _verdict(finding, bounds)
    sentence = words.describe(finding, unit) if known else f"Not known here: the history lacks {finding.missing}."
    if verdict is Verdict.NOTHING:
        sentence = f"{sentence} There is little to gain here."
    if verdict in {Verdict.NOTHING, Verdict.UNKNOWN}:
        proposal = None
    nothing_up_to, some_above = bounds or (None, None)
    return Statement(
        number=finding.question.value,
        name=finding.question.name.lower(),
        title=words.title.format(unit=unit),
        value=estimate.value,
        unit=words.unit.format(unit=unit),
        low=estimate.low,
        high=estimate.high,
        n=finding.n,
        coverage=finding.coverage,
        verdict=verdict,
        sentence=sentence,
        command=proposal.command if proposal else None,
        command_shows=proposal.shows if proposal else None,
        hours_per_week=finding.hours_per_week,
        lacks=finding.missing,
        nothing_up_to=nothing_up_to,
        some_above=some_above,
        parts=finding.parts,
    )


def _verdict(finding: Finding, bounds: tuple[float, float] | None) -> Verdict:
    """Return what the value and its interval, as they are printed, argue for."""
    value, low, high = finding.estimate.value, finding.estimate.low, finding.estimate.high
    if value is None:
        return Verdict.UNKNOWN
    if bounds is None:
        return Verdict.LEVEL
    nothing_up_to, some_above = bounds
    if low is None or high is None:  # too few weeks or days to be sure of anything
        return Verdict.UNCLEAR if value > nothing_up_to else Verdict.LEVEL
    # An upper bound argues against something, never for it, and a lower bound the other way round.
    if low > some_above and not finding.parts.get("upper_bound"):
        return Verdict.TRY
    if high > nothing_up_to:
        return Verdict.UNCLEAR
    return Verdict.LEVEL if finding.parts.get("lower_bound") else Verdict.NOTHING
