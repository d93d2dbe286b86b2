"""What jobs used, as a source says it, before the runs are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from helios.job_use.matching import RUN_COLUMNS, match_runs
from helios.model import GPU_USE, JOB_USE
from helios.warehouse import Warehouse

KEY = ("job_id", "submitted_at", "started_at")
"""By what a record names its run; times are NaT where they are not known."""
EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UseRecords:
    """Some records of one source.

    Attributes
    ----------
    jobs : DataFrame
        ``KEY``, ``source``, ``quality`` and further columns of ``JOB_USE``, with a row for each record.
    gpus : DataFrame
        Columns of ``GPU_USE`` without its key, with ``record``, the position in ``jobs``.
    bytes_read : int
        Read of the file so far.
    """

    jobs: pd.DataFrame
    gpus: pd.DataFrame = field(default_factory=lambda: pd.DataFrame({"record": np.empty(0, dtype=np.int64)}))
    bytes_read: int = 0


@dataclass(slots=True)
class UseCounts:
    """What became of the records that were read.

    Attributes
    ----------
    read, stored, gpus : int
        Records that were read, and those of runs in the warehouse, with their GPUs.
    quality : Counter
        Stored records by ``UseQuality``.
    not_matched, used_again : int
        Records of no known run, and of an id that several jobs had.
    examples : dict of str to list of str
        Ids of the first of these.
    other_text, refused : int
        AdminComments that are not of jobstats, and rows that could not be read.
    """

    read: int = 0
    stored: int = 0
    gpus: int = 0
    quality: Counter[str] = field(default_factory=Counter)
    not_matched: int = 0
    used_again: int = 0
    examples: dict[str, list[str]] = field(default_factory=lambda: {"not_matched": [], "used_again": []})
    other_text: int = 0
    refused: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}

    def lines(self) -> list[str]:
        """Return them as lines of text, the stored first."""
        of_quality = ", ".join(f"{number:,} {name}" for name, number in sorted(self.quality.items()))
        found = [f"{self.stored:,} of {self.read:,} records stored, with {self.gpus:,} GPUs"]
        found[0] += f" (quality: {of_quality})." if of_quality else "."
        reasons = {
            "not_matched": "are of no run in the warehouse: load the jobs first (helios trace load or sync)",
            "used_again": "have an id that several jobs had, and no start or submission that tells which",
            "other_text": "AdminComments are not of jobstats",
            "refused": "rows could not be read",
        }
        for name, reason in reasons.items():
            if number := getattr(self, name):
                examples = self.examples.get(name)
                found.append(f"{number:,} {reason}" + (f"; such as {', '.join(examples)}." if examples else "."))
        return found


def store_records(warehouse: Warehouse, cluster: str, records: UseRecords, counts: UseCounts) -> None:
    """Store records of known runs, and count what became of all.

    Storing them again changes nothing.
    """
    jobs = records.jobs.reset_index(drop=True)
    counts.read += len(jobs)
    if jobs.empty:
        return
    if jobs["submitted_at"].notna().all():
        runs = warehouse.runs_of(cluster, jobs[["submitted_at", "job_id"]])
    else:
        runs = warehouse.jobs(cluster, columns=RUN_COLUMNS)
        runs = runs[runs["job_id"].isin(jobs["job_id"])].reset_index(drop=True)
    rows, is_used_again = match_runs(jobs, runs)
    for name, missed in (("used_again", is_used_again), ("not_matched", (rows < 0) & ~is_used_again)):
        setattr(counts, name, getattr(counts, name) + int(missed.sum()))
        examples = counts.examples[name]
        examples += jobs.loc[missed, "job_id"].head(EXAMPLES - len(examples)).str[:40].tolist()
    # Of two records of a run the last counts, as it would if they came one after the other.
    kept = pd.DataFrame({"row": rows, "source": jobs["source"].to_numpy()}).drop_duplicates(keep="last").index
    kept = kept[rows[kept] >= 0]
    key = runs.iloc[rows[kept]][["submitted_at", "restart"]].set_axis(kept)
    found = jobs.loc[kept].drop(columns=["submitted_at", "started_at"]).assign(**key)
    gpus = records.gpus[records.gpus["record"].isin(kept)]
    of_gpus = found.loc[gpus["record"], ["submitted_at", "job_id", "restart", "source"]].set_axis(gpus.index)
    gpus = gpus.drop(columns="record").assign(**of_gpus)
    warehouse.add_job_use(cluster, JOB_USE.conform(found), GPU_USE.conform(gpus))
    counts.stored += len(found)
    counts.gpus += len(gpus)
    counts.quality.update(found["quality"].tolist())
