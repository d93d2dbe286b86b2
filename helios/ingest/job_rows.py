"""Translated rows, as each reader of a format returns them.

Rows are translated column by column, with a check result for each. Readers are described by :class:`Layout`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from helios.ingest.lines import RowTexts, file_sha256
from helios.ingest.parse import CheckResults, Instants, Mask, Reason, TimeParser
from helios.model import JOBS, REJECTS, Batch
from helios.model.gpu_parts import SiteGpus
from helios.units import in_number

LONGEST_REJECT_CHARACTERS = 2_000
EXAMPLES, LONGEST_EXAMPLE = 3, 40
"""Ids that a note names at most, and characters of each."""


class Refused(NamedTuple):
    """A line that could not be read as a row."""

    line: int
    reason: Reason
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReading:
    """One pass over one file.

    Attributes
    ----------
    path : Path
        The file.
    clock : TimeParser
        Parses its times.
    site : SiteGpus, optional
        GPUs of the cluster's nodes, by which parts of a GPU are counted.
    rows_per_batch : int
        About how many rows a :class:`JobRows` should have.
    tally : Counter
        Counts of what the notes of the load report, by the text of the note.
    examples : dict of str to list of str
        Ids of the first jobs of a note, by its text.
    not_understood : dict of Reason to str
        The first text that was not understood for a reason, with its field and line.
    """

    path: Path
    clock: TimeParser
    rows_per_batch: int
    site: SiteGpus | None = None
    tally: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    not_understood: dict[Reason, str] = field(default_factory=dict)

    def remark(self, draft: JobRows, remarks: Mapping[str, Mask]) -> None:
        """Count the kept rows of ``draft`` by note, with examples."""
        kept = draft.results.accepted & ~draft.skipped
        for text, rows in remarks.items():
            places = np.flatnonzero(rows & kept)
            self.tally[text] += len(places)
            examples = self.examples.setdefault(text, [])
            examples += draft.jobs["job_id"].iloc[places[: EXAMPLES - len(examples)]].tolist()

    def notes(self) -> Iterator[str]:
        """Yield the notes of the load."""
        for text, count in self.tally.items():
            if count:
                shown = [f"{name[:LONGEST_EXAMPLE]!a}" for name in self.examples.get(text, ())]
                yield in_number(count, text) + (f", such as {', '.join(shown)}" if shown else "")
        yield from (f"{reason.capitalize()}: first {text}" for reason, text in self.not_understood.items())


class RunKeys(NamedTuple):
    """Columns that identify the runs of a requeued job.

    Each has the shape (n_rows,).

    Attributes
    ----------
    known : array
        Mask of the rows whose id and times were understood.
    started : array
        Start of each row as the file gives it.
    restarts : array, optional
        How often the job was started before each row, NaN where the file does not say.
    record : pyarrow.Array, optional
        The cluster's own id of each record, null where the file does not say.
    serial : pyarrow.Array, optional
        The number of each record in the cluster's database, null where the file does not say.
    cluster : pyarrow.Array, optional
        The cluster of each row, null where the file does not say.
    """

    known: Mask
    started: Instants
    restarts: NDArray[np.float64] | None = None
    record: pa.Array | None = None
    serial: pa.Array | None = None
    cluster: pa.Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRows:
    """Some rows of a file, translated.

    Attributes
    ----------
    jobs : dict of str to array
        Columns of ``JOBS`` by name, each of shape (n_rows,); columns left out are unknown. Times are
        ``datetime64[us]`` in UTC.
    runs : RunKeys
        What tells the runs of a requeued job apart.
    results : CheckResults
        Check result of each row.
    skipped : array of shape (n_rows,)
        Mask of rows that are no jobs and need no check, as Slurm's job steps; ``FileReading.tally`` counts them.
    refused : list of Refused
        Lines that could not be read as rows.
    texts : RowTexts
        Line and original text of each row.
    clusters : frozenset of str
        Clusters that the rows name.
    remarks : dict of str to array of shape (n_rows,)
        Masks of rows that contradict themselves, by the text of the note that says how they are read.
    unnamed : array of shape (n_rows,), optional
        Mask of rows that hold no GPU where other rows of the history name some, and are unknown where none does.
    asked : array of shape (n_rows,), optional
        GPUs that the submission asked for, NaN where it does not say so; for rows that are ``unnamed``.
    """

    jobs: dict[str, Any]
    runs: RunKeys
    results: CheckResults
    skipped: Mask
    refused: list[Refused]
    texts: RowTexts
    clusters: frozenset[str] = frozenset()
    remarks: dict[str, Mask] = field(default_factory=dict)
    unnamed: Mask | None = None
    asked: NDArray[np.float64] | None = None

    @property
    def line(self) -> NDArray[np.int64]:
        """Line of each row in the decompressed file, from 1, shape (n_rows,)."""
        return self.texts.line

    def finished(self, notes: tuple[str, ...] = ()) -> Batch:
        """Return the accepted rows as jobs and all others as rejects."""
        kept = self.results.accepted & ~self.skipped
        # Most batches lose no row, and choosing rows copies every column.
        keep = slice(None) if kept.all() else np.flatnonzero(kept)
        columns = {name: _in_utc(values[keep]) for name, values in self.jobs.items()}
        return Batch(
            jobs=JOBS.conform(pd.DataFrame(columns, copy=False)),
            rejects=self._rejects(),
            bytes_read=self.texts.block.bytes_read,
            notes=notes,
        )

    def _rejects(self) -> pd.DataFrame:
        self.results.codes[self.skipped] = -1
        rows = np.flatnonzero(~self.results.accepted)
        found = [
            *zip(self.line[rows].tolist(), self.results.reasons(), self.texts.at(rows), strict=True),
            *((refused.line, refused.reason.value, refused.text) for refused in self.refused),
        ]
        found.sort()
        return REJECTS.conform(
            pd.DataFrame(
                {
                    "line": np.array([line for line, _, _ in found], dtype=np.int64),
                    "reason": [reason for _, reason, _ in found],
                    "text": pd.Series([readable(text) for _, _, text in found], dtype="str"),
                }
            )
        )


class RecordedMachine(NamedTuple):
    """Nodes of a cluster, and the CPUs of all of them together."""

    nodes: int
    cpus: int

    @property
    def cpus_per_node(self) -> int:
        """CPUs of a node, rounded up where nodes differ."""
        return -(-self.cpus // self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one format is recognised and read.

    A new format is a module with an instance of this class.

    Attributes
    ----------
    fits : callable
        Whether the first (decompressed) bytes of a file look like this format.
    drafts : callable
        Yields the whole file as translated rows, in order. Raises FormatUnknown where a needed column is missing.
    local_times : callable
        Whether the first bytes of a file show local times without a UTC offset.
    zone : str
        IANA zone of the cluster, where all files of the format come from one place; UTC otherwise.
    own_zone : callable
        Returns the zone that a file names, or None.
    companions : callable
        Returns those files beside the given one that are read with it and exist.
    digest : callable
        Returns the SHA-256 by which a file's content is recognised.
    machine : callable
        Returns the machine that the first bytes of a file describe, or None.
    apart : bool
        Whether jobs of several clusters in a file are never read as one.
    """

    fits: Callable[[bytes], bool]
    drafts: Callable[[FileReading], Iterator[JobRows]]
    local_times: Callable[[bytes], bool]
    zone: str = "UTC"
    own_zone: Callable[[Path], str | None] = lambda _: None
    companions: Callable[[Path], tuple[Path, ...]] = lambda _: ()
    digest: Callable[[Path], str] = file_sha256
    machine: Callable[[bytes], RecordedMachine | None] = lambda _: None
    apart: bool = False


def readable(text: bytes) -> str:
    """Return a line as text that can be shown and stored.

    Undecodable and NUL bytes are escaped, and the text is cut at 2,000 characters.
    """
    escaped = text[:LONGEST_REJECT_CHARACTERS].decode("utf-8", errors="backslashreplace")
    # NUL is valid UTF-8, but no text for PostgreSQL.
    return escaped.replace("\0", "\\x00")[:LONGEST_REJECT_CHARACTERS]


def _in_utc(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return pd.DatetimeIndex(values).tz_localize("UTC")
    return values.array if isinstance(values, pd.Series) else values
