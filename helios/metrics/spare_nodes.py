"""Rule for how many nodes stay awake, and its choice.

Each minute nodes are woken up to those in use and ``spare`` more, and put to sleep down to the most in use lately and
``spare`` more. Both numbers are the same on both sides, as a smaller reserve for sleep wakes nodes again and again.
There is no forecast: none was worth more than 1 % of the energy.

The numbers are those that would have saved most in the last weeks at no more delayed submissions than the site accepts.
A submission is a minute in which jobs were submitted to a pool. Counted by jobs, one large array would decide for
months.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from helios.config import Energy
from helios.jit import entry_point, kernel
from helios.metrics.node_usage import J_PER_KWH
from helios.model import PoolUse
from helios.units import DAY_S, count_in_words, percent

CHECK_S = 60
"""Time between two checks of the rule, s. Every ten minutes delays 1.5 to 1.8 times as many submissions."""
MEMORIES_S = (1_800, 3_600, 7_200, 10_800)
SPARES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48)
LEAST_SHARE = 3
"""More spare nodes than one in so many of a pool are not tried, except for two."""
MEMORY_WITH_HOLES_S = 3_600
"""Least memory where the record has holes, s: in a hole nothing seems to be in use."""
LEAST_HISTORY_S = 21 * DAY_S
WEEKS = 8
"""Weeks before a choice on which it is made, where there are as many."""
DELAYED_SUBMISSIONS = 0.01
"""Share of submissions that may wait for a boot, where a site does not say."""
CYCLES_PER_NODE_DAY = 1.0
"""How often a node may be woken a day, on average: some 1,800 times in five years."""
HALVINGS = 60
"""Steps of the bisection for the price of a delayed submission."""
Minutes = NDArray[np.int64]
Count = TypeVar("Count", int, float)
"""Nodes; parts of one in a series that is an average."""


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
        Whether ``spare`` nodes are awake beyond those in use, or that many in all, those in use included.
    """

    memory_s: int
    spare: int
    wakes: Literal["ahead", "short", "never"] = "ahead"
    every_s: int = CHECK_S
    least_idle_s: int = 0
    counts_use: bool = True


SAFE_RULE = AwakeRule(memory_s=3_600, spare=5)
"""Used where there is too little history to choose."""


def nodes_to_change(busy: Count, peak: Count, spare: Count, powered: Count, total: Count) -> Count:
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


compiled_nodes_to_change = kernel(nodes_to_change)
"""The same for compiled code."""


def use_by_minute(
    at_s: Minutes,
    in_use: Minutes,
    *,
    nodes: int,
    begin_s: int,
    end_s: int,
    submitted_s: Minutes,
    has_holes: bool = False,
) -> PoolUse:
    """Return the use of a pool by minute.

    Parameters
    ----------
    at_s, in_use : int64 arrays of shape (n_changes,)
        A log of the nodes in use from a moment on, s since the epoch, ascending.
    begin_s, end_s : int
        First and last moment of the record.
    submitted_s : int64 array of shape (n_jobs,)
        Submissions to the pool, s since the epoch.
    """
    begin, n_minutes = begin_s // CHECK_S, max(end_s // CHECK_S - begin_s // CHECK_S, 0)
    minute = at_s // CHECK_S - begin
    after = np.searchsorted(minute, np.arange(n_minutes), side="right")
    last = np.concatenate([[0], in_use])[after]
    before = int(in_use[first - 1]) if (first := int(np.searchsorted(minute, 0))) else 0
    most = np.concatenate([[before], last[:-1]])[:n_minutes]
    inside = slice(first, int(np.searchsorted(minute, n_minutes)))
    rises = np.diff(in_use, prepend=0)[inside] > 0
    raised = np.zeros(n_minutes, dtype=np.int64)
    np.maximum.at(most, minute[inside], in_use[inside])
    np.maximum.at(raised, minute[inside][rises], in_use[inside][rises])
    counted = submitted_s[(submitted_s >= begin_s) & (submitted_s < end_s)]
    return PoolUse(
        nodes=nodes,
        most=most,
        last=last,
        raised=raised,
        submissions=len(np.unique(counted // CHECK_S)),
        has_holes=has_holes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """What a rule comes to on the past use of a pool.

    Attributes
    ----------
    asleep : float
        Nodes asleep or falling asleep, averaged over time.
    delayed : int
        Submissions of which a job would have waited for a boot.
    cycles_per_node_day : float
        How often a node is woken a day.
    saved_kwh_day : float
        Energy saved against all nodes awake, kWh a day.
    """

    rule: AwakeRule
    asleep: float
    delayed: int
    cycles_per_node_day: float
    saved_kwh_day: float


def try_rules(use: PoolUse, energy: Energy) -> list[RuleOutcome]:
    """Try each memory with each number of spare nodes.

    The last rule keeps all nodes awake.
    """
    memories = [memory for memory in MEMORIES_S if not use.has_holes or memory >= MEMORY_WITH_HOLES_S]
    spares = [spare for spare in SPARES if spare <= min(max(2, use.nodes // LEAST_SHARE), use.nodes - 1)]
    rules = [AwakeRule(memory_s=memory, spare=spare) for memory in memories for spare in spares]
    rules.append(AwakeRule(memory_s=memories[0], spare=use.nodes))
    settings = np.array([(rule.memory_s // CHECK_S, rule.spare) for rule in rules], dtype=np.int64)
    counts, n_minutes = np.zeros((len(rules), 4), dtype=np.int64), len(use.most)
    booting = np.zeros(max(-int(-energy.boot_s // CHECK_S), 1), dtype=np.int64)
    _try_all(use.most, use.last, use.raised, use.nodes, settings, booting, np.zeros(n_minutes, dtype=np.int64), counts)
    asleep_s, wakes, sleeps, delayed = (counts * [CHECK_S, 1, 1, 1]).T
    saved_j = (
        asleep_s * (energy.node_idle_w - energy.node_sleep_w)
        - wakes * energy.boot_s * (energy.boot_w - energy.node_idle_w)
        - sleeps * energy.shutdown_s * (energy.boot_w - energy.node_sleep_w)
    )
    return [
        RuleOutcome(
            rule=rule,
            asleep=float(asleep_s[row] / max(n_minutes * CHECK_S, 1)),
            delayed=int(delayed[row]),
            cycles_per_node_day=float(wakes[row] / max(use.days * use.nodes, 1e-9)),
            saved_kwh_day=float(saved_j[row] * energy.cooling_factor / J_PER_KWH / max(use.days, 1e-9)),
        )
        for row, rule in enumerate(rules)
    ]


@entry_point
def _try_all(  # noqa: PLR0917 - numba kernels are called by position
    most: Minutes,
    last: Minutes,
    raised: Minutes,
    total: int,
    settings: Minutes,
    booting: Minutes,
    peaks: Minutes,
    counts: Minutes,
) -> None:
    for row in range(len(settings)):
        memory, spare, count = settings[row, 0], settings[row, 1], counts[row]
        awake, waking, begin, end = total, 0, 0, 0
        booting[:] = 0
        for minute in range(len(most)):
            booted = minute % len(booting)
            awake, waking, booting[booted] = awake + booting[booted], waking - booting[booted], 0
            # A monotonic queue of minutes with falling use, of which the first is the most of the memory.
            while end > begin and most[peaks[end - 1]] <= most[minute]:
                end -= 1
            peaks[end] = minute
            end += 1
            begin += peaks[begin] <= minute - memory
            count[3] += raised[minute] > awake
            count[0] += total - awake - waking
            # Slurm wakes for itself what jobs were given.
            change = max(most[minute] - awake - waking, 0)
            change += compiled_nodes_to_change(last[minute], most[peaks[begin]], spare, awake + waking + change, total)
            if change > 0:
                booting[booted] = change
                waking += change
                count[1] += change
            else:
                slept = min(-change, max(awake - last[minute], 0))
                awake -= slept
                count[2] += slept


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareChoice:
    """Rule of a pool, and why.

    Attributes
    ----------
    reason : str
        For a person.
    outcomes : tuple of RuleOutcome
        What each rule that was tried comes to, the chosen one included; empty without enough history.
    """

    rule: AwakeRule
    reason: str
    outcomes: tuple[RuleOutcome, ...] = ()

    @property
    def outcome(self) -> RuleOutcome | None:
        """What the rule comes to on the past use.

        None without enough history.
        """
        return next((outcome for outcome in self.outcomes if outcome.rule == self.rule), None)


def choose_rules(
    uses: Mapping[str, PoolUse], energy: Energy, *, delayed_submissions: float, cycles_per_node_day: float
) -> dict[str, SpareChoice]:
    """Return the rule of each pool that together would have saved most.

    The pools share the delays that are accepted: all pay the same price for a delayed submission, so that nodes sleep
    where that delays least.

    Parameters
    ----------
    delayed_submissions : float
        Largest share of submissions that may wait for a boot, over all pools.
    cycles_per_node_day : float
        How often a node of a pool may be woken a day, on average.
    """
    known = {pool: use for pool, use in uses.items() if use.days * DAY_S >= LEAST_HISTORY_S and use.nodes != 1}
    choices = {pool: _safe_choice(use) for pool, use in uses.items()}
    tried = {
        pool: [row for row in try_rules(use, energy) if row.cycles_per_node_day <= cycles_per_node_day]
        for pool, use in known.items()
    }
    accepted = delayed_submissions * sum(use.submissions for use in known.values())
    for pool, outcome in share_delays(tried, accepted).items():
        reason = _reason(outcome, tried[pool], known[pool])
        choices[pool] = SpareChoice(rule=outcome.rule, reason=reason, outcomes=tuple(tried[pool]))
    return choices


def share_delays(tried: Mapping[str, list[RuleOutcome]], accepted: float) -> dict[str, RuleOutcome]:
    """Return the outcomes that save most, with at most ``accepted`` delays together."""
    low, high = 0.0, 1.0 + max((row.saved_kwh_day for rows in tried.values() for row in rows), default=0.0)
    for _ in range(HALVINGS):
        price = (low + high) / 2
        too_many = sum(row.delayed for row in _at_price(tried, price).values()) > accepted
        low, high = (price, high) if too_many else (low, price)
    chosen = _at_price(tried, high)
    while True:  # spend what the price leaves over
        left = accepted - sum(row.delayed for row in chosen.values())
        better = [
            (row.saved_kwh_day - chosen[pool].saved_kwh_day, pool, row)
            for pool, rows in tried.items()
            for row in rows
            if row.saved_kwh_day > chosen[pool].saved_kwh_day and row.delayed - chosen[pool].delayed <= left
        ]
        if not better:
            return chosen
        _, pool, row = max(better, key=lambda found: found[:2])
        chosen[pool] = row


def _at_price(tried: Mapping[str, list[RuleOutcome]], price: float) -> dict[str, RuleOutcome]:
    return {
        pool: max(rows, key=lambda row: (row.saved_kwh_day - price * row.delayed, -row.delayed))
        for pool, rows in tried.items()
    }


def _safe_choice(use: PoolUse) -> SpareChoice:
    if use.nodes == 1:
        return SpareChoice(rule=replace(SAFE_RULE, spare=1), reason="the only node stays awake")
    weeks = LEAST_HISTORY_S // (7 * DAY_S)
    reason = f"{count_in_words(SAFE_RULE.spare, 'spare node')}: fewer than {weeks} weeks are known, too few to choose"
    if use.nodes <= SAFE_RULE.spare:
        reason += f", so all {use.nodes} nodes stay awake"
    return SpareChoice(rule=SAFE_RULE, reason=reason)


def _reason(outcome: RuleOutcome, tried: list[RuleOutcome], use: PoolUse) -> str:
    """Return what the rule achieves, and its last spare node's price."""
    rule, weeks = outcome.rule, use.days / 7
    if rule.spare >= use.nodes:
        return "all nodes stay awake: no rule would have kept to the delays and the cycles accepted"
    share = percent(outcome.delayed / max(use.submissions, 1), 2)
    reason = (
        f"{count_in_words(rule.spare, 'spare node')}: {share} of submissions would have waited for a boot in the last "
        f"{count_in_words(round(weeks), 'week')}"
    )
    fewer = [row for row in tried if row.rule.memory_s == rule.memory_s and row.rule.spare < rule.spare]
    if fewer:
        less = max(fewer, key=lambda row: row.rule.spare)
        n_nodes = rule.spare - less.rule.spare
        spared = (less.delayed - outcome.delayed) / weeks / n_nodes
        kwh = (less.saved_kwh_day - outcome.saved_kwh_day) / n_nodes
        reason += f"; the last of them spares {spared:.2g} a week and costs {kwh:.0f} kWh a day"
    if use.has_holes:
        reason += f"; as the record has holes, the last {MEMORY_WITH_HOLES_S // CHECK_S} min count at least"
    return reason
