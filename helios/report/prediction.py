"""An explained prediction as a person reads it: the answer, what it rests on, each step to it, past jobs like it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.units import duration, duration_in_words, percent

if TYPE_CHECKING:
    from helios.predict.explain import Explained, RecentInGroup


# What each feature of a prediction says, in words; features that tell of one thing are told together.

Features = Mapping[str, float]
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

LAST_OF = {
    "user": "of this user",
    "user_limit": "of this user and limit",
    "user_any_limit": "of this user and size, whatever the limit",
    "user_size": "of this user, size and limit",
    "user_family": "of this user and a kindred name",
    "user_stem": "of this user and name, digits aside",
    "user_name": "of this user, name and size",
    "account": "of this account",
    "request": "of anyone of this size and limit",
    "partition": "of anyone in this partition",
    "global": "of anyone",
}
"""By level: whose last ended jobs are meant."""

_GROUPS = {
    "gpus": "request",
    "log_cpus": "request",
    "log_nodes": "request",
    "log_memory": "request",
    "log_limit": "limit",
    "hour": "time",
    "weekday": "time",
    "anchor": "averages",
    "anchor_sd": "spread",
    "neighbour_mean": "neighbours",
    "neighbour_weight": "neighbours",
    "neighbour_sd": "spread",
    "user_any_limit_sd": "spread",
    "nearest": "neighbours",
    "nearest_distance": "neighbours",
    "user_limit_share": "limit_share",
    "user_last_share": "limit_share",
    "user_failed_share": "failed_share",
    "user_last_failed": "failed_share",
    "user_recent_median": "recent",
    "user_recent_least": "recent",
    "user_recent_most": "recent",
    "user_end_gap": "end_gap",
    "user_any_limit_end_gap": "end_gap",
    "user_submitted": "experience",
    "user_burst": "rhythm",
    "every_job": "every_job",
    "afterwards": "afterwards",
}
_OF_THE_USER = frozenset(
    {"neighbours", "limit_share", "failed_share", "recent", "end_gap", "experience", "unended", "rhythm"}
)
# What a level's name is followed by; levels that are added bring features of these forms.
_FORMS = (
    (re.compile(r"(\w+)_last_\d+"), r"\1_last"),
    (re.compile(r"\w+_mean"), "averages"),
    (re.compile(r"\w+_by_limit"), "limit_share"),
    (re.compile(r"\w+_(unended|unended_age)"), "unended"),
    (re.compile(r"\w+_ended"), "experience"),
    (re.compile(r"\w+_submission_gap"), "rhythm"),
)


def describe_group(feature: str) -> str:
    """Return what a feature tells of; a feature that no word was written for stands for itself."""
    if feature in _GROUPS:
        return _GROUPS[feature]
    for form, group in _FORMS:
        if match := form.fullmatch(feature):
            return match.expand(group)
    return feature


def has_words(feature: str) -> bool:
    """Return whether words were written for ``feature``."""
    group = describe_group(feature)
    return group in _PHRASES or group.removesuffix("_last") in LAST_OF


def phrase(group: str, features: Features) -> str:
    """Return what is known of a group of features, as a clause; see :func:`describe_group`."""
    level = group.removesuffix("_last")
    if (group in _OF_THE_USER or level.startswith("user")) and (stranger := _stranger(group, features)):
        return stranger
    if group != level and level in LAST_OF:
        return _last(level, features)
    if group in _PHRASES:
        return _PHRASES[group](features)
    value = features.get(group, np.nan)
    words = group.replace("_", " ")
    return f"{words}: unknown" if np.isnan(value) else f"{words}: {value:.3g}"


def _stranger(group: str, features: Features) -> str:
    """Return what stands for all that is not known of a user; empty: the user is known, and jobs have ended."""
    ended = _count(features, "user_ended")
    if np.isnan(ended):
        return "its user is unknown"
    return "no job of this user has ended" if ended == 0 and group not in {"unended", "rhythm"} else ""


def _request(features: Features) -> str:
    cpus, nodes = _count(features, "log_cpus"), _count(features, "log_nodes")
    asked = [(features.get("gpus", np.nan), "GPU"), (cpus, "CPU"), (nodes, "node")]
    told = [_counted(number, unit) for number, unit in asked if number > 0]
    return f"it asks for {', '.join(told)}" if told else "what it asks for"


def _time_limit(features: Features) -> str:
    limit_s = np.expm1(features.get("log_limit", np.nan))
    if np.isnan(limit_s):
        return "its time limit, which is unknown"
    return f"its time limit of {duration_in_words(limit_s)}" if np.isfinite(limit_s) else "it has no time limit"


def _time(features: Features) -> str:
    hour, weekday = features.get("hour", np.nan), features.get("weekday", np.nan)
    if np.isnan(hour) or np.isnan(weekday):
        return "when it was submitted"
    return f"submitted on a {WEEKDAYS[int(weekday) % 7]} at {int(hour)} h, the site's time"


def _spread(features: Features) -> str:
    spread = features.get("anchor_sd", np.nan)
    return "how run times vary" if np.isnan(spread) else f"such run times vary by a factor of {np.exp(spread):.1f}"


def _neighbours(features: Features) -> str:
    near = features.get("neighbour_mean", np.nan)
    return "no job of this user has ended" if np.isnan(near) else f"this user's jobs most like it: {_time_of(near)}"


def _limit_share(features: Features) -> str:
    return _share(features, "user_limit_share", "this user's jobs use {share} of their limit", "of their limits")


def _failed_share(features: Features) -> str:
    return _share(features, "user_failed_share", "{share} of this user's jobs fail", "of failures")


def _share(features: Features, name: str, told: str, of_what: str) -> str:
    share = features.get(name, np.nan)
    return f"nothing is known {of_what}" if np.isnan(share) else told.format(share=percent(share))


def _recent(features: Features) -> str:
    least, most = (features.get(f"user_recent_{which}", np.nan) for which in ("least", "most"))
    if np.isnan(least) or np.isnan(most):
        return "how long this user's latest jobs ran"
    return f"this user's latest jobs ran {_time_of(least)} to {_time_of(most)}"


def _end_gap(features: Features) -> str:
    gap = features.get("user_end_gap", np.nan)
    return "when a job of this user last ended" if np.isnan(gap) else f"a job of this user ended {_time_of(gap)} before"


def _experience(features: Features) -> str:
    ended, alike = _count(features, "user_ended"), _count(features, "user_size_ended")
    return f"{_counted(ended, 'job')} of this user ended, {alike:,.0f} of them like it"


def _unended(features: Features) -> str:
    unended = _count(features, "user_unended")
    if unended == 0:
        return "no other job of this user waits or runs"
    age = features.get("user_unended_age", np.nan)
    mean = "" if np.isnan(age) else f", for {_time_of(age)} on average"
    return f"{_counted(unended, 'job')} of this user wait or run{mean}"


def _rhythm(features: Features) -> str:
    gap, burst = features.get("user_submission_gap", np.nan), _count(features, "user_burst")
    if np.isnan(gap):
        return "this is this user's first job"
    of_burst = f", job {burst + 1:.0f} of a burst" if burst >= 1 else ""
    return f"submitted {_time_of(gap)} after this user's last{of_burst}"


def _last(level: str, features: Features) -> str:
    recent = [features.get(f"{level}_last_{age}", np.nan) for age in range(1, 10)]
    times = ", ".join(duration(max(float(np.expm1(value)), 0.0)) for value in recent if not np.isnan(value))
    return f"the last {LAST_OF[level]} ran {times}" if times else f"no job {LAST_OF[level]} has ended"


def _count(features: Features, name: str) -> float:
    return float(np.round(np.expm1(features.get(name, np.nan))))


def _counted(number: float, unit: str) -> str:
    return f"{number:,.0f} {unit}" if number == 1 else f"{number:,.0f} {unit}s"


def _time_of(log_seconds: float) -> str:
    return duration_in_words(max(float(np.expm1(log_seconds)), 0.0))


_PHRASES: dict[str, Callable[[Features], str]] = {
    "request": _request,
    "limit": _time_limit,
    "time": _time,
    "averages": lambda _: "the averages above, weighed anew",
    "spread": _spread,
    "neighbours": _neighbours,
    "limit_share": _limit_share,
    "failed_share": _failed_share,
    "recent": _recent,
    "end_gap": _end_gap,
    "experience": _experience,
    "unended": _unended,
    "rhythm": _rhythm,
    "every_job": lambda _: "what the averages miss for any job here",
    "afterwards": lambda _: "what is done to the answer",
}


STEP_WORDS = {
    "prior": "a guess before any job has ended",
    "global": "all jobs that had ended",
    "partition": "jobs in this partition",
    "request": "jobs of this size, limit and partition",
    "account": "jobs of this account",
    "user": "jobs of this user",
    "user_limit": "this user's jobs with this limit",
    "user_any_limit": "this user's jobs of this size, whatever the limit",
    "user_size": "this user's jobs of this size and limit",
    "user_family": "this user's jobs of a kindred name",
    "user_stem": "this user's jobs named so, digits aside",
    "user_name": "this user's jobs of this name and size",
    "neighbours": "this user's latest jobs, those like it most",
}
"""What is averaged at each step of the shrinkage: ``helios.predict.causal_stats.LEVELS`` and the steps beside them."""

BASIS_WORDS = {
    "user+size": "of {user} of this size and limit",
    "user": "of {user}, none of them of this size and limit",
    "group": "of account {account}, none of them of {user}",
    "size": "of {others} of this size, limit and partition",
    "all": "of {others}, none of them of this size, limit and partition",
}
"""Whose jobs a prediction rests on, by ``helios.predict.explain.BASES``."""

EVERY_JOB, AFTERWARDS = "every_job", "afterwards"
WORTH_A_LINE = 1.05
"""Factor below which a correction, and the inverse of it, goes into "everything else"."""
MOST_LINES = 7
NAME_WIDTH = 16
"""Characters shown of a name or user: hashes are long, and the table is for 80 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A past job like the one explained.

    Attributes
    ----------
    job_id, user, account, partition, name : str
        Empty: unknown.
    ended_at : datetime
    gpus : int
    cpus, time_limit_s, run_time_s : float
        NaN: unknown; inf: unlimited.
    differs : tuple of str
        In what it is not the same, in the words of these attributes; "size" for GPUs or CPUs.
    distance : float
        0: the same request, and nothing has ended since; see ``docs/predictions.md``.
    """

    job_id: str
    user: str
    account: str
    partition: str
    name: str
    ended_at: datetime
    gpus: int
    cpus: float
    time_limit_s: float
    run_time_s: float
    differs: tuple[str, ...]
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A job, its prediction and why.

    Attributes
    ----------
    cluster, job_id, user, account, partition, name, state : str
        The job; empty: unknown.
    restart : int
        Which of its runs, from 0.
    gpus : int
    cpus, time_limit_s : float
        NaN: unknown; inf: unlimited.
    submitted_at, known_at : datetime
        Its submission; the moment whose knowledge the prediction rests on.
    explained : Explained
        The prediction.
    alike : tuple of PastJob
        The most alike first.
    run_time_s : float
        How long it really ran; NaN: it has not ended, or is unknown.
    elapsed_s : float
        How long it has run by now; NaN: it does not run.
    remaining_s : tuple of float, optional
        p10, p50 and p90 of what remains of its run; None: it does not run.
    notes : tuple of str
        What a reader should know besides.
    """

    cluster: str
    job_id: str
    user: str
    account: str
    partition: str
    name: str
    state: str
    restart: int
    gpus: int
    cpus: float
    time_limit_s: float
    submitted_at: datetime
    known_at: datetime
    explained: Explained
    alike: tuple[PastJob, ...] = ()
    run_time_s: float = float("nan")
    elapsed_s: float = float("nan")
    remaining_s: tuple[float, float, float] | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain values; what is unknown, or unlimited, is null."""
        plain = _plain(asdict(self))
        explained = plain.pop("explained")
        p10_s, p50_s, p90_s = explained.pop("quantiles_s")
        words = [{"words": text, "factor": factor} for text, factor in corrections_in_words(self.explained)]
        return {**plain, "p10_s": p10_s, "p50_s": p50_s, "p90_s": p90_s, **explained, "corrections_in_words": words}


def explanation_screen(told: Explanation) -> RenderableType:
    """Return the explanation for a terminal, readable at 80 columns."""
    parts: list[RenderableType] = [escape(line) for line in answer_lines(told)]
    parts += ["", f"[bold]Why {duration_in_words(told.explained.quantiles_s[1])}[/]", _step_table(told.explained)]
    parts += ["", f"[bold]{_heading(told)}[/]", *([_alike_table(told)] if told.alike else [])]
    if told.notes:
        parts += ["", *(escape(f"Note: {note}.") for note in told.notes)]
    return Group(*parts)


def answer_lines(told: Explanation) -> list[str]:
    """Return the answer as sentences: the job, the prediction, the truth if it is known, what it rests on."""
    lines = [_headline(told), _prediction(told)]
    if not np.isnan(told.run_time_s):
        lines.append(_truth(told))
    if told.remaining_s is not None:
        lines.append(_remaining(told.elapsed_s, told.remaining_s))
    return [*lines, rests_on(told.explained.basis, told.explained.recent, user=told.user, account=told.account)]


def rests_on(basis: str, recent: RecentInGroup | None, *, user: str, account: str) -> str:
    """Return the sentence that says whose past jobs a prediction rests on, and how long the last of them took."""
    if recent is None:
        return "No job had ended by then, so no past job stands behind it."
    whose = BASIS_WORDS.get(basis, basis).format(
        user=_short(user) or "this user", account=_short(account), others="others" if user else "anyone"
    )
    ended = "1 ended job" if recent.jobs == 1 else f"{recent.jobs:,} ended jobs"
    shortest, longest = duration_in_words(recent.shortest_s), duration_in_words(recent.longest_s)
    took = f"took {shortest}" if shortest == longest else f"took {shortest} to {longest}"
    they = "it" if recent.jobs == 1 else "they"
    last = they if recent.jobs == recent.last else f"the last {recent.last}"
    return f"It rests on {ended} {whose}: {last} {took}."


def corrections_in_words(explained: Explained) -> list[tuple[str, float]]:
    """Return what the trees changed, in words, with the factor; the largest first, the small ones summed at the end.

    The factors multiply to those of ``explained.corrections``.
    """
    together: dict[str, float] = {}
    for name, factor in explained.corrections.items():
        if name != AFTERWARDS:
            words = phrase(describe_group(name), explained.features)
            together[words] = together.get(words, 1.0) * factor
    ranked = sorted(together.items(), key=lambda part: -abs(np.log(part[1])))
    told = [part for part in ranked[:MOST_LINES] if abs(np.log(part[1])) >= np.log(WORTH_A_LINE)]
    if rest := ranked[len(told) :]:
        told.append(("everything else", float(np.prod([factor for _, factor in rest]))))
    last = explained.corrections.get(AFTERWARDS, 1.0)
    # Rounding alone leaves it within a millionth of 1.
    return told + ([(_afterwards(explained), last)] if abs(np.log(last)) > 1e-6 else [])


def _afterwards(explained: Explained) -> str:
    return "what recent errors taught" if EVERY_JOB in explained.corrections else "cut at its time limit"


def _headline(told: Explanation) -> str:
    whose = f" of {_short(told.user)}" if told.user else ""
    where = f" in {told.partition}" if told.partition else ""
    run = f", run {told.restart + 1}" if told.restart else ""
    limit = f", limit {_limit(told.time_limit_s)}" if not np.isnan(told.time_limit_s) else ""
    return (
        f"Job {told.job_id}{run}{whose} on {told.cluster}{where}: {_size(told.gpus, told.cpus)}{limit}, "
        f"submitted {told.submitted_at:%Y-%m-%d %H:%M} UTC."
    )


def _prediction(told: Explanation) -> str:
    p10_s, p50_s, p90_s = told.explained.quantiles_s
    when = "" if told.known_at == told.submitted_at else f" as of {told.known_at:%Y-%m-%d %H:%M} UTC"
    return (
        f"Predicted run time{when}: {duration_in_words(p50_s)}; 8 of 10 such jobs take {duration_in_words(p10_s)} to "
        f"{duration_in_words(p90_s)} (by {told.explained.source})."
    )


def _truth(told: Explanation) -> str:
    p10_s, _, p90_s = told.explained.quantiles_s
    where = "within" if p10_s <= told.run_time_s <= p90_s else "below" if told.run_time_s < p10_s else "above"
    state = f" ({told.state})" if told.state else ""
    return f"It ran {duration_in_words(told.run_time_s)}{state}, {where} that range."


def _remaining(elapsed_s: float, remaining_s: tuple[float, float, float]) -> str:
    low, middle, high = (duration_in_words(part_s) for part_s in remaining_s)
    return f"It has run {duration_in_words(elapsed_s)}; {middle} remain, in 8 of 10 such cases {low} to {high}."


def _step_table(explained: Explained) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    table.add_column("From the widest group to the narrowest", overflow="fold")
    for name in ("Ended", "Factor", "Run time"):
        table.add_column(name, justify="right", no_wrap=True)
    for cells in _shrinkage_rows(explained):
        table.add_row(*cells)
    if lines := corrections_in_words(explained):
        _add_corrections(table, lines, explained)
    return table


def _shrinkage_rows(explained: Explained) -> list[tuple[str, str, str, str]]:
    # A group in which nothing has ended changes nothing; what was believed before the first end is then no news.
    known = [step for step in explained.steps if step.jobs] or [explained.steps[0]]
    return [
        (
            STEP_WORDS.get(step.level, step.level.replace("_", " ")),
            f"{step.jobs:,}",
            _factor(step.factor) if place else "",
            duration_in_words(step.run_time_s),
        )
        for place, step in enumerate(known)
    ]


def _add_corrections(table: Table, lines: list[tuple[str, float]], explained: Explained) -> None:
    if EVERY_JOB in explained.corrections:
        table.add_row("[dim]what the model's trees make of it:[/]")
    after_s = 1.0 + explained.steps[-1].run_time_s
    for text, factor in lines:
        after_s *= factor
        table.add_row(escape(text), "", _factor(factor), duration_in_words(max(after_s - 1.0, 0.0)))


def _heading(told: Explanation) -> str:
    if not told.alike:
        return "No past job had its user, account, size or name."
    number = "Past job" if len(told.alike) == 1 else f"{len(told.alike)} past jobs"
    return f"{number} most like it, all ended by then"


def _alike_table(told: Explanation) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for name in ("Job", "Ended (UTC)", "Size", "Limit", "Ran"):
        table.add_column(name, no_wrap=True, justify="left" if name in {"Job", "Ended (UTC)"} else "right")
    table.add_column("Differs in", overflow="fold")
    for job in told.alike:
        cells = (job.job_id, f"{job.ended_at:%Y-%m-%d %H:%M}", _size(job.gpus, job.cpus), _brief_limit(job))
        table.add_row(*map(escape, (*cells, duration(job.run_time_s), _difference(job))))
    return table


def _difference(job: PastJob) -> str:
    # Size and limit have their own columns; the others are named with their value.
    named = {
        what: f"{what} {_short(getattr(job, what)) or 'unknown'}" for what in ("partition", "name", "user", "account")
    }
    return ", ".join(named.get(what, what) for what in job.differs) or "nothing"


def _size(gpus: int, cpus: float) -> str:
    if gpus:
        return "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    if np.isnan(cpus):
        return "size unknown"
    return "1 CPU" if cpus == 1 else f"{cpus:,.0f} CPUs"


def _limit(limit_s: float) -> str:
    return duration_in_words(limit_s) if np.isfinite(limit_s) else "none"


def _brief_limit(job: PastJob) -> str:
    return duration(job.time_limit_s) if np.isfinite(job.time_limit_s) else "none" if job.time_limit_s > 0 else "-"


def _factor(factor: float) -> str:
    return f"x {factor:.0f}" if factor >= 10 else f"x {factor:.2f}" if factor >= 0.1 else f"x {factor:.2g}"


def _short(text: str) -> str:
    return text if len(text) <= NAME_WIDTH else text[: NAME_WIDTH - 1] + "…"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, str) or not isinstance(value, Iterable):
        return None if isinstance(value, float) and not np.isfinite(value) else value
    return [_plain(part) for part in value]
