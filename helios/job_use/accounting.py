"""Reader of what jobs used from Slurm's accounting, as sacct prints it.

AdminComment of a job has the summary of jobstats. MaxRSS of a step is the most memory that one of its tasks had when it
was polled (jobacct_gather). Of GPUs nothing is read: gres/gpuutil of TRESUsageInTot and TRESUsageInAve is the last poll
only, and that of TRESUsageInMax the highest poll of one task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.ingest.job_rows import FileReading
from helios.ingest.parse import NOT_A_TIME, TimeParser, distinct_texts, numbers
from helios.ingest.sacct import MIB_PER_UNIT, read_fields, tres_lists
from helios.job_use.jobstats import MARK, read_summaries
from helios.job_use.records import KEY, UseCounts, UseRecords
from helios.model import UseQuality, UseSource

SOURCES = (UseSource.JOBSTATS.value, UseSource.ACCOUNTING.value)
ROWS_AT_ONCE = 200_000
_FIELDS = (
    *("jobidraw", "jobid", "submit", "submittime", "start", "starttime", "end", "endtime", "state", "alloctres"),
    *("ntasks", "maxrss", "tresusageinmax", "admincomment", "jobname"),
)
_UNFINISHED = r"^(PENDING|RUNNING|SUSPENDED|COMPLETING|CONFIGURING)"
_SHELL = r"^(ba|z|tc|c|k|da)?sh$|^fish$"
_SIZE = r"^(?P<number>\d{1,18}(?:\.\d+)?)(?P<unit>[KMGTP]?)$"
_MIB = 2**20
_LONGER, _LONGER_S = 1.1, 60.0
"""A summary may be over this many times the run, and s more. A longer one is of another run."""
_COVERED = 0.9
_FIRST, _LAST = np.iinfo(np.int64).min // 2, np.iinfo(np.int64).max // 2


def read_sacct(
    path: Path, *, counts: UseCounts, sources: Collection[str] = SOURCES, timezone: str = "UTC"
) -> Iterator[UseRecords]:
    """Yield what a file of sacct says of jobs that have ended.

    Each job is followed by its steps, as sacct prints them.

    Parameters
    ----------
    path : Path
        Output with a header and JobIDRaw or JobID; further fields that are known are read, and others are not.
    counts : UseCounts
        Gets AdminComments of others, and rows that could not be read.
    sources : collection of str
        Of ``SOURCES``, those that are read.
    timezone : str
        Zone of times that carry none.

    Raises
    ------
    FormatUnknown, FileUnreadable
        It is no output of sacct, or cannot be read to its end.
    """
    reading = FileReading(path=path, clock=TimeParser(timezone), rows_per_batch=ROWS_AT_ONCE)
    rest: pa.Table | None = None
    for rows in read_fields(reading, _FIELDS):
        counts.refused += len(rows.refused)
        table = pa.table(rows.columns)
        table = table if rest is None else pa.concat_tables([rest, table])
        jobs = np.flatnonzero(~_is_step(table))
        ids = _texts(table, "jobidraw", "jobid").take(pa.array(jobs))
        # Steps and further runs of the last job may be in the next block.
        before = np.flatnonzero(np.asarray(pc.fill_null(pc.not_equal(ids, ids[-1]), False))) if len(jobs) else jobs
        if len(before):
            last = int(jobs[before[-1] + 1])
            records = _Block(table.slice(0, last), reading.clock, counts).records(sources)
            yield replace(records, bytes_read=rows.texts.block.bytes_read)
            table = table.slice(last)
        rest = table
    if rest is not None:
        yield _Block(rest, reading.clock, counts).records(sources)


def _is_step(table: pa.Table) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(pc.match_substring(_texts(table, "jobidraw", "jobid"), "."), False))


def _texts(table: pa.Table, *names: str) -> pa.Array:
    name = next((name for name in names if name in table.column_names), None)
    return pa.nulls(len(table), pa.string()) if name is None else table[name].combine_chunks()


class _Block:
    """Some jobs with all their steps."""

    def __init__(self, table: pa.Table, clock: TimeParser, counts: UseCounts) -> None:
        is_step = _is_step(table)
        self._table, self._clock, self._counts = table, clock, counts
        self._steps, self._owners = np.flatnonzero(is_step), (np.cumsum(~is_step) - 1)[is_step]
        jobs = table.filter(pa.array(~is_step))
        times = {
            name: self._times(jobs, *fields)
            for name, fields in (
                ("submitted_at", ("submit", "submittime")),
                ("started_at", ("start", "starttime")),
                ("ended_at", ("end", "endtime")),
            )
        }
        ids = _texts(jobs, "jobidraw", "jobid")
        unfinished = pc.fill_null(pc.match_substring_regex(_texts(jobs, "state"), _UNFINISHED), False)
        has_end = "end" in jobs.column_names or "endtime" in jobs.column_names
        is_over = ~np.asarray(unfinished) & ~(np.isnat(times["ended_at"]) & has_end)
        self._over = np.flatnonzero(is_over & np.asarray(ids.is_valid()))
        self._comments = _texts(jobs, "admincomment")
        self._names = _texts(jobs, "jobname")
        self._tres = tres_lists(_texts(jobs, "alloctres"))
        self._run_s = (times["ended_at"] - times["started_at"]) / np.timedelta64(1, "s")
        self._key = pd.DataFrame({"job_id": pd.Series(ids, dtype="str"), **times})
        for name in ("submitted_at", "started_at"):
            self._key[name] = self._key[name].dt.tz_localize("UTC")

    def _times(self, table: pa.Table, *fields: str) -> NDArray[np.datetime64]:
        found, bad = self._clock.read(_texts(table, *fields))
        self._counts.refused += int(bad.sum())
        return np.where(bad, NOT_A_TIME, found)

    def records(self, sources: Collection[str]) -> UseRecords:
        """Return the records of some sources."""
        # Those of jobstats come first, since GPUs name their records by position.
        found = self._summaries(self._with_summary()) if UseSource.JOBSTATS in sources else None
        memory = self._memory() if UseSource.ACCOUNTING in sources else None
        parts = [part for part in (found.jobs if found else None, memory) if part is not None and len(part)]
        jobs = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*KEY, "source", "quality"])
        return UseRecords(jobs=jobs, gpus=found.gpus) if found else UseRecords(jobs=jobs)

    def _with_summary(self) -> NDArray[np.int64]:
        """Return the jobs that have a summary of their own."""
        comments = self._comments.take(pa.array(self._over))
        has_mark = np.asarray(pc.fill_null(pc.match_substring(comments, MARK, ignore_case=True), False))
        self._counts.other_text += int((np.asarray(comments.is_valid()) & ~has_mark).sum())
        found = self._over[has_mark]
        # Rows of a requeued job may all have the summary of its last run.
        key = self._key.loc[found, ["job_id", "submitted_at", "started_at"]].sort_values("started_at", kind="stable")
        key["comment"] = distinct_texts(self._comments.take(pa.array(key.index)))[0]
        return np.sort(key.drop_duplicates(["job_id", "submitted_at", "comment"], keep="last").index.to_numpy())

    def _summaries(self, found: NDArray[np.int64]) -> UseRecords:
        summaries = read_summaries(self._comments.take(pa.array(found)).to_pylist())
        jobs, run_s = summaries.jobs, self._run_s[found]
        covered_s = jobs["covered_s"].to_numpy()
        jobs.loc[(covered_s < _COVERED * run_s) & (jobs["quality"] == UseQuality.OK), "quality"] = UseQuality.PARTIAL
        jobs.loc[covered_s > _LONGER * run_s + _LONGER_S, "quality"] = UseQuality.BROKEN
        jobs["is_mig"] = self._is_mig(found, jobs["is_mig"].to_numpy())
        return UseRecords(jobs=self._named(found, UseSource.JOBSTATS, jobs), gpus=summaries.gpus)

    def _memory(self) -> pd.DataFrame:
        peaks, of_a_task = self._peaks()
        found = self._over[peaks[self._over] > 0]  # 0 is no memory, but a step that no poll met
        limit = self._tres.floats("memory_mib")[found]
        # Not all tasks had their most at once where their sum is more than the job could have.
        peak = np.maximum(np.fmin(peaks[found] / _MIB, limit), of_a_task[found] / _MIB)
        quality = np.where(peak > limit, UseQuality.BROKEN.value, UseQuality.OK.value)
        values = {"memory_peak_mib": peak, "memory_limit_mib": limit, "quality": quality}
        values["is_interactive"] = self._sessions()[found]
        return self._named(found, UseSource.ACCOUNTING, pd.DataFrame(values))

    def _peaks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the memory that polls saw of jobs and of single tasks, bytes.

        That of a job is as if all tasks of the steps that ran at the same time had their most at once, so at least what
        the job had.
        """
        steps, is_own, _ = self._own_steps
        tasks = np.nan_to_num(numbers(_texts(steps, "ntasks"))[0], nan=1.0)
        sizes = np.minimum(_sizes(_most_memory(steps)), 1e15)
        bytes_ = np.minimum(sizes * tasks, 1e15).astype(np.int64)
        begins, ends = (
            self._times(steps, *fields).astype("datetime64[us]")
            for fields in (("start", "starttime"), ("end", "endtime"))
        )
        begin = np.where(np.isnat(begins), _FIRST, begins.astype(np.int64))[is_own]
        end = np.where(np.isnat(ends), _LAST, ends.astype(np.int64))[is_own]
        peaks, largest = np.zeros((2, len(self._key)), dtype=np.int64)
        np.maximum.at(largest, self._owners[is_own], sizes[is_own].astype(np.int64))
        owners, bytes_ = np.tile(self._owners[is_own], 2), bytes_[is_own]
        change = np.concatenate([bytes_, -bytes_])
        at = np.concatenate([begin, np.maximum(end, begin + 1)])
        order = np.lexsort((change, at, owners))
        owners, held = owners[order], np.cumsum(change[order])
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        if len(firsts):
            peaks[owners[firsts]] = np.maximum.reduceat(held, firsts)
        return peaks, largest

    @cached_property
    def _own_steps(self) -> tuple[pa.Table, NDArray[np.bool_], NDArray[Any]]:
        """Steps, whether each is of the job before it, and their names."""
        steps = self._table.take(pa.array(self._steps))
        parts = pc.split_pattern(_texts(steps, "jobidraw", "jobid"), ".", max_splits=1)
        ids, names = (np.asarray(pc.list_element(parts, place)) for place in (0, 1))
        is_own = self._owners >= 0  # a file may begin in the middle of a job
        is_own[is_own] &= ids[is_own] == self._key["job_id"].to_numpy()[self._owners[is_own]]
        return steps, is_own, names

    def _sessions(self) -> NDArray[np.float64]:
        """Return 1 for shells and 0 for batch jobs, NaN for unknown.

        sbatch alone makes a batch step. An interactive step is that of salloc without a command. Where there is
        neither, salloc or srun ran a command, which names the job: a shell's name then tells a shell.
        """
        _, is_own, names = self._own_steps
        shell = np.asarray(pc.fill_null(pc.match_substring_regex(self._names, _SHELL), False))
        found = np.where(shell, 1.0, np.nan)
        for name, value in (("batch", 0.0), ("interactive", 1.0)):
            found[self._owners[is_own & (names == name)]] = value
        return found

    def _is_mig(self, rows: NDArray[np.int64], otherwise: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return 1 for slices and 0 for typed GPUs, by AllocTRES."""
        typed = np.array([bool(entry.gpu_type) for entry in self._tres.entries])[self._tres.codes][rows]
        return np.where(typed, self._tres.floats("slices")[rows], otherwise)

    def _named(self, rows: NDArray[np.int64], source: UseSource, values: pd.DataFrame) -> pd.DataFrame:
        key = self._key.loc[rows, [*KEY]].reset_index(drop=True)
        return pd.concat([key, values], axis=1).assign(source=source.value)


def _most_memory(steps: pa.Table) -> pa.Array:
    of_list = pc.extract_regex(_texts(steps, "tresusageinmax"), r"(?:^|,)mem=(?P<size>[^,]+)")
    return pc.coalesce(_texts(steps, "maxrss"), pc.struct_field(of_list, "size"))


def _sizes(texts: pa.Array) -> NDArray[np.float64]:
    """Return bytes, 0 where they are not known."""
    found = pc.extract_regex(texts, _SIZE)
    number, unit = (pc.struct_field(found, name) for name in ("number", "unit"))
    codes, names = distinct_texts(unit)
    factors = np.array([MIB_PER_UNIT[name] * _MIB if name else 1.0 for name in names] + [0.0])
    sizes: NDArray[np.float64] = pc.cast(number, pa.float64()).to_numpy(zero_copy_only=False)
    return np.asarray(np.nan_to_num(sizes) * factors[codes])
