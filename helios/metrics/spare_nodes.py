"""Rule for how many nodes stay awake.

Each minute nodes are woken up to those in use and ``spare`` more, and put to sleep down to the most in use lately and
``spare`` more. Both numbers are the same on both sides, as a smaller reserve for sleep wakes nodes again and again.
There is no forecast: none was worth more than 1 % of the energy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from helios.jit import kernel

CHECK_S = 60
"""Time between two checks of the rule, s. Every ten minutes delays 1.5 to 1.8 times as many submissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwakeRule:
    """Number of nodes that stay awake.

    Attributes
    ----------
    memory_s : int
        Time over which the most nodes in use count, s.
    spare : int
        Nodes awake beyond those in use.
    wakes : str
        ``ahead`` of need, as Helios does; the others are for comparison: once a job has had to wake a node (``short``),
        or ``never``, as the cluster's own idle timer.
    every_s : int
        Time between two checks, s.
    least_idle_s : int
        Time for which a node must have been idle to be put to sleep, s.
    counts_use : bool
        Whether ``spare`` nodes are awake beyond those in use, or that many at least, those in use included.
    """

    memory_s: int
    spare: int
    wakes: Literal["ahead", "short", "never"] = "ahead"
    every_s: int = CHECK_S
    least_idle_s: int = 0
    counts_use: bool = True


@kernel
def nodes_to_change(busy: int, peak: int, spare: int, powered: int, total: int) -> int:
    """Return the nodes to wake, or below zero those to put to sleep.

    Parameters
    ----------
    busy : int
        Nodes that hold a job, or that started jobs wait for.
    peak : int
        The most of them lately, at least ``busy``.
    powered : int
        Nodes awake or waking.
    total : int
        Nodes that could be awake.
    """
    return max(min(total, busy + spare) - powered, 0) + min(min(total, peak + spare) - powered, 0)
