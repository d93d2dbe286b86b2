"""Replay of a demand series on a number of nodes.

There are no jobs here. As in the Helios paper (SC'21, section 4.3), a series says how many nodes were busy, and it
stays the same even where a node had to boot first. Three things are as on a real cluster: nodes take time to wake and
to fall asleep, a shortage wakes nodes at once as Slurm does for a job, and the missing node time is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point
from helios.metrics.node_usage import NodeSeconds

_BUSY, _IDLE, _ASLEEP, _FALLING, _WAKING = range(5)
_WAKES, _SLEEPS, _WOKEN, _SHORTAGES, _SHORT = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRun:
    """Result of a replay of powered nodes.

    Attributes
    ----------
    hourly : tuple of NodeSeconds
        Of all nodes in service, for each hour that counts.
    wakes, sleeps : int
        Decision steps in which some nodes were woken, or put to sleep.
    woken : int
        Nodes that woke.
    shortages : int
        How often fewer nodes were awake than needed.
    short_s : float
        Nodes that were missing, times how long, s.
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
        Steps between two decisions, at steps 0, ``decide_every``, ...; only at one of them is a node put to sleep, and
        the wakes up to and with the next count as one.
    boot_s, shutdown_s : float
        Time to wake and to fall asleep; a node that falls asleep cannot be called back.
    count_from : int
        First step that counts. Earlier ones only lead to its state; all nodes are awake at the first of them.
    may_sleep_between : bool
        Nodes may fall asleep at any step, as under the cluster's own idle timer.
    """
    boot, shutdown = (int(np.ceil(length_s / step_s)) for length_s in (boot_s, shutdown_s))
    waking, falling = np.zeros(max(boot, 1)), np.zeros(max(shutdown, 1))
    an_hour = max(3_600 // step_s, 1)
    states = np.zeros((-(-(len(busy) - count_from) // an_hour), 5))
    tallies = np.zeros(6)
    _run(
        np.minimum(busy, total),
        np.ascontiguousarray(total),
        np.ceil(np.minimum(levels, total)),
        decide_every,
        boot,
        shutdown,
        count_from,
        may_sleep_between,
        an_hour,
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
    there = float(counted.sum())
    return SeriesRun(
        hourly=hourly,
        wakes=int(wakes),
        sleeps=int(sleeps),
        woken=round(woken),
        shortages=int(shortages),
        short_s=short * step_s,
        mean_asleep=float(states[:, _ASLEEP].sum()) / max(len(counted), 1),
        utilization_before=needed / there if there else 0.0,
    )


@entry_point
def _run(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    levels: NDArray[np.float64],
    decide_every: int,
    boot: int,
    shutdown: int,
    count_from: int,
    may_sleep_between: bool,
    an_hour: int,
    waking: NDArray[np.float64],
    falling: NDArray[np.float64],
    states: NDArray[np.float64],
    tallies: NDArray[np.float64],
) -> None:
    awake, in_waking, in_falling = total[0], 0.0, 0.0
    woke, slept, short_before = False, False, False
    for t in range(len(busy)):
        place = t % len(waking)
        awake, in_waking, waking[place] = awake + waking[place], in_waking - waking[place], 0.0
        fallen = t % len(falling)
        in_falling, falling[fallen] = in_falling - falling[fallen], 0.0
        if t and total[t] > total[t - 1]:
            # Nodes that return to service are powered on; they stay so where they are wanted.
            awake += min(total[t] - total[t - 1], max(levels[t] - awake - in_waking, 0.0))
        awake = max(min(awake, total[t] - in_waking - in_falling), 0.0)
        counts = t >= count_from
        ready, count = awake + in_waking, 0.0
        if levels[t] > ready:
            count = max(min(levels[t] - ready, total[t] - ready - in_falling), 0.0)
        elif t % decide_every == 0 or may_sleep_between:
            count = -max(min(ready - levels[t], awake - busy[t]), 0.0)
        woke, slept = woke or (counts and count > 0), slept or (counts and count < 0)
        if t % decide_every == 0:
            # What was decided at the end of the last step belongs to it, with what the cluster woke by itself in it.
            tallies[_WAKES] += woke
            tallies[_SLEEPS] += slept
            woke, slept = False, False
        if count < 0:
            awake += count
            falling[fallen] -= count if shutdown else 0.0
            in_falling -= count if shutdown else 0.0
            count = 0.0
        ready = awake + in_waking + count
        at_once = max(min(busy[t] - ready, total[t] - ready - in_falling), 0.0)
        woke = woke or (counts and at_once > 0)
        count += at_once
        tallies[_WOKEN] += count if counts else 0.0
        if boot:
            waking[place] += count
            in_waking += count
        else:
            awake += count
        if not counts:
            continue
        short = max(busy[t] - awake, 0.0)
        tallies[_SHORTAGES] += short > 0 and not short_before
        short_before = short > 0
        tallies[_SHORT] += short
        hour = states[(t - count_from) // an_hour]
        hour[_BUSY] += busy[t] - short
        hour[_IDLE] += awake - (busy[t] - short)
        hour[_ASLEEP] += total[t] - awake - in_waking - in_falling
        hour[_FALLING] += in_falling
        hour[_WAKING] += in_waking
    tallies[_WAKES] += woke
    tallies[_SLEEPS] += slept


def idle_timer_levels(busy: NDArray[np.float64], *, steps: int) -> NDArray[np.float64]:
    """Return the number of nodes that Slurm's idle timer leaves awake.

    That is the most that was needed in the last ``steps`` steps or now, as on nodes that are filled in a fixed order.
    Where jobs are spread, fewer nodes fall asleep.
    """
    return _most_of_last(np.ascontiguousarray(busy), steps + 1, busy.copy(), np.zeros(len(busy), dtype=np.int64))


@entry_point
def _most_of_last(
    values: NDArray[np.float64], steps: int, most: NDArray[np.float64], queue: NDArray[np.int64]
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
        most[t] = values[queue[head]]
    return most


def oracle_levels(busy: NDArray[np.float64], *, boot_steps: int, least_steps: int) -> NDArray[np.float64]:
    """Return the nodes awake if all long idle times were slept.

    It knows the future and wakes nodes as often as it takes, each a boot ahead of need, so that none is ever short.

    Parameters
    ----------
    busy : float64 array of shape (n_steps,)
    boot_steps : int
        Steps that a node takes to wake.
    least_steps : int
        Idle times of so many steps or fewer are not slept.
    """
    filled = idle_timer_levels(busy, steps=least_steps)
    filled = -idle_timer_levels(-filled[::-1], steps=least_steps)[::-1]
    return np.ascontiguousarray(idle_timer_levels(filled[::-1], steps=boot_steps)[::-1])


def fewest_levels(needed: NDArray[np.float64], *, most_wakes: int) -> NDArray[np.float64]:
    """Return the fewest powered nodes that cover ``needed`` with few wakes.

    It knows the future, and so bounds what any policy can reach. The result is the optimum of nodes powered plus a
    price for each wake, by dynamic programming over the moments of wakes; the price is the lowest under which there are
    not too many. The nodes awake at the start cost no wake.

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


LONGEST_STRETCH = 4_032
"""Longest stretch between two wakes that the optimum considers, in steps: four weeks of ten minutes."""
_HALVINGS = 40


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
