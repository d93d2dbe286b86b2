"""A live cluster as the use cases need it: the socket, its accounting, and what only Slurm can say of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.reading import Accounting
from helios.errors import ClusterUnavailable
from helios.ports import Cluster, NodeCluster


def no_nodes() -> NodeCluster:
    """Raise that there is no such door."""
    raise ClusterUnavailable("this cluster has no door to its nodes")


def knows_nothing(_: pd.DataFrame, *, keep: bool) -> None:
    """Take no book: what cannot write keeps no record."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """A live cluster.

    Attributes
    ----------
    name : str
        As the cluster names itself.
    cluster : Cluster
        To look and act.
    accounting : Accounting
        Its history.
    controller : callable
        Returns which controller answers, and since when it runs: another after a failover or a restart. None: it
        cannot be known.
    clock_skew_s : callable
        Returns the controller's clock minus ours, s; None: it cannot be known.
    site_factor : callable
        Gives the SiteFactor of an urgency.
    time_min : callable, optional
        Gives the TimeMin, minutes, of a soft limit in s; None: the cluster knows no soft limits.
    without_helios : callable
        Gives, for a ``QUEUE`` frame, the priorities that the cluster would have computed without Helios.
    know : callable
        Takes the book of what stands (``STANDINGS``), of this Helios or of another that led, and ``keep``, whether to
        write into ``jobs.undo`` what only the book has.
    nodes : callable
        Gives the door to the nodes, which is opened when it is first asked for: an office of its own.
    notes : tuple of str
        How the cluster is reached, and why so.
    close : callable
        Gives back what is held.
    """

    name: str
    cluster: Cluster
    accounting: Accounting
    controller: Callable[[], str | None]
    clock_skew_s: Callable[[], float | None]
    site_factor: Callable[[float], int]
    time_min: Callable[[float], int] | None
    without_helios: Callable[[pd.DataFrame], NDArray[np.float64]]
    know: Callable[..., None] = knows_nothing
    nodes: Callable[[], NodeCluster] = no_nodes
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None
