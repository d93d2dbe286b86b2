"""Statements of a study in words, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import hypot
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.markup import escape

from helios.metrics.blocks import WEEK_HOURS, Estimate, Finding
from helios.report.tables import plain_table
from helios.units import count_in_words, duration_in_words, percent, rounded_duration

OF_THE_WAREHOUSE = ("helios report", "helios model drift")
"""Commands that read loaded clusters only."""
SHOWN_FIRST = 3
"""Statements at the top of a page."""
_HOURS = "{unit} hours a week"
COMMANDS = {
    1: "helios whatif --nodes {nodes}",
    2: "helios power weights",
    3: "helios whatif",
    4: "helios energy whatif",
    7: "helios report users",
    8: "helios report users",
    9: "helios report partitions",
    10: "helios simulate --service soft_limits",
    12: "helios whatif",
    13: "helios whatif",
    14: "helios model evaluate",
    16: "helios report trials",
    18: "helios model drift",
}
"""What to type next, by finding."""

_HOURS = "{unit} hours a week"

COMMANDS = {
    1: "helios whatif --nodes {nodes}",
    2: "helios power weights",
    3: "helios whatif",
    4: "helios energy whatif",
    7: "helios report users",
    8: "helios report users",
    9: "helios report partitions",
    10: "helios simulate --service soft_limits",
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


@dataclass(frozen=True, slots=True)
class _Words:
    """Wording of one finding.

    ``describe`` takes the finding and the unit.
    """

    name: str
    title: str
    unit: str
    describe: Callable[[Finding, str], str]


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
    now, low, high = (_number_text(value, statement.unit) for value in (statement.value, before.min(), before.max()))
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


def value_text(estimate: Estimate, unit: str) -> str:
    """Format a value with its interval and unit.

    For example ``42 % (38 to 46 %)``.
    """
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return _number_text(estimate.value, unit)
    low, high = _number_text(estimate.low, unit), _number_text(estimate.high, unit)
    if unit == "share":
        low = low.removesuffix(" %")
    return f"{_number_text(estimate.value, unit)} ({low} to {high})"


def _number_text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "share":
        return percent(value, 0 if abs(value) >= 0.0995 else 1)
    if unit.endswith("hours a week"):
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:,.1f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2g}" if abs(value) < 1 else f"{value:,.1f}"


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


# The sentences of each finding.


def _value(finding: Finding, unit: str = "share") -> str:
    return value_text(finding.estimate, unit)


def _part(finding: Finding, name: str, digits: int = 0) -> str | None:
    value = finding.parts.get(name)
    return None if value is None else percent(value, digits)


def _with(sentence: str, *more: str | None) -> str:
    return " ".join([sentence, *(text for text in more if text)])


def _idle_elsewhere(finding: Finding, unit: str) -> str:
    parts = finding.parts
    pooled = parts.get("pooled")
    if parts.get("level") == "pooled":
        within = _part(finding, "same_partition_share")
        return _with(
            f"{_value(finding, 'hours a week')} {unit} hours a week idled while as much was waited for, somewhere on "
            "the cluster: an upper bound, since it is not known what would have fit.",
            f"{within} of it within one partition." if within else None,
        )
    lenders = parts.get("by_partition") or {}
    most = max(lenders, key=lambda name: float(lenders[name]["lent"]), default=None)
    where = f", most of them in {most}" if most is not None and lenders[most]["lent"] > 0 and len(lenders) > 1 else ""
    return _with(
        f"{_value(finding, 'hours a week')} {unit} hours a week idled in one partition while jobs that fit waited in "
        f"another{where}.",
        f"Were all nodes one pool, it would be at most {pooled * WEEK_HOURS:,.0f}." if pooled else None,
        "Nodes are not known, only how much was free." if parts.get("level") == "counts" and len(lenders) > 1 else None,
    )


def _unusable(finding: Finding, unit: str) -> str:
    reasons = finding.parts.get("reasons") or {}
    why = max(reasons, key=lambda name: float(reasons[name]), default=None)
    return _with(
        f"{_value(finding, 'hours a week')} {unit} hours a week were free while jobs waited, and no waiting job could "
        "use them.",
        f"The first reason: {why}." if why is not None and reasons[why] > 0 else None,
    )


def _behind_oldest(finding: Finding, unit: str) -> str:
    return (
        f"{_value(finding, 'hours a week')} {unit} hours a week idled in a partition while its oldest waiting job did "
        "not fit and a younger one would have."
    )


def _idle_nodes(finding: Finding, unit: str) -> str:  # noqa: ARG001 - nodes, whatever they hold
    spells = finding.parts.get("spells_per_day")
    at_least = finding.parts.get("level") == "counts"
    return _with(
        f"{'At least ' if at_least else ''}{_value(finding)} of node hours were in spells of idleness longer than an "
        f"hour{', were nodes filled in one order' if at_least else ''}.",
        f"There were {spells:,.1f} such spells a day." if spells is not None else None,
    )


def _utilization(finding: Finding, unit: str) -> str:
    low, high, swing = (finding.parts.get(name) for name in ("p5", "p95", "swing"))
    low, high = (bound and bound["value"] for bound in (low, high))
    between = None
    if low is not None and high is not None:
        between = f"Nine tenths of the time it was between {percent(low)} and {percent(high)}."
    over_week = f"Over the hours of the week it swings by {100 * swing:.0f} points." if swing is not None else None
    served = "that were ever in use within four weeks" if finding.parts.get("at_least") else "in service"
    return _with(f"{_value(finding)} of the {unit}s {served} were in use on average.", between, over_week)


def _imbalance(finding: Finding, unit: str) -> str:
    spread = _part(finding, "range")
    return _with(
        f"The use of partitions differs from that of the cluster by {_value(finding)} of their {unit}s on average.",
        f"From the fullest to the emptiest of the larger ones it is {spread}." if spread else None,
    )


def _long_failures(finding: Finding, unit: str) -> str:
    nodes = finding.parts.get("share_of_hours_by_nodes")
    return _with(
        f"{_value(finding)} of {unit} hours were in jobs that failed after more than an hour.",
        f"Nodes that failed had {percent(nodes, 1)} of all hours." if nodes else None,
    )


def _repeated_failures(finding: Finding, unit: str) -> str:
    base = _part(finding, "share_that_fails_after_success")
    streaks = _part(finding, "share_of_hours_in_streaks", 1)
    return _with(
        f"A job whose last alike failed fails in {_value(finding)} of cases" + (f", else in {base}." if base else "."),
        f"{streaks} of {unit} hours were in the third or a later failure in a row." if streaks else None,
    )


def _at_limit(finding: Finding, unit: str) -> str:
    again = _part(finding, "share_of_these_hours_sent_again")
    return _with(
        f"{_value(finding)} of {unit} hours were in jobs that ended at their time limit.",
        f"{again} of these hours were sent again within an hour." if again else None,
    )


def _long_limits(finding: Finding, unit: str) -> str:
    by_jobs = finding.parts.get("median_by_jobs")
    return _with(
        f"Half of the {unit} hours were in jobs with a limit above {_value(finding, 'ratio')} times their run time.",
        f"By jobs it is {by_jobs:,.3g} times." if by_jobs is not None else None,
    )


def _concentration(finding: Finding, unit: str) -> str:
    top, waited = finding.parts.get("top_users"), _part(finding, "share_of_waiting_of_top_users")
    who = count_in_words(int(top), "user") if top else "5 %"
    return _with(
        f"The busiest {who} of {finding.n:,} held {_value(finding)} of {unit} hours.",
        f"They had {waited} of all waiting." if waited else None,
    )


def _who_waits(finding: Finding, unit: str) -> str:  # noqa: ARG001 - the same words for all
    parts = finding.parts
    long = parts.get("long_p50")
    return _with(
        f"Half of the shorter jobs (up to {duration_in_words(parts['median_run_time_s'])}) spent {_value(finding)} or "
        "more of their completion waiting"
        + (f", half of the longer ones {percent(long)}." if long is not None else "."),
        f"The median wait was {rounded_duration(parts['wait_p50_s'])}, the longest "
        f"{rounded_duration(parts['longest_wait_s'])}.",
    )


def _short_behind_long(finding: Finding, unit: str) -> str:
    short = _part(finding, "share_of_waiting_of_short_jobs")
    return _with(
        f"{_value(finding)} of all waiting was by jobs below 15 min while jobs above 6 h held the {unit}s.",
        f"Jobs below 15 min had {short} of all waiting." if short else None,
    )


def _repetition(finding: Finding, unit: str) -> str:  # noqa: ARG001 - the same words for all
    correlation = finding.parts.get("rank_correlation")
    return _with(
        f"{_value(finding)} of jobs repeat one of the same user and size that had ended before.",
        f"The rank correlation of their run times is {correlation:.2f}." if correlation is not None else None,
        "Ends are assumed, since no starts are recorded." if finding.parts.get("ends_assumed") else None,
    )


def _bursts(finding: Finding, unit: str) -> str:  # noqa: ARG001 - the same words for all
    arrays = _part(finding, "share_of_array_jobs")
    return _with(
        f"Submissions come in bursts: their hourly variance is {_value(finding, 'ratio')} times their mean (1 if each "
        f"came by chance), with up to {finding.parts['most_in_an_hour']:,} in an hour.",
        f"{arrays} of jobs are tasks of arrays." if arrays else None,
    )


def _one_gpu(finding: Finding, unit: str) -> str:
    jobs, small = _part(finding, "share_of_jobs"), _part(finding, "share_of_hours_small")
    low, high = (_part(finding, f"share_of_hours_repeated_{end}", 1) for end in ("low", "high"))
    return _with(
        f"{_value(finding)} of {unit} hours were in jobs of one {unit}"
        + (f", which are {jobs} of jobs." if jobs else "."),
        f"{small} of hours were in those with at most an eighth of a node's CPUs and memory." if small else None,
        f"{low} to {high} of hours were in groups of them that one user sent within minutes." if low and high else None,
    )


def _large_and_long(finding: Finding, unit: str) -> str:
    large, drain = (finding.parts.get(name) for name in ("above_half", "drain_hours_per_week"))
    return _with(
        f"{_value(finding)} of {unit} hours were in jobs longer than a day.",
        f"{percent(large['value'])} were in jobs of more than half their partition."
        if large and large["value"] is not None
        else None,
        f"While such jobs waited, at most {drain:,.0f} {unit} hours a week were kept free for them." if drain else None,
    )


def _drift(finding: Finding, unit: str) -> str:
    chance, new = finding.parts.get("by_chance"), _part(finding, "share_of_hours_of_new_users")
    growth = finding.parts.get("growth_of_hours_a_month")
    beside = None if chance is None else f"Chance alone would give {chance:.2g}."
    return _with(
        f"The mix of run times changes by {_value(finding, 'ratio')} from week to week (0: not at all, 1: wholly).",
        beside,
        f"{new} of {unit} hours were of users new within a week." if new else None,
        f"Hours grow by {percent(growth)} a month." if growth is not None else None,
    )


def _requeues(finding: Finding, unit: str) -> str:
    return f"{_value(finding)} of {unit} hours were in runs that were started again."


def _cpu_jobs(finding: Finding, unit: str) -> str:
    every = finding.parts.get("node_hours_per_week")
    return _with(
        f"CPU jobs held {unit} nodes for {_value(finding, 'hours a week')} node hours a week while jobs with {unit}s "
        "waited there",
        f"({every:,.0f} in all)." if every is not None else ".",
        f"Nodes are not known: each job counts with all that it asked for, in the partitions of jobs with {unit}s."
        if finding.parts.get("level") == "partitions"
        else None,
    )


WORDS: Mapping[int, _Words] = {
    1: _Words(
        "idle_while_jobs_wait_elsewhere",
        "{unit}s idle in one partition while jobs wait in another",
        _HOURS,
        _idle_elsewhere,
    ),
    2: _Words("unusable_idle", "Free {unit}s that no waiting job could use", _HOURS, _unusable),
    3: _Words("idle_behind_oldest_job", "{unit}s idle behind the oldest waiting job", _HOURS, _behind_oldest),
    4: _Words("idle_nodes", "Nodes idle longer than an hour", "share", _idle_nodes),
    5: _Words("utilization", "Use and its swing", "share", _utilization),
    6: _Words("imbalance", "Use of partitions against each other", "share", _imbalance),
    7: _Words("long_failures", "Hours in jobs that failed after more than an hour", "share", _long_failures),
    8: _Words("repeated_failures", "Failures that repeat", "share", _repeated_failures),
    9: _Words("hours_at_time_limit", "Hours in jobs that ended at their time limit", "share", _at_limit),
    10: _Words("long_time_limits", "Limits asked too long", "ratio", _long_limits),
    11: _Words("concentration", "Who holds the {unit}s", "share", _concentration),
    12: _Words("who_waits", "Who waits", "share", _who_waits),
    13: _Words("short_behind_long", "Short jobs behind long ones", "share", _short_behind_long),
    14: _Words("repetition", "Jobs that repeat an earlier one", "share", _repetition),
    15: _Words("bursts", "Bursts of submissions", "ratio", _bursts),
    16: _Words("one_gpu_jobs", "Work for a shared or small GPU", "share", _one_gpu),
    17: _Words("large_and_long_jobs", "Large and long holders", "share", _large_and_long),
    18: _Words("drift", "Change from week to week", "ratio", _drift),
    19: _Words("requeues", "Hours lost to requeues", "share", _requeues),
    20: _Words("cpu_jobs_on_gpu_nodes", "CPU jobs on GPU nodes", "node hours a week", _cpu_jobs),
}
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
    # Shares of GPU hours and of CPU hours are two things.
    known = first is not None and second is not None and one.get("unit") == other.get("unit")
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
