"""How many nodes may be away at once, and which must stay: counted as wishes are let through, one after the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from helios.actions import Result
from helios.config import Power
from helios.control.nodes.seen import SeenNode

Verdict = tuple[Result, str]
"""Why not, and whether it may be asked again; an empty reason: it may."""
YES: Verdict = (Result.DONE, "")
CROWDED = "as many nodes are on their way as may be"


class Room:
    """What is left of the bounds of ``[power]`` in one turn.

    Parameters
    ----------
    away : collection of str
        Nodes that count as asleep whatever is seen: those a shadow has asleep, or those the cluster's own timer may put
        to sleep at any moment.
    about_to_fall : collection of str
        Those of them that the cluster's timer will put to sleep in a moment: they count as on their way already before
        another one may sleep.
    """

    def __init__(
        self,
        nodes: Mapping[str, SeenNode],
        settings: Power,
        *,
        away: Iterable[str] = (),
        about_to_fall: Collection[str] = (),
    ) -> None:
        gone = set(away)
        self._about_to_fall = len(about_to_fall)
        self._settings = settings
        self._left = max(1, _share(settings.most_in_transition, len(nodes)))
        self._left -= sum(node.on_its_way for node in nodes.values())
        in_service = [node for node in nodes.values() if node.in_service]
        self._serving = Counter(
            kind for node in in_service if node.serves and node.name not in gone for kind in node.kinds()
        )
        self._away = Counter(node.pool for node in in_service if node.away or node.name in gone)
        self._total = Counter(node.pool for node in in_service)

    def to_wake(self) -> Verdict:
        """Take a place on the way for one node that wakes."""
        if self._left <= 0:
            return Result.POSTPONED, CROWDED
        self._left -= 1
        return YES

    def to_sleep(self, node: SeenNode) -> Verdict:
        """Take a place on the way, and one among those asleep, for ``node``."""
        if last := [kind for kind in node.kinds() if self._serving[kind] <= 1]:
            return Result.REFUSED, f"it is the last node awake of {last[0]}"
        most = _share(self._settings.most_asleep, self._total[node.pool])
        if self._away[node.pool] >= most:
            return Result.REFUSED, f"no more than {most} of {self._total[node.pool]} nodes of {node.pool} may be asleep"
        if node.idle and self._left - self._about_to_fall <= 0:
            return Result.POSTPONED, CROWDED
        self._left -= node.idle
        self._away[node.pool] += 1
        self._serving.subtract(node.kinds())
        return YES


def _share(share: float, of: int) -> int:
    return math.floor(share * of + 1e-9)  # the epsilon keeps 0.1 x 30 at 3
