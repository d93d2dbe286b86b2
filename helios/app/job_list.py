"""Jobs of a window as a list, filtered and ordered by the database.

A window may have millions of jobs, of which a reader sees fifty. None of the others are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from helios.app.reports import ReportQuery, open_context
from helios.errors import UsageError
from helios.model import JobState
from helios.report.admin.sacct_format import FieldKind, ReportTable, declare_fields
from helios.report.admin.usage import wait_s
from helios.warehouse import JobFilter, Warehouse

MOST_JOBS = 100_000
"""Most jobs of a list: to count and to skip that many takes a database a tenth of a second."""
NEWEST_FIRST = "-Submitted"
FIELDS = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "Job id"),
    ("Run", "restart", FieldKind.COUNT, 4, "Number of the run, where the job was requeued"),
    ("User", "user", FieldKind.TEXT, 12, "User"),
    ("Account", "account", FieldKind.TEXT, 12, "Account"),
    ("Partition", "partition", FieldKind.TEXT, 12, "Partition"),
    ("Name", "name", FieldKind.TEXT, 20, "Name"),
    ("State", "state", FieldKind.TEXT, 12, "State, in Slurm's words"),
    ("GPUs", "gpus", FieldKind.SIZE, 6, "GPUs; empty where unknown"),
    ("CPUs", "cpus", FieldKind.SIZE, 6, "CPUs; empty where unknown"),
    ("Submitted", "submitted_at", FieldKind.MOMENT, 19, "When it was submitted"),
    ("Started", "started_at", FieldKind.MOMENT, 19, "When it started"),
    ("Waited", "wait_s", FieldKind.LENGTH, 10, "From when it could start until it did"),
    ("RunTime", "run_time_s", FieldKind.LENGTH, 10, "Run time, without suspensions"),
)
SORTED_BY = {
    "Submitted": "submitted_at",
    "Started": "started_at",
    "GPUs": "gpus",
    "CPUs": "cpus",
    "RunTime": "run_time_s",
}
"""Fields to sort by, and their columns. The others would need a look at texts or at every job."""
COLUMNS = [field.column for field in FIELDS if field.column != "wait_s"] + ["eligible_at"]


@dataclass(frozen=True, kw_only=True)
class JobList:
    """The jobs of a window that match a query.

    Attributes
    ----------
    url, cluster, timezone : str
    title : str
        What was asked, with the window.
    wanted : JobFilter
    """

    url: str
    cluster: str
    timezone: str
    title: str
    wanted: JobFilter

    def count(self) -> int:
        """Return how many there are, up to one more than ``MOST_JOBS``."""
        with Warehouse.open(self.url) as warehouse:
            return warehouse.count_jobs(self.cluster, self.wanted, most=MOST_JOBS + 1)

    def read(self, *, sort: str = NEWEST_FIRST, first: int = 0, most: int | None = None) -> Iterator[ReportTable]:
        """Yield the jobs in parts, in order.

        Parameters
        ----------
        sort : str
            A key of ``SORTED_BY``, behind a minus for the largest first.
        first, most : int
            Number of jobs before the first one, and most jobs. By default ``MOST_JOBS``.

        Raises
        ------
        UsageError
            It is not sorted by that.
        """
        column = SORTED_BY.get(sort.removeprefix("-"))
        if column is None:
            hint = f"Columns are {', '.join(SORTED_BY)}; a minus before: largest first."
            raise UsageError(f"sort={sort} is not known.", hint=hint)
        return self._read("-" * sort.startswith("-") + column, first, MOST_JOBS if most is None else most)

    def _read(self, sort: str, first: int, most: int) -> Iterator[ReportTable]:
        with Warehouse.open(self.url) as warehouse:
            for jobs in warehouse.list_jobs(
                self.cluster, self.wanted, columns=COLUMNS, sort=sort, first=first, most=most
            ):
                runs = jobs["restart"].where(jobs["restart"] > 0)  # 0 of nearly every job says nothing
                rows = jobs.assign(wait_s=wait_s(jobs), restart=runs)
                yield self._table(rows[[field.column for field in FIELDS]])

    @property
    def no_jobs(self) -> ReportTable:
        """A part of the list without jobs."""
        return self._table(pd.DataFrame(columns=[field.column for field in FIELDS]))

    def _table(self, rows: pd.DataFrame) -> ReportTable:
        return ReportTable(title=self.title, fields=FIELDS, rows=rows, empty="No job matches.", timezone=self.timezone)


def job_list(query: ReportQuery, *, state: str = "", name_part: str = "") -> JobList:
    """Return the list of the jobs submitted in the window of a query.

    Parameters
    ----------
    state : str
        State of Slurm, in any case. Empty for all.
    name_part : str
        Text within the job's name, in any case. Empty for all.

    Raises
    ------
    UsageError
        There is no such state.
    """
    if state and state.upper() not in set(JobState):
        raise UsageError(f"state={state} is not known.", hint=f"States are {', '.join(JobState)}.")
    only = {
        "user": query.users,
        "account": query.accounts,
        "partition": query.partitions,
        "state": [state.upper()] if state else [],
    }
    with open_context(query) as context:
        return JobList(
            url=query.url,
            cluster=context.cluster,
            timezone=context.timezone,
            title=context.title("Jobs submitted"),
            wanted=JobFilter(since=context.since, until=context.until, only=only, name_part=name_part),
        )
