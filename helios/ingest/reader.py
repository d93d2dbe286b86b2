"""History files as sources of batches.

A file's format is recognised by its content. The whole file is read before the first batch, to number the runs of
requeued jobs. Its translated rows are kept meanwhile; a file that is too large for that is read a second time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.choices import TraceFormat
from helios.errors import FormatUnknown, NothingUnderstood, UsageError
from helios.ingest import alibaba, helios_csv, mapped, parquet, philly, sacct, sacct_json, swf
from helios.ingest.column_map import ColumnMap
from helios.ingest.contradictions import latest, settle, settle_gpus
from helios.ingest.job_rows import FileReading, JobRows, Layout, RecordedMachine
from helios.ingest.lines import file_sha256, file_size, head
from helios.ingest.parse import NOT_A_TIME, REASONS, Instants, Mask, Reason, TimeParser, check_jobs, distinct_texts
from helios.model import FINISHED, INTERRUPTED, NEVER_US, Batch, JobState, UntrackedGpus, number_runs
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
# Text of a file whose translated rows are kept until all of it is read. They take about twice its size.
LARGEST_KEPT_BYTES = 256 << 20
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
        hint=f"Helios reads {', '.join(LAYOUTS)}; say which it is with --format, or export it anew.",
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
        """Whether rows name GPUs or parts of them, so that a row without holds none.

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
            yield f"Times in {self.path.name} carry no zone; {self.assumed_timezone} was assumed (--timezone ZONE)"
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
            else f"Is it another format? Helios reads {', '.join(LAYOUTS)} (--format).",
        )


# Numbers for the runs of requeued jobs.
#
# Slurm keeps a record for each run of a requeued job (``sacct --duplicates``), all with the same id. Such rows may be
# anywhere in a file, so one pass over all of it comes first. ``helios.model.runs`` numbers them.


class Runs:
    """Rows with the job id of another one.

    Call :meth:`add` for the whole file, then :meth:`number_restarts` once, then :meth:`apply` for each of its rows.

    Attributes
    ----------
    reading : FileReading
        The first pass over the file.
    kept : deque of JobRows, optional
        Its rows; None where they are too many to keep.
    clusters : set of str
        Clusters that the rows name.
    latest : datetime64
        The latest time in the file.
    any_ended : bool
        Whether any of the rows has an end.
    names_gpus : bool
        Whether a row names GPUs, or parts of them.
    """

    def __init__(self, reading: FileReading) -> None:
        self.reading = reading
        self.kept: deque[JobRows] | None = deque()
        self.clusters: set[str] = set()
        self.latest: np.datetime64 = NOT_A_TIME
        self.any_ended = False
        self.names_gpus = False
        self._kept_bytes = 0
        self._seen: list[_Seen] = []
        self._repeated = pd.DataFrame()

    def add(self, draft: JobRows) -> None:
        """Add the rows of ``draft``."""
        self.clusters |= draft.clusters
        self.latest = np.fmax(self.latest, latest(draft))
        self.any_ended |= "ended_at" in draft.jobs and not np.isnat(draft.jobs["ended_at"]).all()
        self.names_gpus |= draft.unnamed is not None and not (draft.unnamed | draft.skipped).all()
        self._seen.append(_Seen(draft))
        if self.kept is not None:
            self.kept.append(draft)
            self._kept_bytes += draft.texts.size_bytes
            if self._kept_bytes > LARGEST_KEPT_BYTES:
                self.kept = None
        if self.kept is None:
            for seen in self._seen:
                seen.drop_texts()

    def number_restarts(self) -> None:
        """Give each run its restart number, and find the rows that repeat one.

        Call it once, after the last :meth:`add`.
        """
        ids = [seen.ids for seen in self._seen]
        repeated = pd.Series(np.concatenate(ids) if ids else []).duplicated(keep=False).to_numpy()
        parts = np.split(repeated, np.cumsum([len(of_one) for of_one in ids])[:-1])
        rows = [seen.keys(part) for seen, part in zip(self._seen, parts, strict=False) if part.any()]
        self._seen = []
        if not rows:
            return
        runs = pd.concat(rows, ignore_index=True)
        runs["contradicts"] = _is_shared(runs, "sluid") | _is_shared(runs, "serial")
        runs["record"] = runs["record"].where((runs["sluid"] == 0) | _is_shared(runs, "sluid"), runs["sluid"])
        runs["refused"] = np.int8(-1)  # -1 is a run of its own, else the position of the reason in REASONS
        runs["restart"] = np.int32(0)
        runs.loc[runs.duplicated(["record", "text"], keep="first"), "refused"] = REASONS.index(Reason.DUPLICATE_ROW)
        # A later row of the same run replaces an earlier one, as from exports of one job at two moments of its life.
        left = runs[runs["refused"] < 0]
        again = (left["started"] != NEVER_US) & left.duplicated(["record", "started"], keep="last")
        started_later = left["pending"] & (left["line"] < left.groupby("record")["line"].transform("max"))
        runs.loc[left.index[again | started_later], "refused"] = REASONS.index(Reason.SUPERSEDED)
        runs["is_apart"] = False
        if len(self.clusters) > 1:
            _part_clusters(runs)
        left = runs[runs["refused"] < 0].sort_values("line", kind="stable").rename(columns={"id": "job"})
        runs.loc[left.index, "restart"] = number_runs(left)
        # The parts of a resized job have the same submission and the same count.
        counted = left["restarts"].notna() & ~left.duplicated(["job", "submitted"], keep=False)
        too_few = number_runs(left.assign(is_first=False, least=0)) > left["restarts"]
        runs.loc[left.index[counted & too_few], "contradicts"] = True
        self._repeated = runs.sort_values("line")

    def apply(self, draft: JobRows, *, as_one: bool) -> Mask:
        """Set the restart numbers of ``draft``, and return the rows whose keys contradict each other.

        Rows that repeat another one, or that a later one supersedes, are refused. Where several clusters are read
        ``as_one``, jobs with the same id and submission get ids that tell them apart.
        """
        restart, contradicts = _restarts(draft).astype(np.int32), np.zeros(len(draft.line), dtype=np.bool_)
        if len(self._repeated):
            lines = self._repeated["line"].to_numpy()
            place = np.minimum(np.searchsorted(lines, draft.line), len(lines) - 1)
            found = lines[place] == draft.line
            restart[found] = self._repeated["restart"].to_numpy()[place[found]]
            refused = self._repeated["refused"].to_numpy()[place]
            for reason in (Reason.DUPLICATE_ROW, Reason.SIBLING, Reason.SUPERSEDED):
                draft.results.refuse(found & (refused == REASONS.index(reason)), reason)
            contradicts = found & self._repeated["contradicts"].to_numpy()[place]
            apart = found & self._repeated["is_apart"].to_numpy()[place]
            if as_one and apart.any() and draft.runs.cluster is not None:
                ids = draft.jobs["job_id"].astype(object)
                ids[apart] += "@" + pd.Series(draft.runs.cluster.to_pandas()).astype(object)[apart]
                draft.jobs["job_id"] = ids.astype("str")
        draft.jobs.setdefault("restart", restart)  # a format that gives the number is believed
        return contradicts


def _is_shared(runs: pd.DataFrame, name: str) -> pd.Series[bool]:
    """Return which rows share the key of one record over several submissions."""
    submissions = runs.groupby(["id", name], sort=False)["submitted"].transform("nunique")
    return (runs[name] != 0) & (submissions > 1)


def _is_of_another(draft: JobRows, cluster: str) -> NDArray[np.bool_]:
    """Return which rows name another cluster."""
    named = draft.runs.cluster
    if named is None:
        return np.zeros(len(draft.line), dtype=np.bool_)
    return np.asarray(pc.fill_null(pc.not_equal(named, cluster), False))


def _part_clusters(runs: pd.DataFrame) -> None:
    """Keep apart jobs of several clusters that have the same id and submission.

    A sibling that the federation revoked is refused, where the job ran on another cluster. Any other job of a later
    cluster in the file gets an id of its own.
    """
    left = runs[runs["refused"] < 0]
    same = left.groupby(["shown_id", "submitted"], sort=False)
    ran_elsewhere = left["is_revoked"] & ~same["is_revoked"].transform("all") & (same["id"].transform("nunique") > 1)
    runs.loc[left.index[ran_elsewhere], "refused"] = REASONS.index(Reason.SIBLING)
    left = left[~ran_elsewhere].sort_values("line", kind="stable")
    first = left.groupby(["shown_id", "submitted"], sort=False)["id"].transform("first")
    runs.loc[left.index[left["id"] != first], "is_apart"] = True


class _Seen:
    """What is kept of translated rows to find those of one job.

    Attributes
    ----------
    ids : array of shape (n_counted,)
        A hash of the id of each row that is counted.
    """

    def __init__(self, draft: JobRows) -> None:
        jobs = draft.jobs
        hashes = pd.util.hash_array(jobs["job_id"].astype(object).to_numpy(), categorize=False)
        self._rows = np.flatnonzero(~draft.skipped & draft.runs.known & ~np.asarray(jobs["job_id"].isna()))
        self.ids = hashes[self._rows]
        names = ("restart", "submitted_at", "ended_at", "state", "user")
        self._jobs = {name: jobs[name] for name in names if name in jobs}
        self._runs, self._line, self._least = draft.runs, draft.line, _restarts(draft)
        self._texts = draft.texts
        self._fingerprints: NDArray[np.int64] | None = None

    def drop_texts(self) -> None:
        """Keep hashes of the texts in their place."""
        if self._fingerprints is None:
            self._fingerprints = self._texts.fingerprints(self._rows)
            del self._texts

    def keys(self, chosen: Mask) -> pd.DataFrame:
        """Return the keys of the runs in the chosen of the counted rows.

        ``shown_id`` is that of the job, ``id`` that of the job on its cluster, ``record`` that of what the cluster
        keeps of one run, or of several of the same submission. The other columns are those of ``number_runs``, and what
        tells rows of one record apart.
        """
        rows, shown, runs = self._rows[chosen], self.ids[chosen], self._runs
        jobs = {name: values[rows] for name, values in self._jobs.items()}
        ids, submitted = shown ^ _hashes(runs.cluster, rows), jobs["submitted_at"]
        # Multiplication by an odd number (Knuth's golden ratio) modulo 2**64 is one to one and spreads the low bits.
        record = (ids + np.asarray(jobs.get("restart", 0)).astype(np.uint64)) ^ (
            submitted.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        )
        nowhere, started = np.zeros(len(rows), dtype=np.bool_), _microseconds(runs.started[rows])
        state = jobs.get("state")
        pending, revoked, interrupted, finished = (
            nowhere if state is None else np.asarray(state.isin([known.value for known in states]))
            for states in ((JobState.PENDING,), (JobState.REVOKED,), INTERRUPTED, FINISHED)
        )
        return pd.DataFrame(
            {
                "line": self._line[rows],
                "shown_id": shown,
                "id": ids,
                "record": record,
                "sluid": _hashes(runs.record, rows),
                "serial": _hashes(runs.serial, rows),
                "restarts": np.nan if runs.restarts is None else runs.restarts[rows],
                "text": self._texts.fingerprints(rows) if self._fingerprints is None else self._fingerprints[chosen],
                "submitted": submitted.view(np.int64),
                "started": started,
                "ended": _microseconds(jobs["ended_at"]) if "ended_at" in jobs else NEVER_US,
                "is_revoked": revoked,
                "interrupted": interrupted,
                "finished": finished,
                "user": _codes(jobs["user"]) if "user" in jobs else -1,
                "least": self._least[rows],
                "is_first": nowhere if runs.restarts is None else runs.restarts[rows] == 0,
                "pending": pending & (started == NEVER_US),
            }
        )


def _restarts(draft: JobRows) -> NDArray[np.float64]:
    """Return how often each job was started before, 0 where the file does not say."""
    found = draft.runs.restarts
    return np.zeros(len(draft.line)) if found is None else np.nan_to_num(found)


def _microseconds(times: Instants) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.where(np.isnat(times), NEVER_US, times.view(np.int64))
    return found


def _hashes(texts: pa.Array | None, rows: NDArray[np.int64]) -> NDArray[np.uint64] | np.uint64:
    """Return a number for each row's text, 0 where there is none."""
    if texts is None:
        return np.uint64(0)
    codes, distinct = distinct_texts(texts.take(pa.array(rows)))
    hashes: NDArray[np.uint64] = np.array([*pd.util.hash_array(np.array(distinct, dtype=object)), 0], dtype=np.uint64)
    return hashes[codes]


def _codes(texts: pd.Categorical) -> NDArray[np.int64]:
    """Return a number for each text, -1 where there is none."""
    hashes = pd.util.hash_array(texts.categories.to_numpy(dtype=object)) >> np.uint64(1)
    numbers: NDArray[np.int64] = np.array([*hashes, -1], dtype=np.int64)
    found: NDArray[np.int64] = numbers[texts.codes]
    return found
