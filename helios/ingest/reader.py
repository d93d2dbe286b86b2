"""History files as sources of batches.

A file's format is recognised by its content. The whole file is read before the first batch, to number the runs of
requeued jobs. Its translated rows are kept meanwhile; a file that is too large for that is read a second time.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.choices import TraceFormat
from helios.errors import FormatUnknown, NothingUnderstood, UsageError
from helios.ingest import alibaba, helios_csv, mapped, parquet, philly, sacct, sacct_json, swf
from helios.ingest.column_map import ColumnMap
from helios.ingest.contradictions import settle, settle_gpus
from helios.ingest.job_rows import FileReading, JobRows, Layout, RecordedMachine
from helios.ingest.lines import file_sha256, file_size, head
from helios.ingest.parse import Reason, TimeParser, check_jobs
from helios.ingest.requeued import Runs
from helios.model import Batch, UntrackedGpus
from helios.model.gpu_parts import SiteGpus
from helios.units import in_number

# To add a format: write a module with a ``LAYOUT``, and add a member of ``TraceFormat`` and a line below.
# In the order in which they are tried: AcmeTrace has all columns of Helios, and more.
LAYOUTS: dict[TraceFormat, Layout] = {
    TraceFormat.ACME: helios_csv.ACME_LAYOUT,
    TraceFormat.HELIOS: helios_csv.LAYOUT,
    TraceFormat.SACCT: sacct.LAYOUT,
    TraceFormat.SACCT_JSON: sacct_json.LAYOUT,
    TraceFormat.SWF: swf.LAYOUT,
    TraceFormat.PHILLY: philly.LAYOUT,
    TraceFormat.PAI: alibaba.LAYOUT,
    TraceFormat.PARQUET: parquet.LAYOUT,
}

_TAR_MAGIC_AT = 257

# Arrays of the text of more rows are so large that the C library returns their memory each time: twice the system time.
ROWS_PER_BATCH = 50_000
_FIRST_REASONS = 3
TIME_FORMS = (
    "Times are read as 2026-09-01T08:00:00, with a space for T, or as seconds since the epoch. Export again without "
    "SLURM_TIME_FORMAT; in a spreadsheet, keep the columns of times as text."
)
CONTRADICTING_KEYS = (
    "rows have Restarts, SLUID or DBIndex that contradict the submissions: Restarts is believed, a shared SLUID is not"
)
OTHER_CLUSTERS = "rows are of other clusters and were left out"


def sniff(path: Path, start: bytes) -> TraceFormat:
    """Return the format that the first bytes of a file show.

    The name of the file does not matter.

    Parameters
    ----------
    path : Path
        The file, for messages.
    start : bytes
        Its first decompressed bytes.

    Raises
    ------
    FormatUnknown
        They show none that Helios reads.
    """
    for name, layout in LAYOUTS.items():
        if layout.fits(start):
            return name
    if start[_TAR_MAGIC_AT:].startswith(b"ustar"):
        raise FormatUnknown(
            f"{path} is a tar archive of files.", hint=f"Unpack it (tar -xf {path.name}) and load the file inside."
        )
    for lacks, export in ((sacct.lacks, sacct.EXPORT), (sacct_json.lacks, sacct_json.EXPORT)):
        if said := lacks(start):
            raise FormatUnknown(f"{path} {said}", hint=export)
    raise FormatUnknown(
        f"The format of {path} is not recognised from its content.",
        hint=f"Say what it is: helios trace load {shlex.quote(str(path))} --cluster NAME --format FORMAT, one of "
        f"{', '.join(LAYOUTS)}; or --columns MAP for a table of any columns. Then use --cluster NAME.",
    )


def open_trace(
    path: Path,
    *,
    format: TraceFormat | None = None,
    timezone: str | None = None,
    columns: ColumnMap | None = None,
    site: SiteGpus | None = None,
    tracks_gpus: bool | None = None,
) -> TraceFile:
    """Open a history file, compressed or plain.

    Parameters
    ----------
    path : Path
        The file.
    format : TraceFormat, optional
        Its format; None means that it is recognised from the content.
    timezone : str, optional
        IANA zone of times that carry none. None means the home zone of the format, or UTC if it has none; a note then
        says which zone was assumed.
    columns : ColumnMap, optional
        Says which columns of the file are read as which. Its zone comes before ``timezone``.
    site : SiteGpus, optional
        GPUs of the cluster's nodes, by which parts of a GPU, and GPUs that no row names, are counted.
    tracks_gpus : bool, optional
        Whether the accounting names the GPUs of every job that holds some. None where only the rows tell it.

    Raises
    ------
    FormatUnknown
        The format is not recognised.
    FileUnreadable
        The file cannot be opened or decompressed.
    NothingUnderstood
        The file is empty.
    UsageError
        There is no such time zone, or a map does not say that of its times.
    """
    start = head(path)
    if not start.strip():
        raise NothingUnderstood(f"{path} is empty.", hint="Check the export that wrote it.")
    if columns is not None:
        return replace(_open_mapped(path, start, columns, timezone), site=site, tracks_gpus=tracks_gpus)
    chosen = sniff(path, start) if format is None else TraceFormat(format)
    layout = LAYOUTS[chosen]
    clock = TimeParser(timezone or layout.own_zone(path) or layout.zone)
    assumed = layout.zone if timezone is None and layout.local_times(start) else None
    return TraceFile(
        path=path,
        format=chosen,
        timezone=clock.zone,
        assumed_timezone=assumed,
        machine=layout.machine(start),
        site=site,
        tracks_gpus=tracks_gpus,
    )


def _open_mapped(path: Path, start: bytes, columns: ColumnMap, timezone: str | None) -> TraceFile:
    zone = columns.keys.timezone or timezone
    if zone is None and mapped.layout(columns, path).local_times(start):
        raise UsageError(
            f"{columns.name} does not say which zone the times of {path} have.",
            hint='Write timezone = "Europe/Berlin" at its top, or "UTC"; or give --timezone ZONE.',
        )
    zone = TimeParser(zone or "UTC").zone
    return TraceFile(path=path, format="columns", timezone=zone, assumed_timezone=None, columns=columns)


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """A history file as a ``Source``.

    Attributes
    ----------
    path : Path
        The file.
    format : str
        Its format, ``columns`` where a map says how it is read.
    timezone : str
        Zone of times that carry none.
    assumed_timezone : str or None
        That zone if nobody gave it. None if somebody did, or if the file's times have a UTC offset.
    machine : RecordedMachine, optional
        The cluster's nodes, where the file describes them.
    columns : ColumnMap, optional
        Says which columns of the file are read as which.
    site, tracks_gpus
        As in :func:`open_trace`.
    """

    path: Path
    format: str
    timezone: str
    assumed_timezone: str | None
    machine: RecordedMachine | None = None
    columns: ColumnMap | None = None
    site: SiteGpus | None = None
    tracks_gpus: bool | None = None

    @property
    def _layout(self) -> Layout:
        return mapped.layout(self.columns, self.path) if self.columns else LAYOUTS[TraceFormat(self.format)]

    @property
    def size_bytes(self) -> int:
        """Size of the stored (compressed) file, in bytes."""
        return file_size(self.path)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file's content, in hex digits.

        For a file with companions or a map, it is the SHA-256 of all their digests joined.
        """
        hashes = [self._layout.digest(self.path), *map(file_sha256, self._layout.companions(self.path))]
        hashes += [self.columns.sha256] if self.columns else []
        # Read with other counts of GPUs, the same content gives other jobs.
        hashes += [self.site.digest] if self.site else []
        return sha256("".join(hashes).encode()).hexdigest() if len(hashes) > 1 else hashes[0]

    @property
    def cluster(self) -> str | None:
        """Name of the cluster if the file names exactly one, else None.

        The first call reads the whole file.
        """
        return next(iter(self._runs.clusters)) if len(self._runs.clusters) == 1 else None

    @property
    def names_gpus(self) -> bool:
        """Whether rows name GPUs, so that a row without holds none.

        The first call reads the whole file.
        """
        return self._runs.names_gpus if self.tracks_gpus is None else self.tracks_gpus

    def with_tracked_gpus(self, tracks_gpus: bool | None) -> TraceFile:
        """Return it with ``tracks_gpus`` known, without reading the file again."""
        trace = replace(self, tracks_gpus=tracks_gpus)
        vars(trace).update({name: value for name, value in vars(self).items() if name == "_runs"})
        return trace

    def read(
        self, *, rows_per_batch: int = ROWS_PER_BATCH, cluster: str | None = None, as_of: datetime | None = None
    ) -> Iterator[Batch]:
        """Yield the file in batches of about ``rows_per_batch`` rows, in its order.

        Where ``cluster`` is one of several clusters in the file, the rows of the others are left out. ``as_of`` is the
        time of which its rows tell, where they can be later than all times in the file.

        Every row becomes a job, a reject with its line and reason, or a part of the count in a note (rows that are no
        jobs, as Slurm's steps). Notes come with the last batch. The file is never held in memory as a whole.

        Raises
        ------
        FormatUnknown
            The file does not have the format that was given.
        FileUnreadable
            It cannot be read to its end; raised before the first batch.
        NothingUnderstood
            No row of it is a job; the message names the commonest reasons. Raised after the last batch of rejects.
        UsageError
            It is a dump of several clusters, and ``cluster`` is none of them.
        """
        reading, drafts = self._drafts(max(1, rows_per_batch))
        only = cluster if len(self._runs.clusters) > 1 and cluster in self._runs.clusters else None
        if only is None and len(self._runs.clusters) > 1 and self._layout.apart:
            raise UsageError(
                f"{self.path} holds several clusters: {', '.join(sorted(self._runs.clusters))}.",
                hint="Load one after the other: --cluster with one of these names.",
            )
        last = self._runs.latest if as_of is None else np.datetime64(as_of.astimezone(UTC).replace(tzinfo=None), "us")
        any_ended = self._runs.any_ended or as_of is not None
        jobs, first_reasons, waiting, untracked = 0, Counter[str](), None, UntrackedGpus()
        for draft in drafts:
            if waiting is not None:
                yield waiting
            if only is not None:
                others = _is_of_another(draft, only)
                reading.tally[OTHER_CLUSTERS] += int(np.sum(others & ~draft.skipped))
                draft.skipped[others] = True
            remarks = settle(draft, as_of=last, any_ended=any_ended)
            remarks |= settle_gpus(draft, named=self.names_gpus, site=self.site)
            check_jobs(draft.jobs, draft.results)
            remarks[CONTRADICTING_KEYS] = self._runs.apply(draft, as_one=only is None)
            reading.remark(draft, remarks)
            waiting = draft.finished()
            jobs += len(waiting.jobs)
            untracked.add(waiting.jobs)
            first_reasons.update(waiting.rejects["reason"])
        if waiting is None or not jobs:
            if waiting is not None:
                yield waiting  # so that its rejects can be kept
            raise self._nothing_understood(first_reasons, reading.not_understood)
        counted = reading.tally
        counted["times that daylight saving repeats were taken as the earlier, unless that breaks their order"] = (
            reading.clock.ambiguous
        )
        counted["times that daylight saving skips were moved to the end of the gap"] = reading.clock.nonexistent
        yield Batch(
            jobs=waiting.jobs,
            rejects=waiting.rejects,
            bytes_read=waiting.bytes_read,
            notes=tuple(filter(None, (*self._general_notes(only), *reading.notes(), untracked.note()))),
        )

    @cached_property
    def _runs(self) -> Runs:
        reading, drafts = self._read_again(ROWS_PER_BATCH)
        runs = Runs(reading)
        for draft in drafts:
            runs.add(draft)
        runs.number_restarts()
        return runs

    def _drafts(self, rows_per_batch: int) -> tuple[FileReading, Iterator[JobRows]]:
        """Return the rows kept by the first pass or another one."""
        reading, kept = self._runs.reading, self._runs.kept
        if not kept or rows_per_batch != reading.rows_per_batch:
            return self._read_again(rows_per_batch)
        self._runs.kept = None  # finishing changes them, so that they serve once
        return reading, (kept.popleft() for _ in range(len(kept)))

    def _read_again(self, rows_per_batch: int) -> tuple[FileReading, Iterator[JobRows]]:
        reading = FileReading(
            path=self.path, clock=TimeParser(self.timezone), rows_per_batch=rows_per_batch, site=self.site
        )
        return reading, self._layout.drafts(reading)

    def _general_notes(self, only: str | None) -> Iterator[str]:
        if self.assumed_timezone:
            yield (
                f"Times in {self.path.name} carry no zone; {self.assumed_timezone} was assumed (setting"
                " ingest.timezone, or helios trace load --timezone ZONE)"
            )
        if self.columns:
            yield f"Columns were read as the map {self.columns.name} says (SHA-256 {self.columns.sha256})"
            yield self.columns.keys.note
        if len(self._runs.clusters) > 1 and only is None:
            named = ", ".join(sorted(self._runs.clusters))
            yield (
                f"{self.path.name} holds jobs of several clusters ({named}), read as one; --cluster with one of these"
                " names reads its jobs only"
            )

    def _nothing_understood(self, reasons: Counter[str], examples: Mapping[Reason, str]) -> NothingUnderstood:
        if not reasons:
            return NothingUnderstood(f"{self.path} holds no jobs.", hint="Check the export that wrote it.")
        commonest = reasons.most_common(_FIRST_REASONS)
        named = "; ".join(
            f"{reason} ({in_number(count, 'rows')}"
            + (f", first {examples[Reason(reason)]})" if reason in examples else ")")
            for reason, count in commonest
        )
        return NothingUnderstood(
            f"Not one row of {self.path} was understood as {self.format}: {named}.",
            hint=f"Check the map {self.columns.name}."
            if self.columns
            else TIME_FORMS
            if commonest[0][0] == Reason.UNREADABLE_TIME
            else f"Is it another format? Load it as what it is: helios trace load --format FORMAT, one of "
            f"{', '.join(LAYOUTS)}.",
        )


def _is_of_another(draft: JobRows, cluster: str) -> NDArray[np.bool_]:
    """Return which rows name another cluster."""
    named = draft.runs.cluster
    if named is None:
        return np.zeros(len(draft.line), dtype=np.bool_)
    return np.asarray(pc.fill_null(pc.not_equal(named, cluster), False))
