"""What sharing GPUs would have saved at a site, beside simpler changes.

The site's own jobs of one GPU are put together by what was predicted of them before they began, and judged by what was
measured (:mod:`helios.study.gpu_sharing`). Then the queue is replayed, in which each has its share of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import RenderableType

from helios.app.history import LoadedHistory
from helios.app.resampling import redraw, resampler_for
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.errors import JobLargerThanPartition, NotEnoughHistory, PartitionUnknown
from helios.metrics.blocks import Estimate
from helios.metrics.history import Flags, Floats, StudyHistory, read_history, share
from helios.metrics.job_use import IDLE_TIMEOUT_S, one_row_a_run
from helios.metrics.trials import GAINS, find_trials, saved_hours
from helios.ports import Progress, no_progress
from helios.predict.job_use import PredictedUse, predict_use, runs_with_use
from helios.report.tables import plain_table
from helios.simulate import ORDERS
from helios.study.gpu_sharing import SLOWDOWNS, OneGpuJobs, SharedGpus, share_gpus
from helios.study.sentences import value_text
from helios.study.statements.use import freed_hours, sources_of, use_of_history
from helios.units import HOUR_S, duration_in_words, format_signed, percent
from helios.warehouse import Warehouse

TOGETHER = (2, 4)
"""Jobs on a GPU."""
PARTS = 12
"""Parts of a GPU in which shares are replayed."""
FEWEST_DRAWS = 10
"""Draws below which no range of waits is given."""
MOST_DRAWN = 2_000_000
"""Most jobs of all draws together."""
WARM_UP = timedelta(days=3)
ON_SLURM = (
    "On Slurm, gres/shard carries it: a partition of GPUs with shards, and a hint at submission to whom it fits. Slurm "
    "does not keep apart what jobs hold on such a GPU, so begin with users who agree.",
    "MPS lets jobs of one user at a time share a GPU and run at once: for few users. MIG keeps jobs apart, in sizes "
    "that the site sets.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRequest:
    """How sharing is judged.

    Attributes
    ----------
    gpu_memory_mib : float, optional
        Memory of a GPU where the measurements do not say.
    timeout_s : float
        Idle time after which an interactive session would end.
    replay : WhatIfRequest
        Window and nodes.
    draws : int
        Draws of the window for the range of waits.
    """

    gpu_memory_mib: float | None = None
    timeout_s: float = IDLE_TIMEOUT_S
    replay: WhatIfRequest = field(default_factory=WhatIfRequest)
    draws: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingCase:
    """One change, and what it would have brought.

    Attributes
    ----------
    change : str
    jobs : int
        Jobs that it touches.
    saved_hours : float, optional
        GPU hours; the least that is known, None where nothing is.
    of_one_gpu, of_all : Estimate
        ``saved_hours`` as a share of the GPU hours of jobs of one GPU, and of all.
    overflow : float, optional
        Share of the jobs that share whose memory would not have fit.
    slowdown : dict of float, optional
        Mean run time beside that alone of jobs that share, by ``SLOWDOWNS``.
    saved_by_slowdown : dict of float, optional
        GPU hours saved, by ``SLOWDOWNS``.
    less_wait_s, less_wait_low_s, less_wait_high_s : float, optional
        By how much the mean wait of all jobs is shorter in a replay of the queue, and between what it lies in nine of
        ten draws. None where nothing was replayed.
    """

    change: str
    jobs: int
    saved_hours: float | None
    of_one_gpu: Estimate
    of_all: Estimate
    overflow: float | None = None
    slowdown: dict[str, float] | None = None
    saved_by_slowdown: dict[str, float] | None = None
    less_wait_s: float | None = None
    less_wait_low_s: float | None = None
    less_wait_high_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownUse:
    """How much of one-GPU jobs was measured, and how well it was predicted.

    Attributes
    ----------
    measured : float
        Share of their hours with measured use and memory.
    judged : float
        Share of their hours with a prediction beside it.
    covered_runs, covered_hours : float, optional
        Share of the runs, and of their hours, that stayed within the predicted memory; 95 % are meant to.
    use_error : float, optional
        Mean error of the predicted utilization a GPU hour, points.
    sessions : float
        Share of all GPU hours of which it is known whether they were of an interactive session, and when it idled.
    """

    measured: float
    judged: float
    covered_runs: float | None
    covered_hours: float | None
    use_error: float | None
    sessions: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingReport:
    """What each change would have brought in a window.

    Attributes
    ----------
    gpu_hours, one_gpu_hours : float
        Of all jobs, and of those of one GPU.
    known : KnownUse
    sources : tuple of str
        Who measured, and what busy means there.
    cases : tuple of SharingCase
    notes : tuple of str
    """

    cluster: str
    gpu_hours: float
    one_gpu_hours: float
    known: KnownUse
    sources: tuple[str, ...]
    cases: tuple[SharingCase, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "sentences": list(self.sentences)}

    @property
    def sentences(self) -> list[str]:
        """The report as sentences, what is not known first."""
        return list(_sentences(self))

    def tables(self) -> list[RenderableType]:
        """Return the report for a terminal."""
        rows = [
            (
                case.change,
                f"{case.jobs:,}",
                value_text(case.of_one_gpu, "share"),
                value_text(case.of_all, "share"),
                "-" if case.overflow is None else percent(case.overflow, 1),
                "-" if case.slowdown is None else f"{case.slowdown['by_use']:.2f}",
                "-" if case.less_wait_s is None else format_signed(-case.less_wait_s),
            )
            for case in self.cases
        ]
        names = ("Change", "Jobs", "Of one-GPU hours", "Of all", "Overflow", "Slowdown", "Mean wait")
        return [*self.sentences[:1], "", plain_table(*names, rows=rows), "", *self.sentences[1:]]


def load_use(url: str, cluster: str) -> pd.DataFrame:
    """Return what all runs of a cluster used, columns of ``JOB_USE``."""
    with Warehouse.open(url) as warehouse:
        return warehouse.job_use(cluster)


def find_sharing(
    loaded: LoadedHistory, use: pd.DataFrame, request: SharingRequest, *, progress: Progress = no_progress
) -> SharingReport:
    """Return what sharing would have brought.

    Parameters
    ----------
    use : DataFrame
        Columns of ``JOB_USE``, of the same jobs.

    Raises
    ------
    NotEnoughHistory
        No memory of GPUs was measured, or nothing says how much a GPU has, or no job of one GPU ran in the window.
    """
    jobs = loaded.jobs.reset_index(drop=True).assign(row=np.arange(len(loaded.jobs)))
    progress("Predicting use", 0.0)
    predicted = predict_use(runs_with_use(jobs, one_row_a_run(use)))
    history = read_history(
        jobs,
        cluster=loaded.cluster,
        timezone=loaded.timezone,
        since=request.replay.since,
        until=request.replay.until,
        resource="gpus",
        keep=("row",),
    )
    is_one = (history.size == 1) & (history.hours() > 0)
    if not (history.has_starts and is_one.any()):
        raise NotEnoughHistory(
            f"No job of one GPU with a known start ran on {loaded.cluster} in the window.",
            hint="Choose --from and --to within the history.",
        )
    measured = use_of_history(history, use)
    _refuse_unmeasured(loaded.cluster, measured[is_one], request)
    row = history.jobs["row"].to_numpy()
    sharing = _one_gpu_jobs(history, measured, _rows(predicted, row), is_one, request)
    cases, changed = _sharing_cases(history, jobs, row, sharing, is_one)
    freed = freed_hours(history, measured, request.timeout_s)
    cases.append(_timeout_case(history, freed, is_one, request.timeout_s))
    run_time_s = jobs["run_time_s"].to_numpy(dtype=np.float64, copy=True)
    run_time_s[row] -= np.nan_to_num(freed) * HOUR_S / np.where(history.size > 0, history.size, 1)
    changed.append(jobs.assign(run_time_s=np.where(run_time_s < 1, jobs["run_time_s"], run_time_s)))
    cases, notes = _with_waits(replace(loaded, jobs=jobs), changed, cases, request, progress)
    if history.user.known.any():
        cases.append(_trials_case(history, is_one))
    return SharingReport(
        cluster=loaded.cluster,
        gpu_hours=float(history.hours().sum()),
        one_gpu_hours=float(history.hours()[is_one].sum()),
        known=_known(history, sharing, is_one, freed),
        sources=tuple(sources_of(measured[is_one])),
        cases=tuple(cases),
        notes=notes,
    )


def _refuse_unmeasured(cluster: str, measured: pd.DataFrame, request: SharingRequest) -> None:
    """Raise an error where nobody knows what fits on a GPU."""
    if not measured["gpu_memory_peak_mib"].notna().any():
        raise NotEnoughHistory(
            f"No memory of GPUs was measured for jobs of one GPU of {cluster} in the window, and without it nobody "
            "knows what fits.",
            hint="Load what jobs used: helios trace use FILE, or helios trace use for Prometheus",
        )
    if request.gpu_memory_mib is None and not measured["gpu_memory_total_mib"].notna().any():
        raise NotEnoughHistory(
            "The measurements do not say how much memory a GPU has.", hint="Give it, in MiB: --gpu-memory 40960"
        )


def _rows(predicted: PredictedUse, row: NDArray[np.int64]) -> PredictedUse:
    return PredictedUse(
        utilization=predicted.utilization[row],
        idle_chance=predicted.idle_chance[row],
        memory_mib=predicted.memory_mib[row],
    )


def _one_gpu_jobs(
    history: StudyHistory, measured: pd.DataFrame, predicted: PredictedUse, is_one: Flags, request: SharingRequest
) -> OneGpuJobs:
    """Return the jobs of one GPU of their own."""
    totals = measured["gpu_memory_total_mib"]
    place = pd.Series(list(zip(history.partition.code, history.gpu_type.code, strict=True)))
    gpu_mib = totals.fillna(totals.groupby(place).transform("median"))
    gpu_mib = gpu_mib.fillna(np.nan if request.gpu_memory_mib is None else request.gpu_memory_mib)
    alone = is_one & (measured["is_mig"] != 1).to_numpy() & (measured["is_shared"] != 1).to_numpy()
    group = pd.factorize(pd.MultiIndex.from_arrays([history.partition.code, history.gpu_type.code, gpu_mib]))[0]
    return OneGpuJobs(
        started_s=np.clip(history.started_s, history.first_s, history.end_s),
        ended_s=np.clip(history.ended_s, history.first_s, history.end_s),
        group=np.where(alone, group, -1),
        predicted_mib=predicted.memory_mib,
        predicted_use=predicted.utilization,
        memory_mib=measured["gpu_memory_peak_mib"].to_numpy(dtype=np.float64),
        utilization=measured["utilization"].to_numpy(dtype=np.float64),
        gpu_mib=gpu_mib.to_numpy(dtype=np.float64),
    )


def _known(history: StudyHistory, jobs: OneGpuJobs, is_one: Flags, freed: Floats) -> KnownUse:
    """Return how much is measured, and how good the predictions were."""
    hours = history.hours()
    has_use = is_one & ~np.isnan(jobs.memory_mib) & ~np.isnan(jobs.utilization)
    has_bound = is_one & ~np.isnan(jobs.memory_mib) & ~np.isnan(jobs.predicted_mib)
    is_covered = (jobs.memory_mib <= jobs.predicted_mib) & has_bound
    has_both = has_use & ~np.isnan(jobs.predicted_use)
    error = np.abs(jobs.predicted_use - jobs.utilization)
    return KnownUse(
        measured=float(hours[has_use].sum() / hours[is_one].sum()),
        judged=float(hours[has_both & has_bound].sum() / hours[is_one].sum()),
        covered_runs=share(is_covered, has_bound),
        covered_hours=share(hours[is_covered], hours[has_bound]),
        use_error=float(np.average(error[has_both], weights=hours[has_both])) if has_both.any() else None,
        sessions=float(hours[~np.isnan(freed)].sum() / hours.sum()),
    )


def _sharing_cases(
    history: StudyHistory, jobs: pd.DataFrame, row: NDArray[np.int64], sharing: OneGpuJobs, is_one: Flags
) -> tuple[list[SharingCase], list[pd.DataFrame]]:
    """Return what each number of jobs on a GPU brings.

    The second value are the jobs as they would be in the queue.
    """
    cases, changed = [], []
    for most in TOGETHER:
        found = share_gpus(sharing, most=most)
        alone_s = (sharing.ended_s - sharing.started_s).astype(np.float64)
        shared = found.shared_s > 0
        saved = {name: (alone_s - found.gpu_s[:, way]) / HOUR_S for way, name in enumerate(SLOWDOWNS)}
        times = {name: found.taken_s[shared, way] / alone_s[shared] for way, name in enumerate(SLOWDOWNS)}
        cases.append(
            SharingCase(
                change=f"{most} jobs to a GPU",
                jobs=int(shared.sum()),
                **_shares(history, saved["by_use"], is_one),
                overflow=float(found.did_overflow.sum() / shared.sum()) if shared.any() else None,
                slowdown={name: float(ratio.mean()) for name, ratio in times.items()} if shared.any() else None,
                saved_by_slowdown={name: float(hours.sum()) for name, hours in saved.items()},
            )
        )
        changed.append(_in_queue(jobs, row[shared], alone_s[shared], found, shared))
    return cases, changed


def _in_queue(
    jobs: pd.DataFrame, row: NDArray[np.int64], alone_s: Floats, found: SharedGpus, shared: Flags
) -> pd.DataFrame:
    """Return the jobs with their part of a GPU and longer run time."""
    run_time_s, gpus = (jobs[name].to_numpy(dtype=np.float64, copy=True) for name in ("run_time_s", "gpus"))
    taken_s, gpu_s = found.taken_s[shared, 0], found.gpu_s[shared, 0]
    run_time_s[row] = np.ceil(run_time_s[row] * taken_s / alone_s)
    gpus[row] = np.maximum(np.round(gpu_s / taken_s * PARTS), 1) / PARTS
    return jobs.assign(run_time_s=run_time_s, gpus=gpus, gpus_requested=gpus)


def _timeout_case(history: StudyHistory, freed: Floats, is_one: Flags, timeout_s: float) -> SharingCase:
    """Return what ending idle sessions frees."""
    is_known = ~np.isnan(freed) & (history.hours() > 0)
    nothing = {"saved_hours": None, "of_one_gpu": Estimate(), "of_all": Estimate()}
    return SharingCase(
        change=f"Idle sessions end after {duration_in_words(timeout_s)}",
        jobs=int((freed > 0).sum()),
        **(_shares(history, np.nan_to_num(freed), is_one) if is_known.any() else nothing),
    )


def _trials_case(history: StudyHistory, is_one: Flags) -> SharingCase:
    """Return what two repeated trials on a GPU save at most.

    It is as ``helios report trials`` says.
    """
    trials = find_trials(history)
    saved = saved_hours(history, trials.possible, GAINS[1])
    return SharingCase(
        change="Repeated trials, at most", jobs=2 * int((saved > 0).sum()), **_shares(history, saved, is_one)
    )


def _shares(history: StudyHistory, saved: Floats, is_one: Flags) -> dict[str, Any]:
    """Return the hours saved, and their shares with intervals over weeks or days."""
    moment_s = np.clip(history.started_s, history.first_s, history.end_s - 1)
    hours, blocks = history.hours(), history.blocks
    by_block = blocks.sum(moment_s, saved)
    of_one = by_block if saved[~is_one].sum() == 0 else blocks.sum(moment_s, np.where(is_one, saved, 0.0))
    return {
        "saved_hours": float(saved.sum()),
        "of_one_gpu": blocks.ratio(of_one, blocks.sum(moment_s, np.where(is_one, hours, 0.0))).bounded(-np.inf, 1.0),
        "of_all": blocks.ratio(by_block, blocks.sum(moment_s, hours)).bounded(-np.inf, 1.0),
    }


def _with_waits(
    loaded: LoadedHistory,
    changed: Sequence[pd.DataFrame],
    cases: Sequence[SharingCase],
    request: SharingRequest,
    progress: Progress,
) -> tuple[list[SharingCase], tuple[str, ...]]:
    """Replay the queue as it was and with each change, and draws of both."""
    asked = replace(request.replay, resource="gpus", skip_oversized=True, warm_up=WARM_UP)
    try:
        setups = [prepare_replay(replace(loaded, jobs=jobs), asked) for jobs in (loaded.jobs, *changed)]
    except (NotEnoughHistory, PartitionUnknown, JobLargerThanPartition) as reason:
        return list(cases), (f"No queue was replayed: {reason.message}",)
    base, resampler = setups[0], resampler_for(setups[0])
    draws = min(request.draws, MOST_DRAWN // len(base.counted))
    less = np.zeros((draws + 1, len(cases)))
    for draw in range(draws + 1):
        progress("Replaying the queue", draw / (draws + 1))
        waits = [
            _mean_wait_s(redraw(setup, resampler, repeat=draw, seed=asked.seed) if draw else setup) for setup in setups
        ]
        less[draw] = waits[0] - np.array(waits[1:])
    progress("Replaying the queue", 1.0)
    low, high = np.quantile(less[1:], (0.05, 0.95), axis=0) if draws >= FEWEST_DRAWS else np.full((2, len(cases)), None)
    found = [
        replace(case, less_wait_s=float(less[0, n]), less_wait_low_s=low[n], less_wait_high_s=high[n])
        for n, case in enumerate(cases)
    ]
    return found, (*base.notes, *base.machine.notes)


def _mean_wait_s(setup: ReplaySetup) -> float:
    result = setup.machine.replay(ORDERS["fifo"], default_limit_s=setup.default_limit_s)
    return float(result.wait_s[setup.counted].mean())


def _sentences(report: SharingReport) -> Iterator[str]:
    known = report.known
    yield (
        f"{percent(1 - known.measured)} of the hours of one-GPU jobs were not measured and "
        f"{percent(known.measured - known.judged)} not predicted: they share nothing here. One-GPU jobs had "
        f"{percent(report.one_gpu_hours / report.gpu_hours)} of all GPU hours."
    )
    if report.sources:
        yield f"Measured by {', '.join(report.sources)}. Memory is the peak of a run, as if it held it all the time."
    if known.covered_runs is not None and known.covered_hours is not None and known.use_error is not None:
        yield (
            f"{percent(known.covered_runs)} of one-GPU runs and {percent(known.covered_hours)} of their hours stayed "
            f"within the memory predicted before they began (meant: 95 %); their use was predicted within "
            f"{known.use_error:.1f} points a GPU hour."
        )
    for case in report.cases:
        if case.slowdown is not None and case.saved_by_slowdown is not None:
            mild, harsh = (
                f"{case.slowdown[name]:.2f} times as long and save {case.saved_by_slowdown[name]:,.0f}"
                for name in SLOWDOWNS[1:]
            )
            yield (
                f"{case.change}: if each slows the other as pairs measured by Lucid, jobs take {mild} GPU hours; as "
                f"Gavel's on a V100, {harsh}."
            )
        if case.less_wait_low_s is not None and case.less_wait_high_s:
            ends = " to ".join(format_signed(-end) for end in (case.less_wait_high_s, case.less_wait_low_s))
            yield f"{case.change}: in nine of ten draws the mean wait changes by {ends}."
    if known.sessions < 1:
        yield (
            f"Of {percent(1 - known.sessions)} of GPU hours it is not known whether they were of an interactive "
            "session that idled: an idle time-out may free more."
        )
    yield from ON_SLURM
