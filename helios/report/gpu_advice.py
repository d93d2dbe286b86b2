"""Advice for users about GPUs that they held and did not use.

It is said of a group of alike jobs, and only where each rule against a false alarm holds:

- A run counts where its measurement stands for all of it, and at least ``SHORTEST_COVERED_S`` were measured.
- GPUs shared with other jobs and slices of a GPU do not count, unless each slice was measured by itself.
- A batch job is idle by its utilization without the first hour, and no pause below an hour counts.
- Anything else, such as a shell or notebook, is idle by its longest idle spell, never by its mean.
- Jobs that failed do not count, because a program that hangs or dies is another problem.
- At least ``FEWEST_ALIKE`` jobs are alike, and, 95 % sure, at least ``MOSTLY`` of such jobs are idle.
- GPU memory that is held says nothing either way.

Users, accounts and partitions that the site names are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.job_use import IDLE
from helios.metrics.occupancy import FAILURES
from helios.metrics.statistics import share_interval
from helios.report.advice import Advice, Columns, Flags, Interval, alike_jobs, describe_group, with_name_words
from helios.report.job_use import OF_GPU, each_gpu, source_words
from helios.units import HOUR_S, MINUTE_S, count_in_words, duration_in_words

KINDS = ("gpus_idle", "gpus_idle_inside", "session_idle")
"""Kinds of this advice."""
SHORTEST_COVERED_S = 30 * MINUTE_S
FEWEST_ALIKE = 5
MOSTLY = 0.5
"""Share of alike jobs that are idle, 95 % sure, from which there is advice. Five of five bound it by .57."""
WARM_UP_S = HOUR_S
"""Begin of a batch job that does not count: 9 % of the jobs of a public cluster had an idle first hour and worked."""
PAUSE_S = HOUR_S
"""Longest pause of a batch job that is none."""
IDLE_SESSION_S = 2 * HOUR_S
"""Idle spell of a session from which there is advice."""
_SLICE = "MIG-"
"""Begin of the UUID of a slice."""


def gpu_advice(
    runs: pd.DataFrame, gpus: pd.DataFrame, *, exempt: Mapping[str, Collection[str]] | None = None
) -> list[Advice]:
    """Return advice from the measured use of GPUs.

    Parameters
    ----------
    runs : DataFrame
        Runs with GPUs and what they used, from :func:`~helios.report.job_use.with_use`: ``submitted_at``, ``job_id``,
        ``restart``, ``user``, ``account``, ``partition``, ``name``, ``gpus``, ``cpus``, ``state``, ``run_time_s``,
        ``nodes``, ``time_limit_s`` and ``memory_mib`` of ``JOBS``, with the columns of ``JOB_USE``.
    gpus : DataFrame
        Columns of ``GPU_USE``.
    exempt : mapping of str to collection of str, optional
        Users, accounts and partitions of which nothing is said, by column.
    """
    if not runs["is_measured"].any():
        return []
    for column, names in (exempt or {}).items():
        runs = runs[~runs[column].isin([*names])]
    runs = runs[runs["user"].notna()].reset_index(drop=True)
    parts = each_gpu(runs, gpus)
    counts = _counts(runs, gpus)
    if not counts.any():
        return []
    runs, parts = runs[counts], parts[counts[parts["run"]]]
    is_batch = (runs["is_interactive"] == 0).to_numpy()
    run = np.searchsorted(np.flatnonzero(counts), parts["run"])
    # A source of means alone knows one idle spell: that of a GPU with a process that was never busy.
    is_never_busy = (parts["utilization"] == 0) & (parts["gpu_memory_peak_mib"] > 0)
    whole_s = pd.Series(runs["covered_s"].to_numpy()[run], index=parts.index).where(is_never_busy)
    parts = parts.assign(longest_idle_s=parts["longest_idle_s"].fillna(whole_s))
    gpu_later = _later(parts["utilization"].to_numpy(), runs["run_time_s"].to_numpy()[run])
    is_idle_gpu = is_batch[run] & (gpu_later < IDLE) & ~(parts["longest_idle_s"] < PAUSE_S).to_numpy()
    later = runs["utilization_later"].to_numpy()
    later = np.where(np.isnan(later), _later(runs["utilization"].to_numpy(), runs["run_time_s"].to_numpy()), later)
    by_gpu = np.bincount(run, minlength=len(runs)) == runs["gpus"].to_numpy()
    # The mean of several GPUs would have one that rests speak for one that works.
    spell_s = parts.groupby(run)["longest_idle_s"].min().where(by_gpu | (runs["gpus"] <= 1).to_numpy()).to_numpy()
    is_pausing = (runs["longest_idle_s"] < PAUSE_S).to_numpy()
    is_idle = np.where(is_batch, (later < IDLE) & ~is_pausing, spell_s >= IDLE_SESSION_S)
    judged = runs.assign(
        idle_h=np.where(is_batch, runs["run_time_s"], spell_s) * runs["gpus"] * is_idle / HOUR_S,
        idle_gpus=np.where(
            by_gpu & ~is_idle & (runs["gpus"] > 1), np.bincount(run, weights=is_idle_gpu, minlength=len(runs)), 0.0
        ),
        measure=[source_words(*pair) for pair in zip(runs["source"], runs["busy_means"], strict=True)],
        is_batch=is_batch,
    )
    judged["sort"] = judged["measure"] + judged["is_batch"].astype(str)
    groups = [*alike_jobs(with_name_words(judged), "sort", fewest=FEWEST_ALIKE)]
    return [advice for alike in groups for advice in (*_idle(alike), *_idle_inside(alike))]


def _counts(runs: pd.DataFrame, gpus: pd.DataFrame) -> Flags:
    """Return which runs may be judged."""
    each = gpus.astype({"source": "object"}).assign(by_slice=gpus["gpu"].str.startswith(_SLICE))
    slices = each.groupby(OF_GPU)["by_slice"].all().reset_index()
    by_slice = (runs[OF_GPU].merge(slices, on=OF_GPU, how="left")["by_slice"] == True).to_numpy()  # noqa: E712 - missing
    is_whole = (runs["is_mig"] != 1) & (runs["gpus"] % 1 == 0)
    counts = runs["is_measured"] & (is_whole | by_slice) & ~runs["state"].isin([*FAILURES])
    return (counts & (runs["covered_s"] >= SHORTEST_COVERED_S)).to_numpy()


def _later(mean: NDArray[np.float64], run_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest utilization without the first hour that a mean leaves possible, %.

    NaN where the run is not longer.
    """
    after_s = np.where(run_s > WARM_UP_S, run_s - WARM_UP_S, np.nan)
    return np.asarray(mean * run_s / after_s, dtype=np.float64)


def _idle(alike: Columns) -> Iterator[Advice]:
    """Yield advice where all GPUs of most alike jobs were idle."""
    is_idle = alike["idle_h"] > 0
    if alike["is_batch"][0]:
        sentence = f"kept their GPUs below {IDLE:g} % utilization on average after their first hour."
        yield from _if_most(alike, is_idle, alike["idle_h"], "gpus_idle", sentence)
        return
    spell = duration_in_words(IDLE_SESSION_S)
    sentence = f"left each GPU below {IDLE:g} % utilization for {spell} or more at a time."
    yield from _if_most(alike, is_idle, alike["idle_h"], "session_idle", sentence)


def _idle_inside(alike: Columns) -> Iterator[Advice]:
    """Yield advice where some GPUs of most alike jobs were idle."""
    idle_gpus = alike["idle_gpus"]
    is_idle = idle_gpus > 0
    if not is_idle.any():
        return
    fewest = count_in_words(float(idle_gpus[is_idle].min()), "GPU")
    sentence = f"kept at least {fewest} below {IDLE:g} % utilization after their first hour."
    yield from _if_most(alike, is_idle, idle_gpus * alike["run_time_s"] / HOUR_S, "gpus_idle_inside", sentence)


def _if_most(alike: Columns, is_idle: Flags, idle_h: NDArray[np.float64], kind: str, sentence: str) -> Iterator[Advice]:
    count, total = int(is_idle.sum()), len(is_idle)
    low, high = share_interval(count, total)
    if low < MOSTLY:
        return
    yield Advice(
        kind=kind,
        user=str(alike["user"][-1]),
        which=describe_group(alike),
        sentence=f"{count:,} of {total:,} {sentence} Measured by {alike['measure'][0]}.",
        jobs=total,
        hours=float(idle_h[is_idle].sum()),
        resource="GPU",
        interval=Interval(meaning="the idle share of such jobs, 95 % sure", low=low, high=high, unit="share"),
        example=str(alike["job_id"][is_idle][-1]),
    )
