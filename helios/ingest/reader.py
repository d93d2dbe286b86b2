"""History files as sources of batches.

A file's format is recognised by its content. The whole file is read before the first batch, to number the runs of
requeued jobs. Its translated rows are kept meanwhile; a file that is too large for that is read a second time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd

from helios.choices import TraceFormat
from helios.errors import FormatUnknown, NothingUnderstood
from helios.ingest import alibaba, helios_csv, parquet, philly, sacct, sacct_json, swf
from helios.ingest.job_rows import FileReading, JobRows, Layout, RecordedMachine
from helios.ingest.lines import RowTexts, file_sha256, file_size, head
from helios.ingest.parse import REASONS, Reason, TimeParser, check_jobs
from helios.model import Batch, JobState
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
        hint=f"Helios reads {', '.join(LAYOUTS)}; say which it is with --format, or export it anew.",
    )


# Arrays of the text of more rows are so large that the C library returns their memory each time: twice the system time.
ROWS_PER_BATCH = 50_000
# Text of a file whose translated rows are kept until all of it is read. They take about twice its size.
LARGEST_KEPT_BYTES = 256 << 20
_FIRST_REASONS = 3
TIME_FORMS = (
    "Times are read as 2026-09-01T08:00:00, with a space for T, or as seconds since the epoch. Export again without "
    "SLURM_TIME_FORMAT; in a spreadsheet, keep the columns of times as text."
)
STARTED_EARLY = "jobs have a start before their submission, as clocks or requeues leave it; they are kept"


def open_trace(path: Path, *, format: TraceFormat | None = None, timezone: str | None = None) -> TraceFile:
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
    start = head(path)
    if not start.strip():
        raise NothingUnderstood(f"{path} is empty.", hint="Check the export that wrote it.")
    chosen = sniff(path, start) if format is None else TraceFormat(format)
    layout = LAYOUTS[chosen]
    clock = TimeParser(timezone or layout.own_zone(path) or layout.zone)
    assumed = layout.zone if timezone is None and layout.local_times(start) else None
    return TraceFile(
        path=path, format=chosen, timezone=clock.zone, assumed_timezone=assumed, machine=layout.machine(start)
    )


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
    machine : RecordedMachine, optional
        The cluster's nodes, where the file describes them.
    """

    path: Path
    format: TraceFormat
    timezone: str
    assumed_timezone: str | None
    machine: RecordedMachine | None = None

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
            No row of it is a job; the message names the commonest reasons. Raised after the last batch of rejects.
        """
        reading, drafts = self._drafts(max(1, rows_per_batch))
        jobs, first_reasons, waiting = 0, Counter[str](), None
        for draft in drafts:
            if waiting is not None:
                yield waiting
            check_jobs(draft.jobs, draft.results)
            self._runs.apply(draft)
            reading.tally[STARTED_EARLY] += int(np.sum(draft.jobs["started_at"] < draft.jobs["submitted_at"]))
            waiting = draft.finished()
            jobs += len(waiting.jobs)
            first_reasons.update(waiting.rejects["reason"])
        if waiting is None or not jobs:
            if waiting is not None:
                yield waiting  # so that its rejects can be kept
            raise self._nothing_understood(first_reasons, reading.examples)
        counted = Counter(reading.tally)
        counted["times that daylight saving repeats were taken as the earlier, unless that breaks their order"] = (
            reading.clock.ambiguous
        )
        counted["times that daylight saving skips were moved to the end of the gap"] = reading.clock.nonexistent
        yield Batch(
            jobs=waiting.jobs,
            rejects=waiting.rejects,
            bytes_read=waiting.bytes_read,
            notes=(
                *self._general_notes(),
                *(in_number(count, text) for text, count in counted.items() if count),
                *(f"{reason.capitalize()}: first {example}" for reason, example in reading.examples.items()),
            ),
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
        reading = FileReading(path=self.path, clock=TimeParser(self.timezone), rows_per_batch=rows_per_batch)
        return reading, LAYOUTS[self.format].drafts(reading)

    def _general_notes(self) -> Iterator[str]:
        if self.assumed_timezone:
            yield f"Times in {self.path.name} carry no zone; {self.assumed_timezone} was assumed (--timezone ZONE)"
        if len(self._runs.clusters) > 1:
            named = ", ".join(sorted(self._runs.clusters))
            yield f"{self.path.name} holds jobs of several clusters ({named}), read as one"

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
            hint=TIME_FORMS
            if commonest[0][0] == Reason.UNREADABLE_TIME
            else f"Is it another format? Helios reads {', '.join(LAYOUTS)} (--format).",
        )


# Numbers for the runs of requeued jobs.
#
# Slurm keeps a record for each run of a requeued job (``sacct --duplicates``), all with the same id. Such rows may be
# anywhere in a file, so one pass over all of it comes first.

_NOT_STARTED = np.iinfo(np.int64).max


class Runs:
    """Rows with the job id and submit time of another one.

    Call :meth:`add` for the whole file, then :meth:`number_restarts` once, then :meth:`apply` for each of its rows.

    Attributes
    ----------
    reading : FileReading
        The first pass over the file.
    kept : deque of JobRows, optional
        Its rows; None where they are too many to keep.
    clusters : set of str
        Clusters that the rows name.
    """

    def __init__(self, reading: FileReading) -> None:
        self.reading = reading
        self.kept: deque[JobRows] | None = deque()
        self.clusters: set[str] = set()
        self._kept_bytes = 0
        self._seen: list[tuple[pd.DataFrame, RowTexts | None]] = []
        self._repeated = pd.DataFrame()

    def add(self, draft: JobRows) -> None:
        """Add the rows of ``draft``."""
        self.clusters |= draft.clusters
        self._seen.append((_run_keys(draft), draft.texts))
        if self.kept is not None:
            self.kept.append(draft)
            self._kept_bytes += draft.texts.size_bytes
            if self._kept_bytes > LARGEST_KEPT_BYTES:
                self.kept = None
        if self.kept is None:
            self._seen = [(_with_text(keys, texts), None) for keys, texts in self._seen]

    def number_restarts(self) -> None:
        """Give each run its restart number, and find the rows that repeat one.

        Call it once, after the last :meth:`add`.
        """
        jobs = [keys["job"] for keys, _ in self._seen]
        repeated = pd.concat(jobs, ignore_index=True).duplicated(keep=False).to_numpy() if jobs else np.array([])
        parts = np.split(repeated, np.cumsum([len(of_one) for of_one in jobs])[:-1])
        rows = [
            _with_text(keys[part], texts) for (keys, texts), part in zip(self._seen, parts, strict=False) if part.any()
        ]
        self._seen = []
        if not rows:
            return
        runs = pd.concat(rows, ignore_index=True)
        runs["refused"] = np.int8(-1)  # -1 is a run of its own, else the position of the reason in REASONS
        runs["restart"] = np.int32(0)
        runs.loc[runs.duplicated(["job", "text"], keep="first"), "refused"] = REASONS.index(Reason.DUPLICATE_ROW)
        # A later row of the same run replaces an earlier one, as from exports of one job at two moments of its life.
        left = runs[runs["refused"] < 0]
        again = (left["start"] != _NOT_STARTED) & left.duplicated(["job", "start"], keep="last")
        started_later = left["pending"] & (left["line"] < left.groupby("job")["line"].transform("max"))
        runs.loc[left.index[again | started_later], "refused"] = REASONS.index(Reason.SUPERSEDED)
        left = runs[runs["refused"] < 0].sort_values(["job", "start", "line"], kind="stable")
        runs.loc[left.index, "restart"] = left.groupby("job").cumcount().astype(np.int32)
        self._repeated = runs.sort_values("line")

    def apply(self, draft: JobRows) -> None:
        """Set the restart numbers of ``draft``.

        Rows that repeat another one, or that a later one supersedes, are refused.
        """
        restart = np.zeros(len(draft.line), dtype=np.int32)
        if len(self._repeated):
            lines = self._repeated["line"].to_numpy()
            place = np.minimum(np.searchsorted(lines, draft.line), len(lines) - 1)
            found = lines[place] == draft.line
            restart[found] = self._repeated["restart"].to_numpy()[place[found]]
            refused = self._repeated["refused"].to_numpy()[place]
            for reason in (Reason.DUPLICATE_ROW, Reason.SUPERSEDED):
                draft.results.refuse(found & (refused == REASONS.index(reason)), reason)
        draft.jobs.setdefault("restart", restart)  # a format that gives the number is believed


def _run_keys(draft: JobRows) -> pd.DataFrame:
    """Return the keys of the runs in ``draft``."""
    start = draft.runs.started
    ids = pd.util.hash_array(draft.jobs["job_id"].astype(object).to_numpy(), categorize=False)
    if "restart" in draft.jobs:
        ids = ids + draft.jobs["restart"].astype(np.uint64)
    # Multiplication by an odd number (Knuth's golden ratio) modulo 2**64 is one to one and spreads the low bits.
    times = draft.jobs["submitted_at"].view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    pending = draft.jobs["state"] == JobState.PENDING.value if "state" in draft.jobs else False
    keys = pd.DataFrame(
        {
            "row": np.arange(len(draft.line)),
            "line": draft.line,
            "job": ids ^ times,
            "start": np.where(np.isnat(start), _NOT_STARTED, start.view(np.int64)),
            "pending": np.asarray(pending) & np.isnat(start),
        }
    )
    counted: pd.DataFrame = keys[~draft.skipped & draft.runs.known & ~np.asarray(draft.jobs["job_id"].isna())]
    return counted


def _with_text(keys: pd.DataFrame, texts: RowTexts | None) -> pd.DataFrame:
    """Return ``keys`` with a hash of the text of each row."""
    return keys if texts is None else keys.assign(text=texts.fingerprints(keys["row"].to_numpy()))
