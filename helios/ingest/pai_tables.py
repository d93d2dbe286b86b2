"""The tables of Alibaba PAI 2020, and what the tasks and group tags of each job come to.

Tasks lie in no order, so a table is added up whole before the first job is read: some 60 bytes for each task, and as
many for each tag.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.ingest.check import Reason, Verdicts
from helios.ingest.delimited import Rows
from helios.ingest.repair import Dialect
from helios.ingest.values import category, numbers

MIB_PER_GIB = 1024.0
PER_CENT = 0.01
_LINES_LOOKED_AT = 20
_STATUS = frozenset({"Terminated", "Failed", "Running", "Waiting"})
_SECONDS = re.compile(r"(\d+(\.\d*)?)?", re.ASCII)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: the name of its file without endings, and its columns in their order."""

    name: str
    names: tuple[str, ...]

    def fits(self, start: bytes) -> bool:
        """Return whether one of a file's first lines has this table's fields, with a status and two times."""
        lines = start.decode("utf-8", errors="replace").split("\n")[:_LINES_LOOKED_AT]
        return any(self._is_row(line.rstrip("\r").split(",")) for line in lines)

    def dialect(self, start: bytes) -> Dialect:
        """Return how this table's file separates its fields; a line of column names is no row."""
        first = start.partition(b"\n")[0]
        named = first.decode("utf-8", errors="replace").strip() == ",".join(self.names)
        return Dialect(names=self.names, separator=b",", quoted=True, header=first if named else None)

    def _is_row(self, fields: list[str]) -> bool:
        if len(fields) != len(self.names):
            return False
        row = dict(zip(self.names, fields, strict=True))
        times = (row.get("start_time", "-"), row.get("end_time", "-"))
        return row.get("status") in _STATUS and all(_SECONDS.fullmatch(time) for time in times)


JOBS = Table(name="pai_job_table", names=("job_name", "inst_id", "user", "status", "start_time", "end_time"))
TASKS = Table(
    name="pai_task_table",
    names=(
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
)
GROUP_TAGS = Table(name="pai_group_tag_table", names=("inst_id", "user", "gpu_type_spec", "group", "workload"))


class Tasks:
    """What all tasks of each job ask for together, and when the first of them started."""

    def __init__(self) -> None:
        self._rows: list[pd.DataFrame] = []
        self._jobs = pd.DataFrame()

    def add(self, rows: Rows, verdicts: Verdicts) -> None:
        """Take note of rows of the task table, and refuse those that make no sense."""
        verdicts.refuse(rows.columns["job_name"].is_null().to_numpy(zero_copy_only=False), Reason.MISSING_JOB_ID)
        instances = np.nan_to_num(_amount(rows, "inst_num", verdicts), nan=1.0)
        asked = {field: _amount(rows, field, verdicts) * instances for field in ("plan_gpu", "plan_cpu", "plan_mem")}
        started = _amount(rows, "start_time", verdicts)
        frame = pd.DataFrame(
            {
                "job": hashed(rows.columns["job_name"]),
                "gpus": asked["plan_gpu"] * PER_CENT,
                "cpus": asked["plan_cpu"] * PER_CENT,
                "memory_mib": asked["plan_mem"] * MIB_PER_GIB,
                "started_s": np.where(started > 0, started, np.nan),
                "gpu_type": pd.Series(category(rows.columns["gpu_type"])).astype(object),
            }
        )
        self._rows.append(frame[verdicts.accepted])

    def close(self) -> None:
        """Add up what there is for each job; call once, after the last :meth:`add`."""
        rows = pd.concat(self._rows, ignore_index=True) if self._rows else _NO_TASKS
        self._rows = []
        jobs = rows.groupby("job")
        self._jobs = jobs[["gpus", "cpus", "memory_mib"]].sum(min_count=1)
        self._jobs["started_s"] = jobs["started_s"].min()
        self._jobs["gpu_type"] = _kinds(rows[rows["gpus"] > 0])
        self._jobs["has_task"] = True

    def of(self, jobs: pa.Array) -> pd.DataFrame:
        """Return gpus, cpus, memory_mib, started_s, gpu_type and has_task of each job, by name; NaN: unknown."""
        return self._jobs.reindex(hashed(jobs)).reset_index(drop=True)


class GroupTags:
    """The group tag of each job: the same tag, the same task repeated, as the trace's authors found."""

    def __init__(self) -> None:
        self._rows: list[pd.Series[Any]] = []
        self._tags: pd.Series[Any] = pd.Series([], index=pd.Index([], dtype=np.uint64), dtype="category")

    def add(self, rows: Rows) -> None:
        """Take note of rows of the tag table."""
        tags = pd.Series(category(rows.columns["group"]), index=hashed(rows.columns["inst_id"]))
        self._rows.append(tags[tags.notna()])

    def close(self) -> None:
        """Order what there is; call once, after the last :meth:`add`."""
        if self._rows:
            tags = pd.concat([tags.astype(object) for tags in self._rows]).astype("category")
            self._tags = tags[~tags.index.duplicated()]
        self._rows = []

    def of(self, instances: pa.Array) -> pa.Array:
        """Return the tag of each job, by its ``inst_id``; null where it has none."""
        found = self._tags.reindex(hashed(instances))
        return pa.array(found.astype(object).where(found.notna(), None), pa.string())


def hashed(names: pa.Array) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each name: among a million, two share one with a chance of 3 in 100 million."""
    return pd.util.hash_array(pc.fill_null(names, "").to_numpy(zero_copy_only=False), categorize=False)


_NO_TASKS = pd.DataFrame(
    {
        "job": np.empty(0, dtype=np.uint64),
        **{name: np.empty(0) for name in ("gpus", "cpus", "memory_mib", "started_s")},
        "gpu_type": np.empty(0, dtype=object),
    }
)


def _amount(rows: Rows, field: str, verdicts: Verdicts) -> Floats:
    values, bad = numbers(rows.columns[field])
    verdicts.refuse(bad, Reason.UNREADABLE_NUMBER)
    verdicts.refuse(values < 0, Reason.NEGATIVE_SIZE)
    return values


def _kinds(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return for each job the kinds of GPU that its tasks got, joined by commas."""
    pairs = rows[["job", "gpu_type"]].dropna().drop_duplicates().sort_values(["job", "gpu_type"])
    several = pairs["job"].duplicated(keep=False)
    joined = pairs[several].groupby("job")["gpu_type"].agg(",".join)
    return pd.Series(pd.concat([pairs[~several].set_index("job")["gpu_type"], joined]))
