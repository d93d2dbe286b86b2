"""Quasi-Shortest-Service-First (QSSF) with a bound on the wait.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC'21, section 4.2, doi 10.1145/3458817.3476223. The promotion of jobs that have waited long is Helios'
own, because the paper's order starves large jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from helios.actions import Place, Ranking, Reorder
from helios.metrics.backlog import LEAST_S, age_discount
from helios.model import Snapshot
from helios.ports import ChangeRequests, Columns
from helios.services.queue_orders import LARGE_FAVOUR, LARGE_GPUS, weigh_large_jobs
from helios.units import count_in_words, gpu_time, rounded_duration

# Conversion of a jobwise service's urgencies into orders for a live cluster.

Rows = NDArray[np.int64]


def reorders(
    snapshot: Snapshot,
    changes: ChangeRequests,
    *,
    why: Callable[[Rows], list[str]],
    reason: Callable[[Rows], str],
) -> list[Reorder]:
    """Return an order for each partition with jobs in ``changes``.

    Orders are sorted by the names of the partitions. Jobs of equal urgency are ordered by submission, then id. A job
    without a partition is left out.

    Parameters
    ----------
    changes : ChangeRequests
        Urgencies of all pending jobs of ``snapshot``, in its order.
    why : callable
        Returns the reason of each place, given the rows of their jobs in the snapshot.
    reason : callable
        Returns the reason of an order, given the same. Both are called only when the reasons are read.

    Raises
    ------
    ValueError
        An urgency is not between -1 and 1.
    """
    if (np.abs(changes.urgency) > 1).any():
        raise ValueError("a change has an urgency that is not between -1 and 1")
    return [
        Ranking(
            partition=partition,
            snapshot=snapshot,
            rows=rows,
            urgency=changes.urgency[rows],
            order=partial(_places, snapshot, rows, changes.urgency, why),
            reason=partial(reason, rows),
        )
        for partition, rows in _by_partition(snapshot, (~np.isnan(changes.urgency)).nonzero()[0])
    ]


def _by_partition(snapshot: Snapshot, rows: Rows) -> Iterator[tuple[str, Rows]]:
    names = snapshot.pending_values("partition")[rows].tolist()
    distinct = set(names)
    known = sorted(name for name in distinct if isinstance(name, str))
    if len(distinct) == len(known) == 1:
        yield known[0], rows
        return
    number = dict.fromkeys(distinct, -1) | {name: place for place, name in enumerate(known)}
    home = np.array([*map(number.__getitem__, names)], dtype=np.int64)
    for place, name in enumerate(known):
        yield name, rows[home == place]


def _places(
    snapshot: Snapshot, rows: Rows, urgency: NDArray[np.float64], why: Callable[[Rows], list[str]]
) -> tuple[Place, ...]:
    job_ids = snapshot.pending_values("job_id")[rows].tolist()
    submitted = snapshot.pending_values("submitted_at")[rows].astype(np.int64).tolist()
    ranks = zip((-urgency[rows]).tolist(), submitted, map(len, job_ids), job_ids, rows.tolist(), strict=True)
    ranked = sorted(ranks)
    reasons = why(np.array([row for *_, row in ranked], dtype=np.int64))
    return tuple(
        Place(job_id=job_id, urgency=-minus_urgency, reason=text)
        for (minus_urgency, _, _, job_id, _), text in zip(ranked, reasons, strict=True)
    )


SHORTEST_GPU_S = 10.0
"""Service up to which a job has the highest urgency without promotion, ten seconds on one GPU."""
LONGEST_GPU_S = 1e7
"""Service from which a job has the lowest urgency, 116 GPU-days. The neutral middle is 2.8 GPU-hours."""
MOST_URGENT = 0.9
"""Highest urgency without promotion. The rest of the scale keeps promoted jobs first on a cluster with coarse steps."""
PROMOTED = 1.0
PROPORTION = 2.0**-40
"""Urgency lost with each GPU-second where there is no grid. It is -1 at 2^40 s, 35,000 GPU-years."""
NEUTRAL_GPU_S = 1e4
UNKNOWN_S = 43_200.0
"""Waiting time after which a job goes first while no backlog is known, s."""
LONGEST_US = 9e15
"""Longest finite wait bound, 285 years, for which microseconds since 1970 have room."""
_HOUR_US = 3_600_000_000
_FOR_EVER = np.datetime64("NaT").view(np.int64)
STICKS = 0.75
"""Distance in grid steps up to which a level is kept. Half a step would be no hysteresis."""


class OrderRule(StrEnum):
    """Queue order of the jobs that have not waited too long."""

    BALANCED = "balanced"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class QssfOptions:
    """Options of QSSF.

    Attributes
    ----------
    every_s : int
        Time between two decisions, s.
    order : str
        ``balanced``: the service of jobs above 8 GPUs counts 1/20
        (:func:`helios.services.queue_orders.balanced`), and the service of all jobs fades while they wait.
        ``service``: the paper's rule, which starves large jobs. On a cluster of a few nodes with many jobs above
        8 GPUs the paper's rule has the shorter mean wait; try both in a replay.
    gpu_exponent : float
        Power of the GPU count in the service. 1 is the paper's GPUs x run time, and starves large jobs. On two real
        traces smaller ones (-0.5) shortened the waits of large jobs and the mean.
    share : float
        Share of the longest backlog of the last weeks after which a job goes first.
    least_s : float
        Least waiting time before a job goes first because of the backlog, s.
    fades : bool
        Whether the service of a job counts less while it waits, with ``balanced``.
    promote_after_s : float
        Waiting time after which a job goes first, s, independent of the backlog. 0 to use ``share`` of the backlog, inf
        for never (the longest wait is then unbounded). See Notes: The price. In a replay of eleven days of Philly at
        half its nodes, ordered by service, 3 h did little better than first come, first served (mean wait 3,612 s
        against 3,620 s); 12 h did (3,231 s), with a shorter longest wait.
    promote_factor : float
        A job is not promoted before it has waited this many times its predicted run time. 0 for no such condition.
    levels : int
        Steps of the urgency grid on either side of 0; 9 is one step for each third of a decade of service. With 0 there
        is no grid and no logarithm: the urgency falls in proportion to the service, so that no two services are equal.
        That is for replays that do not round (``SimCluster(resolution=None)``); a SiteFactor is too coarse for it.
    """

    every_s: int = 30
    order: str = OrderRule.BALANCED.value
    gpu_exponent: float = 1.0
    share: float = 1.0
    least_s: float = LEAST_S
    fades: bool = True
    promote_after_s: float = 0.0
    promote_factor: float = 0.0
    levels: int = 9

    def __post_init__(self) -> None:
        _require(self.every_s > 0, "every_s must be positive")
        _require(self.order in [*OrderRule], f"order must be one of {', '.join(OrderRule)}")
        _require(abs(self.gpu_exponent) <= 2, "gpu_exponent must lie between -2 and 2")
        _require(0 <= self.share < np.inf, "share must be finite and not negative")
        _require(0 < self.least_s < np.inf, "least_s must be finite and positive")
        _require(self.promote_after_s >= 0, "promote_after_s must not be negative")
        _require(0 <= self.promote_factor < np.inf, "promote_factor must be finite and not negative")
        _require(0 <= self.levels <= 40, "levels must lie between 0 and 40")


class Qssf:
    """Start jobs with the least predicted service first, within a bound on waiting.

    The urgency of a job follows from its own predicted service (median run time x GPUs^``gpu_exponent``; a CPU job
    counts as one GPU) on a fixed logarithmic scale: 10 GPU-seconds give 0.9, 10^7 give -0.9. It does not depend on
    other jobs, so a new job changes no other one. Urgencies lie on a coarse grid, and a job keeps its level until a new
    prediction is clearly beyond the border, so that a new prediction changes little. A job without a prediction is
    neutral. Jobs that are excluded, or could not start yet (a dependency, a begin time), are left out.

    ``balanced`` divides the service of large jobs. It also multiplies each job's service by the square of the remaining
    share of its wait bound, so that a waiting job moves forward long before it goes first.

    Notes
    -----
    **The bound.** A job that has been eligible for longer than its wait bound ``P`` is *promoted* to urgency 1. ``P``
    is ``promote_after_s``, or where that is 0 ``max(least_s, share x longest backlog)``. The longest backlog is the
    wait of the last job in a first-come queue at the worst moment of the last weeks, which Helios computes each hour
    (:mod:`helios.metrics.backlog`). While no backlog is known ``P`` is 12 h. It is never less than ``promote_factor x
    predicted run time``. A job is *due* when it has waited for longer than the largest ``P`` during its wait.

    ``P`` depends on the cluster and the job's own waiting, not on a score that a wrong prediction could keep low.
    Predictions can raise the longest backlog no higher than if all waiting jobs ran as long as the ended ones. Among
    promoted jobs urgencies are equal, so the site's own order decides; where that is age or submission, it is first
    come, first served. With ``promote_factor`` 0 a job that has waited longer is promoted whenever a younger one is. So
    once it is due, a job is overtaken only by jobs that were eligible before it. Where the queue is strict and these
    are the only differences in priority,

    ``wait <= P + every_s + time to run what held GPUs when it was due and what was eligible before it``.

    This sum is independent of the number of short later jobs and of wrong predictions. Simple FIFO has the same sum
    without the first two terms, counted from submission.

    What this does **not** guarantee on Slurm: SiteFactor is one term of the priority, so promotion lifts a job past
    others only as far as ``slurm.site_factor_most`` outweighs the differences that QOS, fair share, partition and age
    make; preemption, reservations, PriorityTier and limits (QOS, association) come before priority altogether;
    partitions that share nodes queue apart. Helios' cap on one user's share counts jobs that are put ahead of others,
    which a promotion does only where an older job may not be moved (a canary, a job that an admin changed). A job that
    waits on a limit of its own user is promoted too, but the limit still holds it. Backfill may start a later job
    ahead, and does not delay the jobs it has planned as long as time limits hold and ``bf_max_job_test`` and
    ``bf_window`` reach them.

    **The price.** Where most waits are longer than ``P``, most of the queue is promoted and the order is the site's own
    again. This is inherent to a bound under overload, and the reason for a ``P`` that follows the backlog. A value for
    ``promote_after_s`` should be above the usual waits under load (try a few values on your own history), not as short
    as desired.
    """

    Options = QssfOptions

    def __init__(self, options: QssfOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)
        self._fades = options.fades and options.order == OrderRule.BALANCED

    def decide(self, snapshot: Snapshot) -> list[Reorder]:
        """Return one order for each partition with jobs that may be changed."""
        changes = self.changes(snapshot.pending_values, snapshot.taken_at)
        return reorders(
            snapshot,
            changes,
            why=lambda rows: self._reasons(snapshot, changes.urgency, rows),
            reason=lambda rows: _summary(changes.urgency[rows]),
        )

    def changes(self, jobs: Columns, at: datetime) -> ChangeRequests:
        """Return the urgency of each of ``jobs``.

        See :class:`helios.ports.JobwiseService`.
        """
        now_us, eligible_us = _micros(at), jobs("eligible_at").view(np.int64)
        p50_s, now = jobs("p50_s"), jobs("urgency")
        patience_us = self._patience_us(jobs, p50_s)
        waited_us = now_us - eligible_us
        promoted = waited_us > patience_us
        service = self._service(jobs("gpus"), p50_s)
        if self._fades:
            urgency, same_us = self._faded(service, now, waited_us=waited_us, patience_us=patience_us)
            until_us = np.maximum(eligible_us + same_us, now_us)
        else:
            urgency = self._urgency(service, now)
            until_us = eligible_us + patience_us
        urgency[promoted] = PROMOTED
        until_us[promoted] = _FOR_EVER
        early = waited_us < 0  # also for an unknown time: NaT is the smallest integer, and the difference overflows
        if early.any():
            urgency[early], until_us[early] = np.nan, eligible_us[early] - 1
        excluded_reason = jobs("excluded_reason")
        urgency[np.equal(excluded_reason, excluded_reason)] = np.nan  # missing is NaN, which is not itself
        return ChangeRequests(urgency=urgency, until=until_us.view("datetime64[us]"))

    def _reasons(self, snapshot: Snapshot, urgency: NDArray[np.float64], rows: NDArray[np.int64]) -> list[str]:
        """Return the reason for the place of each of the jobs in these rows."""
        jobs, favours = snapshot.pending_values, self.options.order == OrderRule.BALANCED
        waited_s = (_micros(snapshot.taken_at) - jobs("eligible_at")[rows].view(np.int64)) / 1e6
        patience_us = np.broadcast_to(self._patience_us(jobs, jobs("p50_s")), len(urgency))[rows]
        facts = (jobs(name)[rows].tolist() for name in ("gpus", "p10_s", "p50_s", "p90_s"))
        promoted = (urgency[rows] == PROMOTED).tolist()
        return [
            _reason(_expected(*expected, favours), _waited(so_long_s, until_us, goes_first), goes_first)
            for goes_first, so_long_s, until_us, *expected in zip(
                promoted, waited_s.tolist(), patience_us.tolist(), *facts, strict=True
            )
        ]

    def _patience_us(self, jobs: Columns, p50_s: NDArray[np.float64]) -> NDArray[np.int64] | int:
        """Return the wait bound of each job, after which it goes first, µs."""
        patience_s = self.options.promote_after_s or self._by_the_backlog_s(jobs, len(p50_s))
        if not self.options.promote_factor:
            return int(min(patience_s * 1e6, LONGEST_US))
        each_s = np.fmax(patience_s, self.options.promote_factor * p50_s)
        return np.floor(np.fmin(each_s * 1e6, LONGEST_US)).astype(np.int64)

    def _by_the_backlog_s(self, jobs: Columns, n_jobs: int) -> float:
        longest_s = float(jobs("longest_backlog_s")[0]) if n_jobs else math.nan  # the same for all
        return UNKNOWN_S if math.isnan(longest_s) else max(self.options.least_s, self.options.share * longest_s)

    def _service(self, gpus: NDArray[np.int32], p50_s: NDArray[np.float64]) -> NDArray[np.float64]:
        exponent, counted_gpus = self.options.gpu_exponent, np.maximum(gpus, 1).astype(np.float64)
        service = p50_s * (counted_gpus if exponent == 1 else counted_gpus**exponent)
        return service * weigh_large_jobs(gpus) if self.options.order == OrderRule.BALANCED else service

    def _urgency(self, service: NDArray[np.float64], now: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self.options.levels:
            return _in_proportion(service)
        return _on_grid(_from_scale(service), now=now, levels=self.options.levels)

    def _faded(
        self,
        service: NDArray[np.float64],
        now: NDArray[np.float64],
        *,
        waited_us: NDArray[np.int64],
        patience_us: NDArray[np.int64] | int,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return urgencies of the faded service, and how long they stay, µs.

        The latter is the waiting time up to which an urgency does not change.
        """
        if not self.options.levels:  # all urgencies differ, and continuous updates would be expensive
            by_the_hour_us = waited_us - waited_us % _HOUR_US
            left = age_discount(by_the_hour_us, patience_us)
            return _in_proportion(service * left), np.minimum(patience_us, by_the_hour_us + _HOUR_US - 1)
        exact = _from_scale(service * age_discount(waited_us, patience_us))
        urgency = _on_grid(exact, now=now, levels=self.options.levels)
        next_level = _waited_at_next_level(urgency, exact, service, levels=self.options.levels)
        return urgency, np.minimum(patience_us, np.floor(next_level * patience_us).astype(np.int64) - 1)


def _micros(at: datetime) -> int:
    return round(at.timestamp() * 1e6)


def _in_proportion(service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return urgencies in exact proportion to service, by a power of two.

    Different services never get the same urgency. NaN is in the middle.
    """
    known = np.where(np.isnan(service), NEUTRAL_GPU_S, service)
    urgency: NDArray[np.float64] = 0.0 - np.minimum(known, 1 / PROPORTION) * PROPORTION
    return urgency


def _from_scale(service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return urgencies of service on the fixed scale.

    NaN stays NaN.
    """
    shortest, longest = np.log10(SHORTEST_GPU_S), np.log10(LONGEST_GPU_S)
    within = np.minimum(np.maximum(service, SHORTEST_GPU_S), LONGEST_GPU_S)  # clip, which takes ten times as long
    place = (np.log10(within) - shortest) / (longest - shortest)
    urgency: NDArray[np.float64] = MOST_URGENT * (1 - 2 * place)
    return urgency


def _waited_at_next_level(
    urgency: NDArray[np.float64], exact: NDArray[np.float64], service: NDArray[np.float64], *, levels: int
) -> NDArray[np.float64]:
    """Return the share of its wait bound at which a job's level may change.

    1 where it does not change by fading. The level changes where the urgency comes nearer to the next grid point, or,
    for a job that keeps its level by hysteresis, where it no longer does.
    """
    step = MOST_URGENT / levels
    level = np.rint(urgency / step)
    border = (level + np.where(exact < (level + 0.5) * step, 0.5, STICKS)) * step
    shortest, longest = np.log10(SHORTEST_GPU_S), np.log10(LONGEST_GPU_S)
    service_there = 10 ** (shortest + (1 - border / MOST_URGENT) / 2 * (longest - shortest))
    left = np.divide(service_there, service, out=np.zeros(len(service)), where=(border < MOST_URGENT) & (service > 0))
    waited: NDArray[np.float64] = 1 - np.sqrt(np.clip(left, 0, 1))
    return waited


def _on_grid(urgency: NDArray[np.float64], *, now: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """Return the nearest grid point, or the job's current one if near enough.

    0 for NaN.
    """
    step = MOST_URGENT / levels
    had = np.rint(now / step)
    keeps = (had != 0) & (np.abs(urgency / step - had) <= STICKS)
    level = np.where(keeps, had, np.rint(urgency / step))
    return np.where(np.isnan(level), 0.0, level * step) + 0.0  # + 0.0: no negative zero


def _reason(expected: str, waited: str, promoted: bool) -> str:
    return f"{waited}, long enough to go first; {expected}" if promoted else f"{expected}; {waited}"


def _waited(waited_s: float, patience_us: int, promoted: bool) -> str:
    so_long = f"waited {rounded_duration(waited_s)}"
    return (
        so_long
        if promoted or patience_us >= LONGEST_US
        else f"{so_long}, goes first after {rounded_duration(patience_us / 1e6)}"
    )


def _summary(urgency: NDArray[np.float64]) -> str:
    return f"least predicted service first; {int((urgency == PROMOTED).sum())} promoted for their wait"


@lru_cache(maxsize=65_536)
def _expected(gpus: int, p10_s: float, p50_s: float, p90_s: float, favours: bool) -> str:
    if math.isnan(p50_s):
        return "no prediction, so neutral"
    width = f" ({rounded_duration(p10_s)} to {rounded_duration(p90_s)})" if p10_s <= p90_s else ""
    if gpus == 0:
        return f"predicted {rounded_duration(p50_s)}{width} without GPUs"
    large = f", of which a large job counts 1/{LARGE_FAVOUR:g}" if favours and gpus > LARGE_GPUS else ""
    return (
        f"predicted {rounded_duration(p50_s)}{width} on {count_in_words(gpus, 'GPU')}: {gpu_time(p50_s * gpus)}{large}"
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
