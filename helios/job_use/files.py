"""Reader of files that say what jobs used.

They are output of sacct, a dump of jobstats' database, or any table that a map describes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import FormatUnknown
from helios.ingest.column_map import (
    COUNT_UNITS,
    DURATION_UNITS,
    EPOCH_UNITS,
    MEMORY_UNITS,
    ColumnSource,
    MapKind,
    read_map,
)
from helios.ingest.job_rows import FileReading
from helios.ingest.lines import file_size, head
from helios.ingest.mapped import read_texts
from helios.ingest.parse import TimeParser, numbers
from helios.ingest.sql_dump import fits, read_dump
from helios.job_use.accounting import ROWS_AT_ONCE, read_sacct
from helios.job_use.jobstats import MARK, read_summaries
from helios.job_use.records import KEY, UseCounts, UseRecords, store_records
from helios.model import GPU_USE, JOB_USE, BusyMeans, UseQuality, UseSource
from helios.ports import Progress, no_progress
from helios.warehouse import Warehouse

_TABLES = "job_s[tu][am]*"
"""jobstats' tables: job_summary, and job_statistics of its first versions (its page external-database)."""
_CLUSTER = "*"
_GPU_KEY = ("node", "gpu")
_GPU_VALUES = tuple(column.name for column in GPU_USE.columns if column.dtype == "float64")
_LARGEST = ("gpu_memory_peak_mib", "gpu_memory_total_mib")
_WORDS = {"busy_means": [*BusyMeans], "quality": [*UseQuality]}
_POWER, _ENERGY = {"W": 1.0, "mW": 1e-3, "kW": 1e3}, {"J": 1.0, "Wh": 3_600.0, "kWh": 3.6e6}
_PERCENT, _SHARE = {"": 1.0, "share": 100.0}, {"": 1.0, "percent": 0.01}
_TIMES = dict.fromkeys(EPOCH_UNITS, 1.0) | {"": 1.0}


def _units(name: str, _: ColumnSource | None = None) -> dict[str, float]:
    """Return the units that a column of a map may have, in those of ``JOB_USE``."""
    if name in ("submitted_at", "started_at"):
        return _TIMES
    if name.startswith("utilization"):
        return _PERCENT
    by_end = {"_mib": MEMORY_UNITS, "_s": DURATION_UNITS, "_w": _POWER, "_j": _ENERGY, "_share": _SHARE}
    return next((units for end, units in by_end.items() if name.endswith(end)), {"": COUNT_UNITS[""]})


USE_MAP = MapKind(
    names=[*KEY, *_GPU_KEY, *(name for name in JOB_USE.names if name not in (*KEY, "restart", "source"))],
    needed=("job_id",),
    units=_units,
)
"""Columns of a map of what jobs used: those of ``JOB_USE``, with ``node`` and ``gpu`` where a row is of a GPU."""


def load_use(
    path: Path,
    *,
    url: str,
    cluster: str,
    columns: str | None = None,
    timezone: str | None = None,
    progress: Progress = no_progress,
) -> UseCounts:
    """Store what a file says of jobs in the warehouse.

    Parameters
    ----------
    path : Path
        Output of sacct with a header, a dump of jobstats' database, or a table that a map describes; compressed or not.
    columns : str, optional
        The map.
    timezone : str, optional
        Zone of times that carry none, before UTC. The map's own comes first.

    Raises
    ------
    HeliosError
        The file, the map or the warehouse cannot be read. What was read before is stored, which harms nothing.
    """
    counts, size = UseCounts(), max(1, file_size(path))
    if columns is not None:
        found = _read_mapped(path, columns, timezone, counts)
    elif fits(head(path)):
        found = _read_jobstats_dump(path, cluster, counts)
    else:
        found = read_sacct(path, counts=counts, timezone=timezone or "UTC")
    with Warehouse.open(url) as warehouse:
        for records in found:
            store_records(warehouse, cluster, records, counts)
            progress(f"Reading {path.name}", min(0.99, records.bytes_read / size))
    progress(f"Reading {path.name}", 1.0)
    return counts


def _read_jobstats_dump(path: Path, cluster: str, counts: UseCounts) -> Iterator[UseRecords]:
    """Yield the summaries of a cluster in a dump of jobstats' database."""
    reading = FileReading(path=path, clock=TimeParser("UTC"), rows_per_batch=ROWS_AT_ONCE)
    names = dict[str, None]()
    for rows in read_dump(reading, _TABLES, ["cluster", "jobid", "admin_comment"], cluster=_CLUSTER):
        table = pa.table(rows.columns)
        names |= dict.fromkeys(pc.unique(table["cluster"]).to_pylist())
        table = table.filter(pc.equal(table["cluster"], cluster))
        has_mark = pc.fill_null(pc.match_substring(table["admin_comment"], MARK, ignore_case=True), False)
        counts.other_text += pc.sum(pc.and_(pc.invert(has_mark), table["admin_comment"].is_valid())).as_py() or 0
        counts.refused += len(rows.refused)
        table = table.filter(has_mark)
        summaries = read_summaries(table["admin_comment"].to_pylist())
        key = _key(table["jobid"].combine_chunks())
        jobs = pd.concat([key, summaries.jobs], axis=1).assign(source=UseSource.JOBSTATS.value)
        yield UseRecords(jobs=jobs, gpus=summaries.gpus, bytes_read=rows.texts.block.bytes_read)
    if cluster not in names:
        listed = ", ".join(map(str, names)) or "none"
        raise FormatUnknown(
            f"{path} has no table job_summary or job_statistics of jobstats with the cluster {cluster}.",
            hint=f"Its clusters are: {listed}. Other tables are read by a map: --columns MAP",
        )


def _key(ids: pa.Array) -> pd.DataFrame:
    times = pd.Series(pd.NaT, index=range(len(ids)), dtype=JOB_USE.by_name["submitted_at"].dtype)
    return pd.DataFrame({"job_id": pd.Series(ids, dtype="str"), "submitted_at": times, "started_at": times})


def _read_mapped(path: Path, columns: str, timezone: str | None, counts: UseCounts) -> Iterator[UseRecords]:
    """Yield the records of a table.

    They come all at once where a row is of a GPU.
    """
    chosen = read_map(columns, USE_MAP)
    clock = TimeParser(chosen.keys.timezone or timezone or "UTC")
    reading = FileReading(path=path, clock=clock, rows_per_batch=ROWS_AT_ONCE)
    parts = list[pd.DataFrame]()
    for rows in read_texts(reading, chosen):
        frame = _key(rows.texts["job_id"])
        for name, found in rows.times.items():
            frame[name] = pd.Series(found).dt.tz_localize("UTC")
        kept = rows.kept & np.asarray(rows.texts["job_id"].is_valid())
        for name, texts in rows.texts.items():
            if name in _WORDS:
                words = pd.Series(texts, dtype="object")
                kept &= (words.isna() | words.isin(_WORDS[name])).to_numpy()
                frame[name] = words
            elif name in _GPU_KEY:
                frame[name] = pd.Series(texts, dtype="object").fillna("")
            elif name not in KEY:
                values, bad = numbers(texts)
                frame[name] = values * _units(name)[chosen.sources[name].unit]
                kept &= ~bad
        frame["quality"] = frame.get("quality", pd.Series(None, index=frame.index, dtype=object)).fillna(UseQuality.OK)
        frame.loc[_contradicts(frame), "quality"] = UseQuality.BROKEN
        frame["source"] = UseSource.FILE.value
        counts.refused += rows.refused + int((~kept).sum())
        frame = frame[kept].reset_index(drop=True)
        if "gpu" not in frame:
            yield UseRecords(jobs=frame)
        else:
            parts.append(frame)
    if parts:
        yield _of_gpus(pd.concat(parts, ignore_index=True))


def _contradicts(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return the rows with values that cannot be."""
    found = np.zeros(len(frame), dtype=np.bool_)
    for name in JOB_USE.names:
        if name not in frame or JOB_USE.by_name[name].dtype != "float64":
            continue
        found |= (frame[name] < 0).to_numpy()
        if name.startswith("utilization"):
            found |= (frame[name] > 100.0).to_numpy()
    for used, total in (("gpu_memory_peak_mib", "gpu_memory_total_mib"), ("memory_peak_mib", "memory_limit_mib")):
        if {used, total} <= {*frame}:
            found |= (frame[used] > frame[total]).to_numpy()
    return found


def _of_gpus(rows: pd.DataFrame) -> UseRecords:
    """Return records of jobs from rows of their GPUs."""
    rows = rows.assign(node=rows.get("node", "")).drop_duplicates([*KEY, *_GPU_KEY], keep="last")
    groups = rows.groupby([*KEY], sort=False, dropna=False)
    values = [name for name in _GPU_VALUES if name in rows]
    jobs = groups.first().drop(columns=[*_GPU_KEY, *values])
    jobs["gpus_measured"] = groups["utilization"].count().astype(float) if "utilization" in rows else np.nan
    for name in values:
        jobs[name] = groups[name].max() if name in _LARGEST else groups[name].mean()
    broken = rows[rows["quality"] == UseQuality.BROKEN]
    jobs.loc[jobs.index.isin(pd.MultiIndex.from_frame(broken[[*KEY]])), "quality"] = UseQuality.BROKEN
    gpus = rows[[*_GPU_KEY, *values]].assign(record=groups.ngroup())
    return UseRecords(jobs=jobs.reset_index(), gpus=gpus)
