"""History files as sources of batches.

A file's format is recognised by its content. The file is read once to number the runs of requeued jobs, and a second
time to yield its jobs in batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np

from helios.errors import FormatUnknown, NothingUnderstood
from helios.ingest import acme, alibaba, helios_csv, philly, sacct, sacct_json, swf
from helios.ingest.checks import check_jobs
from helios.ingest.job_rows import FileReading, JobRows, Layout
from helios.ingest.lines import file_sha256, file_size, head
from helios.ingest.parse import TimeParser
from helios.ingest.requeues import Runs
from helios.model import Batch

# To add a format: write a module with a ``LAYOUT``, and add a member and a line below.


class TraceFormat(StrEnum):
    """A format of history files."""

    HELIOS = "helios"
    SACCT = "sacct"
    SACCT_JSON = "sacct-json"
    SWF = "swf"
    PHILLY = "philly"
    PAI = "pai"
    ACME = "acme"


# In the order in which they are tried: AcmeTrace has all columns of Helios, and more.
LAYOUTS: dict[TraceFormat, Layout] = {
    TraceFormat.ACME: acme.LAYOUT,
    TraceFormat.HELIOS: helios_csv.LAYOUT,
    TraceFormat.SACCT: sacct.LAYOUT,
    TraceFormat.SACCT_JSON: sacct_json.LAYOUT,
    TraceFormat.SWF: swf.LAYOUT,
    TraceFormat.PHILLY: philly.LAYOUT,
    TraceFormat.PAI: alibaba.LAYOUT,
}


_TAR_MAGIC_AT = 257


def read_start(path: Path) -> bytes:
    """Return the first decompressed bytes of a file that is not empty.

    Raises
    ------
    NothingUnderstood
        The file is empty.
    FileUnreadable
        It cannot be opened or decompressed.
    """
    start = head(path)
    if not start.strip():
        raise NothingUnderstood(f"{path} is empty.", hint="Check the export that wrote it.")
    return start


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
    raise FormatUnknown(
        f"The format of {path} is not recognised from its content.",
        hint=f"Helios reads {', '.join(LAYOUTS)}; say which it is with --format, or export it anew.",
    )


ROWS_PER_BATCH = 200_000
# The first pass keeps only numbers of each step, and small arrays stay in the processor's cache.
_ROWS_PER_SURVEY_STEP = 50_000
_SURVEYED = frozenset({"job_id", "state", "submitted_at", "started_at"})
_FIRST_REASONS = 3
STARTED_EARLY = "jobs have a start before their submission, as clocks or requeues leave it; they are kept"


def open_trace(path: Path, *, format: TraceFormat | None = None, timezone: str | None = None) -> TraceFile:
    """Open a history file, gzip or plain.

    Parameters
    ----------
    path : Path
        The file.
    format : TraceFormat, optional
        Its format; None means that it is recognised from the content.
    timezone : str, optional
        IANA zone of times that carry none. None means the home zone of the format, or UTC if it has none; a note then
        says which zone was assumed.

    Raises
    ------
    FormatUnknown
        The format is not recognised.
    FileUnreadable
        The file cannot be opened or decompressed.
    NothingUnderstood
        The file is empty.
    UsageError
        There is no such time zone.
    """
    start = read_start(path)
    chosen = sniff(path, start) if format is None else TraceFormat(format)
    layout = LAYOUTS[chosen]
    clock = TimeParser(timezone or layout.zone)
    assumed = layout.zone if timezone is None and layout.local_times(start) else None
    return TraceFile(path=path, format=chosen, timezone=clock.zone, assumed_timezone=assumed)


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """A history file as a ``Source``.

    Attributes
    ----------
    path : Path
        The file.
    format : TraceFormat
        Its format.
    timezone : str
        Zone of times that carry none.
    assumed_timezone : str or None
        That zone if nobody gave it. None if somebody did, or if the file's times have a UTC offset.
    """

    path: Path
    format: TraceFormat
    timezone: str
    assumed_timezone: str | None

    @property
    def size_bytes(self) -> int:
        """Size of the stored (compressed) file, in bytes."""
        return file_size(self.path)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file's content, in hex digits.

        For a file with companions, it is the SHA-256 of all their digests joined.
        """
        layout = LAYOUTS[self.format]
        hashes = [layout.digest(self.path), *map(file_sha256, companions := layout.companions(self.path))]
        return sha256("".join(hashes).encode()).hexdigest() if companions else hashes[0]

    @property
    def cluster(self) -> str | None:
        """Name of the cluster if the file names exactly one, else None.

        The first call reads the whole file.
        """
        return next(iter(self._runs.clusters)) if len(self._runs.clusters) == 1 else None

    def read(self, *, rows_per_batch: int = ROWS_PER_BATCH) -> Iterator[Batch]:
        """Yield the file in batches of about ``rows_per_batch`` rows, in its order.

        Every row becomes a job, a reject with its line and reason, or a part of the count in a note (rows that are no
        jobs, as Slurm's steps). Notes come with the last batch. The file is never held in memory as a whole.

        Raises
        ------
        FormatUnknown
            The file does not have the format that was given.
        FileUnreadable
            It cannot be read to its end; raised before the first batch.
        NothingUnderstood
            No row of it is a job; the message names the commonest reasons.
        """
        reading = self._reading(rows_per_batch)
        jobs, first_reasons, waiting = 0, Counter[str](), None
        for draft in LAYOUTS[self.format].drafts(reading):
            if waiting is not None:
                yield waiting
            waiting = self._batch(draft, reading)
            jobs += len(waiting.jobs)
            first_reasons.update(waiting.rejects["reason"])
        if waiting is None or not jobs:
            raise self._nothing_understood(first_reasons)
        yield Batch(
            jobs=waiting.jobs, rejects=waiting.rejects, bytes_read=waiting.bytes_read, notes=self._notes(reading)
        )

    @cached_property
    def _runs(self) -> Runs:
        runs = Runs()
        for draft in LAYOUTS[self.format].drafts(self._reading(_ROWS_PER_SURVEY_STEP, only=_SURVEYED)):
            runs.add(draft)
        runs.judge()
        return runs

    def _reading(self, rows_per_batch: int, only: frozenset[str] | None = None) -> FileReading:
        return FileReading(
            path=self.path, clock=TimeParser(self.timezone), rows_per_batch=max(1, rows_per_batch), only=only
        )

    def _batch(self, draft: JobRows, reading: FileReading) -> Batch:
        check_jobs(draft.jobs, draft.results)
        self._runs.apply(draft)
        reading.tally[STARTED_EARLY] += int(np.sum(draft.jobs["started_at"] < draft.jobs["submitted_at"]))
        return draft.finished()

    def _notes(self, reading: FileReading) -> tuple[str, ...]:
        counted = Counter(reading.tally)
        counted["times that daylight saving repeats were taken as the earlier, unless that breaks their order"] = (
            reading.clock.ambiguous
        )
        counted["times that daylight saving skips were moved to the end of the gap"] = reading.clock.nonexistent
        return (*self._general_notes(), *(f"{count:,} {text}" for text, count in counted.items() if count))

    def _general_notes(self) -> Iterator[str]:
        if self.assumed_timezone:
            yield f"Times in {self.path.name} carry no zone; {self.assumed_timezone} was assumed (--timezone ZONE)"
        if len(self._runs.clusters) > 1:
            named = ", ".join(sorted(self._runs.clusters))
            yield f"{self.path.name} holds jobs of several clusters ({named}), read as one"

    def _nothing_understood(self, reasons: Counter[str]) -> NothingUnderstood:
        if not reasons:
            return NothingUnderstood(f"{self.path} holds no jobs.", hint="Check the export that wrote it.")
        named = "; ".join(f"{reason} ({count:,} rows)" for reason, count in reasons.most_common(_FIRST_REASONS))
        return NothingUnderstood(
            f"Not one row of {self.path} was understood as {self.format}: {named}.",
            hint=f"Is it another format? Helios reads {', '.join(LAYOUTS)} (--format).",
        )
