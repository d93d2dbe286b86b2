"""Helios' order as a site's Slurm would get it: predicted at submission, written as SiteFactor, as the hook does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.slurm_jobs import SlurmJobs
from helios.app.slurm_rehearsal import taught
from helios.app.whatif import sources_said
from helios.marks import site_factor
from helios.model import in_submission_order
from helios.ports import JobwiseService, Progress
from helios.predict import OnlinePredictor

_SUBMITTED = datetime(2000, 1, 1, tzinfo=UTC)
"""Any moment: what a service wishes for a job that has not waited yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What a service wishes for jobs as they are submitted.

    Attributes
    ----------
    site_factor : int64 array of shape (n_jobs,)
    notes : tuple of str
        Who predicted, for a person.
    """

    site_factor: NDArray[np.int64]
    notes: tuple[str, ...]


def learn_order(
    jobs: SlurmJobs,
    service: JobwiseService,
    *,
    ended_s: NDArray[np.float64],
    before: pd.DataFrame,
    cluster: str,
    timezone: str,
    most: int,
    seed: int,
    progress: Progress,
) -> Learned:
    """Return the SiteFactor that ``service`` would have each job submitted with.

    Parameters
    ----------
    ended_s : array of shape (n_jobs,)
        End of each job in the timeline that teaches, s since the epoch: only what had ended before a job's submission
        is used for it.
    before : DataFrame
        Earlier jobs, columns of ``JOBS``.
    most : int
        Bound of the SiteFactor (``slurm.site_factor_most``).
    """
    place = in_submission_order(jobs.jobs.assign(place=np.arange(len(jobs.jobs))))["place"].to_numpy()
    predictor = OnlinePredictor(
        jobs.jobs.iloc[place].reset_index(drop=True),
        history=before,
        model=taught(before, jobs.jobs, cluster=cluster, timezone=timezone, seed=seed, progress=progress),
        refit=True,
        seed=seed,
        timezone=timezone,
    )
    p50_s = np.empty(len(place))
    p50_s[place] = _predicted(predictor, jobs.workload.submitted_s[place], ended_s[place], progress)
    urgency = _wished(service, p50_s, jobs.workload.column("gpus"))
    factors = np.array([site_factor(wish, most=most) for wish in urgency], dtype=np.int64)
    return Learned(
        site_factor=factors,
        notes=(
            f"SiteFactors are those of each job's submission, {factors.min():,} to {factors.max():,}: nobody is "
            "promoted while he waits.",
            *sources_said(predictor),
        ),
    )


def _predicted(
    predictor: OnlinePredictor, submitted_s: NDArray[np.float64], ended_s: NDArray[np.float64], progress: Progress
) -> NDArray[np.float64]:
    """Go through submissions and ends in the order of time, and return each job's median, s."""
    second = np.floor(submitted_s).astype(np.int64)
    last = np.ceil(ended_s).astype(np.int64)
    by_end, p50_s, told = np.argsort(last, kind="stable"), np.empty(len(second)), 0
    begins = np.flatnonzero(np.diff(second, prepend=second[0] - 1))
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(second)], strict=True)):
        now_s = int(second[begin])
        upto = int(np.searchsorted(last[by_end], now_s, side="left"))
        if upto > told:
            predictor.ended(by_end[told:upto], last[by_end[told:upto]])
            told = upto
        p50_s[begin:end] = predictor.submitted(np.arange(begin, end), now_s)[:, 1]
        if number % 1_000 == 0:
            progress("Predicting each job at its submission", begin / len(second))
    progress("Predicting each job at its submission", 1.0)
    return p50_s


def _wished(service: JobwiseService, p50_s: NDArray[np.float64], gpus: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the urgency of each job at its submission; 0 where the service names none."""
    now = np.datetime64(_SUBMITTED.replace(tzinfo=None), "us")
    columns: dict[str, NDArray[Any]] = {
        "eligible_at": np.full(len(p50_s), now),
        "p50_s": p50_s,
        "p10_s": p50_s,
        "p90_s": p50_s,
        "gpus": gpus.astype(np.int32),
        "urgency": np.zeros(len(p50_s)),
        "hands_off": np.full(len(p50_s), np.nan, dtype=object),
        "longest_backlog_s": np.full(len(p50_s), np.nan),
    }
    return np.nan_to_num(service.wishes(columns.__getitem__, _SUBMITTED).urgency, nan=0.0)
