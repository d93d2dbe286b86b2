"""Cluster of a command, and whether a live Slurm stands behind it.

A history that was only loaded from files has no Slurm here: its own end is the present of every question about it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.config import Settings, SlurmSettings
from helios.errors import HeliosError, NoSuchCluster
from helios.metrics.node_usage import NEVER_S
from helios.metrics.window import FEWEST_JOBS, RecordWindow, complete_window
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
"""Histories of which the complete part is kept."""
PART = "complete part"
"""Name under which the warehouse keeps it."""
_complete: dict[tuple[str, str, str], tuple[datetime, datetime] | None] = {}


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

    None without any job. A record too short to tell its usual rate of submissions lasts until the last end of its jobs.
    The part is kept with the history when a file is loaded. Else every job is looked at, so a process keeps what it
    found until something is loaded.
    """
    loaded, asked = _edition(warehouse, cluster)
    if (warehouse.url, cluster, loaded) not in _complete:
        text = warehouse.remembered(cluster, PART)
        kept = json.loads(text) if text else {}
        if kept.get("of") == loaded:
            found = [datetime.fromisoformat(moment) for moment in kept["part"]]
            part = (found[0], found[1]) if found else None
        else:
            part = _find_part(warehouse, cluster, asked)
        if len(_complete) >= MOST_HISTORIES:
            _complete.clear()
        _complete[warehouse.url, cluster, loaded] = part
    return _complete[warehouse.url, cluster, loaded]


def keep_complete_part(warehouse: Warehouse, cluster: str) -> None:
    """Keep the complete part of a history with it, after a file was loaded.

    Not where the accounting is read, since that changes all the time and questions about it have other windows.
    """
    loaded, asked = _edition(warehouse, cluster)
    if asked is None:
        part = _find_part(warehouse, cluster, asked)
        text = json.dumps({"of": loaded, "part": [moment.isoformat() for moment in part or ()]})
        warehouse.remember(cluster, PART, text, at=datetime.now(UTC))


def _edition(warehouse: Warehouse, cluster: str) -> tuple[str, tuple[datetime, datetime] | None]:
    """Return a text that changes with the history, and the window of its accounting."""
    asked, clusters = live_window(warehouse, cluster), warehouse.clusters()
    _, zone, *span = clusters[clusters["name"] == cluster].to_numpy()[0]
    return json.dumps([warehouse.edition(cluster)[0], zone, *map(str, [*span, *(asked or ())])]), asked


def _find_part(
    warehouse: Warehouse, cluster: str, asked: tuple[datetime, datetime] | None
) -> tuple[datetime, datetime] | None:
    submitted_s, ended_s = warehouse.job_times(cluster)
    record = complete_window(submitted_s, ended_s, asked=asked)
    return None if record is None else (record.begin, _end_of(record, ended_s))


def _end_of(record: RecordWindow, ended_s: NDArray[np.int64]) -> datetime:
    """Return the end of the complete part of a record."""
    is_short = len(ended_s) < FEWEST_JOBS or record.end - record.begin < timedelta(days=1)
    known_s = ended_s[ended_s < NEVER_S]
    if record.source == "asked" or not is_short or not len(known_s):
        return record.end
    # An end long after all submissions is a clock that was wrong.
    known = datetime.fromtimestamp(int(known_s.max()) + 1, UTC)
    return min(max(record.end, known), record.end + LAST_WEEKS)
