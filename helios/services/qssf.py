"""Quasi-Shortest-Service-First: the queue order of the paper that this project starts from, with a bound on the wait.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale
GPU Datacenters", SC'21, section 4.2, doi 10.1145/3458817.3476223. The promotion of jobs that have waited long is
Helios' own: the paper's order starves large jobs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

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
        queue = self.judged(snapshot)
        return [
            Reorder(
                partition=str(partition),
                order=tuple(_places(jobs)),
                reason=f"least predicted service first; {int(jobs['promoted'].sum())} promoted for their wait",
            )
            for partition, jobs in queue.groupby("partition", observed=True, sort=True)
        ]

    def judged(self, snapshot: Snapshot) -> pd.DataFrame:
        """Return the jobs that may be named, most urgent first, with what their urgency rests on.

        Returns
        -------
        DataFrame
            Columns of ``QUEUE`` that matter, ``waited_s``, ``promoted`` and ``wanted`` (the urgency).
        """
        queue = _may_be_named(snapshot)
        waited_s = (snapshot.taken_at - queue["eligible_at"]).dt.total_seconds().to_numpy()
        promoted = waited_s > self._patience_s(queue["p50_s"].to_numpy())
        wanted = np.where(promoted, PROMOTED, self._urgency(queue))
        judged = queue.assign(waited_s=waited_s, promoted=promoted, wanted=wanted, id_length=queue["job_id"].str.len())
        return judged.sort_values(
            ["wanted", "submitted_at", "id_length", "job_id"], ascending=[False, True, True, True], kind="stable"
        )

    def _patience_s(self, p50_s: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(self.options.promote_after_s, self.options.promote_factor * np.nan_to_num(p50_s))

    def _urgency(self, queue: pd.DataFrame) -> NDArray[np.float64]:
        gpus = np.maximum(queue["gpus"].to_numpy(), 1).astype(np.float64)
        service = queue["p50_s"].to_numpy() * gpus**self.options.gpu_exponent
        return _on_grid(_from_scale(service), now=queue["urgency"].to_numpy(), levels=self.options.levels)


def _may_be_named(snapshot: Snapshot) -> pd.DataFrame:
    pending = snapshot.pending
    free = pending["hands_off"].isna() & (pending["eligible_at"] <= pd.Timestamp(snapshot.taken_at))
    return pending.loc[free]


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
    return np.nan_to_num(level * step) + 0.0  # + 0.0: no negative zero


def _places(jobs: pd.DataFrame) -> Iterator[Place]:
    names = ("job_id", "wanted", "promoted", "waited_s", "gpus", "p10_s", "p50_s", "p90_s")
    rows = zip(*(jobs[name].to_list() for name in names), strict=True)
    for job_id, urgency, promoted, waited_s, gpus, *quantiles_s in rows:
        expected, waited = _expected(gpus, *quantiles_s), f"waited {duration(waited_s)}"
        reason = f"{waited}, long enough to go first; {expected}" if promoted else f"{expected}; {waited}"
        yield Place(job_id=job_id, urgency=urgency, reason=reason)


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
