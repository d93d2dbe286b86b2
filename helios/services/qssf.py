"""Quasi-Shortest-Service-First: the queue order of the paper that this project starts from, with a bound on the wait.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale
GPU Datacenters", SC'21, section 4.2, doi 10.1145/3458817.3476223. The promotion of jobs that have waited long is
Helios' own: the paper's order starves large jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from helios.actions import Reorder
from helios.model import Snapshot
from helios.ports import Columns, Wishes
from helios.services.jobwise import reorders
from helios.services.orders import LARGE_FAVOUR, LARGE_GPUS, favour
from helios.services.wording import counted, duration, gpu_time

SHORTEST_GPU_S = 10.0
"""Service at or below which a job is as urgent as one can be without promotion: ten seconds on one GPU."""
LONGEST_GPU_S = 1e7
"""Service at or above which it is as little urgent: 116 GPU-days. The neutral middle is 2.8 GPU-hours."""
MOST_URGENT = 0.9
"""Of a job that is not promoted; the rest of the scale keeps promoted ones ahead however coarse the cluster counts."""
PROMOTED = 1.0
PROPORTION = 2.0**-40
"""Urgency lost with each GPU-second where urgencies are on no grid; at 2^40 s, 35,000 GPU-years, none is left."""
NEUTRAL_GPU_S = 1e4
LONGEST_US = 9e15
"""Longest patience that is told from for ever, 285 years: what microseconds since 1970 have room for."""
_FOR_EVER = np.datetime64("NaT").view(np.int64)
STICKS = 0.75
"""A level is kept until the urgency is this many grid steps away from it: half a step would be no hysteresis."""


class Rule(StrEnum):
    """Which jobs of a queue go first, where nobody has waited too long."""

    BALANCED = "balanced"
    SERVICE = "service"


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
        order : str
            ``balanced``: the service of jobs above 8 GPUs counts 1/20, see :func:`helios.services.orders.balanced`;
            ``service``: the paper's rule, which starves large jobs. On a cluster of a few nodes, where jobs above 8
            GPUs are many, the paper's rule has the shorter mean: rehearse both.
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
            Steps of the urgency grid on either side of 0; 9 is one step for each third of a decade of service. 0: no
            grid and no logarithm, the urgency falls in proportion to the service, so that no two services are alike.
            That is for replays that do not round (``SimCluster(resolution=None)``); a SiteFactor is too coarse for it.
        """

        every_s: int = 30
        order: str = Rule.BALANCED.value
        gpu_exponent: float = 1.0
        promote_after_s: float = 43_200.0
        promote_factor: float = 0.0
        levels: int = 9

        def __post_init__(self) -> None:
            _require(self.every_s > 0, "every_s must be positive")
            _require(self.order in [*Rule], f"order must be one of {', '.join(Rule)}")
            _require(abs(self.gpu_exponent) <= 2, "gpu_exponent must lie between -2 and 2")
            _require(self.promote_after_s > 0, "promote_after_s must be positive")
            _require(0 <= self.promote_factor < np.inf, "promote_factor must be finite and not negative")
            _require(0 <= self.levels <= 40, "levels must lie between 0 and 40")

    def __init__(self, options: Options) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)
        self._patience = int(min(options.promote_after_s * 1e6, LONGEST_US))

    def decide(self, snapshot: Snapshot) -> list[Reorder]:
        """Return one order for each partition that has jobs which may be named."""
        wishes = self.wishes(snapshot.pending_values, snapshot.taken_at)
        return reorders(
            snapshot,
            wishes,
            why=lambda rows: _reasons(snapshot, wishes.urgency, rows, favours=self.options.order == Rule.BALANCED),
            reason=lambda rows: _summary(wishes.urgency[rows]),
        )

    def wishes(self, jobs: Columns, at: datetime) -> Wishes:
        """Return the urgency of each of ``jobs``; see :class:`helios.ports.JobwiseService`."""
        now_us, eligible_us = _micros(at), jobs("eligible_at").view(np.int64)
        p50_s = jobs("p50_s")
        patience_us = self._patience_us(p50_s)
        waited_us = now_us - eligible_us
        promoted = waited_us > patience_us
        urgency = self._urgency(gpus=jobs("gpus"), p50_s=p50_s, now=jobs("urgency"))
        urgency[promoted] = PROMOTED
        until_us = eligible_us + patience_us
        until_us[promoted] = _FOR_EVER
        early = waited_us < 0  # also where nobody knows when: NaT is the least number there is, and wraps round
        if early.any():
            urgency[early], until_us[early] = np.nan, eligible_us[early] - 1
        hands_off = jobs("hands_off")
        urgency[np.equal(hands_off, hands_off)] = np.nan  # missing is NaN, which is not itself
        return Wishes(urgency=urgency, until=until_us.view("datetime64[us]"))

    def _patience_us(self, p50_s: NDArray[np.float64]) -> NDArray[np.int64] | int:
        if not self.options.promote_factor:
            return self._patience
        patience_s = np.fmax(self.options.promote_after_s, self.options.promote_factor * p50_s)
        return np.floor(np.fmin(patience_s * 1e6, LONGEST_US)).astype(np.int64)

    def _urgency(
        self, *, gpus: NDArray[np.int32], p50_s: NDArray[np.float64], now: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        exponent, counted_gpus = self.options.gpu_exponent, np.maximum(gpus, 1).astype(np.float64)
        service = p50_s * (counted_gpus if exponent == 1 else counted_gpus**exponent)
        if self.options.order == Rule.BALANCED:
            service = service * favour(gpus)
        if not self.options.levels:
            return _in_proportion(service)
        return _on_grid(_from_scale(service), now=now, levels=self.options.levels)


def _micros(at: datetime) -> int:
    return round(at.timestamp() * 1e6)


def _in_proportion(service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Urgency in exact proportion to service, by a power of two: no two numbers become one. NaN is in the middle."""
    known = np.where(np.isnan(service), NEUTRAL_GPU_S, service)
    urgency: NDArray[np.float64] = 0.0 - np.minimum(known, 1 / PROPORTION) * PROPORTION
    return urgency


def _from_scale(service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Urgency of service on the fixed scale; NaN stays NaN."""
    shortest, longest = np.log10(SHORTEST_GPU_S), np.log10(LONGEST_GPU_S)
    within = np.minimum(np.maximum(service, SHORTEST_GPU_S), LONGEST_GPU_S)  # clip, which takes ten times as long
    place = (np.log10(within) - shortest) / (longest - shortest)
    urgency: NDArray[np.float64] = MOST_URGENT * (1 - 2 * place)
    return urgency


def _on_grid(urgency: NDArray[np.float64], *, now: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """Nearest grid point, but the one the job has ``now`` while that is near enough; 0 for NaN."""
    step = MOST_URGENT / levels
    had = np.rint(now / step)
    keeps = (had != 0) & (np.abs(urgency / step - had) <= STICKS)
    level = np.where(keeps, had, np.rint(urgency / step))
    return np.where(np.isnan(level), 0.0, level * step) + 0.0  # + 0.0: no negative zero


def _reasons(snapshot: Snapshot, urgency: NDArray[np.float64], rows: NDArray[np.int64], *, favours: bool) -> list[str]:
    """Say why each of the jobs in these rows stands where it does."""
    waited_s = (_micros(snapshot.taken_at) - snapshot.pending_values("eligible_at")[rows].view(np.int64)) / 1e6
    facts = (snapshot.pending_values(name)[rows].tolist() for name in ("gpus", "p10_s", "p50_s", "p90_s"))
    promoted = (urgency[rows] == PROMOTED).tolist()
    return [
        _reason(_expected(*expected, favours), f"waited {duration(so_long_s)}", goes_first)
        for goes_first, so_long_s, *expected in zip(promoted, waited_s.tolist(), *facts, strict=True)
    ]


def _reason(expected: str, waited: str, promoted: bool) -> str:
    return f"{waited}, long enough to go first; {expected}" if promoted else f"{expected}; {waited}"


def _summary(urgency: NDArray[np.float64]) -> str:
    return f"least predicted service first; {int((urgency == PROMOTED).sum())} promoted for their wait"


@lru_cache(maxsize=65_536)
def _expected(gpus: int, p10_s: float, p50_s: float, p90_s: float, favours: bool) -> str:
    if math.isnan(p50_s):
        return "no prediction, so neutral"
    width = f" ({duration(p10_s)} to {duration(p90_s)})" if p10_s <= p90_s else ""
    if gpus == 0:
        return f"predicted {duration(p50_s)}{width} without GPUs"
    large = f", of which a large job counts 1/{LARGE_FAVOUR:g}" if favours and gpus > LARGE_GPUS else ""
    return f"predicted {duration(p50_s)}{width} on {counted(gpus, 'GPU')}: {gpu_time(p50_s * gpus)}{large}"


def _require(holds: bool, fact: str) -> None:
    if not holds:
        raise ValueError(fact)
