"""Risk that jobs and users of an anonymous export are found again.

Somebody may know jobs of the site, or have its whole log.

Source of the attacks: size and second of the submission alone identified every job of three published "anonymous"
copies of one trace, and gave their users back. Sizes are GPUs, CPUs and nodes together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import SIZES, seconds_of
from helios.study.export.anonymous import OTHERS, WEEK_S

COMMONEST = 3
_SEEN = [*SIZES, "step"]
"""What somebody knows of a job who saw it in the queue."""
_SAMPLE = 2_000
"""Cells by which the shift of an export is found: a wrong shift matches a few of them, the right one all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linkage:
    """Exported jobs that match exactly one job of the site's log.

    No other exported job matches it.

    Attributes
    ----------
    jobs : float
        Their share.
    users : float
        Share of the users (without pooled ones) who have such a job.
    """

    jobs: float
    users: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """Risk that remains in an export.

    Attributes
    ----------
    jobs, users : int
        Exported; pooled users are not counted.
    unique_jobs : float
        Share of the jobs whose size and submission, as far as it is true, no other job has.
    traced_jobs : float
        Share of the jobs that give their user to somebody who knows their size and submission: no job of another user
        has the same of both. The bound is on this figure.
    traced_users : float
        Share of the users who have a traced job.
    users_unique_in_sizes : float
        Share of the users whose three commonest sizes are those of no other.
    shifts_tried : int
        Numbers of weeks by which the export and the site's own log overlap.
    shift_found : bool
        Whether the log shows by how many weeks the export was moved.
    by_size_and_submission, by_size_and_all_times : Linkage
        What then matches between export and log: by the submission alone, and by submission, wait and run time.
    """

    jobs: int
    users: int
    unique_jobs: float
    traced_jobs: float
    traced_users: float
    users_unique_in_sizes: float
    shifts_tried: int
    shift_found: bool
    by_size_and_submission: Linkage
    by_size_and_all_times: Linkage

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def assess_risk(exported: pd.DataFrame, log: pd.DataFrame, *, round_s: int, offset_s: int = 0, weeks: int) -> Risk:
    """Measure the re-identification risk of an export.

    Parameters
    ----------
    exported : DataFrame
        The anonymous jobs, columns of ``JOBS``.
    log : DataFrame
        All jobs of the site as somebody would round and merge them who knows how the export was made.
    round_s : int
        Step to which submissions are true, s; it divides a week.
    offset_s : int
        How far the clock of these steps is ahead of UTC, s.
    weeks : int
        Number of weeks by which the export was really shifted.
    """
    given, known = (_known_attributes(jobs, round_s=round_s, offset_s=offset_s) for jobs in (exported, log))
    cells, owners = _cells(given), _owners(exported)
    traced = _has_single_owner(cells, owners)
    tried, found = _find_shift(given, known, steps_per_week=WEEK_S // round_s)
    known["step"] += found * (WEEK_S // round_s)
    return Risk(
        jobs=len(exported),
        users=len(np.unique(owners[owners >= 0])),
        unique_jobs=float((np.bincount(cells)[cells] == 1).mean()),
        traced_jobs=float(traced.mean()),
        traced_users=_share_of_users(traced, owners),
        users_unique_in_sizes=_unique_in_sizes(exported, owners),
        shifts_tried=tried,
        shift_found=found == weeks,
        by_size_and_submission=_linkage(given[_SEEN], known[_SEEN], owners),
        by_size_and_all_times=_linkage(given, known, owners),
    )


def traced_share(exported: pd.DataFrame, *, round_s: int, offset_s: int) -> float:
    """Return the share of traced jobs with coarser times."""
    cells = _cells(_known_attributes(exported, round_s=round_s, offset_s=offset_s))
    return float(_has_single_owner(cells, _owners(exported)).mean())


def _known_attributes(jobs: pd.DataFrame, *, round_s: int, offset_s: int) -> pd.DataFrame:
    """Return sizes, step of the submission, wait and run time."""
    submitted, started = (seconds_of(jobs[name]) for name in ("submitted_at", "started_at"))
    step = np.floor((submitted + offset_s) / round_s).astype(np.int64)
    return jobs[[*SIZES, "run_time_s"]].assign(step=step, wait_s=started - submitted)


def _find_shift(exported: pd.DataFrame, log: pd.DataFrame, *, steps_per_week: int) -> tuple[int, int]:
    """Return how many weekly shifts were tried, and the best.

    The best is the one under which most combinations of size and submission of the export are in the log.
    """
    both = pd.concat([exported[_SEEN], log[_SEEN]], ignore_index=True)
    size = both.groupby(list(SIZES), dropna=False, sort=False).ngroup().to_numpy().astype(np.int64)
    steps, log_steps = exported["step"].to_numpy(), log["step"].to_numpy()
    first, span = log_steps.min(), log_steps.max() - log_steps.min() + 1
    known = np.unique(size[len(exported) :] * span + log_steps - first)
    asked = np.unique(np.column_stack([size[: len(exported)], steps]), axis=0)
    asked = asked[:: -(-len(asked) // _SAMPLE)]
    weeks = np.arange(-((log_steps.max() - steps.min()) // steps_per_week), (steps.max() - first) // steps_per_week + 1)
    matches = np.zeros(len(weeks), dtype=np.int64)
    for number, week in enumerate(weeks):
        place = asked[:, 1] - week * steps_per_week - first
        within = (place >= 0) & (place < span)
        matches[number] = np.isin(asked[within, 0] * span + place[within], known).sum()
    return len(weeks), int(weeks[np.argmax(matches)]) if len(weeks) else 0


def _owners(jobs: pd.DataFrame) -> NDArray[np.int64]:
    """Return each job's user as a number.

    Jobs of unknown and pooled users have a negative one of their own.
    """
    codes = jobs["user"].cat.codes.to_numpy().astype(np.int64)
    nobody = (codes < 0) | (jobs["user"] == OTHERS).to_numpy()
    return np.where(nobody, -1 - np.arange(len(jobs)), codes)


def _cells(known: pd.DataFrame) -> NDArray[np.int64]:
    """Return each job's number of its size and submission."""
    return known.groupby(_SEEN, dropna=False, sort=False).ngroup().to_numpy().astype(np.int64)


def _has_single_owner(cells: NDArray[np.int64], owners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the jobs alone in their cell, by owner."""
    grouped = pd.Series(owners).groupby(cells)
    return (grouped.transform("min") == grouped.transform("max")).to_numpy()


def _share_of_users(jobs: NDArray[np.bool_], owners: NDArray[np.int64]) -> float:
    users = np.unique(owners[owners >= 0])
    return len(np.unique(owners[jobs & (owners >= 0)])) / len(users) if len(users) else 0.0


def _unique_in_sizes(jobs: pd.DataFrame, owners: NDArray[np.int64]) -> float:
    size = jobs.groupby(list(SIZES), dropna=False).ngroup().to_numpy()
    counts = pd.DataFrame({"user": owners, "size": size})[owners >= 0].value_counts(sort=False).rename("jobs")
    if counts.empty:
        return 0.0
    ordered = counts.reset_index().sort_values(["user", "jobs", "size"], ascending=[True, False, True])
    ordered = ordered.groupby("user").head(COMMONEST).sort_values(["user", "size"])
    words = ordered["size"].astype("str").groupby(ordered["user"]).agg(" ".join)
    return float((~words.duplicated(keep=False)).mean())


def _linkage(exported: pd.DataFrame, log: pd.DataFrame, owners: NDArray[np.int64]) -> Linkage:
    both = pd.concat([exported, log], ignore_index=True)
    cells = both.groupby(list(both), dropna=False, sort=False).ngroup().to_numpy()
    counts, log_counts = (np.bincount(part, minlength=cells.max() + 1) for part in np.split(cells, [len(exported)]))
    linked = ((counts == 1) & (log_counts == 1))[cells[: len(exported)]]
    return Linkage(jobs=float(linked.mean()), users=_share_of_users(linked, owners))
