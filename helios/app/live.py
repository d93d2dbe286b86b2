"""The live cluster that this machine reaches, with everything Slurm can say of itself."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import marks
from helios.app.reading import Accounting
from helios.app.site import Site
from helios.app.staff import offices_of
from helios.config import Settings
from helios.errors import HeliosError
from helios.ports import NodeCluster, Office
from helios.slurm import accounting, values
from helios.slurm.backend import Backend
from helios.slurm.hook import TABLE
from helios.slurm.jobs_undo import JobsUndo
from helios.slurm.look import look_at
from helios.slurm.opening import open_cluster, open_nodes, way_in
from helios.slurm.preflight import Check, Finding, controllers_time, examine, hook_table_check
from helios.slurm.preflight_power import power_checks
from helios.slurm.shell import Shell

READING_S = 600.0
"""Longest wait for one window of the accounting, s: a day of a large site."""


def open_site(settings: Settings) -> Site:
    """Return the cluster that ``slurm.conf`` names.

    Raises
    ------
    ClusterUnavailable
        Slurm is not installed here, or the controller does not answer.
    """
    slurm = settings.slurm
    undo = JobsUndo(Path(settings.control.state_folder))
    cluster, shell = open_cluster(slurm, undo=undo), _shell(settings)
    books = accounting.Accounting(shell=shell, timeout_s=READING_S)
    return Site(
        name=cluster.name,
        cluster=cluster,
        accounting=Accounting(
            jobs=lambda start, end, path: books.sacct_window(start, end, path=path), node_events=books.node_events
        ),
        controller=lambda: _controller(cluster.backend),
        clock_skew_s=lambda: _skew_s(shell),
        site_factor=lambda urgency: marks.site_factor(urgency, most=slurm.site_factor_most),
        time_min=_time_min if _knows_soft_limits(cluster.backend) else None,
        without_helios=lambda queue: _without_helios(queue, most=slurm.site_factor_most),
        know=cluster.know,
        nodes=_once(lambda: open_nodes(slurm, racks=settings.power.racks)),
        notes=cluster.notes,
        close=cluster.close,
    )


def _once(opens: Callable[[], NodeCluster]) -> Callable[[], NodeCluster]:
    """Return what opens a door when it is first asked for it, and gives the same one after that."""
    opened: list[NodeCluster] = []

    def door() -> NodeCluster:
        if not opened:
            opened.append(opens())
        return opened[0]

    return door


def preflight(settings: Settings) -> list[Finding]:
    """Return what the cluster's own settings mean for Helios; one that is silent is a finding too."""
    way, power = way_in(settings.slurm.model_copy(update={"backend": "commands"})), settings.power
    more: list[Check] = []
    if settings.hook.publish:
        more.append(hook_table_check(Path(settings.control.state_folder) / TABLE))
    if Office.NODES in offices_of(settings):
        more.extend(power_checks(power.mechanism, tiers=power.tiers))
    return examine(
        shell=way.shell,
        configuration=way.backend.configuration,
        user=getpass.getuser(),
        site_factor_most=settings.slurm.site_factor_most,
        clock_skew_s=settings.control.clock_skew_s,
        more=more,
    )


def _shell(settings: Settings) -> Shell:
    return way_in(settings.slurm.model_copy(update={"backend": "commands"})).shell


def _controller(backend: Backend) -> str | None:
    # A backup that takes over and a controller that restarts both have a new time of boot.
    try:
        booted = backend.configuration().get("BOOT_TIME")
    except HeliosError:
        return None
    return f"booted at {booted}" if booted else None


def _skew_s(shell: Shell) -> float | None:
    try:
        return (controllers_time(shell) - datetime.now(UTC)).total_seconds()
    except HeliosError:
        return None


def _time_min(seconds: float) -> int:
    return marks.time_min(timedelta(seconds=seconds))


def _knows_soft_limits(backend: Backend) -> bool:
    configuration = backend.configuration()
    look = look_at(
        [],
        {},
        release=values.release(configuration.get("SLURM_VERSION", "")),
        scheduler_parameters=configuration.get("SchedulerParameters", ""),
        undo=JobsUndo(),
    )
    return look.soft_limits


def _without_helios(queue: pd.DataFrame, *, most: int) -> NDArray[np.float64]:
    factors = [marks.site_factor(urgency, most=most) for urgency in queue["urgency"]]
    return np.asarray(queue["priority"].to_numpy() - np.array(factors, dtype=np.float64))
