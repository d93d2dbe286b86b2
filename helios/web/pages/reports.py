"""The list of reports that were written."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from helios.config import Settings
from helios.report.html import PageSection, TableCells
from helios.web.page import Page, Reader
from helios.web.site import Site

REPORT_KINDS = (".html", ".txt")
"""Suffixes of the files in the report folder that are listed."""


def report_files(settings: Settings) -> Iterator[Path]:
    """Yield the listed report files, newest first."""
    folder = Path(settings.report.folder)
    try:
        found = [
            path
            for path in folder.iterdir()
            if path.suffix in REPORT_KINDS and path.is_file() and not path.is_symlink()
        ]
    except OSError:
        return
    yield from sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))


def reports_page(site: Site, _: Reader, __: Mapping[str, str]) -> Page:
    """Return the list of reports and what-ifs that were written."""
    found = [
        {
            "file": path.name,
            "title": _title(path),
            "written_at": f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d %H:%M}",
        }
        for path in report_files(site.settings)
    ]
    rows = [(each["file"], each["title"], each["written_at"]) for each in found]
    folder = site.settings.report.folder
    lines = [
        "Written by the nightly analysis, and by commands with --report into the same folder."
        if found
        else "No report has been written: helios nightly writes one each night.",
        f"To have a what-if, a study or another report here: --report {folder}/NAME.html",
    ]
    table = TableCells(header=[("Report", True), ("What", True), ("Written (UTC)", False)], rows=rows)
    return Page(
        title="Reports",
        sections=[PageSection(sentences=lines), PageSection(title="Files", tables=[table])],
        values={"reports": found},
    )


def _title(path: Path) -> str:
    """Return the title of a report, empty where it has none."""
    if path.suffix != ".html":
        return "the same as text" if path.with_suffix(".html").exists() else ""
    try:
        with path.open("rb") as file:
            found = re.search(rb"<title>([^<]{1,200})</title>", file.read(4096))
    except OSError:
        return ""
    return html.unescape(found[1].decode("utf-8", "replace")) if found else ""
