"""The cluster's own history, read from its accounting in bounded stretches until nothing is missing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd

from helios.errors import NoSuchCluster
from helios.ingest import TraceFormat, open_trace
from helios.ports import Progress, no_progress
from helios.warehouse import Warehouse
from helios.warehouse.revising import LIVE_SOURCE

JOBS, NODE_EVENTS = LIVE_SOURCE, "node_events"
FIRST_READING = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingSource:
    """The doors of a live accounting database.

    Attributes
    ----------
    jobs : callable
        Given start, end and a path: write there, as ``sacct`` prints it, every job that was in any state during
        [start, end); raise ClusterUnavailable and leave nothing half written.
    node_events : callable
        Given start and end: return the node events of that time, columns of ``NODE_EVENTS``.
    """

    jobs: Callable[[datetime, datetime, Path], None]
    node_events: Callable[[datetime, datetime], pd.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """What a reading of the accounting found.

    Attributes
    ----------
    stretches : int
        Windows asked for.
    jobs_new, jobs_updated, rejected, node_events : int
        What they held.
    until : datetime
        The history is now known up to here.
    notes : tuple of str
        What a person should be told.
    """

    intervals: int
    jobs_new: int
    jobs_updated: int
    rejected: int
    node_events: int
    until: datetime
    notes: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the reading in one line, for a person."""
        found = f"{self.jobs_new:,} new jobs, {self.jobs_updated:,} updated, {self.node_events:,} node events"
        refused = f", {self.rejected:,} rows make no sense (helios trace rejects)" if self.rejected else ""
        said = "".join(f"; {note}" for note in self.notes)
        return f"{found}{refused}, known until {self.until:%Y-%m-%d %H:%M:%S} UTC{said}"


def sync_history(
    accounting: AccountingSource,
    *,
    url: str,
    cluster: str,
    now: datetime,
    start: datetime | None,
    window: timedelta,
    overlap: timedelta,
    progress: Progress = no_progress,
) -> SyncResult:
    """Read what is missing of a cluster's history, and the last ``overlap`` of it again.

    A stretch is noted as read only after it is stored, and storing it twice changes nothing: interrupted anywhere, the
    next reading does what was left. What Slurm's database learns late (it was down, a job was requeued) is found as
    long as it is within ``overlap``.

    Parameters
    ----------
    start : datetime, optional
        Where the history begins; None: where it began before, at first 30 days before ``now``.
    window : timedelta
        Longest stretch asked for at once: an unbounded query has stopped accounting databases.

    Raises
    ------
    ClusterUnavailable
        The accounting did not answer; the stretches read so far are kept.
    WarehouseUnavailable
        The warehouse failed; likewise.
    """
    with Warehouse.open(url) as warehouse:
        coverage = _coverage(warehouse, cluster)
        begin = start or _began(coverage, now - FIRST_READING)
        intervals = list(missing(_of(coverage, JOBS), begin=begin, now=now, window=window, overlap=overlap))
        found = [0, 0, 0]
        notes: dict[str, None] = {}
        for number, (first, last) in enumerate(intervals):
            progress("Reading the accounting", number / len(intervals))
            loaded, told = _load(warehouse, accounting, cluster, first, last)
            notes.update(dict.fromkeys(told))
            found = [have + more for have, more in zip(found, loaded, strict=True)]
            warehouse.cover(cluster, source=JOBS, started_at=first, ended_at=last, read_at=now)
        events = 0
        for first, last in missing(_of(coverage, NODE_EVENTS), begin=begin, now=now, window=window, overlap=overlap):
            events += _load_events(warehouse, accounting, cluster, first, last)
            warehouse.cover(cluster, source=NODE_EVENTS, started_at=first, ended_at=last, read_at=now)
        progress("Reading the accounting", 1.0)
    return SyncResult(
        intervals=len(intervals),
        jobs_new=found[0],
        jobs_updated=found[1],
        rejected=found[2],
        node_events=events,
        until=now,
        notes=(*_suspicions(found, begin, now, coverage), *notes),
    )


def missing(
    covered: list[tuple[datetime, datetime]], *, begin: datetime, now: datetime, window: timedelta, overlap: timedelta
) -> Iterator[tuple[datetime, datetime]]:
    """Yield the stretches to ask for, oldest first: every gap since ``begin``, and the last read ``overlap`` again.

    Parameters
    ----------
    covered : list of (start, end)
        What was read already; ascending, apart from each other.
    """
    watermark = min(covered[-1][1], now) if covered else begin
    trusted = max(watermark - overlap, begin)
    at = begin
    for first, last in [*covered, (now, now)]:
        gap_ends = min(first, now)
        if at < gap_ends:
            yield from _split(at, gap_ends, window)
        at = max(at, min(last, trusted))


def _split(first: datetime, last: datetime, window: timedelta) -> Iterator[tuple[datetime, datetime]]:
    while first < last:
        end = min(first + window, last)
        yield first, end
        first = end


def read_until(warehouse: Warehouse, cluster: str) -> datetime | None:
    """Return the end of the last stretch that was read of the cluster's live history; None: it was never read."""
    covered = _of(_coverage(warehouse, cluster), JOBS)
    return covered[-1][1] if covered else None


def _coverage(warehouse: Warehouse, cluster: str) -> pd.DataFrame | None:
    try:
        return warehouse.coverage(cluster)
    except NoSuchCluster:
        return None  # its first reading makes it


def _of(coverage: pd.DataFrame | None, source: str) -> list[tuple[datetime, datetime]]:
    if coverage is None:
        return []
    rows = coverage[coverage["source"] == source]
    starts, ends = (rows[name].dt.to_pydatetime() for name in ("started_at", "ended_at"))
    return list(zip(starts, ends, strict=True))


def _began(coverage: pd.DataFrame | None, otherwise: datetime) -> datetime:
    covered = _of(coverage, JOBS)
    return covered[0][0] if covered else otherwise


def _load(
    warehouse: Warehouse, accounting: AccountingSource, cluster: str, first: datetime, last: datetime
) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    with tempfile.TemporaryDirectory(prefix="helios-") as folder:
        path = Path(folder) / "sacct.txt"
        accounting.jobs(first, last, path)
        if not _has_rows(path):
            return (0, 0, 0), ()
        trace = open_trace(path, format=TraceFormat.SACCT, timezone="UTC")
        report = warehouse.load(
            trace.read(),
            cluster=cluster,
            path=f"sacct {first:%Y-%m-%dT%H:%M:%S}Z to {last:%Y-%m-%dT%H:%M:%S}Z",
            sha256=trace.sha256,
            format=trace.format.value,
            timezone="UTC",
            live=True,
        )
    if report.already_loaded:
        return (0, 0, 0), ()
    return (report.jobs_new, report.jobs_updated, sum(report.rejects.values())), report.notes


def _has_rows(path: Path) -> bool:
    with path.open("rb") as lines:
        next(lines, None)
        return next(lines, None) is not None


def _load_events(
    warehouse: Warehouse, accounting: AccountingSource, cluster: str, first: datetime, last: datetime
) -> int:
    events = accounting.node_events(first, last)
    if len(events):
        warehouse.add_node_events(cluster, events)
    return len(events)


def _suspicions(found: list[int], begin: datetime, now: datetime, coverage: pd.DataFrame | None) -> tuple[str, ...]:
    # The field's commonest silent failure: an ingest that read nothing for weeks and said it was well.
    if coverage is None and not any(found) and now - begin >= timedelta(days=1):
        return (f"the accounting holds not one job since {begin:%Y-%m-%d}: is this the right cluster, may you see it?",)
    return ()
