"""Whether the partitions that a canary is to act on are there: a name that is none would be a canary of nothing."""

from __future__ import annotations

from collections.abc import Sequence

from helios.config import Slurm
from helios.errors import HeliosError, Misuse
from helios.slurm.accounting import Accounting
from helios.slurm.opening import way_in
from helios.slurm.partitions import partition_names


def refuse_unknown_partitions(settings: Slurm, cluster: str, partitions: Sequence[str]) -> list[str]:
    """Ask the cluster for its partitions; return what is to be said where it cannot be asked.

    Parameters
    ----------
    cluster : str
        Whose partitions they are to be.

    Raises
    ------
    Misuse
        The cluster has no such partition; those there are are named.
    """
    if not partitions:
        return []
    try:
        there = _partitions_of(settings, cluster)
    except HeliosError as reason:
        return [f"Whether there is a partition {' or '.join(map(repr, partitions))} was not checked: {reason.fact}"]
    if unknown := [name for name in partitions if name not in there]:
        names = " and no ".join(map(repr, unknown))
        raise Misuse(f"Cluster {cluster} has no partition {names}.", remedy=f"There are: {', '.join(there)}")
    return []


def _partitions_of(settings: Slurm, cluster: str) -> tuple[str, ...]:
    shell = way_in(settings.model_copy(update={"backend": "commands"})).shell
    if (here := Accounting(shell=shell).cluster_name()) != cluster:
        raise HeliosError(f"this machine reaches cluster {here}, not {cluster}")
    return partition_names(shell)
