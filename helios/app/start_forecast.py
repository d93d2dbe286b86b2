"""Forecast of when pending jobs start, and its check.

The queue is simulated many times under the site's own rules. Each simulation draws a run time for every running and
pending job from its predicted distribution, and adds future jobs: those of an earlier week of the history, moved to
now.

The check sets the width of later intervals. For random times of the last weeks the queue is rebuilt from the history,
pending jobs are forecast by what was known then, and the forecasts are compared with the recorded starts. Priorities
are not recorded, so pending jobs have those of the simulated rules.
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
from helios.app.slurm_whatif_jobs import slurm_jobs
from helios.errors import HostlistInvalid, NoSuchCluster, NotEnoughHistory
from helios.model import NODE_STATES, QUEUE, Snapshot, seconds_of
from helios.model.nodes import expand
from helios.model.slurm_site import DAY_S, SlurmSite
from helios.predict.live_predictor import LivePredictor
from helios.predict.remaining_time import CHANCES, remaining_run_time
from helios.report.job import EarlierStart, StartForecast
from helios.simulate.slurm.replay import ForwardSimulation, Moment
from helios.units import count_in_words, duration_in_words
from helios.warehouse import Warehouse

DRAWS = 24
"""Simulations of a forecast."""
HORIZONS_S = (DAY_S, 7 * DAY_S)
"""Lengths of simulations, s. The next one is used for those in which a job has not started."""
WEEKS = 8
"""Earlier weeks from which future jobs are taken."""
SAME_USER = 0.5
"""Share of the variance of log run times that jobs of one user have in common."""
MOST_TASKS = 1_000
"""Pending tasks of an array that are simulated."""
WIDER, SPARE, MINUTE_S = 1.2, 0.1, 60.0
"""Default calibration of intervals: a factor, a term added in log time, and the minute added before the log.

From the first half of the forecasts of benchmarks/start_forecast.py, so that 80 % of the second half are covered.
"""
_ENDLESS_S = 1e15
FEWEST_ENDED = 20
"""Ended jobs from which predictions are used rather than time limits."""
UNKNOWN_S = float(DAY_S)
"""Run time of a job without prediction and limit, s."""
FITS = 0.95
"""Share of such jobs that fit into the limit proposed to a user."""
_NEVER_STARTS = ("DependencyNeverSatisfied", "PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "JobHeld")
_CLOSED_STATES = ("DOWN", "ERROR", "FUTURE", "UNKNOWN")
_CLOSED_FLAGS = ("DRAIN", "FAIL", "MAINT", "NOT_RESPONDING", "RESERVED")
NOT_SIMULATED = "it is not simulated"
RUNNING, PENDING, FUTURE = 0, 1, 2
_REQUEST_COLUMNS = [
    "job_id", "restart", "array_job_id", "array_task_id", "user", "account", "qos", "partition", "submitted_at",
    "eligible_at", "time_limit_s", "nodes", "cpus", "gpus", "gpu_type", "memory_mib",
]  # fmt: skip
_QUANTILES = ["p10_s", "p50_s", "p90_s"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


LONG_WAIT_S = 600.0
"""Median wait from which changes of the request are tried, s."""
WORTH_S = 300.0
"""Smallest median gain that is reported, s."""
FEWER_DRAWS = 12
"""Simulations of each change of the request, with the random numbers of the first ones of the forecast."""


CHECK = "start check"
"""Name under which the warehouse keeps the last check."""
FRESH = timedelta(days=8)
"""Age at which a check no longer counts."""
LOOKS_BACK = timedelta(days=21)
"""Period of the check."""
MOMENTS, JOBS_EACH = 24, 4
"""Times of the check, and most jobs at each."""
FEWEST = 30
"""Fewest forecasts for a check."""
PRIOR = 20
"""Weight of the default width, in forecasts of the check."""
COVERS = 0.8
"""Share of starts that intervals shall cover."""
NARROWEST, WIDEST = 0.8, 4.0
"""Bounds of the factor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Starts of jobs in all simulations.

    Attributes
    ----------
    started_s, ended_s : float64 array of shape (n_draws, n_jobs)
        s since the epoch. inf where that is after the end of the simulation.
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
        Columns of ``JOBS``, for future jobs. Only those submitted before the snapshot are used.
    draws : int
        Number of simulations.
    seed : int
        Seed of the random numbers.

    Attributes
    ----------
    now_s : int
        s since the epoch.
    by_limits : bool
        Whether run times are taken from time limits, because the history is too short for predictions.
    notes : tuple of str
        Assumptions, for a person.
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
        if self.by_limits:  # predictions from so few jobs are worse than the limit
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

        A simulation in which a job has not started is repeated with the next of ``HORIZONS_S``.

        Parameters
        ----------
        jobs : sequence of int
            From :meth:`position`.
        changes : mapping of str to float
            Changed columns of ``QUEUE`` of the first of the jobs.
        draws : int, optional
            Number of simulations, all by default.

        Raises
        ------
        NotEnoughHistory
            No job is in a partition of the site.
        """
        positions = np.asarray(jobs, dtype=np.int64)
        started_s = np.full((draws or self._draws, len(positions)), np.inf)
        for horizon_s in HORIZONS_S:
            unfinished = np.flatnonzero(np.isinf(started_s).any(axis=1))
            if not len(unfinished):
                break
            started_s[unfinished] = self._simulate(positions, unfinished, horizon_s, changes or {})
        limit_s = self._queue["time_limit_s"].to_numpy(dtype=np.float64)[positions].copy()
        limit_s[0] = (changes or {}).get("time_limit_s", limit_s[0])
        run_time_s = np.fmin(self._run_time_s[: len(started_s), positions], limit_s)
        return Draws(started_s=started_s, ended_s=started_s + run_time_s)

    def position(self, job_id: str, task: str = "") -> int | None:
        """Return the position of a pending job or task.

        None where it is not simulated.
        """
        rows = np.flatnonzero((self._queue["job_id"] == job_id) & (self._queue["origin"] == PENDING))
        if not len(rows):
            return None
        tasks = self._queue["task"].iloc[rows].to_numpy()
        matching = rows[tasks == task] if task else rows
        return int(matching[0]) if len(matching) else None

    def _draw_run_times(self, random: np.random.Generator) -> Floats:
        """Return run times of the queue's jobs, shape (n_draws, n_jobs), s.

        Draws come in pairs with opposite random numbers, which lowers the variance of means.
        """
        queue, pairs = self._queue, -(-self._draws // 2)
        quantiles = queue[_QUANTILES].to_numpy(dtype=np.float64) - queue["elapsed_s"].to_numpy()[:, None]
        users, user = np.unique(queue["user"].astype("str").to_numpy(dtype=object), return_inverse=True)
        user_noise = random.standard_normal((pairs, len(users)))[:, user] if len(queue) else np.zeros((pairs, 0))
        job_noise = random.standard_normal((pairs, len(queue)))
        noise = math.sqrt(SAME_USER) * user_noise + math.sqrt(1 - SAME_USER) * job_noise
        probabilities = np.clip(ndtr(np.concatenate([noise, -noise])), 1e-4, 1 - 1e-4)
        # Draws 2n and 2n + 1 are a pair.
        order = np.argsort(np.tile(np.arange(pairs), 2), kind="stable")[: self._draws]
        limit_s = queue["time_limit_s"].to_numpy(dtype=np.float64)
        remaining_s = limit_s - queue["elapsed_s"].to_numpy()
        drawn = remaining_run_time(
            quantiles, np.zeros(len(queue)), limit_s=remaining_s, chances=list(probabilities[order])
        ).T
        run_time_s: Floats = np.maximum(
            np.where(np.isnan(drawn), _by_limit(remaining_s), drawn) + queue["elapsed_s"].to_numpy(), 1.0
        )
        return run_time_s

    def _simulate(self, positions: Ints, draws: Ints, horizon_s: int, changes: Mapping[str, float]) -> Floats:
        """Return starts of jobs by draw and position, inf after the horizon."""
        rows = pd.concat([self._queue, *self._future_jobs(horizon_s)], ignore_index=True)
        for column, value in changes.items():
            rows.loc[positions[0], column] = value
        rows = rows.assign(row=np.arange(len(rows)), run_time_s=rows["run_time_s"].fillna(1.0))
        layout = slurm_jobs(rows, self._site, keep_misfits=True)
        jobs = layout.jobs
        running = np.flatnonzero(jobs["origin"] == RUNNING)
        moment = Moment(
            now_s=self.now_s,
            running=running,
            started_s=jobs["started_s"].to_numpy(dtype=np.float64)[running],
            nodes=[nodes if isinstance(nodes, tuple) else () for nodes in jobs["held"].iloc[running]],
            priority=jobs["priority"].to_numpy(dtype=np.float64),
            closed=self._closed,
        )
        simulation = ForwardSimulation(layout.workload, self._site, moment)
        job_of_row = np.full(len(rows), -1)
        job_of_row[jobs["row"].to_numpy()] = np.arange(len(jobs))
        is_simulated = job_of_row[positions] >= 0
        is_simulated[is_simulated] = simulation.fits[job_of_row[positions[is_simulated]]]
        awaited_jobs = job_of_row[positions[is_simulated]]
        origin, week = jobs["origin"].to_numpy(), jobs["week"].to_numpy()
        row, run_time_s = jobs["row"].to_numpy(), jobs["run_time_s"].to_numpy(dtype=np.float64).copy()
        in_queue = origin != FUTURE
        started_s = np.full((len(draws), len(positions)), np.inf)
        for row_of_draw, draw in enumerate(draws):
            run_time_s[in_queue] = self._run_time_s[draw, row[in_queue]]
            drawn_week = draw // 2 % max(len(self._shifts_s), 1)
            is_present = in_queue | (week == drawn_week)
            until_s = self.now_s + horizon_s
            started_s[row_of_draw, is_simulated] = simulation.starts(
                run_time_s, present=is_present, awaited=awaited_jobs, until_s=until_s
            )
        return started_s

    def _future_jobs(self, horizon_s: int) -> list[pd.DataFrame]:
        """Return the jobs of each earlier week, moved to now."""
        parts = []
        submitted_s = seconds_of(self._past["submitted_at"])
        for week, shift_s in enumerate(self._shifts_s):
            for repeat in range(1, -(-horizon_s // shift_s) + 1):
                repeated_s = (repeat - 1) * shift_s  # a shift shorter than the horizon is repeated
                first_s = self.now_s - shift_s
                last_s = min(first_s + horizon_s - repeated_s, self.now_s)
                in_span = self._past[(submitted_s >= first_s) & (submitted_s < last_s)]
                shift = pd.Timedelta(seconds=shift_s * repeat)
                parts.append(
                    in_span.assign(
                        submitted_at=in_span["submitted_at"] + shift,
                        eligible_at=in_span["eligible_at"] + shift,
                        origin=FUTURE,
                        week=week,
                        array_job_id=in_span["array_job_id"].astype("str").where(in_span["array_job_id"].notna()),
                    )
                )
        return [part for part in parts if len(part)]


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
    empty = _no_forecast(snapshot, site, job)
    if empty.problem:
        return empty
    queue = QueueForecast(snapshot, site, history)
    position = queue.position(str(job["job_id"]), task if job["tasks"] > 1 else "")
    if position is None:
        return replace(empty, problem="this task is far down its array" if task else NOT_SIMULATED)
    draws = queue.starts([position])
    found = _forecast_of(empty, queue, job, draws.started_s[:, 0], draws.ended_s[:, 0], wider=wider)
    if found.problem:
        return found
    fitting_s = math.nan if found.by_limits else fitting_limit_s(job)
    waits_s = draws.started_s[:, 0] - queue.now_s
    earlier = _earlier(queue, position, job, waits_s=waits_s, fitting_s=fitting_s, now=found.taken_at)
    return replace(found, fitting_limit_s=fitting_s, earlier=tuple(earlier))


def forecast_starts(
    snapshot: Snapshot, site: SlurmSite, history: pd.DataFrame, jobs: pd.DataFrame, *, wider: float = WIDER
) -> list[StartForecast]:
    """Forecast when several pending jobs start, by the same simulations.

    No changes of their requests are tried.

    Parameters
    ----------
    jobs : DataFrame
        Rows of ``snapshot.pending``. Of an array the first task is forecast.

    Others are as in :func:`forecast_start`.
    """
    rows = [row for _, row in jobs.iterrows()]
    found = [_no_forecast(snapshot, site, job) for job in rows]
    if all(forecast.problem for forecast in found):
        return found
    queue = QueueForecast(snapshot, site, history)
    positions = [
        None if forecast.problem else queue.position(str(job["job_id"]))
        for forecast, job in zip(found, rows, strict=True)
    ]
    simulated = [position for position in positions if position is not None]
    draws = queue.starts(simulated) if simulated else None
    for place, (position, job) in enumerate(zip(positions, rows, strict=True)):
        if draws is not None and position is not None:
            column = simulated.index(position)
            times_s = draws.started_s[:, column], draws.ended_s[:, column]
            found[place] = _forecast_of(found[place], queue, job, *times_s, wider=wider)
        elif not found[place].problem:
            found[place] = replace(found[place], problem=NOT_SIMULATED)
    return found


def _no_forecast(snapshot: Snapshot, site: SlurmSite, job: pd.Series[Any]) -> StartForecast:
    """Return a forecast without times, perhaps with a reason."""
    now, problem = snapshot.taken_at.replace(microsecond=0), never_starts(job)
    if not problem and not {rules.name for rules in site.partitions} & set(str(job["partition"]).split(",")):
        problem = f"the configuration of the cluster has no partition {job['partition']}"
    horizon_at = now + timedelta(seconds=HORIZONS_S[-1])
    return StartForecast(taken_at=now, horizon_at=horizon_at, not_simulated=site.notes, problem=problem)


def _forecast_of(
    empty: StartForecast, queue: QueueForecast, job: pd.Series[Any], started_s: Floats, ended_s: Floats, *, wider: float
) -> StartForecast:
    """Return the forecast of one job from its starts and ends in all simulations."""
    if np.isinf(started_s).all():
        blocked = "in no simulation it starts within a week: are its nodes down, or are there too few for it"
        return replace(empty, draws=len(started_s), problem=blocked)
    raw_s, raw_ends_s = wait_quantiles(started_s - queue.now_s), wait_quantiles(ended_s - queue.now_s)
    calibrated_s = calibrate(raw_s, wider=wider)
    shift_s = np.where(np.isfinite(raw_s), calibrated_s - np.where(np.isfinite(raw_s), raw_s, 0.0), 0.0)
    moments = [
        empty.taken_at + timedelta(seconds=round(float(after_s))) if np.isfinite(after_s) else None
        for after_s in (*calibrated_s, *(raw_ends_s + shift_s))
    ]
    by_limits = queue.by_limits or bool(np.isnan(job["p50_s"]))
    limit_note = ("It rests on time limits, because too little has ended to predict run times.",) if by_limits else ()
    p10_at, p50_at, p90_at, end_p10_at, end_p50_at, end_p90_at = moments
    return replace(
        empty,
        draws=len(started_s),
        p10_at=p10_at,
        p50_at=p50_at,
        p90_at=p90_at,
        end_p10_at=end_p10_at,
        end_p50_at=end_p50_at,
        end_p90_at=end_p90_at,
        by_limits=by_limits,
        notes=(*limit_note, *queue.notes),
    )


def wait_quantiles(waits_s: Floats) -> Floats:
    """Return p10, p50 and p90 of waits in simulations, s.

    Parameters
    ----------
    waits_s : float64 array of shape (n_draws, ...)
        inf for a wait longer than the simulation. Quantiles may then be inf, too.

    Returns
    -------
    float64 array of shape (3, ...)
    """
    quantiles_s: Floats = np.quantile(np.minimum(waits_s, _ENDLESS_S), CHANCES, axis=0, method="weibull")
    quantiles_s[quantiles_s > _ENDLESS_S / 100] = np.inf
    return quantiles_s


def calibrate(quantiles_s: Floats, *, wider: float = WIDER) -> Floats:
    """Return p10, p50 and p90 of waits after calibration.

    Both sides are widened in log time, with an additive minute.

    Parameters
    ----------
    quantiles_s : float64 array of shape (3, ...)
        Quantiles of the simulations, from :func:`wait_quantiles`.
    wider : float
        Factor of the width, from the nightly check where there is one.
    """
    low, middle, high = np.log(np.maximum(quantiles_s, 0.0) + MINUTE_S)
    with np.errstate(invalid="ignore"):  # inf, later than the simulations, stays inf
        first = middle - wider * (middle - low + SPARE)
        last = middle + wider * (high - middle + SPARE)
    first = np.where(np.isinf(middle), low, first)
    last = np.where(np.isinf(high), np.inf, last)
    calibrated_s: Floats = np.maximum(np.exp(np.stack([first, middle, last])) - MINUTE_S, 0.0)
    return calibrated_s


def fitting_limit_s(job: pd.Series[Any]) -> float:
    """Return the time limit that fits 95 % of such jobs, s.

    It is rounded up to ten minutes.
    """
    quantiles = np.array([[job[name] for name in _QUANTILES]], dtype=np.float64)
    longest_s = float(remaining_run_time(quantiles, np.zeros(1), chances=[FITS])[0, 0])
    return math.ceil(longest_s / 600) * 600.0


def closed_nodes(nodes: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which of ``NODE_STATES`` get no new job now."""
    state, flags = nodes["state"].astype("str"), nodes["flags"].astype("str").where(nodes["flags"].notna(), "")
    closed = state.str.startswith(_CLOSED_STATES)
    for flag in _CLOSED_FLAGS:
        closed |= flags.str.contains(flag, regex=False)
    return closed.to_numpy(dtype=np.bool_, na_value=False)


def never_starts(job: pd.Series[Any]) -> str:
    """Return why a pending job never starts in a simulation.

    Empty where it may start.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheck:
    """Forecasts of the last weeks with their outcomes.

    Attributes
    ----------
    forecasts : int
    covered : float
        Share of starts within p10 to p90 of the default width.
    median_error : float
        Median absolute log error of waits, with an additive minute.
    wider : float
        Factor by which later intervals are to be widened.
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
    random = np.random.default_rng(0)
    sampled = random.choice(waited, min(moments, len(waited)), replace=False)
    sampled_s = np.sort(random.uniform(eligible_s[sampled], started_s[sampled]).astype(np.int64))
    predictor = LivePredictor(history, timezone=timezone)
    ended_s, quantiles, truth_s = seconds_of(history["ended_at"]), list[Floats](), list[float]()
    for at_s in sampled_s.tolist():
        snapshot = _queue_at(history, at_s, eligible_s=eligible_s, started_s=started_s, ended_s=ended_s)
        predicted = with_predictions(
            snapshot, partial(predictor.predict, now=snapshot.taken_at, running=snapshot.running)
        )
        started = seconds_of(predicted.pending["begun_at"])
        has_started = np.flatnonzero(started < last_s)
        checked = random.permutation(has_started)[:JOBS_EACH]
        queue = QueueForecast(predicted, site, history[ended_s <= at_s])
        positions = [queue.position(str(predicted.pending["job_id"].iloc[row])) for row in checked]
        simulated = [
            (row, position) for row, position in zip(checked.tolist(), positions, strict=True) if position is not None
        ]
        if simulated:
            waits_s = queue.starts([position for _, position in simulated]).started_s - at_s
            quantiles += list(wait_quantiles(waits_s).T)
            truth_s += [float(started[row]) - at_s for row, _ in simulated]
    if len(truth_s) < FEWEST:
        raise NotEnoughHistory(
            f"Only {len(truth_s)} pending jobs of the last {LOOKS_BACK.days} days could be forecast."
        )
    return compare_forecasts(np.array(quantiles).T, np.array(truth_s))


def compare_forecasts(quantiles_s: Floats, truth_s: Floats) -> StartCheck:
    """Compare forecasts of waits with true ones.

    Parameters
    ----------
    quantiles_s : float64 array of shape (3, n)
        p10, p50 and p90 of the simulations, s.
    truth_s : float64 array of shape (n,)
    """
    low, middle, high = np.log(quantiles_s + MINUTE_S)
    log_truth = np.log(truth_s + MINUTE_S)
    with np.errstate(invalid="ignore"):  # a quantile of inf covers every start after the simulations
        above = np.where(np.isinf(high), 0.0, (log_truth - middle) / (high - middle + SPARE))
        below = np.where(
            np.isinf(middle), np.where(log_truth >= low, 0.0, WIDEST), (middle - log_truth) / (middle - low + SPARE)
        )
    scores = np.where(log_truth > middle, above, below)
    rank = min(1.0, COVERS * (1 + 1 / len(scores)))
    width = float(np.clip(np.quantile(scores, rank), NARROWEST, WIDEST))
    weight = len(scores) / (len(scores) + PRIOR)
    calibrated_s = calibrate(quantiles_s)
    within = (calibrated_s[0] <= truth_s + MINUTE_S) & (truth_s <= calibrated_s[2] + MINUTE_S)
    error = np.abs(np.where(np.isinf(middle), 0.0, middle) - log_truth)
    return StartCheck(
        forecasts=len(scores),
        covered=float(within.mean()),
        median_error=float(np.median(error[np.isfinite(middle)])) if np.isfinite(middle).any() else math.inf,
        wider=math.exp(weight * math.log(width) + (1 - weight) * math.log(WIDER)),
    )


def store_check(warehouse: Warehouse, cluster: str, check: StartCheck, *, at: datetime) -> None:
    """Store the last check of a cluster."""
    entry = {"at": at.isoformat(), "forecasts": check.forecasts, "covered": check.covered, "wider": check.wider}
    warehouse.remember(cluster, CHECK, json.dumps(entry), at=at)


def stored_widening(warehouse: Warehouse, cluster: str, now: datetime) -> float:
    """Return the factor by which intervals are widened.

    It is the default where there is no check, or only an old one.
    """
    try:
        text = warehouse.remembered(cluster, CHECK)
    except NoSuchCluster:
        return WIDER
    entry = json.loads(text) if text else None
    if entry is None or now - datetime.fromisoformat(entry["at"]) > FRESH:
        return WIDER
    return float(entry["wider"])


def _earlier(
    queue: QueueForecast, position: int, job: pd.Series[Any], *, waits_s: Floats, fitting_s: float, now: datetime
) -> Iterator[EarlierStart]:
    """Yield the changes of the request with which the job starts earlier."""
    horizon_s = float(HORIZONS_S[-1])
    before_s = np.minimum(waits_s[:FEWER_DRAWS], horizon_s)
    if np.median(before_s) < LONG_WAIT_S:
        return
    changes: dict[str, dict[str, float]] = {}
    limit_s, gpus, nodes = float(job["time_limit_s"]), float(job["gpus"]), job["nodes"]
    if fitting_s < 0.9 * (limit_s if np.isfinite(limit_s) else np.inf):
        changes[f"a time limit of {duration_in_words(fitting_s)}"] = {"time_limit_s": fitting_s}
    if gpus > 1 and gpus % 2 == 0:
        half = {"gpus": gpus / 2, "cpus": np.ceil(job["cpus"] / 2), "memory_mib": job["memory_mib"] / 2}
        name = count_in_words(gpus / 2, "GPU")
        changes[name] = half | ({"nodes": nodes // 2} if nodes > 1 and nodes % 2 == 0 else {})
    elif gpus == 0 and nodes > 1 and nodes % 2 == 0:
        half = {"nodes": nodes // 2, "cpus": np.ceil(job["cpus"] / 2), "memory_mib": job["memory_mib"] / 2}
        changes[f"{nodes // 2:.0f} nodes" if nodes > 2 else "1 node"] = half
    gains = []
    for change, values in changes.items():
        starts_s = queue.starts([position], changes=values, draws=FEWER_DRAWS).started_s[:, 0]
        after_s = np.minimum(starts_s - queue.now_s, horizon_s)
        gain_s = float(np.median(before_s - after_s))
        if gain_s >= WORTH_S:
            p50_at = now + timedelta(seconds=round(float(np.median(after_s))))
            gains.append(EarlierStart(change=change, p50_at=p50_at, gain_s=gain_s))
    yield from sorted(gains, key=lambda start: -start.gain_s)


def _queue(snapshot: Snapshot, now_s: int) -> pd.DataFrame:
    """Return a row for each job and each pending task."""
    running, pending = snapshot.running, snapshot.pending
    can_start = np.array([not never_starts(row) for _, row in pending.iterrows()], dtype=np.bool_)
    parts = []
    for frame, origin in ((running, RUNNING), (pending[can_start], PENDING)):
        started_s = seconds_of(frame["started_at"]) if origin == RUNNING else np.full(len(frame), np.nan)
        started_s = np.where(np.isfinite(started_s), started_s, now_s) if origin == RUNNING else started_s
        nodes: Any = [_nodes(text) for text in frame["node_list"]] if origin == RUNNING else None
        parts.append(
            frame[[*_REQUEST_COLUMNS, *_QUANTILES, "tasks", "priority"]]
            .astype({name: object for name in _REQUEST_COLUMNS if isinstance(frame[name].dtype, pd.CategoricalDtype)})
            .assign(
                origin=origin,
                week=-1,
                started_s=started_s,
                elapsed_s=np.maximum(now_s - started_s, 0.0) if origin == RUNNING else 0.0,
                held=nodes,
                run_time_s=np.nan,
                task="",
            )
        )
        if origin == RUNNING:
            parts[-1]["priority"] = np.nan
    queue = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    task_counts = queue["tasks"].to_numpy(dtype=np.int64)
    if (task_counts <= 1).all():
        return queue
    tasks = [_tasks(text, count) for text, count in zip(queue["array_task_id"], task_counts, strict=True)]
    rows = queue.loc[np.repeat(queue.index, [len(names) for names in tasks])].reset_index(drop=True)
    names = [name for group in tasks for name in group]
    return rows.assign(
        task=names, array_task_id=[name or own for name, own in zip(names, rows["array_task_id"], strict=True)]
    )


def _queue_at(history: pd.DataFrame, at_s: int, *, eligible_s: Floats, started_s: Floats, ended_s: Floats) -> Snapshot:
    """Return the queue at an earlier time, as recorded.

    ``pending`` has the further column ``begun_at``, the recorded start.
    """
    has_ended = np.isfinite(ended_s) & (ended_s <= at_s)
    is_running = (started_s <= at_s) & ~has_ended
    is_waiting = (eligible_s <= at_s) & ~has_ended & ~(started_s <= at_s)
    # Without a start and an end it is not known whether a job still waited.
    is_waiting &= np.isfinite(started_s) | np.isfinite(ended_s)
    shared = [name for name in history.columns if name in QUEUE.by_name]
    running, waiting = (history.loc[rows, shared].reset_index(drop=True) for rows in (is_running, is_waiting))
    pending = QUEUE.conform(waiting.assign(started_at=pd.Series(pd.NaT, index=waiting.index), node_list=None, tasks=1))
    return Snapshot(
        taken_at=pd.Timestamp(at_s, unit="s", tz="UTC").to_pydatetime(),
        cluster="past",
        pending=pending.assign(begun_at=history.loc[is_waiting, "started_at"].to_numpy()),
        running=QUEUE.conform(running.assign(tasks=1)),
        nodes=NODE_STATES.empty(),
    )


def _tasks(text: object, count: int) -> list[str]:
    """Return a pending array's tasks as text, ``[""]`` for another job."""
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
    ended = history[recent]
    predicted_s = queue["p50_s"].to_numpy(dtype=np.float64)
    limits = _by_limit(queue["time_limit_s"].to_numpy(dtype=np.float64))
    queued = queue[_REQUEST_COLUMNS].assign(run_time_s=np.where(np.isnan(predicted_s), limits, predicted_s))
    parts = [ended[[*_REQUEST_COLUMNS, "run_time_s"]], queued]
    past = pd.concat([part.astype(object) for part in parts if len(part)] or parts, ignore_index=True)
    past_jobs = past.drop_duplicates(["job_id", "submitted_at", "array_task_id"])
    return past_jobs.astype(
        {name: queue[name].dtype for name in ("submitted_at", "eligible_at")} | {"run_time_s": np.float64}
    ).sort_values("submitted_at", kind="stable")


def _shifts(past: pd.DataFrame, now_s: int) -> tuple[int, ...]:
    """Return how far each earlier week is moved, s.

    Days are moved where there is no whole week.
    """
    if past.empty:
        return ()
    first_s = float(seconds_of(past["submitted_at"]).min()) - DAY_S / 24  # jobs of an hour at most are missing
    for step_s, max_shifts in ((7 * DAY_S, WEEKS), (DAY_S, 6)):
        shifts = [step_s * n for n in range(1, max_shifts + 1) if now_s - step_s * n >= first_s]
        if shifts:
            return tuple(shifts)
    return ()
