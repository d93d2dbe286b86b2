"""The pages of use and waits."""

from __future__ import annotations

from collections.abc import Mapping

from helios.app import reports
from helios.report.admin.sacct_format import as_json
from helios.report.html import PageSection
from helios.web.page import Page, PageMissing, Reader
from helios.web.pages.report_page import CHOICE, WINDOW, report_page
from helios.web.site import Site


def usage_page(group: str, site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of use by user, account or partition."""
    answer = reports.usage_report(site.report_query(reader, given, sums=group != "user"), group=group)
    fields = [name for name in CHOICE if reader.is_admin or name != "user"]
    return report_page(f"Use by {group}", answer, form_fields=fields)


def user_page(site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one user."""
    user = given["user"]
    if not reader.may_see(user):
        raise PageMissing(f"The page of {user} is not yours.", hint="Only your own is shown.")
    used = reports.usage_report(site.report_query(reader, given), group="partition")
    waiting = reports.queue_report(site.report_query(reader, {"user": user}))
    sections = [
        PageSection(sentences=[used.title, *([used.empty] if used.rows.empty else [])]),
        PageSection(title="Use by partition", tables=[used], notes=used.notes),
        PageSection(
            title="In the queue",
            sentences=[waiting.empty] if waiting.rows.empty else [],
            tables=[waiting],
            notes=waiting.notes,
        ),
    ]
    return Page(
        title=f"User {user}",
        sections=sections,
        values={"use": as_json(used), "queue": as_json(waiting)},
        form_fields=WINDOW,
    )


def group_page(group: str, site: Site, reader: Reader, given: Mapping[str, str]) -> Page:
    """Return the page of one account or partition.

    It has its users for an admin, else its partitions or accounts.
    """
    name = given[group]
    below = "user" if reader.is_admin else {"account": "partition", "partition": "account"}[group]
    answer = reports.usage_report(site.report_query(reader, given, sums=True), group=below)
    return report_page(f"{group.capitalize()} {name}", answer, form_fields=WINDOW)
