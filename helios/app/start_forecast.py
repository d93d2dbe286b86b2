"""Forecast of when pending jobs start, and its check on the last weeks.

The queue is simulated many times under the site's own rules. Each simulation draws a run time for every running and
pending job from its predicted distribution, and adds jobs to come: those of an earlier week of the history, moved to
now.

The width of later intervals follows from the check. At moments of the last weeks the queue is rebuilt from the history,
pending jobs are forecast by what was known then, and the forecasts are compared with the recorded starts. Recorded
priorities are not known: pending jobs have those that the simulated rules give.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from ClusterShell.RangeSet import RangeSet, RangeSetException
from numpy.typing import NDArray
from scipy.special import ndtr

from helios.app.predictions import with_predictions
from helios.app.slurm_whatif import slurm_jobs
from helios.errors import HostlistInvalid, NoSuchCluster, NotEnoughHistory
from helios.model import NODE_STATES, QUEUE, Snapshot, seconds_of
from helios.model.nodes import expand
from helios.model.slurm_site import DAY_S, SlurmSite
from helios.predict.live_predictor import CHANCES, LivePredictor, remaining_run_time
from helios.report.job import EarlierStart, StartForecast
from helios.simulate.slurm.replay import ForwardSimulation, Moment
from helios.units import duration_in_words
from helios.warehouse import Warehouse

DRAWS = 24
"""Simulations of a forecast."""
HORIZONS_S = (DAY_S, 7 * DAY_S)
"""How far simulations go, s: the next where a job has not started in all of them."""
WEEKS = 8
"""Earlier weeks that jobs to come are taken from."""
SAME_USER = 0.5
"""Share of the variance of log run times that jobs of one user have in common."""
MOST_TASKS = 1_000
"""Pending tasks of an array that are simulated."""
WIDER, SPARE, MINUTE_S = 1.2, 0.1, 60.0
"""By how much intervals are widened: a factor, and what is added to the log of a wait and a minute.

From the first half of the forecasts of benchmarks/start_forecast.py, so that 80 % of the second halves are covered.
"""
_ENDLESS_S = 1e15
FEWEST_ENDED = 20
"""Ended jobs from which predictions are used rather than time limits."""
UNKNOWN_S = float(DAY_S)
"""Run time of a job without prediction and limit, s."""
FITS = 0.95
"""Share of jobs of its kind that the limit proposed to a user fits."""
_NEVER_STARTS = ("DependencyNeverSatisfied", "PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "JobHeld")
_CLOSED_STATES = ("DOWN", "ERROR", "FUTURE", "UNKNOWN")
_CLOSED_FLAGS = ("DRAIN", "FAIL", "MAINT", "NOT_RESPONDING", "RESERVED")
RUNNING, WAITING, TO_COME = 0, 1, 2
_ASKED = [
    "job_id", "restart", "array_job_id", "array_task_id", "user", "account", "qos", "partition", "submitted_at",
    "eligible_at", "time_limit_s", "nodes", "cpus", "gpus", "gpu_type", "memory_mib",
]  # fmt: skip
_QUANTILES = ["p10_s", "p50_s", "p90_s"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Starts of jobs in all simulations.

    Attributes
    ----------
    started_s, ended_s : float64 array of shape (n_draws, n_jobs)
        s since the epoch. inf where that is not by the horizon.
    """

    started_s: Floats
    ended_s: Floats


class QueueForecast:
    """Forecasts of one snapshot's pending jobs.

    Parameters
    ----------
    snapshot : Snapshot
        With predictions.
    site : SlurmSite
    history : DataFrame
        Columns of ``JOBS``, for the jobs to come; only those submitted before the snapshot are used.
    draws : int
        Number of simulations.
    seed : int
        Seed of the random numbers.

    Attributes
    ----------
    now_s : int
        s since the epoch.
    by_limits : bool
        The history is too short for predictions: run times are taken from time limits.
    notes : tuple of str
        What is assumed, for a person.
    """

    def __init__(
        self, snapshot: Snapshot, site: SlurmSite, history: pd.DataFrame, *, draws: int = DRAWS, seed: int = 0
    ) -> None:
        self._site, self._draws = site, draws
        self.now_s = math.floor(snapshot.taken_at.timestamp())
        self._closed = tuple(snapshot.nodes["name"][closed_nodes(snapshot.nodes)])
        self._queue = _queue(snapshot, self.now_s)
        ended = history["run_time_s"].notna().to_numpy() & (seconds_of(history["submitted_at"]) < self.now_s)
        self.by_limits = int(ended.sum()) < FEWEST_ENDED
        if self.by_limits:  # what is predicted from next to nothing is worth less than the limit
            self._queue[_QUANTILES] = np.nan
        self._run_time_s = self._draw_run_times(np.random.default_rng(seed))
        self._past = _past(history, self._queue, self.now_s)
        self._shifts_s = _shifts(self._past, self.now_s)
        self.notes: tuple[str, ...] = ()
        if not self._shifts_s:
            self.notes = ("No jobs to come are assumed, because the history is too short: it may start later.",)

    def starts(
        self,
        jobs: Sequence[int],
        *,
        changes: Mapping[str, float] | None = None,
        draws: int | None = None,
    ) -> Draws:
        """Return the starts of pending jobs.

        The simulations go on to the next of ``HORIZONS_S`` where a job has not started in all of them.

        Parameters
        ----------
        jobs : sequence of int
            From :meth:`position`.
        changes : mapping of str to float
            Columns of ``QUEUE`` that the first of the jobs asks for otherwise.
        draws : int, optional
            Only so many simulations, the first ones. None for all.

        Raises
        ------
        NotEnoughHistory
            None of the jobs is of a partition of the site.
        """
        asked = np.asarray(jobs, dtype=np.int64)
        started_s = np.full((draws or self._draws, len(asked)), np.inf)
        for horizon_s in HORIZONS_S:
            left = np.flatnonzero(np.isinf(started_s).any(axis=1))
            if not len(left):
                break
            started_s[left] = self._simulate(asked, left, horizon_s, changes or {})
        limit_s = self._queue["time_limit_s"].to_numpy(dtype=np.float64)[asked].copy()
        limit_s[0] = (changes or {}).get("time_limit_s", limit_s[0])
        run_time_s = np.fmin(self._run_time_s[: len(started_s), asked], limit_s)
        return Draws(started_s=started_s, ended_s=started_s + run_time_s)

    def position(self, job_id: str, task: str = "") -> int | None:
        """Return the position of a pending job or task.

        None where it is not simulated.
        """
        rows = np.flatnonzero((self._queue["job_id"] == job_id) & (self._queue["origin"] == WAITING))
        if not len(rows):
            return None
        tasks = self._queue["task"].iloc[rows].to_numpy()
        named = rows[tasks == task] if task else rows
        return int(named[0]) if len(named) else None

    def _draw_run_times(self, chance: np.random.Generator) -> Floats:
        """Return run times of the queue's jobs, shape (n_draws, n_jobs), s.

        Draws come in pairs of opposite luck.
        """
        queue, pairs = self._queue, -(-self._draws // 2)
        quantiles = queue[_QUANTILES].to_numpy(dtype=np.float64) - queue["elapsed_s"].to_numpy()[:, None]
        users, user = np.unique(queue["user"].astype("str").to_numpy(dtype=object), return_inverse=True)
        common = chance.standard_normal((pairs, len(users)))[:, user] if len(queue) else np.zeros((pairs, 0))
        own = chance.standard_normal((pairs, len(queue)))
        luck = math.sqrt(SAME_USER) * common + math.sqrt(1 - SAME_USER) * own
        chances = np.clip(ndtr(np.concatenate([luck, -luck])), 1e-4, 1 - 1e-4)
        # Draw 2n and draw 2n + 1 are a pair.
        order = np.argsort(np.tile(np.arange(pairs), 2), kind="stable")[: self._draws]
        limit_s = queue["time_limit_s"].to_numpy(dtype=np.float64)
        left_s = limit_s - queue["elapsed_s"].to_numpy()
        drawn = remaining_run_time(quantiles, np.zeros(len(queue)), limit_s=left_s, chances=list(chances[order])).T
        whole_s: Floats = np.maximum(
            np.where(np.isnan(drawn), _by_limit(left_s), drawn) + queue["elapsed_s"].to_numpy(), 1.0
        )
        return whole_s

    def _simulate(self, asked: Ints, draws: Ints, horizon_s: int, changes: Mapping[str, float]) -> Floats:
        rows = pd.concat([self._queue, *self._to_come(horizon_s)], ignore_index=True)
        for column, value in changes.items():
            rows.loc[asked[0], column] = value
        rows = rows.assign(row=np.arange(len(rows)), run_time_s=rows["run_time_s"].fillna(1.0))
        laid = slurm_jobs(rows, self._site, keep_misfits=True)
        jobs = laid.jobs
        running = np.flatnonzero(jobs["origin"] == RUNNING)
        moment = Moment(
            now_s=self.now_s,
            running=running,
            started_s=jobs["started_s"].to_numpy(dtype=np.float64)[running],
            nodes=[nodes if isinstance(nodes, tuple) else () for nodes in jobs["held"].iloc[running]],
            priority=jobs["priority"].to_numpy(dtype=np.float64),
            closed=self._closed,
        )
        future = ForwardSimulation(laid.workload, self._site, moment)
        place = np.full(len(rows), -1)
        place[jobs["row"].to_numpy()] = np.arange(len(jobs))
        there = place[asked] >= 0
        there[there] = future.fits[place[asked[there]]]
        awaited = place[asked[there]]
        origin, week = jobs["origin"].to_numpy(), jobs["week"].to_numpy()
        row, run_time_s = jobs["row"].to_numpy(), jobs["run_time_s"].to_numpy(dtype=np.float64).copy()
        queued = origin != TO_COME
        started_s = np.full((len(draws), len(asked)), np.inf)
        for at, draw in enumerate(draws):
            run_time_s[queued] = self._run_time_s[draw, row[queued]]
            its_week = draw // 2 % max(len(self._shifts_s), 1)
            present = queued | (week == its_week)
            until_s = self.now_s + horizon_s
            started_s[at, there] = future.starts(run_time_s, present=present, awaited=awaited, until_s=until_s)
        return started_s

    def _to_come(self, horizon_s: int) -> list[pd.DataFrame]:
        """Return the jobs to come of each earlier week, moved to now."""
        found = []
        submitted_s = seconds_of(self._past["submitted_at"])
        for week, shift_s in enumerate(self._shifts_s):
            for times in range(1, -(-horizon_s // shift_s) + 1):
                ahead_s = (times - 1) * shift_s  # a stretch shorter than the horizon is repeated
                first_s = self.now_s - shift_s
                last_s = min(first_s + horizon_s - ahead_s, self.now_s)
                chosen = self._past[(submitted_s >= first_s) & (submitted_s < last_s)]
                moved = pd.Timedelta(seconds=shift_s * times)
                found.append(
                    chosen.assign(
                        submitted_at=chosen["submitted_at"] + moved,
                        eligible_at=chosen["eligible_at"] + moved,
                        origin=TO_COME,
                        week=week,
                        array_job_id=chosen["array_job_id"].astype("str").where(chosen["array_job_id"].notna()),
                    )
                )
        return [part for part in found if len(part)]


LONG_WAIT_S = 600.0
"""Median wait from which it is tried what would make a job start earlier, s."""
WORTH_S = 300.0
"""Least median gain that is worth telling, s."""
FEWER_DRAWS = 12
"""Simulations of each change that is tried; the same as the first of the forecast."""


def forecast_start(
    snapshot: Snapshot,
    site: SlurmSite,
    history: pd.DataFrame,
    job: pd.Series[Any],
    *,
    task: str = "",
    wider: float = WIDER,
) -> StartForecast:
    """Forecast when a pending job starts.

    The forecast names changes of the request with which it would start earlier.

    Parameters
    ----------
    snapshot : Snapshot
        With predictions.
    history : DataFrame
        Columns of ``JOBS``.
    job : Series
        Its row of ``snapshot.pending``.
    task : str
        Task of a pending array. Empty for its first one.
    wider : float
        Factor by which intervals are widened.
    """
    now = snapshot.taken_at.replace(microsecond=0)
    empty = StartForecast(taken_at=now, horizon_at=now + timedelta(seconds=HORIZONS_S[-1]), not_simulated=site.notes)
    if problem := never_starts(job):
        return replace(empty, problem=problem)
    known = {rules.name for rules in site.partitions}
    if not known & set(str(job["partition"]).split(",")):
        return replace(empty, problem=f"the configuration of the cluster has no partition {job['partition']}")
    queue = QueueForecast(snapshot, site, history)
    position = queue.position(str(job["job_id"]), task if job["tasks"] > 1 else "")
    if position is None:
        return replace(empty, problem="this task is far down its array" if task else "it is not simulated")
    draws = queue.starts([position])
    if np.isinf(draws.started_s).all():
        blocked = "in no simulation it starts within a week: are its nodes down, or are there too few for it"
        return replace(empty, draws=len(draws.started_s), problem=blocked)
    waits_s, ends_s = draws.started_s[:, 0] - queue.now_s, draws.ended_s[:, 0] - queue.now_s
    raw_s, raw_ends_s = wait_quantiles(waits_s), wait_quantiles(ends_s)
    found_s = calibrated(raw_s, wider=wider)
    shift_s = np.where(np.isfinite(raw_s), found_s - np.where(np.isfinite(raw_s), raw_s, 0.0), 0.0)
    moments = [
        now + timedelta(seconds=round(float(after_s))) if np.isfinite(after_s) else None
        for after_s in (*found_s, *(raw_ends_s + shift_s))
    ]
    by_limits = queue.by_limits or bool(np.isnan(job["p50_s"]))
    fitting_s = math.nan if by_limits else fitting_limit_s(job)
    limits = ("It rests on time limits, because too little has ended to predict run times.",) if by_limits else ()
    p10_at, p50_at, p90_at, end_p10_at, end_p50_at, end_p90_at = moments
    return replace(
        empty,
        draws=len(waits_s),
        p10_at=p10_at,
        p50_at=p50_at,
        p90_at=p90_at,
        end_p10_at=end_p10_at,
        end_p50_at=end_p50_at,
        end_p90_at=end_p90_at,
        by_limits=by_limits,
        fitting_limit_s=fitting_s,
        earlier=tuple(_earlier(queue, position, job, waits_s=waits_s, fitting_s=fitting_s, now=now)),
        notes=(*limits, *queue.notes),
    )


def wait_quantiles(waits_s: Floats) -> Floats:
    """Return p10, p50 and p90 of waits in simulations, s.

    Parameters
    ----------
    waits_s : float64 array of shape (n_draws, ...)
        inf for one longer than the simulations, whose quantile is inf too.

    Returns
    -------
    float64 array of shape (3, ...)
    """
    found: Floats = np.quantile(np.minimum(waits_s, _ENDLESS_S), CHANCES, axis=0, method="weibull")
    found[found > _ENDLESS_S / 100] = np.inf
    return found


def calibrated(quantiles_s: Floats, *, wider: float = WIDER) -> Floats:
    """Return p10, p50 and p90 of waits after calibration.

    Both sides are widened in log time, with an additive minute.

    Parameters
    ----------
    quantiles_s : float64 array of shape (3, ...)
        Quantiles of the simulations, from :func:`wait_quantiles`.
    wider : float
        The factor; that of the site where the nightly check found one.
    """
    low, middle, high = np.log(np.maximum(quantiles_s, 0.0) + MINUTE_S)
    with np.errstate(invalid="ignore"):  # what is later than the simulations stays so
        first = middle - wider * (middle - low + SPARE)
        last = middle + wider * (high - middle + SPARE)
    first = np.where(np.isinf(middle), low, first)
    last = np.where(np.isinf(high), np.inf, last)
    found: Floats = np.maximum(np.exp(np.stack([first, middle, last])) - MINUTE_S, 0.0)
    return found


def fitting_limit_s(job: pd.Series[Any]) -> float:
    """Return the time limit that fits 95 % of such jobs, s.

    It is whole ten minutes.
    """
    quantiles = np.array([[job[name] for name in _QUANTILES]], dtype=np.float64)
    longest_s = float(remaining_run_time(quantiles, np.zeros(1), chances=[FITS])[0, 0])
    return math.ceil(longest_s / 600) * 600.0


def _earlier(
    queue: QueueForecast, position: int, job: pd.Series[Any], *, waits_s: Floats, fitting_s: float, now: datetime
) -> Iterator[EarlierStart]:
    """Yield the changes of the request with which the job starts earlier."""
    most_s = float(HORIZONS_S[-1])
    before_s = np.minimum(waits_s[:FEWER_DRAWS], most_s)
    if np.median(before_s) < LONG_WAIT_S:
        return
    tried: dict[str, dict[str, float]] = {}
    limit_s, gpus, nodes = float(job["time_limit_s"]), int(job["gpus"]), job["nodes"]
    if fitting_s < 0.9 * (limit_s if np.isfinite(limit_s) else np.inf):
        tried[f"a time limit of {duration_in_words(fitting_s)}"] = {"time_limit_s": fitting_s}
    if gpus > 1 and gpus % 2 == 0:
        half = {"gpus": gpus // 2, "cpus": np.ceil(job["cpus"] / 2), "memory_mib": job["memory_mib"] / 2}
        name = f"{gpus // 2} GPUs" if gpus > 2 else "1 GPU"
        tried[name] = half | ({"nodes": nodes // 2} if nodes > 1 and nodes % 2 == 0 else {})
    elif gpus == 0 and nodes > 1 and nodes % 2 == 0:
        half = {"nodes": nodes // 2, "cpus": np.ceil(job["cpus"] / 2), "memory_mib": job["memory_mib"] / 2}
        tried[f"{nodes // 2:.0f} nodes" if nodes > 2 else "1 node"] = half
    found = []
    for change, values in tried.items():
        starts_s = queue.starts([position], changes=values, draws=FEWER_DRAWS).started_s[:, 0]
        after_s = np.minimum(starts_s - queue.now_s, most_s)
        gain_s = float(np.median(before_s - after_s))
        if gain_s >= WORTH_S:
            p50_at = now + timedelta(seconds=round(float(np.median(after_s))))
            found.append(EarlierStart(change=change, p50_at=p50_at, gain_s=gain_s))
    yield from sorted(found, key=lambda way: -way.gain_s)


def closed_nodes(nodes: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which of ``NODE_STATES`` get no new job now."""
    state, flags = nodes["state"].astype("str"), nodes["flags"].astype("str").where(nodes["flags"].notna(), "")
    closed = state.str.startswith(_CLOSED_STATES)
    for flag in _CLOSED_FLAGS:
        closed |= flags.str.contains(flag, regex=False)
    return closed.to_numpy(dtype=np.bool_, na_value=False)


def never_starts(job: pd.Series[Any]) -> str:
    """Return why no simulation can say when a pending job starts.

    Empty where one can.
    """
    reason, excluded = str(job["reason"]), job["excluded_reason"]
    if job["priority"] == 0 or reason.startswith("JobHeld"):
        return "it is held"
    if reason == "Dependency":
        return "it waits for another job that it depends on"
    if reason.startswith(_NEVER_STARTS):
        return f"Slurm says {reason}"
    if isinstance(excluded, str) and "reservation" in excluded:
        return excluded
    return ""


def _queue(snapshot: Snapshot, now_s: int) -> pd.DataFrame:
    """Return a row for each job and each pending task."""
    running, pending = snapshot.running, snapshot.pending
    waits = np.array([not never_starts(row) for _, row in pending.iterrows()], dtype=np.bool_)
    parts = []
    for frame, origin in ((running, RUNNING), (pending[waits], WAITING)):
        started_s = seconds_of(frame["started_at"]) if origin == RUNNING else np.full(len(frame), np.nan)
        started_s = np.where(np.isfinite(started_s), started_s, now_s) if origin == RUNNING else started_s
        held: Any = [_nodes(text) for text in frame["node_list"]] if origin == RUNNING else None
        parts.append(
            frame[[*_ASKED, *_QUANTILES, "tasks", "priority"]]
            .astype({name: object for name in _ASKED if isinstance(frame[name].dtype, pd.CategoricalDtype)})
            .assign(
                origin=origin,
                week=-1,
                started_s=started_s,
                elapsed_s=np.maximum(now_s - started_s, 0.0) if origin == RUNNING else 0.0,
                held=held,
                run_time_s=np.nan,
                task="",
            )
        )
        if origin == RUNNING:
            parts[-1]["priority"] = np.nan
    queue = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    many = queue["tasks"].to_numpy(dtype=np.int64)
    if (many <= 1).all():
        return queue
    tasks = [_tasks(text, count) for text, count in zip(queue["array_task_id"], many, strict=True)]
    spread = queue.loc[np.repeat(queue.index, [len(names) for names in tasks])].reset_index(drop=True)
    names = [name for group in tasks for name in group]
    return spread.assign(
        task=names, array_task_id=[name or own for name, own in zip(names, spread["array_task_id"], strict=True)]
    )


def _tasks(text: object, count: int) -> list[str]:
    """Return the tasks of a pending record, as text.

    ``[""]`` where it is no array.
    """
    if count <= 1:
        return [str(text)] if isinstance(text, str) else [""]
    try:
        numbers = [str(number) for number in RangeSet(str(text).partition("%")[0])]
    except (RangeSetException, ValueError):
        numbers = [str(number) for number in range(count)]
    return numbers[:MOST_TASKS]


def _nodes(text: object) -> tuple[str, ...]:
    try:
        return expand(str(text)) if isinstance(text, str) else ()
    except HostlistInvalid:
        return ()


def _by_limit(limit_s: Floats) -> Floats:
    return np.where(np.isfinite(limit_s), np.maximum(limit_s, 1.0), UNKNOWN_S)


def _past(history: pd.DataFrame, queue: pd.DataFrame, now_s: int) -> pd.DataFrame:
    """Return the jobs submitted before now, with known run times."""
    submitted_s = seconds_of(history["submitted_at"])
    earliest_s = now_s - WEEKS * 7 * DAY_S - 1
    recent = (submitted_s < now_s) & (submitted_s >= earliest_s) & history["run_time_s"].notna().to_numpy()
    known = history[recent]
    guess = queue["p50_s"].to_numpy(dtype=np.float64)
    limits = _by_limit(queue["time_limit_s"].to_numpy(dtype=np.float64))
    now_queued = queue[_ASKED].assign(run_time_s=np.where(np.isnan(guess), limits, guess))
    parts = [known[[*_ASKED, "run_time_s"]], now_queued]
    past = pd.concat([part.astype(object) for part in parts if len(part)] or parts, ignore_index=True)
    fresh = past.drop_duplicates(["job_id", "submitted_at", "array_task_id"])
    return fresh.astype(
        {name: queue[name].dtype for name in ("submitted_at", "eligible_at")} | {"run_time_s": np.float64}
    ).sort_values("submitted_at", kind="stable")


def _shifts(past: pd.DataFrame, now_s: int) -> tuple[int, ...]:
    """Return by how much earlier weeks are moved, s.

    Days where there is no whole week.
    """
    if past.empty:
        return ()
    first_s = float(seconds_of(past["submitted_at"]).min()) - DAY_S / 24  # jobs of an hour at most are missing
    for step_s, most in ((7 * DAY_S, WEEKS), (DAY_S, 6)):
        shifts = [step_s * n for n in range(1, most + 1) if now_s - step_s * n >= first_s]
        if shifts:
            return tuple(shifts)
    return ()


CHECK = "start check"
"""Name under which the warehouse keeps the last check."""
FRESH = timedelta(days=8)
"""Age at which a check no longer counts."""
LOOKS_BACK = timedelta(days=21)
MOMENTS, JOBS_EACH = 24, 4
FEWEST = 30
"""Forecasts from which a check says anything."""
PRIOR = 20
"""Forecasts that the usual width counts for beside those of the check."""
COVERS = 0.8
NARROWEST, WIDEST = 0.8, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheck:
    """Forecasts of the last weeks with their outcomes.

    Attributes
    ----------
    forecasts : int
    covered : float
        Share of starts within p10 to p90 as wide as usual.
    median_error : float
        Median absolute log error of waits, with an additive minute.
    wider : float
        By how much intervals are to be widened from now on.
    """

    forecasts: int
    covered: float
    median_error: float
    wider: float

    def line(self) -> str:
        """Return the check in one line."""
        return (
            f"{self.forecasts} starts forecast anew: {self.covered:.0%} within their interval, median off by a factor "
            f"of {math.exp(self.median_error):.1f}; intervals are widened by {self.wider:.2f}"
        )


def check_starts(
    history: pd.DataFrame, site: SlurmSite, *, now: datetime, timezone: str = "UTC", moments: int = MOMENTS
) -> StartCheck:
    """Forecast jobs of the last weeks again, and compare with their starts.

    Parameters
    ----------
    history : DataFrame
        Columns of ``JOBS``, in submission order.

    Raises
    ------
    NotEnoughHistory
        Too few jobs waited in the last weeks, or started since.
    """
    submitted_s, started_s = (seconds_of(history[name]) for name in ("submitted_at", "started_at"))
    eligible_s = np.fmax(seconds_of(history["eligible_at"]), submitted_s)
    first_s, last_s = (now - LOOKS_BACK).timestamp(), now.timestamp()
    waited = np.flatnonzero((started_s - eligible_s > MINUTE_S) & (eligible_s >= first_s) & (started_s < last_s))
    if not len(waited):
        raise NotEnoughHistory(f"No job of the last {LOOKS_BACK.days} days waited.")
    chance = np.random.default_rng(0)
    chosen = chance.choice(waited, min(moments, len(waited)), replace=False)
    moment_s = np.sort(chance.uniform(eligible_s[chosen], started_s[chosen]).astype(np.int64))
    predictor = LivePredictor(history, timezone=timezone)
    ended_s, quantiles, truth_s = seconds_of(history["ended_at"]), list[Floats](), list[float]()
    for at_s in moment_s.tolist():
        snapshot = _queue_at(history, at_s, eligible_s=eligible_s, started_s=started_s, ended_s=ended_s)
        predicted = with_predictions(
            snapshot, partial(predictor.predict, now=snapshot.taken_at, running=snapshot.running)
        )
        started = seconds_of(predicted.pending["begun_at"])
        known = np.flatnonzero(started < last_s)
        asked = chance.permutation(known)[:JOBS_EACH]
        queue = QueueForecast(predicted, site, history[ended_s <= at_s])
        places = [queue.position(str(predicted.pending["job_id"].iloc[row])) for row in asked]
        waiting = [(row, place) for row, place in zip(asked.tolist(), places, strict=True) if place is not None]
        if waiting:
            waits_s = queue.starts([place for _, place in waiting]).started_s - at_s
            quantiles += list(wait_quantiles(waits_s).T)
            truth_s += [float(started[row]) - at_s for row, _ in waiting]
    if len(truth_s) < FEWEST:
        raise NotEnoughHistory(
            f"Only {len(truth_s)} pending jobs of the last {LOOKS_BACK.days} days could be forecast."
        )
    return compared(np.array(quantiles).T, np.array(truth_s))


def compared(quantiles_s: Floats, truth_s: Floats) -> StartCheck:
    """Compare forecasts of waits with true ones.

    Parameters
    ----------
    quantiles_s : float64 array of shape (3, n)
        p10, p50 and p90 of the simulations, s.
    truth_s : float64 array of shape (n,)
    """
    low, middle, high = np.log(quantiles_s + MINUTE_S)
    true = np.log(truth_s + MINUTE_S)
    with np.errstate(invalid="ignore"):  # what is later than the simulations is covered by what is later
        above = np.where(np.isinf(high), 0.0, (true - middle) / (high - middle + SPARE))
        below = np.where(np.isinf(middle), np.where(true >= low, 0.0, WIDEST), (middle - true) / (middle - low + SPARE))
    scores = np.where(true > middle, above, below)
    rank = min(1.0, COVERS * (1 + 1 / len(scores)))
    own = float(np.clip(np.quantile(scores, rank), NARROWEST, WIDEST))
    weight = len(scores) / (len(scores) + PRIOR)
    usual = calibrated(quantiles_s)
    within = (usual[0] <= truth_s + MINUTE_S) & (truth_s <= usual[2] + MINUTE_S)
    error = np.abs(np.where(np.isinf(middle), 0.0, middle) - true)
    return StartCheck(
        forecasts=len(scores),
        covered=float(within.mean()),
        median_error=float(np.median(error[np.isfinite(middle)])) if np.isfinite(middle).any() else math.inf,
        wider=math.exp(weight * math.log(own) + (1 - weight) * math.log(WIDER)),
    )


def store_check(warehouse: Warehouse, cluster: str, check: StartCheck, *, at: datetime) -> None:
    """Keep the last check of a cluster."""
    entry = {"at": at.isoformat(), "forecasts": check.forecasts, "covered": check.covered, "wider": check.wider}
    warehouse.remember(cluster, CHECK, json.dumps(entry), at=at)


def stored_widening(warehouse: Warehouse, cluster: str, now: datetime) -> float:
    """Return by how much intervals are to be widened.

    The usual width where no check is kept, or an old one.
    """
    try:
        text = warehouse.remembered(cluster, CHECK)
    except NoSuchCluster:
        return WIDER
    entry = json.loads(text) if text else None
    if entry is None or now - datetime.fromisoformat(entry["at"]) > FRESH:
        return WIDER
    return float(entry["wider"])


def _queue_at(history: pd.DataFrame, at_s: int, *, eligible_s: Floats, started_s: Floats, ended_s: Floats) -> Snapshot:
    """Return the queue of an earlier moment, as recorded.

    ``pending`` has the further column ``begun_at``, the recorded start.
    """
    gone = np.isfinite(ended_s) & (ended_s <= at_s)
    runs = (started_s <= at_s) & ~gone
    waits = (eligible_s <= at_s) & ~gone & ~(started_s <= at_s)
    # Without a start and an end nobody knows whether it still waited.
    waits &= np.isfinite(started_s) | np.isfinite(ended_s)
    shared = [name for name in history.columns if name in QUEUE.by_name]
    running, waiting = (history.loc[rows, shared].reset_index(drop=True) for rows in (runs, waits))
    pending = QUEUE.conform(waiting.assign(started_at=pd.Series(pd.NaT, index=waiting.index), node_list=None, tasks=1))
    return Snapshot(
        taken_at=pd.Timestamp(at_s, unit="s", tz="UTC").to_pydatetime(),
        cluster="past",
        pending=pending.assign(begun_at=history.loc[waits, "started_at"].to_numpy()),
        running=QUEUE.conform(running.assign(tasks=1)),
        nodes=NODE_STATES.empty(),
    )
