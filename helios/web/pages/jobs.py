"""The page of all jobs of a window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from helios.app.job_list import FIELDS, MOST_JOBS, NEWEST_FIRST, SORTED_BY, JobList, job_list
from helios.report.admin.sacct_format import ReportTable, as_json
from helios.report.html import filled_fields, write_cells
from helios.web.page import Page, Reader, Section
from helios.web.pages.report_page import CHOICE
from helios.web.site import Site
from helios.web.table import ROWS_OF_PAGE, TableView, page_number, write_csv

JOB_CHOICE = (*CHOICE, "state", "name")
"""Query parameters of the page."""


@dataclass(frozen=True, kw_only=True)
class ListedJobs:
    """A list of jobs of which the database reads what a page shows.

    Attributes
    ----------
    jobs : JobList
    hidden : frozenset of str
        Names of the fields that are not shown.
    """

    jobs: JobList
    hidden: frozenset[str] = frozenset()

    @cached_property
    def count(self) -> int:
        """Number of jobs, up to one more than ``MOST_JOBS``."""
        return self.jobs.count()

    @property
    def is_empty(self) -> bool:
        """Whether no job matches."""
        return self.count == 0

    def view(self, given: Mapping[str, str]) -> TableView:
        """Return a page of it."""
        rows = min(self.count, MOST_JOBS)
        page, pages = page_number(given, rows)
        shown = self._page(given, page)
        fields = [field for field in filled_fields(shown) if field.name not in self.hidden]
        return TableView(
            cells=write_cells(shown, fields),
            fields=fields,
            total=None,
            rows=rows,
            first=(page - 1) * ROWS_OF_PAGE + 1 if rows else 0,
            page=page,
            pages=pages,
            sort=given.get("sort") or NEWEST_FIRST,
            find="",
            sorted_by=SORTED_BY,
            is_searched=False,
        )

    def to_csv(self, given: Mapping[str, str]) -> Iterator[str]:
        """Yield the first ``MOST_JOBS`` of them as CSV."""
        return write_csv(self.jobs.read(sort=given.get("sort") or NEWEST_FIRST), FIELDS)

    def to_json(self, _: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of it, the first unless another one is asked for."""
        page, pages = page_number(given, min(self.count, MOST_JOBS))
        return {"rows": as_json(self._page(given, page))["rows"], "page": page, "pages": pages}

    def _page(self, given: Mapping[str, str], page: int) -> ReportTable:
        sort = given.get("sort") or NEWEST_FIRST
        parts = self.jobs.read(sort=sort, first=(page - 1) * ROWS_OF_PAGE, most=ROWS_OF_PAGE)
        return [*parts, self.jobs.no_jobs][0]


def jobs_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of the jobs of a window, the newest first."""
    query = site.report_query(reader, given)
    found = job_list(query, state=given.get("state", ""), name_part=given.get("name", ""))
    table = ListedJobs(jobs=found, hidden=frozenset() if reader.is_admin else frozenset({"User"}))
    notes = ["A requeued job has a row for each run. Submitted, GPUs, CPUs and RunTime sort."]
    if table.count > MOST_JOBS:
        notes.append(f"There are more than {MOST_JOBS:,}: the others are not here, and not in CSV. Narrow the window.")
    sentences = ["No job matches."] if table.is_empty else []
    return Page(
        title="Jobs",
        subtitle=found.title,
        sections=[Section(sentences=sentences, data=table, notes=notes)],
        values={"title": found.title, "jobs": min(table.count, MOST_JOBS), "more": table.count > MOST_JOBS},
        form_fields=[name for name in JOB_CHOICE if reader.is_admin or name != "user"],
    )
