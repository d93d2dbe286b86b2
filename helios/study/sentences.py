"""Sentences of a study, one for each finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from helios.metrics.blocks import WEEK_HOURS, Estimate, Finding, Question
from helios.units import count_in_words, duration_in_words, percent, rounded_duration

_HOURS = "{unit} hours a week"


@dataclass(frozen=True, slots=True)
class Words:
    """Wording of one finding.

    ``describe`` takes the finding and the unit.
    """

    title: str
    unit: str
    describe: Callable[[Finding, str], str]


def value_text(estimate: Estimate, unit: str) -> str:
    """Format a value with its interval and unit.

    For example ``42 % (38 to 46 %)``.
    """
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return number_text(estimate.value, unit)
    low, high = number_text(estimate.low, unit), number_text(estimate.high, unit)
    if unit == "share":
        low = low.removesuffix(" %")
    return f"{number_text(estimate.value, unit)} ({low} to {high})"


def number_text(value: float | None, unit: str) -> str:
    """Return a value in its unit, a dash where it is unknown."""
    if value is None:
        return "-"
    if unit == "share":
        return percent(value, 0 if abs(value) >= 0.0995 else 1)
    if unit.endswith("hours a week"):
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:,.1f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2g}" if abs(value) < 1 else f"{value:,.1f}"


def _value(finding: Finding, unit: str = "share") -> str:
    return value_text(finding.estimate, unit)


def _part(finding: Finding, name: str, digits: int = 0) -> str | None:
    value = finding.parts.get(name)
    return None if value is None else percent(value, digits)


def _with(sentence: str, *more: str | None) -> str:
    return " ".join([sentence, *(text for text in more if text)])


def _of_service(finding: Finding) -> str:
    """Return what share of the hours in service a value is, in brackets."""
    served = finding.parts.get("share_of_service")
    return "" if served is None else f" ({percent(served, 1)} of those in service)"


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
        f"{_value(finding, 'hours a week')} {unit} hours a week{_of_service(finding)} idled in one partition while "
        f"jobs that fit waited in another{where}.",
        f"Were all nodes one pool, it would be at most {pooled * WEEK_HOURS:,.0f}." if pooled else None,
        "Nodes are not known, only how much was free: an upper bound." if parts.get("upper_bound") else None,
    )


def _unusable(finding: Finding, unit: str) -> str:
    reasons = finding.parts.get("reasons") or {}
    why = max(reasons, key=lambda name: float(reasons[name]), default=None)
    return _with(
        f"{_value(finding, 'hours a week')} {unit} hours a week{_of_service(finding)} were free while jobs waited, and "
        "no waiting job could use them.",
        f"The first reason: {why}." if why is not None and reasons[why] > 0 else None,
        "Nodes are not known, only how much was free: a lower bound." if finding.parts.get("lower_bound") else None,
    )


def _behind_oldest(finding: Finding, unit: str) -> str:
    return _with(
        f"{_value(finding, 'hours a week')} {unit} hours a week{_of_service(finding)} idled in a partition while its "
        "oldest waiting job did not fit and a younger one would have.",
        "Nodes are not known, only how much was free: an upper bound." if finding.parts.get("upper_bound") else None,
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
    again, base = (_part(finding, f"share_that_fails_after_{end}") for end in ("failure", "success"))
    return _with(
        f"{_value(finding)} of {unit} hours were in the third or a later failure in a row.",
        f"A job whose last alike failed fails in {again} of cases" + (f", else in {base}." if base else "."),
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
        f"They had {waited} of the hours that jobs waited in the window for their first start." if waited else None,
    )


def _who_waits(finding: Finding, unit: str) -> str:  # noqa: ARG001 - the same words for all
    parts = finding.parts
    long = parts.get("long_p50")
    return _with(
        f"Half of the shorter jobs (up to {duration_in_words(parts['median_run_time_s'])}) spent {_value(finding)} or "
        "more of their completion waiting"
        + (f", half of the longer ones {percent(long)}." if long is not None else "."),
        f"Of the jobs that started and ended, half waited at most {rounded_duration(parts['wait_p50_s'])}, the longest "
        f"{rounded_duration(parts['longest_wait_s'])}; the mean is {duration_in_words(parts['mean_wait_s'])}.",
    )


def _short_behind_long(finding: Finding, unit: str) -> str:
    short = _part(finding, "share_of_waiting_of_short_jobs")
    return _with(
        f"{_value(finding)} of the hours that jobs waited in the window for their first start were of jobs below 15 "
        f"min while jobs above 6 h held the {unit}s.",
        f"Jobs below 15 min waited {short} of these hours." if short else None,
    )


def _repetition(finding: Finding, unit: str) -> str:  # noqa: ARG001 - the same words for all
    repeated = _part(finding, "share_of_jobs")
    return _with(
        f"The run times of jobs and of the last job alike that had ended before have the rank correlation "
        f"{_value(finding, 'correlation')} (0: it says nothing, 1: it says which jobs are longer).",
        f"{repeated} of jobs have such a job of the same user and size." if repeated else None,
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
        f"The nodes of jobs are not known: each counts alone with all that it asked for, in partitions of {unit} nodes "
        "only: an upper bound."
        if finding.parts.get("upper_bound")
        else None,
    )


def _held_and_unused(finding: Finding, unit: str) -> str:
    kinds = finding.parts.get("by_kind") or {}
    sessions = kinds.get("interactive")
    of_sessions = None
    if sessions:
        of_sessions = (
            f"Interactive sessions held {percent(sessions['of_hours'])} of them and did not use "
            f"{percent(sessions['unused'])} of that."
        )
    return _with(
        f"{_value(finding)} of measured {unit} hours were in jobs that used their {unit}s less than 1 % of the time.",
        of_sessions,
        *_measured(finding, unit),
    )


def _fits_a_part(finding: Finding, unit: str) -> str:
    quarter, one = _part(finding, "share_that_fits_a_quarter"), _part(finding, "share_of_one_gpu_jobs")
    return _with(
        f"{_value(finding)} of measured {unit} hours were in jobs that used less than half of a {unit} and held less "
        "than half of its memory.",
        f"{quarter} needed less than a quarter of both." if quarter else None,
        f"{one} were in jobs of one {unit}, which could share it." if one else None,
        *_measured(finding, unit),
    )


def _measured(finding: Finding, unit: str) -> list[str | None]:
    """Return the simplest change beside it, and how much is measured by whom."""
    freed, sources = _part(finding, "freed_by_timeout", 1), finding.parts.get("sources")
    measured = None if finding.coverage is None else f"{percent(finding.coverage)} of {unit} hours were measured"
    return [
        f"Ending interactive sessions that idle for 2 h would free at least {freed} of all {unit} hours."
        if freed
        else "It is not known which jobs were interactive and idle, so what an idle time-out would free is not either.",
        f"{measured}, by {', '.join(sources)}." if measured and sources else None,
    ]


def _unused_requests(finding: Finding, unit: str) -> str:  # noqa: ARG001 - memory and CPUs, whatever is counted
    cpus, sources = _part(finding, "share_of_cpu_hours"), finding.parts.get("sources")
    return _with(
        f"{_value(finding)} of the memory that jobs asked for was not used at their peak, by hours.",
        f"{cpus} of the CPU hours asked for were not used." if cpus else None,
        f"{percent(finding.coverage)} of jobs were measured, by {', '.join(sources)}."
        if sources and finding.coverage is not None
        else None,
    )


WORDS: Mapping[Question, Words] = {
    Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE: Words(
        "{unit}s idle in one partition while jobs wait in another",
        _HOURS,
        _idle_elsewhere,
    ),
    Question.UNUSABLE_IDLE: Words("Free {unit}s that no waiting job could use", _HOURS, _unusable),
    Question.IDLE_BEHIND_OLDEST_JOB: Words("{unit}s idle behind the oldest waiting job", _HOURS, _behind_oldest),
    Question.IDLE_NODES: Words("Nodes idle longer than an hour", "share", _idle_nodes),
    Question.UTILIZATION: Words("Use and its swing", "share", _utilization),
    Question.IMBALANCE: Words("Use of partitions against each other", "share", _imbalance),
    Question.LONG_FAILURES: Words("Hours in jobs that failed after more than an hour", "share", _long_failures),
    Question.REPEATED_FAILURES: Words("Hours in failures that repeat", "share", _repeated_failures),
    Question.HOURS_AT_TIME_LIMIT: Words("Hours in jobs that ended at their time limit", "share", _at_limit),
    Question.LONG_TIME_LIMITS: Words("Limits asked too long", "ratio", _long_limits),
    Question.CONCENTRATION: Words("Who holds the {unit}s", "share", _concentration),
    Question.WHO_WAITS: Words("Who waits", "share", _who_waits),
    Question.SHORT_BEHIND_LONG: Words("Short jobs behind long ones", "share", _short_behind_long),
    Question.REPETITION: Words("What an earlier job tells of run times", "correlation", _repetition),
    Question.BURSTS: Words("Bursts of submissions", "ratio", _bursts),
    Question.ONE_GPU_JOBS: Words("Work for a shared or small GPU", "share", _one_gpu),
    Question.LARGE_AND_LONG_JOBS: Words("Large and long holders", "share", _large_and_long),
    Question.DRIFT: Words("Change from week to week", "ratio", _drift),
    Question.REQUEUES: Words("Hours lost to requeues", "share", _requeues),
    Question.CPU_JOBS_ON_GPU_NODES: Words("CPU jobs on GPU nodes", "node hours a week", _cpu_jobs),
    Question.HELD_AND_UNUSED: Words("{unit}s held and unused", "share", _held_and_unused),
    Question.FITS_A_PART: Words("Hours that half a {unit} would have held", "share", _fits_a_part),
    Question.UNUSED_REQUESTS: Words("Memory and CPUs asked for and not used", "share", _unused_requests),
}
