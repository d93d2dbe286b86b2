"""State of each node over time, from the warehouse.

It follows from jobs, nodes, node events, coverage and Helios' decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import PowerDown, Result
from helios.app.energy.node_states import (
    NodeTimes,
    Spans,
    job_spans,
    node_times,
    power_spans,
    seconds,
    sleep_reasons,
    unread_spans,
)
from helios.app.reports import LONGEST_HELD
from helios.config import Energy
from helios.errors import HostlistInvalid, NotEnoughHistory
from helios.model import JobState, unknown_gpus_note
from helios.model.nodes import expand
from helios.warehouse import Warehouse

ORDER_HOLDS_S = 3_600
"""A sleep that begins later than this after Helios' order, s, is attributed to another cause."""
NO_PARTITION = "partition unknown"
_HOLDS = {JobState.RUNNING, JobState.SUSPENDED, JobState.RESIZING}
_COLUMNS = ["job_id", "partition", "state", "started_at", "ended_at", "gpus", "cpus", "node_list"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedNodes:
    """States of a cluster's nodes, and what jobs held on them.

    Attributes
    ----------
    nodes : tuple of str
    pools : tuple of str
        Partitions that nodes share, with the type of GPU where there is one.
    pool : int64 array of shape (n_nodes,)
        Position of each node's pool.
    times : NodeTimes
    gpus, cpus : Spans
        When jobs held nodes, weighted with GPUs and with CPUs.
    notes : tuple of str
        What is not known.
    """

    nodes: tuple[str, ...]
    pools: tuple[str, ...]
    pool: NDArray[np.int64]
    times: NodeTimes
    gpus: Spans
    cpus: Spans
    notes: tuple[str, ...]


def recorded_nodes(
    warehouse: Warehouse, cluster: str, *, since: datetime, until: datetime, energy: Energy
) -> RecordedNodes:
    """Return the recorded states of a cluster's nodes in [since, until).

    Raises
    ------
    NotEnoughHistory
        No node of the cluster is known.
    """
    jobs = _jobs(warehouse, cluster, since, until)
    lists, unclear = _expanded(jobs)
    nodes = warehouse.nodes(cluster)
    events = warehouse.node_events(cluster, since, until, reaching=True)
    pools_of = {str(node): NO_PARTITION for node in events["node"]} | _pools(nodes, jobs, lists)
    if not pools_of:
        raise NotEnoughHistory(
            f"The history of {cluster} names no nodes between {since:%Y-%m-%d %H:%M} and {until:%Y-%m-%d %H:%M %Z}: no "
            "job says where it ran, and the nightly task has not recorded the cluster's nodes.",
            hint="Choose a window that the history covers (-S, -E); load history with Slurm's NodeList, or read it: "
            "helios trace sync. From the sizes of jobs alone: helios whatif energy",
        )
    places = {node: place for place, node in enumerate(sorted(pools_of))}
    begin_s, end_s = int(since.timestamp()), int(until.timestamp())
    of_jobs, of_events, from_files = _read_intervals(warehouse, cluster)
    jobs_until_s, events_until_s = (
        min(end_s, max((last for _, last in read), default=0)) for read in (of_jobs, of_events)
    )
    on = [tuple(places[node] for node in names) for names in lists]
    gpus, cpus = job_spans(jobs, on, known_until_s=jobs_until_s)
    power = power_spans(
        events, places, known_until_s=events_until_s, boot_s=energy.boot_s, shutdown_s=energy.shutdown_s
    )
    orders = _orders(warehouse, cluster, places, (since, until))
    n_nodes, pools = len(places), sorted(set(pools_of.values()))
    return RecordedNodes(
        nodes=tuple(places),
        pools=tuple(pools),
        pool=np.array([pools.index(pools_of[node]) for node in places], dtype=np.int64),
        times=node_times(
            n_nodes=n_nodes,
            begin_s=begin_s,
            end_s=end_s,
            busy=gpus,
            power=power,
            unread_jobs=unread_spans(of_jobs, n_nodes=n_nodes, begin_s=begin_s, end_s=end_s),
            unread_events=unread_spans(of_events, n_nodes=n_nodes, begin_s=begin_s, end_s=end_s),
            by_helios=sleep_reasons(power.asleep, orders, within_s=ORDER_HOLDS_S),
        ),
        gpus=gpus,
        cpus=cpus,
        notes=tuple(_notes(jobs, lists, unclear, no_events=not of_events, from_files=from_files, no_nodes=nodes.empty)),
    )


def _jobs(warehouse: Warehouse, cluster: str, since: datetime, until: datetime) -> pd.DataFrame:
    """Return the jobs that held nodes in the window.

    A job without an end counts only in a state in which it holds its nodes.
    """
    jobs = warehouse.jobs(cluster, since=since - LONGEST_HELD, until=until, columns=_COLUMNS)
    runs = jobs["ended_at"].isna() & jobs["state"].isin([str(state) for state in _HOLDS])
    within = (jobs["started_at"] < until) & (runs | (jobs["ended_at"] > since))
    return jobs[within.to_numpy(dtype=bool, na_value=False)].reset_index(drop=True)


def _expanded(jobs: pd.DataFrame) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return each job's nodes, and invalid node lists."""
    known: list[tuple[str, ...]] = []
    unclear: list[str] = []
    for text in jobs["node_list"].cat.categories:
        try:
            known.append(expand(text))
        except HostlistInvalid:
            known.append(())
            unclear.append(text)
    codes = jobs["node_list"].cat.codes
    return [known[code] if code >= 0 else () for code in codes], [
        text for text in unclear if (jobs["node_list"] == text).any()
    ]


def _pools(nodes: pd.DataFrame, jobs: pd.DataFrame, lists: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the pool of each node.

    It is the one that the cluster reports, otherwise the partition in which most of the node's jobs ran.
    """
    partitions: dict[str, list[str]] = {}
    gpu_types: dict[str, str] = {}
    rows = zip(*(nodes[name].astype("object") for name in ("name", "partition", "gpu_type")), strict=True)
    for node, partition, gpu_type in rows:
        partitions.setdefault(node, []).extend([partition] if isinstance(partition, str) else [])
        gpu_types |= {node: gpu_type} if isinstance(gpu_type, str) else {}
    found = {
        node: (",".join(sorted(of)) or NO_PARTITION) + (f" ({gpu_types[node]})" if node in gpu_types else "")
        for node, of in partitions.items()
    }
    where = jobs["partition"].astype("object")
    others = [(node, ran_in) for names, ran_in in zip(lists, where, strict=True) for node in names if node not in found]
    seen = pd.DataFrame(others, columns=["node", "partition"])
    if len(seen):
        counts = seen.fillna(NO_PARTITION).groupby(["node", "partition"]).size()
        found |= {str(node): str(most) for node, most in counts.groupby("node").idxmax()}
    return found


def _read_intervals(warehouse: Warehouse, cluster: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]], bool]:
    """Return the time intervals of which jobs and node events were read.

    The last value says whether files were read. Live readings have recorded coverage; files count from the first job's
    submission to the last one's.
    """
    coverage = warehouse.coverage(cluster)
    starts, ends = (seconds(coverage[name]).tolist() for name in ("started_at", "ended_at"))
    read: dict[str, list[tuple[int, int]]] = {"jobs": [], "node_events": []}
    for source, start, end in zip(coverage["source"], starts, ends, strict=True):
        read.setdefault(str(source), []).append((start, end))
    loads = warehouse.loads(cluster)
    # Live readings are loaded under a path that begins with "sacct "; see helios.app.sync.
    files = loads[~loads["path"].str.startswith("sacct ") & loads["watermark"].notna()]
    if len(files):
        known = warehouse.clusters()
        first = pd.Timestamp(known.loc[known["name"] == cluster, "first_submitted_at"].iloc[0])
        read["jobs"].append((int(first.timestamp()), int(pd.Timestamp(files["watermark"].max()).timestamp())))
    return read["jobs"], read["node_events"], bool(len(files))


def _orders(warehouse: Warehouse, cluster: str, places: Mapping[str, int], window: tuple[datetime, datetime]) -> Spans:
    """Return when Helios powered down which node, verified by reading back."""
    decisions = warehouse.decisions(cluster, since=window[0] - LONGEST_HELD, until=window[1])
    done = decisions["outcome"].astype("str").str.startswith(Result.DONE.value).fillna(False)
    ours = (decisions["action"] == PowerDown.__name__) & done & decisions["target"].isin(list(places))
    mine = decisions[ours.to_numpy(dtype=bool)]
    at_s = seconds(mine["decided_at"])
    return Spans(node=np.array([places[node] for node in mine["target"]], dtype=np.int64), start_s=at_s, end_s=at_s + 1)


def _notes(
    jobs: pd.DataFrame,
    lists: Sequence[Sequence[str]],
    unclear: Sequence[str],
    *,
    no_events: bool,
    from_files: bool,
    no_nodes: bool,
) -> Iterator[str]:
    if unknown := unknown_gpus_note(jobs):
        yield f"{unknown}."
    nowhere = np.array([not nodes for nodes in lists], dtype=bool)
    if nowhere.any():
        example = f" ({unclear[0]!r} is no list of nodes)" if unclear else ""
        yield (
            f"{int(nowhere.sum()):,} of {len(jobs):,} jobs do not say on which nodes they ran{example}: those nodes "
            "count as without a job."
        )
    if no_events:
        yield (
            "Slurm's node events were never read, so it is not known which nodes slept or were down: helios trace sync "
            "reads them, and so does the daemon."
        )
    if from_files:
        yield "Of history loaded from files it is taken that no job is missing between the first and the last."
    if no_nodes:
        yield (
            "The nightly task has not recorded the cluster's nodes yet: nodes without a job and without a node event "
            "are not known, and not counted."
        )
