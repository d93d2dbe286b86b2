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
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import FormatUnknown, NothingUnderstood
from helios.ingest import alibaba, helios_csv, philly, sacct, sacct_json, swf
from helios.ingest.checks import REASONS, CheckResults, Reason, check_jobs
from helios.ingest.job_rows import FileReading, JobRows, Layout, RecordedMachine
from helios.ingest.lines import file_sha256, file_size, head
from helios.ingest.parse import NEVER, TimeParser
from helios.model import Batch, JobState

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
    TraceFormat.ACME: helios_csv.ACME_LAYOUT,
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


# Numbers for the runs of requeued jobs.
#
# Slurm keeps a record for each run of a requeued job (``sacct --duplicates``), all with the same id. Such rows may be
# anywhere in a file, so one pass over ids and times comes first. It keeps 32 bytes a row.

_NOT_STARTED = np.iinfo(np.int64).max


class Runs:
    """Rows of a file that share job id and submit time with another row.

    Call :meth:`add` for the whole file, then :meth:`judge` once, then :meth:`apply` for the rows of a second pass.
    """

    def __init__(self) -> None:
        self._seen: list[pd.DataFrame] = []
        self._repeated = pd.DataFrame()
        self.clusters: set[str] = set()

    def add(self, draft: JobRows) -> None:
        """Add the rows of ``draft``."""
        self.clusters |= draft.clusters
        start = draft.jobs.get("started_at", np.full(len(draft.line), NEVER))
        pending = draft.jobs["state"] == JobState.PENDING.value if "state" in draft.jobs else False
        frame = pd.DataFrame(
            {
                "line": draft.line,
                "job": _hashed(draft.jobs["job_id"]) ^ _mixed(draft.jobs["submitted_at"].view(np.int64)),
                "start": np.where(np.isnat(start), _NOT_STARTED, start.view(np.int64)),
                "text": draft.fingerprints(),
                "pending": np.asarray(pending) & np.isnat(start),
            }
        )
        self._seen.append(frame[~draft.skipped & draft.results.accepted & ~np.asarray(draft.jobs["job_id"].isna())])

    def judge(self) -> None:
        """Give each row a verdict and each run its restart number.

        Call it once, after the last :meth:`add`.
        """
        rows = pd.concat(self._seen, ignore_index=True) if self._seen else pd.DataFrame({"job": [], "line": []})
        self._seen = []
        self._repeated = _judged(rows[rows["job"].duplicated(keep=False)].copy())

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
            _refuse(draft.results, found, self._repeated["verdict"].to_numpy()[place])
        draft.jobs["restart"] = restart


def _judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with a verdict and a restart number, ordered by line.

    ``rows`` are those that share their job with another. A verdict of -1 is a run of its own, else the position of the
    reason in ``REASONS``.
    """
    rows["verdict"] = np.int8(-1)
    rows["restart"] = np.int32(0)
    if rows.empty:
        return rows
    rows.loc[rows.duplicated(["job", "text"], keep="first"), "verdict"] = REASONS.index(Reason.DUPLICATE_ROW)
    rows.loc[_superseded(rows[rows["verdict"] < 0]), "verdict"] = REASONS.index(Reason.SUPERSEDED)
    runs = rows[rows["verdict"] < 0].sort_values(["job", "start", "line"], kind="stable")
    rows.loc[runs.index, "restart"] = runs.groupby("job").cumcount().astype(np.int32)
    return rows.sort_values("line")


def _superseded(rows: pd.DataFrame) -> pd.Index[Any]:
    """Return the rows that a later row of the same run replaces.

    Such rows come from exports of one job at two moments of its life.
    """
    started = rows["start"] != _NOT_STARTED
    again = started & rows.duplicated(["job", "start"], keep="last")
    last = rows.groupby("job")["line"].transform("max")
    return rows.index[again | (rows["pending"] & (rows["line"] < last))]


def _refuse(results: CheckResults, found: NDArray[np.bool_], codes: NDArray[np.int8]) -> None:
    for reason in (Reason.DUPLICATE_ROW, Reason.SUPERSEDED):
        results.refuse(found & (codes == REASONS.index(reason)), reason)


def _hashed(ids: pd.Series[Any]) -> NDArray[np.uint64]:
    return pd.util.hash_array(ids.astype(object).to_numpy(), categorize=False)


def _mixed(times: NDArray[np.int64]) -> NDArray[np.uint64]:
    # Multiplication by an odd number (Knuth's golden ratio) modulo 2**64 is one to one and spreads the low bits.
    return times.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
