"""The window and the cluster that commands take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np
import pandas as pd

from helios.app.history import LoadedHistory
from helios.errors import NotEnoughHistory, UsageError
from helios.metrics.capacity import (
    WHOLE,
    CapacitySource,
    ClusterCapacity,
    capacity_of_jobs,
    capacity_of_nodes,
    choose_resource,
    given_capacity,
    header_capacity,
)
from helios.metrics.window import record_window
from helios.model.gpu_parts import SiteGpus


def refuse_reversed(since: datetime | None, until: datetime | None) -> None:
    """Raise UsageError where a window ends before it begins."""
    if since is not None and until is not None and since >= until:
        raise UsageError(
            f"The window ends before it begins: --from {since:%Y-%m-%d %H:%M}, --to {until:%Y-%m-%d %H:%M} (UTC).",
            hint="Give a --from that is before --to.",
        )


def describe_record(
    history: LoadedHistory,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    resource: str | None = None,
    nodes: Mapping[str, int] | None = None,
    per_node: int | None = None,
    usual_per_node: int = 8,
    partitions: Collection[str] = (),
) -> LoadedHistory:
    """Return a history with its window and capacity, and notes on both.

    Parameters
    ----------
    since, until : datetime, optional
        The window as given. By default it is the part of the record that is complete.
    resource : str, optional
        ``gpus`` or ``cpus``; by default as the jobs say.
    nodes : mapping, optional
        Nodes of each partition as given.
    per_node, usual_per_node : int
        Units of a node as given, and where neither that nor the record says.
    partitions : collection of str
        Only the jobs and nodes of these; empty for all.

    Raises
    ------
    NotEnoughHistory
        The window ends before the first submission.
    UsageError
        It ends before it begins.
    """
    refuse_reversed(since, until)
    record = history.record or record_window(history.jobs, asked=history.covered)
    if record is None:
        return history
    if until is not None and int(until.timestamp()) <= record.first_s:
        raise NotEnoughHistory(
            f"No job was submitted before --to; the record spans {record.span}.",
            hint="Choose --from and --to within it.",
        )
    begin = since or (record.begin if record.before and (until is None or until > record.begin) else None)
    end = until or (record.end if record.after or record.source == "asked" else None)
    chosen: list[str] = []
    studied = _of_partitions(history, partitions) if partitions else history
    if resource is None:
        resource, chosen = choose_resource(jobs_between(studied.jobs, begin, end))
    capacity = known_capacity(
        studied,
        resource=resource,
        since_s=int(begin.timestamp()) if begin else record.first_s,
        until_s=int(end.timestamp()) if end else record.end_s,
    )
    if nodes is not None:
        capacity = given_capacity(nodes, resource=resource, per_node=per_node or capacity.per_node or usual_per_node)
    said = (*chosen, *record.notes(since=since, until=until), capacity.line())
    return replace(history, record=record, window=(begin, end), capacity=capacity, notes=(*history.notes, *said))


def complete_part(history: LoadedHistory) -> LoadedHistory:
    """Return a history with the jobs submitted in its window only."""
    return replace(history, jobs=jobs_between(history.jobs, *history.window).reset_index(drop=True))


def jobs_between(jobs: pd.DataFrame, since: datetime | None, until: datetime | None) -> pd.DataFrame:
    """Return the jobs submitted in a window.

    None stands for no bound.
    """
    kept = jobs["submitted_at"].notna()
    if since is not None:
        kept &= jobs["submitted_at"] >= since
    if until is not None:
        kept &= jobs["submitted_at"] < until
    return jobs if kept.all() else jobs[kept]


def _of_partitions(history: LoadedHistory, partitions: Collection[str]) -> LoadedHistory:
    """Return the jobs and nodes of some partitions."""
    jobs, nodes = history.jobs, history.nodes
    return replace(
        history,
        jobs=jobs[jobs["partition"].isin(list(partitions))],
        nodes=None if nodes is None else nodes[nodes["partition"].isin(list(partitions))],
    )


def known_capacity(history: LoadedHistory, *, resource: str, since_s: int, until_s: int) -> ClusterCapacity:
    """Return the size of a cluster by its nodes, else its jobs."""
    if history.nodes is not None and bool((history.nodes[resource] > 0).any()):
        return capacity_of_nodes(history.nodes, resource=resource, source=CapacitySource.NODES)
    if history.site is not None and history.site.nodes:
        table = _nodes_of_site(history.site)
        if bool((table[resource] > 0).any()):
            source = CapacitySource.SITE
            return capacity_of_nodes(table, resource=resource, source=source, where=history.site.source)
    if history.machine is not None and resource == "cpus":
        return header_capacity(history.machine.nodes, history.machine.cpus)
    return capacity_of_jobs(history.jobs, resource=resource, since_s=since_s, until_s=until_s)


def _nodes_of_site(site: SiteGpus) -> pd.DataFrame:
    """Return a site's nodes in one pool.

    Their partitions are not known.
    """
    rows = [(name, WHOLE, node.gpus, np.nan_to_num(node.cpus)) for name, node in site.nodes.items()]
    return pd.DataFrame(rows, columns=["name", "partition", "gpus", "cpus"])
