"""Loading of trace files into the warehouse, and reading of job history."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from helios.app.clusters import choose_cluster, keep_complete_part, live_window
from helios.errors import NoSuchCluster, UsageError
from helios.ingest import RecordedMachine, TraceFile, TraceFormat, open_trace, read_map
from helios.metrics.capacity import ClusterCapacity
from helios.metrics.window import RecordWindow
from helios.model import JOBS, Batch, UntrackedGpus, in_submission_order, unknown_gpus_note
from helios.model.gpu_parts import SiteGpus
from helios.ports import Progress, no_progress
from helios.private_files import require_cluster_name
from helios.units import in_number

if TYPE_CHECKING:
    from helios.warehouse import LoadReport, Warehouse

MACHINE = "machine"
"""Name under which the warehouse keeps the machine of a loaded file's header."""
GPUS = "gpus"
"""Name under which it keeps whether rows of a cluster name GPUs."""
NAMED, UNNAMED, FROM_NODES = "named", "unnamed", "from nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedHistory:
    """Jobs of one cluster in submission order, with notes.

    Attributes
    ----------
    cluster : str
        The cluster's name.
    jobs : DataFrame
        Columns of ``JOBS``.
    timezone : str
        Zone of the cluster's local time.
    notes : tuple of str
        Messages for a person from the reading.
    machine : RecordedMachine, optional
        The cluster's nodes, where a file describes them.
    nodes : DataFrame, optional
        The cluster's nodes, columns of ``NODES``, where the warehouse knows them.
    site : SiteGpus, optional
        Nodes of a site's file, by which GPUs were counted.
    covered : pair of datetime, optional
        Window of the live accounting that was read.
    record : RecordWindow, optional
        Window in which the record is complete, where it is known before.
    window : pair of datetime
        Window that a command takes, each None where it has no bound.
    capacity : ClusterCapacity, optional
        Size of the cluster that a command takes.
    trained : dict
        Models of the jobs that had ended by a moment, by moment and seed, so that each is trained once.
    """

    cluster: str
    jobs: pd.DataFrame
    timezone: str
    notes: tuple[str, ...] = ()
    machine: RecordedMachine | None = None
    nodes: pd.DataFrame | None = field(default=None, compare=False, repr=False)
    site: SiteGpus | None = None
    covered: tuple[datetime, datetime] | None = None
    record: RecordWindow | None = None
    window: tuple[datetime | None, datetime | None] = (None, None)
    capacity: ClusterCapacity | None = None
    trained: dict[tuple[datetime, int], Any] = field(default_factory=dict, compare=False, repr=False)


def ingest(
    path: Path,
    *,
    url: str,
    timezone: str | None = None,
    trace_format: TraceFormat | None = None,
    columns: str | None = None,
    cluster: str | None = None,
    shown: str | None = None,
    site: SiteGpus | None = None,
    progress: Progress = no_progress,
) -> LoadReport:
    """Load a trace file into the warehouse, all of it or nothing.

    Parameters
    ----------
    path : Path
        The file, compressed or plain.
    url : str
        The warehouse.
    timezone : str, optional
        The zone for times that carry none. Where it is not given, UTC is assumed and a note says so.
    trace_format : TraceFormat, optional
        Recognised from the content where not given.
    columns : str, optional
        A map file, or the name of a map of Helios, that says how the file's columns are read.
    cluster : str, optional
        Name to load under; else the cluster that the file names, else the file's own name.
    shown : str, optional
        What the file is called in messages and records; else its path.
    site : SiteGpus, optional
        GPUs of the cluster's nodes, by which parts of a GPU, and GPUs that no row names, are counted.

    Raises
    ------
    HeliosError
        The file or the warehouse cannot be read, or the file was loaded with another zone; nothing was written.
    """
    from helios.warehouse import Warehouse  # noqa: PLC0415 - SQLAlchemy; a history read from a file needs none

    trace = _opened(path, trace_format, columns, timezone, site=site)
    name = _loaded_name(cluster, trace, path)
    with Warehouse.open(url) as warehouse:
        trace = trace.with_tracked_gpus(tracks_gpus(warehouse, name))
        report = warehouse.load(
            _reporting(trace, f"Loading {shown or path.name}", progress, cluster=name),
            cluster=name,
            path=shown or str(path),
            sha256=trace.sha256,
            format=trace.format,
            timezone=trace.timezone,
        )
        if not report.already_loaded:
            remember_gpus(warehouse, name, trace)
            keep_complete_part(warehouse, name)
        if trace.machine:
            warehouse.remember(report.cluster, MACHINE, json.dumps(trace.machine), at=datetime.now(UTC))
        known = warehouse.timezone(report.cluster)
    if report.already_loaded and timezone and known != timezone:
        raise UsageError(
            f"{path.name} was loaded into {report.cluster} before, as a file of the zone {known}, and stays so.",
            hint="Load it under another name: --cluster NAME",
        )
    return report


def tracks_gpus(warehouse: Warehouse, cluster: str) -> bool | None:
    """Return True where rows of a loaded cluster name GPUs.

    Then a row without holds none. None where no row did so far.
    """
    try:
        known = warehouse.remembered(cluster, GPUS) or (NAMED if warehouse.names_gpus(cluster) else None)
    except NoSuchCluster:
        return None
    return True if known == NAMED else None


def remember_gpus(warehouse: Warehouse, cluster: str, trace: TraceFile) -> None:
    """Remember whether rows of a loaded file name GPUs.

    The first that do settle what was loaded before: a job of an earlier file that names none held none. Where the GPUs
    of earlier jobs were found from the nodes, they stay as they are.
    """
    before = warehouse.remembered(cluster, GPUS)
    now = NAMED if trace.names_gpus else before or (FROM_NODES if trace.site else UNNAMED)
    if now == NAMED and before == UNNAMED:
        warehouse.settle_unnamed_gpus(cluster)
    if now != before:
        warehouse.remember(cluster, GPUS, now, at=datetime.now(UTC))


def ingest_stdin(*, cluster: str, progress: Progress = no_progress, **options: Any) -> LoadReport:
    """Load the trace on standard input, as ``ingest`` loads a file.

    It is kept in a temporary file meanwhile, since a history is read twice.
    """
    with TemporaryDirectory(prefix="helios-load-") as folder:
        path = Path(folder) / "standard-input"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return ingest(path, cluster=cluster, progress=progress, shown="standard input", **options)


def read_file(
    path: Path,
    *,
    timezone: str | None = None,
    trace_format: TraceFormat | None = None,
    columns: str | None = None,
    cluster: str | None = None,
    site: SiteGpus | None = None,
    progress: Progress = no_progress,
) -> LoadedHistory:
    """Read a trace file without a warehouse.

    Parameters are as in :func:`ingest`.
    """
    trace = _opened(path, trace_format, columns, timezone, site=site)
    name = _loaded_name(cluster, trace, path)
    batches = list(_reporting(trace, f"Reading {path.name}", progress, cluster=name))
    jobs = pd.concat([batch.jobs for batch in batches], ignore_index=True)
    notes = [note for batch in batches for note in batch.notes]
    if rejects := sum(len(batch.rejects) for batch in batches):
        notes.append(
            in_number(rejects, f"rows of {path.name} make no sense and were left out; helios trace load names them")
        )
    notes.append(unknown_gpus_note(jobs))
    return LoadedHistory(
        cluster=name,
        jobs=in_submission_order(JOBS.conform(jobs)),
        timezone=trace.timezone,
        notes=tuple(dict.fromkeys(filter(None, notes))),
        machine=trace.machine,
        site=trace.site,
    )


def load_history(
    *,
    url: str,
    cluster: str | None,
    columns: Sequence[str] | None = None,
) -> LoadedHistory:
    """Read the jobs of one cluster from the warehouse.

    Parameters
    ----------
    columns : sequence of str, optional
        The columns of ``JOBS`` to read; None for all.

    Raises
    ------
    NoSuchCluster
        No cluster of that name is loaded, or none was named and several are.
    """
    from helios.warehouse import Warehouse  # noqa: PLC0415 - as above

    with Warehouse.open(url) as warehouse:
        chosen = choose_cluster(warehouse, cluster)
        name = str(chosen["name"])
        text = warehouse.remembered(name, MACHINE)
        machine = RecordedMachine(*json.loads(text)) if text else None
        jobs, nodes = warehouse.jobs(name, columns=columns), warehouse.nodes(name)
        return LoadedHistory(
            cluster=name,
            jobs=jobs,
            timezone=str(chosen["timezone"] or "UTC"),
            notes=tuple(filter(None, (UntrackedGpus().add(jobs).note(), unknown_gpus_note(jobs)))),
            machine=machine,
            nodes=None if nodes.empty else nodes,
            covered=live_window(warehouse, name),
        )


def misread_rows(warehouse: Warehouse, cluster: str) -> tuple[list[str], str]:
    """Return what an older Helios read wrongly, and the command that mends it.

    Both are empty where there is nothing.
    """
    from helios.warehouse.revisions import LIVE_SOURCE  # noqa: PLC0415 - as above

    found = warehouse.old_rows(cluster)
    if not found:
        return [], ""
    messages = [in_number(it.jobs, f"jobs {it.kind}") + f", such as {it.example}" for it in found]
    since = min(it.first_at for it in found)
    if (warehouse.coverage(cluster)["source"] == LIVE_SOURCE).any():
        return messages, f"Read them anew: helios trace sync --again {since:%Y-%m-%d}"
    loads = warehouse.loads(cluster)
    files = " ".join(shlex.quote(path) for path in dict.fromkeys(loads["path"]))
    zone = warehouse.timezone(cluster)
    options = f"--cluster {shlex.quote(cluster)}" + (f" --timezone {zone}" if zone else "")
    return messages, f"Load the files again: helios trace load {files} {options}"


def cluster_name_from(path: Path) -> str:
    """Return the cluster name implied by a file's name.

    Example: ``venus`` for ``venus.csv.gz``.
    """
    return path.name.split(".")[0] or path.name


def _opened(
    path: Path,
    trace_format: TraceFormat | None,
    columns: str | None,
    timezone: str | None,
    *,
    site: SiteGpus | None,
) -> TraceFile:
    if columns and trace_format:
        raise UsageError("--columns says how a file is read, and so does --format.", hint="Leave --format out.")
    found = read_map(columns) if columns else None
    return open_trace(path, format=trace_format, timezone=timezone, columns=found, site=site)


def _loaded_name(given: str | None, trace: TraceFile, path: Path) -> str:
    """Return the cluster's given name, else the one that the file implies."""
    return require_cluster_name(trace.cluster or cluster_name_from(path) if given is None else given)


def _reporting(trace: TraceFile, step: str, progress: Progress, *, cluster: str) -> Iterator[Batch]:
    progress(step, 0.0)
    for batch in trace.read(cluster=cluster):
        yield batch
        progress(step, min(1.0, batch.bytes_read / max(1, trace.size_bytes)))
    progress(step, 1.0)
