"""Translation of rows of text into columns of ``JOBS``.

The readers of all formats share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from helios.ingest.delimited import DelimitedRows
from helios.ingest.job_rows import FileReading, JobRows, RunKeys
from helios.ingest.parse import (
    NEVER,
    CheckResults,
    Instants,
    Mask,
    Reason,
    category,
    durations,
    instants,
    job_states,
    numbers,
    strings,
)

MIB_PER_GIB = 1024.0
Values = TypeVar("Values")


class Translation:
    """One batch of rows while it is translated into columns of ``JOBS``.

    Each method that reads a field refuses the rows whose text it does not understand. Of several fields the first that
    the file has is read; a field that it does not have is unknown in every row.

    Attributes
    ----------
    rows : DelimitedRows
        The texts.
    reading : FileReading
        The pass over the file.
    jobs : dict of str to array
        The columns so far.
    results : CheckResults
        Check result of each row.
    runs : RunKeys, optional
        See :meth:`note_runs`.
    """

    def __init__(self, rows: DelimitedRows, reading: FileReading) -> None:
        self.rows = rows
        self.reading = reading
        self.jobs: dict[str, Any] = {}
        self.results = CheckResults(len(rows))
        self.runs: RunKeys | None = None

    def texts(self, *fields: str) -> pa.Array:
        """Return the texts of a field."""
        found = self.rows.column(*fields)
        return pa.nulls(len(self.rows), pa.string()) if found is None else found

    def numbers(self, *fields: str) -> NDArray[np.float64]:
        """Return the numbers of a field, NaN where unknown."""
        return self._floats(fields, numbers, Reason.UNREADABLE_NUMBER)

    def durations(self, *fields: str, bare_unit_s: float) -> NDArray[np.float64]:
        """Return Slurm durations in s, NaN where unknown.

        A bare number counts ``bare_unit_s`` seconds.
        """
        return self._floats(fields, partial(durations, bare_unit_s=bare_unit_s), Reason.UNREADABLE_DURATION)

    def times(self, *fields: str, not_before: Instants | None = None) -> Instants:
        """Return the times of a field, in UTC.

        ``not_before`` is the event before; it tells which of two equal local times is meant.
        """
        found = self.reading.clock.read(self.texts(*fields), not_before=not_before)
        return self._accept(found, Reason.UNREADABLE_TIME)

    def read_times(self, fields: Mapping[str, Sequence[str]]) -> None:
        """Set columns of times from their fields.

        They are given in the order of the events.
        """
        before: Instants | None = None
        for name, sources in fields.items():
            if self.rows.column(*sources) is not None:
                self.jobs[name] = self.times(*sources, not_before=before)
                before = self.jobs[name] if before is None else np.fmax(before, self.jobs[name])

    def instants(self, seconds: NDArray[np.float64]) -> Instants:
        """Return seconds since the epoch as times."""
        return self._accept(instants(seconds), Reason.UNREADABLE_TIME)

    def read_states(self, texts: pa.Array) -> None:
        """Set the column ``state`` from its texts."""
        self.jobs["state"] = self._accept(job_states(texts), Reason.UNKNOWN_STATE)

    def read_strings(self, **fields: str) -> None:
        """Set columns of texts that hardly repeat."""
        self.jobs |= {name: strings(self.texts(field)) for name, field in fields.items()}

    def read_categories(self, **fields: str) -> None:
        """Set columns of texts that repeat."""
        self.jobs |= {name: category(self.texts(field)) for name, field in fields.items()}

    def _floats(
        self, fields: Sequence[str], read: Callable[[pa.Array], tuple[NDArray[np.float64], Mask]], reason: Reason
    ) -> NDArray[np.float64]:
        texts = self.rows.column(*fields)
        return np.full(len(self.rows), np.nan) if texts is None else self._accept(read(texts), reason)

    def _accept(self, found: tuple[Values, Mask], reason: Reason) -> Values:
        """Return the read values, and refuse failed rows."""
        values, bad = found
        self.results.refuse(bad, reason)
        return values

    def is_in(self, states: tuple[str, ...]) -> Mask:
        """Return the rows in one of ``states``, shape (n_rows,)."""
        return np.asarray(self.jobs["state"].isin(states))

    def note_runs(self) -> None:
        """Record which rows have an id and times.

        They tell the runs of a requeued job apart, whatever else is wrong with a row and however its start is
        completed later. Without a call, those of the finished translation do.
        """
        started = self.jobs.get("started_at", np.full(len(self.rows), NEVER))
        self.runs = RunKeys(known=self.results.accepted, started=started)

    def run_time_s(self) -> NDArray[np.float64]:
        """Return end less start, s."""
        lasted: NDArray[np.float64] = (self.jobs["ended_at"] - self.jobs["started_at"]) / np.timedelta64(1, "s")
        return lasted

    def draft(self, *, skipped: Mask | None = None, clusters: frozenset[str] = frozenset()) -> JobRows:
        """Return the translated rows.

        The arguments are described at :class:`JobRows`. With ``skipped`` None, no row is skipped.
        """
        if self.runs is None:
            self.note_runs()
        assert self.runs is not None
        return JobRows(
            jobs=self.jobs,
            runs=self.runs,
            results=self.results,
            skipped=np.zeros(len(self.rows), dtype=np.bool_) if skipped is None else skipped,
            refused=self.rows.refused,
            texts=self.rows.texts,
            clusters=clusters,
        )
