"""Predictions for a live queue: what a model, or shrinkage alone, makes of jobs that wait now."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from helios.model import JOBS, PREDICTIONS, QUEUE, in_submission_order

if TYPE_CHECKING:
    from helios.predict.duration import DurationModel

_SHARED = [name for name in JOBS.names if name in QUEUE.by_name]


def predict_queue(
    pending: pd.DataFrame,
    *,
    history: pd.DataFrame,
    model: DurationModel | None,
    now: datetime,
    running: pd.DataFrame | None = None,
    timezone: str = "UTC",
) -> pd.DataFrame:
    """Predict the run times of jobs as if they were submitted now: what ended while they waited counts.

    Parameters
    ----------
    pending : DataFrame
        Columns of ``QUEUE``. An array's record is predicted as one of its tasks.
    history : DataFrame
        Columns of ``JOBS``, in submission order; only those that ended before ``now`` teach.
    model : DurationModel, optional
        None: shrinkage alone, which serves from the first job.
    running : DataFrame, optional
        Columns of ``QUEUE``: what users have running is a feature.

    Returns
    -------
    DataFrame
        Columns of ``PREDICTIONS``, one row for each of ``pending``, with its index.
    """
    from helios.predict.online import OnlinePredictor  # noqa: PLC0415 - who knows this module need not predict (numba)

    if pending.empty:
        return PREDICTIONS.empty()
    moment = pd.Timestamp(now).floor("s")
    known = history[history["ended_at"].notna() & (history["submitted_at"] < moment)]
    if running is not None and len(running):
        unended = _as_jobs(running).assign(run_time_s=np.nan)
        known = in_submission_order(JOBS.conform(pd.concat([known, unended[unended["submitted_at"] < moment]])))
    waiting = _as_jobs(pending).assign(submitted_at=moment)
    predictor = OnlinePredictor(JOBS.conform(waiting), history=known, model=model, refit=False, timezone=timezone)
    quantiles = predictor.submitted(np.arange(len(pending)), int(moment.timestamp()))
    names = [PREDICTIONS.names[column] for column in range(3)]
    frame = pd.DataFrame(quantiles, columns=names, index=pending.index)
    return PREDICTIONS.conform(frame.assign(source=predictor.sources[-1]))


def _as_jobs(queue: pd.DataFrame) -> pd.DataFrame:
    return JOBS.conform(queue[_SHARED].reset_index(drop=True))
