"""Quasi-Shortest-Service-First: the queue order of the paper that this project starts from, with a bound on the wait.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale
GPU Datacenters", SC'21, section 4.2, doi 10.1145/3458817.3476223. The promotion of jobs that have waited long is
Helios' own: the paper's order starves large jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import Place, Reorder
from helios.model import Snapshot
from helios.services.wording import counted, duration, gpu_time

SHORTEST_GPU_S = 10.0
"""Service at or below which a job is as urgent as one can be without promotion: ten seconds on one GPU."""
LONGEST_GPU_S = 1e7
"""Service at or above which it is as little urgent: 116 GPU-days. The neutral middle is 2.8 GPU-hours."""
MOST_URGENT = 0.9
"""Of a job that is not promoted; the rest of the scale keeps promoted ones ahead however coarse the cluster counts."""
PROMOTED = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STICKS = 0.75
"""A level is kept until the urgency is this many grid steps away from it: half a step would be no hysteresis."""


def shortest_service_first(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001  because every Order takes it
    gpus: NDArray[np.int32],
    run_time_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Order by service, GPUs x run time; smallest first.

    Parameters
    ----------
    submitted_s, gpus, run_time_s : arrays of shape (n_jobs,)
        Submission (s since the epoch), GPUs asked for, and the run time believed in (s).

    Returns
    -------
    array of shape (n_jobs,)
        Service in GPU seconds.
    """
    return gpus * run_time_s


class Qssf:
    """Start the jobs with the least predicted service first, and whoever has waited long before all of them.

    The urgency of a job is read off a fixed logarithmic scale of its own predicted service (median run time x
    GPUs^``gpu_exponent``; a CPU job counts as one GPU): 10 GPU-seconds give 0.9, 10^7 give -0.9. No other job enters,
    so an arrival moves nobody. Urgencies lie on a coarse grid, and a job keeps the level it has until a new prediction
    is clearly past the border: predicting again rewrites little. A job without a prediction is neutral. Jobs that are
    hands-off, or could not start yet (a dependency, a begin time), are not named.

    Notes
    -----
    **The bound.** A job that has been eligible for longer than ``max(promote_after_s, promote_factor x predicted run
    time)`` is *promoted* to urgency 1; call that moment its turn. It depends on the job's own waiting, not on a score
    that a wrong prediction could keep low. Among promoted jobs urgencies are equal, so the site's own order decides;
    where that is age or submission, it is first come, first served. Then from its turn on a job is overtaken only by
    jobs that were promoted too and came before it - with ``promote_factor`` 0, those that were eligible before it. So
    where the queue is strict and these are the only differences in priority,

    ``wait <= promote_after_s + every_s + time to run what held GPUs at its turn and what was eligible before it``,

    and no stream of short later jobs, however long, and no prediction, however wrong, enters that sum. Simple FIFO has
    the same sum without the first two terms, counted from submission.

    What this does **not** guarantee on Slurm: SiteFactor is one term of the priority, so promotion lifts a job past
    others only as far as ``slurm.site_factor_most`` outweighs the differences that QOS, fair share, partition and age
    make; preemption, reservations, PriorityTier and limits (QOS, association) come before priority altogether;
    partitions that share nodes queue apart. A job that waits on a limit of its own user grows old too; the limit still
    holds it. Backfill may start a later job ahead, and does not delay the jobs it has planned as long as time limits
    hold and ``bf_max_job_test`` and ``bf_window`` reach them.

    **The price.** Where waits beyond ``promote_after_s`` are the rule, most of the queue is promoted and the order is
    the site's own again: that is what a bound means under overload. Choose ``promote_after_s`` above the waits that
    the load makes usual (rehearse a few values on your own history), not as short as one would like it to be.
    """

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """What a site may choose.

        Attributes
        ----------
        every_s : int
            Time between two looks at the queue, s.
        gpu_exponent : float
            Power of the GPU count in the service. 1: the paper's GPUs x run time. On two real traces smaller ones
            (-0.5) shortened the waits of large jobs and the mean; 1 is what starves large jobs.
        promote_after_s : float
            Waiting after which a job goes first, s; inf: never (the longest wait is then unbounded). See Notes: The
            price. In a rehearsal on eleven days of Philly at half its nodes, 3 h ordered little better than first
            come, first served (mean wait 3,612 s against 3,620 s); 12 h did (3,231 s), with a shorter longest wait.
        promote_factor : float
            A job is not promoted before it has waited this many times its predicted run time. 0: all alike.
        levels : int
            Steps of the urgency grid on either side of 0; 9 is one step for each third of a decade of service.
        """

        every_s: int = 30
        gpu_exponent: float = 1.0
        promote_after_s: float = 43_200.0
        promote_factor: float = 0.0
        levels: int = 9

        def __post_init__(self) -> None:
            _require(self.every_s > 0, "every_s must be positive")
            _require(abs(self.gpu_exponent) <= 2, "gpu_exponent must lie between -2 and 2")
            _require(self.promote_after_s > 0, "promote_after_s must be positive")
            _require(0 <= self.promote_factor < np.inf, "promote_factor must be finite and not negative")
            _require(1 <= self.levels <= 40, "levels must lie between 1 and 40")

    def __init__(self, options: Options) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)

    def decide(self, snapshot: Snapshot) -> list[Reorder]:
        """Return one order for each partition that has jobs which may be named."""
        orders: dict[str, list[_Named]] = {}
        for job in self._judged(snapshot):
            orders.setdefault(job.partition, []).append(job)
        return [
            Reorder(
                partition=partition,
                order=tuple(map(_placed, jobs)),
                reason=f"least predicted service first; {sum(job.promoted for job in jobs)} promoted for their wait",
            )
            for partition, jobs in sorted(orders.items())
        ]

    def _judged(self, snapshot: Snapshot) -> list[_Named]:
        """Return the jobs that may be named, most urgent first."""
        at = _instant(snapshot.taken_at)
        chosen = _may_be_named(snapshot, at)
        eligible_at, submitted_at, job_ids, partitions, gpus, p10_s, p50_s, p90_s, now = (
            snapshot.pending_values(name)[chosen] for name in _COLUMNS
        )
        waited_s = (at - eligible_at).astype(np.int64) / 1e6
        promoted = waited_s > self._patience_s(p50_s)
        wanted = np.where(promoted, PROMOTED, self._urgency(gpus=gpus, p50_s=p50_s, now=now))
        facts = (partitions, promoted, waited_s, gpus, p10_s, p50_s, p90_s)
        ranks = ((-wanted).tolist(), submitted_at.astype(np.int64).tolist(), map(len, job_ids), job_ids.tolist())
        rows = zip(*ranks, *(values.tolist() for values in facts), strict=True)
        return [_Named._make(row) for row in sorted(rows)]

    def _patience_s(self, p50_s: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self.options.promote_factor:
            return np.full(len(p50_s), self.options.promote_after_s)
        return np.fmax(self.options.promote_after_s, self.options.promote_factor * p50_s)

    def _urgency(
        self, *, gpus: NDArray[np.int32], p50_s: NDArray[np.float64], now: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        service = p50_s * np.maximum(gpus, 1).astype(np.float64) ** self.options.gpu_exponent
        return _on_grid(_from_scale(service), now=now, levels=self.options.levels)


_COLUMNS = ("eligible_at", "submitted_at", "job_id", "partition", "gpus", "p10_s", "p50_s", "p90_s", "urgency")


def _may_be_named(snapshot: Snapshot, at: np.datetime64) -> NDArray[np.int64]:
    """Return the rows of jobs that may be touched and could start; a job without a partition is nobody's."""
    free = snapshot.pending_values("eligible_at") <= at
    for name, missing in (("hands_off", True), ("partition", False)):
        free &= pd.isna(snapshot.pending_values(name)) == missing
    return np.flatnonzero(free)


class _Named(NamedTuple):
    """A job that may be named; sorted, the most urgent come first, then the first submitted, ids by value."""

    minus_urgency: float
    submitted_us: int
    id_length: int
    job_id: str
    partition: str
    promoted: bool
    waited_s: float
    gpus: int
    p10_s: float
    p50_s: float
    p90_s: float


def _instant(at: datetime) -> np.datetime64:
    return np.datetime64((at - _EPOCH) // timedelta(microseconds=1), "us")


def _from_scale(service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Urgency of service on the fixed scale; NaN stays NaN."""
    shortest, longest = np.log10(SHORTEST_GPU_S), np.log10(LONGEST_GPU_S)
    place = (np.log10(np.clip(service, SHORTEST_GPU_S, LONGEST_GPU_S)) - shortest) / (longest - shortest)
    urgency: NDArray[np.float64] = MOST_URGENT * (1 - 2 * place)
    return urgency


def _on_grid(urgency: NDArray[np.float64], *, now: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """Nearest grid point, but the one the job has ``now`` while that is near enough; 0 for NaN."""
    step = MOST_URGENT / levels
    had = np.rint(now / step)
    keeps = (now != 0) & (np.abs(urgency / step - had) <= STICKS)
    level = np.where(keeps, had, np.rint(urgency / step))
    return np.where(np.isnan(level), 0.0, level * step) + 0.0  # + 0.0: no negative zero


def _placed(job: _Named) -> Place:
    expected, waited = _expected(job.gpus, job.p10_s, job.p50_s, job.p90_s), f"waited {duration(job.waited_s)}"
    reason = f"{waited}, long enough to go first; {expected}" if job.promoted else f"{expected}; {waited}"
    return Place(job_id=job.job_id, urgency=-job.minus_urgency, reason=reason)


@lru_cache(maxsize=65_536)
def _expected(gpus: int, p10_s: float, p50_s: float, p90_s: float) -> str:
    if math.isnan(p50_s):
        return "no prediction, so neutral"
    width = f" ({duration(p10_s)} to {duration(p90_s)})" if p10_s <= p90_s else ""
    if gpus == 0:
        return f"predicted {duration(p50_s)}{width} without GPUs"
    return f"predicted {duration(p50_s)}{width} on {counted(gpus, 'GPU')}: {gpu_time(p50_s * gpus)}"


def _require(holds: bool, fact: str) -> None:
    if not holds:
        raise ValueError(fact)
