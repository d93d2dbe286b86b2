"""Check of forecasts of starts on the last weeks.

The width of later intervals follows from it. At moments of the last weeks the queue is rebuilt from the history,
pending jobs are forecast by what was known then, and the forecasts are compared with the recorded starts. Recorded
priorities are not known: pending jobs have those that the simulated rules give.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.predictions import with_predictions
from helios.app.start_forecast import MINUTE_S, SPARE, WIDER, QueueForecast, calibrated, wait_quantiles
from helios.errors import NoSuchCluster, NotEnoughHistory
from helios.model import NODE_STATES, QUEUE, Snapshot, seconds_of
from helios.model.slurm_site import SlurmSite
from helios.predict.live_predictor import LivePredictor
from helios.warehouse import Warehouse

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

Floats = NDArray[np.float64]


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
