"""The page of advice for users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from helios.app.advise import WINDOW as USUAL_LENGTH
from helios.app.advise import advise
from helios.app.clusters import NOT_LIVE
from helios.report.admin.sacct_format import as_json
from helios.report.advice_table import advice_by_kind, advice_groups
from helios.report.html import PageSection
from helios.units import count_in_words, in_number
from helios.web.page import Page, Reader, Section
from helios.web.pages.report_page import WINDOW
from helios.web.site import Site
from helios.web.table import DataTable


def advice_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of advice by kind.

    Below it is by user, and for one user by group of jobs. Without a window it is that of ``helios advise``.
    """
    found = advise(replace(site.report_query(reader, given), length=USUAL_LENGTH))
    kinds = advice_by_kind(found.advice)
    of_all = reader.is_admin and not given.get("user")
    table = advice_by_kind(found.advice, by_user=True) if of_all else advice_groups(found.advice)
    unused = "What jobs used of memory and CPUs is not looked at here: helios advise asks Slurm for it."
    if found.advice:
        pieces = f"{count_in_words(len(found.advice), 'piece')} of advice on {in_number(found.jobs, 'jobs')}."
        lines = [pieces, unused, "The same jobs may be in several rows, so that hours have no sum."]
    else:
        lines = [f"{kinds.empty[:-1]}, of {in_number(found.jobs, 'jobs')}.", unused]
    sections: list[PageSection] = [PageSection(sentences=lines, notes=found.notes)]
    if found.advice:
        sections += [
            PageSection(title=kinds.title, tables=[kinds]),
            Section(title=table.title, data=DataTable(answer=table, key=""), id="advice"),
        ]
    return Page(
        title="Advice",
        subtitle=f"{found.cluster}{'' if found.live else f' ({NOT_LIVE})'}: jobs submitted "
        f"{found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M} UTC.",
        sections=sections,
        values={**found.to_json(kinds=kinds), "rows": as_json(table)["rows"]},
        form_fields=(*WINDOW, *(["user"] if reader.is_admin else [])),
    )
