"""The page of one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from helios.app.explain_past import ID_USED_BEFORE
from helios.report.html import PageSection, TableCells
from helios.web.page import Page, Reader
from helios.web.site import Site


def job_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one job."""
    found = site.job(reader, given["job"])
    if not reader.is_admin:
        # They tell how long others' jobs ran, and whose they were.
        remarks = tuple(text for text in found.remarks if not text.startswith(ID_USED_BEFORE))
        found = replace(found, rests_on="", held_by=(), remarks=remarks, target=())
    tables = []
    if len(found.decisions):
        names = ("decided_at", "service", "mode", "action", "after", "outcome", "reason")
        rows = [
            tuple("" if pd.isna(row[name]) else str(row[name])[:200] for name in names)
            for row in found.decisions.to_dict("records")
        ]
        tables = [TableCells(header=[(name.replace("_", " ").capitalize(), True) for name in names], rows=rows[::-1])]
    sections = [
        PageSection(sentences=found.lines()),
        PageSection(title="What Helios decided, the last first", tables=tables),
    ]
    return Page(title=f"Job {found.job_id}", sections=sections, values=found.to_json())
