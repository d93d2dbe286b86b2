"""Predictions of small traces, each job at its submission."""

import numpy as np

from helios.predict.job_table import JobTable
from helios.predict.timeline import RecordedWalk, untrained


def walked(jobs, *, model=None, first=0, timezone="UTC", **options):
    """Return a walk over ``jobs`` that predicts those from position ``first`` on, by a model or by shrinkage."""
    table = JobTable.from_frame(jobs, timezone=timezone)
    walk = RecordedWalk(table, **options)
    if first:
        walk.to(int(table.submitted_s[first]))
    if model is not None and model.calibration is not None:
        walk.set_calibration(model.calibration)
    last_s = max(int(table.submitted_s[-1]), int(table.started_s[table.started_s < 2**62].max(initial=0)))
    walk.to(last_s + 1, model=model.kernel if model is not None else untrained())
    return walk


def quantiles_of(jobs, **options):
    """Return p10, p50 and p90 of each job at its submission, s, of shape (n, 3)."""
    return walked(jobs, **options).predicted[:, :3]


def median_log_error(predicted, jobs, rows):
    """Return the median error of the best guesses of ``rows``, in log time."""
    truth = np.log1p(jobs["run_time_s"].to_numpy()[rows])
    return float(np.median(np.abs(np.log1p(predicted[rows, 3]) - truth)))
