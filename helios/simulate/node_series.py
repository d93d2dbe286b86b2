"""Replay of a demand series on a number of nodes.

There are no jobs here. As in the Helios paper (SC'21, section 4.3), a series says how many nodes were busy, and it
stays the same even where a node had to boot first. Unlike there, nodes take time to wake and to fall asleep, a shortage
wakes nodes at once as Slurm does for a job, and the missing node time is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import entry_point
from helios.metrics.node_usage import NodeSeconds
from helios.metrics.spare_nodes import AwakeRule, compiled_nodes_to_change

_BUSY, _IDLE, _ASLEEP, _FALLING, _WAKING = range(5)
_WOKEN, _SHORT = range(2)
_NEVER, _SHORT_OF_NODES, _AHEAD = range(3)
_WAKES = {"never": _NEVER, "short": _SHORT_OF_NODES, "ahead": _AHEAD}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRun:
    """Result of a replay of powered nodes.

    Attributes
    ----------
    hourly : tuple of NodeSeconds
        Node seconds of all nodes in service, for each counted hour.
    woken : int
        Nodes that woke.
    short_s : float
        Node seconds that were missing.
    mean_asleep : float
        Nodes asleep, averaged over time.
    utilization_before : float
        Busy nodes over those in service.
    """

    hourly: tuple[NodeSeconds, ...]
    woken: int
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
    boot_s: float,
    shutdown_s: float,
    count_from: int = 0,
) -> SeriesRun:
    """Replay a demand of ``busy`` nodes with ``levels`` nodes powered.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        Nodes needed and nodes in service, one value for each ``step_s``.
    levels : float64 array of shape (n_steps,)
        Nodes to be awake during each step, known before it begins. inf: all.
    boot_s, shutdown_s : float
        Time to wake and to fall asleep; a node that falls asleep cannot be called back.
    count_from : int
        First step that counts. Earlier ones only lead to its state. All nodes are awake at step 0.
    """
    boot, shutdown = (int(np.ceil(length_s / step_s)) for length_s in (boot_s, shutdown_s))
    waking, falling = np.zeros(max(boot, 1)), np.zeros(max(shutdown, 1))
    steps_per_hour = max(3_600 // step_s, 1)
    states = np.zeros((-(-(len(busy) - count_from) // steps_per_hour), 5))
    tallies = np.zeros(2)
    _replay_steps(
        np.minimum(busy, total),
        np.ascontiguousarray(total),
        np.ceil(np.minimum(levels, total)),
        boot,
        shutdown,
        count_from,
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
    woken, short = tallies.tolist()
    needed, counted = float(states[:, _BUSY].sum() + short), total[count_from:]
    node_steps = float(counted.sum())
    return SeriesRun(
        hourly=hourly,
        woken=round(woken),
        short_s=short * step_s,
        mean_asleep=float(states[:, _ASLEEP].sum()) / max(len(counted), 1),
        utilization_before=needed / node_steps if node_steps else 0.0,
    )


@entry_point
def _replay_steps(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    levels: NDArray[np.float64],
    boot: int,
    shutdown: int,
    count_from: int,
    steps_per_hour: int,
    waking: NDArray[np.float64],
    falling: NDArray[np.float64],
    states: NDArray[np.float64],
    tallies: NDArray[np.float64],
) -> None:
    awake, in_waking, in_falling = total[0], 0.0, 0.0
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
        else:
            count = -max(min(ready - levels[t], awake - busy[t]), 0.0)
        if count < 0:
            awake += count
            falling[fallen] -= count if shutdown else 0.0
            in_falling -= count if shutdown else 0.0
            count = 0.0
        ready = awake + in_waking + count
        forced = max(min(busy[t] - ready, total[t] - ready - in_falling), 0.0)
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
        tallies[_SHORT] += short
        hour = states[(t - count_from) // steps_per_hour]
        hour[_BUSY] += busy[t] - short
        hour[_IDLE] += awake - (busy[t] - short)
        hour[_ASLEEP] += total[t] - awake - in_waking - in_falling
        hour[_FALLING] += in_falling
        hour[_WAKING] += in_waking


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


def rule_levels(
    busy: NDArray[np.float64], total: NDArray[np.float64], rule: AwakeRule, *, step_s: int
) -> NDArray[np.float64]:
    """Return the nodes powered in each step under a rule for nodes awake.

    What was needed by the end of a step decides on the next one. All nodes are awake at step 0.
    """
    memory, least_idle = max(rule.memory_s // step_s, 1), rule.least_idle_s // step_s
    levels = np.zeros(len(busy))
    _follow_rule(
        np.ascontiguousarray(busy),
        np.ascontiguousarray(total),
        idle_timer_levels(busy, steps=memory - 1),
        idle_timer_levels(busy, steps=least_idle),
        float(rule.spare),
        _WAKES[rule.wakes],
        rule.counts_use,
        max(rule.every_s // step_s, 1),
        levels,
    )
    return levels


@entry_point
def _follow_rule(  # noqa: PLR0917 - numba kernels are called by position
    busy: Any,
    total: Any,
    peak: Any,
    used_lately: Any,
    spare: Any,
    wakes: int,
    counts_use: bool,
    every: int,
    levels: NDArray[np.float64],
) -> None:
    powered, was_short = total[0], False
    for t in range(len(busy)):
        levels[t] = powered
        # The cluster itself wakes what a job needs.
        was_short = was_short or busy[t] > powered
        powered = max(powered, min(busy[t], total[t]))
        if (t + 1) % every:
            continue
        if counts_use:
            change = compiled_nodes_to_change(busy[t], peak[t], spare, powered, total[t])
        else:
            change = min(max(spare, busy[t]), total[t]) - powered
        if wakes == _NEVER or (wakes == _SHORT_OF_NODES and not was_short):
            change = min(change, 0)
        powered = max(powered + change, min(powered, used_lately[t]))
        was_short = False


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
