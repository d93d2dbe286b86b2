"""What running jobs will likely use, and how far off such predictions were."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.config import Settings
from helios.errors import HeliosError
from helios.job_use.fetch import JOBS_AT_ONCE, early_use, runs_of
from helios.job_use.prometheus import Prometheus
from helios.job_use.use_reader import UseReader
from helios.metrics.history import NEVER_S
from helios.metrics.job_use import EARLY_S, IDLE, RUN, one_row_a_run, stands_for_run, use_of_runs
from helios.metrics.node_usage import whole_seconds
from helios.metrics.statistics import weighted_median
from helios.model import GPU_USE
from helios.predict.job_use import PredictedUse, RunsWithUse, predict_use, predict_use_again, runs_with_use
from helios.report.job_use import PREDICTED_USE, UseJudgement
from helios.units import HOUR_S, MINUTE_S, percent
from helios.warehouse import Warehouse

HISTORY = timedelta(days=90)
"""How far back runs are looked at to predict others."""
LATE = timedelta(minutes=2)
"""Time in which the samples of the first 15 minutes arrive."""
MOST_S = MINUTE_S
"""Most time that Prometheus is asked for running jobs at once, s; the rest is asked for after the next reading."""
FEWEST = 20
"""Measured runs with a prediction below which a day judges nothing."""
COLUMNS = ("user", "account", "partition", "name", "gpus", "started_at", "ended_at", "run_time_s")
Floats = NDArray[np.float64]
_log = logging.getLogger("helios.job_use")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UsePredictions:
    """Predictions of runs with GPUs, in the order of submission.

    Attributes
    ----------
    jobs, early : DataFrame
        The runs, and what they used in their first 15 minutes (columns of ``JOB_USE``).
    runs : RunsWithUse
        What they used in all.
    before, after : PredictedUse
        What was predicted at submission, and after 15 minutes; the same where nothing was measured until then.
    """

    jobs: pd.DataFrame
    early: pd.DataFrame
    runs: RunsWithUse
    before: PredictedUse
    after: PredictedUse

    @property
    def knows_begin(self) -> NDArray[np.bool_]:
        """Runs whose first minutes were measured."""
        return self.early["utilization"].notna().to_numpy()


def read_predictions(warehouse: Warehouse, cluster: str, until: datetime) -> UsePredictions:
    """Predict the use of the runs submitted before a time.

    Each is predicted from what was known when it was submitted, and 15 minutes after its start. Only measurements count
    that stand for a run, or for its first minutes.
    """
    since = until - HISTORY
    jobs = warehouse.jobs(cluster, since=since, until=until, columns=[*RUN, *COLUMNS])
    jobs = jobs[jobs["gpus"] > 0].reset_index(drop=True)
    use, early = (warehouse.job_use(cluster, since=since, until=until, early=is_early) for is_early in (False, True))
    runs = runs_with_use(jobs, one_row_a_run(use))
    first = _early_use(early, jobs)
    before = predict_use(runs)
    started_s = whole_seconds(jobs["started_at"], otherwise=NEVER_S)
    after = predict_use_again(
        replace(runs, asked_s=np.where(started_s < NEVER_S, started_s, runs.asked_s)),
        after_s=EARLY_S,
        utilization=first["utilization"].to_numpy(dtype=np.float64),
        memory_mib=first["gpu_memory_peak_mib"].to_numpy(dtype=np.float64),
        before=before,
    )
    return UsePredictions(jobs=jobs, early=first, runs=runs, before=before, after=after)


def predict_running(settings: Settings, cluster: str, now: datetime) -> Mapping[str, float]:
    """Keep what running jobs will likely use, as their first minutes tell.

    It is called where gauges of the present are read, and has none.
    """
    if not settings.prometheus.url:
        return {}
    with Warehouse.open(settings.database.url) as warehouse:
        waiting = _not_asked(warehouse, cluster, now)
        if waiting.empty:
            return {}
        try:
            client = Prometheus(settings.prometheus, tries=1)
            client.refuse_wrong_clock()
            reader, begun_s = UseReader(client, settings.prometheus), time.monotonic()
            for first in range(0, len(waiting), JOBS_AT_ONCE):
                if time.monotonic() - begun_s > MOST_S:
                    break
                early = early_use(runs_of(waiting.iloc[first : first + JOBS_AT_ONCE]), reader)
                warehouse.add_job_use(cluster, early, GPU_USE.empty())
        except HeliosError as problem:
            _log.debug("the first minutes of running jobs are not known: %s", problem.message)
            return {}
        predictions = _of_running(read_predictions(warehouse, cluster, now))
        warehouse.remember(cluster, PREDICTED_USE, json.dumps(predictions), at=now)
    return {}


def judge(warehouse: Warehouse, cluster: str, begin: datetime, end: datetime) -> UseJudgement:
    """Judge the predictions of the runs that ended in [begin, end).

    Nothing is said where none of them was measured.
    """
    found = read_predictions(warehouse, cluster, end)
    runs, known = found.runs, ~np.isnan(found.runs.utilization)
    begin_s, end_s = int(begin.timestamp()), int(end.timestamp())
    run_s = runs.ended_s - whole_seconds(found.jobs["started_at"], otherwise=NEVER_S)
    hours = found.jobs["gpus"].to_numpy(dtype=np.float64) * run_s / HOUR_S
    known &= hours > 0
    earlier, of_day = known & (runs.ended_s < begin_s), known & (runs.ended_s >= begin_s) & (runs.ended_s < end_s)
    if not of_day.any():
        return UseJudgement()
    mean = float(np.average(runs.utilization[earlier], weights=hours[earlier])) if earlier.any() else np.nan
    sentences, levels = list[str](), dict[str, float]()
    for name, when, predicted, is_known in (
        ("at_submission", "at submission", found.before, ~np.isnan(found.before.utilization)),
        ("after_15_min", "after 15 minutes", found.after, found.knows_begin),
    ):
        rows = np.flatnonzero(of_day & is_known)
        if len(rows) < FEWEST:
            sentences.append(f"Use predicted {when}: too few runs to judge, {len(rows)} of {FEWEST}.")
            continue
        judged = _PredictionErrors(
            runs=len(rows),
            hours=hours[rows],
            utilization=runs.utilization[rows],
            peak_mib=runs.memory_mib[rows],
            predicted=PredictedUse(
                utilization=predicted.utilization[rows],
                idle_chance=predicted.idle_chance[rows],
                memory_mib=predicted.memory_mib[rows],
            ),
        )
        for sentence, numbers in (judged.error(mean), judged.idle(), judged.memory()):
            sentences.append(sentence.format(when=when))
            levels |= {f"{level}_{name}": number for level, number in numbers.items() if np.isfinite(number)}
    return UseJudgement(sentences=tuple(sentences), levels=levels)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PredictionErrors:
    """Predictions of runs beside what they used.

    Each method returns a sentence and its numbers by name.
    """

    runs: int
    hours: Floats
    utilization: Floats
    peak_mib: Floats
    predicted: PredictedUse

    def error(self, mean: float) -> tuple[str, dict[str, float]]:
        """Return the error of the utilization beside that of a mean."""
        own, of_mean = (
            weighted_median(np.abs(expected - self.utilization), self.hours)
            for expected in (self.predicted.utilization, mean)
        )
        beside = "" if np.isnan(of_mean) else f", the mean of earlier runs by {of_mean:.1f}"
        text = f"Utilization predicted {{when}} was off by {own:.1f} points{beside}"
        numbers = {"use_error": own, "use_error_of_mean": of_mean}
        return f"{text} (median by GPU hours, {self.runs:,} runs).", numbers

    def idle(self) -> tuple[str, dict[str, float]]:
        """Return how well idle runs were told from others."""
        is_idle = self.utilization < IDLE
        if is_idle.all() or not is_idle.any():
            which = "all" if is_idle.all() else "none"
            return f"Idle or not {{when}} is not judged: {which} of the runs were idle.", {}
        chance = self.predicted.idle_chance
        idle, others = int(is_idle.sum()), int((~is_idle).sum())
        ranks = float(pd.Series(chance).rank()[is_idle].sum())
        auc = (ranks - idle * (idle + 1) / 2) / (idle * others)  # Mann and Whitney's U, of all pairs
        text = f"Idle or not {{when}}: of an idle run and another, the idle one had the higher chance in {percent(auc)}"
        return f"{text} (AUC; {idle:,} of {self.runs:,} runs were idle).", {"use_idle_auc": auc}

    def memory(self) -> tuple[str, dict[str, float]]:
        """Return how often the bound of GPU memory held."""
        bound_mib, known = self.predicted.memory_mib, ~np.isnan(self.peak_mib) & ~np.isnan(self.predicted.memory_mib)
        if (count := int(known.sum())) < FEWEST:
            return f"GPU memory predicted {{when}}: too few runs to judge, {count} of {FEWEST}.", {}
        holds = (self.peak_mib <= bound_mib)[known]
        of_runs, of_hours = float(holds.mean()), float(np.average(holds, weights=self.hours[known]))
        text = f"The bound of GPU memory {{when}}, made for 95 %, held in {percent(of_runs)} of {count:,} runs"
        numbers = {"use_memory_covered_runs": of_runs, "use_memory_covered_hours": of_hours}
        return f"{text} and {percent(of_hours)} of their GPU hours.", numbers


def _early_use(early: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """Return what is known of all first minutes of each run."""
    known = use_of_runs(early, jobs)
    return known.where(stands_for_run(known.assign(gpus=jobs["gpus"], run_time_s=EARLY_S)))


def _not_asked(warehouse: Warehouse, cluster: str, now: datetime) -> pd.DataFrame:
    """Return the running jobs whose first minutes may be asked for now."""
    since, columns = now - HISTORY, [*RUN, "started_at", "ended_at", "gpus", "node_list"]
    jobs = warehouse.jobs(cluster, since=since, unended_at=now, columns=columns)
    begun = jobs["started_at"] <= pd.Timestamp(now) - pd.Timedelta(seconds=EARLY_S) - LATE
    jobs = jobs[begun & jobs["ended_at"].isna() & (jobs["gpus"] != 0)]
    asked = pd.MultiIndex.from_frame(warehouse.job_use(cluster, since=since, early=True)[[*RUN]])
    return jobs[~pd.MultiIndex.from_frame(jobs[[*RUN]]).isin(asked)].reset_index(drop=True)


def _of_running(found: UsePredictions) -> dict[str, Any]:
    """Return the predictions of running jobs as plain values by job id."""
    columns = {
        "submitted_at": [at.isoformat() for at in found.jobs["submitted_at"]],
        "busy_means": found.early["busy_means"].astype("object"),
        "first_utilization": found.early["utilization"],
        "first_memory_mib": found.early["gpu_memory_peak_mib"],
        "utilization_before": found.before.utilization,
        "utilization": found.after.utilization,
        "idle_chance": found.after.idle_chance,
        "memory_mib": found.after.memory_mib,
    }
    table = pd.DataFrame(columns).set_index(found.jobs["job_id"].astype("object"))
    table = table[found.knows_begin & found.jobs["ended_at"].isna().to_numpy()].astype("object")
    return {str(job_id): row for job_id, row in table.where(table.notna(), None).to_dict("index").items()}
