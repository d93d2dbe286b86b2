"""Explanation of one prediction, as a screen and in sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape

from helios.model.frames import plain
from helios.report.tables import counted, plain_table
from helios.units import duration, duration_in_words, percent

if TYPE_CHECKING:
    from helios.predict.explain import Explained
    from helios.predict.similar_jobs import RecentInGroup

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

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
    "user_family": "this user's jobs of a similar name",
    "user_stem": "this user's jobs of this name, digits aside",
    "user_name": "this user's jobs of this name and size",
    "neighbours": "this user's latest jobs, the most similar ones above all",
    "distribution": "from the mean to the middle of such runs, running ones too",
}
"""Description of each shrinkage level of ``helios.predict.causal_stats.LEVELS``, and of the other steps."""

_SUBMITTED: Mapping[str, Callable[[float], str]] = {
    "weekday": lambda day: WEEKDAYS[int(day) % 7],
    "hour": lambda hour: f"{int(hour)} h",
}

UNKNOWN = "what is unknown of this job"

BASIS_WORDS = {
    "user+size": "of {user} of this size and limit",
    "user": "of {user}, none of them of this size and limit",
    "group": "of account {account}, none of them of {user}",
    "size": "of {others} of this size, limit and partition",
    "all": "of {others}, none of them of this size, limit and partition",
}
"""Description of the past jobs behind a prediction, by ``helios.predict.similar_jobs.BASES``."""

WORTH_A_LINE = 1.05
"""Smallest factor with its own line. Corrections between its inverse and it are merged into "everything else"."""
MOST_LINES = 7
NAME_WIDTH = 16
"""Most characters shown of a name or user, because hashes are long and the table has 80 columns."""

EVERY_JOB, AFTERWARDS = "every_job", "afterwards"


def _seconds(log_s: float) -> float:
    return max(float(np.expm1(log_s)), 0.0)


def _time(log_s: float) -> str:
    return duration_in_words(_seconds(log_s)) if np.isfinite(log_s) else "none"


def _number(log_number: float) -> str:
    return f"{round(float(np.expm1(log_number))):,}"


def _spread(log_factor: float) -> str:
    return f"{np.exp(log_factor):.1f}"


@dataclass(frozen=True, slots=True)
class FeatureGroup:
    """Related features, whose contributions are shown as one.

    Attributes
    ----------
    name : str
        Name for a person.
    features : str
        Regular expression for the names of its features.
    shown : mapping of str to callable
        Features whose values are shown, with a function that formats each.
    """

    name: str
    features: str
    shown: Mapping[str, Callable[[float], str]]


_REQUEST: Mapping[str, Callable[[float], str]] = {
    "gpus": lambda gpus: counted(gpus, "GPU") if gpus > 0 else "",
    "log_cpus": lambda cpus: counted(round(_seconds(cpus)), "CPU"),
    "log_nodes": lambda nodes: counted(round(_seconds(nodes)), "node"),
}


_GROUPS: Mapping[str, tuple[str, Mapping[str, Callable[[float], str]]]] = {
    "request": ("gpus|log_(cpus|nodes|memory)", _REQUEST),
    "time limit": ("log_limit", {"log_limit": _time}),
    "submitted, in the site's time": ("hour|weekday", _SUBMITTED),
    "factor by which such run times vary": ("(anchor|neighbour|user_any_limit)_sd", {"anchor_sd": _spread}),
    "this user's most similar jobs": ("neighbour_(mean|weight)|nearest(_distance)?", {"neighbour_mean": _time}),
    "share of the limit that this user's jobs use": (
        r"user_(limit|last)_share|\w+_by_limit",
        {"user_limit_share": percent},
    ),
    "share of this user's jobs that fail": ("user_failed_share|user_last_failed", {"user_failed_share": percent}),
    "this user's latest jobs, shortest and longest": (
        "user_recent_(median|least|most)",
        {"user_recent_least": _time, "user_recent_most": _time},
    ),
    "time since a job of this user ended": ("user(_any_limit)?_end_gap", {"user_end_gap": _time}),
    "this user's other jobs that wait or run": (r"\w+_unended(_age)?", {"user_unended": _number}),
    "this user's ended jobs, and those like this one": (
        r"user_submitted|\w+_ended",
        {"user_ended": _number, "user_size_ended": _number},
    ),
    "time since this user's last submission": (r"user_burst|\w+_submission_gap", {"user_submission_gap": _time}),
    "how long such jobs ran before, weighted again": (r"threshold|(since|by)_\w+|odds_by_mixture", {}),
    "this user's running jobs": ("running(_alike)?", {}),
    "how many such jobs are known": (r"(near|started|request)_weight|key_ended", {}),
    "how far apart this user's last two runs are": ("last_two_apart", {}),
    "the averages above, weighted again": (r"anchor|\w+_mean", {}),
    "what the averages miss for any job here": (EVERY_JOB, {}),
    "what is done to the answer": (AFTERWARDS, {}),
}


FEATURE_GROUPS = (
    *(FeatureGroup(name, features, shown) for name, (features, shown) in _GROUPS.items()),
    *(
        FeatureGroup(f"{words}, the last", rf"{level}_last_\d+", {f"{level}_last_{age}": _time for age in range(1, 10)})
        for level, words in STEP_WORDS.items()
    ),
)
"""Groups of features. A feature belongs to the first group whose pattern matches."""


def describe_feature(feature: str, features: Mapping[str, float]) -> str:
    """Return the name of a feature's group with the group's values.

    It is ``UNKNOWN`` where no value is known. A feature without a group is shown by its own name.
    """
    groups = (group for group in FEATURE_GROUPS if re.fullmatch(group.features, feature))
    own = FeatureGroup(feature.replace("_", " "), feature, {feature: lambda value: f"{value:.3g}"})
    group = next(groups, own)
    values = {name: features.get(name, np.nan) for name in group.shown}
    known = [group.shown[name](value) for name, value in values.items() if not np.isnan(value)]
    if known:
        return f"{group.name}: {', '.join(filter(None, known))}"
    return UNKNOWN if group.shown else group.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A past job similar to the explained one.

    Attributes
    ----------
    job_id, user, account, partition, name : str
        Empty where unknown.
    ended_at : datetime
    gpus, cpus, time_limit_s, run_time_s : float
        NaN for unknown, inf for unlimited.
    differs : tuple of str
        Names of the attributes in which it differs, with ``size`` for GPUs or CPUs.
    distance : float
        Distance as in ``docs/predictions.md``. It is 0 for the same request if nothing has ended since.
    """

    job_id: str
    user: str
    account: str
    partition: str
    name: str
    ended_at: datetime
    gpus: float
    cpus: float
    time_limit_s: float
    run_time_s: float
    differs: tuple[str, ...]
    distance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A job with its explained prediction.

    Attributes
    ----------
    cluster, job_id, user, account, partition, name, state : str
        The job. Empty where unknown.
    restart : int
        Number of its run, from 0.
    gpus, cpus, time_limit_s : float
        NaN for unknown, inf for unlimited.
    submitted_at, known_at : datetime
        Its submission, and the time up to which past jobs were used.
    explained : Explained
        The prediction.
    alike : tuple of PastJob
        Similar jobs, the most similar first.
    run_time_s : float
        True run time. NaN where it is unknown or the job has not ended.
    elapsed_s : float
        Run time so far. NaN where the job does not run.
    remaining_s : tuple of float, optional
        p10, p50 and p90 of the remaining run time. None where the job does not run.
    notes : tuple of str
        Notes for the reader.
    """

    cluster: str
    job_id: str
    user: str
    account: str
    partition: str
    name: str
    state: str
    restart: int
    gpus: float
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
        """Return plain values.

        Unknown and unlimited values are null.
        """
        found: dict[str, Any] = plain(self)
        explained = found.pop("explained")
        p10_s, p50_s, p90_s = explained.pop("quantiles_s")
        words = [{"words": text, "factor": factor} for text, factor in corrections_in_words(self.explained)]
        return {**found, "p10_s": p10_s, "p50_s": p50_s, "p90_s": p90_s, **explained, "corrections_in_words": words}


def explanation_screen(found: Explanation) -> RenderableType:
    """Return an explained prediction for a terminal of 80 columns.

    It has the prediction, the contributions to it, and similar jobs.
    """
    parts: list[RenderableType] = [escape(line) for line in answer_lines(found)]
    parts += ["", _contributions(found.explained), ""]
    parts.append(_similar_jobs(found.alike) if found.alike else "No past job had its user, account, size or name.")
    if found.notes:
        parts += ["", *(escape(f"Note: {note}.") for note in found.notes)]
    return Group(*parts)


def answer_lines(found: Explanation) -> list[str]:
    """Return the explanation as sentences.

    They name the job, the prediction, the true run time if it is known, and the past jobs behind the prediction.
    """
    run = f", run {found.restart + 1}" if found.restart else ""
    whose = f" of {_shorten(found.user)}" if found.user else ""
    where = f" in {found.partition}" if found.partition else ""
    limit = f", limit {_limit(found.time_limit_s, duration_in_words)}" if not np.isnan(found.time_limit_s) else ""
    when = "" if found.known_at == found.submitted_at else f" as of {found.known_at:%Y-%m-%d %H:%M} UTC"
    p10_s, p50_s, p90_s = found.explained.quantiles_s
    low, middle, high = map(duration_in_words, (p10_s, p50_s, p90_s))
    lines = [
        f"Job {found.job_id}{run}{whose} on {found.cluster}{where}: {_size(found.gpus, found.cpus)}{limit}, submitted "
        f"{found.submitted_at:%Y-%m-%d %H:%M} UTC.",
        f"Predicted run time{when}: {middle}; 8 of 10 such jobs take {low} to {high} (by {found.explained.source}).",
    ]
    if not np.isnan(found.run_time_s):
        place = "within" if p10_s <= found.run_time_s <= p90_s else "below" if found.run_time_s < p10_s else "above"
        state = f" ({found.state})" if found.state else ""
        lines.append(f"It ran {duration_in_words(found.run_time_s)}{state}, {place} that range.")
    if found.remaining_s is not None:
        low, middle, high = map(duration_in_words, found.remaining_s)
        ran = duration_in_words(found.elapsed_s)
        lines.append(f"It has run {ran}; {middle} remain, in 8 of 10 such cases {low} to {high}.")
    return [*lines, rests_on(found.explained.basis, found.explained.recent, user=found.user, account=found.account)]


def rests_on(basis: str, recent: RecentInGroup | None, *, user: str, account: str) -> str:
    """Describe the past jobs behind a prediction in one sentence.

    It names their user, and how long the last of them took.
    """
    if recent is None:
        return "No job had ended by then, so it rests on no past job."
    whose = BASIS_WORDS.get(basis, basis).format(
        user=_shorten(user) or "this user", account=_shorten(account), others="others" if user else "anyone"
    )
    shortest, longest = duration_in_words(recent.shortest_s), duration_in_words(recent.longest_s)
    took = shortest if shortest == longest else f"{shortest} to {longest}"
    they = "it" if recent.jobs == 1 else "they" if recent.jobs == recent.last else f"the last {recent.last}"
    return f"It rests on {counted(recent.jobs, 'ended job')} {whose}: {they} took {took}."


def corrections_in_words(explained: Explained) -> list[tuple[str, float]]:
    """Return the corrections of the trees in words, with their factors.

    The largest comes first. Small ones are merged, and corrections of the result come last. The product of the factors
    is that of ``explained.corrections``.
    """
    together: dict[str, float] = {}
    for name, factor in explained.corrections.items():
        if name != AFTERWARDS:
            words = describe_feature(name, explained.features)
            together[words] = together.get(words, 1.0) * factor
    ranked = sorted(together.items(), key=lambda part: -abs(np.log(part[1])))
    named = [part for part in ranked[:MOST_LINES] if abs(np.log(part[1])) >= np.log(WORTH_A_LINE)]
    if rest := ranked[len(named) :]:
        named.append(("everything else", float(np.prod([factor for _, factor in rest]))))
    last = explained.corrections.get(AFTERWARDS, 1.0)
    if abs(np.log(last)) > 1e-6:  # rounding alone leaves it within a millionth of 1
        named.append(
            ("what recent errors taught" if EVERY_JOB in explained.corrections else "cut at its time limit", last)
        )
    return named


def _contributions(explained: Explained) -> RenderableType:
    """Return the steps of a prediction as a table."""
    table = plain_table("From the widest group to the narrowest", "Ended", "Factor", "Run time")
    # A group in which nothing has ended changes nothing, and the prior counts only until the first job has ended.
    known = [step for step in explained.steps[:-1] if step.jobs] or [explained.steps[0]]
    known.append(explained.steps[-1])
    for place, step in enumerate(known):
        words = STEP_WORDS.get(step.level, step.level.replace("_", " "))
        change = _factor(step.factor) if place else ""
        table.add_row(words, f"{step.jobs:,}", change, duration_in_words(step.run_time_s))
    lines = corrections_in_words(explained)
    if lines and EVERY_JOB in explained.corrections:
        table.add_row("[dim]what the model's trees make of it:[/]")
    after_s = 1.0 + explained.steps[-1].run_time_s
    for text, factor in lines:
        after_s *= factor
        table.add_row(escape(text), "", _factor(factor), duration_in_words(max(after_s - 1.0, 0.0)))
    return table


def _similar_jobs(alike: tuple[PastJob, ...]) -> RenderableType:
    table = plain_table("Past jobs most like it", "Ended (UTC)", "Size", "Limit", "Ran")
    table.add_column("Differs in", overflow="fold")
    for job in alike:
        # Size and limit have their own columns; the others are named with their value.
        values = {name: getattr(job, name) for name in ("partition", "name", "user", "account")}
        differs = (f"{name} {_shorten(values[name]) or 'unknown'}" if name in values else name for name in job.differs)
        cells = (job.job_id, f"{job.ended_at:%Y-%m-%d %H:%M}", _size(job.gpus, job.cpus), _limit(job.time_limit_s))
        table.add_row(*map(escape, (*cells, duration(job.run_time_s), ", ".join(differs) or "nothing")))
    return table


def _size(gpus: float, cpus: float) -> str:
    if gpus > 0:
        return counted(gpus, "GPU")
    unknown = ", GPUs unknown" if np.isnan(gpus) else ""
    return "size unknown" if np.isnan(cpus) else f"{counted(cpus, 'CPU')}{unknown}"


def _limit(limit_s: float, write: Callable[[float], str] = duration) -> str:
    return "-" if np.isnan(limit_s) else write(limit_s) if np.isfinite(limit_s) else "none"


def _factor(factor: float) -> str:
    return f"x {factor:.0f}" if factor >= 10 else f"x {factor:.2f}" if factor >= 0.1 else f"x {factor:.2g}"


def _shorten(text: str) -> str:
    return text if len(text) <= NAME_WIDTH else text[: NAME_WIDTH - 1] + "…"
