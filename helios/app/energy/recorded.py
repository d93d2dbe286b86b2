"""The nodes of a cluster as the warehouse remembers them, moment by moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

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
    slept_by,
    unread,
)
from helios.config import Energy
from helios.errors import HostlistInvalid, NotEnoughHistory
from helios.hostlist import expand
from helios.model import JobState
from helios.warehouse import Warehouse

LONGEST_HELD = timedelta(days=60)
"""How long before a window a job may have been submitted and still run in it; older ones are missed."""
ORDER_HOLDS_S = 3_600
"""A node that fell asleep later than this after Helios asked for it did so for another reason."""
NO_PARTITION = "partition unknown"
_HOLDS = {JobState.RUNNING, JobState.SUSPENDED, JobState.RESIZING}
_COLUMNS = ["partition", "state", "started_at", "ended_at", "gpus", "cpus", "node_list"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """What each node did, and what jobs held there.

    Attributes
    ----------
    nodes : tuple of str
    pools : tuple of str
        Partitions, and the type of GPU where there is one, that nodes share.
    pool : int64 array of shape (n_nodes,)
        Of each node the position of its pool.
    times : NodeTimes
    gpus, cpus : Spans
        What jobs held, as weights.
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


def recorded_nodes(warehouse: Warehouse, cluster: str, *, since: datetime, until: datetime, energy: Energy) -> Recorded:
    """Return what the nodes of a cluster did in [since, until), as far as it was read.

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
            "job says where it ran, and no night has written down the cluster's nodes.",
            remedy="Choose a window that the history covers (-S, -E); load history with Slurm's NodeList, or read it: "
            "helios trace sync. From the sizes of jobs alone: helios energy whatif",
        )
    places = {node: place for place, node in enumerate(sorted(pools_of))}
    begin_s, end_s = int(since.timestamp()), int(until.timestamp())
    read = _read(warehouse, cluster)
    on = [tuple(places[node] for node in names) for names in lists]
    gpus, cpus = job_spans(jobs, on, known_until_s=_known_until(read.jobs, end_s))
    power = power_spans(
        events,
        places,
        known_until_s=_known_until(read.events, end_s),
        boot_s=energy.boot_s,
        shutdown_s=energy.shutdown_s,
    )
    n_nodes, pools = len(places), sorted(set(pools_of.values()))
    return Recorded(
        nodes=tuple(places),
        pools=tuple(pools),
        pool=np.array([pools.index(pools_of[node]) for node in places], dtype=np.int64),
        times=node_times(
            n_nodes=n_nodes,
            begin_s=begin_s,
            end_s=end_s,
            busy=gpus,
            power=power,
            unread_jobs=unread(read.jobs, n_nodes=n_nodes, begin_s=begin_s, end_s=end_s),
            unread_events=unread(read.events, n_nodes=n_nodes, begin_s=begin_s, end_s=end_s),
            by_helios=slept_by(
                power.asleep, _orders(warehouse, cluster, places, (since, until)), within_s=ORDER_HOLDS_S
            ),
        ),
        gpus=gpus,
        cpus=cpus,
        notes=tuple(_notes(jobs, lists, unclear, read, no_nodes=nodes.empty)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Stretches of history that were read, s since the epoch."""

    jobs: tuple[tuple[int, int], ...]
    events: tuple[tuple[int, int], ...]
    from_files: bool


def _jobs(warehouse: Warehouse, cluster: str, since: datetime, until: datetime) -> pd.DataFrame:
    """Return the jobs that held nodes in the window, known to have ended or to run still."""
    jobs = warehouse.jobs(cluster, since=since - LONGEST_HELD, until=until, columns=_COLUMNS)
    runs = jobs["ended_at"].isna() & jobs["state"].isin([str(state) for state in _HOLDS])
    within = (jobs["started_at"] < until) & (runs | (jobs["ended_at"] > since))
    return jobs[within.to_numpy(dtype=bool, na_value=False)].reset_index(drop=True)


def _expanded(jobs: pd.DataFrame) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the nodes of each job, and the texts that name none."""
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
    """Return the pool of each node: as the cluster has it, else the partition most of its jobs ran in."""
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


def _read(warehouse: Warehouse, cluster: str) -> _Read:
    """Return what was read: live, by coverage; from files, from the first job's submission to the last one's."""
    coverage = warehouse.coverage(cluster)
    of_jobs, of_events = (_stretches(coverage, source) for source in ("jobs", "node_events"))
    loads = warehouse.loads(cluster)
    # A live reading is loaded under a name of its own; see helios.app.reading.
    files = loads[~loads["path"].str.startswith("sacct ") & loads["watermark"].notna()]
    if files.empty:
        return _Read(jobs=of_jobs, events=of_events, from_files=False)
    known = warehouse.clusters()
    first = pd.Timestamp(known.loc[known["name"] == cluster, "first_submitted_at"].iloc[0])
    in_files = (int(first.timestamp()), int(pd.Timestamp(files["watermark"].max()).timestamp()))
    return _Read(jobs=(*of_jobs, in_files), events=of_events, from_files=True)


def _stretches(coverage: pd.DataFrame, source: str) -> tuple[tuple[int, int], ...]:
    rows = coverage[(coverage["source"] == source).to_numpy()]
    starts, ends = (seconds(rows[name]).tolist() for name in ("started_at", "ended_at"))
    return tuple(zip(starts, ends, strict=True))


def _known_until(read: Sequence[tuple[int, int]], end_s: int) -> int:
    return min(end_s, max((last for _, last in read), default=0))


def _orders(warehouse: Warehouse, cluster: str, places: Mapping[str, int], window: tuple[datetime, datetime]) -> Spans:
    """Return when Helios put which node to sleep and read it back."""
    decisions = warehouse.decisions(cluster, since=window[0] - LONGEST_HELD, until=window[1])
    done = decisions["outcome"].astype("str").str.startswith(Result.DONE.value).fillna(False)
    ours = (decisions["action"] == PowerDown.__name__) & done & decisions["target"].isin(list(places))
    mine = decisions[ours.to_numpy(dtype=bool)]
    at_s = seconds(mine["decided_at"])
    return Spans(node=np.array([places[node] for node in mine["target"]], dtype=np.int64), start_s=at_s, end_s=at_s + 1)


def _notes(
    jobs: pd.DataFrame, lists: Sequence[Sequence[str]], unclear: Sequence[str], read: _Read, *, no_nodes: bool
) -> Iterator[str]:
    nowhere = np.array([not nodes for nodes in lists], dtype=bool)
    if nowhere.any():
        example = f" ({unclear[0]!r} is no list of nodes)" if unclear else ""
        yield (
            f"{int(nowhere.sum()):,} of {len(jobs):,} jobs do not say on which nodes they ran{example}: those nodes "
            "count as without a job."
        )
    if not read.events:
        yield (
            "Slurm's node events were never read, so that nobody knows which nodes slept or were down: helios trace "
            "sync reads them, and so does the daemon."
        )
    if read.from_files:
        yield "Of history loaded from files it is taken that no job is missing between the first and the last."
    if no_nodes:
        yield (
            "No night has written down the cluster's nodes yet: nodes on which no job ran and of which Slurm tells "
            "nothing are not known, and not counted."
        )
