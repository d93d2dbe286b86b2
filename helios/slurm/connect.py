"""Connection to Slurm through the configured backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from helios.config import SlurmSettings
from helios.errors import HeliosError
from helios.model.slurm_site import SlurmSite
from helios.slurm.accounting import Accounting
from helios.slurm.backend import Backend
from helios.slurm.commands import CommandsBackend, Sprio, show
from helios.slurm.jobs import SlurmCluster, now
from helios.slurm.nodes import SlurmNodes
from helios.slurm.power_config import PowerConfigReader, feature_racks
from helios.slurm.shell import Shell
from helios.slurm.target_jobs import TargetJobs
from helios.slurm.undo_file import JobsUndo

_NAME = re.compile(r"^PartitionName=(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Backend for Slurm, and why it was chosen.

    Attributes
    ----------
    backend : Backend
        Slurm's commands or pyslurm.
    shell : Shell
        Slurm's commands, which the accounting, the site factors and the doctor need with every backend.
    notes : tuple of str
        Why this backend was chosen, for a person.
    """

    backend: Backend
    shell: Shell
    notes: tuple[str, ...]


def open_cluster(
    settings: SlurmSettings,
    *,
    undo: JobsUndo | None = None,
    reads_targets: bool = False,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], datetime] = now,
) -> SlurmCluster:
    """Return the cluster of ``slurm.conf``, through the configured backend.

    Parameters
    ----------
    undo : JobsUndo, optional
        The record of what Helios writes; None for one in memory.
    reads_targets : bool
        Whether to read the comments of jobs, which say their targets.
    environment : mapping, optional
        The process environment; None for that of this process.

    Raises
    ------
    ClusterUnavailable
        Slurm is not installed here, or the controller does not answer.
    """
    way = connect(settings, environment=environment)
    return SlurmCluster(
        way.backend,
        name=Accounting(shell=way.shell).cluster_name(),
        site_factor_most=settings.site_factor_most,
        writes_per_cycle=settings.writes_per_cycle,
        sprio=Sprio(shell=way.shell),
        undo=undo,
        targets=TargetJobs(shell=way.shell) if reads_targets else None,
        clock=clock,
        notes=way.notes,
    )


def open_nodes(
    settings: SlurmSettings,
    *,
    racks: str = "",
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], datetime] = now,
) -> SlurmNodes:
    """Return the nodes of the cluster of ``slurm.conf``.

    Changing them needs the rights of an administrator.

    Parameters
    ----------
    racks : str
        ``[power] racks``, for nodes that are not in Slurm's topology.
    environment : mapping, optional
        The process environment; None for that of this process.

    Raises
    ------
    ClusterUnavailable
        Slurm is not installed here, or the controller does not answer.
    ConfigurationInvalid
        ``racks`` cannot be parsed.
    """
    operations_racks = feature_racks(racks)
    way = connect(settings, environment=environment)
    return SlurmNodes(
        way.backend,
        PowerConfigReader(shell=way.shell, racks=operations_racks),
        name=Accounting(shell=way.shell).cluster_name(),
        site_factor_most=settings.site_factor_most,
        writes_per_cycle=settings.writes_per_cycle,
        clock=clock,
        notes=way.notes,
    )


def connect(settings: SlurmSettings, *, environment: Mapping[str, str] | None = None) -> Connection:
    """Connect to Slurm through the configured backend.

    ``auto`` prefers pyslurm where its release fits the controller's.

    Raises
    ------
    ClusterUnavailable
        ``backend`` is ``pyslurm``, and its worker cannot be started or does not reach the controller.
    """
    commands = CommandsBackend(commands_folder=settings.commands, timeout_s=settings.timeout_s, environment=environment)
    if settings.backend == "commands":
        return Connection(backend=commands, shell=commands.shell, notes=("through Slurm's commands, as configured",))
    try:
        return _through_pyslurm(settings, commands.shell, environment)
    except HeliosError as reason:
        if settings.backend == "pyslurm":
            raise
        note = f"through Slurm's commands, because pyslurm cannot be used: {reason.message}"
        return Connection(backend=commands, shell=commands.shell, notes=(note,))


def _through_pyslurm(settings: SlurmSettings, shell: Shell, environment: Mapping[str, str] | None) -> Connection:
    # Imported here, so that an installation that uses commands never loads the worker's code.
    from helios.slurm.pyslurm_backend import PyslurmBackend  # noqa: PLC0415 - see above

    backend = PyslurmBackend(python=settings.python, timeout_s=settings.timeout_s, environment=environment)
    try:
        versions = backend.versions()
        if settings.backend == "auto" and not versions.agree:
            raise HeliosError(f"the releases differ: {versions}")
    except HeliosError:
        backend.close()
        raise
    return Connection(backend=backend, shell=shell, notes=(f"through {versions}",))


def live_site(shell: Shell) -> SlurmSite:
    """Return the scheduling rules of the running cluster.

    Without the accounting, limits of QOS and fair shares are unknown, which is among the notes.

    Raises
    ------
    ClusterUnavailable
        Slurm's commands are not installed here, or the controller does not answer.
    ClusterRefused, AnswerNotUnderstood, ConfigurationInvalid
        A command failed otherwise, or its answer is not understood.
    """
    # Imported here, because only forecasts and no cycle need it.
    from helios.slurm.site import read_site  # noqa: PLC0415 - see above

    def text(*words: str) -> str:
        return shell.run(*words).decode("utf-8", "replace")

    def text_if_any(*words: str) -> str | None:
        try:
            return text(*words)
        except HeliosError:
            return None

    machines = text("scontrol", "--all", "show", "node") + "\n" + text("scontrol", "--all", "show", "partition")
    return read_site(
        text("scontrol", "show", "config"),
        sacctmgr_qos=text_if_any("sacctmgr", "--parsable2", "show", "qos"),
        sacctmgr_assoc=text_if_any("sshare", "--all", "--long", "--parsable2"),
        sinfo=machines,
    )


def partition_names(shell: Shell) -> tuple[str, ...]:
    """Return the names of all partitions in the order of the configuration.

    Hidden partitions are included.

    Raises
    ------
    ClusterUnavailable
        Slurm's commands are not installed here, or the controller does not answer.
    ClusterRefused, AnswerNotUnderstood
        The command failed otherwise.
    """
    return tuple(_NAME.findall(show(shell, "partition")))
