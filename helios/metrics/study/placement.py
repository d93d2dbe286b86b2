"""Placement of jobs on nodes, from their node lists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import HostlistInvalid
from helios.metrics.node_usage import BusyIntervals
from helios.metrics.study.history import NEVER_S, StudyHistory
from helios.model.hostlist import expand

LEAST_PLACED = 0.9
"""Smallest share of hours with known nodes for a history whose nodes count as known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldNodes:
    """Nodes of each job, one entry for each node of a job.

    Attributes
    ----------
    names : tuple of str
        Node names.
    job, node : int64 arrays of shape (n_places,)
        Position of the job in the history, and of the node in ``names``.
    share : float64 array of shape (n_places,)
        1 / number of nodes of that job, whose resources are assumed to be spread evenly.
    coverage : float
        Share of the hours held by jobs whose nodes are known.
    """

    names: tuple[str, ...]
    job: NDArray[np.int64]
    node: NDArray[np.int64]
    share: NDArray[np.float64]
    coverage: float

    def intervals(self, history: StudyHistory) -> BusyIntervals:
        """Return when the nodes held jobs, cut at the window."""
        begins_s = np.maximum(history.started_s[self.job], history.first_s)
        ends_s = np.minimum(history.ended_s[self.job], history.end_s)
        some = ends_s > begins_s
        return BusyIntervals(names=self.names, node=self.node[some], start_s=begins_s[some], end_s=ends_s[some])


def find_placement(history: StudyHistory) -> HeldNodes | None:
    """Return the nodes of the jobs that ran.

    None where too few of them are known. An invalid list counts as unknown.
    """
    lists = history.jobs["node_list"]
    ran = history.started_s < NEVER_S
    if not history.has_starts or not (ran & lists.notna().to_numpy()).any():
        return None
    expanded = [_expanded(str(text)) for text in lists.cat.categories]
    names = tuple(sorted({name for members in expanded for name in members}))
    number = {name: position for position, name in enumerate(names)}
    sizes = np.array([*(len(members) for members in expanded), 0], dtype=np.int64)
    members = np.array([number[name] for one in expanded for name in one], dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    codes = lists.cat.codes.to_numpy().astype(np.int64)
    count = np.where(ran, sizes[codes], 0)
    hours = history.hours(weight=np.maximum(history.size, 1))
    coverage = float(hours[count > 0].sum() / hours.sum()) if hours.sum() > 0 else 0.0
    if coverage < LEAST_PLACED:
        return None
    job = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(job)) - np.repeat(np.cumsum(count) - count, count)
    return HeldNodes(
        names=names,
        job=job,
        node=members[first[codes[job]] + within],
        share=1.0 / count[job],
        coverage=coverage,
    )


def nodes_seen(history: StudyHistory, placement: HeldNodes) -> pd.DataFrame:
    """Return the nodes of jobs, with the peak held on each.

    The columns are those of ``NODES``. The other resource and the memory are not known.
    """
    held = (history.size[placement.job] * placement.share).astype(np.float64)
    begins_s, ends_s = history.started_s[placement.job], np.minimum(history.ended_s[placement.job], history.end_s)
    most = _peak_of_each(placement.node, begins_s, ends_s, held, len(placement.names))
    partition = history.partition.code[placement.job]
    pairs = np.unique(np.column_stack([placement.node, partition]), axis=0)
    names = np.array(placement.names, dtype=object)
    values = np.array([*history.partition.values, None], dtype=object)
    units = np.ceil(most - 1e-9)[pairs[:, 0]]
    return pd.DataFrame(
        {
            "name": names[pairs[:, 0]],
            "partition": values[pairs[:, 1]],
            "cpus": units if history.resource == "cpus" else np.nan,
            "gpus": units.astype(np.int64) if history.resource == "gpus" else 0,
            "gpu_type": None,
            "memory_mib": np.nan,
        }
    )


def _peak_of_each(
    group: NDArray[np.int64],
    begins_s: NDArray[np.int64],
    ends_s: NDArray[np.int64],
    held: NDArray[np.float64],
    n_groups: int,
) -> NDArray[np.float64]:
    """Return the most that was held at once in each group."""
    some = ends_s > begins_s
    group, begins_s, ends_s, held = group[some], begins_s[some], ends_s[some], held[some]
    at_s, of = np.concatenate([ends_s, begins_s]), np.concatenate([group, group])
    change = np.concatenate([-held, held])
    # Ends come before starts of the same moment.
    order = np.lexsort((change, at_s, of))
    level, of = np.cumsum(change[order]), of[order]
    peak = np.zeros(n_groups)
    # Every group ends at the level it began with, 0, so that one running sum serves all.
    np.maximum.at(peak, of, level)
    return np.maximum(peak, 0.0)


def _expanded(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except HostlistInvalid:
        return ()
