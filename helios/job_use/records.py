"""What jobs used, as a source says it, and of which runs that is.

Ids come again when Slurm's counter begins anew, and a requeued job has one id and several runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import GPU_USE, JOB_USE
from helios.warehouse import Warehouse

KEY = ("job_id", "submitted_at", "started_at")
"""By what a record names its run; times are NaT where they are not known."""
RUN_COLUMNS = ("submitted_at", "job_id", "restart", "started_at")
"""Columns of ``JOBS`` by which runs are matched."""
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


class Matches(NamedTuple):
    """Runs of some records.

    Attributes
    ----------
    rows : array of int64
        Position of each record's run, -1 for none.
    is_used_again : array of bool
        Records whose id several jobs had, and which do not say when.
    """

    rows: NDArray[np.int64]
    is_used_again: NDArray[np.bool_]


def match_runs(records: pd.DataFrame, runs: pd.DataFrame) -> Matches:
    """Return the run that each record is of.

    A record that knows its start is of the run with this id and start. One that knows its submission only, is of the
    last run of that job. One that knows neither is of the last run of the only job with this id.

    Parameters
    ----------
    records : DataFrame
        ``job_id``, ``submitted_at`` and ``started_at``, NaT where not known.
    runs : DataFrame
        ``RUN_COLUMNS`` of all runs with these ids.
    """
    runs = runs.assign(row=np.arange(len(runs))).sort_values(["submitted_at", "restart"], kind="stable")
    jobs = runs.drop_duplicates(["job_id", "submitted_at"], keep="last")
    used_again = jobs.loc[jobs["job_id"].duplicated(), "job_id"]
    has_start, has_submission = (records[name].notna().to_numpy() for name in ("started_at", "submitted_at"))
    found = np.full(len(records), -1)
    for chosen, known, names in (
        (has_start, runs, ["job_id", "started_at"]),
        (~has_start & has_submission, jobs, ["job_id", "submitted_at"]),
        (~has_start & ~has_submission, jobs, ["job_id"]),
    ):
        if chosen.any():
            # Two runs that cannot be told apart are no match, and so is an id that several jobs had.
            places = known[[*names, "row"]].drop_duplicates(names, keep=False)
            rows = records.loc[chosen, names].merge(places, how="left", on=names)["row"]
            found[chosen] = rows.fillna(-1).to_numpy(dtype=np.int64)
    is_used_again = ~has_start & ~has_submission & records["job_id"].isin(used_again).to_numpy()
    return Matches(found, is_used_again)


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
