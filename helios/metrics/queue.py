"""Metrics of a queue, for real and replayed history alike.

All take arrays of shape (n_jobs,), times in whole seconds since the epoch. Source of the definitions: the glossary
(docs/glossary.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.model import SIZE_CLASSES, NodeSizes, Sizes, size_class

SLOWDOWN_FLOOR_S = 10
"""Least run time in the denominator, which bounds the slowdown of short jobs (Feitelson and Rudolph, JSSPP 1998)."""
DAY_S = 86_400
FEWEST_DAYS = 5
"""Days below which their spread means too little to be reported."""

Seconds = NDArray[np.int64]
Weights = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """How long jobs waited, and how well the cluster was used.

    Attributes
    ----------
    jobs : int
    mean_jct_s, mean_wait_s, median_wait_s, p99_wait_s, max_wait_s : float
        p99 by linear interpolation between order statistics.
    mean_wait_s_by_size : dict of float or None
        For each of :data:`helios.model.SIZE_CLASSES`; None where there is no such job.
    jobs_by_size : dict of int
    mean_bounded_slowdown : float
    utilization : float
        Busy GPU seconds over all GPU seconds, from the first submission to the last end.
    queued_jobs : int
        Jobs that waited more than 0 s.
    """

    jobs: int
    mean_jct_s: float
    mean_wait_s: float
    median_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    mean_wait_s_by_size: dict[str, float | None]
    jobs_by_size: dict[str, int]
    mean_bounded_slowdown: float
    utilization: float
    queued_jobs: int

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def summarize_queue(
    *,
    submitted_s: Seconds,
    ended_s: Seconds,
    run_time_s: Seconds,
    gpus: Sizes,
    total_gpus: float,
    node: NodeSizes,
) -> QueueSummary:
    """Compute the metrics of a queue of at least one job.

    Parameters
    ----------
    run_time_s : array
        Time in which the job ran, without the breaks of preemption.
    total_gpus : float
        GPUs in service all the time.
    node : int, or int64 array
        GPUs of a node, as in :func:`helios.model.size_class`.
    """
    waited = wait(submitted_s=submitted_s, ended_s=ended_s, run_time_s=run_time_s)
    classes = size_class(gpus, node)
    return QueueSummary(
        jobs=len(waited),
        mean_jct_s=float(np.mean(ended_s - submitted_s)),
        mean_wait_s=float(np.mean(waited)),
        median_wait_s=float(np.median(waited)),
        p99_wait_s=float(np.percentile(waited, 99)),
        max_wait_s=float(np.max(waited)),
        mean_wait_s_by_size=mean_by_size(waited, classes),
        jobs_by_size=dict(zip(SIZE_CLASSES, np.bincount(classes, minlength=len(SIZE_CLASSES)).tolist(), strict=True)),
        mean_bounded_slowdown=float(np.mean(bounded_slowdown(wait_s=waited, run_time_s=run_time_s))),
        utilization=utilization(
            submitted_s=submitted_s, ended_s=ended_s, run_time_s=run_time_s, gpus=gpus, total_gpus=total_gpus
        ),
        queued_jobs=int(np.count_nonzero(waited > 0)),
    )


def wait(*, submitted_s: Seconds, ended_s: Seconds, run_time_s: Seconds) -> Seconds:
    """Return the time that each job waited, s.

    That is all the time between submission and end in which it did not run.
    """
    return ended_s - submitted_s - run_time_s


def mean_by_size(wait_s: Seconds, classes: NDArray[np.int64]) -> dict[str, float | None]:
    """Return the mean wait of each size class, None without jobs."""
    waits = {name: wait_s[classes == number] for number, name in enumerate(SIZE_CLASSES)}
    return {name: float(np.mean(own_s)) if len(own_s) else None for name, own_s in waits.items()}


def bounded_slowdown(*, wait_s: Seconds, run_time_s: Seconds) -> NDArray[np.float64]:
    """Return max(1, (wait + run time) / max(run time, 10 s))."""
    return np.maximum(1.0, (wait_s + run_time_s) / np.maximum(run_time_s, SLOWDOWN_FLOOR_S))


def utilization(
    *, submitted_s: Seconds, ended_s: Seconds, run_time_s: Seconds, gpus: Sizes, total_gpus: float
) -> float:
    """Return the busy share of all GPU seconds.

    The time is from the first submission to the last end. It is 0 if no time passes.
    """
    span_s = int(ended_s.max() - submitted_s.min())
    busy_gpu_s = float(np.sum(gpus.astype(np.float64) * run_time_s))
    return busy_gpu_s / (total_gpus * span_s) if span_s > 0 else 0.0


def mean_level_over_time(
    *, begins_s: Seconds, ends_s: Seconds, weight: Weights | None = None, edges_s: Seconds
) -> NDArray[np.float64]:
    """Return the mean level within each step of time.

    The level is the sum of ``weight`` over the intervals that have begun and not ended. The means are exact and take
    O(n log n).

    With begin = submission and end = start it is the queue's length; with begin = start, end = end and weight =
    GPUs it is the busy GPUs of jobs that are never preempted.

    Parameters
    ----------
    weight : array of shape (n_jobs,), optional
        How much each job counts; 1 where not given.
    edges_s : array of shape (n_steps + 1,)
        Moments between which the means are taken, s since the epoch, strictly ascending.

    Returns
    -------
    array of shape (n_steps,)
    """
    weight = np.ones(len(begins_s), dtype=np.int64) if weight is None else whole_where_possible(weight)
    area = _area_until(begins_s, weight, edges_s) - _area_until(ends_s, weight, edges_s)
    return np.diff(area).astype(np.float64) / np.diff(edges_s)


def whole_where_possible(weight: Weights) -> Weights:
    """Return weights as integers unless one has a fraction."""
    whole = weight.astype(np.int64)
    return whole if np.array_equal(whole, weight) else weight


def _area_until(moments_s: Seconds, weight: Weights, at_s: Seconds) -> Weights:
    """Return the integral of a step function at ``at_s``.

    Each step has the height ``weight`` from its moment on.
    """
    order = np.argsort(moments_s, kind="stable")
    moments_s, weight = moments_s[order], weight[order]
    # Integers are exact, and seconds since the first edge rather than since 1970 keep them far below 2**63.
    since_s = moments_s - at_s[0]
    height = np.concatenate([[0], np.cumsum(weight)])
    missed = np.concatenate([[0], np.cumsum(weight * since_s)])
    begun = np.searchsorted(moments_s, at_s, side="right")
    found: Weights = (at_s - at_s[0]) * height[begun] - missed[begun]
    return found
