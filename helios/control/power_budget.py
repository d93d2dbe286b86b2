"""Bounds on how many nodes may be asleep or changing their power.

They are pure, so that replays can bound changes as a live cycle does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from helios.actions import NodeOutcome, NodeSetting, Result
from helios.changes import Change, Key, sleeps
from helios.config import Power
from helios.control.observed import ObservedNode
from helios.model import NodePower

BudgetResult = tuple[Result, str]
"""Result with its reason, which is empty where the change is allowed."""
ALLOWED: BudgetResult = (Result.DONE, "")
MOST_SPARE = 48
"""Nodes that may wake at once beside those that jobs wait for: the most spare nodes of ces (metrics.spare_nodes)."""
TOO_MANY_MOVING = "as many nodes are on their way as may be"


class PowerBudget:
    """Power changes and sleeping nodes that ``[power]`` still allows in this cycle.

    Parameters
    ----------
    away : collection of str
        Nodes that count as asleep although they are awake: those that a shadow has asleep, or that the cluster's own
        timer may put to sleep at any moment.
    about_to_fall : collection of str
        Those of ``away`` that the cluster's timer will put to sleep soon. For another sleep, they count as changing
        their power.
    wanted : int
        Nodes that pending jobs wait for. So many, and ``MOST_SPARE`` more, may wake at once whatever the limit, as the
        cluster itself would wake them for these jobs.
    """

    def __init__(
        self,
        nodes: Mapping[str, ObservedNode],
        settings: Power,
        *,
        away: Iterable[str] = (),
        about_to_fall: Collection[str] = (),
        wanted: int = 0,
    ) -> None:
        asleep = set(away)
        self._about_to_fall = len(about_to_fall)
        self._settings = settings
        most = max(1, _share(settings.most_in_transition, len(nodes)))
        self._left = most - sum(node.in_transition for node in nodes.values())
        waking = sum(node.power is NodePower.WAKING for node in nodes.values())
        self._left_to_wake = max(most, MOST_SPARE + wanted) - waking
        in_service = [node for node in nodes.values() if node.in_service]
        self._serving = Counter(
            kind for node in in_service if node.serves and node.name not in asleep for kind in node.kinds()
        )
        self._away = Counter(node.pool for node in in_service if node.is_away or node.name in asleep)
        self._total = Counter(node.pool for node in in_service)

    def to_wake(self) -> BudgetResult:
        """Reserve a power change for one node that is woken ahead of need."""
        if self._left_to_wake <= 0:
            return Result.POSTPONED, TOO_MANY_MOVING
        self._left -= 1
        self._left_to_wake -= 1
        return ALLOWED

    def to_revert(self) -> BudgetResult:
        """Reserve a power change for one node that Helios gives back."""
        return self.to_wake() if self._left > 0 else (Result.POSTPONED, TOO_MANY_MOVING)

    def to_sleep(self, node: ObservedNode) -> BudgetResult:
        """Reserve a power change and a sleeping node for ``node``."""
        if last_awake := [kind for kind in node.kinds() if self._serving[kind] <= 1]:
            return Result.REFUSED, f"it is the last node awake of {last_awake[0]}"
        max_asleep = _share(self._settings.most_asleep, self._total[node.pool])
        if self._away[node.pool] >= max_asleep:
            return (
                Result.REFUSED,
                f"no more than {max_asleep} of {self._total[node.pool]} nodes of {node.pool} may be asleep",
            )
        if node.idle and self._left - self._about_to_fall <= 0:
            return Result.POSTPONED, TOO_MANY_MOVING
        self._left -= node.idle
        self._away[node.pool] += 1
        self._serving.subtract(node.kinds())
        return ALLOWED


def bound_power_changes(
    requested: Mapping[str, Sequence[Change[str]]], nodes: Mapping[str, ObservedNode], budget: PowerBudget
) -> tuple[dict[str, list[Change[str]]], dict[str, list[NodeOutcome]]]:
    """Divide changes of nodes into those within a budget and the others.

    Wakes of all services come before any sleep. It is pure, so that replays can bound changes as a live cycle does.

    Parameters
    ----------
    requested : mapping
        By service. Changes of other settings than power are allowed, and need no budget.

    Returns
    -------
    allowed, refused : dict
        By service.
    """
    results: dict[Key, BudgetResult] = {}
    power = [change for changes in requested.values() for change in changes if change.setting is NodeSetting.POWER]
    for change in sorted(power, key=sleeps):
        results[change.key] = budget.to_sleep(nodes[change.target]) if sleeps(change) else budget.to_wake()
    allowed = {
        name: [change for change in changes if not results.get(change.key, ALLOWED)[1]]
        for name, changes in requested.items()
    }
    refused = {
        name: [change.outcome(*result) for change in changes if (result := results.get(change.key, ALLOWED))[1]]
        for name, changes in requested.items()
    }
    return allowed, refused


def _share(share: float, total: int) -> int:
    return math.floor(share * total + 1e-9)  # the epsilon keeps 0.1 x 30 at 3
