"""A page that is one report."""

from __future__ import annotations

from collections.abc import Sequence

from helios.report.admin.sacct_format import ReportTable, as_json
from helios.web.page import Page, Section
from helios.web.table import DataTable

WINDOW = ("from", "to")
"""Query parameters of a page over a window."""
CHOICE = (*WINDOW, "user", "account", "partition")
"""Query parameters of a page over the jobs of a window."""


def report_page(name: str, answer: ReportTable, *, form_fields: Sequence[str], sentences: Sequence[str] = ()) -> Page:
    """Return the page of a report."""
    empty = [answer.empty] if answer.rows.empty else []
    section = Section(sentences=[*sentences, *empty], data=DataTable(answer=answer), notes=answer.notes)
    return Page(title=name, subtitle=answer.title, sections=[section], values=as_json(answer), form_fields=form_fields)
