"""Cluster of a command, and whether a live Slurm stands behind it.

A history that was only loaded from files has no Slurm here: its own end is the present of every question about it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from helios.config import Settings, SlurmSettings
from helios.errors import HeliosError, NoSuchCluster
from helios.metrics.window import FEWEST_JOBS, RECORD_COLUMNS, RecordWindow, record_window
from helios.slurm.accounting import Accounting
from helios.slurm.shell import Shell
from helios.warehouse import Warehouse
from helios.warehouse.revisions import LIVE_SOURCE

NOT_LIVE = "history, not the live cluster"
"""What everything that is said of a history is marked with."""
READ_LATELY = timedelta(days=1)
"""Age of the last reading up to which another machine seems to read a cluster that has no Slurm here."""
LAST_WEEKS = timedelta(weeks=4)
"""Length of a history's window without a start."""
MOST_HISTORIES = 16
"""Histories of which the last weeks are kept."""
_complete: dict[tuple[Any, ...], tuple[datetime, datetime] | None] = {}


def choose_cluster(warehouse: Warehouse, name: str | None) -> pd.Series:
    """Return the row of ``Warehouse.clusters`` for a cluster name.

    None stands for the only cluster.

    Raises
    ------
    NoSuchCluster
        No cluster of that name is loaded, or none was named and several are.
    """
    clusters = warehouse.clusters()
    if clusters.empty:
        raise NoSuchCluster(
            "The warehouse holds no history yet.",
            hint="Read it from this Slurm: helios trace sync. Or load a file: helios trace load FILE",
        )
    known = ", ".join(clusters["name"])
    if name is None and (has_jobs := clusters["first_submitted_at"].notna()).any():
        clusters = clusters[has_jobs]  # the others have refused rows only
    if name is None and len(clusters) > 1:
        raise NoSuchCluster(f"The warehouse holds several clusters: {known}.", hint="Choose one: --cluster NAME")
    chosen = clusters if name is None else clusters[clusters["name"] == name]
    if chosen.empty:
        raise NoSuchCluster(f"No cluster {name!r} is loaded.", hint=f"Loaded are: {known}")
    return chosen.iloc[0]


def live_window(warehouse: Warehouse, cluster: str) -> tuple[datetime, datetime] | None:
    """Return the last window of live accounting read without a gap."""
    coverage = warehouse.coverage(cluster)
    read = coverage[coverage["source"] == LIVE_SOURCE]
    if read.empty:
        return None
    return read["started_at"].iloc[-1].to_pydatetime(), read["ended_at"].iloc[-1].to_pydatetime()


def is_live(warehouse: Warehouse, cluster: str, *, slurm: SlurmSettings, now: datetime) -> bool:
    """Return whether a live Slurm stands behind a loaded cluster.

    A reading of its accounting shows it, unless that is old and this machine has no command of Slurm: one that does not
    answer is live all the same. A cluster that was never read is live where Slurm's commands here reach it.
    """
    shell = Shell(folder=slurm.commands, timeout_s=slurm.timeout_s)
    read = live_window(warehouse, cluster)
    try:
        shell.find("scontrol")
        return read is not None or Accounting(shell=shell).cluster_name() == cluster
    except HeliosError:
        return read is not None and now - read[1] < READ_LATELY


def history_alone(settings: Settings, cluster: str | None, *, now: datetime) -> str | None:
    """Return the name of a loaded cluster without a live Slurm.

    None for a live one, where none is named and Slurm is set up here, and where nothing of that name is loaded.

    Parameters
    ----------
    cluster : str, optional
        By default that of the settings, else the only one.

    Raises
    ------
    NoSuchCluster
        Several are loaded, none is named, and no Slurm is set up here to say which is meant.
    """
    cluster = cluster or settings.database.cluster or None
    if not Warehouse.exists(settings.database.url) or (cluster is None and has_slurm(settings.slurm)):
        return None
    with Warehouse.open(settings.database.url) as warehouse:
        try:
            row = choose_cluster(warehouse, cluster)
        except NoSuchCluster:
            if cluster or warehouse.clusters().empty:
                return None
            raise
        name = str(row["name"])
        has_jobs = pd.notna(row["first_submitted_at"])
        return name if has_jobs and not is_live(warehouse, name, slurm=settings.slurm, now=now) else None


def has_slurm(slurm: SlurmSettings) -> bool:
    """Return whether Slurm's commands are here and find a configuration."""
    try:
        Shell(folder=slurm.commands, timeout_s=slurm.timeout_s).run("scontrol", "--version")
    except HeliosError:
        return False
    return True


def last_weeks(warehouse: Warehouse, cluster: str) -> tuple[datetime, datetime] | None:
    """Return the last weeks of the complete part of a history.

    None without any job.
    """
    part = complete_part(warehouse, cluster)
    return None if part is None else (max(part[0], part[1] - LAST_WEEKS), part[1])


def complete_part(warehouse: Warehouse, cluster: str) -> tuple[datetime, datetime] | None:
    """Return the part of a history in which its record is complete.

    None without any job. A record too short to tell its usual rate of submissions lasts until the last thing that is
    known of its jobs. It looks at every job, so a process keeps what it found until something is loaded.
    """
    edition, asked, clusters = warehouse.edition(cluster)[0], live_window(warehouse, cluster), warehouse.clusters()
    loaded = (warehouse.url, edition, asked, *clusters[clusters["name"] == cluster].to_numpy()[0])
    if loaded not in _complete:
        jobs = warehouse.jobs(cluster, columns=list(RECORD_COLUMNS))
        record = record_window(jobs, asked=asked)
        if len(_complete) >= MOST_HISTORIES:
            _complete.clear()
        _complete[loaded] = None if record is None else (record.begin, _end_of(record, jobs))
    return _complete[loaded]


def _end_of(record: RecordWindow, jobs: pd.DataFrame) -> datetime:
    """Return the end of the complete part of a record."""
    is_short = len(jobs) < FEWEST_JOBS or record.end - record.begin < timedelta(days=1)
    last = jobs[["started_at", "ended_at"]].max().max()
    if record.source == "asked" or not is_short or pd.isna(last):
        return record.end
    # An end long after all submissions is a clock that was wrong.
    known: datetime = last.to_pydatetime() + timedelta(seconds=1)
    return min(max(record.end, known), record.end + LAST_WEEKS)
