"""The page of advice for users."""

from __future__ import annotations

from collections.abc import Mapping

from helios.app.advise import advise
from helios.app.clusters import NOT_LIVE
from helios.report.html import PageSection
from helios.units import count_in_words, in_number
from helios.web.page import Page, Reader
from helios.web.pages.report_page import WINDOW
from helios.web.site import Site

ADVICE_SHOWN = 20
"""Most pieces of advice on a page. JSON has all."""


def advice_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of advice for users."""
    found = advise(site.report_query(reader, given))
    sections = [
        PageSection(
            sentences=[
                f"{count_in_words(len(found.advice), 'piece')} of advice on {in_number(found.jobs, 'jobs')}, "
                "that on the most hours first.",
                "What jobs used is not looked at here: helios advise asks Slurm for it.",
            ],
            notes=found.notes,
        ),
        *(
            PageSection(
                title=f"{one.user}: {one.which}" if reader.is_admin else one.which,
                sentences=[one.sentence, *one.lines()[1:]],
            )
            for one in found.advice[:ADVICE_SHOWN]
        ),
    ]
    return Page(
        title="Advice",
        subtitle=""
        if found.live
        else f"{found.cluster}: {NOT_LIVE}, {found.since:%Y-%m-%d} to {found.until:%Y-%m-%d}.",
        sections=sections,
        values=found.to_json(),
        form_fields=(*WINDOW, *(["user"] if reader.is_admin else [])),
    )
