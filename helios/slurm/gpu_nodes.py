"""Reader of the GPUs of a site's nodes.

They stand in ``slurm.conf``, in the output of ``scontrol show node``, or in a table. Jobs with parts of a GPU, and
those of a site that does not account for GPUs, are counted by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from helios.errors import ConfigurationInvalid, FileUnreadable, HostlistInvalid
from helios.model.gpu_parts import NodeGpus, SiteGpus
from helios.model.nodes import expand
from helios.model.slurm_site import UNTYPED, NodeGroup, PartitionRules
from helios.slurm.commands import show
from helios.slurm.parse import COMMA_OUTSIDE_BRACKETS
from helios.slurm.shell import Shell
from helios.slurm.site import MachineCounts, parse_node_records
from helios.slurm.site_conf import in_file, parse_statement, read_statements, records

LIVE = "scontrol show node"
TABLE_COLUMNS = ("name", "gpus", "cpus", "shards", "mps")
"""Columns of a table of nodes; the first two are needed."""
_HINT = "Give slurm.conf, what scontrol show node prints, or a table with the columns name,gpus[,cpus,shards,mps]."


def read_site_gpus(path: Path) -> SiteGpus:
    """Return the GPUs of the nodes that a file describes.

    Raises
    ------
    FileUnreadable
        It or a file that it includes cannot be read.
    ConfigurationInvalid
        It describes no node, or a value is not understood; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as reason:
        raise FileUnreadable(f"{path} cannot be read: {reason.strerror}.", hint=_HINT) from reason
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    machines = MachineCounts(with_down=True)
    if "=" not in first and "," in first:
        with in_file(path):
            return SiteGpus(source=path.name, nodes=dict(_table(text)))
    if re.search(r"^NodeName=.*\bCPUTot=", text, re.MULTILINE | re.DOTALL):
        with in_file(path):
            machines = parse_node_records(records(text, "nodename"), records(text, "partitionname"))
    else:
        for file, number, statement in read_statements(path, hint=_HINT):
            with in_file(file):
                line = parse_statement(number, statement)
                if line is not None and line.title in ("nodename", "partitionname", "nodeset"):
                    machines.add_line(line)
        with in_file(path):
            machines.finish({})
    if not machines.nodes:
        raise ConfigurationInvalid(f"{path} describes no node.", hint=_HINT)
    return site_gpus(machines.nodes.values(), machines.partitions.values(), source=path.name)


def live_site_gpus(shell: Shell) -> SiteGpus:
    """Return the GPUs of the running cluster's nodes.

    Raises
    ------
    ClusterUnavailable, ClusterRefused, AnswerNotUnderstood, ConfigurationInvalid
        A command failed, or its answer is not understood.
    """
    nodes, partitions = records(show(shell, "node"), "nodename"), records(show(shell, "partition"), "partitionname")
    machines = parse_node_records(nodes, partitions)
    return site_gpus(machines.nodes.values(), machines.partitions.values(), source=LIVE)


def site_gpus(groups: Iterable[NodeGroup], partitions: Iterable[PartitionRules], *, source: str) -> SiteGpus:
    """Return the GPUs of nodes that were read."""
    rules = list(partitions)
    return SiteGpus(
        source=source,
        nodes={
            name: gpus
            for it in groups
            for gpus in [NodeGpus.of_node(it.gpus, cpus=it.cpus, shards=it.shards, mps=it.mps)]
            for name in it.names
        },
        partitions={partition.name: partition.nodes for partition in rules},
        exclusive=frozenset(partition.name for partition in rules if partition.exclusive),
    )


def _table(text: str) -> Iterator[tuple[str, NodeGpus]]:
    """Yield the nodes of a table, also of lists as ``n[1-4,7]``."""
    heads: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = [word.strip().strip('"') for word in COMMA_OUTSIDE_BRACKETS.split(line)]
        if heads is None:
            heads = [word.lower() for word in words]
            if heads[:2] != [*TABLE_COLUMNS[:2]] or not {*heads} <= {*TABLE_COLUMNS}:
                raise ConfigurationInvalid(
                    f"line {number}: {line.strip()[:60]!r} is not the head of a table", hint=_HINT
                )
            continue
        row = dict(zip(heads, words, strict=False))
        try:
            names = expand(row["name"])
            counts = {head: float(row[head]) for head in heads[1:] if row.get(head)}
        except (ValueError, HostlistInvalid) as reason:
            raise ConfigurationInvalid(
                f"line {number}: {line.strip()[:60]!r} is no node: {reason}", hint=_HINT
            ) from None
        if len(words) > len(heads) or "gpus" not in counts or not names or not _all_counts(counts):
            raise ConfigurationInvalid(
                f"line {number}: {line.strip()[:60]!r} is no node with a number of GPUs", hint=_HINT
            )
        gpus = NodeGpus.of_node({UNTYPED: counts.pop("gpus")}, **counts)
        yield from dict.fromkeys(names, gpus).items()


def _all_counts(counts: Mapping[str, float]) -> bool:
    return all(0 <= count < float("inf") for count in counts.values())
