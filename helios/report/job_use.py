"""What jobs used beside what they held, as numbers and as sentences.

Every sentence names who measured, and what busy means there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.job_use import (
    EARLY_S,
    IDLE,
    LOADING_S,
    RUN,
    contradict,
    one_row_a_run,
    stands_for_run,
)
from helios.metrics.occupancy import FAILURES
from helios.metrics.statistics import ratio_interval
from helios.model import JOB_USE, UseQuality, UseSource
from helios.units import HOUR_S, MINUTE_S, count_in_words, duration_in_words, percent

SOURCES = {
    UseSource.PROMETHEUS: "Prometheus",
    UseSource.JOBSTATS: "jobstats",
    UseSource.FILE: "a file",
    UseSource.ACCOUNTING: "sacct",
}
QUALITIES = {
    UseQuality.PARTIAL: "not all of its GPUs or less than 90 % of the run was measured",
    UseQuality.SHORT: "the run was shorter than two samples",
    UseQuality.NONE: "there was nothing of it",
    UseQuality.BROKEN: "the record is cut or contradicts itself, and does not count",
}
PREDICTED_USE = "predicted use"
"""Name under which the warehouse keeps what running jobs will likely use."""
JUDGED_USE = "judged use"
"""Name under which it keeps how far off the predictions of the last day were."""
CONTRADICTED = "another source contradicts it, and neither counts"
SESSION_NAMES = r"(?:^|/)sys/dashboard/"
"""Names that Open OnDemand gives its sessions, which are batch jobs for Slurm. Those of its job composer differ."""
SALLOC_NAME = "interactive"
"""Name of an allocation by salloc without a command."""
OF_GPU = [*RUN, "source"]
"""Columns by which GPUs belong to a row of ``JOB_USE``."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UseJudgement:
    """How far off predictions of use were on a day.

    Attributes
    ----------
    sentences : tuple of str
    levels : dict of float
        Errors of utilization, points; AUC of idle runs and coverage of bounds of memory, 0 to 1; by name. What too few
        runs tell is left out.
    """

    sentences: tuple[str, ...] = ()
    levels: Mapping[str, float] = field(default_factory=dict)


def with_use(jobs: pd.DataFrame, use: pd.DataFrame) -> pd.DataFrame:
    """Return jobs with what they used, in their order.

    Parameters
    ----------
    jobs : DataFrame
        Any columns of ``JOBS`` with ``RUN`` and ``name``.
    use : DataFrame
        Columns of ``JOB_USE``; rows of other jobs may be among them.

    Returns
    -------
    DataFrame
        The columns of both, and ``is_measured``: whether the use of its GPUs is known well enough to stand for the run.
    """
    columns = [name for name in JOB_USE.names if name not in RUN]
    texts = dict.fromkeys(("source", "busy_means", "quality"), "object")
    if use.empty:  # as on most clusters; a join takes 30 ms all the same
        joined = pd.concat([jobs.reset_index(drop=True), use.astype(texts)[columns].reindex(range(len(jobs)))], axis=1)
    else:
        known = one_row_a_run(use).astype(texts)
        joined = jobs.merge(known[[*RUN, *columns]], on=[*RUN], how="left", validate="many_to_one")
    stands = stands_for_run(joined)
    memory = {name: joined[name].where(stands) for name in ("gpu_memory_peak_mib", "gpu_memory_total_mib")}
    is_interactive = sessions(joined["is_interactive"], joined["name"])
    is_measured = stands & joined["utilization"].notna()
    return joined.assign(is_measured=is_measured, is_interactive=is_interactive, **memory)


def sessions(is_interactive: pd.Series[float], names: pd.Series[str]) -> Floats:
    """Return which runs are shells or notebooks, also by their names.

    A session of Open OnDemand is one, whatever a source says. Where none says anything, what salloc names is. Another
    name tells nothing: a batch job may be called bash.
    """
    text = names.astype("str").reset_index(drop=True)
    said = is_interactive.to_numpy(dtype=np.float64)
    said = np.where(np.isnan(said) & (text == SALLOC_NAME).to_numpy(dtype=bool, na_value=False), 1.0, said)
    return np.where(text.str.contains(SESSION_NAMES, na=False).to_numpy(dtype=bool), 1.0, said)


def each_gpu(runs: pd.DataFrame, gpus: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each GPU of measured runs, and one for each other run.

    Where a source knows only the mean of a run's GPUs, they are one row.

    Parameters
    ----------
    runs : DataFrame
        Result of :func:`with_use`.
    gpus : DataFrame
        Columns of ``GPU_USE``.

    Returns
    -------
    DataFrame
        ``run`` (position in ``runs``), ``part`` (of the run's GPUs), ``utilization`` of the GPU (NaN: not measured),
        ``run_utilization``, ``gpu_memory_peak_mib``, ``gpu_memory_total_mib`` and ``longest_idle_s``.
    """
    values = ["utilization", "gpu_memory_peak_mib", "gpu_memory_total_mib", "longest_idle_s"]
    position = runs[[*OF_GPU, "is_measured"]].assign(run=np.arange(len(runs)))
    position = position[position["is_measured"]]
    found = gpus[[*OF_GPU, *values]].astype({"source": "object"}).merge(position, on=OF_GPU)
    found = found[found["utilization"].notna()]
    whole = runs[values].assign(run=np.arange(len(runs)))
    whole["utilization"] = whole["utilization"].where(runs["is_measured"])
    parts = pd.concat([found[["run", *values]], whole[~whole["run"].isin(found["run"])]], ignore_index=True)
    counts = np.bincount(parts["run"], minlength=len(runs))
    run = parts["run"].to_numpy()
    return parts.assign(part=1 / counts[run], run_utilization=runs["utilization"].to_numpy()[run])


def gpu_hours(runs: pd.DataFrame, gpus: pd.DataFrame, held_s: Floats) -> pd.DataFrame:
    """Return the GPU hours held in a window, in the rows of ``each_gpu``.

    Parameters
    ----------
    runs : DataFrame
        Result of :func:`with_use`.
    gpus : DataFrame
        Columns of ``GPU_USE``.
    held_s : float64 array of shape (n_runs,)
        How long each run held its GPUs in the window, s.

    Returns
    -------
    DataFrame
        The columns of ``each_gpu``; ``user``, ``state``, ``source``, ``busy_means`` and ``is_interactive`` of the run;
        ``hours``, and of these ``measured``, ``idle`` (below ``IDLE``), ``inside`` (idle in a run that was not idle as
        a whole) and ``failed`` (idle in a run that failed).
    """
    parts = each_gpu(runs, gpus)
    run = parts["run"].to_numpy()
    names = ["user", "state", "source", "busy_means", "is_interactive"]
    hours = (runs["gpus"].to_numpy() * held_s)[run] * parts["part"] / HOUR_S
    idle = hours.where(parts["utilization"] < IDLE, 0.0)
    return parts.assign(
        **{name: runs[name].array[run] for name in names},
        hours=hours,
        measured=hours.where(parts["utilization"].notna(), 0.0),
        idle=idle,
        inside=idle.where(parts["run_utilization"] >= IDLE, 0.0),
        failed=idle.where(runs["state"].isin([*FAILURES]).to_numpy()[run], 0.0),
    )


def idle_sentences(hours: pd.DataFrame) -> Iterator[str]:
    """Yield which share of GPU hours was not measured, then which was idle.

    ``hours`` are those of :func:`gpu_hours`.
    """
    total, known, idle, inside, failed = hours[["hours", "measured", "idle", "inside", "failed"]].sum()
    if not total:
        return
    yield f"Not measured: {percent(1 - known / total)} of {total:,.0f} GPU hours."
    if not known:
        return
    by_user = hours.astype({"user": "object"}).groupby("user", dropna=False)[["idle", "measured"]].sum()
    low, high = ratio_interval(by_user["idle"].to_numpy(), by_user["measured"].to_numpy())
    spread = "" if low is None else f" ({percent(low)} to {percent(high)}, 95 % sure over users)"
    yield (
        f"Of the measured {known:,.0f} GPU hours {percent(idle / known)}{spread} were of GPUs below {IDLE:g} % "
        f"utilization: {inside:,.0f} in jobs that used other GPUs, {failed:,.0f} in jobs that failed."
    )
    sessions = hours[hours["is_interactive"] == 1]
    if (held := float(sessions["measured"].sum())) > 0:
        share, rest = percent(held / known), percent(float(sessions["idle"].sum()) / held)
        yield f"Shells and notebooks held {share} of the measured GPU hours; of these {rest} were below {IDLE:g} %."
    texts = hours.astype({"source": "object", "busy_means": "object"})
    by_source = texts.groupby(["source", "busy_means"], dropna=False, as_index=False)["measured"].sum()
    for row in by_source[by_source["measured"] > 0].sort_values("measured", ascending=False).to_dict("records"):
        by = source_words(row["source"], row["busy_means"])
        yield f"{percent(row['measured'] / known)} of these were measured by {by}."


def source_words(source: object, busy_means: object) -> str:
    """Return who measured, and what busy means there."""
    means = f"busy means that {busy_means}" if isinstance(busy_means, str) else "what busy means is not known"
    return f"{SOURCES[UseSource(str(source))]}, where {means}"


def predicted_line(predicted: Mapping[str, Any]) -> str:
    """Return what a running job will likely use, as its first minutes tell.

    ``predicted`` is the job's entry in ``PREDICTED_USE``; what is not known in it is None.
    """
    begin, end = (f"{seconds / MINUTE_S:.0f}" for seconds in (LOADING_S, EARLY_S))
    busy, held = predicted["first_utilization"], predicted["first_memory_mib"]
    after, before, bound = (predicted[name] for name in ("utilization", "utilization_before", "memory_mib"))
    facts = [f"GPUs {busy:.3g} % busy in minutes {begin} to {end}"]
    facts += [] if held is None else [f"GPU memory at most {held / 1024:.1f} GiB"]
    likely = f"{after:.3g} % in all"
    if busy < IDLE:
        likely += f" (the mean of runs that began so; {percent(predicted['idle_chance'])} of them stayed idle)"
    likely += "" if bound is None else f", and at most {bound / 1024:.1f} GiB of GPU memory, as 95 of 100 such runs"
    earlier = "" if before is None else f" At its submission {before:.3g} % was expected."
    by = source_words(UseSource.PROMETHEUS, predicted["busy_means"])
    return f"After {end} minutes: {'; '.join(facts)}, by {by}. So it will likely use {likely}.{earlier}"


def unused_sentence(runs: pd.DataFrame, held_s: Floats) -> str:
    """Return the share of requested memory and CPU hours not used.

    Of memory the peak counts, as if it was held all the time. It is empty where nothing was measured.

    Parameters
    ----------
    runs : DataFrame
        Result of :func:`with_use`, with ``memory_mib``, ``cpus`` and ``run_time_s``.
    held_s : float64 array of shape (n_runs,)
        How long each run held them in the window, s.
    """
    run_time_s = runs["run_time_s"].where(runs["run_time_s"] > 0)
    shares = []
    for asked, used in (
        (runs["memory_limit_mib"].fillna(runs["memory_mib"]), runs["memory_peak_mib"]),
        (runs["cpus"], runs["cpu_s"] / run_time_s),
    ):
        known = (asked.notna() & used.notna() & (asked > 0)).to_numpy()
        hours = (asked * held_s)[known]
        left = hours - (np.minimum(used, asked) * held_s)[known]
        shares.append(percent(left.sum() / hours.sum()) if hours.sum() > 0 else "an unknown share")
    if shares[0] == shares[1] == "an unknown share":
        return ""
    return f"Of the memory hours asked for {shares[0]} was not used at the jobs' peak, of the CPU hours {shares[1]}."


def use_lines(use: pd.DataFrame, gpus: pd.DataFrame, runs: pd.DataFrame, *, cpus: float) -> Iterator[str]:
    """Yield what one job used as sentences, one for each run and source.

    Parameters
    ----------
    use, gpus : DataFrame
        Columns of ``JOB_USE`` and ``GPU_USE``, of this job alone.
    runs : DataFrame
        ``number`` and ``run_time_s`` of its runs.
    cpus : float
        CPUs that it held, NaN where unknown.
    """
    run_s = dict(zip(runs["number"], runs["run_time_s"], strict=True)) if len(runs) else {}
    trust = use["source"].astype("object").map({source: place for place, source in enumerate(UseSource)})
    rows = use.assign(trust=trust, is_contradicted=contradict(use)).sort_values(["restart", "trust"])
    for row in rows.to_dict("records"):
        which = f"Run {row['restart']}, measured" if len(run_s) > 1 else "Measured"
        quality = CONTRADICTED if row["is_contradicted"] else QUALITIES.get(row["quality"], "")
        if row["quality"] in {UseQuality.NONE, UseQuality.BROKEN}:
            yield f"{which} by {SOURCES[row['source']]}: {quality}."
            continue
        own = gpus[(gpus["restart"] == row["restart"]) & (gpus["source"] == row["source"])]
        parts = [*_gpu_parts(row, own), *_other_parts(row, cpus, run_s.get(row["restart"], float("nan")))]
        is_known = row["utilization"] >= 0  # NaN where unknown
        by = source_words(row["source"], row["busy_means"]) if is_known else SOURCES[row["source"]]
        yield f"{which} by {by}: {'; '.join([*parts, *([quality] if quality else [])]) or 'nothing is known'}."


def _gpu_parts(row: Mapping[Hashable, Any], gpus: pd.DataFrame) -> Iterator[str]:
    if row["utilization"] >= 0:
        most = "" if np.isnan(row["utilization_max"]) else f", at most {row['utilization_max']:.0f} %"
        yield f"GPUs {row['utilization']:.3g} % busy on average{most}"
    if len(gpus) > 1 and (idle := int((gpus["utilization"] < IDLE).sum())):
        yield f"{idle} of {count_in_words(len(gpus), 'GPU')} below {IDLE:g} %"
    if row["longest_idle_s"] > 0:
        yield f"idle for at most {duration_in_words(row['longest_idle_s'])} at a time"
    if row["gpu_memory_peak_mib"] >= 0:
        total = f" of {row['gpu_memory_total_mib'] / 1024:.1f}" if row["gpu_memory_total_mib"] > 0 else ""
        yield f"GPU memory at most {row['gpu_memory_peak_mib'] / 1024:.1f}{total} GiB, which proves no use"


def _other_parts(row: Mapping[Hashable, Any], cpus: float, run_s: float) -> Iterator[str]:
    if row["cpu_s"] >= 0 and run_s > 0:
        yield f"{row['cpu_s'] / run_s:.1f} of {count_in_words(cpus, 'CPU')} busy"
    if row["memory_peak_mib"] >= 0:
        limit = f" of {row['memory_limit_mib'] / 1024:.1f}" if row["memory_limit_mib"] > 0 else ""
        yield f"memory at most {row['memory_peak_mib'] / 1024:.1f}{limit} GiB"
    if row["covered_s"] >= 0 and run_s > 0:
        yield f"{percent(min(row['covered_s'] / run_s, 1.0))} of the run measured"
