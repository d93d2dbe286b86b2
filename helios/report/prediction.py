"""Explanation of one prediction, as tables and in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.markup import escape

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
class PredictionSteps:
    """Steps to a job's prediction, as known at its submission.

    Attributes
    ----------
    user, account : str
        Of the job. Empty where unknown.
    explained : Explained
        The prediction.
    alike : tuple of PastJob
        Similar jobs, the most similar first.
    run_time_s : float
        True run time. NaN where it is unknown or the job has not ended.
    notes : tuple of str
        Notes for the reader.
    """

    user: str
    account: str
    explained: Explained
    alike: tuple[PastJob, ...] = ()
    run_time_s: float = float("nan")
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield how far off the prediction was, and what it rests on."""
        p10_s, _, p90_s = self.explained.quantiles_s
        if not np.isnan(self.run_time_s):
            place = "within" if p10_s <= self.run_time_s <= p90_s else "below" if self.run_time_s < p10_s else "above"
            yield f"It ran {place} that range."
        yield rests_on(self.explained.basis, self.explained.recent, user=self.user, account=self.account)
        yield from (f"Note: {note}." for note in self.notes)

    def tables(self) -> Iterator[RenderableType]:
        """Yield the contributions to the prediction, and the most similar past jobs."""
        yield _contributions(self.explained)
        yield _similar_jobs(self.alike) if self.alike else "No past job had its user, account, size or name."


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
    """Return the features that correct a prediction most, with factors.

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
