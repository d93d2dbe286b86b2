"""How often intervals hold on real logs: as learned, by rolling conformal, and calibrated by groups.

Usage: python -m benchmarks.calibration TRACE...

Trained on what had ended when 70 % of the jobs were submitted, judged on the jobs submitted from then on.
"""

import sys
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from helios.ingest import open_trace
from helios.model import JOBS, in_submission_order
from helios.predict.duration import HistoryPredictor, train_on
from helios.predict.evaluation import calibrated_quantiles
from helios.predict.job_table import JobTable, features_at_start
from helios.predict.scores import Scores, evaluation_set, scores_for

LAST_ENDED = 500


def rolling_conformal(table: JobTable, quantiles: np.ndarray, *, only_widens: bool) -> np.ndarray:
    """Move p10 and p90 by the quantile of what the last ``LAST_ENDED`` ended jobs lacked: one offset for all."""
    log_run, logs = np.log1p(table.run_time_s), np.log1p(quantiles)
    lacked: deque[tuple[float, float]] = deque(maxlen=LAST_ENDED)
    ends, told, found = table.ends(), 0, quantiles.copy()
    for job in np.flatnonzero(~np.isnan(quantiles[:, 1])):
        while told < len(ends) and table.ended_s[ends[told]] < table.submitted_s[job]:
            gone = ends[told]
            told += 1
            if not np.isnan(logs[gone, 1] + log_run[gone]):
                lacked.append((logs[gone, 0] - log_run[gone], log_run[gone] - logs[gone, 2]))
        if lacked:
            below, above = np.quantile(lacked, 0.9, axis=0)
            if only_widens:
                below, above = max(below, 0.0), max(above, 0.0)
            found[job, 0] = min(np.expm1(logs[job, 0] - below), quantiles[job, 1])
            found[job, 2] = max(np.expm1(logs[job, 2] + above), quantiles[job, 1])
    return found


def line(name: str, figures: Scores) -> str:
    """Return one row of the table."""
    groups = " ".join(
        f"{group} {covered.share:.3f} of {covered.jobs:,};" if covered.jobs else f"{group} -;"
        for group, covered in figures.coverage_p90_by_group.items()
    )
    return (
        f"  {name:24s} p10-p90 {figures.coverage_p10_p90:.3f}  p90 {figures.coverage_p90:.3f}  "
        f"width {figures.log_width:.2f}  pinball {figures.pinball_log:.3f}  {groups}"
    )


def judge(path: Path) -> None:
    """Print the rows of one log."""
    batches = [batch.jobs for batch in open_trace(path).read()]
    table = JobTable.from_frame(in_submission_order(JOBS.conform(pd.concat(batches, ignore_index=True))))
    known = features_at_start(table)
    features = known.at_submission
    first = int(table.n * 0.7)
    model = train_on(
        table, known, cluster="x", until=datetime.fromtimestamp(int(table.submitted_s[first]), UTC), seed=0
    )
    tested = np.flatnonzero(np.isfinite(table.run_time_s) & (np.arange(table.n) >= first))
    judged = evaluation_set(table, features, tested)
    learned = np.full((table.n, 3), np.nan)
    learned[first:] = model.predict(features[first:])
    shrinkage = HistoryPredictor().predict(features)
    calibrated_quantiles(model, table, features, learned)  # compiles
    started = time.perf_counter()
    calibrated = calibrated_quantiles(model, table, features, learned)
    took = time.perf_counter() - started
    print(f"{path.name}: {len(tested):,} jobs judged, {took / table.n * 1e6:.1f} microseconds a job")
    for name, quantiles in {
        "as learned": learned,
        "rolling conformal": rolling_conformal(table, learned, only_widens=False),
        "the same, only wider": rolling_conformal(table, learned, only_widens=True),
        "calibrated": calibrated,
        "shrinkage": shrinkage,
        "shrinkage, calibrated": calibrated_quantiles(None, table, features, shrinkage),
    }.items():
        print(line(name, scores_for(quantiles[tested], judged)), flush=True)


if __name__ == "__main__":
    for trace in sys.argv[1:]:
        judge(Path(trace))
