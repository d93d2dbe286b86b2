"""Replay of a demand series on a number of nodes.

There are no jobs here. As in the Helios paper (SC'21, section 4.3), a series says how many nodes were busy, and it
stays the same even where a node had to boot first. Unlike there, nodes take time to wake and to fall asleep, a shortage
wakes nodes at once as Slurm does for a job, and the missing node time is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point
from helios.metrics.node_usage import NodeSeconds

_BUSY, _IDLE, _ASLEEP, _FALLING, _WAKING = range(5)
_WAKES, _SLEEPS, _WOKEN, _SHORTAGES, _SHORT = range(5)

LONGEST_STRETCH = 4_032
"""Longest stretch between two wakes that the optimum considers, in steps: four weeks of ten minutes."""
_HALVINGS = 40
"""Steps of the bisection for the price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRun:
    """Result of a replay of powered nodes.

    Attributes
    ----------
    hourly : tuple of NodeSeconds
        Node seconds of all nodes in service, for each counted hour.
    wakes, sleeps : int
        Decision steps in which some nodes were woken, or put to sleep.
    woken : int
        Nodes that woke.
    shortages : int
        Number of times that fewer nodes were awake than needed.
    short_s : float
        Node seconds that were missing.
    mean_asleep : float
        Nodes asleep, averaged over time.
    utilization_before : float
        Busy nodes over those in service.
    """

    hourly: tuple[NodeSeconds, ...]
    wakes: int
    sleeps: int
    woken: int
    shortages: int
    short_s: float
    mean_asleep: float
    utilization_before: float

    @property
    def seconds(self) -> NodeSeconds:
        """Node seconds of all hours."""
        return sum(self.hourly, start=NodeSeconds())


def replay_levels(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    levels: NDArray[np.float64],
    *,
    step_s: int,
    decide_every: int,
    boot_s: float,
    shutdown_s: float,
    count_from: int = 0,
    may_sleep_between: bool = False,
) -> SeriesRun:
    """Replay a demand of ``busy`` nodes with ``levels`` nodes powered.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        Nodes needed and nodes in service, one value for each ``step_s``.
    levels : float64 array of shape (n_steps,)
        Nodes to be awake during each step, known before it begins. inf: all.
    decide_every : int
        Steps between two decisions, at steps 0, ``decide_every``, ... Nodes are put to sleep only at decisions. All
        wakes from one decision to the next count as one.
    boot_s, shutdown_s : float
        Time to wake and to fall asleep; a node that falls asleep cannot be called back.
    count_from : int
        First step that counts. Earlier ones only lead to its state. All nodes are awake at step 0.
    may_sleep_between : bool
        Nodes may fall asleep at any step, as under the cluster's own idle timer.
    """
    boot, shutdown = (int(np.ceil(length_s / step_s)) for length_s in (boot_s, shutdown_s))
    waking, falling = np.zeros(max(boot, 1)), np.zeros(max(shutdown, 1))
    steps_per_hour = max(3_600 // step_s, 1)
    states = np.zeros((-(-(len(busy) - count_from) // steps_per_hour), 5))
    tallies = np.zeros(6)
    _replay_steps(
        np.minimum(busy, total),
        np.ascontiguousarray(total),
        np.ceil(np.minimum(levels, total)),
        decide_every,
        boot,
        shutdown,
        count_from,
        may_sleep_between,
        steps_per_hour,
        waking,
        falling,
        states,
        tallies,
    )
    hourly = tuple(
        NodeSeconds(busy=busy, idle=idle, asleep=asleep, falling_asleep=falling, waking=waking)
        for busy, idle, asleep, falling, waking in (states * step_s).tolist()
    )
    wakes, sleeps, woken, shortages, short = tallies[:5].tolist()
    needed, counted = float(states[:, _BUSY].sum() + short), total[count_from:]
    node_steps = float(counted.sum())
    return SeriesRun(
        hourly=hourly,
        wakes=int(wakes),
        sleeps=int(sleeps),
        woken=round(woken),
        shortages=int(shortages),
        short_s=short * step_s,
        mean_asleep=float(states[:, _ASLEEP].sum()) / max(len(counted), 1),
        utilization_before=needed / node_steps if node_steps else 0.0,
    )


@entry_point
def _replay_steps(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    levels: NDArray[np.float64],
    decide_every: int,
    boot: int,
    shutdown: int,
    count_from: int,
    may_sleep_between: bool,
    steps_per_hour: int,
    waking: NDArray[np.float64],
    falling: NDArray[np.float64],
    states: NDArray[np.float64],
    tallies: NDArray[np.float64],
) -> None:
    awake, in_waking, in_falling = total[0], 0.0, 0.0
    any_woken, any_slept, short_before = False, False, False
    for t in range(len(busy)):
        booted = t % len(waking)
        awake, in_waking, waking[booted] = awake + waking[booted], in_waking - waking[booted], 0.0
        fallen = t % len(falling)
        in_falling, falling[fallen] = in_falling - falling[fallen], 0.0
        if t and total[t] > total[t - 1]:
            # Nodes return to service powered on, and stay awake as far as the level asks for them.
            awake += min(total[t] - total[t - 1], max(levels[t] - awake - in_waking, 0.0))
        awake = max(min(awake, total[t] - in_waking - in_falling), 0.0)
        counts = t >= count_from
        ready, count = awake + in_waking, 0.0
        if levels[t] > ready:
            count = max(min(levels[t] - ready, total[t] - ready - in_falling), 0.0)
        elif t % decide_every == 0 or may_sleep_between:
            count = -max(min(ready - levels[t], awake - busy[t]), 0.0)
        any_woken, any_slept = any_woken or (counts and count > 0), any_slept or (counts and count < 0)
        if t % decide_every == 0:
            # Wakes and sleeps since the last decision belong to it, those by the cluster itself included.
            tallies[_WAKES] += any_woken
            tallies[_SLEEPS] += any_slept
            any_woken, any_slept = False, False
        if count < 0:
            awake += count
            falling[fallen] -= count if shutdown else 0.0
            in_falling -= count if shutdown else 0.0
            count = 0.0
        ready = awake + in_waking + count
        forced = max(min(busy[t] - ready, total[t] - ready - in_falling), 0.0)
        any_woken = any_woken or (counts and forced > 0)
        count += forced
        tallies[_WOKEN] += count if counts else 0.0
        if boot:
            waking[booted] += count
            in_waking += count
        else:
            awake += count
        if not counts:
            continue
        short = max(busy[t] - awake, 0.0)
        tallies[_SHORTAGES] += short > 0 and not short_before
        short_before = short > 0
        tallies[_SHORT] += short
        hour = states[(t - count_from) // steps_per_hour]
        hour[_BUSY] += busy[t] - short
        hour[_IDLE] += awake - (busy[t] - short)
        hour[_ASLEEP] += total[t] - awake - in_waking - in_falling
        hour[_FALLING] += in_falling
        hour[_WAKING] += in_waking
    tallies[_WAKES] += any_woken
    tallies[_SLEEPS] += any_slept


def idle_timer_levels(busy: NDArray[np.float64], *, steps: int) -> NDArray[np.float64]:
    """Return the number of nodes that Slurm's idle timer leaves awake.

    It is the most that was needed in the last ``steps`` steps or now, where nodes are filled in a fixed order. Where
    jobs are spread, fewer nodes fall asleep.
    """
    return _most_of_last(np.ascontiguousarray(busy), steps + 1, busy.copy(), np.zeros(len(busy), dtype=np.int64))


@entry_point
def _most_of_last(
    values: NDArray[np.float64], steps: int, highest: NDArray[np.float64], queue: NDArray[np.int64]
) -> NDArray[np.float64]:
    # A monotonic queue of positions with descending values: the first is the maximum of the window.
    head, tail = 0, 0
    for t in range(len(values)):
        while tail > head and values[queue[tail - 1]] <= values[t]:
            tail -= 1
        queue[tail] = t
        tail += 1
        if queue[head] <= t - steps:
            head += 1
        highest[t] = values[queue[head]]
    return highest


def oracle_levels(busy: NDArray[np.float64], *, boot_steps: int, least_steps: int) -> NDArray[np.float64]:
    """Return the nodes awake if nodes sleep in all long idle times.

    The oracle knows the future and wakes each node a boot time ahead of need, so that none is ever short.

    Parameters
    ----------
    busy : float64 array of shape (n_steps,)
    boot_steps : int
        Steps that a node takes to wake.
    least_steps : int
        Nodes stay awake in idle times of at most so many steps.
    """
    filled = idle_timer_levels(busy, steps=least_steps)
    filled = -idle_timer_levels(-filled[::-1], steps=least_steps)[::-1]
    return np.ascontiguousarray(idle_timer_levels(filled[::-1], steps=boot_steps)[::-1])


def fewest_levels(needed: NDArray[np.float64], *, most_wakes: int) -> NDArray[np.float64]:
    """Return the fewest powered nodes that cover ``needed`` with few wakes.

    It knows the future, so no policy can do better. The result minimises the powered nodes plus a price for each wake,
    by dynamic programming over the moments of wakes. The price is the lowest at which there are not too many wakes. The
    nodes awake at the start cost no wake.

    Parameters
    ----------
    needed : float64 array of shape (n_steps,)
        Most nodes needed within each decision step.
    most_wakes : int
        Steps in which the level may rise.
    """
    low, high = 0.0, float(needed.max(initial=0.0)) * len(needed) + 1.0
    needed = np.ascontiguousarray(needed)
    for _ in range(_HALVINGS):
        price = (low + high) / 2
        n_wakes = int((np.diff(_cheapest_levels(needed, price)) > 0).sum())
        low, high = (price, high) if n_wakes > most_wakes else (low, price)
    return _cheapest_levels(needed, high)


def _cheapest_levels(needed: NDArray[np.float64], price: float) -> NDArray[np.float64]:
    n_steps = len(needed)
    cost, begun = np.full(n_steps + 1, np.inf), np.zeros(n_steps + 1, dtype=np.int64)
    _cheapest_stretches(needed, price, LONGEST_STRETCH, cost, begun)
    levels = np.zeros(n_steps)
    after = n_steps
    while after > 0:
        first = begun[after]
        # Within a stretch nodes only fall asleep: the level is the most that is still needed in it.
        levels[first:after] = np.maximum.accumulate(needed[first:after][::-1])[::-1]
        after = first
    return levels


@entry_point
def _cheapest_stretches(
    needed: NDArray[np.float64], price: float, longest: int, cost: NDArray[np.float64], begun: NDArray[np.int64]
) -> None:
    cost[0] = -price
    for after in range(1, len(needed) + 1):
        most, powered = 0.0, 0.0
        for first in range(after - 1, max(after - longest, 0) - 1, -1):
            most = max(most, needed[first])
            powered += most
            if cost[first] + powered + price < cost[after]:
                cost[after], begun[after] = cost[first] + powered + price, first
