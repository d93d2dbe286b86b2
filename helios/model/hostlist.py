"""Slurm's notation for lists of nodes, as ``gpu[01-04,07],login1``.

ClusterShell expands and folds them. Groups (``@rack1``) are not looked up: that would run programs that a configuration
of the machine names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from helios.errors import HostlistInvalid

MOST_NODES = 200_000
"""Nodes of one list above which it is taken for a typing error: no cluster has so many, and memory would run out."""
_NOBODY = frozenset({"", "(null)", "none", "none assigned", "n/a"})
_NOT_SLURMS = re.compile(r"[^\w.,\[\]-]|\[[^\]]*\d-\d+-")
_RANGE = re.compile(r"(\d+)-(\d+)")


@lru_cache(maxsize=65_536)
def expand(text: str) -> tuple[str, ...]:
    """Return the nodes of a hostlist, sorted by name.

    Each node once; numbers within names are sorted as numbers.

    Parameters
    ----------
    text : str
        As Slurm writes it; empty, ``(null)``, ``None assigned``: no nodes.

    Raises
    ------
    HostlistInvalid
        The text is not a hostlist, or names more than ``MOST_NODES`` nodes.
    """
    if text.strip().lower() in _NOBODY:
        return ()
    if _NOT_SLURMS.search(text.strip()):
        raise _invalid(text, "a list of nodes has letters, digits, - _ . , and brackets only")
    if _upper_count(text) > MOST_NODES:
        raise _invalid(text, f"it names more than {MOST_NODES:,} nodes")
    try:
        return tuple(NodeSet(text.strip(), resolver=RESOLVER_NOGROUP))
    except NodeSetException as reason:
        raise _invalid(text, str(reason)) from reason


def fold(nodes: Iterable[str]) -> str:
    """Return the nodes as one hostlist.

    As short as ClusterShell can make it; empty where there are no nodes.

    Raises
    ------
    HostlistInvalid
        A name is not a single node's.
    """
    names = tuple(nodes)
    for name in names:
        if _NOT_SLURMS.search(name) or re.search(r"[\[\],]", name) or not name:
            raise _invalid(name, "it is not the name of one node")
    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def _upper_count(text: str) -> int:
    """Return an upper bound of the number of nodes."""
    most = 0
    for word in re.split(r",(?![^\[]*\])", text):
        reach = 1
        for bracket in re.findall(r"\[([^\]]*)\]", word):
            spans = [abs(int(last) - int(first)) + 1 for first, last in _RANGE.findall(bracket)]
            reach *= sum(spans) + bracket.count(",") + 1
        most += reach
    return most


def _invalid(text: str, why: str) -> HostlistInvalid:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return HostlistInvalid(f"{shown!r} is not a list of nodes: {why}", hint="Write it as Slurm does: gpu[01-04],login1")
