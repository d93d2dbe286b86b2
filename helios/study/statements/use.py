"""Findings on what jobs held and did not use, as measured.

A measurement stands for a run where it covers 90 % of it; that of a GPU which other jobs shared stands for none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from helios.metrics.blocks import Estimate, Finding, Question, unknown_finding
from helios.metrics.history import Flags, Floats, StudyHistory, share
from helios.metrics.job_use import (
    IDLE,
    IDLE_TIMEOUT_S,
    freed_by_timeout_s,
    one_row_a_run,
    stands_for_run,
    use_of_runs,
)
from helios.report.job_use import sessions
from helios.units import HOUR_S

HALF, QUARTER = 1 / 2, 1 / 4
KINDS = ("batch", "interactive")
"""Kinds of jobs, by ``is_interactive``."""
NO_USE = "how busy GPUs were"
MIB_OF_GIB = 1024


def use_of_history(history: StudyHistory, use: pd.DataFrame) -> pd.DataFrame:
    """Return what each job of a history used, a row for each.

    Parameters
    ----------
    use : DataFrame
        Columns of ``JOB_USE``.
    """
    measured = use_of_runs(one_row_a_run(use), history.jobs.assign(restart=history.restart))
    measured["is_interactive"] = sessions(measured["is_interactive"], history.jobs["name"])
    gpus = history.size if history.resource == "gpus" else np.nan
    stands = stands_for_run(measured.assign(gpus=gpus, run_time_s=history.run_time_s))
    of_gpus = ["utilization", "utilization_max", "idle_share", "longest_idle_s", "gpu_memory_peak_mib"]
    return measured.assign(**{name: measured[name].where(stands) for name in of_gpus})


def freed_hours(history: StudyHistory, measured: pd.DataFrame, timeout_s: float = IDLE_TIMEOUT_S) -> Floats:
    """Return the GPU hours that ending idle sessions frees, NaN where not known.

    It is the end of a session, and so at most what it held in the window.
    """
    freed_s = freed_by_timeout_s(measured, np.nan_to_num(history.run_time_s), timeout_s)
    return np.minimum(freed_s / HOUR_S * history.size, history.hours())


def held_and_unused(history: StudyHistory, measured: pd.DataFrame | None) -> Finding:
    """Return the share of measured GPU hours in runs that used none.

    Their mean utilization is below 1 %. The parts have it by kind of job, and what an idle time-out frees.
    """
    known = _with_use(history, measured)
    if measured is None or not known.any():
        return unknown_finding(Question.HELD_AND_UNUSED, NO_USE)
    is_idle = known & (measured["utilization"] < IDLE).to_numpy()
    unused, hours = history.hours_by_block(is_idle), history.hours()
    kinds = {}
    for code, name in enumerate(KINDS):
        of_kind = known & (measured["is_interactive"] == code).to_numpy()
        if of_kind.any():
            unused_there = share(hours[of_kind & is_idle], hours[of_kind])
            kinds[name] = {"of_hours": share(hours[of_kind], hours[known]), "unused": unused_there}
    return Finding(
        question=Question.HELD_AND_UNUSED,
        estimate=history.blocks.ratio(unused, history.hours_by_block(known)).bounded(most=1.0),
        n=int(known.sum()),
        coverage=share(hours[known], hours),
        hours_per_week=float(unused.sum()) / history.weeks,
        parts={"by_kind": kinds} | _beside(history, measured, known),
    )


def fits_a_part(history: StudyHistory, measured: pd.DataFrame | None) -> Finding:
    """Return the share of measured GPU hours that half a GPU would have held.

    Neither the peak of memory nor the mean utilization reached half of a GPU's. The parts have the quarter.
    """
    with_memory = _with_use(history, measured)
    if measured is not None:
        memory = (measured["gpu_memory_peak_mib"] / measured["gpu_memory_total_mib"]).to_numpy(dtype=np.float64)
        with_memory &= np.isfinite(memory)
    if measured is None or not with_memory.any():
        return unknown_finding(Question.FITS_A_PART, f"{NO_USE} and how much of their memory was held")
    use = measured["utilization"].to_numpy(dtype=np.float64) / 100
    fits = {part: with_memory & (memory < part) & (use < part) for part in (HALF, QUARTER)}
    half, hours = history.hours_by_block(fits[HALF]), history.hours()
    return Finding(
        question=Question.FITS_A_PART,
        estimate=history.blocks.ratio(half, history.hours_by_block(with_memory)).bounded(most=1.0),
        n=int(with_memory.sum()),
        coverage=share(hours[with_memory], hours),
        hours_per_week=float(half.sum()) / history.weeks,
        parts={
            "share_that_fits_a_quarter": share(hours[fits[QUARTER]], hours[with_memory]),
            "share_of_one_gpu_jobs": share(hours[fits[HALF] & (history.size == 1)], hours[with_memory]),
        }
        | _beside(history, measured, with_memory),
    )


def unused_requests(history: StudyHistory, measured: pd.DataFrame | None) -> Finding:
    """Return the share of the memory hours asked for that no job used.

    It counts peaks of memory, as if they were held all the time. The parts have the CPUs, by their mean use.
    """
    if measured is None:
        return unknown_finding(Question.UNUSED_REQUESTS, "how much memory jobs used")
    ran = np.nan_to_num(history.run_time_s) > 0
    limit_mib = measured["memory_limit_mib"].fillna(pd.Series(history.memory_mib)).to_numpy(dtype=np.float64)
    used_cpus = measured["cpu_s"].to_numpy(dtype=np.float64) / np.where(ran, history.run_time_s, np.nan)
    peak_mib = measured["memory_peak_mib"].to_numpy(dtype=np.float64)
    memory = _unused(history, limit_mib / MIB_OF_GIB, peak_mib / MIB_OF_GIB)
    cpus = _unused(history, history.cpus, used_cpus)
    if memory.value is None:
        return unknown_finding(Question.UNUSED_REQUESTS, "how much memory jobs used")
    known = np.isfinite(limit_mib) & np.isfinite(peak_mib)
    return Finding(
        question=Question.UNUSED_REQUESTS,
        estimate=memory,
        n=int(known.sum()),
        coverage=share(known & history.submitted, history.submitted),
        parts={
            "share_of_cpu_hours": cpus.value,
            "cpu_hours_low": cpus.low,
            "cpu_hours_high": cpus.high,
            "sources": sources_of(measured[known]),
        },
    )


def _with_use(history: StudyHistory, measured: pd.DataFrame | None) -> Flags:
    """Return the jobs with GPUs whose utilization is known."""
    if measured is None or history.resource != "gpus":
        return np.zeros(len(history.size), dtype=np.bool_)
    found: Flags = (history.size > 0) & measured["utilization"].notna().to_numpy() & (history.hours() > 0)
    return found


def _unused(history: StudyHistory, asked: Floats, used: Floats) -> Estimate:
    """Return the share of the hours of something asked for that was not used."""
    known = np.isfinite(asked) & np.isfinite(used) & (asked > 0)
    asked, used = np.where(known, asked, 0.0), np.where(known, np.minimum(used, asked), 0.0)
    left = history.hours_by_block(weight=asked - used)
    return history.blocks.ratio(left, history.hours_by_block(weight=asked)).bounded(most=1.0)


def _beside(history: StudyHistory, measured: pd.DataFrame, known: Flags) -> dict[str, Any]:
    """Return what stands beside a share of unused hours, and who measured."""
    freed, hours = freed_hours(history, measured), history.hours()
    is_known = np.isfinite(freed) & (hours > 0)
    return {
        "freed_by_timeout": share(np.nan_to_num(freed), hours) if is_known.any() else None,
        "memory_measured": share(hours[known & measured["gpu_memory_peak_mib"].notna().to_numpy()], hours) or None,
        "sources": sources_of(measured[known]),
    }


def sources_of(measured: pd.DataFrame) -> list[str]:
    """Return who measured, the most first, and what busy means there."""
    known = measured[measured["source"].notna()]
    means = known["busy_means"].astype("object")
    named = known["source"].astype("object") + np.where(means.isna(), "", " (busy: " + means.fillna("") + ")")
    return [str(name) for name in named.value_counts().index]
