"""Numbers for the runs of requeued jobs.

Slurm keeps a record for each run of a requeued job (``sacct --duplicates``), all with the same id. Such rows may be
anywhere in a file, so one pass over all of it comes first. ``helios.model.runs`` numbers them.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from helios.ingest.contradictions import latest
from helios.ingest.job_rows import FileReading, JobRows
from helios.ingest.parse import NOT_A_TIME, REASONS, Instants, Mask, Reason, distinct_texts
from helios.model import FINISHED, INTERRUPTED, NEVER_US, JobState, number_runs

# Text of a file whose translated rows are kept until all of it is read. They take about twice its size.
LARGEST_KEPT_BYTES = 256 << 20


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
        """Set the restart numbers of ``draft`` and return the contradictory rows.

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
    """Return how often each job was started before, 0 if unknown."""
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
