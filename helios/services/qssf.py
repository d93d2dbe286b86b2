"""Quasi-Shortest-Service-First (QSSF) that ages, with a bound on the wait.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC'21, section 4.2, doi 10.1145/3458817.3476223. The statistic (a mean that counts eight hours at most),
the ageing, and the promotion of jobs that have waited long are Helios' own, as the paper's order starves large jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.actions import Place, Ranking, Reorder
from helios.jit import cached_jit, inline_jit
from helios.model import Sizes, Snapshot, is_large
from helios.ports import HORIZON_S, ChangeRequests, Columns
from helios.units import count_in_words, gpu_time, rounded_duration

SHORTEST_GPU_S = 10.0
"""Service up to which a job has the highest urgency without promotion, ten seconds on one GPU."""
LONGEST_GPU_S = 1e7
"""Service from which a job has the lowest urgency, 116 GPU-days. The neutral middle is 2.8 GPU-hours."""
MOST_URGENT = 0.9
"""Highest urgency without promotion. The rest of the scale keeps promoted jobs first on a cluster with coarse steps."""
PROMOTED = 1.0
NEUTRAL_GPU_S = 1e4
LEAST_SERVICE = 1e-3
"""Service below which jobs are equal in the paper's order, GPU seconds."""
UNKNOWN_LONGEST_S = 86_400.0
"""Longest wait of the site's own order that is assumed while it is not known, s."""
TAUS_IN_LEAST = 3.0
"""Shortest ageing times in ``least_s``: 1 h in 3 h, and less in an experiment that is shorter than life."""
LONGEST_US = 9e15
"""Longest finite wait bound, 285 years, as microseconds since 1970 fit into 64 bits."""
REBASE_S = (10, 60, 600, *(3_600 * hours for hours in (1, 2, 3, 4, 6, 8, 12, 24)))
"""Possible times between two reference moments, s; each divides a day."""
TAUS_BETWEEN = 4.0
"""Most ageing times between two reference moments, so that ages fit into the scale of urgencies."""
PROPORTION = 2.0**-11
"""Change of urgency if the service grows by the factor e, where there is no grid."""
_UNBOUNDED = np.datetime64("NaT").view(np.int64)

_NEUTRAL_KEY = float(np.log(NEUTRAL_GPU_S))
HYSTERESIS = 0.75
"""Distance in grid steps up to which a job keeps its level; 0.5 would be no hysteresis."""

_SHORTEST_KEY, _LONGEST_KEY = math.log(SHORTEST_GPU_S), math.log(LONGEST_GPU_S)


def shortest_service_first(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001  because every Order takes it
    gpus: Sizes,
    run_time_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Order by service, GPUs x run time, smallest first.

    With the median of a predicted run time this is the paper's rule. With the mean of the run time, of which at most
    :data:`helios.ports.HORIZON_S` counts, it is Helios' rule.

    Parameters
    ----------
    submitted_s, gpus, run_time_s : arrays of shape (n_jobs,)
        Submission (s since the epoch), requested GPUs, and assumed run time (s).

    Returns
    -------
    array of shape (n_jobs,)
        Service in GPU seconds.
    """
    return gpus * run_time_s


def divide_large_jobs(
    order: Callable[..., NDArray[np.float64]], divisor: float, *, node: int
) -> Callable[..., NDArray[np.float64]]:
    """Return an order that divides the keys of large jobs."""

    def divided(*, submitted_s: NDArray[np.int64], gpus: Sizes, run_time_s: NDArray[np.float64]) -> NDArray[np.float64]:
        keys = order(submitted_s=submitted_s, gpus=gpus, run_time_s=run_time_s)
        return np.where(is_large(gpus, node), keys / divisor, keys)

    return divided


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
        Returns the reason of each place in an order, for rows of the snapshot.
    reason : callable
        Returns the reason of an order, for its rows. Both are called only when the reasons are read.

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
            order=partial(_ranked_places, snapshot, rows, changes.urgency, why),
            reason=partial(reason, rows),
        )
        for partition, rows in _by_partition(snapshot, (~np.isnan(changes.urgency)).nonzero()[0])
    ]


def _by_partition(snapshot: Snapshot, rows: Rows) -> Iterator[tuple[str, Rows]]:
    names = snapshot.pending_values("partition")[rows].tolist()
    distinct = set(names)
    partitions = sorted(name for name in distinct if isinstance(name, str))
    if len(distinct) == len(partitions) == 1:
        yield partitions[0], rows
        return
    codes = dict.fromkeys(distinct, -1) | {name: code for code, name in enumerate(partitions)}
    code_of_row = np.array([*map(codes.__getitem__, names)], dtype=np.int64)
    for code, name in enumerate(partitions):
        yield name, rows[code_of_row == code]


def _ranked_places(
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


class OrderRule(StrEnum):
    """Queue order of the jobs that are not promoted."""

    QSSF = "qssf"
    SIZE = "size"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class QssfOptions:
    """Options of QSSF.

    Attributes
    ----------
    every_s : int
        Time between two decisions, s.
    order : str
        ``qssf``: ln(GPUs x mean of the run time, of which 8 h count at most), plus the submission over the ageing time;
        smallest first. ``size``: the same with GPUs alone. ``service``: the paper's rule, GPUs x median run time,
        which does not age and starves large jobs.
    wait_share : float
        The ageing time, as a share of the longest wait that the site's own order would have caused in the last four
        weeks. A job that has waited this long is as urgent as a new one with 1/e of its service. 0.25 protects long
        waits more, 1 shortens the mean more. The ageing time is at least a third of ``least_s``.
    bound_share : float
        A job that has waited longer than this share of the same longest wait goes first. 0: none does.
    least_s : float
        Least waiting time before a job goes first because of ``bound_share``, s. In an experiment that is shorter than
        life it is as much shorter.
    large_divisor : float
        The service of jobs of a node or more is divided by this, so that they do not wait longer for the others' sake.
        1: it is not divided. It has no effect on ``order = "service"``, the paper's rule.
    promote_after_s : float
        Waiting time after which a job goes first, s, in place of ``bound_share``. 0: ``bound_share``; inf: never.
    levels : int
        Steps of the urgency grid on either side of 0; 9 is one step for each third of a decade of service. 0: no grid,
        for replays that do not round urgencies (``SimCluster(site_factor_most=None)``); a SiteFactor is too coarse.
    """

    every_s: int = 30
    order: str = OrderRule.QSSF.value
    wait_share: float = 0.5
    bound_share: float = 0.9
    least_s: float = 10_800.0
    large_divisor: float = 4.0
    promote_after_s: float = 0.0
    levels: int = 9

    def __post_init__(self) -> None:
        _require(self.every_s > 0, "every_s must be positive")
        _require(
            self.order in [*OrderRule],
            f"order must be one of {', '.join(OrderRule)}",
        )
        _require(0 < self.wait_share < np.inf, "wait_share must be finite and positive")
        _require(0 <= self.bound_share < np.inf, "bound_share must be finite and not negative")
        _require(0 < self.least_s < np.inf, "least_s must be finite and positive")
        _require(1 <= self.large_divisor < np.inf, "large_divisor must be finite and at least 1")
        _require(self.promote_after_s >= 0, "promote_after_s must not be negative")
        _require(0 <= self.levels <= 40, "levels must lie between 0 and 40")


class Qssf:
    """Start jobs with the least predicted service first, and age them.

    The key of a job is ``ln(GPUs x E[min(T, 8 h)]) + (submission - reference) / tau``; a CPU job counts as one GPU. Its
    urgency follows from the key on a fixed scale: a job of the reference moment with 10 GPU-seconds has 0.9, with 10^7
    it has -0.9. The key does not depend on other jobs, and all jobs age alike, so a job changes its place only by a new
    prediction. Urgencies lie on a coarse grid, and a job keeps its level until its key is clearly beyond the border, so
    that few jobs are rewritten. A job without a prediction counts as 2.8 GPU-hours. Where a nightly check found that
    predictions are no better than the size of a job, all jobs count as 2.8 hours long, so that size orders. Jobs that
    are excluded, or cannot start yet (a dependency, a begin time), are left out.

    ``tau`` is ``max(least_s / 3, wait_share x longest)``, with the longest wait that the site's own order would have
    caused in the last four weeks (:mod:`helios.app.own_order`), or 24 h while that is not known. The reference moment
    is the same for all jobs and follows from the time alone: the middle of the present period of at most 4 tau and at
    most a day. All urgencies shift when a new period begins.

    Notes
    -----
    **Ageing bounds the wait.** A job with R times the service of another goes after it only if the other comes within
    ``tau ln R`` of it. As the predicted run time counts between 1 s and 8 h, no prediction can delay a job by more than
    ``tau ln(28,800)`` = 10.3 tau behind a job of its size.

    **The bound.** A job that has been eligible for longer than its wait bound ``P`` is *promoted* to urgency 1. ``P``
    is ``promote_after_s``, or where that is 0 ``max(least_s, bound_share x longest)``. It depends on the cluster and
    the job's own waiting, not on a prediction. Among promoted jobs urgencies are equal, so the site's own order
    decides; where that is age or submission, it is first come, first served. Jobs are promoted in the order in which
    they became eligible, so a promoted job is overtaken only by jobs that were eligible before it. Where the queue is
    strict and these are the only differences in priority,

    ``wait <= P + every_s + time to run the jobs that ran when it was due and those eligible before it``.

    This sum does not depend on the number of short later jobs or on wrong predictions. Simple FIFO has the same sum
    without the first two terms, counted from submission.

    What this does **not** guarantee on Slurm:

    - SiteFactor is one term of the priority. Promotion lifts a job past others only as far as
      ``slurm.site_factor_most`` outweighs the differences of QOS, fair share, partition and age.
    - Preemption, reservations, PriorityTier and limits (QOS, association) come before priority. Partitions that share
      nodes have queues of their own.
    - Helios' cap on one user's share counts jobs that are put ahead of others. A promotion does that only where an
      older job may not be moved (a canary, a job that an admin changed).
    - A job that waits on a limit of its own user is promoted too, but the limit still holds it.
    - Backfill may start a later job ahead. It does not delay the jobs that it has planned as long as time limits hold
      and ``bf_max_job_test`` and ``bf_window`` reach them.

    **The price.** Where most waits are longer than ``P``, most of the queue is promoted and the order is the site's own
    again. This is inherent to a bound under overload, and the reason for a ``P`` that follows the site's own order.
    """

    Options = QssfOptions

    def __init__(self, options: QssfOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)
        self._ages = options.order != OrderRule.SERVICE
        self._run_time = "truncated_mean_s" if self._ages else "p50_s"
        self._divisor = options.large_divisor if self._ages else 1.0

    def decide(self, snapshot: Snapshot) -> list[Reorder]:
        """Return one order for each partition with jobs that may be changed."""
        changes = self.changes(snapshot.pending_values, snapshot.taken_at)
        return reorders(
            snapshot,
            changes,
            why=lambda rows: self._reasons(snapshot, changes.urgency, rows),
            reason=lambda rows: (
                "least predicted service first; "
                f"{int((changes.urgency[rows] == PROMOTED).sum())} promoted for their wait"
            ),
        )

    def changes(self, jobs: Columns, at: datetime) -> ChangeRequests:
        """Return the urgency of each of ``jobs``.

        See :class:`helios.ports.JobwiseService`.
        """
        now_us, eligible_us = _micros(at), jobs("eligible_at").view(np.int64)
        tau_s, bound_us = self._times(jobs, len(eligible_us))
        key, aged_us, reference_us, same_until_us = self._keys(jobs, tau_s, now_us)
        urgency, until_us = np.empty(len(key)), np.empty(len(key), dtype=np.int64)
        times = (now_us, bound_us, reference_us, same_until_us)
        # An unknown time is the smallest integer, so its wait overflows to a negative one.
        _fill_urgencies(
            key, now_us - eligible_us, jobs("urgency") + 0.0, times, aged_us, self.options.levels, urgency, until_us
        )
        excluded_reason = jobs("excluded_reason")
        urgency[np.equal(excluded_reason, excluded_reason)] = np.nan  # a missing reason is NaN, which equals nothing
        return ChangeRequests(urgency=urgency, until=until_us.view("datetime64[us]"))

    def _reasons(self, snapshot: Snapshot, urgency: NDArray[np.float64], rows: NDArray[np.int64]) -> list[str]:
        """Return the reason for each job's place."""
        jobs = snapshot.pending_values
        waited_s = (_micros(snapshot.taken_at) - jobs("eligible_at")[rows].view(np.int64)) / 1e6
        tau_s, bound_us = self._times(jobs, len(urgency))
        columns = (jobs(name)[rows].tolist() for name in ("gpus", "p10_s", self._run_time, "p90_s"))
        large = [False] * len(rows)
        if self._divisor != 1:
            large = is_large(jobs("gpus"), jobs("node_gpus"))[rows].tolist()
        promoted = (urgency[rows] == PROMOTED).tolist()
        describe = partial(_describe_service, ages=self._ages, sizes=self._size_orders(jobs, len(urgency)))
        reasons = []
        for goes_first, wait_s, is_divided, *expected in zip(promoted, waited_s.tolist(), large, *columns, strict=True):
            waited, service = (
                f"waited {rounded_duration(wait_s)}",
                describe(*expected, self._divisor if is_divided else 1.0),
            )
            if goes_first:
                reasons.append(f"{waited}, long enough to go first; {service}")
                continue
            if math.isfinite(tau_s):
                waited += f", which counts as 1/{math.exp(min(max(wait_s, 0) / tau_s, 20)):,.1f} of that"
            if bound_us < LONGEST_US:
                waited += f", goes first after {rounded_duration(bound_us / 1e6)}"
            reasons.append(f"{service}; {waited}")
        return reasons

    def _times(self, jobs: Columns, n_jobs: int) -> tuple[float, int]:
        """Return the ageing time, s, and the wait bound, µs."""
        longest_s = float(jobs("longest_own_wait_s")[0]) if n_jobs else math.nan  # the same for all
        longest_s = UNKNOWN_LONGEST_S if math.isnan(longest_s) else longest_s
        bound_s, share, least_s = self.options.promote_after_s, self.options.bound_share, self.options.least_s
        if not bound_s:
            bound_s = max(least_s, share * longest_s) if share else math.inf
        tau_s = max(least_s / TAUS_IN_LEAST, self.options.wait_share * longest_s)
        return tau_s if self._ages else math.inf, int(min(bound_s * 1e6, LONGEST_US))

    def _size_orders(self, jobs: Columns, n_jobs: int) -> bool:
        if self.options.order == OrderRule.QSSF and n_jobs:
            return bool(jobs("size_orders")[0])  # the same for all
        return self.options.order == OrderRule.SIZE

    def _keys(self, jobs: Columns, tau_s: float, now_us: int) -> tuple[NDArray[np.float64], float, int, int]:
        """Return the keys without ageing, and how they age.

        The latter are the ageing time (0: they do not age), the reference moment, and the end of its period, µs.
        """
        gpus = jobs("gpus")
        run_time_s = NEUTRAL_GPU_S if self._size_orders(jobs, len(gpus)) else jobs(self._run_time)
        service = run_time_s * np.where(gpus > 0, gpus, 1)
        if self._divisor != 1:
            service = np.where(is_large(gpus, jobs("node_gpus")), service / self._divisor, service)
        if not self._ages:
            return np.log(np.maximum(service, LEAST_SERVICE)), 0.0, 0, int(LONGEST_US)
        key = np.log(np.maximum(np.where(np.isnan(service), NEUTRAL_GPU_S, service), 1.0))
        return key, 1e6 * tau_s, *_reference(now_us, tau_s)


@cached_jit
def _fill_urgencies(  # noqa: PLR0917 - numba kernels are called by position
    key: Any,
    waited_us: Any,
    previous: Any,
    times: tuple[int, ...],
    aged_us: float,
    levels: int,
    urgency: Any,
    until_us: Any,
) -> None:
    """Fill in the urgencies of jobs, and until when they hold.

    A replay calls this at every event, usually for a few jobs. As array operations it took three times as long.

    Parameters
    ----------
    previous : float64 array of shape (n_jobs,)
        Present urgencies of the jobs.
    times : tuple of int
        Now, the wait bound, the reference moment, and until when it holds, µs.
    aged_us : float
        Ageing time, µs; 0: keys do not age.
    """
    now_us, bound_us, reference_us, same_until_us = times
    for job in range(len(key)):
        eligible_us = now_us - waited_us[job]
        aged = key[job] + (eligible_us - reference_us) / aged_us if aged_us > 0.0 else key[job]
        if waited_us[job] < 0:  # also for an unknown time
            urgency[job], until_us[job] = np.nan, eligible_us - 1
        elif waited_us[job] > bound_us:
            urgency[job], until_us[job] = PROMOTED, _UNBOUNDED
        else:
            urgency[job] = _on_grid(_from_scale(aged), previous[job], levels) if levels > 0 else _in_proportion(aged)
            until_us[job] = min(eligible_us + bound_us, same_until_us)
            if aged_us == 0.0 and bound_us >= LONGEST_US:
                until_us[job] = _UNBOUNDED


def _reference(now_us: int, tau_s: float) -> tuple[int, int]:
    """Return the reference moment and its period's end, µs."""
    most_s = max(TAUS_BETWEEN * tau_s, REBASE_S[0])
    period_us = max(each_s for each_s in REBASE_S if each_s <= most_s) * 1_000_000
    begin_us = now_us - now_us % period_us
    return begin_us + period_us // 2, begin_us + period_us


def _micros(at: datetime) -> int:
    return round(at.timestamp() * 1e6)


@inline_jit
def _in_proportion(key: float) -> float:
    """Return an urgency in proportion to a key.

    NaN is in the middle.
    """
    known_key = _NEUTRAL_KEY if np.isnan(key) else key
    return min(max(-(known_key - _NEUTRAL_KEY) * PROPORTION, -MOST_URGENT), MOST_URGENT) + 0.0


@inline_jit
def _from_scale(key: float) -> float:
    """Return the urgency of a key on the fixed scale.

    NaN stays NaN.
    """
    clipped = key if np.isnan(key) else min(max(key, _SHORTEST_KEY), _LONGEST_KEY)
    return MOST_URGENT * (1 - 2 * (clipped - _SHORTEST_KEY) / (_LONGEST_KEY - _SHORTEST_KEY))


@inline_jit
def _on_grid(urgency: float, previous: float, levels: int) -> float:
    """Return the nearest grid point, or the previous one if it is near.

    It is 0 for NaN.
    """
    step = MOST_URGENT / levels
    current = np.rint(previous / step)
    is_near = current != 0 and abs(urgency / step - current) <= HYSTERESIS
    level = current if is_near else np.rint(urgency / step)
    return 0.0 if np.isnan(level) else level * step + 0.0  # + 0.0: no negative zero


@lru_cache(maxsize=65_536)
def _describe_service(
    gpus: float, p10_s: float, run_time_s: float, p90_s: float, divisor: float, *, ages: bool, sizes: bool
) -> str:
    divided = f", of which a job of a node or more counts 1/{divisor:g}" if divisor != 1 else ""
    if sizes:
        return f"{count_in_words(gpus, 'GPU')}{divided}, size alone orders"
    if math.isnan(run_time_s):
        return "no prediction, so neutral"
    width = f" ({rounded_duration(p10_s)} to {rounded_duration(p90_s)})" if p10_s <= p90_s else ""
    bound = f" of at most {rounded_duration(HORIZON_S)}" if ages else ""
    predicted = f"predicted {rounded_duration(run_time_s)}{bound}{width}"
    if gpus == 0:
        return f"{predicted} without GPUs"
    return f"{predicted} on {count_in_words(gpus, 'GPU')}: {gpu_time(run_time_s * gpus)}{divided}"


def _require(valid: bool, message: str) -> None:
    if not valid:
        raise ValueError(message)
