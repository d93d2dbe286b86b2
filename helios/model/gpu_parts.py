"""GPUs of jobs that hold parts, or are not accounted for.

Shares of ``gres/shard`` and ``gres/mps`` count by the shares into which the GPUs of their nodes are divided, and MIG
slices by their compute slices. Slurm spreads the shares of a node evenly over its GPUs (``gres_c_s.c``). It refuses a
request for GPUs and shares together, and never adds shares to a job that gets whole nodes (``gres_ctld.c``; tried on
22.05.8). So where a list has both, they are the same GPUs, and the whole ones count.

Where no row names a GPU although nodes have some, jobs that held whole nodes held their GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import HostlistInvalid
from helios.model.nodes import expand

USUAL_MPS = 100.0
"""MPS shares of a GPU where nothing gives them: Slurm's guide counts them in per cent. It is no default of Slurm."""
MIG_SLICES, SMALL_MIG_SLICES = 7, 4
"""Compute slices of a GPU (A100, H100, H200, B200), and of those that have fewer (A30, RTX PRO 6000 Blackwell)."""
_SMALL_SLICE_GIB = {6.0: (1, 2, 4), 24.0: (2, 4)}
"""Memory of one slice of the GPUs with fewer slices, GiB, with their profiles; 1g.24gb is an H100's, too."""
_SMALL = re.compile(r"(?<![a-z0-9])a30(?!\d)|rtx|blackwell", re.IGNORECASE)
_PROFILES = (1, 2, 3, 4, 7)
"""Compute slices that NVIDIA's profiles have."""
_MIG = re.compile(r"(?<![a-z0-9])(?:mig)?(?:(\d)c[._-])?(\d)g[._-]?(\d{1,3})gb", re.IGNORECASE)
"""A profile within a type of GPU: ``1g.5gb``, ``a100_3g.20gb``, ``1c.3g.20gb`` (a part of a slice)."""

WAYS = ("none", "exclusive", "whole nodes", "asked")
"""How the GPUs of a job whose site does not account for them are known."""

_OPTIONS = {"gres": "node", "gpus": "job", "G": "job", "gpus-per-node": "node", "gpus-per-task": "task"}
"""Options of sbatch, salloc and srun that ask for GPUs, and what they are for each of."""
_WITHOUT_VALUE = frozenset({
    "--exclusive", "--parsable", "--wait", "-W", "--overlap", "-s", "--oversubscribe", "-O", "--overcommit", "--pty",
    "-l", "--label", "-H", "--hold", "--requeue", "--no-requeue", "-Q", "--quiet", "-v", "--verbose", "--contiguous",
    "-k", "--no-kill", "-u", "--unbuffered", "--spread-job", "--use-min-nodes", "--reboot", "--no-shell",
})  # fmt: skip
"""Options that take no value, or only behind an equals sign."""


def is_slice(kind: str) -> bool:
    """Return whether a type of GPU names a MIG slice."""
    return _MIG.search(kind) is not None


def part_of_gpu(kind: str) -> float | None:
    """Return which part of a GPU one of this type is.

    1 for a whole GPU, and None for a slice of which that is not known.
    """
    found = _MIG.search(kind)
    if found is None:
        return 1.0
    slices, memory_gib = int(found[2]), int(found[3])
    used = int(found[1] or slices)
    if slices not in _PROFILES or not 0 < used <= slices:
        return None
    is_small = slices <= SMALL_MIG_SLICES and (
        _SMALL.search(kind) is not None or slices in _SMALL_SLICE_GIB.get(memory_gib / slices, ())
    )
    return used / (SMALL_MIG_SLICES if is_small else MIG_SLICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """GPUs of a node, or of several together.

    Attributes
    ----------
    gpus : float
        GPUs, with a MIG slice as its part of one.
    cpus : float
        CPUs that jobs can hold; NaN where not known.
    shards, mps : float
        Shares into which the GPUs are divided; 0 for none.
    gpus_in_shards, gpus_in_mps : float
        GPUs that are divided so.
    slices : float
        GPUs as Slurm counts them, each slice as one.
    """

    gpus: float = 0.0
    cpus: float = np.nan
    shards: float = 0.0
    mps: float = 0.0
    gpus_in_shards: float = 0.0
    gpus_in_mps: float = 0.0
    slices: float = 0.0

    @classmethod
    def of_node(
        cls, gpus: Mapping[str, float], *, cpus: float = np.nan, shards: float = 0.0, mps: float = 0.0
    ) -> NodeGpus:
        """Return the GPUs of one node from its counts by type."""
        total = sum(count * (part_of_gpu(kind) or 1.0) for kind, count in gpus.items())
        return cls(
            gpus=total,
            cpus=cpus,
            shards=shards,
            mps=mps,
            gpus_in_shards=total if shards else 0.0,
            gpus_in_mps=total if mps else 0.0,
            slices=float(sum(gpus.values())),
        )

    @classmethod
    def together(cls, nodes: Iterable[NodeGpus]) -> NodeGpus:
        """Return the sums over nodes."""
        rows = [(it.gpus, it.cpus, it.shards, it.mps, it.gpus_in_shards, it.gpus_in_mps, it.slices) for it in nodes]
        return cls(**dict(zip(cls.__slots__, map(float, np.sum(rows, axis=0)), strict=True))) if rows else cls()


@dataclass(frozen=True, kw_only=True)
class SiteGpus:
    """GPUs of a site's nodes, to count parts and untracked GPUs.

    Attributes
    ----------
    source : str
        Where they were read, for a person.
    nodes : mapping of str to NodeGpus
        The nodes by name.
    partitions : mapping of str to tuple of str
        Nodes of each partition, where known.
    exclusive : frozenset of str
        Partitions whose jobs get whole nodes (``OverSubscribe=EXCLUSIVE``).
    """

    source: str
    nodes: Mapping[str, NodeGpus]
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    exclusive: frozenset[str] = frozenset()

    def on(self, node_list: str) -> NodeGpus | None:
        """Return the GPUs of a list of nodes together.

        None where a node is not known, or the list is empty.
        """
        if node_list in self.nodes:
            return self.nodes[node_list]
        try:
            names = expand(node_list)
        except HostlistInvalid:
            return None
        return (
            NodeGpus.together(map(self.nodes.__getitem__, names)) if names and self.nodes.keys() >= {*names} else None
        )

    def open_to(self, partition: str | None) -> NodeGpus:
        """Return the GPUs of a partition's nodes together.

        Where it is not known, those of all nodes.
        """
        names = [name for part in (partition or "").split(",") for name in self.partitions.get(part, ())]
        return NodeGpus.together(self.nodes[name] for name in names if name in self.nodes) if names else self._all

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the counts, in hex digits."""
        return sha256(repr((sorted(self.nodes.items()), sorted(self.exclusive))).encode()).hexdigest()

    @cached_property
    def has_slices(self) -> bool:
        """Whether some node's GPUs are MIG slices."""
        return any(node.slices > node.gpus for node in self.nodes.values())

    @cached_property
    def _all(self) -> NodeGpus:
        return NodeGpus.together(self.nodes.values())


Texts = Sequence[Any] | NDArray[np.object_]
"""Texts of rows, None or NaN where there is none."""


class Places(NamedTuple):
    """What is known of the nodes of each row.

    Attributes
    ----------
    codes : array of shape (n_rows,)
        Position of each row in ``nodes``.
    nodes : list of NodeGpus or None
        GPUs of the nodes that rows name, else of those of their partition, else of all nodes.
    named : array of shape (n_rows,)
        Rows whose nodes are known by name.
    """

    codes: NDArray[np.int64]
    nodes: list[NodeGpus | None]
    named: NDArray[np.bool_]

    def each(self, name: str) -> NDArray[np.float64]:
        """Return one figure for each of ``nodes``, NaN where it is not known."""
        return np.array([np.nan if it is None else getattr(it, name) for it in self.nodes])


def places(site: SiteGpus | None, node_lists: Texts, partitions: Texts) -> Places:
    """Return what is known of each row's nodes."""
    if site is None:
        return Places(np.zeros(len(node_lists), dtype=np.int64), [None], np.zeros(len(node_lists), dtype=np.bool_))
    of_partition, partition = pd.factorize(np.asarray(partitions, dtype=object))
    of_list, lists = pd.factorize(np.asarray(node_lists, dtype=object))
    nodes: list[NodeGpus | None] = [*map(site.open_to, partition), site.open_to(None), *map(site.on, lists)]
    named = np.array([*(it is not None for it in nodes[len(partition) + 1 :]), False], dtype=np.bool_)[of_list]
    elsewhere = np.where(of_partition < 0, len(partition), of_partition)
    return Places(np.where(named, len(partition) + 1 + of_list, elsewhere), nodes, named)


def gpus_of_shares(
    shares: NDArray[np.float64], kind: str, where: Places
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the GPUs in shares, and which are assumed.

    Parameters
    ----------
    kind : str
        ``shards`` or ``mps``.

    Returns
    -------
    gpus : array
        At most the GPUs of the row's nodes; NaN where the shares of a GPU are not known.
    assumed : array
        Rows that were counted by :data:`USUAL_MPS`.
    """
    divided, gpus = where.each(kind), where.each(f"gpus_in_{kind}")
    known = (divided > 0) & (gpus > 0)
    usual = USUAL_MPS if kind == "mps" else np.nan
    each = np.divide(divided, gpus, out=np.full(len(gpus), usual), where=known)
    most = np.where(known, gpus, np.inf)
    found = np.minimum(shares / each[where.codes], most[where.codes])
    return found, ~known[where.codes] & (kind == "mps") & (shares > 0)


def gpus_from_nodes(
    site: SiteGpus,
    *,
    node_lists: Texts,
    partitions: Texts,
    cpus: NDArray[np.float64],
    asked: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the GPUs of jobs whose site does not account for them.

    Jobs on nodes without GPUs held none. Those of exclusive partitions, or with all CPUs of their nodes, held all of
    their GPUs. Any other one held what it asked for where that is known, and is unknown else.

    Parameters
    ----------
    cpus : array
        CPUs of each job, NaN where not known.
    asked : array
        GPUs that the text of its submission asks for, NaN where there is none.

    Returns
    -------
    gpus : array
        NaN where not known.
    way : array
        Position in :data:`WAYS`, -1 where not known.
    """
    where = places(site, node_lists, partitions)
    gpus, all_cpus = (where.each(name)[where.codes] for name in ("gpus", "cpus"))
    exclusive = pd.Series(np.asarray(partitions, dtype=object)).isin(site.exclusive).to_numpy()
    conditions = [gpus == 0, where.named & exclusive, where.named & (cpus >= all_cpus), ~np.isnan(asked)]
    way = np.select(conditions, range(len(WAYS)), default=-1)
    return np.select([way == 0, (way == 1) | (way == 2), way == 3], [0.0, gpus, np.fmin(asked, gpus)], np.nan), way


def gpus_asked(submission: str, *, nodes: float, tasks: float) -> float:
    """Return the GPUs that a command line asks for.

    An example is ``sbatch --gres=gpu:2 job.sh``. NaN where it does not say so: options may stand in the job's script,
    too. Options of the job's own program, which may be called alike, are not read.
    """
    total, times = np.nan, {"job": 1.0, "node": nodes, "task": tasks}
    for option, value in _options(submission.split()[1:]):
        if option in _OPTIONS:
            counts = [_count(word, is_gres=option == "gres") for word in value.split(",")]
            if known := [count for count in counts if count is not None]:
                total = sum(known) * times[_OPTIONS[option]]
    return total


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options before the first word that is none, with their values."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, _, value = words[at].lstrip("-").partition("=")
        if not words[at].startswith("--") and len(words[at]) > 2:
            name, value = words[at][1], words[at][2:]
        elif "=" not in words[at] and words[at] not in _WITHOUT_VALUE and at + 1 < len(words):
            at += 1
            value = words[at]
        yield name, value
        at += 1


def _count(word: str, *, is_gres: bool) -> float | None:
    """Return the GPUs in one word of an option.

    Words are ``gpu:a100:2`` in ``--gres``, and ``a100:2`` in other options.
    """
    name, *rest = re.split(r"[:=]", word.removeprefix("gres:").removeprefix("gres/"))
    if is_gres and name != "gpu":
        return None
    words = rest if is_gres else [name, *rest]
    counted = bool(words) and words[-1].isdecimal()
    kind = "".join(words[:-1] if counted else words)
    return (float(words[-1]) if counted else 1.0) * (part_of_gpu(kind) or 1.0)
