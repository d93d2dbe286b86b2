"""Advice for users about their requests.

Jobs are alike if user, partition, words of the name, GPUs, CPUs and the request itself are equal. There is no advice on
fewer than ``FEWEST_JOBS`` alike jobs, except where the counts alone suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.statistics import share_interval
from helios.model import JobState
from helios.model.records import split_words
from helios.report.admin.sacct_format import slurm_length
from helios.units import HOUR_S, MINUTE_S, count_in_words, duration_in_words, percent

FITS = 0.95
"""Share of alike jobs that a proposed request should fit."""
FEWEST_JOBS = 20
"""Fewest alike jobs. At least 19 are needed to bound 95 % of further ones."""
EXCESS_RATIO = 2.0
"""Ratio of the request to the proposal from which there is advice."""
TIME_MARGIN = 1.25
"""Factor on the time that 95 % of jobs needed, because later jobs differ from earlier ones. With it 95 % of later jobs
fit on Graham and 80 % on Cedar, where no names are recorded, without it 93 % and 79 % (benchmarks/advise.py)."""
LEAST_HOURS = 1.0
"""Fewest hours held by jobs with advice."""
LEAST_SPARE_S = 30 * MINUTE_S
FEWEST_LOST = 3
OFTEN = 0.05
"""Share of alike jobs that end at a limit from which there is advice."""
MEMORY_MARGIN = 1.2
"""Factor on measured memory, because accounting samples every 30 s by default and misses short peaks."""
SHORTEST_MEASURED_S = 300
"""Shortest run time of jobs whose measured use counts, because of the interval of samples."""
KEYS = ["user", "partition", "words", "gpus", "cpus"]
ENDS = {
    JobState.TIMEOUT: ("limit_too_short", "reached their time limit", "Ask for more time, or save and resume."),
    JobState.OUT_OF_MEMORY: ("memory_too_small", "ran out of memory", "Ask for more memory."),
}
GROUP_COLUMNS = (
    *(*KEYS, "job_id", "state", "run_time_s", "nodes", "time_limit_s", "memory_mib"),
    *("cpu_s", "used_memory_mib"),
    *("idle_h", "idle_gpus", "measure", "is_batch"),
)
"""Columns of a group of alike jobs; of the last lines where use was measured, and where that of GPUs was."""
Columns = Mapping[str, NDArray[Any]]
"""Columns of alike jobs, in the order of the jobs."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval that belongs to an advice.

    Attributes
    ----------
    meaning : str
        Meaning of the interval, with its probability.
    low, high : float
    unit : str
        ``s``, ``MiB``, ``CPUs``, ``GPU hours``, or ``share`` of 1.
    """

    meaning: str
    low: float
    high: float
    unit: str

    def __str__(self) -> str:
        low, high = (_with_unit(value, self.unit) for value in (self.low, self.high))
        return f"{self.meaning}: {low} to {high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change that a user may make, with its evidence.

    Attributes
    ----------
    kind : str
        A key of ``helios.report.advice_table.KINDS``.
    user, which : str
        User, and description of the jobs.
    sentence : str
    option : str
        Option for ``sbatch`` to use instead. Empty where there is no fixed one.
    jobs : int
        Number of jobs in the evidence.
    hours : float
        Hours that they held, or that their GPUs were idle.
    resource : str
        Unit of the hours, ``GPU`` or ``CPU``.
    interval : Interval
    example : str
        Id of the last of the jobs. Empty where it is not known.
    """

    kind: str
    user: str
    which: str
    sentence: str
    option: str = ""
    jobs: int
    hours: float
    resource: str
    interval: Interval
    example: str = ""

    def lines(self) -> list[str]:
        """Return it as text, the evidence last."""
        evidence = f"Evidence: {self.jobs:,} jobs, {self.hours:,.0f} {self.resource} hours; {self.interval}."
        return [f"{self.which}: {self.sentence}", *([f"Try: {self.option}"] if self.option else []), evidence]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        interval = {part.name: getattr(self.interval, part.name) for part in fields(self.interval)}
        return {part.name: getattr(self, part.name) for part in fields(self)} | {"interval": interval}


def limit_advice(jobs: pd.DataFrame) -> list[Advice]:
    """Return advice from time limits and final states of jobs.

    Parameters
    ----------
    jobs : DataFrame
        ``job_id``, ``user``, ``partition``, ``name``, ``gpus``, ``cpus``, ``state``, ``run_time_s``, ``time_limit_s``
        and ``memory_mib`` of ``JOBS``.
    """
    ran = with_name_words(jobs[(jobs["run_time_s"] > 0) & jobs["user"].notna()])
    is_counted = ran[ran["state"].isin([JobState.COMPLETED, JobState.TIMEOUT]) | ran["state"].isna()]
    advice = [_limit_too_long(alike) for alike in alike_jobs(is_counted, "time_limit_s")]
    for state, request in ((JobState.TIMEOUT, "time_limit_s"), (JobState.OUT_OF_MEMORY, "memory_mib")):
        ended = (ran["state"] == state).to_numpy()
        if np.count_nonzero(ended) < FEWEST_LOST:
            continue
        groups = alike_jobs(ran, request, fewest=FEWEST_LOST, counted=ended)
        advice += [_ended_jobs_advice(alike, state, request) for alike in groups]
    return [item for item in advice if item is not None]


def usage_advice(usage: pd.DataFrame) -> list[Advice]:
    """Return advice from the measured use of memory and CPUs.

    Parameters
    ----------
    used : DataFrame
        Result of :func:`helios.slurm.accounting.read_usage`.
    """
    measured = with_name_words(usage[(usage["run_time_s"] >= SHORTEST_MEASURED_S) & usage["used_memory_mib"].notna()])
    groups = alike_jobs(measured, "memory_mib")
    advice = [advise(alike) for alike in groups for advise in (_memory_too_large, _unused_cpus)]
    return [item for item in advice if item is not None]


def packing_advice(rows: pd.DataFrame, gains: tuple[float, float]) -> Iterator[Advice]:
    """Yield the report of repeated trials as advice."""
    for row in rows.to_dict("records"):
        low, high = float(row["saved_hours_low"]), float(row["saved_hours_high"])
        if high < 1 or row["fusible_hours_high"] <= 0:
            continue
        yield Advice(
            kind="packing",
            user=str(row["user"]),
            which=f"{int(row['groups']):,} groups of repeated jobs of few GPUs",
            sentence="jobs of one GPU may share one, two on each; a training pool measures whether that gains.",
            option="helios pool run sweep.toml",
            jobs=int(row["jobs"]),
            hours=float(row["fusible_hours_high"]),
            resource="GPU",
            interval=Interval(
                meaning=f"saved, if sharing gains {gains[0]:g} to {gains[1]:g}", low=low, high=high, unit="GPU hours"
            ),
        )


def sort_by_hours(advice: list[Advice]) -> list[Advice]:
    """Sort advice by hours and drop that on few hours."""
    return sorted(
        (item for item in advice if item.hours >= LEAST_HOURS),
        key=lambda item: (-item.hours, item.user, item.kind, item.which),
    )


def with_name_words(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return jobs with a column for the words of their name."""
    texts = {name: _categories(jobs[name]) for name in ("user", "partition", "name")}
    words, place = np.unique([split_words(name) for name in texts["name"].categories], return_inverse=True)
    of_job = pd.Categorical.from_codes(place[texts["name"].codes], pd.Index(words, dtype="str"))
    return jobs.assign(**texts, words=of_job)


def _categories(texts: pd.Series[Any]) -> pd.Categorical[str]:
    """Return texts as sorted categories, which are grouped several times as fast as texts.

    A missing text is empty.
    """
    if isinstance(texts.dtype, pd.CategoricalDtype):
        code, values = texts.cat.codes.to_numpy(), texts.cat.categories
        if values.is_monotonic_increasing and "" not in values:
            return pd.Categorical.from_codes(code.astype(np.int64) + 1, pd.Index(["", *values], dtype="str"))
    code, values = pd.factorize(texts.astype("str").fillna(""), sort=True)
    return pd.Categorical.from_codes(code, pd.Index(values, dtype="str"))


def alike_jobs(
    jobs: pd.DataFrame, request: str, *, fewest: int = FEWEST_JOBS, counted: Flags | None = None
) -> Iterator[Columns]:
    """Yield groups of alike jobs with equal values of ``request``.

    Parameters
    ----------
    jobs : DataFrame
        Result of :func:`with_name_words`.
    fewest : int
        Groups with fewer jobs are left out.
    counted : bool array of shape (n_jobs,), optional
        Jobs that count for ``fewest``. All jobs by default.
    """
    group = jobs.groupby([*KEYS, request], observed=True, dropna=False, sort=True).ngroup().to_numpy()
    is_large_enough = np.bincount(group, weights=counted) >= fewest if len(group) else np.zeros(0, dtype=bool)
    kept = np.flatnonzero(is_large_enough[group])
    kept = kept[np.argsort(group[kept], kind="stable")]
    # Arrays, because pandas takes a millisecond for each of a dozen steps on each of some thousand groups.
    columns = {name: jobs[name].to_numpy()[kept] for name in GROUP_COLUMNS if name in jobs}
    bounds = [0, *(np.flatnonzero(np.diff(group[kept])) + 1).tolist(), len(kept)]
    for first, end in pairwise(bounds if len(kept) else []):
        yield {name: values[first:end] for name, values in columns.items()}


def _with_unit(value: float, unit: str) -> str:
    if unit == "s":
        return duration_in_words(value)
    if unit == "MiB":
        return f"{value / 1024:.1f} GiB"
    return percent(value) if unit == "share" else f"{value:,.3g} {unit}"


def _upper_bound(values: Floats) -> float:
    """Return an upper bound for one more alike job, perhaps infinite.

    It holds with probability ``FITS`` if the order of the values is random. It is an order statistic.
    """
    rank = math.ceil(FITS * (len(values) + 1))
    return float(np.sort(values)[rank - 1]) if rank <= len(values) else math.inf


def describe_group(alike: Columns, request: str = "") -> str:
    """Return what alike jobs have in common, in words."""
    values = {name: alike[name][0] for name in KEYS}
    name = f" {values['words']!r}" if values["words"] else ""
    size = [count_in_words(float(values["gpus"]), "GPU")] if values["gpus"] > 0 else []
    size += [count_in_words(int(values["cpus"]), "CPU")] if values["cpus"] > 0 else []
    where = f" in {values['partition']}" if values["partition"] not in {"", "nan"} else ""
    return f"Jobs{name}{where}" + (f" of {' and '.join(size)}" if size else "") + request


def _hours_held(alike: Columns) -> dict[str, Any]:
    resource = "GPU" if (alike["gpus"] > 0).all() else "CPU"
    units = alike["gpus"] if resource == "GPU" else np.fmax(alike["cpus"], 1.0)
    hours = float((units * alike["run_time_s"]).sum()) / HOUR_S
    last = {"user": str(alike["user"][-1]), "example": str(alike["job_id"][-1])}
    return {**last, "jobs": len(units), "hours": hours, "resource": resource}


def _rows(alike: Columns, chosen: Flags) -> Columns:
    return {name: values[chosen] for name, values in alike.items()}


def _central_interval(values: Floats, meaning: str, unit: str) -> Interval:
    # As np.quantile, which takes ten times as long for so few values.
    low, high = np.interp(np.array([0.1, 0.9]) * (len(values) - 1), np.arange(len(values)), np.sort(values))
    return Interval(meaning=meaning, low=float(low), high=float(high), unit=unit)


def _limit_too_long(alike: Columns) -> Advice | None:
    limit_s = float(alike["time_limit_s"][0])
    run_s = alike["run_time_s"]
    # A job that reached its limit would have run longer, for an unknown time.
    needed_s = _upper_bound(np.where(alike["state"] == JobState.TIMEOUT, np.inf, run_s))
    if not math.isfinite(needed_s) or math.isnan(limit_s):
        return None
    step_s = 15 * MINUTE_S if needed_s < 4 * HOUR_S else HOUR_S
    proposed_s = math.ceil(TIME_MARGIN * needed_s / step_s) * step_s
    if limit_s < EXCESS_RATIO * proposed_s or limit_s - proposed_s < LEAST_SPARE_S:
        return None
    limit = "no time limit" if math.isinf(limit_s) else f"a limit of {duration_in_words(limit_s)}"
    return Advice(
        kind="limit_too_long",
        which=describe_group(alike, f" with {limit}"),
        sentence=f"95 in 100 ran at most {duration_in_words(needed_s)}. A shorter limit lets such jobs fit into "
        "gaps of the queue, and start earlier.",
        option=f"--time={slurm_length(proposed_s)}",
        interval=_central_interval(run_s, "the middle 8 of 10 ran", "s"),
        **_hours_held(alike),
    )


def _ended_jobs_advice(alike: Columns, state: JobState, request: str) -> Advice | None:
    ended = alike["state"] == state
    count = int(ended.sum())
    if count < FEWEST_LOST:
        return None
    low, high = share_interval(count, len(alike["user"]))
    if low < OFTEN:
        return None
    kind, problem, remedy = ENDS[state]
    request_value = float(alike[request][0])
    size = "" if math.isnan(request_value) else f" with {_format_request(request, request_value)}"
    lost = _hours_held(_rows(alike, ended))
    return Advice(
        kind=kind,
        which=describe_group(alike, size),
        sentence=f"{count:,} of {len(alike['user']):,} {problem}, "
        f"after {lost['hours']:,.0f} {lost['resource']} hours. {remedy}",
        interval=Interval(meaning="their share, 95 % sure", low=low, high=high, unit="share"),
        **_hours_held(alike),
    )


def _format_request(request: str, amount: float) -> str:
    if request == "memory_mib":
        return f"{amount / 1024:.3g} GiB"
    return "no time limit" if math.isinf(amount) else f"a limit of {duration_in_words(amount)}"


def _memory_too_large(alike: Columns) -> Advice | None:
    requested_mib, used_mib = float(alike["memory_mib"][0]), alike["used_memory_mib"]
    needed_mib = _upper_bound(np.where(alike["state"] == JobState.OUT_OF_MEMORY, np.inf, used_mib))
    if len(alike["user"]) < FEWEST_JOBS or math.isnan(requested_mib) or not math.isfinite(needed_mib):
        return None
    proposed_gib = math.ceil(MEMORY_MARGIN * needed_mib / 1024)
    if requested_mib < EXCESS_RATIO * 1024 * proposed_gib or (alike["nodes"] > 1).any():  # --mem is for each node
        return None
    return Advice(
        kind="memory_too_large",
        which=describe_group(alike, f" with {requested_mib / 1024:.3g} GiB"),
        sentence=f"95 in 100 used at most {needed_mib / 1024:.1f} GiB.",
        option=f"--mem={proposed_gib}G",
        interval=_central_interval(used_mib, "the middle 8 of 10 used", "MiB"),
        **_hours_held(alike),
    )


def _unused_cpus(alike: Columns) -> Advice | None:
    requested, busy = float(alike["cpus"][0]), (alike["cpu_s"] / alike["run_time_s"])
    needed = _upper_bound(busy)
    if len(alike["user"]) < FEWEST_JOBS or math.isnan(requested) or not math.isfinite(needed):
        return None
    proposed = max(math.ceil(needed), 1)
    if requested < EXCESS_RATIO * proposed:
        return None
    return Advice(
        kind="cpus_unused",
        which=describe_group(alike),
        sentence=f"95 in 100 kept at most {needed:.1f} CPUs busy on average.",
        option=f"{proposed} instead of {requested:.0f} CPUs (--cpus-per-task)",
        interval=_central_interval(busy, "the middle 8 of 10 kept busy", "CPUs"),
        **_hours_held(alike),
    )
