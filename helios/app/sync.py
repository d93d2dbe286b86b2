"""Reading of a cluster's accounting into the warehouse, in bounded time windows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name

import pandas as pd

from helios.app.history import remember_gpus, tracks_gpus
from helios.errors import HeliosError, NoSuchCluster
from helios.ingest import TraceFormat, open_trace
from helios.model import UNTRACKED
from helios.model.gpu_parts import SiteGpus
from helios.ports import Progress, no_progress
from helios.warehouse import ColumnChange, LoadReport, Warehouse
from helios.warehouse.revisions import LIVE_SOURCE

JOBS, NODE_EVENTS = LIVE_SOURCE, "node_events"
FIRST_READING = timedelta(days=30)
USE_READERS = ("helios.job_use.sync:read_windows",)
"""Functions of a wing that read what jobs used, given a ``UseReading``, and return lines of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccounting:
    """How a live cluster accounts for GPUs.

    Attributes
    ----------
    site : SiteGpus, optional
        GPUs of its nodes.
    is_tracked : bool, optional
        Whether it accounts for all GPUs, so that a job whose lists name none held none. None where it is not known.
    """

    site: SiteGpus | None = None
    is_tracked: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingSource:
    """Functions that read a live accounting database.

    Attributes
    ----------
    jobs : callable
        Given start, end and a path, write every job that was in any state during [start, end) to the path, as ``sacct``
        prints it. Raise ClusterUnavailable, and leave no partial file.
    node_events : callable
        Given start and end, return the node events of that time, columns of ``NODE_EVENTS``.
    gpus : callable
        Return how GPUs are counted now. By default it is known from the rows alone.
    use : callable, optional
        As ``jobs``, with what the jobs used, and where the last argument is true their steps.
    """

    jobs: Callable[[datetime, datetime, Path], None]
    node_events: Callable[[datetime, datetime], pd.DataFrame]
    gpus: Callable[[], GpuAccounting] = GpuAccounting
    use: Callable[[datetime, datetime, Path, bool], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UseReading:
    """What a reader of ``USE_READERS`` is called with.

    Attributes
    ----------
    sources : tuple of str
        Sources of what jobs used that a site reads; a reader leaves those of others alone.
    accounting, url, cluster, now, window, overlap, again, progress
        As in :func:`sync_history`.
    begin : datetime
        Where the history begins.
    """

    sources: tuple[str, ...]
    accounting: AccountingSource
    url: str
    cluster: str
    now: datetime
    begin: datetime
    window: timedelta
    overlap: timedelta
    again: bool
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """Result of reading the accounting.

    Attributes
    ----------
    intervals : int
        Windows that were read.
    jobs_new, jobs_updated, rejected, node_events : int
        What they held.
    until : datetime
        The history is now known up to here.
    notes : tuple of str
        Messages for a person.
    changes : dict of str to ColumnChange
        What changed in stored jobs, by column, where they were to be read anew.
    """

    intervals: int
    jobs_new: int
    jobs_updated: int
    rejected: int
    node_events: int
    until: datetime
    notes: tuple[str, ...] = ()
    changes: dict[str, ColumnChange] = field(default_factory=dict)

    def line(self) -> str:
        """Return the result in one line of text."""
        found = f"{self.jobs_new:,} new jobs, {self.jobs_updated:,} updated, {self.node_events:,} node events"
        refused = f", {self.rejected:,} rows make no sense (helios trace describe)" if self.rejected else ""
        changed = "".join(f"; {name} of {it.jobs:,}, such as {it.example}" for name, it in self.changes.items())
        notes_text = "".join(f"; {note}" for note in self.notes)
        return f"{found}{refused}, known until {self.until:%Y-%m-%d %H:%M:%S} UTC{changed}{notes_text}"


def sync_history(
    accounting: AccountingSource,
    *,
    url: str,
    cluster: str,
    now: datetime,
    start: datetime | None,
    window: timedelta,
    overlap: timedelta,
    again: bool = False,
    job_use: tuple[str, ...] = (),
    progress: Progress = no_progress,
) -> SyncResult:
    """Read the missing parts of a cluster's history.

    The last ``overlap`` is read again, so that records which reach Slurm's database late (it was down, a job was
    requeued) are found. A window is recorded as read only after it is stored, and storing it twice changes nothing.
    After an interruption the next call therefore reads the rest.

    Parameters
    ----------
    start : datetime, optional
        Where the history begins. None for where it began before, at first 30 days before ``now``.
    window : timedelta
        Longest window of one query. Unbounded queries have brought accounting databases down.
    again : bool
        Whether to read everything since ``start`` anew, also what was read before and is the same now.
    job_use : tuple of str
        Sources by which what jobs used is read, too.

    Raises
    ------
    ClusterUnavailable
        The accounting did not answer; the windows read so far are kept.
    WarehouseUnavailable
        The warehouse failed; likewise.
    """
    with Warehouse.open(url) as warehouse:
        try:
            coverage = warehouse.coverage(cluster)
        except NoSuchCluster:
            coverage = None  # the first reading creates it
        covered = [] if again else read_periods(coverage, JOBS)
        begin = start or (covered[0][0] if covered else now - FIRST_READING)
        intervals = list(missing(covered, begin=begin, now=now, window=window, overlap=overlap))
        gpus = accounting.gpus() if intervals else GpuAccounting()
        found = [0, 0, 0]
        notes: dict[str, None] = {}
        changes: dict[str, ColumnChange] = {}
        for number, (first, last) in enumerate(intervals):
            progress("Reading the accounting", number / len(intervals))
            try:
                report = _load(warehouse, accounting, cluster, first, last, gpus=gpus, now=now, again=again)
            except HeliosError as reason:
                if again:
                    reason.hint += f" Before {first:%Y-%m-%d %H:%M} it was read anew; go on from there."
                raise
            if report is not None and not report.already_loaded:
                notes.update(dict.fromkeys(report.notes))
                loaded = (report.jobs_new, report.jobs_updated, sum(report.rejects.values()))
                found = [have + more for have, more in zip(found, loaded, strict=True)]
                for name, change in report.changes.items():
                    changes[name] = changes[name] + change if name in changes else change
            warehouse.add_coverage(cluster, source=JOBS, started_at=first, ended_at=last, read_at=now)
        if again:
            warehouse.note_read_again(cluster, begin)
        # A window may hold jobs without GPUs only.
        if any(UNTRACKED in note for note in notes) and tracks_gpus(warehouse, cluster):
            notes = {note: None for note in notes if UNTRACKED not in note}
        events = 0
        for first, last in missing(
            read_periods(coverage, NODE_EVENTS), begin=begin, now=now, window=window, overlap=overlap
        ):
            found_events = accounting.node_events(first, last)
            if len(found_events):
                warehouse.add_node_events(cluster, found_events)
            events += len(found_events)
            warehouse.add_coverage(cluster, source=NODE_EVENTS, started_at=first, ended_at=last, read_at=now)
        progress("Reading the accounting", 1.0)
    use_lines = _read_use(
        UseReading(
            sources=job_use,
            accounting=accounting,
            url=url,
            cluster=cluster,
            now=now,
            begin=begin,
            window=window,
            overlap=overlap,
            again=again,
            progress=progress,
        )
    )
    warnings = []
    # A reading that finds nothing for weeks and reports success is a common silent failure.
    if coverage is None and not any(found) and now - begin >= timedelta(days=1):
        cause = "is this the right cluster, may you see it?"
        warnings.append(f"the accounting holds not one job since {begin:%Y-%m-%d}: {cause}")
    return SyncResult(
        intervals=len(intervals),
        jobs_new=found[0],
        jobs_updated=found[1],
        rejected=found[2],
        node_events=events,
        until=now,
        notes=(*warnings, *notes, *use_lines),
        changes=changes,
    )


def _read_use(reading: UseReading) -> list[str]:
    """Return what the readers of the chosen sources read."""
    lines = list[str]()
    for place in USE_READERS if reading.sources else ():
        lines += resolve_name(place)(reading)
    return lines


def missing(
    covered: list[tuple[datetime, datetime]], *, begin: datetime, now: datetime, window: timedelta, overlap: timedelta
) -> Iterator[tuple[datetime, datetime]]:
    """Yield the time windows to read, oldest first.

    They cover every gap since ``begin``, and the last ``overlap`` before the end of what was read.

    Parameters
    ----------
    covered : list of (start, end)
        What was read already, ascending and disjoint.
    """
    watermark = min(covered[-1][1], now) if covered else begin
    trusted = max(watermark - overlap, begin)
    at = begin
    for first, last in [*covered, (now, now)]:
        gap_ends = min(first, now)
        starts = at
        while starts < gap_ends:
            ends = min(starts + window, gap_ends)
            yield starts, ends
            starts = ends
        at = max(at, min(last, trusted))


def read_periods(coverage: pd.DataFrame | None, source: str) -> list[tuple[datetime, datetime]]:
    """Return the periods of a source that were read, ascending."""
    if coverage is None:
        return []
    rows = coverage[coverage["source"] == source]
    starts, ends = (rows[name].dt.to_pydatetime() for name in ("started_at", "ended_at"))
    return list(zip(starts, ends, strict=True))


def _load(
    warehouse: Warehouse,
    accounting: AccountingSource,
    cluster: str,
    first: datetime,
    last: datetime,
    *,
    gpus: GpuAccounting,
    now: datetime,
    again: bool,
) -> LoadReport | None:
    """Read and store one window, and return None where it has no jobs."""
    with tempfile.TemporaryDirectory(prefix="helios-") as folder:
        path = Path(folder) / "sacct.txt"
        accounting.jobs(first, last, path)
        with path.open("rb") as lines:
            next(lines, None)
            if next(lines, None) is None:  # there is only the header
                return None
        tracked = tracks_gpus(warehouse, cluster) if gpus.is_tracked is None else gpus.is_tracked
        trace = open_trace(path, format=TraceFormat.SACCT, timezone="UTC", site=gpus.site, tracks_gpus=tracked)
        report = warehouse.load(
            trace.read(cluster=cluster, as_of=now),  # sacct tells of now, whatever the window
            cluster=cluster,
            path=f"sacct {first:%Y-%m-%dT%H:%M:%S}Z to {last:%Y-%m-%dT%H:%M:%S}Z",
            sha256=trace.sha256,
            format=trace.format,
            timezone="UTC",
            live=True,
            again=again,
        )
        if not report.already_loaded and gpus.is_tracked is None:
            remember_gpus(warehouse, cluster, trace)
        return report
