"""Static node weights that make Slurm fill nodes in blocks.

Slurm fills the lowest ``Weight`` first and takes one ``NodeName`` line for each node: a second one ends slurmctld
(22.05.8, fatal: Duplicated NodeName). So whole lines are made of those in slurm.conf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from helios.model.nodes import expand, fold
from helios.model.slurm_site import SlurmSite
from helios.slurm.parse import COMMA_OUTSIDE_BRACKETS
from helios.slurm.site_conf import PAIR, read_statements, statements

BLOCK_NODES = 8
"""Least nodes of a block. Blocks of 16 leave 1 % fewer nodes empty, and single nodes as many (docs/power.md)."""
MOST_WEIGHTS = 19
"""Most different weights. Slurm tries the nodes of each weight apart, so that many slow its scheduler down."""
SPACING = 100
"""Distance between the site's own weights where they must be numbered anew."""
HEAVIEST = 4_294_967_280
"""The largest weight that Slurm takes (22.05.8)."""
_PER_NODE_KEYS = frozenset({"nodename", "nodeaddr", "nodehostname", "bcastaddr", "port"})
"""Keys of a ``NodeName`` line that may have one value for each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBlock:
    """Nodes that get one weight.

    Attributes
    ----------
    own : int
        The weight that the site gave them.
    """

    weight: int
    own: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlan:
    """Static weights of a cluster's nodes.

    Attributes
    ----------
    block_nodes : int
        Most nodes of a block.
    lines : tuple of str
        Lines for slurm.conf, with a comment before those that replace a line. Without slurm.conf, comments alone.
    """

    blocks: tuple[WeightBlock, ...]
    block_nodes: int
    lines: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "block_nodes": self.block_nodes,
            "blocks": [{"weight": block.weight, "own": block.own, "nodes": fold(block.nodes)} for block in self.blocks],
            "lines": list(self.lines),
            "notes": list(self.notes),
        }


def plan_weights(site: SlurmSite, racks: Mapping[str, str], conf: str | None, notes: Sequence[str] = ()) -> WeightPlan:
    """Return weights in blocks of the nodes of one kind.

    Nodes with different weights keep their order.

    Parameters
    ----------
    racks : mapping
        Rack by node; its nodes follow each other.
    conf : str, optional
        Text of slurm.conf. Without it there are no lines to be written there.
    notes : sequence of str
        What is to be said besides.
    """
    series = _series(site, racks)
    longest = max(len(nodes) for _, nodes in series)
    sizes = range(BLOCK_NODES, max(longest, BLOCK_NODES) + 1)
    size = next((size for size in sizes if sum(_counts(series, size).values()) <= MOST_WEIGHTS), sizes[-1])
    counts, notes = _counts(series, size), [*notes]
    own = sorted(counts)
    begins = {weight: weight for weight in own}
    if any(low + counts[low] > high for low, high in pairwise([*own, HEAVIEST])):
        begins = {weight: SPACING * (place + 1) for place, weight in enumerate(own)}
        new = ", ".join(f"{weight} becomes {begins[weight]}" for weight in own)
        notes.append(f"Your own weights lie too close for blocks between them. They keep their order: {new}.")
    elif len(own) > 1:
        notes.append(f"Your own weights {', '.join(map(str, own))} stay, with blocks between them.")
    if sum(counts.values()) > MOST_WEIGHTS:
        notes.append(f"There are {len(own)} weights of your own; Slurm tries the nodes of each weight apart.")
    blocks = tuple(
        WeightBlock(weight=begins[weight] + number, own=weight, nodes=nodes[first : first + size])
        for weight, nodes in series
        for number, first in enumerate(range(0, len(nodes), size))
    )
    made = [f"# Weight={block.weight}: {fold(block.nodes)}" for block in blocks]
    if conf is not None:
        made = list(_conf_lines(conf, blocks))
    return WeightPlan(blocks=blocks, block_nodes=size, lines=tuple(made), notes=tuple(notes))


def read_conf(path: Path, notes: list[str]) -> str:
    """Return slurm.conf with the files that it includes, without comments.

    An included file that cannot be read is left out, which is added to ``notes``.

    Raises
    ------
    FileUnreadable
        The file itself cannot be read.
    ConfigurationInvalid
        Files include each other without an end.
    """
    hint = "Give a copy of it: --slurm-conf FILE"
    return "".join(f"{statement}\n" for _, _, statement in read_statements(path, hint=hint, notes=notes))


def _series(site: SlurmSite, racks: Mapping[str, str]) -> list[tuple[int, tuple[str, ...]]]:
    """Return own weight and nodes of each series to be cut into blocks.

    A series has nodes that are alike and share partitions, also by way of others. Those of one partition and of one
    rack follow each other.
    """
    partitions: dict[str, tuple[int, ...]] = {}
    for number, partition in enumerate(site.partitions):
        for node in partition.nodes:
            partitions[node] = (*partitions.get(node, ()), number)
    kinds: dict[tuple[Any, ...], dict[tuple[int, ...], list[str]]] = {}
    rack_order: dict[str, int] = {}
    for group in site.nodes:
        kind = (group.weight, group.cpus, group.memory_mib, tuple(sorted(group.gpus.items())), group.features)
        for name in group.names:
            rack_order.setdefault(racks.get(name, ""), len(rack_order))
            kinds.setdefault(kind, {}).setdefault(partitions.get(name, ()), []).append(name)
    series: list[tuple[int, tuple[str, ...]]] = []
    for (weight, *_), by_partitions in kinds.items():
        for together in _connected(by_partitions):
            names = [
                name
                for key in together
                for name in sorted(by_partitions[key], key=lambda name: rack_order[racks.get(name, "")])
            ]
            series.append((weight, tuple(names)))
    return series


def _connected(sets: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return the sets in groups that overlap, directly or by others."""
    groups: list[list[tuple[int, ...]]] = []
    for one in sorted(sets):
        touching = [group for group in groups if any(not set(one).isdisjoint(other) for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append(sorted([one, *(other for group in touching for other in group)]))
    return groups


def _counts(series: Sequence[tuple[int, tuple[str, ...]]], size: int) -> dict[int, int]:
    """Return how many weights blocks need above each own weight."""
    counts: dict[int, int] = {}
    for weight, nodes in series:
        counts[weight] = max(counts.get(weight, 0), -(-len(nodes) // size))
    return counts


def _conf_lines(conf: str, blocks: Sequence[WeightBlock]) -> Iterator[str]:
    """Yield the ``NodeName`` lines that change.

    Before them stands a comment that names the line that they replace.
    """
    weights = {node: block.weight for block in blocks for node in block.nodes}
    unchanged = {node for block in blocks if block.weight == block.own for node in block.nodes}
    for _, statement in statements(conf):
        pairs = [(pair[1], pair[0].partition("=")[2].strip()) for pair in PAIR.finditer(statement)]
        if not pairs or pairs[0][0].lower() != "nodename" or pairs[0][1].lower() == "default":
            continue
        names = _in_order(pairs[0][1])
        if unchanged.issuperset(names):
            continue
        yield f"# In place of the line of NodeName={pairs[0][1]}:"
        places: dict[int | None, list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(weights.get(name), []).append(place)
        for weight, chosen in places.items():
            words = [
                f"{key}={_values(key, text, chosen, n_nodes=len(names))}"
                for key, text in pairs
                if key.lower() != "weight" or weight is None
            ]
            yield " ".join(words if weight is None else [*words, f"Weight={weight}"])


def _values(key: str, text: str, chosen: Sequence[int], *, n_nodes: int) -> str:
    """Return a value of a ``NodeName`` line for some of its nodes."""
    values = _in_order(text) if key.lower() in _PER_NODE_KEYS else []
    if len(values) != n_nodes:
        return text
    values = [values[place] for place in chosen]
    folded = fold(values)
    if _in_order(folded) == values:
        return folded
    return f"[{','.join(values)}]" if key.lower() == "port" and len(values) > 1 else ",".join(values)


def _in_order(text: str) -> list[str]:
    """Return the values of a list as they are written."""
    found: list[str] = []
    for word in COMMA_OUTSIDE_BRACKETS.split(text):
        head, opened, rest = word.partition("[")
        inside, _, tail = rest.partition("]")
        if not opened:
            found.append(word)
        elif "[" in tail:
            found += expand(word)
        else:
            found += [name for part in inside.split(",") for name in expand(f"{head}[{part}]{tail}")]
    return found
