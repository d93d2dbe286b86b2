"""The page of all nodes."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from helios.app.explain import node_status
from helios.model import NodePower
from helios.report.admin.sacct_format import FieldKind, ReportTable, as_json, declare_fields
from helios.report.html import PageSection, TableCells
from helios.report.tables import counted
from helios.web.page import Page, Reader, Section
from helios.web.site import Site
from helios.web.table import DataTable

NODES = declare_fields(
    ("Node", "name", FieldKind.TEXT, 12, "Node"),
    ("State", "state", FieldKind.TEXT, 16, "State and flags, in Slurm's words"),
    ("Partitions", "partitions", FieldKind.TEXT, 12, "Its partitions"),
    ("HeldGPUs", "gpus_held", FieldKind.SIZE, 8, "GPUs held by jobs"),
    ("GPUs", "gpus", FieldKind.SIZE, 6, "GPUs"),
    ("HeldCPUs", "cpus_held", FieldKind.SIZE, 8, "CPUs held by jobs"),
    ("CPUs", "cpus", FieldKind.SIZE, 6, "CPUs"),
    ("MemoryMiB", "memory_mib", FieldKind.COUNT, 10, "Memory, MiB"),
    ("Reason", "reason", FieldKind.TEXT, 24, "Why it is in that state, as an admin or Slurm wrote"),
)
DOWN = frozenset({"DOWN", "ERROR", "FAIL"})
DRAINED = frozenset({"DRAIN", "FAIL", "NOT_RESPONDING"})
HEADS = {"pool": "Node pool", "by_helios": "Asleep by Helios"}
"""Heads of the table of pools. ``Pool`` alone is one of trials."""
FAILED = ("down", "drained")
"""Labels of nodes that need a person."""


def described_nodes(nodes: pd.DataFrame) -> pd.DataFrame:
    """Return states of nodes with labels, failed nodes first.

    The frame is one of ``NODE_STATES``, its ``state`` with the flags. A label is ``down``, ``drained``, ``in use``, a
    power state, or Slurm's state in small letters.
    """
    texts = nodes[["state", "flags", "power"]].astype("object").fillna("").astype("str")
    labels, states = [], []
    for state, flags, power in texts.itertuples(index=False):
        words = [state, *filter(None, flags.split("+"))]
        states.append("+".join(words))
        if state in DOWN:
            labels.append("down")
        elif DRAINED.intersection(words):
            labels.append("drained")
        elif power not in ("", NodePower.AWAKE):
            labels.append(power)
        else:
            labels.append("in use" if state in ("ALLOCATED", "MIXED") else state.lower())
    described = nodes.assign(state=states, label=labels)
    return described.sort_values("label", key=lambda label: ~label.isin(FAILED), kind="stable")


def count_nodes(described: pd.DataFrame) -> str:
    """Return how many nodes have which label, as a sentence."""
    counts = described["label"].value_counts()
    return f"{counted(len(described), 'node')}: {', '.join(f'{count:,} {label}' for label, count in counts.items())}."


def nodes_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the page of all nodes."""
    site.refuse_history("Nodes are")
    found = node_status(site.operations.node_cycles)
    lines = [f"Helios is paused {found.paused}."] if found.paused else []
    lines += [f"{found.protected[:1].upper()}{found.protected[1:]}."] if found.protected else []
    lines += [f"Nodes cannot be put to sleep here: {found.cannot}"] if found.cannot else []
    lines += [f"{node} failed to wake: {what}" for node, what in found.quarantined.items()]
    lines += [f"No node is put to sleep: {found.use_unknown}"] if found.use_unknown else []
    live = site.live()
    known = None if isinstance(live, str) or live.nodes.empty else described_nodes(live.nodes)
    values = found.to_json()
    pools = values["pools"]
    header = (
        [(HEADS.get(name, name.replace("_", " ").capitalize()), name == "pool") for name in pools[0]] if pools else []
    )
    rows = [tuple("" if value is None else str(value) for value in pool.values()) for pool in pools]
    sections = [
        PageSection(sentences=[*([] if known is None else [count_nodes(known)]), *lines]),
        PageSection(title="Pools of nodes", tables=[TableCells(header=header, rows=rows)]),
    ]
    if found.spare is not None:
        sections.append(PageSection(title="Why so many stay awake", sentences=tuple(found.spare.sentences())))
    if known is not None:
        table = ReportTable(title="All nodes", fields=NODES, rows=known[[field.column for field in NODES]])
        sections.insert(1, Section(title=table.title, data=DataTable(answer=table, key="nodes")))
        values = {**values, "nodes": as_json(table)["rows"]}
    return Page(
        title="Nodes", subtitle=f"As of {found.taken_at:%Y-%m-%d %H:%M:%S} UTC.", sections=sections, values=values
    )
