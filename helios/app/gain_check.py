"""Gate for services that must show a gain before they act.

The gain is that of a what-if replay on the site's own history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from helios.app.history import LoadedHistory, load_history
from helios.app.reports import known_nodes
from helios.app.service_replay import ReplayedWindow, replayed_services
from helios.app.whatif import WhatIfRequest
from helios.config import Settings
from helios.errors import UsageError
from helios.metrics.queue import DAY_S, FEWEST_DAYS
from helios.ports import Progress, Service, no_progress
from helios.report.gains import compare_sizes
from helios.services.registry import build
from helios.warehouse import Warehouse

LOOK_BACK = timedelta(weeks=4)
DRAWS = 2_000
LONGEST_MAY_GROW = 0.05
"""Share by which the longest wait, which depends on single jobs, may grow and still count as no longer."""
LEAST_SAVED = 0.01
"""Share of the mean wait below which a saving is not worth the risk of soft limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLimitGain:
    """Effect of soft limits on the waits of a site's own history.

    Attributes
    ----------
    jobs, days : int
        Jobs that were counted, and the days on which they were submitted.
    mean_wait_s, mean_wait_with_s : float
        Mean wait without soft limits, and with them, s.
    longest_wait_s, longest_wait_with_s : float
        Longest wait without, and with them, s.
    by_size : str
        Waits by size, and the longest, in a sentence.
    saved_s : tuple of float
        Mean wait saved per job, s: the 2.5th and the 97.5th percentile of a bootstrap over days.
    """

    jobs: int
    days: int
    mean_wait_s: float
    mean_wait_with_s: float
    longest_wait_s: float
    longest_wait_with_s: float
    saved_s: tuple[float, float]
    by_size: str = ""

    @property
    def is_clear(self) -> bool:
        """Whether the mean wait clearly falls, and the longest does not grow."""
        return not self._refusal()

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        mean = f"the mean wait from {self.mean_wait_s:,.0f} s to {self.mean_wait_with_s:,.0f} s"
        longest = f"the longest from {self.longest_wait_s:,.0f} s to {self.longest_wait_with_s:,.0f} s"
        effect = f"on {self.jobs:,} jobs of {self.days} days soft limits change {mean} and {longest}"
        return f"No gain: {effect}; {self._refusal()}." if self._refusal() else f"A gain: {effect}. {self.by_size}"

    def _refusal(self) -> str:
        if self.days < FEWEST_DAYS:
            return f"{self.days} days are too few to tell"
        if self.longest_wait_with_s > (1 + LONGEST_MAY_GROW) * self.longest_wait_s:
            return "the longest wait grows"
        if self.saved_s[0] <= 0 or self.mean_wait_with_s > (1 - LEAST_SAVED) * self.mean_wait_s:
            return f"the saving may be chance (between {self.saved_s[0]:,.0f} s and {self.saved_s[1]:,.0f} s a job)"
        return ""


def soft_limit_gain(
    history: LoadedHistory,
    request: WhatIfRequest,
    soft_limits: Service,
    *,
    beside: Mapping[str, Service] | None = None,
    every: timedelta | None = None,
    most_of_one_user: float = 1.0,
    progress: Progress = no_progress,
) -> SoftLimitGain:
    """Replay a window with and without soft limits and compare the waits.

    Backfill that plans with predictions lengthens waits on many sites, so a site's own history has to show that here it
    does not. The bootstrap draws days, not jobs, because jobs of one day wait behind the same jobs.

    Parameters
    ----------
    request : WhatIfRequest
        The window and the machine: the site's last weeks, with a warm-up.
    soft_limits : Service
        The service as it would run.
    beside : mapping of str to Service, optional
        Other services that act in both replays, such as the one that orders the queue. None for first in, first out.
    most_of_one_user : float
        As for :func:`helios.app.service_replay.simulate_services`.

    Raises
    ------
    NotEnoughHistory, JobLargerThanPartition, PartitionUnknown
        As :func:`~helios.app.whatif.whatif`.
    """
    window = ReplayedWindow(history, request, progress)
    others = dict(beside or {})
    without, with_them = (
        window.replay(replayed_services(services, every=every), most_of_one_user=most_of_one_user)[0]
        for services in (others, {**others, "soft_limits": soft_limits})
    )
    saved_s = (without.wait_s - with_them.wait_s).astype(np.float64)
    _, day = np.unique(without.submitted_s // DAY_S, return_inverse=True)
    of_day_s, jobs_of_day = np.bincount(day, weights=saved_s), np.bincount(day)
    drawn = np.random.default_rng(request.seed).integers(len(of_day_s), size=(DRAWS, len(of_day_s)))
    means = of_day_s[drawn].sum(axis=1) / jobs_of_day[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return SoftLimitGain(
        jobs=len(saved_s),
        days=len(of_day_s),
        mean_wait_s=without.summary.mean_wait_s,
        mean_wait_with_s=with_them.summary.mean_wait_s,
        longest_wait_s=without.summary.max_wait_s,
        longest_wait_with_s=with_them.summary.max_wait_s,
        saved_s=(float(low), float(high)),
        by_size=compare_sizes(without.summary, with_them.summary),
    )


class NoGain(UsageError):
    """A service may not act because a what-if replay shows no gain."""


def refuse_without_gain(
    settings: Settings,
    cluster: str,
    name: str,
    service: Service,
    *,
    now: datetime | None = None,
    progress: Progress = no_progress,
) -> tuple[str, ...]:
    """Raise unless the last four weeks show the service's gain.

    Services that do not require a gain pass without a replay.

    Returns
    -------
    tuple of str
        The result of the replay as one sentence; empty where none was needed.

    Raises
    ------
    NoGain
        There is no gain, or no history to show one.
    """
    if getattr(service, "requires_gain", "") != "soft_limits":
        return ()
    with Warehouse.open(settings.database.url) as warehouse:
        nodes, gpus_per_node = known_nodes(warehouse, cluster)
    history = load_history(url=settings.database.url, cluster=cluster)
    until = now or datetime.now(UTC)
    request = WhatIfRequest(
        scenarios=(),
        since=until - LOOK_BACK,
        until=until,
        warm_up=timedelta(days=7),
        nodes=nodes,
        gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
        resource=None,
        skip_oversized=True,
        default_time_limit_s=settings.whatif.default_time_limit_s,
        seed=settings.model.seed,
    )
    gain = soft_limit_gain(
        history,
        request,
        service,
        beside={other: build(other, options) for other, options in settings.services.items() if other != name},
        most_of_one_user=settings.control.most_of_one_user,
        progress=progress,
    )
    if not gain.is_clear:
        raise NoGain(
            f"{name} stays in shadow. {gain.sentence}",
            hint="Soft limits only help where backfill lacks good estimates. See docs/safety.md.",
        )
    return (gain.sentence,)
