"""The live cluster that this machine reaches, with its history and settings."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.app.services import configured_domains
from helios.app.sync import AccountingSource, GpuAccounting
from helios.choices import Domain
from helios.config import Settings, SlurmSettings
from helios.errors import ClusterUnavailable, ConfigurationInvalid, FileUnreadable, HeliosError, UsageError
from helios.model.slurm_site import SlurmSite
from helios.ports import Cluster, NodeCluster
from helios.services.targets import TARGETS
from helios.slurm import accounting
from helios.slurm.accounting import Accounting as SlurmAccounting
from helios.slurm.backend import Backend
from helios.slurm.commands import show_config
from helios.slurm.connect import connect, live_site, open_cluster, open_nodes, partition_names
from helios.slurm.gpu_nodes import live_site_gpus
from helios.slurm.hook_table import TABLE
from helios.slurm.jobs import has_soft_limits
from helios.slurm.node_weights import WeightPlan, plan_weights, read_conf
from helios.slurm.parse import release
from helios.slurm.power_config import PowerConfigReader, feature_racks
from helios.slurm.preflight import (
    Check,
    FindingLevel,
    PreflightFinding,
    controllers_time,
    hook_table_check,
    power_checks,
    run_checks,
)
from helios.slurm.reservations import read_reservations
from helios.slurm.shell import Shell
from helios.slurm.undo_file import JobsUndo

BACK_END = "back end"
"""Name of the check which way into Slurm is used."""
READING_S = 600.0
"""Timeout of reading one window of the accounting, s; long enough for a day of a large site."""


# Check of a canary's partitions: with a misspelt name the canary would act on nothing.
def refuse_unknown_partitions(settings: SlurmSettings, cluster: str, partitions: Sequence[str]) -> list[str]:
    """Raise UsageError unless the cluster has these partitions.

    Returns a note where the cluster cannot be read and they were not checked.

    Parameters
    ----------
    cluster : str
        The cluster that must have them.

    Raises
    ------
    UsageError
        The cluster has no such partition. The message lists those that exist.
    """
    if not partitions:
        return []
    try:
        shell = connect(settings.model_copy(update={"backend": "commands"})).shell
        if (here := SlurmAccounting(shell=shell).cluster_name()) != cluster:
            raise HeliosError(f"this machine reaches cluster {here}, not {cluster}")
        known = partition_names(shell)
    except HeliosError as reason:
        return [f"Whether there is a partition {' or '.join(map(repr, partitions))} was not checked: {reason.message}"]
    if unknown := [name for name in partitions if name not in known]:
        names = " and no ".join(map(repr, unknown))
        raise UsageError(f"Cluster {cluster} has no partition {names}.", hint=f"There are: {', '.join(known)}")
    return []


def no_nodes() -> NodeCluster:
    """Raise that the nodes of this cluster cannot be controlled."""
    raise ClusterUnavailable("Helios cannot change nodes on this cluster")


def no_site() -> SlurmSite:
    """Raise that the scheduling rules of this cluster cannot be read."""
    raise ClusterUnavailable("the scheduling rules of this cluster cannot be read")


def no_reservations() -> pd.DataFrame:
    """Raise that the reservations of this cluster cannot be read."""
    raise ClusterUnavailable("the reservations of this cluster cannot be read")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiveCluster:
    """A live cluster.

    Attributes
    ----------
    name : str
        As the cluster names itself.
    cluster : Cluster
        Reads the queue and changes jobs.
    accounting : AccountingSource
        Its history.
    controller : callable
        Returns an identity of the controller that answers, which changes with a failover or a restart. None where it
        cannot be known.
    clock_skew_s : callable
        Returns the controller's clock minus ours, s. None where it cannot be known.
    site_factor : callable
        Returns the SiteFactor of an urgency.
    time_min : callable, optional
        Returns the TimeMin, minutes, of a soft limit in s. None where the cluster knows no soft limits.
    without_helios : callable
        Returns, for a ``QUEUE`` frame, the priorities that the cluster would have computed without Helios.
    ended : callable, optional
        Returns the jobs that are known to have ended since a time. None for a cluster whose answers are never cut.
    load_applied_changes : callable
        Takes the record of applied changes (``APPLIED_CHANGES``) of this Helios or of another that led, and ``keep``,
        which says whether to add to ``jobs.undo`` what only this record has. By default it is ignored, as by a cluster
        that writes nothing.
    nodes : callable
        Returns the interface to the nodes, which is opened at the first call.
    rules : callable
        Reads the scheduling rules of the cluster now.
    reservations : callable
        Reads the reservations now, as a ``RESERVATIONS`` frame.
    notes : tuple of str
        How the cluster is reached, and why.
    close : callable
        Releases connections and processes.
    """

    name: str
    cluster: Cluster
    accounting: AccountingSource
    controller: Callable[[], str | None]
    clock_skew_s: Callable[[], float | None]
    site_factor: Callable[[float], int]
    time_min: Callable[[float], int] | None
    without_helios: Callable[[pd.DataFrame], NDArray[np.float64]]
    ended: Callable[[datetime], Collection[str]] | None = None
    load_applied_changes: Callable[..., None] = lambda *_, **__: None
    nodes: Callable[[], NodeCluster] = no_nodes
    rules: Callable[[], SlurmSite] = no_site
    reservations: Callable[[], pd.DataFrame] = no_reservations
    notes: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None


def open_live_cluster(settings: Settings) -> LiveCluster:
    """Open the cluster that ``slurm.conf`` names.

    Raises
    ------
    ClusterUnavailable
        Slurm is not installed here, or the controller does not answer.
    """
    slurm = settings.slurm
    undo = JobsUndo(Path(settings.control.state_folder))
    cluster = open_cluster(slurm, undo=undo, reads_targets=TARGETS in settings.services)
    shell = connect(slurm.model_copy(update={"backend": "commands"})).shell
    applied = accounting.Accounting(shell=shell, timeout_s=READING_S)

    def time_min(seconds: float) -> int:
        return ownership.time_min(timedelta(seconds=seconds))

    return LiveCluster(
        name=cluster.name,
        cluster=cluster,
        accounting=AccountingSource(
            jobs=lambda start, end, path: applied.sacct_window(start, end, path=path),
            node_events=applied.node_events,
            gpus=lambda: _gpu_accounting(shell),
            use=lambda start, end, path, steps: applied.use_window(start, end, path=path, steps=steps),
        ),
        controller=lambda: _controller(cluster.backend),
        clock_skew_s=lambda: _clock_skew_s(shell),
        site_factor=lambda urgency: ownership.site_factor(urgency, most=slurm.site_factor_most),
        time_min=time_min if has_soft_limits(cluster.backend.configuration()) else None,
        without_helios=lambda queue: _without_helios(queue, most=slurm.site_factor_most),
        ended=lambda since: applied.ended_jobs(since, datetime.now(UTC)),
        load_applied_changes=cluster.load_applied_changes,
        nodes=cache(lambda: open_nodes(slurm, racks=settings.power.racks)),
        rules=lambda: live_site(shell),
        reservations=lambda: read_reservations(shell),
        notes=cluster.notes,
        close=cluster.close,
    )


def _gpu_accounting(shell: Shell) -> GpuAccounting:
    site, tracked = live_site_gpus(shell), show_config(shell).get("AccountingStorageTRES", "")
    # Nodes without GPUs leave nothing to account for.
    has_gpus = any(node.gpus for node in site.nodes.values())
    names = {word.strip().partition(":")[0] for word in tracked.lower().split(",")}
    return GpuAccounting(site=site, is_tracked=not has_gpus or "gres/gpu" in names)


def plan_node_weights(settings: Settings, conf: Path | None) -> WeightPlan:
    """Return static node weights for slurm.conf.

    Parameters
    ----------
    conf : Path, optional
        A slurm.conf. By default that of the running cluster, whose topology then tells the racks too.

    Raises
    ------
    FileUnreadable, ConfigurationInvalid
        ``conf`` cannot be read, or is no slurm.conf.
    ClusterUnavailable
        The controller does not answer.
    """
    # Imported here, because only this and forecasts need it.
    from helios.slurm.site import read_site  # noqa: PLC0415 - see above

    notes: list[str] = []
    racks = feature_racks(settings.power.racks)
    if conf is not None:
        text = read_conf(conf, notes)
        return plan_weights(read_site(text), racks, text, notes)
    shell = connect(settings.slurm.model_copy(update={"backend": "commands"})).shell
    reader = PowerConfigReader(shell=shell, racks=racks)
    racks, path = dict(reader().surroundings.racks), Path(reader.configuration().get("SLURM_CONF", ""))
    try:
        text = read_conf(path, notes)
        return plan_weights(read_site(text), racks, text, notes)
    except (FileUnreadable, ConfigurationInvalid) as reason:
        notes.append(
            f"{reason.message}: the nodes are the controller's, and whole lines need a copy: --slurm-conf FILE"
        )
        return plan_weights(live_site(shell), racks, None, notes)


def slurm_release(settings: Settings) -> tuple[int, int] | None:
    """Return the release of the Slurm that is installed here, as (24, 11).

    None: none is, or it has no configuration. The controller is not asked.
    """
    try:
        answer = Shell(folder=settings.slurm.commands, timeout_s=settings.slurm.timeout_s).run("scontrol", "--version")
    except HeliosError:
        return None
    found = release((answer.decode(errors="replace").split() or [""])[-1])
    return found if found > (0, 0) else None


def preflight(settings: Settings) -> list[PreflightFinding]:
    """Return findings about the cluster's settings.

    A controller that does not answer is a finding too.
    """
    way, power = connect(settings.slurm.model_copy(update={"backend": "commands"})), settings.power
    more: list[Check] = []
    if settings.hook.publish:
        more.append(hook_table_check(Path(settings.control.state_folder) / TABLE))
    if Domain.NODES in configured_domains(settings):
        more.extend(power_checks(power.mechanism))
    found = run_checks(
        shell=way.shell,
        configuration=way.backend.configuration,
        user=getpass.getuser(),
        site_factor_most=settings.slurm.site_factor_most,
        clock_skew_s=settings.control.clock_skew_s,
        more=more,
    )
    return [*found[:1], _backend_in_use(settings.slurm, way.shell), *found[1:]]


def _backend_in_use(settings: SlurmSettings, commands: Shell) -> PreflightFinding:
    """Return which back end Helios uses, in which version, and why."""
    try:
        version = commands.run("squeue", "--version").decode("utf-8", "replace").strip()
        way = connect(settings)
        way.backend.close()
    except HeliosError as reason:
        return PreflightFinding(check=BACK_END, verdict=FindingLevel.FAIL, message=reason.message, hint=reason.hint)
    message = f"{'; '.join(way.notes)}; squeue is of {version}"
    return PreflightFinding(check=BACK_END, verdict=FindingLevel.OK, message=message)


def _controller(backend: Backend) -> str | None:
    # A backup that takes over and a controller that restarts both have a new time of boot.
    try:
        booted = backend.configuration().get("BOOT_TIME")
    except HeliosError:
        return None
    return f"booted at {booted}" if booted else None


def _clock_skew_s(shell: Shell) -> float | None:
    try:
        return (controllers_time(shell) - datetime.now(UTC)).total_seconds()
    except HeliosError:
        return None


def _without_helios(queue: pd.DataFrame, *, most: int) -> NDArray[np.float64]:
    factors = [ownership.site_factor(urgency, most=most) for urgency in queue["urgency"]]
    return np.asarray(queue["priority"].to_numpy() - np.array(factors, dtype=np.float64))
