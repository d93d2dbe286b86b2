"""Which weight a node is given, so that Slurm fills nodes in a wanted order without leaving the site's own.

Slurm fills the lowest ``Weight`` first. Nodes to which the site gave the same weight are told apart by what is added to
it, and what is added never reaches the site's next higher weight: of two nodes that the site itself set apart, the one
that it fills first is still filled first. Where the site's weights lie too close for all tiers, tiers are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

HEAVIEST = 4_294_967_280
"""The largest weight that scontrol takes (22.05.8)."""


def tiered(own: Mapping[str, int], tiers: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the weight of each node that ``tiers`` name, first to fill first.

    Parameters
    ----------
    own : mapping
        The site's own weight of every node of the cluster, those too that no tier names.
    tiers : sequence of sequence of str
        Nodes of ``own``.
    """
    rank = {node: tier for tier, nodes in enumerate(tiers) for node in nodes}
    levels = sorted(set(own.values()))
    weights: dict[str, int] = {}
    for level in sorted({own[node] for node in rank}):
        members = [node for node in rank if own[node] == level]
        above = bisect_right(levels, level)
        room = (levels[above] - 1 if above < len(levels) else HEAVIEST) - level
        weights |= {node: level + added for node, added in _added(members, rank, max(room, 0)).items()}
    return weights


def _added(members: Sequence[str], rank: Mapping[str, int], room: int) -> dict[str, int]:
    """Return what is added to one own weight: the tier's number; where there is no room for that, a step for each tier.

    The number of the tier does not depend on who else is in which tier: fewer writes when they change places.
    """
    if max(rank[node] for node in members) <= room:
        return {node: rank[node] for node in members}
    places = {tier: place for place, tier in enumerate(sorted({rank[node] for node in members}))}
    steps = min(len(places), room + 1)
    return {node: places[rank[node]] * steps // len(places) for node in members}
