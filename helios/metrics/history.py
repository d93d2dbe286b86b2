"""Jobs of a cluster as columns, inside a window of time.

Only hours inside the window count. Where a history records no starts, it is not known when jobs held anything, so all
hours of the jobs submitted in the window count. Where some times are censored, their distribution is estimated after
Kaplan and Meier (J. Am. Stat. Assoc. 53, 1958).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helios.metrics.blocks import WEEK_HOURS, Blocks, mean_levels
from helios.metrics.node_usage import whole_seconds
from helios.metrics.queue import Weights, whole_where_possible
from helios.model import JOBS, JobState
from helios.model.records import split_words
from helios.units import HOUR_S, best_unit

NEVER_S = 2**60
"""A time after all others, s. It stands for events that did not happen inside the history, or at an unknown time."""
STATES = ("completed", "cancelled", "failed", "node failed", "timeout", "other", "not ended", "unknown")
COMPLETED, CANCELLED, FAILED, NODE_FAILED, TIMEOUT, OTHER, NOT_ENDED, UNKNOWN = range(len(STATES))
_STATE_CODES = {
    JobState.COMPLETED: COMPLETED,
    JobState.CANCELLED: CANCELLED,
    JobState.FAILED: FAILED,
    JobState.OUT_OF_MEMORY: FAILED,
    JobState.NODE_FAIL: NODE_FAILED,
    JobState.BOOT_FAIL: NODE_FAILED,
    JobState.TIMEOUT: TIMEOUT,
    JobState.DEADLINE: TIMEOUT,
    JobState.PENDING: NOT_ENDED,
    JobState.RUNNING: NOT_ENDED,
    JobState.SUSPENDED: NOT_ENDED,
    JobState.RESIZING: NOT_ENDED,
}
MISSING = -1
"""Code of a name that a job does not have."""
STEP_S = 900
"""Length of a step of time, s. It divides the offsets of all time zones."""
MOST_STEPS = 100_000
LEAST_GPU_JOBS = 0.01
"""Smallest share of jobs with GPUs for a study of GPUs instead of CPUs."""
LEAST_KNOWN = 0.5
"""Smallest share of jobs with a recorded start, of those that ran, for a history to have starts."""
COLUMNS = (
    *("job_id", "restart", "array_job_id", "name", "user", "account", "partition", "state", "submitted_at"),
    *("eligible_at", "started_at", "ended_at", "run_time_s", "time_limit_s", "nodes", "cpus", "gpus", "memory_mib"),
    *("gpu_type", "node_list", "tres_requested"),
)
"""Columns of ``JOBS`` that a study reads."""
_GPU_TYPE = re.compile(r"gres/gpu:([^=:,]+)")
KEPT_COLUMNS = ("job_id", "array_job_id", "submitted_at", "name", "node_list", "tres_requested")

Seconds = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Names:
    """Distinct values of a text column.

    Attributes
    ----------
    code : int32 array of shape (n_jobs,)
        Position in ``values``, or ``MISSING``.
    values : tuple of str
    """

    code: NDArray[np.int32]
    values: tuple[str, ...]

    @property
    def known(self) -> Flags:
        """Whether each job has a value."""
        return self.code >= 0

    def sum(self, weight: Floats) -> Floats:
        """Return the sum of a weight over the jobs of each value."""
        sums = np.bincount(self.code[self.known], weights=weight[self.known], minlength=len(self.values))
        return sums.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyHistory:
    """Jobs that were submitted, ran or waited in a window.

    Arrays have the shape (n_jobs,) and are in the order of submission.

    Attributes
    ----------
    resource : str
        ``gpus`` or ``cpus``, in which sizes and hours are counted.
    first_s, end_s : int
        The window, s since the epoch.
    blocks : Blocks
        Weeks or days of the window, from which confidence intervals are computed.
    size : int64 array, or float64 where a job holds a part of a GPU
        Units of the resource, 0 for a job without it, or where it is unknown.
    without : bool array
        Whether each job is known to hold none of the resource.
    submitted_s, eligible_s : int64 arrays
        ``eligible_s`` is the submission where the eligible time is unknown.
    started_s, ended_s : int64 arrays
        ``NEVER_S`` where it did not happen or is unknown.
    run_time_s : float64 array
        NaN where it is unknown or the job has not ended.
    state : int8 array
        Position in ``STATES``.
    restart : int32 array
        Number of the run of a requeued job, from 0.
    has_starts : bool
        Whether the history has times of starts and ends. Otherwise hours count at the submission.
    repaired : dict of int
        Number of jobs with impossible times, by problem. Such times count as unknown.
    name : int32 array
        A number for each distinct job name, or ``MISSING``.
    jobs : DataFrame
        The ``KEPT_COLUMNS`` columns of ``JOBS``.
    """

    cluster: str
    timezone: str
    resource: str
    first_s: int
    end_s: int
    blocks: Blocks
    size: Weights
    without: Flags
    submitted_s: Seconds
    eligible_s: Seconds
    started_s: Seconds
    ended_s: Seconds
    run_time_s: Floats
    time_limit_s: Floats
    cpus: Floats
    nodes: Floats
    memory_mib: Floats
    state: NDArray[np.int8]
    restart: NDArray[np.int32]
    user: Names
    account: Names
    partition: Names
    name: NDArray[np.int32]
    stem: Names
    gpu_type: Names
    has_starts: bool
    repaired: dict[str, int]
    jobs: pd.DataFrame = field(repr=False)

    @property
    def unit(self) -> str:
        """Name of the resource, ``GPU`` or ``CPU``."""
        return best_unit(self.resource)

    @property
    def weeks(self) -> float:
        """Length of the window in weeks."""
        return (self.end_s - self.first_s) / (WEEK_HOURS * HOUR_S)

    @property
    def submitted(self) -> Flags:
        """Whether each job was submitted in the window."""
        return (self.submitted_s >= self.first_s) & (self.submitted_s < self.end_s)

    @property
    def sized(self) -> Flags:
        """Whether each job requests the resource and was submitted in the window."""
        return self.submitted & (self.size > 0)

    @property
    def ran(self) -> Flags:
        """Whether each job ran, as far as is known."""
        return (self.started_s < NEVER_S) | (np.nan_to_num(self.run_time_s) > 0)

    @property
    def wait_s(self) -> Floats:
        """Time from eligible to start, s, NaN without a known start."""
        return np.where(self.started_s < NEVER_S, self.started_s - self.eligible_s, np.nan).astype(np.float64)

    @property
    def waiting_until_s(self) -> Seconds:
        """End of each job's wait, at most the window's end, s.

        It is -1 where it is not known. A job without a start waits to its end if it was cancelled, and to the window's
        end if it is pending. The wait of any other is not known.
        """
        started = self.started_s < NEVER_S
        cancelled = ~started & (self.state == CANCELLED) & (self.ended_s < NEVER_S)
        pending = ~started & (self.state == NOT_ENDED) & (self.ended_s == NEVER_S)
        until_s = np.minimum(np.where(started, self.started_s, self.ended_s), self.end_s)
        return np.where(started | cancelled | pending, until_s, MISSING)

    @property
    def waited_hours(self) -> Floats:
        """Hours that each job waited in the window for its first start.

        Of jobs with the resource that started, were cancelled or still wait. 0 where the wait is not known.
        """
        until_s = self.waiting_until_s
        counted = (self.size > 0) & (self.restart == 0) & (until_s >= 0) & self.has_starts
        return np.where(counted, np.maximum(until_s - np.maximum(self.eligible_s, self.first_s), 0), 0) / HOUR_S

    @property
    def step_edges_s(self) -> Seconds:
        """Edges of steps of ``STEP_S``, aligned with the clock.

        Steps are longer where there would be more than ``MOST_STEPS``. The first and the last are cut at the window.
        """
        step_s = STEP_S * max(1, -(-(self.end_s - self.first_s) // (STEP_S * MOST_STEPS)))
        inside = np.arange((self.first_s // step_s + 1) * step_s, self.end_s, step_s, dtype=np.int64)
        return np.concatenate([[self.first_s], inside, [self.end_s]]).astype(np.int64)

    def held(self, edges_s: Seconds, chosen: NDArray[Any] | None = None) -> Floats:
        """Return the mean units that jobs hold in each step.

        Parameters
        ----------
        chosen : array, optional
            A flag for each job, or positions of jobs. All jobs by default.
        """
        jobs = slice(None) if chosen is None else chosen
        return mean_levels(self.started_s[jobs], self.ended_s[jobs], self.size[jobs], edges_s)

    def hours(self, *, weight: Floats | Seconds | None = None) -> Floats:
        """Return the hours of each job in the window, size x time.

        Parameters
        ----------
        weight : array of shape (n_jobs,), optional
            Replaces the size.
        """
        weight = self.size if weight is None else weight
        if not self.has_starts:
            return np.where(self.submitted, weight * np.nan_to_num(self.run_time_s), 0.0) / HOUR_S
        held_s = np.minimum(self.ended_s, self.end_s) - np.maximum(self.started_s, self.first_s)
        hours: Floats = np.maximum(held_s, 0) * weight / HOUR_S
        return hours

    def hours_by_block(self, chosen: Flags | None = None, *, weight: Floats | Seconds | None = None) -> Floats:
        """Return the hours of the chosen jobs in each block."""
        weight = self.size if weight is None else weight
        if chosen is not None:
            weight = np.where(chosen, weight, 0)
        if not self.has_starts:
            hours = weight * np.nan_to_num(self.run_time_s) / HOUR_S
            return self.blocks.sum(self.submitted_s, hours)
        return self.blocks.spread(self.started_s, self.ended_s, weight) / HOUR_S

    def hours_of_groups(self, group: NDArray[Any], n_groups: int) -> Floats:
        """Return the hours of each group in each block.

        Parameters
        ----------
        group : int array of shape (n_jobs,)
            Negative for a job without a group.

        Returns
        -------
        float64 array of shape (n_groups, n_blocks)
        """
        if self.has_starts:
            return self.blocks.spread_groups(self.started_s, self.ended_s, self.size, group, n_groups) / HOUR_S
        block = self.blocks.number(self.submitted_s)
        inside = (block >= 0) & (group >= 0)
        cell = group[inside].astype(np.int64) * self.blocks.n + block[inside]
        hours = np.bincount(cell, self.hours()[inside], n_groups * self.blocks.n)
        return hours.astype(np.float64).reshape(n_groups, self.blocks.n)


def read_history(
    jobs: pd.DataFrame,
    *,
    cluster: str,
    timezone: str,
    since: datetime | None = None,
    until: datetime | None = None,
    resource: str | None = None,
    keep: Sequence[str] = (),
) -> StudyHistory:
    """Return the jobs of a window as columns.

    Parameters
    ----------
    jobs : DataFrame
        The ``COLUMNS`` of ``JOBS``, at least one job.
    since, until : datetime, optional
        The window, by default from the first to the last submission.
    resource : str, optional
        ``gpus`` or ``cpus``. By default ``gpus`` if at least ``LEAST_GPU_JOBS`` of the jobs ask for some.
    keep : sequence of str
        Further columns for ``StudyHistory.jobs``.
    """
    JOBS.check(jobs, columns=COLUMNS)
    submitted_s = whole_seconds(jobs["submitted_at"], otherwise=NEVER_S)
    first_s = int(submitted_s.min()) if since is None else int(since.timestamp())
    end_s = int(submitted_s.max()) + 1 if until is None else int(until.timestamp())
    resource = resource or _resource(jobs)
    started_s, ended_s, run_time_s, repaired = _times(jobs, submitted_s)
    in_window = (submitted_s < end_s) & ((submitted_s >= first_s) | (np.minimum(ended_s, NEVER_S - 1) > first_s))
    ran = np.nan_to_num(run_time_s) > 0
    has_starts = (
        bool((started_s[ran] < NEVER_S).mean() >= LEAST_KNOWN) if ran.any() else bool((started_s < NEVER_S).any())
    )
    if not has_starts:
        started_s[:], ended_s[:] = NEVER_S, NEVER_S
        in_window = (submitted_s >= first_s) & (submitted_s < end_s)
    if not in_window.all():
        jobs = jobs.loc[in_window].reset_index(drop=True)
        submitted_s, started_s, ended_s = submitted_s[in_window], started_s[in_window], ended_s[in_window]
        run_time_s = run_time_s[in_window]
    eligible_s = whole_seconds(jobs["eligible_at"], otherwise=NEVER_S)
    size = jobs[resource].to_numpy(dtype=np.float64)
    name, stem = _job_names(jobs["name"])
    # A hold or a start time postpones a job. An eligible time before the submission comes from a clock step.
    eligible_s = np.where(eligible_s == NEVER_S, submitted_s, np.maximum(eligible_s, submitted_s))
    return StudyHistory(
        cluster=cluster,
        timezone=timezone,
        resource=resource,
        first_s=first_s,
        end_s=end_s,
        blocks=Blocks.of_window(first_s, end_s, timezone=timezone),
        # CPUs are whole, though some traces have means of them.
        size=whole_where_possible(np.nan_to_num(size)) if resource == "gpus" else np.nan_to_num(size).astype(np.int64),
        without=size == 0,
        submitted_s=submitted_s,
        eligible_s=_after_earlier_runs(jobs, submitted_s, eligible_s, ended_s),
        started_s=started_s,
        ended_s=ended_s,
        run_time_s=run_time_s,
        time_limit_s=jobs["time_limit_s"].to_numpy(dtype=np.float64),
        cpus=jobs["cpus"].to_numpy(dtype=np.float64),
        nodes=jobs["nodes"].to_numpy(dtype=np.float64),
        memory_mib=jobs["memory_mib"].to_numpy(dtype=np.float64),
        state=_states(jobs["state"]),
        restart=jobs["restart"].to_numpy(),
        user=_names(jobs["user"]),
        account=_names(jobs["account"]),
        partition=_names(jobs["partition"]),
        name=name,
        stem=stem,
        gpu_type=_gpu_types(jobs),
        has_starts=has_starts,
        repaired=repaired,
        jobs=jobs[[name for name in dict.fromkeys((*KEPT_COLUMNS, *keep)) if name in jobs]],
    )


def share(part: Floats | Flags | float, whole: Floats | Flags | float) -> float | None:
    """Return a ratio of sums, None for a zero denominator."""
    total = float(np.sum(whole))
    return float(np.sum(part)) / total if total > 0 else None


@dataclass(frozen=True, slots=True, eq=False)
class CensoredTimes:
    """Distribution of times, some of them censored.

    A censored time is a lower bound, because it was not complete when last observed.

    Attributes
    ----------
    times_s : float64 array of shape (n,)
        Ascending.
    cumulative_share : float64 array of shape (n,)
        Share that is complete by each time.
    censored : int
        Number of censored times.
    """

    times_s: Floats
    cumulative_share: Floats
    censored: int

    @classmethod
    def from_observations(cls, times_s: ArrayLike, complete: Flags) -> CensoredTimes:
        """Return the distribution of complete and censored times."""
        times_s, n = np.asarray(times_s, dtype=np.float64), len(complete)
        if bool(complete.all()):
            return cls(np.sort(times_s), np.linspace(1 / max(n, 1), 1, n), 0)
        # Of equal times, complete ones count before censored ones.
        order = np.lexsort((~complete, times_s))
        at_risk = np.arange(n, 0, -1)
        cumulative_share: Floats = 1 - np.cumprod(np.where(complete[order], 1 - 1 / at_risk, 1.0), dtype=np.float64)
        return cls(times_s[order], cumulative_share, int((~complete).sum()))

    @property
    def n(self) -> int:
        """Number of times."""
        return len(self.times_s)

    def share_within(self, limits_s: ArrayLike) -> Floats:
        """Return the share of times that are complete by each of the limits."""
        index = np.searchsorted(self.times_s, np.asarray(limits_s, dtype=np.float64), side="right")
        return np.concatenate([[0.0], self.cumulative_share])[index].astype(np.float64)

    def quantile(self, share: float) -> float:
        """Return a quantile of the times, NaN where unknown."""
        index = int(np.searchsorted(self.cumulative_share, share - 1e-12))
        return float(self.times_s[index]) if index < self.n else float("nan")


def _resource(jobs: pd.DataFrame) -> str:
    return "gpus" if float((jobs["gpus"] > 0).mean()) >= LEAST_GPU_JOBS else "cpus"


def _times(jobs: pd.DataFrame, submitted_s: Seconds) -> tuple[Seconds, Seconds, Floats, dict[str, int]]:
    """Return starts, ends and run times, and the number of invalid ones."""
    started_s, ended_s = (
        whole_seconds(jobs["started_at"], otherwise=NEVER_S),
        whole_seconds(jobs["ended_at"], otherwise=NEVER_S),
    )
    run_time_s = jobs["run_time_s"].to_numpy(dtype=np.float64).copy()
    known = np.isfinite(run_time_s)
    # Some histories record only the start or only the end.
    derived = known & (started_s == NEVER_S) & (ended_s < NEVER_S) & (run_time_s > 0)
    started_s[derived] = ended_s[derived] - run_time_s[derived].astype(np.int64)
    open_ended = known & (ended_s == NEVER_S) & (started_s < NEVER_S)
    ended_s[open_ended] = started_s[open_ended] + run_time_s[open_ended].astype(np.int64)
    backwards = (ended_s < started_s) & (started_s < NEVER_S)
    early = (started_s < submitted_s) & ~backwards
    negative = known & (run_time_s < 0)
    run_time_s[backwards | negative] = np.nan
    started_s[backwards] = ended_s[backwards] = NEVER_S
    # A job in a final state has ended, at an unknown time. Otherwise it would count as running to the window's end.
    final = ~jobs["state"].isin([state for state, code in _STATE_CODES.items() if code == NOT_ENDED]).to_numpy()
    lost = (started_s < NEVER_S) & (ended_s == NEVER_S) & final & jobs["state"].notna().to_numpy()
    ended_s[lost] = started_s[lost]
    repaired = {
        "has ended at an unknown time": int(lost.sum()),
        "ends before its start": int(backwards.sum()),
        "starts before its submission": int(early.sum()),
        "has a negative run time": int((negative & ~backwards).sum()),
    }
    # Slurm before 23.02 writes the end also as the start of a job that was cancelled while it waited.
    never_ran = (
        (started_s == ended_s) & (started_s < NEVER_S) & ~lost & (jobs["state"] == JobState.CANCELLED).to_numpy()
    )
    started_s[never_ran] = NEVER_S
    run_time_s[never_ran] = np.nan
    unknown = ~np.isfinite(run_time_s) & (started_s < NEVER_S) & (ended_s < NEVER_S) & ~lost
    run_time_s[unknown] = (ended_s - started_s)[unknown]
    return started_s, ended_s, run_time_s, {problem: count for problem, count in repaired.items() if count}


def follows_run(job_id: pd.Series[Any], submitted_s: Seconds, restart: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the position of the earlier run of each job.

    It is ``MISSING`` where there is none. The id of a job may be used again: a job of its own begins with 0.
    """
    rows = pd.DataFrame({"job": pd.factorize(job_id)[0], "submitted_s": submitted_s, "restart": restart})
    rows = rows.sort_values(["job", "submitted_s", "restart"], kind="stable")
    follows = ((rows["restart"] > 0) & (rows["job"] == rows["job"].shift())).to_numpy()
    before = np.full(len(rows), MISSING, dtype=np.int64)
    position = rows.index.to_numpy()
    before[position[follows]] = position[np.flatnonzero(follows) - 1]
    return before


def _after_earlier_runs(jobs: pd.DataFrame, submitted_s: Seconds, eligible_s: Seconds, ended_s: Seconds) -> Seconds:
    """Return the eligible times of runs, not before the earlier run ended."""
    restart = jobs["restart"].to_numpy()
    if not (restart > 0).any():
        return eligible_s
    before = follows_run(jobs["job_id"], submitted_s, restart)
    follows = (before >= 0) & (ended_s[before] < NEVER_S)
    eligible_s[follows] = np.maximum(eligible_s, ended_s[before])[follows]
    return eligible_s


def _states(states: pd.Series[Any]) -> NDArray[np.int8]:
    codes = [_STATE_CODES.get(JobState(name), OTHER) for name in states.cat.categories]
    return np.array([*codes, UNKNOWN], dtype=np.int8)[states.cat.codes.to_numpy()]


def _names(column: pd.Series[Any]) -> Names:
    codes = column.cat.codes.to_numpy().astype(np.int32)
    return Names(code=codes, values=tuple(str(value) for value in column.cat.categories))


def _gpu_types(jobs: pd.DataFrame) -> Names:
    """Return each job's GPU type, where not recorded the requested one."""
    recorded, requested = _names(jobs["gpu_type"]), jobs["tres_requested"]
    matches = [_GPU_TYPE.search(str(text)) for text in requested.cat.categories]
    if not any(matches):
        return recorded
    values = list(recorded.values)
    values += sorted({match[1] for match in matches if match} - set(values))
    code_of_type = {value: place for place, value in enumerate(values)}
    code_of_text = np.array(
        [*(code_of_type[match[1]] if match else MISSING for match in matches), MISSING], dtype=np.int32
    )
    return Names(
        code=np.where(recorded.known, recorded.code, code_of_text[requested.cat.codes.to_numpy()]), values=tuple(values)
    )


def _job_names(names: pd.Series[Any]) -> tuple[NDArray[np.int32], Names]:
    """Return a number for each job's name, and its words.

    The words are without those that vary from run to run.
    """
    code, distinct = pd.factorize(names)
    stems = [split_words(str(name)) or None for name in distinct]
    stem, values = pd.factorize(np.array([*stems, None], dtype=object))
    words = Names(code=stem[code].astype(np.int32), values=tuple(str(value) for value in values))
    return code.astype(np.int32), words
