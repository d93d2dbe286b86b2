"""The page of the latest study."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from helios.report.html import PageSection, TableCells
from helios.report.stored_study import latest_study
from helios.web.page import Page, Reader, Section
from helios.web.site import Site


def study_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the page of the latest study.

    What it found comes first. Each figure and table below is folded behind its title, which says what it shows.
    """
    cluster = site.name()
    kept = latest_study(Path(site.settings.report.folder), cluster)
    if kept is None:
        lines = [
            "No study has been kept: helios nightly makes one of the last four weeks each night.",
            "To make one now: helios study --keep",
        ]
        return Page(title=f"Study of {cluster}", sections=[PageSection(sentences=lines)], values={"made_at": None})
    sections = [
        Section(
            title=one["title"],
            is_folded=number > 0,
            sentences=one["sentences"],
            figures=[partial(_figure_of_width, *drawn) for drawn in one["figures"]],
            tables=[
                TableCells(header=[tuple(name) for name in table["header"]], rows=table["rows"])
                for table in one["tables"]
            ],
            notes=one["notes"],
        )
        for number, one in enumerate(kept.sections)
    ]
    return Page(
        title=f"Study of {cluster}",
        subtitle=f"Made on {kept.made_at:%Y-%m-%d %H:%M} UTC. {kept.subtitle}",
        sections=sections,
        values={"made_at": kept.made_at.isoformat(), **kept.values},
    )


def _figure_of_width(wide: str, narrow_one: str, *, narrow: bool = False) -> str:
    return narrow_one if narrow else wide
