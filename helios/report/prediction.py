"""Explanation of one prediction, as a screen and in sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape

from helios.model.frames import plain
from helios.report.tables import counted, plain_table
from helios.units import duration, duration_in_words

if TYPE_CHECKING:
    from helios.predict.explain import Explained
    from helios.predict.similar_jobs import RecentInGroup

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
        return {**found, "p10_s": p10_s, "p50_s": p50_s, "p90_s": p90_s, **explained}


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


def largest_corrections(explained: Explained) -> list[tuple[str, float]]:
    """Return the features by which the trees correct a prediction most, with their factors.

    The largest comes first. The others are merged, so that the product is that of ``explained.corrections``.
    """
    ranked = sorted(explained.corrections.items(), key=lambda part: -abs(np.log(part[1])))
    named = [part for part in ranked[:MOST_LINES] if abs(np.log(part[1])) >= np.log(WORTH_A_LINE)]
    rest = float(np.prod([factor for _, factor in ranked[len(named) :]]))
    others = [("everything else", rest)] if len(ranked) > len(named) else []
    return [(name.replace("_", " "), factor) for name, factor in named] + others


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
    if explained.corrections:
        table.add_row("[dim]features by which it is corrected most:[/]")
    after_s = 1.0 + explained.steps[-1].run_time_s
    for text, factor in largest_corrections(explained):
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
