"""An explained prediction as tables of its contributions and of similar jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape

from helios.report.tables import plain_table
from helios.units import duration, duration_in_words, percent

if TYPE_CHECKING:
    from helios.predict.explain import Explained, RecentInGroup

Features = Mapping[str, float]
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
EVERY_JOB, AFTERWARDS = "every_job", "afterwards"

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


@dataclass(frozen=True, slots=True)
class _Phrase:
    """Wording of a group of related features.

    Attributes
    ----------
    features : str
        Which, as a pattern; levels that are added bring features of these forms.
    needs : tuple of str
        Features whose values ``known`` takes.
    known : callable
    otherwise : str
        The clause where any of ``needs`` is unknown.
    """

    features: str
    needs: tuple[str, ...]
    known: Callable[..., str]
    otherwise: str = ""


def _time(log_s: float) -> str:
    return duration_in_words(max(float(np.expm1(log_s)), 0.0))


def _count(log_number: float) -> int:
    return round(float(np.expm1(log_number)))


def _counted(number: float, unit: str) -> str:
    return f"{number:,.0f} {unit}{'' if number == 1 else 's'}"


def _unended(unended: float, age: float) -> str:
    if not _count(unended):
        return "no other job of this user waits or runs"
    mean = "" if np.isnan(age) else f", for {_time(age)} on average"
    return f"{_counted(_count(unended), 'job')} of this user wait or run{mean}"


def _rhythm(gap: float, burst: float) -> str:
    place = f", job {_count(burst) + 1} of a burst" if np.expm1(burst) >= 0.5 else ""
    return f"submitted {_time(gap)} after this user's last{place}"


def _request(gpus: float, log_cpus: float, log_nodes: float) -> str:
    asked = ((gpus, "GPU"), (float(np.expm1(log_cpus)), "CPU"), (float(np.expm1(log_nodes)), "node"))
    told = [_counted(round(number), unit) for number, unit in asked if number > 0]
    return f"it asks for {', '.join(told)}" if told else "what it asks for"


_PHRASES = {
    "request": _Phrase(
        "gpus|log_(cpus|nodes|memory)", ("gpus", "log_cpus?", "log_nodes?"), _request, "what it asks for"
    ),
    "limit": _Phrase(
        "log_limit",
        ("log_limit",),
        lambda limit: f"its time limit of {_time(limit)}" if np.isfinite(limit) else "it has no time limit",
        "its time limit, which is unknown",
    ),
    "time": _Phrase(
        "hour|weekday",
        ("hour", "weekday"),
        lambda hour, day: f"submitted on a {WEEKDAYS[int(day) % 7]} at {int(hour)} h, the site's time",
        "when it was submitted",
    ),
    "spread": _Phrase(
        "(anchor|neighbour|user_any_limit)_sd",
        ("anchor_sd",),
        lambda spread: f"such run times vary by a factor of {np.exp(spread):.1f}",
        "how run times vary",
    ),
    "neighbours": _Phrase(
        "neighbour_(mean|weight)|nearest(_distance)?",
        ("neighbour_mean",),
        lambda near: f"this user's jobs most like it: {_time(near)}",
        "no job of this user has ended",
    ),
    "limit_share": _Phrase(
        r"user_(limit|last)_share|\w+_by_limit",
        ("user_limit_share",),
        lambda share: f"this user's jobs use {percent(share)} of their limit",
        "nothing is known of their limits",
    ),
    "failed_share": _Phrase(
        "user_failed_share|user_last_failed",
        ("user_failed_share",),
        lambda share: f"{percent(share)} of this user's jobs fail",
        "nothing is known of failures",
    ),
    "recent": _Phrase(
        "user_recent_(median|least|most)",
        ("user_recent_least", "user_recent_most"),
        lambda least, most: f"this user's latest jobs ran {_time(least)} to {_time(most)}",
        "how long this user's latest jobs ran",
    ),
    "end_gap": _Phrase(
        "user(_any_limit)?_end_gap",
        ("user_end_gap",),
        lambda gap: f"a job of this user ended {_time(gap)} before",
        "when a job of this user last ended",
    ),
    "unended": _Phrase(r"\w+_unended(_age)?", ("user_unended", "user_unended_age?"), _unended),
    "experience": _Phrase(
        r"user_submitted|\w+_ended",
        ("user_ended", "user_size_ended"),
        lambda ended, alike: f"{_counted(_count(ended), 'job')} of this user ended, {_count(alike):,} of them like it",
        "how many jobs of this user ended",
    ),
    "rhythm": _Phrase(
        r"user_burst|\w+_submission_gap",
        ("user_submission_gap", "user_burst?"),
        _rhythm,
        "this is this user's first job",
    ),
    "averages": _Phrase(r"anchor|\w+_mean", (), lambda: "the averages above, weighed anew"),
    "every_job": _Phrase("every_job", (), lambda: "what the averages miss for any job here"),
    "afterwards": _Phrase("afterwards", (), lambda: "what is done to the answer"),
}
"""By group; a feature belongs to the first whose pattern fits. After a feature, ``?``: it may be unknown."""

_ABOUT_USER = {"neighbours", "limit_share", "failed_share", "recent", "end_gap", "experience", "unended", "rhythm"}


def describe_group(feature: str) -> str:
    """Return the group that a feature belongs to.

    A feature without words is a group of its own.
    """
    if match := re.fullmatch(r"(\w+_last)_\d+", feature):
        return match[1]
    return next((group for group, words in _PHRASES.items() if re.fullmatch(words.features, feature)), feature)


def has_words(feature: str) -> bool:
    """Return whether words were written for a feature."""
    group = describe_group(feature)
    return group in _PHRASES or group.removesuffix("_last") in LAST_OF


def phrase(group: str, features: Features) -> str:
    """Describe a group of features as a clause.

    Groups are those of :func:`describe_group`.
    """
    level = group.removesuffix("_last")
    if group in _ABOUT_USER or level.startswith("user"):
        ended = features.get("user_ended", np.nan)
        if np.isnan(ended):
            return "its user is unknown"
        if not _count(ended) and group not in {"unended", "rhythm"}:
            return "no job of this user has ended"
    if group != level and level in LAST_OF:
        recent = (features.get(f"{group}_{age}", np.nan) for age in range(1, 10))
        times = ", ".join(duration(max(float(np.expm1(value)), 0.0)) for value in recent if not np.isnan(value))
        return f"the last {LAST_OF[level]} ran {times}" if times else f"no job {LAST_OF[level]} has ended"
    if group in _PHRASES:
        words = _PHRASES[group]
        values = [features.get(name.removesuffix("?"), np.nan) for name in words.needs]
        lacks = any(np.isnan(value) for value, name in zip(values, words.needs, strict=True) if name[-1] != "?")
        return words.otherwise if lacks else words.known(*values)
    value, name = features.get(group, np.nan), group.replace("_", " ")
    return f"{name}: unknown" if np.isnan(value) else f"{name}: {value:.3g}"


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
        Names of the attributes in which it differs; "size" for GPUs or CPUs.
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
        """Return plain values.

        What is unknown or unlimited is null.
        """
        plain = _plain(asdict(self))
        explained = plain.pop("explained")
        p10_s, p50_s, p90_s = explained.pop("quantiles_s")
        words = [{"words": text, "factor": factor} for text, factor in corrections_in_words(self.explained)]
        return {**plain, "p10_s": p10_s, "p50_s": p50_s, "p90_s": p90_s, **explained, "corrections_in_words": words}


def explanation_screen(told: Explanation) -> RenderableType:
    """Return an explained prediction for a terminal of 80 columns.

    The answer, the contributions to it, and similar jobs.
    """
    parts: list[RenderableType] = [escape(line) for line in answer_lines(told)]
    parts += ["", _contributions(told.explained), ""]
    parts.append(_similar_jobs(told.alike) if told.alike else "No past job had its user, account, size or name.")
    if told.notes:
        parts += ["", *(escape(f"Note: {note}.") for note in told.notes)]
    return Group(*parts)


def answer_lines(told: Explanation) -> list[str]:
    """Return the answer as sentences.

    The job, the prediction, the true run time if it is known, and the past jobs behind the prediction.
    """
    run = f", run {told.restart + 1}" if told.restart else ""
    whose = f" of {_short(told.user)}" if told.user else ""
    where = f" in {told.partition}" if told.partition else ""
    limit = f", limit {_limit(told.time_limit_s, duration_in_words)}" if not np.isnan(told.time_limit_s) else ""
    when = "" if told.known_at == told.submitted_at else f" as of {told.known_at:%Y-%m-%d %H:%M} UTC"
    p10_s, p50_s, p90_s = told.explained.quantiles_s
    low, middle, high = map(duration_in_words, (p10_s, p50_s, p90_s))
    lines = [
        f"Job {told.job_id}{run}{whose} on {told.cluster}{where}: {_size(told.gpus, told.cpus)}{limit}, submitted "
        f"{told.submitted_at:%Y-%m-%d %H:%M} UTC.",
        f"Predicted run time{when}: {middle}; 8 of 10 such jobs take {low} to {high} (by {told.explained.source}).",
    ]
    if not np.isnan(told.run_time_s):
        place = "within" if p10_s <= told.run_time_s <= p90_s else "below" if told.run_time_s < p10_s else "above"
        state = f" ({told.state})" if told.state else ""
        lines.append(f"It ran {duration_in_words(told.run_time_s)}{state}, {place} that range.")
    if told.remaining_s is not None:
        low, middle, high = map(duration_in_words, told.remaining_s)
        ran = duration_in_words(told.elapsed_s)
        lines.append(f"It has run {ran}; {middle} remain, in 8 of 10 such cases {low} to {high}.")
    return [*lines, rests_on(told.explained.basis, told.explained.recent, user=told.user, account=told.account)]


def rests_on(basis: str, recent: RecentInGroup | None, *, user: str, account: str) -> str:
    """Describe the past jobs behind a prediction in one sentence.

    Whose they are, and how long the last of them took.
    """
    if recent is None:
        return "No job had ended by then, so no past job stands behind it."
    whose = BASIS_WORDS.get(basis, basis).format(
        user=_short(user) or "this user", account=_short(account), others="others" if user else "anyone"
    )
    shortest, longest = duration_in_words(recent.shortest_s), duration_in_words(recent.longest_s)
    took = shortest if shortest == longest else f"{shortest} to {longest}"
    they = "it" if recent.jobs == 1 else "they" if recent.jobs == recent.last else f"the last {recent.last}"
    return f"It rests on {_counted(recent.jobs, 'ended job')} {whose}: {they} took {took}."


def corrections_in_words(explained: Explained) -> list[tuple[str, float]]:
    """Return the corrections of the trees in words, with their factors.

    The largest first, the small ones multiplied together, and what is done to the answer afterwards last.

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
    if abs(np.log(last)) > 1e-6:  # rounding alone leaves it within a millionth of 1
        told.append(
            ("what recent errors taught" if EVERY_JOB in explained.corrections else "cut at its time limit", last)
        )
    return told


def _contributions(explained: Explained) -> RenderableType:
    """Return the steps from the widest group to the prediction as a table."""
    table = plain_table("From the widest group to the narrowest", "Ended", "Factor", "Run time")
    # A group in which nothing has ended changes nothing, and the prior counts only until the first job has ended.
    known = [step for step in explained.steps if step.jobs] or [explained.steps[0]]
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
        differs = (f"{name} {_short(values[name]) or 'unknown'}" if name in values else name for name in job.differs)
        cells = (job.job_id, f"{job.ended_at:%Y-%m-%d %H:%M}", _size(job.gpus, job.cpus), _limit(job.time_limit_s))
        table.add_row(*map(escape, (*cells, duration(job.run_time_s), ", ".join(differs) or "nothing")))
    return table


def _size(gpus: int, cpus: float) -> str:
    if gpus:
        return _counted(gpus, "GPU")
    return "size unknown" if np.isnan(cpus) else _counted(cpus, "CPU")


def _limit(limit_s: float, write: Callable[[float], str] = duration) -> str:
    return "-" if np.isnan(limit_s) else write(limit_s) if np.isfinite(limit_s) else "none"


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
