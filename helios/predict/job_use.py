"""Predictions of what a run will use, from ended runs of its kind.

The last few of the same kind tell most: on the last weeks of a company's cluster the error was 9 points a GPU hour
with them, 13 with the last alone and 35 with the mean of all (``python -m benchmarks.job_use``). Gradient-boosted trees
were not better beyond chance, so none are here. Bounds of memory are conformal (Vovk et al., 2005): what was exceeded
by 5 % of earlier predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.history import NEVER_S
from helios.metrics.job_use import IDLE, stands_for_run, use_of_runs
from helios.metrics.node_usage import whole_seconds

RECENT = 5
"""Runs of a kind that are looked at, the last that ended."""
WIDE_KINDS = 2
"""Kinds with runs of many users, of ``RunsWithUse.kinds`` the first."""
WIDER_WEIGHT = 1.0
"""Weight of the next wider kind, in runs of the narrower."""
COVERS = 0.95
"""Share of runs that shall stay within their bound of memory."""
FEWEST_SCORES = 19
"""Earlier predictions below which there is no bound: of 19, the largest is the 95 % one."""
MOST_SCORES = 2_000
"""Earlier predictions that a bound looks at, the last that ended."""
OFFSET_MIB = 256.0
"""Memory added to both sides of a ratio, about that of a CUDA context, so that a run without memory has one."""
_REFRESHED = 1.02
"""Growth of the earlier predictions after which a bound is computed anew."""

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunsWithUse:
    """Runs, and what they used where it is known.

    Attributes
    ----------
    kinds : sequence of int64 arrays of shape (n_runs,)
        Number of each run's kind, from wide to narrow; -1 where it is not known.
    asked_s : int64 array of shape (n_runs,)
        When the run is predicted, s since the epoch.
    ended_s : int64 array of shape (n_runs,)
        ``NEVER_S`` where it has not ended.
    utilization, memory_mib : float64 arrays of shape (n_runs,)
        Mean utilization of its GPUs, %, and most memory held on one; NaN where not known.
    """

    kinds: tuple[Codes, ...]
    asked_s: Codes
    ended_s: Codes
    utilization: Floats
    memory_mib: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictedUse:
    """What each run is expected to use, NaN where nothing is known.

    Attributes
    ----------
    utilization : float64 array of shape (n_runs,)
        Mean utilization, %.
    idle_chance : float64 array of shape (n_runs,)
        Share of alike runs with a utilization below 1 %, 0 to 1.
    memory_mib : float64 array of shape (n_runs,)
        Memory on a GPU that 95 % of runs do not exceed.
    """

    utilization: Floats
    idle_chance: Floats
    memory_mib: Floats


def runs_with_use(jobs: pd.DataFrame, use: pd.DataFrame) -> RunsWithUse:
    """Return the runs of a history with what they used.

    A measurement that does not stand for its run is unknown.

    Parameters
    ----------
    jobs : DataFrame
        ``RUN``, ``user``, ``account``, ``partition``, ``name``, ``gpus``, ``ended_at`` and ``run_time_s`` of ``JOBS``.
    use : DataFrame
        Columns of ``JOB_USE``, one row for each run (:func:`helios.metrics.job_use.one_row_a_run`).
    """
    used = use_of_runs(use, jobs)
    used = used.where(stands_for_run(used.assign(gpus=jobs["gpus"], run_time_s=jobs["run_time_s"])))
    return RunsWithUse(
        kinds=kinds_of_runs(jobs),
        asked_s=whole_seconds(jobs["submitted_at"], otherwise=NEVER_S),
        ended_s=whole_seconds(jobs["ended_at"], otherwise=NEVER_S),
        utilization=used["utilization"].to_numpy(dtype=np.float64),
        memory_mib=used["gpu_memory_peak_mib"].to_numpy(dtype=np.float64),
    )


def kinds_of_runs(jobs: pd.DataFrame) -> tuple[Codes, ...]:
    """Return the kinds of runs, from wide to narrow.

    All; those of a partition; of a user and account there; of as many GPUs; of a name without its digits.
    """
    kind = np.zeros(len(jobs), dtype=np.int64)
    kinds = [kind]
    stem = jobs["name"].astype("str").str.replace(r"[\d_.-]+", "-", regex=True)
    for columns in (["partition"], ["user", "account"], ["gpus"], [stem]):
        for column in columns:
            values = column if isinstance(column, pd.Series) else jobs[column]
            code, names = pd.factorize(values, use_na_sentinel=False)
            kind = pd.factorize(kind * len(names) + code)[0].astype(np.int64)
        kinds.append(kind)
    is_known = jobs["user"].notna().to_numpy()
    return (*kinds[:2], *(np.where(is_known, narrow, -1) for narrow in kinds[2:]))


def predict_use(runs: RunsWithUse) -> PredictedUse:
    """Predict each run from those that had ended when it was submitted."""
    n = len(runs.asked_s)
    utilization, idle_chance = np.full(n, np.nan), np.full(n, np.nan)
    memory_mib, level = np.zeros(n), np.zeros(n, dtype=np.int64)
    for number, kind in enumerate(runs.kinds):
        recent = _recent_runs(runs, kind)
        weight, found = np.where(np.isnan(utilization), 0.0, WIDER_WEIGHT), recent.known > 0
        for wider, values in ((utilization, recent.utilization), (idle_chance, recent.is_idle)):
            total = recent.known * values + weight * np.nan_to_num(wider)
            wider[found] = total[found] / (recent.known + weight)[found]
        # The largest of a few says nothing of runs of many users, whose bound is that of their own memory.
        has_memory = ~np.isnan(recent.memory_mib) & (number >= WIDE_KINDS)
        memory_mib[has_memory] = recent.memory_mib[has_memory]
        level[has_memory] = number
    return PredictedUse(
        utilization=utilization, idle_chance=idle_chance, memory_mib=_bound(runs, memory_mib, group=level)
    )


def predict_use_again(
    runs: RunsWithUse, *, after_s: float, utilization: Floats, memory_mib: Floats, before: PredictedUse
) -> PredictedUse:
    """Predict each run again from its first minutes.

    A run that is busy goes on as it began. One that is idle yet may still load its data: it gets the mean use of those
    that began so, its memory is bounded as before, and where nothing is known of these, it keeps its first prediction.

    Parameters
    ----------
    after_s : float
        When it is predicted, s after it was submitted or started, whichever ``asked_s`` is.
    utilization, memory_mib : float64 arrays of shape (n_runs,)
        Mean utilization since it began to load, %, and most memory held until then; NaN where not known.
    before : PredictedUse
        The first prediction.
    """
    later = replace(runs, asked_s=runs.asked_s + np.int64(after_s))
    began_idle = np.where(np.isnan(utilization), -1, (utilization < IDLE).astype(np.int64))
    alike = _recent_runs(later, began_idle, most=MOST_SCORES)
    idle = began_idle == 1
    expected = np.where(idle, alike.utilization, utilization)
    chance = np.where(idle, alike.is_idle, 0.0)
    bound = np.where(idle, np.nan, _bound(later, memory_mib, group=began_idle))
    return PredictedUse(
        utilization=np.where(np.isnan(expected), before.utilization, expected),
        idle_chance=np.where((began_idle < 0) | np.isnan(chance), before.idle_chance, chance),
        memory_mib=np.where(np.isnan(bound), before.memory_mib, bound),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RecentRuns:
    """What the last ended runs of its kind used, for each run.

    ``known`` is how many of them have a utilization, ``memory_mib`` the largest of theirs.
    """

    known: Floats
    utilization: Floats
    is_idle: Floats
    memory_mib: Floats


def _recent_runs(runs: RunsWithUse, kind: Codes, *, most: int = RECENT) -> _RecentRuns:
    """Return what the last ended runs of each run's kind used.

    They had ended when the run is predicted. What ends in the same second had not ended yet.
    """
    is_measured = ~np.isnan(runs.utilization) | ~np.isnan(runs.memory_mib)
    ended = np.flatnonzero(is_measured & (kind >= 0) & (runs.ended_s < NEVER_S))
    span_s = int(max(runs.ended_s[ended].max(initial=0), runs.asked_s.max(initial=0))) + 1
    key = kind * span_s + np.minimum(runs.ended_s, span_s - 1)
    ended = ended[np.argsort(key[ended], kind="stable")]
    begin = np.searchsorted(key[ended], kind * span_s)
    end = np.where(kind >= 0, np.searchsorted(key[ended], kind * span_s + runs.asked_s), begin)
    begin = np.maximum(begin, end - most)
    utilization, memory_mib = runs.utilization[ended], runs.memory_mib[ended]
    known, busy, idle = (
        np.append(0.0, np.cumsum(values))[end] - np.append(0.0, np.cumsum(values))[begin]
        for values in (~np.isnan(utilization), np.nan_to_num(utilization), utilization < IDLE)
    )
    largest = np.full(len(kind), np.nan)
    for back in range(1, RECENT + 1):
        found = end - back >= begin
        largest[found] = np.fmax(largest[found], memory_mib[end[found] - back])
    mean, share = (np.divide(total, known, out=np.full(len(kind), np.nan), where=known > 0) for total in (busy, idle))
    return _RecentRuns(known=known, utilization=mean, is_idle=share, memory_mib=largest)


def _bound(runs: RunsWithUse, expected_mib: Floats, *, group: Codes) -> Floats:
    """Return what 95 % of runs do not exceed.

    It follows from how far earlier runs exceeded what was expected of them. Those of the same group count, and all
    where it has too few.
    """
    score = np.log((runs.memory_mib + OFFSET_MIB) / (expected_mib + OFFSET_MIB))
    margin = _earlier_quantile(runs, score)
    for number in np.unique(group[group >= 0]):
        of_group = _earlier_quantile(runs, np.where(group == number, score, np.nan))
        margin = np.where((group == number) & ~np.isnan(of_group), of_group, margin)
    return np.maximum((expected_mib + OFFSET_MIB) * np.exp(margin) - OFFSET_MIB, 0.0)


def _earlier_quantile(runs: RunsWithUse, score: Floats) -> Floats:
    """Return the quantile of the scores that were known when each run was predicted."""
    ended = np.flatnonzero(~np.isnan(score) & (runs.ended_s < NEVER_S))
    ended = ended[np.argsort(runs.ended_s[ended], kind="stable")]
    found = np.full(len(score), np.nan)
    if len(ended) < FEWEST_SCORES:
        return found
    growth = int(np.log(len(ended) / FEWEST_SCORES) / np.log(_REFRESHED)) + 1
    counts = np.unique((FEWEST_SCORES * _REFRESHED ** np.arange(growth)).astype(np.int64))
    quantiles = np.array(
        [
            np.quantile(recent, min(1.0, COVERS * (len(recent) + 1) / len(recent)), method="higher")
            for recent in (score[ended[max(0, count - MOST_SCORES) : count]] for count in counts)
        ]
    )
    place = np.searchsorted(counts, np.searchsorted(runs.ended_s[ended], runs.asked_s), side="right")
    found[place > 0] = quantiles[place[place > 0] - 1]
    return found
